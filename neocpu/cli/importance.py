"""`neocpu importance`: which columns does a model need?"""

import json
from pathlib import Path

import click

from neocpu.cli.screen.options import Launch, option_with_default, ranks_option, set_option
from neocpu.core.presets import log_path


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", nargs=-1, required=True, metavar="DATA...")
@option_with_default(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    help="Deals of each column, whose mean and spread are told.",
)
@option_with_default("--seed", type=click.IntRange(0), default=1, help="Of the deals.")
@option_with_default(
    "--rows",
    type=click.IntRange(1),
    default=20_000,
    help="Rows of DATA that are measured, at most, spread evenly over it.",
)
@ranks_option
@set_option("Override a key of the run's config.")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def importance(
    model: Path,
    data: tuple[str, ...],
    repeats: int,
    seed: int,
    rows: int,
    launch: Launch,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show how much worse a model gets when a column's values are dealt out anew.

    MODEL: a run's folder or a checkpoint. DATA: labelled logs. One line for each column, the most
    important first. In a run's folder they are kept for `neocpu report`.
    """
    data = tuple(map(log_path, data))
    launch.start()
    comm = launch.comm()
    from neocpu.serve.report.runs import IMPORTANCES
    from neocpu.serve.scoring.model import Model
    from neocpu.serve.scoring.scorer import LocalScorer
    from neocpu.train.checkpoint.folder import checkpoint_of
    from neocpu.train.watch.results import write_json

    opened = Model(checkpoint_of(model, comm), overrides)
    scorer = LocalScorer(opened.path, opened.config, opened.values, comm)
    result = [each._asdict() for each in scorer.importances(data, repeats, seed, rows)]
    if comm.rank:
        return
    if (model / "run.json").is_file():
        write_json(model / IMPORTANCES, {"columns": result})
    if as_json:
        click.echo(json.dumps(result))
        return
    width = max(len("column"), *(len(each["column"]) for each in result))
    loss = "mse" if opened.config.model.loss == "mse" else "logloss"
    click.echo(f"{'column'.ljust(width)}  {f'{loss} +':>20}  {'auc -':>20}")
    for each in result:
        numbers = (
            show(each["loss"], each["loss_spread"]),
            show(each["auc"], each["auc_spread"]),
        )
        click.echo(f"{each['column'].ljust(width)}  {numbers[0]:>20}  {numbers[1]:>20}")


def show(value: float | None, spread: float | None) -> str:
    """A mean with its spread."""
    return "" if value is None else f"{value:.5f} ± {spread or 0:.5f}"
