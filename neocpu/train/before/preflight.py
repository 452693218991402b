"""Will a run fit? The memory and disk that it needs, against what the machine has.

Tables are mapped lazily: a row costs memory once it is touched, and a run cannot touch more rows
than it looks up. So the need of a table is the smaller of its whole size and `lookups * max(row
bytes, one page)`. Tables get huge pages where even those fit, small ones otherwise. A checkpoint
has the rows that were touched.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from neocpu.core.cores import host_memory, memory_left
from neocpu.core.errors import TrainingError
from neocpu.core.targets import nearest_existing
from neocpu.core.types import Tell
from neocpu.parallel.sharding.plan import Plan
from neocpu.plan.cost.capacity import buffer_bytes
from neocpu.plan.cost.work import TableArrays, rectangles_of
from neocpu.tables.embedding.changes import pages_of
from neocpu.tables.specs.directions import factor_bytes
from neocpu.tables.specs.specs import TableSpecs, bags
from neocpu.train.before.plans import workload
from neocpu.train.config.config import Config
from neocpu.train.state.blocks import BLOCK

PAGE = 4096
# Bytes of the program itself, from what ranks of runs were measured to hold (Linux, x86-64, MPICH;
# Private_* and Shared_* of /proc/self/smaps_rollup), and an eighth more.
PROGRAM = 112 << 20  # of each rank: Python, Numba, MPI; 95 to 101 MiB
SHARED = 164 << 20  # of each host: libraries, 112 MiB, and what its first rank does alone, 35 MiB
COMPILER = 312 << 20  # of the rank that compiles, which keeps it; 277 MiB
BLOCK_ENTRY = 48  # bytes that a checkpoint keeps of a block of rows: number, size, hash
PER_TABLE = 4 << 10  # bytes that HDF5 takes for a table's datasets
OVERHEAD = 256 << 10  # bytes of a checkpoint for all else: names, texts, HDF5's own structures
RECORD = 24  # bytes that an SSD file keeps of a row beside its values
UNSURE = 1.25  # a conversion's size is estimated from the first megabyte of its source


@dataclass(frozen=True)
class Need:
    """Bytes that one table takes: of memory on a rank, or of files."""

    table: str
    bytes: int


def available_memory() -> int:
    """Bytes that this process can allocate without swapping: of this host, Linux's MemAvailable,
    elsewhere all memory; and no more than limits on its group of processes leave.
    """
    return int(min(_free_memory(), memory_left()))


def _free_memory() -> int:
    """Bytes of this host that are free, or can be."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                # MemFree leaves out the page cache, which gives way
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return host_memory()


def table_needs(
    plan: Plan,
    rank: int,
    state_floats: tuple[int, int],
    lookups: Mapping[str, int],
    slots: Sequence[int] | None = None,
    page: int = PAGE,
    beside: Sequence[int] | None = None,
) -> list[Need]:
    """Bytes each table takes on `rank`, largest first.

    state_floats : optimizer floats per element and per row. lookups : rows of each table that the
    run can touch, at most. slots : rows of each shard that have room in memory (None: all).
    page : bytes that the system maps at a time. beside : bytes of each shard's rows that are kept
    in their own, narrower format beside the slots (None: none).
    """
    per_element, per_row = state_floats
    needs: dict[str, int] = {}
    for i, shard in enumerate(plan.local(rank)):
        table = plan.tables[shard.table]
        width = shard.cols[1] - shard.cols[0]
        rows = slots[i] if slots else shard.rows[1] - shard.rows[0]
        touched = lookups[table.name]
        row_bytes = table.cached.row_bytes(width, state_floats)
        # a row touches a page of each array that holds a part of it
        # weights and each state are arrays of their own
        arrays = len(table.row_format.arrays) + per_element + bool(per_row)
        # rows are touched at random: each maps whole pages until nearly all are there
        size = min(rows * row_bytes, touched * max(row_bytes, page * arrays))
        # a byte and a bit for each row, and a byte for each page of them: does it exist?
        for marks in (rows, -(-rows // 8), pages_of(rows)):
            size += min(marks, touched * page)
        if beside:
            narrow_bytes = table.row_bytes(width, state_floats)
            size += min(beside[i], touched * max(narrow_bytes, page))
        needs[table.name] = needs.get(table.name, 0) + size
    return _largest_first(needs.items())


def _largest_first(sizes: Iterable[tuple[str, int]]) -> list[Need]:
    return [Need(table, size) for table, size in sorted(sizes, key=lambda item: -item[1])]


def working_memory(config: Config, plan: Plan) -> int:
    """Bytes that a rank needs besides tables.

    Activations, gradients and messages of one batch, and the program without SHARED and COMPILER.
    """
    samples = -(-config.training.batch_size // plan.ranks)
    layout = config.layout(1)
    columns = layout.columns + sum(tower.columns for tower in layout.towers)
    widths = sum(config.model.bottom) + sum(config.model.top) + len(bags(plan.tables)) ** 2
    # an interaction keeps some matrices for each of its layers
    widths += sum(shape[0] for _, shape in layout.further_tensors() if len(shape) == 2)
    windows = 0
    if plan.ranks > 1 and config.parallel.shared_windows != "off":
        from neocpu.parallel.transport.windows import DATA

        # pooled vectors and their gradients stand in windows until they are read
        windows = min(2 * DATA, 4 * samples * 2 * columns)
    activations = config.memory.held(4 * samples * (2 * columns + 3 * widths))
    return 4 * samples * 6 * columns + activations + windows + PROGRAM


def buffer_memory(config: Config, plan: Plan, rank: int, pooling: Mapping[str, float]) -> int:
    """Bytes that a rank needs for what a step holds for its rectangles, as planners count it, above
    the ranks' mean, which `working_memory` has.

    pooling : mean lookups per sample of each table; 1 where it is not known.
    """
    rectangles = rectangles_of(plan)
    arrays = TableArrays.of(plan.tables, workload(config, pooling))
    of_rectangle = TableArrays(*(column[rectangles.table] for column in arrays))
    held = buffer_bytes(rectangles, of_rectangle)
    even = float(held.sum()) / plan.ranks
    return int(max(float(held[rectangles.rank == rank].sum()) - even, 0.0))


def row_memory(config: Config, plan: Plan, pooling: Mapping[str, float]) -> int:
    """Bytes that a rank needs for the rows of tables that do not pool, and what attends to them.

    pooling : mean lookups per bag of each table; 1 where it is not known.
    """
    samples = -(-config.training.batch_size // plan.ranks)
    composition = config.layout(1).composition
    if composition is None:
        return 0
    keys = bags(plan.tables)
    numbers = 0.0
    for vectors in composition.parts:
        if vectors.pooled:
            continue
        tables = [plan.tables[keys[source.key].table] for source in vectors.sources]
        width = 8 * sum(table.dim for table in tables) + 2 * vectors.dim
        if vectors.attention is not None:
            width += 3 * sum(vectors.attention.sizes)
        numbers += width * pooling.get(tables[0].name, 1.0)
    return int(4 * samples * numbers)


def human(size: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def fits(
    needs: Sequence[Need], host_ranks: int, working: int, available: int, once: int = SHARED
) -> bool:
    """Is there memory for the ranks of this host? Arguments as for `check_memory`."""
    return (sum(need.bytes for need in needs) + working) * host_ranks + once <= available


def check_memory(
    needs: Sequence[Need], host_ranks: int, working: int, available: int, once: int = SHARED
) -> int:
    """Bytes that this rank needs.

    working : bytes that a rank needs besides tables (activations, buffers, dense parameters).
    once : bytes that all ranks of a host need together, beside what each needs.
    available : bytes of this host for its `host_ranks` ranks.

    Raises TrainingError where the ranks of this host together need more than that.
    """
    total = sum(need.bytes for need in needs) + working
    if fits(needs, host_ranks, working, available, once):
        return total
    largest = ""
    if needs:
        largest = f"the largest table, {needs[0].table}, takes {human(needs[0].bytes)} of it; "
    limited = memory_left() < _free_memory()
    by_limit = " under the limit of this job or container" if limited else ""
    raise TrainingError(
        f"this run needs {human(total)} of memory per rank, {human(total * host_ranks + once)} for "
        f"{host_ranks} rank(s) on this host, but {human(available)} are available{by_limit}; "
        f"{largest}use more hosts, a plan that shards it (parallel.plan=row_wise), "
        "memory.placement=ddr_over_ssd with a memory.ddr, fewer tables.NAME.rows, "
        "a smaller model.embedding_dim, a narrower model.embedding_format, or "
        "optimizer.sparse.name=exact_rowwise_adagrad; this is an estimate, and "
        "memory.check=false starts all the same"
    )


def dense_bytes(config: Config, dense_features: int) -> int:
    """Bytes of the dense parameters, their optimizer's state, their average and their rounded
    copies, if there are any, and of what Shampoo or Muon keep.
    """
    layout = config.layout(dense_features)
    optimizer = config.optimizer
    # the average is one more array of the same size, and so are operands of products
    arrays = 1 + optimizer.dense.state_floats[0] + bool(config.eval.ema)
    arrays += config.model.precision.format != "fp32"
    if optimizer.in_blocks or optimizer.trust_ratio:
        # gradient and step, and a momentum
        arrays += 2 + bool(optimizer.muon.steps or optimizer.shampoo.momentum)
    factors = factor_bytes(dict(layout.tensors()), optimizer.shampoo)
    return 4 * layout.parameters * arrays + factors


def checkpoint_needs(
    tables: TableSpecs, state_floats: tuple[int, int], touched: Mapping[str, int]
) -> list[Need]:
    """Bytes that each table can take in one checkpoint, at most, largest first.

    touched : rows of each table that can differ from their initial values.
    """
    sizes = []
    for table in tables:
        scaled = table.row_format.row_scaled
        # scaled rows are written as float32 numbers with scale and bias
        stored = replace(table, format="fp32") if scaled else table
        row_bytes = 8 + stored.row_bytes(table.dim, state_floats) + (8 if scaled else 0)
        rows = touched[table.name]
        # at worst every touched row is alone in its block
        blocks = min(rows, -(-table.rows // BLOCK))
        sizes.append((table.name, rows * row_bytes + blocks * BLOCK_ENTRY + PER_TABLE))
    return _largest_first(sizes)


def row_file_needs(
    tables: TableSpecs, state_floats: tuple[int, int], touched: Mapping[str, int], saves: int = 1
) -> list[Need]:
    """Bytes that each table can take in the SSD files of all ranks, at most, largest first.

    touched : as for `checkpoint_needs`. saves : checkpoints of the run. All but the last commit the
    SSD files, so rows that changed after one are there twice, and once more until the next.
    """
    # the state of the last commit must stay whole until the next one is complete
    copies = min(saves, 3)
    sizes = []
    for table in tables:
        row_bytes = table.row_bytes(table.dim, state_floats) + RECORD
        sizes.append((table.name, copies * touched[table.name] * row_bytes))
    return _largest_first(sizes)


@dataclass(frozen=True)
class CheckpointNeeds:
    """What the checkpoints of a run take.

    tables : bytes of each in one file if every row that can be touched is, largest first. dense :
    bytes of dense parameters and their optimizer's state, which every file has. saves : files that
    the run writes. keep : newest ones that stay. present : bytes of those that are in the folder
    already. based : files at most that the oldest kept one is based on.
    """

    tables: Sequence[Need]
    dense: int
    saves: int
    keep: int
    present: Sequence[int] = ()
    based: int = 0

    @property
    def one(self) -> int:
        """Bytes that one file can take, at most."""
        return self.dense + sum(need.bytes for need in self.tables) + OVERHEAD

    @property
    def files(self) -> int:
        """Files that are there at a time: a new one is written before the oldest kept one goes."""
        return min(max(self.saves, len(self.present) + 1), self.keep + 1 + self.based)


def free_bytes(folder: Path) -> int:
    """Free bytes of the disk on which a folder is, or will be made."""
    try:
        return shutil.disk_usage(nearest_existing(folder)).free
    except FileNotFoundError as error:
        raise TrainingError(f"{folder}: neither it nor any folder above it exists") from error


def check_checkpoints(out: Path, needs: CheckpointNeeds, tell: Tell) -> int:
    """Will the checkpoints in folder `out` fit? Returns the bytes that one can take, at most.

    Raises TrainingError where not even the dense parameters fit, which the first checkpoint would
    run into anyway; tells a line where they fit, but not every row that can be touched.
    """
    written = sum(needs.present)
    least = max(needs.files * needs.dense - written, needs.dense)
    most = max(needs.files * needs.one - written, needs.one)
    free = free_bytes(out)
    if most <= free:
        return needs.one
    files = f"{needs.files} of {human(needs.one)}"
    if needs.tables:
        largest = needs.tables[0]
        files += f"; the largest table, {largest.table}, up to {human(largest.bytes)} of each"
    keep_fewer = ""
    if needs.keep > 1 and needs.files > 1:
        keep_fewer = "keep fewer (checkpoint.keep=1), "
    advice = (
        f"make room, {keep_fewer}choose another --out, or make the tables smaller "
        "(tables.NAME.rows, model.embedding_dim)"
    )
    if least > free:
        raise TrainingError(
            f"checkpoints in {out} need at least {human(least)} and up to {human(most)} ({files}), "
            f"but only {human(free)} are free there; {advice}"
        )
    tell(
        f"warning: checkpoints in {out} may need up to {human(most)} ({files}) if every row that "
        f"can be touched is, but only {human(free)} are free there; {advice}"
    )
    return needs.one


def check_rows(folder: Path, needs: Sequence[Need], ranks: int, budget: int, tell: Tell) -> None:
    """Will the SSD files of a run fit?

    Nobody knows how many rows they will hold, so where they may not fit this only tells a line.

    needs : of the run's tables, if every row that can be touched is. budget : bytes of each rank's
    file (0: no limit).
    """
    most = sum(need.bytes for need in needs)
    if budget:
        most = min(most, ranks * budget)
    free = free_bytes(folder)
    if most > free:
        tell(
            f"warning: rows on the SSD may need up to {human(most)} in {folder}, most of it for "
            f"{needs[0].table}, but only {human(free)} are free there; make room, choose another "
            "memory.folder, or limit the files (memory.ssd)"
        )


def check_conversions(needs: Sequence[tuple[Path, int]], tell: Tell) -> None:
    """Will the converted copies of raw logs fit?

    needs : (copy, about how many bytes its conversion takes).

    Sizes are estimates. Raises TrainingError where a disk lacks more than they can be wrong by;
    tells a line where it lacks less.
    """
    # copies may lie on several disks, each with its own room
    disks: dict[int, list[tuple[Path, int]]] = {}
    for copy, size in needs:
        disks.setdefault(copy.parent.stat().st_dev, []).append((copy, size))
    for copies in disks.values():
        total = sum(size for _, size in copies)
        largest, largest_size = max(copies, key=lambda copy: copy[1])
        free = shutil.disk_usage(largest.parent).free
        if total <= free:
            continue
        text = (
            f"converting the raw data needs about {human(total)} in {largest.parent} "
            f"({human(largest_size)} of it for {largest.name}), but only {human(free)} are free "
            "there; make room, or convert elsewhere with `neocpu data convert` and give the result "
            "as data.train"
        )
        # an estimate should not refuse what would have fitted
        if total > UNSURE * free:
            raise TrainingError(text)
        tell(f"warning: {text}")
