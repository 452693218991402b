"""`neocpu models`: which models come with the package, and what is in them?"""

from pathlib import Path

import click

from neocpu.cli.screen.targets import check_target, force_option
from neocpu.core import presets
from neocpu.core.errors import told_as
from neocpu.core.paths import moved
from neocpu.core.units import count_text
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config


@click.command()
@click.argument("name", required=False)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the model to a file."
)
@force_option("the file of --out")
def models(name: str | None, out: Path | None, force: bool) -> None:
    """List the models that come with neocpu; print or copy the config of one.

    Commands that take a CONFIG take a NAME of this list as well.

    \b
    neocpu models                                list names, sizes, logs
    neocpu models criteo-kaggle                  print the config
    neocpu models criteo-kaggle --out my.toml    copy it, to be changed
    neocpu train criteo-kaggle --set data.train=train.txt.gz
    """
    if name is None:
        if out:
            raise click.UsageError("--out needs the NAME of a model")
        for line in listing():
            click.echo(line)
        return
    source = presets.model_path(name)
    if out:
        check_target(out, force, [source])
    config = configs.load(source)
    if not out:
        click.echo(config.text, nl=False)
        return
    with told_as(click.UsageError, out):
        # Paths in a config are relative to its file.
        out.write_text(moved(config.text, config.folder, out.parent), encoding="utf-8")
    click.echo(f"the model {name} is in {out}; paths in it are relative to that file", err=True)


def listing() -> list[str]:
    """Names, sizes, logs and titles of all models as a table, and the logs that come along."""
    names = presets.names(presets.MODELS)
    configs_of = {name: configs.load(presets.model_path(name)) for name in names}
    lines = [f"{'model':14}{'tables':>7}{'rows':>8}{'weights':>9}  {'log':7}what it is"]
    lines += [line(name, config) for name, config in configs_of.items()]
    logs = ", ".join(presets.log_names())
    lines += ["", f"logs by name, for --set data.train=NAME: {logs}"]
    return lines


def line(name: str, config: Config) -> str:
    """A model of the list."""
    rows = sum(table.rows for table in config.tables)
    numbers = sum(table.rows * table.dim for table in config.tables)
    return (
        f"{name:14}{len(config.tables):>7,}{count_text(rows):>8}{count_text(numbers):>9}"
        f"  {config.data.format:7}{title(config.text)}"
    )


def title(text: str) -> str:
    """What a config is: the comment in its first line."""
    first = text.partition("\n")[0]
    return first.removeprefix("#").strip().rstrip(".") if first.startswith("#") else ""
