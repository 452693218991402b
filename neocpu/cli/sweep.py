"""`neocpu sweep`: which values of some keys train the best model?"""

from pathlib import Path

import click

from neocpu.cli.screen.options import option_with_default, set_option
from neocpu.core.errors import ConfigError
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.launch import launched, prepare_threads
from neocpu.train.config import config as configs
from neocpu.train.sweep.space import grid_axis, points, random_axis
from neocpu.train.sweep.trials import SweepFolder, SweepTrial, as_lines


@click.command()
@click.argument("config")
@click.option(
    "--grid",
    multiple=True,
    metavar="KEY=A,B,...",
    help="Try all these values of a key, with all those of other keys.",
)
@click.option(
    "--random",
    multiple=True,
    metavar="KEY=RANGE",
    help="Draw a key from log(a,b), uniform(a,b), int(a,b) or a list a,b,c.",
)
@click.option("--trials", type=click.IntRange(0), default=0, help="Draws, for each grid point.")
@option_with_default("--seed", type=click.IntRange(0), default=1, help="Of the draws.")
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the trials [default: sweeps/NAME].",
)
@click.option("--ranks", type=click.IntRange(1), default=1, help="MPI ranks of each trial.")
@set_option("Override a key of the config in all trials.")
def sweep(
    config: str,
    grid: tuple[str, ...],
    random: tuple[str, ...],
    trials: int,
    seed: int,
    folder: Path | None,
    ranks: int,
    overrides: tuple[str, ...],
) -> None:
    """Train CONFIG with many values of some keys, one after the other, and rank them.

    By the valid split's logloss (mse), else by the test split's. Each trial is a run of its own in
    OUT/trial-NNNN. A sweep that was cut off goes on with the same command, and so does one with
    more values or trials: what is finished is not run again. All trials, best first:
    OUT/results.csv and results.json.

    \b
    neocpu sweep CONFIG --grid training.batch_size=128,512
    neocpu sweep CONFIG --random 'optimizer.dense.learning_rate=log(1e-3,1e-1)' --trials 10
    """
    if launched():
        raise ConfigError("a sweep starts its trials itself: run it alone, with --ranks N")
    chosen = points([*map(grid_axis, grid)], [*map(random_axis, random)], trials, seed)
    base = configs.load(config, overrides)
    # Trials on one rank run in this process, so its threads are set before Numba is imported.
    if ranks == 1:
        prepare_threads(SingleComm(), base.training.threads or None)
    folder = folder or Path("sweeps") / Path(config).stem
    # It refuses a folder of another sweep: its trials could not be ranked with these.
    all_trials = SweepFolder(folder, {"config": base.text, "--set": list(overrides)})
    trials_to_run = all_trials.of(chosen)
    all_trials.save()
    for number, trial in enumerate(trials_to_run, 1):
        if trial.ended:
            continue
        run(trial, config, overrides, folder, ranks)
        all_trials.save()
        click.echo(f"{number}/{len(trials_to_run)} {line_of(trial)}", err=True)
    for line in as_lines(trials_to_run):
        click.echo(line)
    click.echo(f"results in {folder / 'results.csv'}")


def run(
    trial: SweepTrial, config: str, overrides: tuple[str, ...], folder: Path, ranks: int
) -> None:
    """Run one trial."""
    from neocpu.train.sweep.runs import run_here, run_on_ranks

    if ranks > 1:
        run_on_ranks(trial, config, overrides, folder, ranks)
    else:
        run_here(trial, config, overrides, folder)


def line_of(trial: SweepTrial) -> str:
    """How a trial ended."""
    settings = " ".join(trial.overrides)
    if trial.error:
        return f"{trial.name} failed: {settings}: {trial.error}"
    return f"{trial.name} {settings}: {trial.split} loss {trial.loss:.5f}, {trial.seconds:.1f} s"
