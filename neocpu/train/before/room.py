"""Has this machine room for a run?

What the run needs, by `preflight.py`, against its memory and disks, on every rank before anything
is allocated. SSD files that killed runs left in its folder do not count: they are removed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from neocpu.core.cores import ADDRESS_LIMIT, addresses_left, private_bytes
from neocpu.core.errors import StorageError, TrainingError
from neocpu.core.types import Tell
from neocpu.kernels.compile.cache import cannot_write
from neocpu.parallel.sharding.plan import Plan, shard_bytes
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.embedding.memory_plan import MemoryPlan
from neocpu.tables.storage.arena import HUGE
from neocpu.tables.tiers.placement import PLACEMENTS
from neocpu.train.before import preflight
from neocpu.train.before.kernel_markers import is_ready
from neocpu.train.checkpoint import checkpoints
from neocpu.train.config.config import Config

if TYPE_CHECKING:  # data that are converted need no estimate
    from neocpu.train.before.train_facts import TrainFacts


@dataclass(frozen=True)
class PlannedRun:
    """What decides how much room a run takes; `out` is the folder of its results."""

    config: Config
    plan: Plan
    memory: MemoryPlan
    splits: "TrainFacts"
    steps: int
    out: Path

    @property
    def samples(self) -> int:
        """Samples that it trains on, at most."""
        return self.steps * self.config.training.batch_size

    @property
    def saves(self) -> int:
        """Checkpoints that it writes, at most."""
        if self.config.checkpoint.every_minutes:
            return max(self.steps, 1)
        interval = self.config.checkpoint.every_steps
        return -(-self.steps // interval) if interval else 1

    @property
    def milestones(self) -> int:
        """Checkpoints that stay for ever, as far as steps tell it."""
        every = self.config.checkpoint.keep_every_steps
        return min(self.steps // every, self.saves) if every else 0

    @property
    def state_floats(self) -> tuple[int, int]:
        """Optimizer floats of a table: per element, per row."""
        return self.config.optimizer.sparse.state_floats


class RankNeeds(NamedTuple):
    """What a rank needs: bytes of its tables on huge pages and on small ones, largest first, and
    besides tables; what tables map, touched or not; of all that, what is in a file that outlives it
    (0: nothing is).
    """

    huge: list[preflight.Need]
    small: list[preflight.Need]
    working: int
    mapped: int
    lasting: int = 0


def check_room(run: PlannedRun, comm: Comm, tell: Tell) -> bool:
    """Check memory on every rank, and disks on rank 0.

    Returns whether tables fit on huge pages. Collective.

    Raises TrainingError on all ranks where the run cannot fit; `tell` is given a line where it may
    not fit.
    """
    hosts = comm.hosts()
    host_ranks = [rank for rank, host in enumerate(hosts) if host == hosts[comm.rank]]
    with comm.agreeing():
        huge, warning = _check_memory(run, comm.rank, len(host_ranks))
        if comm.rank == 0:
            _check_disks(run, comm.size, tell)
    if comm.rank == 0 and (text := beyond_home(run, host_ranks)):
        tell(text)
    # rank 0 alone can tell, and it may be another host that is short
    if text := next(filter(None, comm.allgather(warning)), ""):
        tell(text)
    return huge


def _check_memory(run: PlannedRun, rank: int, host_ranks: int) -> tuple[bool, str]:
    """(do this host's ranks fit with tables on huge pages, a warning that they fit with none).

    Raises TrainingError if they do not even fit with small ones, unless the config insists.
    """
    needs = rank_needs(run, rank)
    # each sees all of the host's memory as free
    if needs.lasting:
        from neocpu.train.checkpoint.keeping import check_folder

        check_folder(run.config, run.out, host_ranks * needs.lasting)
    once = needs_once(run)
    # the host's ranks run already, alike, and what they hold is part of what they need
    held = min(private_bytes(), preflight.PROGRAM)
    available = preflight.available_memory() + host_ranks * held
    # a touched row takes a whole page; where huge ones do not fit, small ones may
    huge = preflight.fits(needs.huge, host_ranks, needs.working, available, once)
    try:
        tables = needs.huge if huge else needs.small
        preflight.check_memory(tables, host_ranks, needs.working, available, once)
        if problem := beyond_addresses(needs.mapped):
            raise TrainingError(problem)
    except TrainingError as error:
        if run.config.memory.check:
            raise
        return huge, f"warning: {error}"
    return huge, ""


def rank_needs(run: PlannedRun, rank: int) -> RankNeeds:
    """What a rank of a run needs of memory."""
    pooling = run.splits.pooling_factors()
    # every lookup another row, at worst: memory is mapped as rows are touched
    lookups = {name: int(run.samples * factor) + 1 for name, factor in pooling.items()}
    every_row = {table.name: table.rows for table in run.plan.tables}
    parity = run.config.checkpoint.parity
    if parity:  # in files, whose pages are all there from the start, and are small
        lookups = every_row
    rooms = run.memory.rooms(run.plan.tables, run.plan.local(rank), run.state_floats)
    huge_needs, small_needs, whole = (
        preflight.table_needs(
            run.plan,
            rank,
            run.state_floats,
            rows,
            slots=[room.slots for room in rooms],
            page=page,
            beside=[room.narrow for room in rooms],
        )
        for rows, page in (
            (lookups, preflight.PAGE if parity else HUGE),
            (lookups, preflight.PAGE),
            (every_row, 1),
        )
    )
    mapped = sum(need.bytes for need in whole)
    working = preflight.working_memory(run.config, run.plan)
    working += preflight.buffer_memory(run.config, run.plan, rank, pooling)
    working += preflight.row_memory(run.config, run.plan, pooling)
    # parameters with their state, and about as much for gradients
    working += 2 * preflight.dense_bytes(run.config, run.splits.dense_features)
    working += _moved_rows(run.config, pooling)[0]
    # a snapshot holds copies of rows, and no more of them than there are
    working += min(run.config.checkpoint.memory, sum(need.bytes for need in small_needs))
    if cannot_write() and not is_ready(run.config, run.plan, run.memory.placements):
        working += preflight.COMPILER  # each rank compiles for itself
    if not parity:
        return RankNeeds(huge_needs, small_needs, working, mapped)
    rows = sum(need.bytes for need in small_needs)
    beside = _beside_rows(run, rank, pooling)
    return RankNeeds(huge_needs, small_needs, working + beside, mapped, rows + beside)


def beyond_addresses(mapped: int) -> str:
    """Why a process may not map so many bytes for its tables; "" where it may."""
    left = addresses_left()
    if mapped <= left:
        return ""
    return (
        f"tables of a rank map {preflight.human(mapped)}, touched or not, and a process may map "
        f"{preflight.human(left)} more; raise the limit on addresses ({ADDRESS_LIMIT}), or use "
        "more ranks or fewer tables.NAME.rows"
    )


def _beside_rows(run: PlannedRun, rank: int, pooling: Mapping[str, float]) -> int:
    """Bytes of a file that outlives a rank, beside its rows: the parity of others, two notes, and
    the log of what a turn changes in both.
    """
    from neocpu.parallel.parity.groups import parity_bytes
    from neocpu.parallel.parity.keeper import NOTE_ROOM

    keys = run.config.checkpoint
    samples = keys.parity_every * run.config.training.batch_size
    changed = preflight.table_needs(
        run.plan,
        rank,
        run.state_floats,
        {name: int(samples * factor) + 1 for name, factor in pooling.items()},
        page=1,
    )
    dense = preflight.dense_bytes(run.config, run.splits.dense_features)
    parity = parity_bytes(run.plan, keys.parity, run.state_floats)
    return parity + 2 * (dense + NOTE_ROOM + sum(need.bytes for need in changed))


def beyond_home(run: PlannedRun, ranks: Iterable[int]) -> str:
    """A warning of the table that is furthest beyond what there is for it, once all its rows are
    touched, on a host with these ranks; "" where none is.

    Such a run may well start: memory is mapped as rows are touched, and it may touch few of them.
    """
    held = [0] * len(run.plan.tables)
    for shard in (shard for rank in ranks for shard in run.plan.local(rank)):
        held[shard.table] += shard_bytes(run.plan.tables[shard.table], shard, run.state_floats)
    memory = preflight.available_memory()
    disk = preflight.free_bytes(run.memory.folder or run.out)
    homes = [disk if PLACEMENTS[name].ssd else memory for name in run.memory.placements]
    worst = max(range(len(held)), key=lambda number: held[number] / max(homes[number], 1))
    if held[worst] <= homes[worst]:
        return ""
    table = run.plan.tables[worst]
    on_disk = PLACEMENTS[run.memory.placements[worst]].ssd
    room = preflight.human(homes[worst])
    there = f"{room} of its disk are free" if on_disk else f"{room} of memory are available"
    elsewhere = "" if on_disk else "memory.placement=ddr_over_ssd, which keeps rows on a disk, "
    touched = run.splits.touchable_rows(run.samples)[table.name]
    return (
        f"warning: all {table.rows:,} rows of table {table.name} take "
        f"{preflight.human(held[worst])} on this host, and {there}; this run touches at most "
        f"{touched:,} of them, a longer one more. What helps: fewer "
        f"tables.{table.name}.rows (categories share rows by hash), {elsewhere}a compressed "
        f"tables.{table.name}.kind, or more hosts"
    )


def needs_once(run: PlannedRun) -> int:
    """Bytes that all ranks of a host need together, beside what each needs."""
    # each rank then counts its own compiler, in `rank_needs`, or none is needed
    if cannot_write() or is_ready(run.config, run.plan, run.memory.placements):
        return preflight.SHARED
    return preflight.SHARED + preflight.COMPILER


def _check_disks(run: PlannedRun, ranks: int, tell: Tell) -> None:
    """Will the SSD files and the checkpoints of all ranks fit?"""
    config = run.config
    touched = run.splits.touchable_rows(run.samples)
    over_ssd = [
        table
        for table, placement in zip(config.tables, run.memory.placements)
        if PLACEMENTS[placement].ssd
    ]
    preflight.check_rows(
        run.memory.folder or run.out,
        preflight.row_file_needs(over_ssd, run.state_floats, touched, run.saves),
        ranks,
        run.memory.ssd,
        tell,
    )
    preflight.check_checkpoints(run.out, checkpoint_room(run), tell)


def _moved_rows(config: Config, pooling: Mapping[str, float]) -> tuple[int, int]:
    """What `memory_of` says of tables whose rows move; zeros where there are none."""
    if all(composition.dynamic is None for composition in config.compositions):
        return 0, 0
    from neocpu.train.step.dynamic_kinds import memory_of

    return memory_of(config, pooling)


def checkpoint_room(run: PlannedRun) -> preflight.CheckpointNeeds:
    """What the checkpoints of a run take."""
    config = run.config
    touched = run.splits.touchable_rows(run.samples)
    # files of changes take together no more than two whole ones
    based = min(config.checkpoint.files_until_full(run.memory.over_ssd) - 1, 2)
    return preflight.CheckpointNeeds(
        tables=preflight.checkpoint_needs(config.tables, run.state_floats, touched),
        dense=preflight.dense_bytes(config, run.splits.dense_features) + _moved_rows(config, {})[1],
        saves=run.saves,
        keep=config.checkpoint.keep + run.milestones,
        present=[path.stat().st_size for path in checkpoints(run.out)],
        based=based,
    )


def row_folder(out: Path) -> Path:
    """The folder for SSD files in a folder of results."""
    return out / "rows"


def remove_row_files(out: Path, comm: Comm) -> None:
    """Remove SSD files that killed runs, maybe of more ranks, left in a folder of results.

    Collective.

    Raises StorageError on all ranks where a file is in use or cannot be removed.
    """
    folder = row_folder(out)
    with comm.agreeing():
        try:
            if comm.rank == 0:
                # each rank replaces its own, but there may have been more ranks
                for path in folder.glob("rank-*.h5"):
                    from neocpu.tables.storage.row_tools import remove

                    remove(path)
        except OSError as problem:
            reason = problem.strerror
            raise StorageError(f"{folder}: cannot be cleared: {reason}; remove it") from problem
