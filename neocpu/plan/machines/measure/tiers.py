"""How fast do rows move between memories here? Through a software cache, and a file as SSD."""

from pathlib import Path

import numpy as np

from neocpu.parallel.transport.comm import Comm
from neocpu.plan.machines.machine import MoveRates
from neocpu.plan.machines.measure.timing import BATCHES, Effort, Stopwatch, rates


def measure_ddr(watch: Stopwatch, effort: Effort, ranks: int) -> list[MoveRates]:
    """Curves of rows that move into a software cache over memory, all missing, and back."""
    return _curves("ddr", effort, ranks, [_ddr_seconds(watch, effort, s) for s in effort.records])


def _ddr_seconds(watch: Stopwatch, effort: Effort, size: int) -> dict[str, float]:
    """Seconds to move a batch of records of `size` bytes."""
    from neocpu.tables.tiers.homes import Memory
    from neocpu.tables.tiers.levels import Level, Slots
    from neocpu.tables.tiers.placement import WAYS, sets_for

    count = effort.record_count
    # Sets are filled unevenly; a cache of twice the rows has a line for nearly all of them.
    lines = sets_for(2 * count, 1.0) * WAYS
    rows = max(BATCHES * lines, effort.home_bytes // size)
    # Memory that was never written would be read from one page of zeros.
    slots = Slots([np.ones((lines + rows) * size, np.uint8)], lines + rows)
    memory = Memory("ddr", slots, lines, rows, lambda new, to: None)
    memory.place(np.arange(rows))
    level = Level("hbm", slots, 0, lines, "lru", memory)
    # More rows than lines take turns, so that each was evicted before it returns.
    batches = np.sort(
        np.random.default_rng(size).permutation(rows)[: rows // count * count].reshape(-1, count)
    )
    lookups = np.ones(count, np.int64)
    cache_slots = np.arange(count)
    turn = 0

    def read() -> None:
        nonlocal turn
        turn += 1
        moves = level.cache.prefetch(batches[turn % len(batches)], lookups)
        level.move(moves)
        level.cache.release(moves.lines, changed=False)

    def write() -> None:
        nonlocal turn
        turn += 1
        memory.write(batches[turn % len(batches)], cache_slots)

    return {"read": watch.least(read), "write": watch.least(write)}


def measure_ssd(
    watch: Stopwatch, effort: Effort, comm: Comm, folder: Path
) -> tuple[list[MoveRates], float]:
    """(curves of records of an SSD file, seconds to read a single one).

    Reads find nothing in the page cache, as far as the system can be told to drop it; writes go to
    the page cache, as those of a run do.
    """
    measured = [
        _ssd_seconds(watch, effort, folder / f"ssd-{comm.size}-{comm.rank}-{size}.h5", size)
        for size in effort.records
    ]
    return _curves("ssd", effort, comm.size, measured), measured[0]["one"]


def _ssd_seconds(watch: Stopwatch, effort: Effort, path: Path, size: int) -> dict[str, float]:
    """Seconds to move a batch of records of `size` bytes, and to read one."""
    from neocpu.tables.storage.extents import RowTable
    from neocpu.tables.storage.row_file import RowFile

    count = effort.record_count
    height = max(BATCHES, effort.home_bytes // size // count) * count
    rng = np.random.default_rng(size)
    batches = rng.permutation(height).reshape(-1, count)
    records = rng.integers(0, 256, (count, size), np.uint8)
    out = np.empty_like(records)
    turn = 0
    with RowFile.create(path, [RowTable("t", height, size)]) as file:
        for rows in batches:
            file.write(0, rows, records)
        file.commit(1)

        def write() -> None:
            nonlocal turn
            turn += 1
            file.write(0, batches[turn % len(batches)], records)

        def read() -> None:
            nonlocal turn
            turn += 1
            file.read(0, batches[turn % len(batches)], out)

        def read_one() -> None:
            file.read(0, batches[0, :1], out[:1])

        seconds = {"write": watch.least(write)}
        # committed, so that the pages are on the disk and the system can be told to drop them
        file.commit(2)
        seconds["read"] = watch.least(read, file.drop_pages)
        seconds["one"] = watch.least(read_one, file.drop_pages)
    path.unlink()
    return seconds


def _curves(
    memory: str, effort: Effort, ranks: int, measured: list[dict[str, float]]
) -> list[MoveRates]:
    """The curves of reading and of writing; measured : seconds for each size of a record."""
    sizes = tuple(float(size) for size in effort.records)
    work = [effort.record_count * size for size in sizes]
    return [
        MoveRates(memory, move, ranks, sizes, rates(work, [each[move] for each in measured]))
        for move in ("read", "write")
    ]
