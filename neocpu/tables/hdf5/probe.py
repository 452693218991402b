"""Does HDF5 come to an end with a file? Tried in a process of its own, where the file has no seal.

HDF5 can hang on a damaged file, deaf to Ctrl-C, or ask for all memory, or crash. Files that we
write have a seal, so damage is known before HDF5 reads them; answers to the oracle and files of
older versions have none.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from neocpu.tables.hdf5 import walk

SECONDS = 120  # that the process may take, of which it may compute fewer (`walk.main`)
ENDED = (-signal.SIGXCPU, -signal.SIGKILL)  # statuses of a process that computed too long
# what an MPI told this process about itself is not for its child
_OF_LAUNCHERS = ("PMI_", "PMIX_", "OMPI_", "HYDRA_", "MPI_")


def environment() -> dict[str, str]:
    """The environment of this process, without what an MPI told it about itself."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_LAUNCHERS)}


def trouble(path: Path) -> str:
    """Why a file cannot be used; "" if HDF5 reads all that is in it but the elements of arrays."""
    try:
        done = subprocess.run(
            # -P: files beside walk.py must not stand in for modules of the same name
            [sys.executable, "-P", walk.__file__, str(path.resolve())],
            capture_output=True,
            check=False,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            env=environment(),
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "HDF5 does not come to an end with it"
    except OSError:
        return ""  # no process can be started; what follows is as careful as one process can be
    if done.returncode == 0:
        return ""
    if done.returncode in ENDED:
        return "HDF5 does not come to an end with it"
    try:
        _, reason = json.loads(done.stdout.splitlines()[-1])
    except (LookupError, ValueError):
        return f"HDF5 fails with it (exit status {done.returncode})"
    return str(reason)
