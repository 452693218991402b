"""Will the run fit? Memory and disk needed against what the machine has, before anything is
allocated.

Tables are mapped lazily: a row costs memory once it is touched, and a run cannot touch more rows
than it looks up. So the need of a table is the smaller of its whole size and `lookups * max(row
bytes, one page)`. Huge pages are asked for where even they fit, small ones otherwise. A checkpoint
has the rows that were touched.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from neocpu.config import Config
from neocpu.embedding.specs import TableSpec, bags
from neocpu.errors import TrainingError
from neocpu.model.layout import ModelLayout
from neocpu.parallel.plan import Plan
from neocpu.training.state_blocks import BLOCK

PAGE = 4096
PROGRAM = 300 << 20  # bytes of Python, Numba and MPI
BLOCK_ENTRY = 48  # bytes a checkpoint keeps of a block of rows: number, size, hash
# bytes of HDF5's own for a table; for all else, with names and texts
PER_TABLE = 4 << 10
OVERHEAD = 256 << 10
RECORD = 24  # bytes that an SSD file keeps of a row beside it
UNSURE = 1.25  # a conversion's size is guessed from the first megabyte of its source


@dataclass(frozen=True)
class Need:
    """Bytes of one table on one rank."""

    table: str
    bytes: int


def available_memory() -> int:
    """Bytes that can be allocated without swapping: MemAvailable where the system tells, else the
    physical memory.
    """
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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

    `state_floats` is (optimizer floats per element, optimizer floats per row); `lookups`: how many
    rows of each table the run can touch at most; `slots`: rows of each shard that have room in
    memory (None: all); `page`: bytes that are taken at a time; `beside`: bytes of each shard's rows
    that are kept beside those slots (None: none).
    """
    per_element, per_row = state_floats
    needs: dict[str, int] = {}
    for i, shard in enumerate(plan.local(rank)):
        rows = slots[i] if slots else shard.rows[1] - shard.rows[0]
        width = shard.cols[1] - shard.cols[0]
        spec = plan.tables[shard.table]
        row_bytes, narrow = (
            spec.cached.row_bytes(width, state_floats),
            spec.row_bytes(width, state_floats),
        )
        arrays = len(spec.row_format.arrays) + per_element + bool(per_row)
        pages = max(row_bytes, page * arrays)
        table = spec.name
        touched = lookups[table]
        needs[table] = (
            needs.get(table, 0) + min(rows * row_bytes, touched * pages) + min(rows, touched * page)
        )
        needs[table] += min(beside[i], touched * max(narrow, page)) if beside else 0
    return [Need(table, size) for table, size in sorted(needs.items(), key=lambda item: -item[1])]


def working_memory(config: Config, plan: Plan) -> int:
    """Bytes a rank needs beside tables: activations, gradients and messages of one batch, and the
    program itself.
    """
    b = -(-config.training.batch_size // plan.ranks)
    columns = config.model.bottom[-1] + sum(plan.tables[bag.table].dim for bag in bags(plan.tables))
    widths = sum(config.model.bottom) + sum(config.model.top) + len(bags(plan.tables)) ** 2
    return 4 * b * (8 * columns + 3 * widths) + PROGRAM


def human(size: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def fits(needs: Sequence[Need], host_ranks: int, other: int, available: int | None = None) -> bool:
    """Would `check_memory` let it pass?"""
    have = available_memory() if available is None else available
    return (sum(need.bytes for need in needs) + other) * host_ranks <= have


def check_memory(
    needs: Sequence[Need], host_ranks: int, other: int, available: int | None = None
) -> int:
    """Bytes this rank needs; TrainingError when the ranks of this host together need more than
    there is.

    `other` is what a rank needs besides tables (activations, buffers, dense parameters), in bytes.
    """
    total = sum(need.bytes for need in needs) + other
    have = available_memory() if available is None else available
    if not fits(needs, host_ranks, other, have):
        largest = (
            f"the largest table, {needs[0].table}, takes {human(needs[0].bytes)} of it; "
            if needs
            else ""
        )
        raise TrainingError(
            f"this run needs {human(total)} of memory per rank, {human(total * host_ranks)} for "
            f"{host_ranks} rank(s) on this "
            f"host, but {human(have)} are available; {largest}use more hosts, a plan that shards "
            "it (parallel.plan=row_wise), "
            ""
            "memory.placement=ddr_over_ssd with a memory.ddr, fewer tables.NAME.rows, a smaller "
            "model.embedding_dim, "
            "a narrower model.embedding_format, or "
            "optimizer.sparse.name=exact_rowwise_adagrad"
        )
    return total


def dense_bytes(config: Config, dense_features: int) -> int:
    """Bytes of the dense parameters and their optimizer's state."""
    model = config.model
    dims = tuple(config.tables[bag.table].dim for bag in bags(config.tables))
    layout = ModelLayout(
        dense_features, dims, model.bottom, model.top, model.interaction, model.diagonal
    )
    return 4 * layout.parameters * (1 + config.optimizer.dense.state_floats[0])


def checkpoint_needs(
    tables: Sequence[TableSpec], state_floats: tuple[int, int], touched: Mapping[str, int]
) -> list[Need]:
    """Bytes each table can take in one checkpoint at most, largest first; `touched`: rows that can
    differ from the start.
    """
    needs = []
    for table in tables:
        file_format = (
            "fp32" if table.row_format.row_scaled else table.format
        )  # of scaled rows: their numbers, scale and bias
        row = (
            8
            + replace(table, format=file_format).row_bytes(table.dim, state_floats)
            + 8 * table.row_format.row_scaled
        )
        rows = touched[table.name]
        blocks = min(rows, -(-table.rows // BLOCK))
        needs.append(Need(table.name, rows * row + blocks * BLOCK_ENTRY + PER_TABLE))
    return sorted(needs, key=lambda need: -need.bytes)


def row_file_needs(
    tables: Sequence[TableSpec],
    state_floats: tuple[int, int],
    touched: Mapping[str, int],
    saves: int = 1,
) -> list[Need]:
    """Bytes each table can take in the SSD files of all ranks, largest first.

    `saves`: checkpoints of the run. All but the last are committed, so rows that changed after one
    are there twice, and once more until the next.
    """
    copies = min(saves, 3)
    needs = [
        Need(t.name, copies * touched[t.name] * (t.row_bytes(t.dim, state_floats) + RECORD))
        for t in tables
    ]
    return sorted(needs, key=lambda need: -need.bytes)


def check_checkpoints(
    out: Path,
    needs: Sequence[Need],
    dense: int,
    saves: int,
    keep: int,
    there: Sequence[int],
    tell: Callable[[str], None],
    based: int = 0,
) -> int:
    """Will the checkpoints in `out` fit? Returns the bytes that one can take at most.

    `dense` bytes are in every checkpoint, `needs` only if every row that can be touched is. So:
    TrainingError where not even the dense parameters fit, which the first checkpoint would run into
    anyway, and a line to `tell` where all might not. A new one is written before the oldest of
    `keep` goes; `saves`: how many the run writes; `there`: bytes of those that are in `out`
    already; `based`: as many more may be what the oldest kept one is based on.
    """
    files = min(max(saves, len(there) + 1), keep + 1 + based)
    one = dense + sum(need.bytes for need in needs) + OVERHEAD
    least, most = (max(files * size - sum(there), size) for size in (dense, one))
    free = shutil.disk_usage(out).free
    if most <= free:
        return one
    name = (
        f"; the largest table, {needs[0].table}, up to {human(needs[0].bytes)} of each"
        if needs
        else ""
    )
    fewer = "keep fewer (checkpoint.keep=1), " if keep > 1 and files > 1 else ""
    help_ = (
        f"make room, {fewer}choose another --out, or make the tables smaller "
        "(tables.NAME.rows, model.embedding_dim)"
    )
    if least > free:
        raise TrainingError(
            f"checkpoints in {out} need at least {human(least)} and up to {human(most)} ({files} "
            f"of {human(one)}{name}), but "
            f"only {human(free)} are free there; {help_}"
        )
    tell(
        f"warning: checkpoints in {out} may need up to {human(most)} ({files} of "
        f"{human(one)}{name}) if every row that can be "
        f"touched is, but only {human(free)} are free there; {help_}"
    )
    return one


def check_rows(
    folder: Path, needs: Sequence[Need], ranks: int, budget: int, tell: Callable[[str], None]
) -> None:
    """Will the SSD files of a run fit? `needs`: of its tables, if every row that can be touched is;
    `budget`: bytes of each rank's file (0: no limit). How many rows it will be nobody knows, so
    this is a line to `tell`.
    """
    most = sum(need.bytes for need in needs)
    most = min(most, ranks * budget) if budget else most
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if most > free:
        tell(
            f"warning: rows on the SSD may need up to {human(most)} in {folder}, most of it for "
            f"{needs[0].table}, but only "
            f"{human(free)} are free there; make room, choose another memory.folder, or limit the "
            "files (memory.ssd)"
        )


def check_conversions(needs: Sequence[tuple[Path, int]], tell: Callable[[str], None]) -> None:
    """Will the converted copies of raw logs fit? `needs`: (copy, about how many bytes its
    conversion takes).

    The sizes are estimates: TrainingError where they are beyond what is free by more than they can
    be wrong, else a line.
    """
    disks: dict[int, list[tuple[Path, int]]] = {}
    for copy, size in needs:
        disks.setdefault(copy.parent.stat().st_dev, []).append((copy, size))
    for found in disks.values():
        need = sum(size for _, size in found)
        largest, size = max(found, key=lambda one: one[1])
        free = shutil.disk_usage(largest.parent).free
        if need <= free:
            continue
        text = (
            f"converting the raw data needs about {human(need)} in {largest.parent} "
            f"({human(size)} of it for {largest.name}), "
            f"but only {human(free)} are free there; make room, or convert elsewhere with `neocpu "
            "data convert` and give "
            "the result as data.train"
        )
        if need > UNSURE * free:
            raise TrainingError(text)
        tell(f"warning: {text}")
