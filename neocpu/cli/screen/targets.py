"""May a command replace a file? Only with --force, and never one that it reads.

So it is for all commands that write files which the command line names: `init`, `models`, `plan`,
`towers`, `simulate`, `data convert`, `data generate`, `data negatives`, `predict`, `export`,
`checkpoint merge`, `checkpoint arrays`, `checkpoint import`, `oracle export`, `oracle check`,
`calibrate`, `report`, `train --trace`. `tier compact` rewrites its file by definition, `oracle
export --golden` the repository's, `train`, `online`, `sweep`, `search` and `fit` look after their
own folders, and `calibrate` without --out measures its own file anew.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from neocpu.core.presets import log_path


class LogPath(click.Path):
    """A path of a log; the name of a small log that comes with neocpu is its path.

    A text, as it may be an address: `pathlib.Path` makes one slash of its two.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, as `click.Path` gives it."""
        return super().convert(log_path(os.fsdecode(value)), param, ctx)


Command = TypeVar("Command", bound=Callable[..., object])


def force_option(target: str) -> Callable[[Command], Command]:
    """The option --force of a command that writes the file `target`, its name in the help."""
    return click.option("--force", is_flag=True, help=f"Replace {target} if it exists.")


def check_target(target: Path, force: bool, sources: Iterable[str | Path] = ()) -> None:
    """Raise DataError if the target is a source; UsageError if it exists and nobody said --force.

    sources : all files that the command reads.
    """
    from neocpu.core.targets import refuse_sources

    refuse_sources(target, sources)
    if target.exists() and not force:
        raise click.UsageError(f"{target} exists; --force replaces it")
