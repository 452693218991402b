"""`neocpu fit`: a linear model of a log, or a perceptron, by the curvature of its loss."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neocpu.cli.screen.options import (
    Launch,
    as_record,
    option_with_default,
    ranks_option,
    set_option,
)
from neocpu.cli.screen.targets import LogPath
from neocpu.core.errors import ConfigError
from neocpu.parallel.transport.launch import held_signals
from neocpu.train.fit.keys import ACTIVATION_NAMES, LOSS_NAMES, METHODS, PAIRS, FitKeys

if TYPE_CHECKING:
    from neocpu.core.types import JsonObject

FILE = LogPath()


@dataclass(frozen=True)
class LogOptions:
    """What a log's columns and files are to a fit, as of `config_of`."""

    label: str = ""
    positive: tuple[str, ...] = ()
    weight: str = ""
    test: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choices:
    """What is fitted, as options say it."""

    method: str
    loss: str | None
    hidden: str
    activation: str
    l2: str
    intercepts: bool
    tolerance: float
    pairs: str
    start: int
    most: int
    patience: int
    seed: int

    def numbers(self) -> dict[str, object]:
        """As keys of `FitKeys`."""
        penalty: float | str = self.l2
        if self.l2 != "auto":
            try:
                penalty = float(self.l2)
            except ValueError as error:
                raise ConfigError(f"--l2 {self.l2}: a number above 0, or auto") from error
        try:
            hidden = tuple(int(units) for units in self.hidden.split(",") if self.hidden)
        except ValueError as error:
            raise ConfigError(f"--hidden {self.hidden}: units of each layer, as 32,16") from error
        return {**vars(self), "loss": self.loss or "", "l2": penalty, "hidden": hidden}


@dataclass(frozen=True)
class Crosses:
    """Which columns there are, as options say it."""

    cross: tuple[str, ...]
    quadratic: bool
    hashed: bool
    bits: int

    def columns(self) -> dict[str, object]:
        """As keys of `FitKeys`."""
        pairs = tuple(tuple(name.strip() for name in text.split(",")) for text in self.cross)
        for text, pair in zip(self.cross, pairs):
            if len(pair) != 2 or not all(pair):
                raise ConfigError(f"--cross {text}: two features, as C1,C2")
        return {**vars(self), "cross": pairs}


@click.command()
@click.argument("source", nargs=-1, required=True, metavar="CONFIG|DATA...", type=FILE)
@click.option("--label", default="", metavar="COLUMN", help="The column of DATA to predict.")
@click.option(
    "--positive",
    multiple=True,
    metavar="TEXT",
    help="A text of the label that is a click; all others are none.",
)
@click.option("--weight", default="", metavar="COLUMN", help="How often each row of DATA counts.")
@click.option("--test", multiple=True, type=FILE, help="Measure on it; DATA is not split.")
@option_with_default(
    "--method",
    type=click.Choice(METHODS),
    default="dance",
    help="DANCE, or L-BFGS by progressive batches.",
)
@click.option(
    "--loss",
    type=click.Choice(LOSS_NAMES),
    help="What is minimised.  [default: logistic for clicks and two classes, squares for numbers, "
    "softmax for classes]",
)
@click.option(
    "--hidden",
    default="",
    metavar="UNITS,...",
    help="Units of hidden layers, as 32,16.  [default: none, a linear model]",
)
@option_with_default(
    "--activation", type=click.Choice(ACTIVATION_NAMES), default="tanh", help="Of hidden units."
)
@option_with_default(
    "--l2",
    default="1",
    metavar="NUMBER|auto",
    help="Penalty on each weight against the sum of losses, scikit-learn's 1/C; auto: the best of "
    "1, 4, 16, 64 on the last tenth of the train samples (with --hidden, of four times these).",
)
@click.option("--intercepts", is_flag=True, help="Penalise the constant too.")
@click.option("--cross", multiple=True, metavar="A,B", help="Pairs of values of two features too.")
@click.option("--quadratic", is_flag=True, help="Pairs of values of all features of one value.")
@click.option("--hash", "hashed", is_flag=True, help="Hash all features, not only their pairs.")
@option_with_default(
    "--bits", type=click.IntRange(1, 30), default=20, help="2^BITS hashed columns."
)
@option_with_default(
    "--tolerance",
    type=float,
    default=1e-5,
    help="The gradient at the end, against that at the beginning; 0: what so many samples tell.",
)
@option_with_default(
    "--pairs",
    type=click.Choice(PAIRS),
    default="multi",
    help="Of L-BFGS: what changes of the gradient are taken on, the overlap of two samples or all "
    "of one.",
)
@click.option(
    "--start",
    type=click.IntRange(0),
    default=0,
    metavar="SAMPLES",
    help="First sample's size.  [default: 256, or all where columns are more than samples, with "
    "--hidden weights]",
)
@option_with_default("--most", type=click.IntRange(1), default=1000, help="Steps at most.")
@click.option(
    "--patience",
    type=click.IntRange(0),
    default=0,
    metavar="STEPS",
    help="End after so many steps on all samples in which the valid part gained nothing, and keep "
    "the best weights.  [default: go on to the tolerance]",
)
@option_with_default(
    "--seed", type=int, default=1, help="Of the order of samples, and of initial weights."
)
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of results  [default: fits/NAME].",
)
@click.option("--resume", is_flag=True, help="Go on from the folder's fit.h5.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@ranks_option
@set_option("Override a key of the config, or of the one that `neocpu init` would write for DATA.")
@as_record("log", LogOptions)
@as_record("choices", Choices)
@as_record("crosses", Crosses)
def fit(
    source: tuple[str, ...],
    log: LogOptions,
    choices: Choices,
    crosses: Crosses,
    folder: Path | None,
    resume: bool,
    as_json: bool,
    launch: Launch,
    overrides: tuple[str, ...],
) -> None:
    """Fit a linear model, or a perceptron, to a log by second-order steps.

    CONFIG: a model's, whose features, labels and splits count. DATA: a log, as of `neocpu init`:
    CSV, Parquet, libsvm, Criteo. Alone, with --ranks, or under mpiexec: the same digest
    (docs/fit.md).

    \b
    neocpu fit clicks.csv --quadratic --l2 auto
    neocpu fit clicks.csv --hidden 32,16 --l2 auto --tolerance 1e-3
    neocpu fit a1a.txt --set data.split=[] --ranks 4
    """
    keys = FitKeys(**{**choices.numbers(), **crosses.columns()})  # type: ignore[arg-type]
    launch.start()
    with held_signals():
        comm = launch.comm()
        from neocpu.train.run.fitting import FitRun, config_of, folder_of

        config = config_of(source, overrides=overrides, comm=comm, loss=keys.loss, **vars(log))
        folder = folder or folder_of(source[0])
        tell = partial(click.echo, err=True)
        summary = FitRun(config, keys, comm, folder, resume=resume, tell=tell).run()
        if comm.rank:
            return
        if as_json:
            import json

            click.echo(json.dumps(summary))
        else:
            print_fit(summary, folder)


def print_fit(summary: "JsonObject", folder: Path) -> None:
    """Metrics of each split, what it took, and the digest as the last line."""
    for split, metrics in summary["metrics"].items():
        numbers = [
            f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:.5f}"
            for name, value in metrics.items()
            if value is not None
        ]
        click.echo(f"{split:5} {'  '.join(numbers)}")
    if last := summary["last"]:
        click.echo(
            f"objective {last['objective']:.9f}, gradient {last['gradient']:.2e} after "
            f"{summary['steps']} steps and {last['passes']:.1f} passes, {summary['seconds']:.1f} s"
        )
    click.echo(f"results in {folder}")
    click.echo(f"digest {summary['digest']}")
