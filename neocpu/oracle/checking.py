"""How does a whole check go? Suite or case in, answers in, one Report out; and the two calls people
make from Python.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from neocpu.errors import OracleError
from neocpu.oracle.adapters import Array, arrays
from neocpu.oracle.answers import Answers
from neocpu.oracle.compare import Verdict, compare
from neocpu.oracle.diagnose import diagnose
from neocpu.oracle.mirrors import NoMirror, mirror_bits
from neocpu.oracle.operator import Case, Operator, Truth, Value
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.report import CaseReport, Report
from neocpu.oracle.semantics import PRESETS


def nearest_name(wrong: str, names: Iterable[str]) -> str:
    """The words " (did you mean …?)", or "" where nothing is near."""
    near = difflib.get_close_matches(wrong, list(names), 1, 0.5)
    return f" (did you mean {near[0]}?)" if near else ""


def find_operator(name: str) -> Operator:
    """The operator of that name. Raises OracleError with the nearest that exists."""
    if name not in OPERATORS:
        raise OracleError(
            f"no operator {name}{nearest_name(name, OPERATORS)}; `neocpu oracle list` shows all"
        )
    return OPERATORS[name]


def find_preset(name: str | None) -> frozenset[str]:
    """Switches of a preset (none: the exact model). Raises OracleError with the presets that exist."""
    if name is not None and name not in PRESETS:
        raise OracleError(
            f"no preset {name}{nearest_name(name, PRESETS)}; there are {', '.join(PRESETS)}"
        )
    return PRESETS[name] if name else frozenset()


def own(preset: str | None) -> bool:
    """Are the bits of that preset neocpu's own?"""
    return preset in (None, "exact")


def check_suite(
    suite: Mapping[str, Any], answers: Answers, bits: bool = False, preset: str | None = None
) -> Report:
    """Compare all answers there are with a suite. `preset`: a peer's semantics. `bits`: meet the
    canonical bits, or those of the preset's mirror; a case for which it has none is judged within
    bounds, and says so.

    Raises OracleError for unreadable files or an unknown preset.
    """
    find_preset(preset)
    by_case: dict[str, list[str]] = {}
    for key in answers:
        by_case.setdefault(key.split("/", 1)[0], []).append(key)
    done = []
    unknown = []
    unanswered = []
    for name in suite:
        if name not in by_case:
            unanswered.append(name)
            continue
        question = suite[name]
        theirs = {}
        truths = {output: e.truth for output, e in question.outputs.items()}
        for key in by_case[name]:
            output = key.split("/", 1)[1] if "/" in key else ""
            if output in truths:
                theirs[output] = answers[key]
            else:
                unknown.append(f"{key}{nearest_name(key, [f'{name}/{o}' for o in truths])}")
        canonical = {output: e.canonical for output, e in question.outputs.items()} if bits else {}
        done.append(_check_case(question.case, truths, theirs, canonical, bits, preset))
    for name in sorted(set(by_case) - set(suite)):
        known = [f"{case}/{key.split('/', 1)[-1]}" for case in suite for key in by_case[name]]
        unknown += [f"{key}{nearest_name(key, known)}" for key in by_case[name]]
    return Report(
        tuple(done), tuple(unknown), tuple(unanswered), preset or "", bits, answers.source
    )


def _check_case(
    case: Case,
    truths: dict[str, Truth],
    theirs: Mapping[str, Array],
    canonical: Mapping[str, Array | None],
    bits: bool,
    preset: str | None,
) -> CaseReport:
    """One case: verdict per output, and explanations if one is wrong. `canonical`: neocpu's bits,
    where these are asked for.
    """
    op = find_operator(case.op)
    switches = find_preset(preset)
    note = ""
    if bits and not own(preset):
        canonical, note = _mirrored(case, str(preset))
    if switches:
        with np.errstate(all="ignore"):
            truths = op.truth(case.inputs, case.options, switches)
    verdicts = []
    for output, truth in truths.items():
        if output not in theirs:
            verdicts.append(Verdict(output, "missing", "no answer"))
            continue
        verdicts.append(compare(op, case, output, truth, theirs[output], canonical.get(output)))
    wrong = any(v.status in ("failed", "malformed") for v in verdicts)
    found = diagnose(op, case, truths, theirs, switches) if wrong else []
    return CaseReport(case, tuple(verdicts), tuple(found), note)


def _mirrored(case: Case, preset: str) -> tuple[Mapping[str, Array | None], str]:
    """The bits of a preset's mirror; none, and why, where it has none for that case."""
    try:
        return mirror_bits(preset, case.op, case.inputs, case.options), ""
    except NoMirror as why:
        return {}, f"judged within bounds: {why}"


def run(
    op: str,
    inputs: Mapping[str, Any],
    options: Mapping[str, Value] | None = None,
    backend: str = "kernels",
    preset: str | None = None,
) -> dict[str, Array]:
    """Canonical outputs of an operator by name, as NumPy arrays. `inputs` may be NumPy, DLPack,
    torch (any device). `preset`: a peer's bits instead, by its mirror, e.g. fbgemm_cpu or torch.

    Raises OracleError for an unknown operator, option, backend, preset or a missing input;
    NoMirror, an OracleError, where nobody knows the peer's bits.
    """
    operator = find_operator(op)
    find_preset(preset)
    try:
        if not own(preset):
            return mirror_bits(
                str(preset), op, arrays(inputs, "input"), _known_options(operator, options)
            )
        return operator.run(arrays(inputs, "input"), _known_options(operator, options), backend)
    except (KeyError, ValueError) as error:
        raise OracleError(f"{op}: {error.args[0] if error.args else error}") from error


def check(
    op: str,
    inputs: Mapping[str, Any],
    answer: Any,
    options: Mapping[str, Value] | None = None,
    bits: bool = False,
    preset: str | None = None,
) -> Report:
    """Is this answer right? `answer`: outputs by name, or one array where the operator has one
    output. `bits`: meet neocpu's bits, or those of the preset's mirror.

    Returns a Report: true when all that was answered is right; str(report) tells the story. Raises
    OracleError for an unknown operator, option, preset or output, or where nothing was answered.
    """
    operator = find_operator(op)
    find_preset(preset)
    given = arrays(inputs, "input")
    try:
        complete = operator.complete(_known_options(operator, options))
        with np.errstate(all="ignore"):
            truths = operator.truth(given, complete)
            canonical = operator.run(given, complete) if bits and own(preset) else {}
    except (KeyError, ValueError) as error:
        raise OracleError(f"{op}: {error.args[0] if error.args else error}") from error
    if not isinstance(answer, Mapping):
        if len(truths) != 1:
            raise OracleError(
                f"{op} has the outputs {', '.join(truths)}: give a dictionary with one or more of "
                "them"
            )
        answer = {next(iter(truths)): answer}
    theirs = arrays(answer, "answer")
    for name in theirs:
        if name not in truths:
            raise OracleError(
                f"{op} has no output {name}{nearest_name(name, truths)}; it has {', '.join(truths)}"
            )
    if not theirs:
        raise OracleError(f"{op}: nothing was answered; give one or more of {', '.join(truths)}")
    case = Case("this call", op, given, complete, "")
    found = _check_case(case, dict(truths), theirs, canonical, bits, preset)
    return Report((found,), (), (), preset or "", bits, "this call")


def _known_options(operator: Operator, options: Mapping[str, Value] | None) -> dict[str, Value]:
    for name in options or {}:
        if name not in operator.options:
            near = nearest_name(name, operator.options)
            raise OracleError(
                f"{operator.name} has no option {name}{near}; it has {', '.join(operator.options)}"
            )
    return dict(options or {})
