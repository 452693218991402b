"""Runs test bodies on one MPI rank: `mpiexec -n W python -m mpi4py spmd_main.py FOLDER CASE...`;
see `spmd.py`.
"""

import gc
import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

if __name__ == "__main__":
    gc.disable()  # what is imported stays: looking through it took a tenth of a rank's start
# bodies import test files, and those import `tests.x`
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import draws
from mpi4py import MPI
from spmd import Body, discover

from neocpu.parallel.transport import mpi
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.mpi import MpiComm

# Two ranks of a core sleep while they wait: other tests run beside them. Fewer wait as MPI does, so
# bodies have both ways.
mpi.CROWD = 2


def run(body: Body, comm: Comm, folder: Path) -> tuple[str, str]:
    """(state, text) of one body on this rank."""
    try:
        body.run(comm, folder)
    except BaseException as error:
        if type(error).__name__ == "Skipped":
            return "skipped", str(error)
        return "failed", traceback.format_exc()
    return "ok", ""


if __name__ == "__main__":
    warnings.simplefilter("error")
    place = Path(sys.argv[1])
    draws.load()
    bodies = discover()
    gc.freeze()
    gc.enable()
    world = MpiComm()
    with open(place / f"rank{world.rank}.jsonl", "w", buffering=1) as events:
        for number, case in enumerate(sys.argv[2:]):
            name, _, ranks = case.rpartition("-")
            folder = place / f"body{number}"
            folder.mkdir(exist_ok=True)
            world.quiet_barrier()  # ranks that have no part in a body sleep
            takes_part = world.rank < int(ranks)
            part = MPI.COMM_WORLD.Split(0 if takes_part else MPI.UNDEFINED, world.rank)
            if not takes_part:
                continue
            state, text = run(bodies[name], MpiComm(part), folder)
            events.write(json.dumps([name, int(ranks), state, text]) + "\n")
            if state == "failed":
                events.flush()
                os.fsync(events.fileno())
                time.sleep(0.5)  # ranks that fail together shall all be heard
                world.abort(1)
