"""On which ranks may each table be? `parallel.pins` says so, by shell patterns of tables."""

import re
from collections.abc import Mapping, Sequence

from neocpu.core.errors import ConfigError
from neocpu.core.records import matched
from neocpu.parallel.sharding.schemes import Shard
from neocpu.tables.specs.specs import TableSpecs

# A rank, or the first and the last of several.
RUN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
# as many as a plan file may have, and few enough to be listed
MOST_RANKS = 1 << 20

# names of tables -> the ranks that they may be on, ascending
PinnedRanks = Mapping[str, tuple[int, ...]]


def named_ranks(text: str) -> tuple[int, ...]:
    """The ranks of "0-3, 8", ascending. Raises ValueError that says what is wrong."""
    ranks: set[int] = set()
    for run in text.split(","):
        match = RUN.fullmatch(run.strip())
        if match is None:
            raise ValueError(f'{text!r} names no ranks; write them like "0-3, 8"')
        low = int(match[1])
        high = int(match[2] or match[1])
        if not low <= high < MOST_RANKS:
            raise ValueError(f"{run.strip()!r} must ascend and stay below {MOST_RANKS:,}")
        ranks.update(range(low, high + 1))
    return tuple(sorted(ranks))


def choose_pins(tables: TableSpecs, spec: Mapping[str, str]) -> PinnedRanks:
    """Ranks by table from the config's `parallel.pins`; tables that nothing matches are left out.

    Raises ConfigError for a pattern without a table, or what names no ranks.
    """
    names = [table.name for table in tables]
    chosen = zip(names, matched("parallel.pins", names, spec, ""))
    try:
        return {name: named_ranks(text) for name, text in chosen if text}
    except ValueError as error:
        raise ConfigError(f"parallel.pins: {error}") from error


def check_pins(
    tables: TableSpecs,
    schemes: Sequence[str],
    pins: PinnedRanks,
    ranks: int = MOST_RANKS,
    fixed: Mapping[int, Sequence[Shard]] | None = None,
) -> None:
    """Raise ConfigError for pins that schemes, ranks or rectangles contradict.

    schemes : as of `choose_schemes`. fixed : rectangles of tables that are not to be cut here, by
    number.
    """
    for number, table in enumerate(tables):
        allowed = pins.get(table.name, ())
        if not allowed:
            continue
        why = ""
        if schemes[number] == "data_parallel":
            why = "it is data_parallel, which is on all ranks"
        elif allowed[-1] >= ranks:
            why = f"there is no rank {allowed[-1]}: the {ranks} rank(s) are numbered from 0"
        strange = [s.rank for s in (fixed or {}).get(number, ()) if s.rank not in allowed]
        if strange:
            why = f"the plan has it on rank {strange[0]}, which is none of them"
        if why:
            raise ConfigError(
                f"parallel.pins: table {table.name!r} is pinned to ranks, but {why}; change one of "
                "both"
            )
