"""Which optimizers are there? The table of docs/design.md §4, made of their records.

`python docs/_ext/optimizer_table.py` writes it into the page, between two marks;
`tests/test_rules.py` says when it has to be run.
"""

from pathlib import Path

from neocpu.core.rules import RULES, Rule

PAGE = Path(__file__).resolve().parent.parent / "design.md"
BEGIN = "<!-- optimizers: python docs/_ext/optimizer_table.py -->\n"
END = "<!-- end of optimizers -->\n"
HEADER = """\
| `name` | floats of state per row | keys of its own | after |
|---|---|---|---|
"""
# Keys that a rule reads if it keeps such a state.
KEYS_OF_STATES = {"exp_avg": "beta1", "exp_avg_sq": "beta2", "square_avg": "beta2"}


def floats_per_row(rule: Rule) -> str:
    """Its states by row of D columns: "2·D", "D + 1", "0"."""
    count = len(rule.element_state)
    by_element = {0: "", 1: "D"}.get(count, f"{count}·D")
    by_row = str(len(rule.row_state)) if rule.row_state else ""
    return " + ".join(part for part in (by_element, by_row) if part) or "0"


def own_keys(rule: Rule) -> list[str]:
    """Keys that not every rule reads."""
    keys = ["initial_accumulator_value"] if rule.accumulator else []
    states = (*rule.element_state, *rule.row_state)
    keys += [key for state, key in KEYS_OF_STATES.items() if state in states]
    return [*keys, *rule.options]


def table() -> str:
    """The table in Markdown. Raises ValueError naming the rules without a source."""
    rules = [rule for rule in RULES.values() if rule.updates]
    if missing := [rule.name for rule in rules if not rule.source]:
        raise ValueError(f"records without a source: {', '.join(missing)}")
    lines = []
    for rule in rules:
        keys = ", ".join(f"`{key}`" for key in own_keys(rule))
        lines.append(f"| `{rule.name}` | {floats_per_row(rule)} | {keys} | {rule.source} |\n")
    return HEADER + "".join(lines)


def updated(page: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
