"""How do files get from rank 0 to hosts that do not see its disk, and back?

A run on one file system never sends a file. Elsewhere one rank of each host that lacks a file of
rank 0's takes a copy in for all ranks of its host; and what ranks wrote of a file at places of
their own, on disks of their own, rank 0 puts into its file.
"""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from neocpu.core.errors import EnvironmentProblem
from neocpu.core.types import Bytes
from neocpu.parallel.transport.comm import Comm

PIECE = 4 << 20  # bytes that are sent at a time
Extent = tuple[int, int]  # the first byte of a file, and the one behind the last


def apart(comm: Comm, path: Path) -> bool:
    """Does any rank not see this file of rank 0's? Collective."""
    return bool(comm.largest(int(not path.exists())))


def deliver(comm: Comm, path: Path, target: Path) -> None:
    """Bring rank 0's file `path` to `target` on every host whose ranks do not see `target`.

    target : the same on all ranks, or on disks of their own. Collective.

    Raises EnvironmentProblem on all ranks where it cannot be written.
    """
    error: EnvironmentProblem | None = None
    takers = _first_of_hosts(comm, not target.exists())
    taking = comm.rank in takers
    partial = target.with_name(f".{target.name}.{comm.rank}")
    try:
        if taking:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial.touch()
    except OSError as problem:
        error = _cannot(partial, problem)
    comm.agree(error)
    try:
        for piece in _sent_by_first(comm, path, takers):
            if taking and error is None:
                with open(partial, "ab") as file:
                    file.write(piece)
        if taking:
            # ranks of other hosts that share the disk may do the same at this moment
            os.replace(partial, target)
    except OSError as problem:
        error = _cannot(target, problem)
    comm.agree(error)


def on_every_host(
    comm: Comm, files: Mapping[str, Sequence[str]], folder: Path
) -> dict[str, list[str]]:
    """Where this rank reads files of rank 0's, by name: copies in `folder` where it does not see
    them. Collective.
    """
    return {name: [_on_host(comm, Path(path), folder) for path in files[name]] for name in files}


def _on_host(comm: Comm, path: Path, folder: Path) -> str:
    if not apart(comm, path):
        return str(path)
    copy = path if path.exists() else folder / path.name
    deliver(comm, path, copy)
    return str(copy)


def _first_of_hosts(comm: Comm, wanting: bool) -> list[int]:
    """The lowest rank of each host among those that want a file."""
    firsts: dict[str, int] = {}
    for rank, (host, wants) in enumerate(comm.allgather([socket.gethostname(), wanting])):
        if wants:
            firsts.setdefault(host, rank)
    return list(firsts.values())


def _sent_by_first(comm: Comm, path: Path, takers: list[int]) -> Iterator[bytes]:
    """Pieces of rank 0's file on the ranks that take it; nothing on others, which take part."""
    if not takers:
        return
    size = comm.largest(path.stat().st_size if comm.rank == 0 else 0)
    for first in range(0, size, PIECE):
        count = min(PIECE, size - first)
        sends = np.zeros(comm.size, np.int64)
        receives = np.zeros(comm.size, np.int64)
        out = np.zeros(0, np.uint8)
        if comm.rank == 0:
            sends[takers] = count
            with open(path, "rb") as file:
                file.seek(first)
                out = np.tile(np.frombuffer(file.read(count), np.uint8), len(takers))
        if comm.rank in takers:
            receives[0] = count
        into = np.empty(int(receives.sum()), np.uint8)
        comm.alltoallv(out, sends, into, receives)
        yield into.tobytes()


def collect(comm: Comm, path: Path, extents: Mapping[str, Extent]) -> None:
    """Put what ranks wrote of a file on their own disks into that of rank 0. Collective.

    extents : that this rank wrote; none on ranks that see rank 0's file.

    Raises OSError on rank 0, once all have sent.
    """
    error: OSError | None = None
    pieces = _pieces(path, extents)
    while True:
        first, data = next(pieces, (0, b""))
        coming = comm.allgather([first, len(data)])
        if not any(size for _, size in coming):
            break
        sends = np.zeros(comm.size, np.int64)
        sends[0] = len(data)
        receives = np.zeros(comm.size, np.int64)
        if comm.rank == 0:
            receives[:] = [size for _, size in coming]
        into = np.empty(int(receives.sum()), np.uint8)
        comm.alltoallv(np.frombuffer(data, np.uint8), sends, into, receives)
        if comm.rank == 0 and error is None:
            try:
                _put(path, into, coming)
            except OSError as problem:
                error = problem
    if error is not None:
        raise error


def _pieces(path: Path, extents: Mapping[str, Extent]) -> Iterator[tuple[int, bytes]]:
    """(first byte, bytes) of what this rank wrote of a file."""
    if not extents:
        return
    with open(path, "rb") as file:
        for first, end in extents.values():
            for start in range(first, end, PIECE):
                file.seek(start)
                yield start, file.read(min(PIECE, end - start))


def _put(path: Path, data: Bytes, coming: Sequence[tuple[int, int]]) -> None:
    """Write what has come from each rank: (first byte, bytes) of it."""
    end = 0
    with open(path, "r+b") as file:
        for first, size in coming:
            file.seek(first)
            file.write(data[end : end + size].tobytes())
            end += size


def _cannot(path: Path, problem: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{path} on {socket.gethostname()} cannot be written: {problem.strerror}; hosts that do "
        "not see the disk of rank 0 keep a copy there"
    )
