"""`neocpu towers`: which features would form the towers of a model?"""

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neocpu.cli.screen.options import option_with_default, set_option
from neocpu.cli.screen.targets import check_target, force_option
from neocpu.core.paths import moved
from neocpu.core.records import toml_tree
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.launch import prepare_threads
from neocpu.plan.towers.towers import DISTANCES
from neocpu.train.config import config as configs

if TYPE_CHECKING:
    from neocpu.train.config.config import Config

path_type = click.Path(path_type=Path)


@click.command()
@click.argument("config", type=path_type)
@click.option("--towers", "count", type=click.IntRange(1), required=True, help="How many towers.")
@option_with_default(
    "--distance",
    type=click.Choice(DISTANCES),
    default=DISTANCES[0],
    help="Like features together, or unlike ones.",
)
@option_with_default(
    "--ratio", default=1.0, help="R: no tower has more than R F / T of the F features, rounded up."
)
@option_with_default(
    "--steps",
    type=click.IntRange(0),
    default=200,
    help="Of the probe, which is trained without towers.",
)
@option_with_default("--seed", default=0, help="Of embedding and clustering.")
@click.option("--out", type=path_type, help="Write CONFIG with these towers to a .toml file.")
@force_option("the file of --out")
@set_option("Override a key for the probe, any number of times.")
def towers(
    config: Path,
    count: int,
    distance: str,
    ratio: float,
    steps: int,
    seed: int,
    out: Path | None,
    force: bool,
    overrides: tuple[str, ...],
) -> None:
    """Group CONFIG's features into towers, by what a brief run learns of them.

    A model without towers is trained for some steps on the train data. Features whose pooled
    vectors point in like directions are near each other in the plane, where clusters of limited
    size become towers.
    """
    if out:
        check_target(out, force, [config])
    settings = configs.load(config, overrides)
    # TOML has a table once: a second [model.towers] would be an error of syntax.
    if out and "towers" in toml_tree(settings.text).get("model", {}):
        raise click.UsageError(f"{config} has towers already; --out adds towers to one without")
    groups = _groups(settings, count, distance, ratio, steps, seed)
    lines = ["[model.towers]", *(f"{name} = {json.dumps(keys)}" for name, keys in groups.items())]
    section = "\n".join(lines)
    click.echo(section)
    if out:
        # Paths in a config are relative to its file, which the copy is not beside.
        text = moved(settings.text, settings.folder, out.parent)
        out.write_text(f"{text.rstrip()}\n\n{section}\n", encoding="utf-8")
        click.echo(f"the config with these towers is in {out}", err=True)


def _groups(
    settings: "Config", count: int, distance: str, ratio: float, steps: int, seed: int
) -> dict[str, list[str]]:
    """Tower -> its keys."""
    prepare_threads(SingleComm())

    from neocpu.plan.towers.towers import partition, similarity
    from neocpu.train.before.tower_probe import learned_vectors

    with tempfile.TemporaryDirectory() as folder:
        tell = partial(click.echo, err=True)
        # A probe: its checkpoints and results are of no use to anybody.
        vectors = learned_vectors(settings, steps, Path(folder), tell)
    likeness = similarity(list(vectors.values()))
    keys = list(vectors)
    groups = partition(likeness, count, distance, ratio, seed)
    return {f"t{t}": [keys[i] for i in group] for t, group in enumerate(groups)}
