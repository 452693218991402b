"""What does a search leave behind? A plain config of the model that it found, and why this one.

found.toml       the config of the found model; `neocpu train found.toml` trains it from scratch
decisions.json   every decision: choices, probabilities, what was taken; expected and found cost
decisions.jsonl  a line now and then: step, temperature, probabilities, expected cost, loss
"""

import json
from collections.abc import Sequence
from pathlib import Path

from neocpu.core.records import apply_override, toml_key, toml_text, toml_tree
from neocpu.core.types import JsonObject, Tree
from neocpu.train.config.config import Config
from neocpu.train.config.defaults import as_overrides
from neocpu.train.search.cost import Mixtures, ModelCost, hard
from neocpu.train.search.space import Choice, Space
from neocpu.train.watch.results import write_json

FOUND = "found.toml"
DECISIONS = "decisions.json"
HISTORY = "decisions.jsonl"


def found_text(config: Config, space: Space, choice: Choice) -> str:
    """The TOML of the found model: the config with its numbers, without `[search]`.

    Paths are absolute, so that the file means the same in any folder.
    """
    tree = toml_tree(config.text)
    keys = as_overrides(space.keys(choice))
    for override in (*config.overrides, *config.absolute, *keys):
        apply_override(tree, override)
    # the found model is one model; it can be searched again by a section of its own
    tree.pop("search", None)
    lines = [f"# Found by `neocpu search {config.source}`; train it from scratch.", ""]
    for section, keys in tree.items():
        lines.append(f"[{section}]")
        lines += [f"{toml_key(key)} = {toml_text(value)}" for key, value in keys.items()]
        lines.append("")
    return "\n".join(lines)


def decisions_record(
    space: Space, cost: ModelCost, probabilities: Mixtures, choice: Choice
) -> dict[str, object]:
    """What `decisions.json` holds, JSON-able."""
    return {
        "models": space.models,
        "cost": {
            "unit": cost.unit,
            "largest": cost.of(space.largest, space),
            "expected": cost.expected(probabilities),
            "found": cost.expected(hard(choice, space)),
        },
        "decisions": {
            decision.name: {
                "choices": list(decision.choices),
                "probabilities": probabilities[decision.name].tolist(),
                "taken": choice[decision.name],
            }
            for decision in space.decisions
        },
    }


def decision_lines(record: JsonObject) -> list[str]:
    """The same as a small table for people."""
    decisions = record["decisions"]
    width = max(len("decision"), *map(len, decisions))
    lines = [f"{'decision':{width}} {'taken':>8}  probabilities of the choices"]
    for name, decision in decisions.items():
        shares = "  ".join(
            f"{choice}: {share:.3f}"
            for choice, share in zip(decision["choices"], decision["probabilities"])
        )
        lines.append(f"{name:{width}} {decision['taken']:>8}  {shares}")
    cost = record["cost"]
    unit = cost["unit"]
    lines.append(
        f"cost: found {cost['found']:,.6g} {unit}, expected {cost['expected']:,.6g}, largest "
        f"{cost['largest']:,.6g} (of {record['models']:,} models)"
    )
    return lines


def write_found(out: Path, text: str, record: Tree) -> None:
    """Write the found config and the decisions."""
    (out / FOUND).write_text(text, encoding="utf-8")
    write_json(out / DECISIONS, dict(record))


def keep_history(out: Path, step: int) -> None:
    """Remove lines of the history that are later than a step, which will be taken again."""
    path = out / HISTORY
    if not path.exists():
        return
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    write_lines(path, [line for line in lines if line["step"] <= step], "w")


def write_lines(path: Path, lines: Sequence[Tree], mode: str = "a") -> None:
    """Write lines of JSON, behind what is there ("a") or in its place ("w")."""
    with open(path, mode, encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
