"""Will the run fit? Memory and disk needed against what the machine has, before anything is allocated.

Tables are mapped lazily: a row costs memory once it is touched, and a run cannot touch more rows than it looks up. So the
need of a table is the smaller of its whole size and `lookups * max(row bytes, one page)`.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from neocpu.config import Config
from neocpu.embedding.specs import bags
from neocpu.errors import TrainingError
from neocpu.parallel.plan import Plan

PAGE = 4096
PROGRAM = 300 << 20  # bytes of Python, Numba and MPI


@dataclass(frozen=True)
class Need:
    """Bytes of one table on one rank."""

    table: str
    bytes: int


def available_memory() -> int:
    """Bytes that can be allocated without swapping: MemAvailable where the system tells, else the physical memory."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def table_needs(plan: Plan, rank: int, state_floats: tuple[int, int], lookups: Mapping[str, int]) -> list[Need]:
    """Bytes each table takes on `rank`, largest first.

    `state_floats` is (optimizer floats per element, optimizer floats per row); `lookups`: how many rows of each table the run
    can touch at most.
    """
    per_element, per_row = state_floats
    needs: dict[str, int] = {}
    for shard in plan.local(rank):
        rows, width = shard.rows[1] - shard.rows[0], shard.cols[1] - shard.cols[0]
        row_bytes = 4 * (width * (1 + per_element) + per_row)
        pages = max(row_bytes, PAGE * (1 + per_element + bool(per_row)))
        table = plan.tables[shard.table].name
        touched = lookups[table]
        needs[table] = needs.get(table, 0) + min(rows * row_bytes, touched * pages) + min(rows, touched * PAGE)
    return [Need(table, size) for table, size in sorted(needs.items(), key=lambda item: -item[1])]


def working_memory(config: Config, plan: Plan) -> int:
    """Bytes a rank needs beside tables: activations, gradients and messages of one batch, and the program itself."""
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


def check_memory(needs: Sequence[Need], host_ranks: int, other: int, available: int | None = None) -> int:
    """Bytes this rank needs; TrainingError when the ranks of this host together need more than there is.

    `other` is what a rank needs besides tables (activations, buffers, dense parameters), in bytes.
    """
    total = sum(need.bytes for need in needs) + other
    have = available_memory() if available is None else available
    if total * host_ranks > have:
        largest = f"the largest table, {needs[0].table}, takes {human(needs[0].bytes)} of it; " if needs else ""
        raise TrainingError(
            f"this run needs {human(total)} of memory per rank, {human(total * host_ranks)} for {host_ranks} rank(s) on this "
            f"host, but {human(have)} are available; {largest}use more hosts, a plan that shards it (parallel.plan=row_wise), "
            "fewer tables.NAME.rows, a smaller model.embedding_dim, or optimizer.sparse.name=exact_rowwise_adagrad"
        )
    return total


def check_disk(folder: Path, need: int) -> None:
    """TrainingError unless `folder`'s file system has `need` bytes free for one more checkpoint."""
    free = shutil.disk_usage(folder).free
    if need > free:
        raise TrainingError(
            f"a checkpoint in {folder} may need {human(need)}, but {human(free)} are free there; choose another --out, "
            "or keep fewer checkpoints (checkpoint.keep)"
        )
