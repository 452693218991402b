"""Which options do several commands have, and how do many options become one argument?

One place for each option, so that they mean the same.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import TypeVar

import click
from click.core import ParameterSource

Command = TypeVar("Command", bound=Callable[..., object])


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
    if min(numbers, default=1) < 1:
        raise click.BadParameter(
            f"{text!r}: give whole numbers from 1 on, as 5,10", context, option
        )
    return numbers
