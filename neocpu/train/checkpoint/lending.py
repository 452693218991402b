"""How does a run go on where only the host of rank 0 has the checkpoints?

Other hosts are lent copies until the run has loaded them. They lie where the checkpoints do, on
disks of their own.
"""

import contextlib
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neocpu.core.errors import CheckpointError
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.host_files import apart, deliver
from neocpu.train.checkpoint.folder import FOLDER, checkpoints


@contextmanager
def lent(out: Path, comm: Comm) -> Iterator[None]:
    """Every rank sees rank 0's checkpoints of a folder of results during the block. Collective.

    Raises CheckpointError on all ranks where another host has checkpoints of its own there: the
    newest ones may be those.
    """
    names = json.loads(comm.on_first_rank(lambda: _names(out)))
    files = [Path(out) / FOLDER / name for name in names]
    own = [] if any(file.exists() for file in files) else checkpoints(out)
    foreign = None
    if own and comm.rank:
        foreign = CheckpointError(
            f"{own[-1].parent} on {socket.gethostname()} has checkpoints that rank 0 does not see; "
            "name the host first whose checkpoints are to be gone on with, and remove the others"
        )
    comm.agree(foreign)
    missing = [file for file in files if apart(comm, file)]
    borrowed = [file for file in missing if not file.exists()]
    try:
        for file in missing:
            deliver(comm, file, file)
        yield
    finally:
        for file in borrowed:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)


def _names(out: Path) -> bytes:
    return json.dumps([path.name for path in checkpoints(out)]).encode()
