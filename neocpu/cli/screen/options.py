"""Which options do several commands have, and how do many options become one argument?

One place for each option, so that they mean the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from click.core import ParameterSource

from neocpu.cli.screen.terminal import tell_ranks
from neocpu.parallel.transport.launch import (
    exec_mpiexec,
    get_comm,
    launched,
    mpiexec_command,
    prepare_threads,
)

if TYPE_CHECKING:
    from neocpu.parallel.transport.comm import Comm
    from neocpu.parallel.transport.hosts import HostRanks, Named
    from neocpu.train.config.config import Config

Command = TypeVar("Command", bound=Callable[..., object])
# an option whose help says its default
option_with_default = partial(click.option, show_default=True)


def as_record(
    argument: str, record: type
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Hand the options that are named as a dataclass's fields over as one argument, the record.

    It stands next to the function, below the options.
    """
    names = [field.name for field in fields(record)]

    def decorate(command: Callable[..., object]) -> Callable[..., object]:
        # click reads the help from the docstring, which `wraps` hands on.
        @wraps(command)
        def packed(**values: object) -> object:
            chosen = {name: values.pop(name) for name in names}
            return command(**values, **{argument: record(**chosen)})

        return packed

    return decorate


@dataclass(frozen=True)
class HostOptions:
    """Hosts on which ranks are started, if any are named."""

    hosts: str | None = None
    hostfile: Path | None = None

    def named(self) -> "Sequence[Named]":
        """The hosts as they were named; none where none are. Raises ConfigError."""
        if self.hosts is None and self.hostfile is None:
            return ()
        if self.hosts is not None and self.hostfile is not None:
            raise click.UsageError("--hosts and --hostfile name hosts twice; give one of them")
        from neocpu.parallel.transport.hosts import hosts_of_file, listed_hosts

        return listed_hosts(self.hosts or "") if not self.hostfile else hosts_of_file(self.hostfile)

    def by_host(self, ranks: int | None) -> "Sequence[HostRanks]":
        """How many of so many ranks each host has; none where no hosts are named.

        ranks : None: as many as the hosts take. Raises ConfigError.
        """
        named = self.named()
        if not named:
            return ()
        from neocpu.parallel.transport.hosts import ranks_of_hosts

        return ranks_of_hosts(named, ranks)


# left out of the words of ranks: one rank alone cannot tell that it was started, and would start
# another one on these hosts, and so on without end
STARTED = {"hosts": None, "hostfile": None}


@dataclass(frozen=True)
class Launch(HostOptions):
    """The ranks that a command starts by itself, if any."""

    ranks: int | None = None

    @property
    def starts_ranks(self) -> bool:
        """Are there ranks to start, and is this process none of them?"""
        named = self.hosts is not None or self.hostfile is not None
        if named and launched():
            raise click.UsageError(
                "--hosts and --hostfile start ranks, and a launcher has started these already: "
                "leave them out, or name the hosts to the launcher"
            )
        return not launched() and (named or (self.ranks or 1) > 1)

    def mpiexec(
        self, words: Sequence[str], hosts: "Sequence[HostRanks]"
    ) -> tuple[list[str], dict[str, str]]:
        """The command, and its environment, that runs `neocpu WORDS` on these ranks.

        hosts : the ranks of each; none: they are this machine's.
        """
        ranks = self._count(hosts)
        command, environment = mpiexec_command(ranks, ["-m", "neocpu", *words], hosts)
        # one rank needs no launcher, and no MPI
        return command if hosts or ranks > 1 else command[3:], environment

    def start(self) -> None:
        """Become the launcher of the ranks; nothing where there is no need of one.

        mpiexec replaces this process, so that signals reach the ranks and its exit status is
        theirs.
        """
        if self.starts_ranks:
            hosts = self.by_host(self.ranks)
            tell_ranks()
            exec_mpiexec(self._count(hosts), command_line(**STARTED), hosts)

    def comm(self, config: "Config | None" = None) -> "Comm":
        """This process among its ranks, with the threads of its kernels. Collective.

        config : says how many threads there are, and how ranks reach each other; None: as many as
        the cores allow, and plainly. Nothing may import Numba before: it reads the number once.
        """
        if config is None:
            comm = get_comm(self.ranks)
            prepare_threads(comm)
            return comm
        parallel = config.parallel
        comm = get_comm(self.ranks, parallel.ranks_per_node or None, parallel.shared_windows)
        prepare_threads(comm, config.training.threads or None)
        return comm

    def _count(self, hosts: "Sequence[HostRanks]") -> int:
        """How many ranks there are, on these hosts or, where there are none, on this machine."""
        return sum(host.ranks for host in hosts) or self.ranks or 1


def hosts_options(command: Command) -> Command:
    """The options --hosts and --hostfile."""
    by_name = click.option(
        "--hosts",
        metavar="A:N,B:N",
        help="Start ranks on these hosts, by ssh: N on each, or --ranks divided among them.",
    )
    by_file = click.option(
        "--hostfile",
        type=click.Path(path_type=Path),
        help="The same from a file with lines `A:N` or `A slots=N`.",
    )
    return by_name(by_file(command))


def ranks_option(command: Callable[..., object]) -> Callable[..., object]:
    """The options of a command that may start ranks by itself, as the argument `launch`."""
    ranks = click.option(
        "--ranks",
        type=click.IntRange(1),
        help="Start so many MPI ranks (not under mpiexec), on this machine unless hosts are named.",
    )
    return ranks(hosts_options(as_record("launch", Launch)(command)))


def set_option(text: str = "Override a key, any number of times.") -> Callable[[Command], Command]:
    """The option --set of a command that reads a config, as the argument `overrides`."""
    return click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=text)


def command_line(**instead: object) -> list[str]:
    """The words after `neocpu` that started the running command, for the ranks that it starts.

    instead : options by name that get another value; None or False: which are left out.
    """
    context = click.get_current_context()
    words = [str(context.info_name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        value = context.params[name]
        omitted = context.get_parameter_source(name) in (ParameterSource.DEFAULT, None)
        if name in instead:
            value = instead[name]
            omitted = not value
        if omitted:
            continue
        if isinstance(parameter, click.Argument):
            words += map(str, value if parameter.nargs == -1 else [value])
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            words.append(parameter.opts[0])
        else:
            for each in value if parameter.multiple else [value]:
                # numbers that a callback took apart (`whole_numbers`) are one text again
                text = ",".join(map(str, each)) if isinstance(each, tuple) else str(each)
                words += [parameter.opts[0], text]
    return words


def whole_numbers(context: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    """The callback of an option of numbers from 1 on, as 5,10; () where it is empty."""
    try:
        numbers = tuple(map(int, text.split(","))) if text else ()
    except ValueError:
        numbers = (0,)
    if any(number < 1 for number in numbers):
        raise click.BadParameter(
            f"{text!r}: give whole numbers from 1 on, as 5,10", context, option
        )
    return numbers
