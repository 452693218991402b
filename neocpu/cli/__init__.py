"""Which commands are there? One file each, imported only when it is called, so that help is quick.

`main` is what `neocpu` and `python -m neocpu` run. An error that a user can mend is one line on
stderr and an exit status of its own (2: the command or the config is wrong); under MPI it is
printed once and ends all ranks.

From `neocpu train` to a training step: `cli/train.py`, `train/run/trainer.py` (the story of a run),
`train/step/world.py` (its objects), `train/step/step.py` (the step).
"""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module

import click

from neocpu import __version__
from neocpu.core.errors import ConfigError, NeocpuError, Stopped
from neocpu.parallel.transport.environment import check_variables
from neocpu.parallel.transport.launch import let_finish, run_guarded

# heading -> name -> its line in `neocpu --help`, which is that of its function's docstring
SECTIONS = {
    "Start": {
        "init": "Look at a log (DATA...) and write a commented config that trains on it.",
        "models": "List the models that come with neocpu; print or copy the config of one.",
        "doctor": "Check MPI, threads, CPU, memory and folders; say what to mend.",
    },
    "Train": {
        "train": "Train a model as CONFIG says, and print the digest of what was learnt.",
        "compile": "Compile the kernels that CONFIG needs, so that runs start at once.",
        "online": "Measure the model on each FILE, then train on it, in the order given.",
        "sweep": "Train CONFIG with many values of some keys, one after the other, and rank them.",
        "together": "Train several models at once, which take turns and share memory.",
        "search": "Choose widths, columns and rows of CONFIG's model as its section [search] says.",
        "fit": "Fit a linear model, or a perceptron, to a log by second-order steps.",
    },
    "Use": {
        "predict": "Write the predictions of a model for every row, in order.",
        "eval": "Measure a model on labelled data.",
        "importance": "Show how much worse a model gets when a column's values are dealt out anew.",
        "report": "Show runs as one HTML page: config, curves, calibration, plan, traffic, memory.",
        "export": "Write a checkpoint's model as a file that other programs serve.",
    },
    "Files": {
        "data": "Convert, generate and look at click logs.",
        "checkpoint": (
            "Show, verify, compare, merge, copy and import checkpoints; write out their arrays."
        ),
        "tier": "Show, verify and compact the files of rows that play the SSD.",
    },
    "Plan": {
        "plan": "Show where CONFIG's tables would be, and how many bytes they take.",
        "towers": "Group CONFIG's features into towers, by what a brief run learns of them.",
        "simulate": "Say how fast CONFIG would train on a machine, and what limits it.",
        "calibrate": "Measure what this machine achieves, and write it to a machine file.",
    },
    "Learn and check": {
        "course": (
            "Write such a system's parts yourself; see what is wrong, and why (docs/learn.md)."
        ),
        "oracle": (
            "Export cases that break embedding kernels; check answers, and explain what is wrong."
        ),
    },
}
COMMANDS = {name: line for section in SECTIONS.values() for name, line in section.items()}
# module:function of commands, where it is not NAME:NAME of this folder
PLACES = {
    "together": "neocpu.cli.together.command:together",
    "eval": "neocpu.cli.evaluate:evaluate",
    "data": "neocpu.cli.logs.data:data",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a command; None if there is none of this name."""
        if name not in COMMANDS:
            return None
        module, _, attribute = PLACES.get(name, f"neocpu.cli.{name}:{name}").partition(":")
        return getattr(import_module(module), attribute)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command. Raises NeocpuError with the status of a signal that stopped it."""
        try:
            return super().invoke(ctx)
        except Stopped as stopped:
            # click makes an Abort, and an empty line, of what Ctrl-C ended
            error = NeocpuError(f"{stopped}{stopped.hint}")
            error.exit_status = stopped.exit_status
            raise error from stopped

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section, without importing them."""
        width = max(map(len, COMMANDS))
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                # one column for the lines of all sections
                rows = [(name.ljust(width), line) for name, line in commands.items()]
                formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="neocpu")
def cli() -> None:
    """Train deep learning recommendation models, to the same bits on any number of ranks."""
    check_variables()


def check_words(words: Iterable[str]) -> None:
    """Raise ConfigError for one that is not UTF-8, as configs and results are that may name it."""
    for word in words:
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise ConfigError(
                f"{word!a} is not UTF-8 text, which names of files have to be here; rename it, "
                "or set PYTHONUTF8=1 where the locale has another encoding"
            )


def run(arguments: list[str] | None = None) -> int:
    """Exit status of one command. Raises ConfigError for a command line that is wrong."""
    words = sys.argv[1:] if arguments is None else arguments
    # other commands on data only open and show files
    if words[:1] != ["data"] or words[1:2] == ["negatives"]:
        check_words(words)
        with suppress(FileNotFoundError):  # a folder that is gone, which whoever needs it tells
            check_words([os.getcwd()])
    try:
        return cli.main(arguments, prog_name="neocpu", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        command = "neocpu"
        if isinstance(error, click.UsageError) and error.ctx:
            command = error.ctx.command_path
        raise ConfigError(f"{error.format_message()} (see `{command} --help`)") from error
    except click.Abort as error:
        # click makes an Abort of every EOFError, as if the user had ended a prompt.
        if isinstance(error.__cause__, EOFError):
            raise error.__cause__ from None  # of a damaged file: nothing here asks questions
        raise KeyboardInterrupt from error


def main() -> int:
    """Entry point of `neocpu`."""
    open_streams()
    status = run_guarded(run)
    if not status or status > 128:  # done, or stopped by a signal already
        let_finish()
    return status


def open_streams() -> None:
    """Open stdin, stdout and stderr that whoever started this process had closed, on nothing.

    The next file that is opened, maybe a checkpoint, would get the number of a closed stderr, and
    with it what C libraries print there.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
