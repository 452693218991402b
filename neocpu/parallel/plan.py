"""Which rectangles make up a run? A plan: every table, its scheme, and its shards.

A plan is data: checked once, printed, saved as JSON beside the run, and the only thing the exchange is told. Homes of tables
are balanced by LPT (largest first to the least loaded rank), deterministically, so every rank builds the same plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from neocpu.embedding.specs import TableSpec
from neocpu.errors import PlanError
from neocpu.parallel.sharding import SCHEMES, Placement, Shard, node_ranks, replicated


@dataclass(frozen=True)
class Plan:
    """Shards of all tables over `ranks` ranks; nodes are consecutive groups of `ranks_per_node`."""

    tables: tuple[TableSpec, ...]
    schemes: tuple[str, ...]
    shards: tuple[Shard, ...]
    ranks: int
    ranks_per_node: int

    @cached_property
    def _by_rank(self) -> dict[int, tuple[Shard, ...]]:
        local: dict[int, list[Shard]] = {rank: [] for rank in range(self.ranks)}
        for shard in sorted(self.shards):
            local[shard.rank].append(shard)
        return {rank: tuple(shards) for rank, shards in local.items()}

    def local(self, rank: int) -> tuple[Shard, ...]:
        """Shards of one rank, ordered by (table, rows, columns)."""
        return self._by_rank[rank]

    def replicated(self, table: int) -> bool:
        """Whether every rank holds the whole table."""
        return replicated(self.schemes[table])

    def check(self) -> "Plan":
        """Raise PlanError unless every element of every table is held exactly once (replicas: once per rank)."""
        for table, spec in enumerate(self.tables):
            shards = [shard for shard in self.shards if shard.table == table]
            full = ((0, spec.rows), (0, spec.dim))
            for shard in shards:
                _check_bounds(spec, shard, self.ranks)
            if self.replicated(table):
                holders = sorted(shard.rank for shard in shards if (shard.rows, shard.cols) == full)
                if holders != list(range(self.ranks)) or len(shards) != self.ranks:
                    raise PlanError(f"table {spec.name!r} is data_parallel, but ranks {holders} of {self.ranks} hold it whole")
                continue
            _check_cover(spec, shards)
        return self

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form, for `run.json`."""
        return {
            "ranks": self.ranks,
            "ranks_per_node": self.ranks_per_node,
            "tables": [
                {
                    "name": spec.name,
                    "rows": spec.rows,
                    "dim": spec.dim,
                    "scheme": name,
                    "shards": [[*s.rows, *s.cols, s.rank] for s in self.shards if s.table == table],
                }
                for table, (spec, name) in enumerate(zip(self.tables, self.schemes))
            ],
        }

    def describe(self) -> list[tuple[str, str, str, str, int]]:
        """Lines for printing: (table, scheme, ranks, rows x dim, bytes of weights)."""
        lines = []
        for table, (spec, name) in enumerate(zip(self.tables, self.schemes)):
            ranks = sorted({s.rank for s in self.shards if s.table == table})
            lines.append((spec.name, name, _ranges(ranks), f"{spec.rows} x {spec.dim}", 4 * spec.rows * spec.dim))
        return lines


def _check_bounds(spec: TableSpec, shard: Shard, ranks: int) -> None:
    (r0, r1), (c0, c1) = shard.rows, shard.cols
    if not (0 <= r0 < r1 <= spec.rows and 0 <= c0 < c1 <= spec.dim and 0 <= shard.rank < ranks):
        raise PlanError(f"table {spec.name!r} ({spec.rows} x {spec.dim}, {ranks} ranks) has a shard outside it: {shard}")


def _check_cover(spec: TableSpec, shards: Sequence[Shard]) -> None:
    for i, a in enumerate(shards):
        for b in shards[:i]:
            rows, cols = min(a.rows[1], b.rows[1]) - max(a.rows[0], b.rows[0]), min(a.cols[1], b.cols[1]) - max(a.cols[0], b.cols[0])
            if rows > 0 and cols > 0:
                raise PlanError(f"table {spec.name!r}: shards overlap: {b} and {a}")
    held = sum((s.rows[1] - s.rows[0]) * (s.cols[1] - s.cols[0]) for s in shards)
    if held != spec.rows * spec.dim:
        raise PlanError(f"table {spec.name!r}: its shards hold {held} of {spec.rows * spec.dim} elements")


def _ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> '0-2,5'."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in spans)


def match_schemes(tables: Sequence[TableSpec], wanted: str | Mapping[str, str]) -> list[str]:
    """Scheme of every table: one name for all, or {pattern: scheme} where the longest matching pattern wins.

    Raises PlanError for an unknown scheme, a table that no pattern matches, and a pattern that matches no table.
    """
    patterns = {"*": wanted} if isinstance(wanted, str) else dict(wanted)
    for pattern, name in patterns.items():
        if name not in SCHEMES:
            raise PlanError(f"parallel.plan: {name!r} (for {pattern!r}) is no scheme; choose auto or one of {', '.join(SCHEMES)}")
        if not any(fnmatchcase(spec.name, pattern) for spec in tables):
            raise PlanError(f"parallel.plan: the pattern {pattern!r} matches no table")
    schemes = []
    for spec in tables:
        matching = [pattern for pattern in patterns if fnmatchcase(spec.name, pattern)]
        if not matching:
            raise PlanError(f"parallel.plan gives no scheme for table {spec.name!r}; add a pattern such as '*'")
        schemes.append(patterns[max(matching, key=len)])
    return schemes


def lay_out(
    tables: Sequence[TableSpec],
    schemes: Sequence[str],
    ranks: int,
    ranks_per_node: int,
    costs: Sequence[float] | None = None,
) -> Plan:
    """Plan with these schemes; homes balanced by `costs` per table (default: rows x dim), largest first."""
    nodes = node_ranks(ranks, ranks_per_node)
    weights = [float(s.rows * s.dim) for s in tables] if costs is None else list(costs)
    load = [0.0] * ranks
    placed: dict[int, list[Shard]] = {}
    for table in sorted(range(len(tables)), key=lambda t: (-weights[t], t)):
        spec = tables[table]
        home = min(range(ranks), key=lambda rank: (load[rank], rank))
        shards = SCHEMES[schemes[table]](table, spec, Placement(nodes, home))
        placed[table] = shards
        for shard in shards:
            share = (shard.rows[1] - shard.rows[0]) * (shard.cols[1] - shard.cols[0]) / (spec.rows * spec.dim)
            load[shard.rank] += weights[table] * share
    shards = tuple(shard for table in range(len(tables)) for shard in placed[table])
    return Plan(tuple(tables), tuple(schemes), shards, ranks, ranks_per_node).check()
