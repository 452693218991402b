"""Which rank holds which rectangle of which table? A plan says so; this file builds, checks, prints
and saves plans.

A plan is plain data and says nothing about cost: choosing schemes (`auto`) is the planner's work
(`neocpu/plan/`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from neocpu.core.errors import PlanError
from neocpu.core.records import choose, matched
from neocpu.parallel.sharding.schemes import COLUMN_STEP, SCHEMES, RankLayout, Shard, check_cover
from neocpu.tables.specs.specs import TableSpec, TableSpecs

AUTO = "auto"
FILE_SUFFIX = ".json"
PlanSpec = str | Mapping[str, str]


@dataclass(frozen=True)
class Plan:
    """`shards` of `tables` over `ranks` ranks; `schemes[t]` names how table t was cut. Check before
    use.

    placements : of the rows, by table, where the plan came with them ("": not for this table).
    replica_groups : groups of equally many ranks, one after the other; each holds a copy of what
    the first one holds (TorchRec's 2D parallelism). A data_parallel table is on all ranks.
    """

    tables: tuple[TableSpec, ...]
    schemes: tuple[str, ...]
    shards: tuple[Shard, ...]
    ranks: int
    ranks_per_node: int
    placements: tuple[str, ...] = ()
    replica_groups: int = 1

    @cached_property
    def _by_rank(self) -> tuple[tuple[Shard, ...], ...]:
        by_rank: list[list[Shard]] = [[] for _ in range(self.ranks)]
        for shard in sorted(self.shards):
            by_rank[shard.rank].append(shard)
        return tuple(tuple(shards) for shards in by_rank)

    @cached_property
    def _by_table(self) -> tuple[tuple[Shard, ...], ...]:
        by_table: list[list[Shard]] = [[] for _ in self.tables]
        # as every rank sorts them: entries and messages stand in this order
        for shard in sorted(self.shards):
            by_table[shard.table].append(shard)
        return tuple(tuple(shards) for shards in by_table)

    def local(self, rank: int) -> tuple[Shard, ...]:
        """Rectangles of one rank, sorted by (table, rows, columns)."""
        return self._by_rank[rank]

    def of_table(self, table: int) -> tuple[Shard, ...]:
        """Rectangles of one table, sorted by (rows, columns, rank)."""
        return self._by_table[table]

    def replicated(self, table: int) -> bool:
        """Is the whole table on every rank (data_parallel)?"""
        return self.schemes[table] == "data_parallel"

    # ---- replica groups ----

    @property
    def group_ranks(self) -> int:
        """Ranks of each replica group."""
        return self.ranks // self.replica_groups

    @cached_property
    def group(self) -> "Plan":
        """The plan of the first replica group for its ranks alone."""
        if self.replica_groups == 1:
            return self
        size = self.group_ranks
        shards = tuple(shard for shard in self.shards if shard.rank < size)
        node = min(self.ranks_per_node, size)
        return replace(self, shards=shards, ranks=size, ranks_per_node=node, replica_groups=1)

    def in_groups(self, groups: int, ranks_per_node: int) -> "Plan":
        """The plan of so many replica groups, each with as many ranks and the rectangles of this
        one; ranks_per_node : of all ranks. Raises PlanError as `ranks_of_group`.
        """
        return replace(
            self,
            shards=_copies(self.shards, groups, self.ranks),
            ranks=groups * self.ranks,
            ranks_per_node=ranks_per_node,
            replica_groups=groups,
        ).check()

    def serves(self, table: int, rank: int, other: int) -> bool:
        """Are a rank's rectangles of a table those that `other` uses, of all the copies?"""
        if self.replicated(table):
            return rank == other
        return rank // self.group_ranks == other // self.group_ranks

    def check(self) -> "Plan":
        """Return self, or raise PlanError naming the table and the gap, overlap or bad cut."""
        if self.ranks < 1 or not 1 <= self.ranks_per_node <= self.ranks:
            raise PlanError(f"{self.ranks_per_node} ranks per node do not fit {self.ranks} rank(s)")
        if self.replica_groups != 1:
            return self._check_groups()
        if len(self.schemes) != len(self.tables):
            raise PlanError(
                f"the plan names {len(self.schemes)} schemes for {len(self.tables)} tables"
            )
        by_table: list[list[Shard]] = [[] for _ in self.tables]
        for shard in self.shards:
            if not 0 <= shard.table < len(self.tables):
                raise PlanError(f"{shard} belongs to no table; there are {len(self.tables)}")
            by_table[shard.table].append(shard)
        for number, shards in enumerate(by_table):
            self._check_table(self.tables[number], self.replicated(number), sorted(shards))
            if why := unfit(self.tables[number], shards, self.replicated(number)):
                raise PlanError(why)
        return self

    def _check_groups(self) -> "Plan":
        """Return self, or raise PlanError for groups that cross nodes or hold other rectangles."""
        groups = self.replica_groups
        ranks = ranks_of_group(self.ranks, self.ranks_per_node, groups)
        shards = sorted(self.shards)
        copies = _copies(self.group.check().shards, groups, ranks)
        if shards != list(copies):
            wrong = min(set(shards) ^ set(copies), default=shards[0])
            raise PlanError(
                f"each of the {groups} replica groups must hold what the first one holds, but "
                f"{wrong} is not in all of them"
            )
        for spec in self.tables:
            if why := spec.unfit(copied=True):
                raise PlanError(why)
        return self

    def _check_table(self, spec: TableSpec, replicated: bool, shards: list[Shard]) -> None:
        for shard in shards:
            lo, hi = shard.rows
            left, right = shard.cols
            if not 0 <= shard.rank < self.ranks:
                raise PlanError(
                    f"table {spec.name!r}: rows {lo:,} to {hi:,} and columns {left} to {right} are "
                    f"on rank {shard.rank}, outside [0, {self.ranks})"
                )
            if not (0 <= lo < hi <= spec.rows and 0 <= left < right <= spec.dim):
                raise PlanError(
                    f"table {spec.name!r} has {spec.rows} rows x {spec.dim} columns; {shard} is "
                    "empty or outside"
                )
            # kernels count the numbers of a shard in i64
            if (hi - lo) * (right - left) >= 2**63:
                raise PlanError(
                    f"table {spec.name!r}: {hi - lo:,} rows x {right - left} columns on rank "
                    f"{shard.rank} are 2^63 numbers or "
                    "more; use more ranks and parallel.plan=row_wise, or fewer rows or columns"
                )
            if left % COLUMN_STEP:
                raise PlanError(
                    f"table {spec.name!r}: {shard} starts at a column that is no multiple of "
                    f"{COLUMN_STEP}"
                )
        if replicated:
            ranks_with_all = [
                shard.rank for shard in shards if shard.shape == (spec.rows, spec.dim)
            ]
            if ranks_with_all != list(range(self.ranks)) or len(shards) != self.ranks:
                raise PlanError(
                    f"table {spec.name!r} is data_parallel: it must be whole on every rank, but "
                    f"is on {ranks_with_all}"
                )
        else:
            check_cover(spec, shards)

    def rows(self, state_floats: tuple[int, int] = (0, 0)) -> list[tuple[str, str, str, str, str]]:
        """The plan for printing: (table, scheme, ranks, rows x dim, bytes per holder) of every
        table.

        state_floats : of the optimizer, per element and per row, counted in the bytes.
        """
        return [self._row(number, state_floats) for number in range(len(self.tables))]

    def _row(self, number: int, state_floats: tuple[int, int]) -> tuple[str, str, str, str, str]:
        spec = self.tables[number]
        shards = self.of_table(number)
        ranks = sorted({shard.rank for shard in shards})
        largest = max(shard_bytes(spec, shard, state_floats) for shard in shards)
        return (
            spec.name,
            self.schemes[number],
            _runs(ranks),
            f"{spec.rows:,} x {spec.dim}",
            f"{largest:,}",
        )

    def rank_bytes(self, state_floats: tuple[int, int] = (0, 0)) -> list[int]:
        """Bytes of weights and optimizer state on every rank."""
        tables = self.tables
        return [
            sum(shard_bytes(tables[s.table], s, state_floats) for s in self.local(rank))
            for rank in range(self.ranks)
        ]

    def text(self, state_floats: tuple[int, int] = (0, 0)) -> str:
        """The plan as an aligned table."""
        lines = [PLAN_HEADER, *self.rows(state_floats)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(PLAN_HEADER))]
        text = [
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines
        ]
        if self.replica_groups > 1:
            groups = f"{self.replica_groups} replica groups of {self.group_ranks} ranks"
            text.append(f"{groups}: each holds a copy of every table")
        return "\n".join(text)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-able data, of the first replica group; `from_dict` reads it back."""
        tables = []
        for number, spec in enumerate(self.tables):
            shards = [[s.rank, *s.rows, *s.cols] for s in self.group.of_table(number)]
            tables.append(
                {
                    **asdict(spec),
                    "features": list(spec.features),
                    "scheme": self.schemes[number],
                    "shards": shards,
                }
            )
        layout = {"ranks": self.ranks, "ranks_per_node": self.ranks_per_node}
        if self.replica_groups > 1:
            layout["replica_groups"] = self.replica_groups
        return {**layout, "tables": tables}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Plan":
        """Read what `to_dict` wrote. PlanError when it is malformed or not a whole plan."""
        try:
            tables = []
            shards = []
            for number, entry in enumerate(data["tables"]):
                fields = {k: v for k, v in entry.items() if k not in ("scheme", "shards")}
                tables.append(TableSpec.of_json(fields))
                for rank, lo, hi, left, right in entry["shards"]:
                    shards.append(Shard(number, (lo, hi), (left, right), rank))
            schemes = tuple(entry["scheme"] for entry in data["tables"])
            groups = data.get("replica_groups", 1)
            plan = cls(
                tuple(tables),
                schemes,
                _copies(shards, groups, data["ranks"] // groups),
                data["ranks"],
                data["ranks_per_node"],
                replica_groups=groups,
            )
        # the file may be anything that somebody wrote by hand
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise PlanError(f"this is not a saved plan: {type(error).__name__} {error}") from error
        return plan.check()


def ranks_of_group(ranks: int, ranks_per_node: int, groups: int) -> int:
    """Ranks of each of so many replica groups. Raises PlanError where they would be unequal, or a
    node has ranks of two groups and a group of two nodes.
    """
    if groups < 1 or ranks % groups:
        raise PlanError(
            f"parallel.replica_groups: {ranks} rank(s) are no {groups} groups of equally many "
            "ranks; use a divisor of the ranks"
        )
    size = ranks // groups
    # one group has whatever nodes there are, the last of which may be smaller
    if groups > 1 and size % ranks_per_node and ranks_per_node % size:
        raise PlanError(
            f"parallel.replica_groups: groups of {size} ranks are no whole nodes of "
            f"{ranks_per_node} ranks, nor nodes whole groups; use another number of groups"
        )
    return size


def _copies(shards: Sequence[Shard], groups: int, ranks: int) -> tuple[Shard, ...]:
    """The rectangles of so many groups of ranks, each as those of the first one, sorted."""
    first_ranks = range(0, groups * ranks, ranks)
    return tuple(sorted(replace(s, rank=s.rank + first) for first in first_ranks for s in shards))


def unfit(spec: TableSpec, shards: Sequence[Shard], replicated: bool) -> str:
    """Why these rectangles are none for the table; "" where they are."""
    cut = any(shard.shape[1] < spec.dim for shard in shards)
    return spec.unfit(cut, replicated and len(shards) > 1)


PLAN_HEADER = ("table", "scheme", "ranks", "rows x dim", "bytes each")


def shard_bytes(spec: TableSpec, shard: Shard, state_floats: tuple[int, int] = (0, 0)) -> int:
    """Bytes of weights in the table's format and of optimizer state; `state_floats` = floats per
    element, floats per row.
    """
    rows, width = shard.shape
    return rows * spec.row_bytes(width, state_floats)


def _runs(ranks: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> '0-2, 5'."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in runs)


def is_plan_file(spec: PlanSpec) -> bool:
    """Does `parallel.plan` name a plan file rather than schemes?"""
    return isinstance(spec, str) and spec.endswith(FILE_SUFFIX)


def choose_schemes(tables: TableSpecs, spec: PlanSpec) -> tuple[str, ...]:
    """Scheme of every table from the config's `parallel.plan`.

    `spec` is one scheme for all tables, or {pattern: scheme} with shell patterns (`C*`, `user_?`)
    in the order of the file. A table's exact name wins; otherwise the first pattern that matches; a
    table that nothing matches is `auto`. In the place of a scheme there may be several, among which
    the planner chooses, "row_wise, table_wise" (`allowed_schemes`).

    Raises ConfigError for an unknown scheme or a pattern without a table.
    """
    names = [table.name for table in tables]
    rules = {"*": spec} if isinstance(spec, str) else spec
    lists = {pattern: _split(choice) for pattern, choice in rules.items()}
    for choice in lists.values():
        for scheme in choice:
            choose("parallel.plan", "scheme", (), scheme, (AUTO, *SCHEMES), AUTO)
    joined = {
        pattern: AUTO if AUTO in choice else ",".join(n for n in SCHEMES if n in choice)
        for pattern, choice in lists.items()
    }
    return matched("parallel.plan", names, joined, AUTO)


def _split(choice: str) -> list[str]:
    return [name.strip() for name in str(choice).split(",")]


def allowed_schemes(choice: str) -> tuple[str, ...]:
    """Schemes that a table may have; choice : as of `choose_schemes`."""
    return tuple(SCHEMES) if choice == AUTO else tuple(_split(choice))


def is_open(choice: str) -> bool:
    """Does the planner choose a table's scheme? choice : as of `choose_schemes`."""
    return choice == AUTO or "," in choice


def place(
    tables: TableSpecs,
    schemes: Sequence[str],
    ranks: int,
    ranks_per_node: int | None = None,
    costs: Sequence[float] | None = None,
) -> Plan:
    """Plan for known schemes: tables that may choose a home (a rank or a node) are spread by cost,
    dearest first (LPT).

    costs : of each table, in any unit, default rows * dim. Deterministic. A shard costs its
    share of the cells. `auto` is not allowed here; the returned plan is checked.
    """
    layout = RankLayout(ranks, min(ranks_per_node or ranks, ranks))
    weights = [float(t.rows * t.dim) for t in tables] if costs is None else list(costs)
    load = [0.0] * ranks
    placed: dict[int, list[Shard]] = {}

    def loads(number: int, shards: Sequence[Shard]) -> list[tuple[int, float]]:
        cells = tables[number].rows * tables[number].dim
        return [(s.rank, weights[number] * (s.shape[0] * s.shape[1] / cells)) for s in shards]

    def height(number: int, shards: Sequence[Shard]) -> float:
        return max(load[rank] + cost for rank, cost in loads(number, shards))

    # Tables without a choice are the ground on which the others are stacked.
    order = sorted(
        range(len(tables)), key=lambda t: (SCHEMES[schemes[t]].homes != "all", -weights[t], t)
    )
    for number in order:
        scheme = SCHEMES[schemes[number]]
        spec = tables[number]
        options = [
            scheme.cut(number, spec.rows, spec.dim, layout, home) for home in scheme.choices(layout)
        ]
        # of equal options the first, so that every rank and every run makes the same plan
        placed[number] = min(options, key=lambda shards: height(number, shards))
        for rank, cost in loads(number, placed[number]):
            load[rank] += cost
    shards = tuple(sorted(shard for shards in placed.values() for shard in shards))
    return Plan(tuple(tables), tuple(schemes), shards, ranks, layout.ranks_per_node).check()
