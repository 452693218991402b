"""How is a plan written down? As JSON that a person can read, edit and train with.

    {
      "format": "neocpu plan",
      "version": 1,
      "made_for": {"machine": "zionex", "planner": "search", "step_seconds": 0.0048},
      "ranks": 2,
      "ranks_per_node": 2,
      "tables": [
        {"name": "C1", "rows": 24, "dim": 16, "scheme": "data_parallel", "placement": "hbm"},
        {"name": "C2", "rows": 583, "dim": 16, "scheme": "row_wise", "placement": "hbm",
          "rectangles": [
            {"rank": 0, "rows": [0, 292], "columns": [0, 16]},
            {"rank": 1, "rows": [292, 583], "columns": [0, 16]}
          ]}
      ]
    }

`made_for` is a note and decides nothing. What may be left out, and what is refused, is in
`docs/planner.md`. The plan.json that a run leaves is read as well.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, NoReturn

from neocpu.core.errors import ConfigError
from neocpu.core.records import Limits, Reader
from neocpu.parallel.sharding.plan import AUTO, Plan
from neocpu.parallel.sharding.schemes import SCHEMES
from neocpu.tables.tiers.placement import PLACEMENTS

FORMAT = "neocpu plan"
VERSION = 1
# A row-wise plan of 1,000 tables for 1,024 ranks has about this many bytes.
MOST_BYTES = 64 << 20
MOST_RANKS = 1 << 20
# of the keys above all tables
LIMITS = {
    "version": Limits(least=1),
    "ranks": Limits(least=1, most=MOST_RANKS),
    "ranks_per_node": Limits(least=1),
    "replica_groups": Limits(least=1),
}
# The plan.json that a run leaves beside its results (`Plan.to_dict`).
KEYS_OF_A_RUN = {"ranks", "ranks_per_node", "tables"}


@dataclass(frozen=True)
class MadeFor:
    """What a plan was made for, as far as it is known; nothing reads it but people."""

    machine: str = ""
    cost_model: str = ""
    planner: str = ""
    batch_size: int = 0
    step_seconds: float = 0.0
    bound_seconds: float = 0.0


@dataclass(frozen=True)
class TableEntry:
    """Keys of a table in the file, beside its rectangles."""

    name: str = ""
    rows: Annotated[int, Limits(least=1)] = 0
    dim: Annotated[int, Limits(least=1)] = 0
    scheme: Annotated[str, Limits((AUTO, *SCHEMES))] = ""
    placement: Annotated[str, Limits(tuple(PLACEMENTS))] = ""


@dataclass(frozen=True)
class PlannedTable:
    """A table of the file; rectangles : (rank, rows, columns) of each, none: as the scheme cuts."""

    keys: TableEntry
    rectangles: tuple[tuple[int, tuple[int, int], tuple[int, int]], ...] = ()


@dataclass(frozen=True)
class PlanFile:
    """A plan file, each value checked by itself; `bind` checks it against the tables of a run.

    tables : of several replica groups, as the first one holds them.
    """

    source: str
    ranks: int
    ranks_per_node: int
    tables: tuple[PlannedTable, ...]
    made_for: MadeFor = field(default_factory=MadeFor)
    replica_groups: int = 1

    @property
    def group_ranks(self) -> int:
        """Ranks of each replica group."""
        return self.ranks // self.replica_groups


# ---- writing ----


def text(plan: Plan, placements: Sequence[str] = (), made_for: MadeFor | None = None) -> str:
    """A plan as a file's text; one line for each table, or for each rectangle of several.

    placements : by table; (): the file leaves them to `memory.placement`.
    """
    groups = [f'  "replica_groups": {plan.replica_groups},'] * (plan.replica_groups > 1)
    note = {key: value for key, value in asdict(made_for or MadeFor()).items() if value}
    tables = [
        _table_text(plan, number, placements[number] if placements else "")
        for number in range(len(plan.tables))
    ]
    lines = [
        "{",
        f'  "format": {json.dumps(FORMAT)},',
        f'  "version": {VERSION},',
        f'  "made_for": {json.dumps(note, ensure_ascii=False)},',
        f'  "ranks": {plan.ranks},',
        f'  "ranks_per_node": {plan.ranks_per_node},',
        *groups,
        '  "tables": [',
        ",\n".join(tables),
        "  ]",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _table_text(plan: Plan, number: int, placement: str) -> str:
    table = plan.tables[number]
    keys = {"name": table.name, "rows": table.rows, "dim": table.dim}
    keys["scheme"] = plan.schemes[number]
    if placement:
        keys["placement"] = placement
    head = json.dumps(keys, ensure_ascii=False)
    # Copies can lie in one way only.
    if plan.replicated(number):
        return f"    {head}"
    rectangles = [
        f'{{"rank": {s.rank}, "rows": {list(s.rows)}, "columns": {list(s.cols)}}}'
        for s in plan.group.of_table(number)
    ]
    if len(rectangles) == 1:
        return f'    {head[:-1]}, "rectangles": [{rectangles[0]}]}}'
    inner = ",\n".join(f"      {rectangle}" for rectangle in rectangles)
    return f'    {head[:-1]}, "rectangles": [\n{inner}\n    ]}}'


# ---- reading ----


def load_one_group(path: str | Path) -> PlanFile:
    """`load` where replica groups are not known: ConfigError for a file that has several."""
    file = load(path)
    if file.replica_groups > 1:
        raise ConfigError(
            f"{path}: it has {file.replica_groups} replica groups, which are not known here; name "
            "a plan of one group"
        )
    return file


def read_text(path: str | Path) -> str:
    """The text of a plan file. Raises ConfigError where it cannot be read, or is too large."""
    try:
        with open(path, "rb") as file:
            # one byte more than allowed tells that there is more, without reading all of it
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ConfigError(f"{path}: more than {MOST_BYTES:,} bytes: this is no plan file")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: it is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: cannot read the plan: {why}") from error


def load(path: str | Path) -> PlanFile:
    """A plan file from its path. Raises ConfigError as `read_text` and `loads` do."""
    return loads(read_text(path), str(path))


def loads(content: str, source: str = "plan") -> PlanFile:
    """A plan file from its text; `source` is what messages call it.

    Raises ConfigError naming the file, the key, its value, and what is allowed.
    """
    try:
        tree = json.loads(content, object_pairs_hook=_unique, parse_constant=_no_number)
    # nested brackets overflow the parser long before a file is large
    except RecursionError as error:
        raise ConfigError(f"{source}: nested too deeply") from error
    except ValueError as error:
        raise ConfigError(f"{source}: not valid JSON: {error}") from error
    # a run's plan has no "format": it is known by its keys
    if isinstance(tree, dict) and tree.keys() - {"replica_groups"} == KEYS_OF_A_RUN:
        tree = _of_a_run(source, tree)
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise ConfigError(
            f'{source}: this is no plan file, which has "format": "{FORMAT}"; `neocpu plan CONFIG '
            "--out FILE` writes one"
        )
    reader = Reader(source, {}, LIMITS)
    known = ["format", "version", *(f.name for f in fields(PlanFile) if f.name != "source")]
    for key in tree:
        if key not in known:
            raise reader.unknown(key, known)
    for key in ("version", "ranks", "tables"):
        if key not in tree:
            raise reader.wrong(key, "it is missing")
    version = reader.value(int, tree["version"], "version")
    if version > VERSION:
        raise reader.wrong("version", f"{version} is newer than this neocpu, which reads {VERSION}")
    ranks = reader.value(int, tree["ranks"], "ranks")
    per_node = reader.value(int, tree.get("ranks_per_node", ranks), "ranks_per_node")
    if per_node > ranks:
        raise reader.wrong("ranks_per_node", f"{per_node} is more than the {ranks} rank(s)")
    groups = reader.value(int, tree.get("replica_groups", 1), "replica_groups")
    if ranks % groups:
        raise reader.wrong("replica_groups", f"{groups} is no divisor of the {ranks} rank(s)")
    made_for = reader.record(MadeFor, tree.get("made_for", {}), "made_for")
    entries = tree["tables"]
    if not isinstance(entries, list):
        raise reader.wrong("tables", f"expected a list, got {entries!r}")
    tables = tuple(_table(reader, i, entry) for i, entry in enumerate(entries))
    names = [table.keys.name for table in tables]
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise reader.wrong("tables", f"table {twice!r} is there twice")
    return PlanFile(source, ranks, per_node, tables, made_for, groups)


def _of_a_run(source: str, tree: Mapping[str, Any]) -> dict[str, object]:
    """The plan.json of a run, as a plan file has it."""
    try:
        tables = [
            {
                **{key: entry[key] for key in ("name", "rows", "dim", "scheme")},
                "rectangles": [
                    {"rank": rank, "rows": [low, high], "columns": [left, right]}
                    for rank, low, high, left, right in entry["shards"]
                ],
            }
            for entry in tree["tables"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{source}: this is neither a plan file nor the plan of a run: "
            f"{type(error).__name__} {error}"
        ) from error
    return {"format": FORMAT, "version": VERSION, **tree, "tables": tables}


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object of JSON; ValueError for a key that is there twice, or cannot be printed."""
    tree = dict(pairs)
    if len(tree) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise ValueError(f"the key {twice!r} is there twice in one object")
    for key in tree:
        if not key.isprintable():
            raise ValueError(f"the key {key!r} has characters that cannot be printed")
    return tree


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _table(reader: Reader, index: int, entry: object) -> PlannedTable:
    """A table of the file, with rectangles that suit its scheme."""
    if not isinstance(entry, dict):
        raise reader.wrong(f"tables[{index}]", f"expected an object, got {entry!r}")
    name = reader.value(str, entry.get("name", ""), f"tables[{index}].name")
    if not name:
        raise reader.wrong(f"tables[{index}].name", "it is missing")
    key = f"tables.{name}" if name.isprintable() else f"tables.{name!r}"
    known = [spec.name for spec in fields(TableEntry)]
    for other in entry:
        if other not in (*known, "rectangles"):
            raise reader.unknown(f"{key}.{other}", [*known, "rectangles"])
    simple = {other: value for other, value in entry.items() if other != "rectangles"}
    keys: TableEntry = reader.record(TableEntry, simple, key)
    if not keys.scheme:
        raise reader.wrong(f"{key}.scheme", "it is missing")
    rectangles = entry.get("rectangles", [])
    if not isinstance(rectangles, list):
        raise reader.wrong(f"{key}.rectangles", f"expected a list, got {rectangles!r}")
    cut = [
        _rectangle(reader, f"{key}.rectangles[{i}]", rectangle)
        for i, rectangle in enumerate(rectangles)
    ]
    return PlannedTable(keys, tuple(cut))


def _rectangle(
    reader: Reader, key: str, entry: object
) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """(rank, rows, columns) of a rectangle."""
    if not isinstance(entry, dict):
        raise reader.wrong(key, f"expected an object, got {entry!r}")
    if entry.keys() != {"rank", "rows", "columns"}:
        names = ["rank", "rows", "columns"]
        for name in entry:
            if name not in names:
                raise reader.unknown(f"{key}.{name}", names)
        missing = next(name for name in names if name not in entry)
        raise reader.wrong(f"{key}.{missing}", "it is missing")
    rank = entry["rank"]
    if type(rank) is not int or not 0 <= rank < MOST_RANKS:
        raise reader.wrong(f"{key}.rank", f"expected the number of a rank, got {rank!r}")
    rows = _span(reader, f"{key}.rows", entry["rows"])
    return rank, rows, _span(reader, f"{key}.columns", entry["columns"])


def _span(reader: Reader, key: str, value: object) -> tuple[int, int]:
    """[first, end) as two whole numbers."""
    if isinstance(value, list) and len(value) == 2:
        first, end = value
        if type(first) is int and type(end) is int and 0 <= first < end < 2**63:
            return first, end
    raise reader.wrong(
        key, f"expected [first, end], two whole numbers of which the second is larger, got {value}"
    )
