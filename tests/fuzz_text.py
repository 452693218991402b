"""Readers of text that people write: configs, keys on the command line, plan files, machines."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from fuzzing import Random, Reader, mutate_bytes
from promise_cases import FAMILIES, MAIN

from neocpu.parallel.sharding.plan import place
from neocpu.parallel.sharding.schemes import SCHEMES
from neocpu.plan.files import plan_file, torchrec_plan
from neocpu.plan.files.bound_plan import bind
from neocpu.plan.machines import machine_file
from neocpu.train.config import config

NOTE = plan_file.MadeFor("zionex", "neo", "search", 64, 0.25, 0.2)

# words of TOML, of JSON and of our keys, each where it does not belong
WORDS = (
    "[training]",
    "[[tables]]",
    "=",
    "}",
    "[",
    "]",
    '"',
    "'''",
    "nan",
    "-inf",
    "1e400",
    "0x",
    "-1",
    "true",
    "[]",
    "{}",
    "'",
    "2024-01-01",
    "tables.wide.rows",
    "format=",
    "dim=0",
    "rows=0",
    "\\u0000",
    "99999999999999999999",
    "seed = 18446744073709551616",
    "\u0000",
    "\ufeff",
    "\u202e",
    "[" * 2000,
    "{a=" * 500,
    "a." * 3000,
    '{"rank": 9, ',
    '"rows": [0, 1e9], ',
    '"shards": [',
    "null",
    "0-99999999",
    "7-3",
    "[[unequal]]",
)
# of `parallel`, beside those of the family
CHOICES = 'pins = { "*" = "0-3, 8" }\nplan = { "*" = "row_wise, table_wise" }\n'
UNEQUAL = '[[unequal]]\nranks = "0-3, 8"\nmemory = 0.5\nspeed = 0.8\n'


def _make(folder: Path) -> Path:
    path = folder / "job.toml"
    text = FAMILIES["muon"].toml(Path("/data"))
    path.write_text(text.replace("[parallel]\n", f"[parallel]\n{CHOICES}"))
    return path


def _make_machine(folder: Path) -> Path:
    path = folder / "box.toml"
    path.write_text(machine_file.text(machine_file.load("fat-tree")) + UNEQUAL)
    return path


def _read_machine(path: Path) -> Any:
    return repr(machine_file.load(path))


def _read(path: Path) -> Any:
    return repr(config.load(path).header())


def _make_plan(folder: Path) -> Path:
    path = folder / "plan.json"
    tables = config.loads(FAMILIES[MAIN].toml(Path("/data"))).tables
    plan = place(tables, list(SCHEMES)[: len(tables)], 2, 2).in_groups(2, 2)
    path.write_text(plan_file.text(plan, ["hbm"] * len(tables), NOTE))
    return path


def _read_plan(path: Path) -> Any:
    tables = config.loads(FAMILIES[MAIN].toml(Path("/data"))).tables
    bound = bind(plan_file.loads(plan_file.read_text(path), str(path)), tables, 4)
    return repr((bound.schemes, sorted(bound.fixed.items()), bound.placements))


def _mutate(path: Path, chance: Random) -> bool:
    """Damage bytes, or put words of the language where they do not belong."""
    if chance.random() < 0.5:
        mutate_bytes(path, chance)
        return True
    text = path.read_text()
    for _ in range(int(chance.integers(1, 4))):
        at = int(chance.integers(len(text)))
        end = at + int(chance.choice([0, 0, 1, 5, 20]))
        text = text[:at] + str(chance.choice(WORDS)) + text[end:]
    path.write_text(text, errors="surrogateescape")
    return True


def _make_torchrec(folder: Path) -> Path:
    path = folder / "torchrec.json"
    shards = [{"offsets": [0, 0], "sizes": [9, 4], "rank": 1}]
    entry = {"sharding_type": "row_wise", "compute_kernel": "fused", "shards": shards}
    path.write_text(json.dumps({"format": torchrec_plan.FORMAT, "tables": {"a": entry}}))
    return path


def _read_torchrec(path: Path) -> Any:
    return repr(torchrec_plan.loads(plan_file.read_text(path), "torchrec.json", 2).tables)


VALUES: tuple[Any, ...] = (
    *(0, 1, 3, -1, 2**31, 2**63, 10**400, 0.5, True, None, "", "auto", "row_wise", "wide"),
    *([], {}, [0, 1], [1, 0], [0.0, 1.0], "\n", "\u202e", "\ud800", ["x"] * 99, {"rank": 0}),
)


def _mutate_plan(path: Path, chance: Random) -> bool:
    """Damage the text, or put other values somewhere into the tree."""
    if chance.random() < 0.3:
        return _mutate(path, chance)
    tree = json.loads(path.read_text())
    for _ in range(int(chance.integers(1, 4))):
        node = tree
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = keys[int(chance.integers(len(keys)))]
            if isinstance(node[key], dict | list) and node[key] and chance.random() < 0.8:
                node = node[key]
                continue
            break
        if chance.random() < 0.2:
            del node[key]
        elif isinstance(node, list) and chance.random() < 0.3:
            node.append(deepcopy(node[key]))
        else:
            node[key] = deepcopy(VALUES[int(chance.integers(len(VALUES)))])
        if not node:
            break
    path.write_text(json.dumps(tree))
    return True


def readers() -> dict[str, Reader]:
    """The config, plan files and machines."""
    return {
        "machine": Reader(_make_machine, _read_machine, _mutate),
        "config": Reader(_make, _read, _mutate),
        "plan": Reader(_make_plan, _read_plan, _mutate_plan),
        "torchrec plan": Reader(_make_torchrec, _read_torchrec, _mutate_plan),
    }
