"""How does a whole check go? Suite or case in, answers in, one Report out.

`check` and `run` are the calls that people make from Python; `check_suite` is the command's.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from neocpu.core.errors import OracleError
from neocpu.oracle.adapters import Array, arrays
from neocpu.oracle.answers import REPEATS, Answers
from neocpu.oracle.diagnosis.diagnose import BUDGET, Investigation, Progress
from neocpu.oracle.diagnosis.evidence import CaseTrial
from neocpu.oracle.diagnosis.findings import Diagnosis
from neocpu.oracle.diagnosis.seeds import judged_by_seed
from neocpu.oracle.mirrors import NoMirror, mirror_bits
from neocpu.oracle.operator import Case, Operator, Options, QuestionError, Truth, Truths
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.options import nearest_name
from neocpu.oracle.outcome import CaseOutcome
from neocpu.oracle.report import Report
from neocpu.oracle.semantics import PRESETS
from neocpu.oracle.suite import Question
from neocpu.oracle.verdicts.compare import Verdict, compare, one_run
from neocpu.oracle.verdicts.typical import with_typical

HINTS = 20  # unknown names for which the nearest one that exists is looked up


def find_operator(name: str) -> Operator:
    """The operator of that name. Raises OracleError with the nearest that exists."""
    if name not in OPERATORS:
        raise OracleError(
            f"no operator {name}{nearest_name(name, OPERATORS)}; `neocpu oracle list` shows all"
        )
    return OPERATORS[name]


def find_preset(name: str | None) -> frozenset[str]:
    """Switches of a preset; None: the exact model. Raises OracleError for an unknown one."""
    if name is not None and name not in PRESETS:
        raise OracleError(
            f"no preset {name}{nearest_name(name, PRESETS)}; there are {', '.join(PRESETS)}"
        )
    return PRESETS[name] if name else frozenset()


def is_canonical(preset: str | None) -> bool:
    """Are the bits of that preset neocpu's own?"""
    return preset in (None, "exact")


def check_suite(
    suite: Mapping[str, Question],
    answers: Answers,
    bits: bool = False,
    preset: str | None = None,
    strict: bool = False,
    budget: float = BUDGET,
) -> Report:
    """Compare all answers there are with a suite, and explain what is wrong.

    preset : a peer's semantics.
    bits : ask for the canonical bits, or those of the preset's mirror. A case that the mirror does
        not cover is judged within bounds, and says so.
    strict : a warning fails the check.
    budget : seconds for explanations; 0: verdicts only.
    Raises OracleError for unreadable files or an unknown preset.
    """
    judgement = judge_suite(suite, answers, bits, preset, strict)
    return judgement.explained(budget) if budget > 0 else judgement.report


@dataclass(frozen=True)
class JudgedSuite:
    """Verdicts, and what explanations are sought in."""

    report: Report
    trials: tuple[CaseTrial, ...]  # of all cases that were answered

    def explained(self, budget: float = BUDGET, progress: Progress | None = None) -> Report:
        """The report with explanations, sought for so many seconds."""
        if not self.report.failures:
            return self.report
        search = Investigation(self.trials, budget, *([progress] if progress else []))
        return self.report.explained_by(search.run())


def judge_suite(
    suite: Mapping[str, Question],
    answers: Answers,
    bits: bool = False,
    preset: str | None = None,
    strict: bool = False,
) -> JudgedSuite:
    """The verdicts on all answers there are, without explanations; as check_suite."""
    find_preset(preset)
    keys_of_case: dict[str, list[str]] = {}
    for key in answers:
        keys_of_case.setdefault(key.split("/", 1)[0], []).append(key)
    outcomes = []
    trials = []
    unknown = []
    for name in suite:
        if name not in keys_of_case:
            continue
        question = suite[name]
        truths = {output: expected.truth for output, expected in question.outputs.items()}
        case_answers = {}
        for key in keys_of_case[name]:
            output = key.split("/", 1)[1] if "/" in key else ""
            if output.removesuffix(REPEATS) in truths:
                case_answers[output] = answers[key]
            else:
                unknown.append(f"{key}{nearest_name(key, [f'{name}/{o}' for o in truths])}")
        canonical = {}
        if bits:
            canonical = {output: e.canonical for output, e in question.outputs.items()}
        outcome, trial = _judged(question.case, truths, case_answers, canonical, bits, preset)
        outcomes.append(outcome)
        trials.append(trial)
    for number, name in enumerate(sorted(set(keys_of_case) - set(suite))):
        # to find a near name takes long, and the first few show what is wrong with the others
        near = difflib.get_close_matches(name, suite, 1, 0.5) if number < HINTS else []
        for key in keys_of_case[name]:
            meant = key.replace(name, near[0], 1) if near else ""
            unknown.append(f"{key} (did you mean {meant}?)" if near else key)
    report = Report(
        cases=tuple(judged_by_seed(outcomes)),
        unknown=tuple(unknown),
        unanswered=tuple(name for name in suite if name not in keys_of_case),
        preset=preset or "",
        bits=bits,
        source=answers.source,
        unsought=True,
        strict=strict,
    )
    return JudgedSuite(report, _with_verdicts(trials, report.cases))


def judge_cases(answered: Iterable[tuple[Case, Mapping[str, Array]]]) -> JudgedSuite:
    """Verdicts, within bounds, on answers to cases that stand in no suite; as judge_suite.

    answered : cases of different names, each with answers by output.
    """
    outcomes = []
    trials = []
    for case, answers in answered:
        truths = find_operator(case.op).truth(case.inputs, case.options)
        outcome, trial = _judged(case, truths, answers, {}, False, None)
        outcomes.append(outcome)
        trials.append(trial)
    report = Report(tuple(judged_by_seed(outcomes)), (), (), unsought=True)
    return JudgedSuite(report, _with_verdicts(trials, report.cases))


def _with_verdicts(
    trials: Iterable[CaseTrial], outcomes: Iterable[CaseOutcome]
) -> tuple[CaseTrial, ...]:
    """Trials of what was answered, with what the verdicts on all cases say of them."""
    judged = []
    for trial, outcome in zip(trials, outcomes):
        mistakes = {m.name: m for verdict in outcome.verdicts for m in verdict.mistakes}
        proved = [Diagnosis((m.name,), "mistake", m.about, m.fix) for m in mistakes.values()]
        if trial.answers:
            failed = outcome.status == "failed"
            judged.append(replace(trial, failed=failed, proved=tuple(proved)))
    return tuple(judged)


def _judged(
    case: Case,
    truths: Truths,
    answers: Mapping[str, Array],
    canonical: Mapping[str, Array | None],
    bits: bool,
    preset: str | None,
) -> tuple[CaseOutcome, CaseTrial]:
    """One case: a verdict per output, and the trial in which explanations are sought.

    answers : by output; with REPEATS at the end of the name where all runs have one seed.
    canonical : neocpu's bits, where these are asked for.
    """
    op = find_operator(case.op)
    switches = find_preset(preset)
    note = ""
    # A peer's bits are its mirror's; neocpu's come with the suite.
    if bits and not is_canonical(preset):
        canonical, note = _mirrored(case, str(preset))
    if switches:
        with np.errstate(all="ignore"):
            truths = op.truth(case.inputs, case.options, switches)
            truths = with_typical(op, case.inputs, case.options, truths, switches)
    verdicts = []
    for output, truth in truths.items():
        bits_of_output = canonical.get(output)
        if output in answers:
            verdict = compare(op, case, output, truth, answers[output], bits_of_output)
            verdicts.append(verdict)
        repeated = answers.get(output + REPEATS)
        if repeated is not None:
            verdict = compare(op, case, output, truth, repeated, bits_of_output, repeats=True)
            verdicts.append(replace(verdict, output=output + REPEATS))
        elif output not in answers:
            verdicts.append(Verdict(output, "missing", "no answer"))
    outcome = CaseOutcome(case, tuple(verdicts), (), note)
    by_output: Mapping[str, Array] = answers
    if outcome.status == "failed":
        # of two answers to one output a wrong one is explained
        wrong = {v.output for v in verdicts if v.status in ("failed", "malformed")}
        order = sorted(answers, key=wrong.__contains__)
        by_output = {name.removesuffix(REPEATS): answers[name] for name in order}
    else:
        by_output = {name: array for name, array in answers.items() if name in truths}
    # Explanations look at one run: a switch is no explanation of differences between runs.
    runs = one_run(truths, by_output)
    return outcome, CaseTrial(op, case, truths, runs, outcome.status == "failed", switches)


def _mirrored(case: Case, preset: str) -> tuple[Mapping[str, Array | None], str]:
    """The bits of a preset's mirror; none, and why, where it has none for that case."""
    try:
        return mirror_bits(preset, case.op, case.inputs, case.options), ""
    except NoMirror as why:
        return {}, f"judged within bounds: {why}"


def run(
    op: str,
    inputs: Mapping[str, object],
    options: Options | None = None,
    backend: str = "kernels",
    preset: str | None = None,
) -> dict[str, Array]:
    """Canonical outputs of an operator by name, as NumPy arrays.

    inputs : by name: NumPy, torch (any device), or anything with DLPack.
    preset : a peer's bits instead, by its mirror, e.g. fbgemm_cpu or torch.
    Raises OracleError for an unknown operator, option, backend, preset or a missing input;
    NoMirror, an OracleError, where nobody knows the peer's bits.
    """
    operator = find_operator(op)
    find_preset(preset)
    try:
        if not is_canonical(preset):
            return mirror_bits(str(preset), op, arrays(inputs, "input"), options or {})
        return operator.run(arrays(inputs, "input"), options, backend)
    except QuestionError:
        raise
    except (LookupError, ValueError) as error:
        raise OracleError(f"{op}: {error.args[0] if error.args else error}") from error


def check(
    op: str,
    inputs: Mapping[str, object],
    answer: object,
    options: Options | None = None,
    bits: bool = False,
    preset: str | None = None,
    strict: bool = False,
    runs: str = "seeds",
    budget: float = BUDGET,
    effects: Iterable[Verdict] = (),
) -> Report:
    """Is this answer right?

    answer : outputs by name, or one array where the operator has one output. One more leading axis
        holds several runs of the kernel; all must be right, and what differs between them is named.
    bits : ask for neocpu's bits, or those of the preset's mirror.
    strict : not if there is a warning, either.
    runs : "seeds" if such runs of an output that is rounded stochastically have a seed each,
        "repeats" if all have the one of the options.
    budget : seconds for explanations of a wrong answer.
    effects : failures seen while the kernel ran, as `guards` finds them.
    Returns a Report: true when all that was answered is right; str(report) says what is wrong.
    Raises OracleError for an unknown operator, option, preset or output, or where nothing was
    answered.
    """
    operator = find_operator(op)
    find_preset(preset)
    input_arrays = arrays(inputs, "input")
    try:
        complete = operator.complete(options or {})
        with np.errstate(all="ignore"):
            truths = operator.truth(input_arrays, complete)
            truths = with_typical(operator, input_arrays, complete, truths)
            canonical: dict[str, Array] = {}
            if bits and is_canonical(preset):
                canonical = operator.run(input_arrays, complete)
    except QuestionError:
        raise
    except (LookupError, ValueError) as error:
        raise OracleError(f"{op}: {error.args[0] if error.args else error}") from error
    answers = _named_answers(operator, answer, truths)
    if runs not in ("seeds", "repeats"):
        raise OracleError(f'runs is {runs!r}, not "seeds" or "repeats"')
    if runs == "repeats":
        stochastic = {o for o in answers if truths[o].probability is not None}
        answers = {o + REPEATS if o in stochastic else o: x for o, x in answers.items()}
    case = Case("this call", op, input_arrays, complete, "")
    outcome, trial = _judged(case, dict(truths), answers, canonical, bits, preset)
    outcome = replace(outcome, verdicts=(*outcome.verdicts, *effects))
    report = Report(
        cases=tuple(judged_by_seed([outcome])),
        unknown=(),
        unanswered=(),
        preset=preset or "",
        bits=bits,
        source="this call",
        strict=strict,
    )
    return JudgedSuite(report, _with_verdicts([trial], report.cases)).explained(budget)


def _named_answers(
    operator: Operator, answer: object, truths: Mapping[str, Truth]
) -> dict[str, Array]:
    """Answers by output, as arrays. Raises OracleError unless they name outputs of the operator."""
    outputs = ", ".join(truths)
    if not isinstance(answer, Mapping):
        if len(truths) != 1:
            raise OracleError(
                f"{operator.name} has the outputs {outputs}: give a dictionary with one or more of "
                "them"
            )
        answer = {next(iter(truths)): answer}
    answers = arrays(answer, "answer")
    for name in answers:
        if name not in truths:
            near = nearest_name(name, truths)
            raise OracleError(f"{operator.name} has no output {name}{near}; it has {outputs}")
    if not answers:
        raise OracleError(f"{operator.name}: nothing was answered; give one or more of {outputs}")
    return answers
