"""How does a command start ranks, and stay to say how they ended? By being mpiexec's parent."""

import shlex
import sys
from pathlib import Path
from typing import NoReturn

import click

from neocpu.cli.screen.options import STARTED, Launch, command_line
from neocpu.cli.screen.terminal import tell_ranks


def outlive(
    launch: Launch, folder: Path, resume: bool, restarts: int = 0, min_ranks: int = 1
) -> NoReturn:
    """Run the command that was called on its ranks, to its end.

    folder : of results, which has to be known here: a restart goes on in it. resume : does the
    command go on already? restarts : after which the run is given up; so it is where the hosts
    that are left take fewer than `min_ranks`.
    """
    from neocpu.parallel.watch.host_pool import HostPool
    from neocpu.parallel.watch.supervisor import Ending, Stops, supervise
    from neocpu.train.run.survival import Survivor
    from neocpu.train.watch.results import RANKS

    tell_ranks()
    option = {"out": folder} if "out" in click.get_current_context().params else {"folder": folder}
    pool = HostPool(launch.named(), launch.ranks, min_ranks)
    stops = Stops()

    def start(go_on: bool) -> Ending:
        hosts = pool.placed()
        # ranks compare the number that they were given with their own
        count = {"ranks": sum(host.ranks for host in hosts)} if hosts and launch.ranks else {}
        options = {**option, **count, **STARTED, "resume": go_on}
        words = command_line(**options, restarts=None, min_ranks=None)
        return supervise(*launch.mpiexec(words, hosts), folder / RANKS, stops)

    again = shlex.join(["neocpu", *command_line(**option, resume=True)])
    survivor = Survivor(folder, start, again, lambda line: click.echo(line, err=True), pool, stops)
    sys.exit(survivor.run(resume, restarts))
