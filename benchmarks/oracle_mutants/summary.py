"""What came out? Counts, a table by operator, lists of the missed and the misnamed."""

from collections import Counter
from typing import Any

from benchmarks.oracle_mutants.judge import headline
from benchmarks.oracle_mutants.trial import Trial

GRADES = ("strong and right", "strong and wrong", "weak or silent", "missed", "caught")


def summary(trials: list[Trial], judged: int, failures: list[str]) -> dict[str, Any]:
    """The outcome of a run as a record for JSON.

    judged, failures : cases that right variants answered, and those that failed.
    """
    grades = Counter(trial.grade for trial in trials)
    caught = sum(trial.caught for trial in trials)
    strong = grades["strong and right"] + grades["strong and wrong"]
    hinted = [t for t in trials if t.named and t.caught and (t.mutant.true_names or t.mutant.says)]
    operators: dict[str, Counter[str]] = {}
    for trial in trials:
        for op in trial.mutant.operators:
            operators.setdefault(op, Counter())[trial.grade] += 1
    return {
        "right_cases": judged,
        "right_failures": failures,
        "mutants": len(trials),
        "caught": caught,
        "caught_share": caught / max(len(trials), 1),
        "grades": {grade: grades[grade] for grade in GRADES},
        "silent_without_name": sum(
            trial.grade == "weak or silent" and not trial.mutant.true_names for trial in trials
        ),
        "hinted": len(hinted),
        "right_hints": sum(trial.is_hint_right for trial in hinted),
        "wrong_hints": [trial.name for trial in hinted if not trial.is_hint_right],
        "strong_right_share": grades["strong and right"] / max(strong, 1),
        "operators": {op: dict(counts) for op, counts in operators.items()},
        "missed": [_missed(trial) for trial in trials if not trial.caught],
        "misnamed": [_named(t) for t in trials if t.grade == "strong and wrong"],
        "unnamed": [_named(t) for t in trials if t.grade == "weak or silent"],
        "crashes": {t.mutant.name: t.crashes[0] for t in trials if t.crashes},
    }


def _missed(trial: Trial) -> dict[str, Any]:
    why = "passes" if trial.differing else "no case has another answer"
    return {"name": trial.mutant.name, "differing": trial.differing, "why": why}


def _named(trial: Trial) -> dict[str, Any]:
    top = headline(trial.told, len(trial.failed))
    facets = [told.title for told in trial.told if told.kind == "facet"]
    return {
        "name": trial.mutant.name,
        "true": list(trial.mutant.true_names),
        "headline": top.title if top else "; ".join(facets),
        "explained": top.cases if top else 0,
        "failed": len(trial.failed),
    }


def text(outcome: dict[str, Any]) -> str:
    """The outcome for people."""
    failures = outcome["right_failures"]
    grades = outcome["grades"]
    caught = f"{outcome['caught']} of {outcome['mutants']}"
    counts = ", ".join(f"{count} {grade}" for grade, count in grades.items())
    strong = f"{100 * outcome['strong_right_share']:.1f} %"
    lines = [
        f"right variants: {outcome['right_cases']} cases, {len(failures)} failed",
        *[f"  FALSE ALARM {failure}" for failure in failures],
        f"mutants: {caught} caught ({100 * outcome['caught_share']:.1f} %)",
        f"headlines: {counts}; {strong} of strong ones right",
        f"first hints: {outcome['right_hints']} of {outcome['hinted']} with a right one known",
        f"silence is right for {outcome['silent_without_name']}, which have no name",
        "",
        f"{'operator':<24}" + "".join(f"{grade:>18}" for grade in GRADES),
    ]
    for op, counts in outcome["operators"].items():
        lines.append(f"{op:<24}" + "".join(f"{counts.get(grade, 0):>18}" for grade in GRADES))
    lines += ["", "missed"]
    lines += [f"  {m['name']}: {m['why']} ({m['differing']} differ)" for m in outcome["missed"]]
    lines += ["misnamed"]
    for mutant in outcome["misnamed"]:
        true = " or ".join(mutant["true"]) or "no name"
        lines.append(f"  {mutant['name']} ({true}): {mutant['headline']}")
    lines += ["first hint not right", f"  {', '.join(outcome['wrong_hints'])}"]
    lines += ["weak or silent"]
    for mutant in outcome["unnamed"]:
        true = " or ".join(mutant["true"]) or "no name"
        lines.append(f"  {mutant['name']} ({true}): {mutant['headline'] or 'nothing'}")
    return "\n".join(lines)
