"""Does anybody look at what this process prints to stderr?

terminal   it is one
relayed    a pipe to a launcher (mpiexec, mpirun, srun) that has one; so says the process that
           became the launcher, or the launcher's own stderr where it runs on this host
nobody     a file, a pipe to another program, nothing
"""

import os
import stat
import sys
from pathlib import Path

RELAYED = "NEOCPU_TERMINAL"  # set for ranks whose launcher has a terminal
LAUNCHERS = ("mpiexec", "mpirun", "hydra", "orterun", "orted", "prte", "srun", "slurmstepd")
MOST_ANCESTORS = 8


def audience() -> str:
    """Who looks at stderr: "terminal", "relayed" or "nobody"."""
    try:
        if sys.stderr.isatty():
            return "terminal"
        pipe = stat.S_ISFIFO(os.fstat(sys.stderr.fileno()).st_mode)
        socket = stat.S_ISSOCK(os.fstat(sys.stderr.fileno()).st_mode)
    except (OSError, ValueError):
        return "nobody"
    if not (pipe or socket):
        return "nobody"
    relayed = os.environ.get(RELAYED) == "1" or _launcher_has_terminal()
    return "relayed" if relayed else "nobody"


def tell_ranks() -> None:
    """Let ranks that this process is about to start know that it has a terminal."""
    if audience() == "terminal":
        os.environ[RELAYED] = "1"


def _launcher_has_terminal() -> bool:
    """Does a launcher above this process print to a terminal? Linux knows."""
    process = os.getppid()
    for _ in range(MOST_ANCESTORS):
        try:
            name, _, rest = (
                Path(f"/proc/{process}/stat").read_text().partition("(")[2].rpartition(")")
            )
            # mpiexec and srun relay stderr: only their own tells whether a person sees it.
            if name.startswith(LAUNCHERS):
                target = os.readlink(f"/proc/{process}/fd/2")
                if target.startswith(("/dev/pts/", "/dev/tty")):
                    return True
            process = int(rest.split()[1])
        except (OSError, ValueError, IndexError):
            return False
        if process <= 1:
            return False
    return False
