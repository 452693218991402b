"""What does a plan file say of the tables of a run? Checked against their names and shapes.

A table without rectangles is cut as its scheme does it, and one that the file does not name is
planned as `auto`; a placement that is left out is that of `memory.placement`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from neocpu.core.errors import ConfigError, PlanError
from neocpu.parallel.sharding.plan import AUTO, Plan
from neocpu.parallel.sharding.schemes import Shard
from neocpu.plan.files.plan_file import PlanFile, TableEntry
from neocpu.tables.specs.specs import TableSpec, TableSpecs

# Schemes whose rectangles have all columns, and all rows.
WHOLE_ROWS = ("table_wise", "row_wise", "table_row_wise", "data_parallel")
WHOLE_COLUMNS = ("table_wise", "column_wise", "table_column_wise", "data_parallel")


@dataclass(frozen=True)
class BoundPlan:
    """What a plan file says of the tables of a run.

    schemes : by table, "auto" for those that it does not name. fixed : rectangles by number of
    the table, where the file gives them. placements : by table, "" where it says nothing.
    """

    schemes: tuple[str, ...]
    fixed: Mapping[int, tuple[Shard, ...]]
    placements: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Does the file say of each table where it is?"""
        return all(
            number in self.fixed or scheme == "data_parallel"
            for number, scheme in enumerate(self.schemes)
        )

    def plan(self, tables: TableSpecs, ranks: int, ranks_per_node: int) -> Plan:
        """The plan of a file that is whole, checked."""
        shards = [shard for number in self.fixed for shard in self.fixed[number]]
        for number, table in enumerate(tables):
            if number not in self.fixed:
                whole = (0, table.rows), (0, table.dim)
                shards += [Shard(number, *whole, rank) for rank in range(ranks)]
        return Plan(
            tables=tuple(tables),
            schemes=self.schemes,
            shards=tuple(sorted(shards)),
            ranks=ranks,
            ranks_per_node=ranks_per_node,
            placements=self.placements,
        ).check()


def bind(file: PlanFile, tables: TableSpecs, ranks: int) -> BoundPlan:
    """What a file says of a run's tables.

    Raises ConfigError for another number of ranks, a table that the run lacks or that has another
    shape, or rectangles that their scheme does not make; PlanError for gaps and overlaps.
    """
    if file.ranks != ranks:
        raise ConfigError(
            f"{file.source}: the plan is for {file.ranks} rank(s) and this run has {ranks}; plan "
            f"anew with `neocpu plan CONFIG --ranks {ranks} --out FILE`, or leave parallel.plan out"
        )
    numbers = {table.name: number for number, table in enumerate(tables)}
    schemes = [AUTO] * len(tables)
    placements = [""] * len(tables)
    fixed: dict[int, tuple[Shard, ...]] = {}
    for planned in file.tables:
        keys = planned.keys
        if keys.name not in numbers:
            near = get_close_matches(keys.name, list(numbers), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(numbers)}"
            raise ConfigError(f"{file.source}: the config has no table {keys.name!r}; {hint}")
        number = numbers[keys.name]
        _check_shape(file, keys, tables[number])
        schemes[number] = keys.scheme
        placements[number] = keys.placement
        if planned.rectangles:
            shards = sorted(Shard(number, rows, cols, r) for r, rows, cols in planned.rectangles)
            _check_scheme(file, keys, tables[number], shards)
            fixed[number] = tuple(shards)
    _check_cover(file, tables, schemes, fixed)
    return BoundPlan(tuple(schemes), fixed, tuple(placements))


def _check_shape(file: PlanFile, keys: TableEntry, table: TableSpec) -> None:
    """Raise ConfigError where the table of the run has another shape."""
    for name in ("rows", "dim"):
        in_file = getattr(keys, name)
        in_config = getattr(table, name)
        if in_file and in_file != in_config:
            raise ConfigError(
                f"{file.source}: table {table.name!r} has {in_file:,} {name} in the plan, and "
                f"{in_config:,} in the config; plan anew, or correct the one that is wrong"
            )


def _check_scheme(
    file: PlanFile, keys: TableEntry, table: TableSpec, shards: Sequence[Shard]
) -> None:
    """Raise ConfigError for rectangles that are none of their scheme."""
    scheme = keys.scheme
    why = ""
    if scheme == AUTO:
        why = "has rectangles, so it needs the name of a scheme"
    elif scheme == "table_wise" and len(shards) > 1:
        why = f"is in {len(shards)} rectangles"
    elif scheme in WHOLE_ROWS and any(s.cols != (0, table.dim) for s in shards):
        why = "has a rectangle without all columns"
    elif scheme in WHOLE_COLUMNS and any(s.rows != (0, table.rows) for s in shards):
        why = "has a rectangle without all rows"
    if why:
        raise ConfigError(f"{file.source}: table {table.name!r} is {scheme} but {why}")


def _check_cover(
    file: PlanFile,
    tables: TableSpecs,
    schemes: Sequence[str],
    fixed: Mapping[int, tuple[Shard, ...]],
) -> None:
    """Raise PlanError for gaps, overlaps and ranks outside, of the tables with rectangles."""
    # tables without rectangles are cut later; the check wants those of the file alone, numbered
    # anew
    order = sorted(fixed)
    shards = [
        Shard(index, shard.rows, shard.cols, shard.rank)
        for index, number in enumerate(order)
        for shard in fixed[number]
    ]
    named = tuple(tables[number] for number in order)
    names = tuple(schemes[number] for number in order)
    try:
        per_node = min(file.ranks_per_node, file.group_ranks)
        plan = Plan(named, names, tuple(shards), file.group_ranks, per_node).check()
        if file.replica_groups > 1:
            # nodes are those of the run, whatever the file says
            plan.in_groups(file.replica_groups, file.ranks)
    except PlanError as error:
        raise PlanError(f"{file.source}: {error}") from error
