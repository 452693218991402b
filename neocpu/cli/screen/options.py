"""Which options do several commands have? One place for each, so that they mean the same."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def ranks_option(command: Command) -> Command:
    """The option --ranks of a command that may start ranks by itself."""
    return click.option(
        "--ranks",
        type=click.IntRange(1),
        help="Start so many MPI ranks on this machine (not under mpiexec).",
    )(command)


def set_option(text: str = "Override a key, any number of times.") -> Callable[[Command], Command]:
    """The option --set of a command that reads a config, as the argument `overrides`."""
    return click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=text)
