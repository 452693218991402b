"""A job whose rank 1 does as it is told; for `test_standing_still.py`.

    python -m tests.standing_main DEED RECORD       (under mpiexec)

It takes no kernels: ranks watch each other, and exchange a number before every step.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from neocpu.core.errors import DataError
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.launch import get_comm, run_guarded
from neocpu.parallel.watch.watchdog import Watchdog
from neocpu.train.watch.results import write_json

STEPS = 8


def stopped(comm: Comm) -> None:
    """Stand still until somebody sends SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def woken(comm: Comm) -> None:
    """Stand still for some seconds."""
    subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def endless(comm: Comm) -> None:
    """Compute for ever."""
    with comm.span("lookup"):
        while True:
            pass


def busy(comm: Comm) -> None:
    """Do work that may take long."""
    comm.sent.pulse.begin("writing a checkpoint")
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        pass


def waiting(comm: Comm) -> None:
    """Wait for a disk that does not answer."""
    comm.sent.pulse.begin("writing a checkpoint")
    threading.Event().wait()


def killed(comm: Comm) -> None:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def failing(comm: Comm) -> None:
    """Fail with a message."""
    raise DataError("a file is damaged")


def main() -> int:
    """Take steps; rank 1 does its deed in the fifth."""
    deed, record = sys.argv[1:]
    # a job that nobody ends must not keep the tests
    limit = threading.Timer(40.0, os._exit, (3,))
    limit.daemon = True
    limit.start()
    comm = get_comm()
    if deed == "early" and comm.rank == 1:
        killed(comm)
    watch = Watchdog(comm, warn_after=0.8, timeout=0.0 if deed == "woken" else 2.0)
    if comm.rank == 0:
        write_json(Path(record), watch.record())
    comm.sent.pulse.checkpoint = "step-00000004.h5"
    for step in range(1, STEPS):
        comm.largest(step, "stop signal")
        comm.sent.pulse.begin_step(step, lengthy=False)
        if step == 5 and comm.rank == 1 and deed != "early":
            globals()[deed](comm)
        # the supervisor looks for the record now and then
        time.sleep(0.1)
    watch.stop()
    return 0


if __name__ == "__main__":
    sys.exit(run_guarded(main))
