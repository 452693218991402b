"""`neocpu checkpoint`: look into checkpoints, verify, compare, copy and import them."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from neocpu.cli.screen.options import set_option
from neocpu.cli.screen.targets import check_target, force_option

if TYPE_CHECKING:
    from neocpu.train.checkpoint.reading import CheckpointFile

FILE = click.Path(path_type=Path)


@click.group()
def checkpoint() -> None:
    """Show, verify, compare, merge, copy and import checkpoints; write out their arrays."""


@checkpoint.command()
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
def show(files: tuple[Path, ...]) -> None:
    """Print a card: what the file holds, and how it came to be."""
    from neocpu.train.checkpoint.reading import CheckpointFile

    for path in files:
        with CheckpointFile(path) as file:
            _card(file)


def _card(file: "CheckpointFile") -> None:
    """Print what one checkpoint holds."""
    from neocpu.train.advice.kinds import kinds_text

    attributes = file.attributes
    versions = file.json("versions")
    click.echo(f"{file.path}: checkpoint of step {file.step}, {file.path.stat().st_size:,} bytes")
    click.echo(f"  digest    {file.digest}")
    if file.links[1:]:
        names = " + ".join(link.path.name for link in file.links)
        click.echo(
            f"  files     {names}, {file.bytes:,} bytes together; this one holds what changed "
            "since the one before"
        )
    if file.quantized:
        click.echo(f"  rounded   weights of float32 tables, to {file.quantized} rows")
    click.echo(
        f"  written   {attributes.get('created')} by {attributes.get('ranks')} rank(s), neocpu "
        f"{versions.get('neocpu')}"
    )
    config = file.config()
    sparse = config.optimizer.sparse.name
    dense = config.optimizer.dense.name
    model = config.model
    click.echo(
        f"  training  seed {config.training.seed}, batch size {config.training.batch_size}, "
        f"{sparse}, dense {dense}"
    )
    interaction = " > ".join(model.interactions)
    click.echo(
        f"  model     bottom {list(model.bottom)}, {interaction}, top {list(model.top)}, "
        f"{model.loss}"
    )
    if config.kinds:
        click.echo(f"  kinds     {kinds_text(config)}")
    if model.towers:
        names = ", ".join(f"{name} ({len(keys)})" for name, keys in model.towers.items())
        click.echo(f"  towers    {names} features")
    if config.overrides:
        click.echo(f"  --set     {'  '.join(config.overrides)}")
    for number, tensor in enumerate(file.tensors):
        # From the index: no row is read for a card.
        count = int(file.index.rows[file.index.of(number)].sum())
        fields = ", ".join(f"{name}{list(shape) if shape else ''}" for name, shape in tensor.fields)
        rows = f"{count:,} of {tensor.rows:,} rows" if tensor.table else f"{tensor.rows:,} rows"
        click.echo(f"  {tensor.name.ljust(24)} {rows}: {fields}")


@checkpoint.command()
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
def digest(files: tuple[Path, ...]) -> None:
    """Compute the digest again from all rows in the file; a changed bit is an error."""
    from neocpu.train.checkpoint.reading import CheckpointFile

    for path in files:
        with CheckpointFile(path) as file:
            recomputed = file.recomputed_digest()
        click.echo(f"digest {recomputed}" if len(files) == 1 else f"{recomputed}  {path}")


@checkpoint.command()
@click.argument("first", type=FILE)
@click.argument("second", type=FILE)
def diff(first: Path, second: Path) -> int:
    """Name the first tensor, row and column in which two checkpoints differ; exit status 1 if they
    do. A run's folder stands for its best checkpoint, or its last.
    """
    from neocpu.train.checkpoint import differences
    from neocpu.train.checkpoint.folder import best_or_last
    from neocpu.train.checkpoint.reading import CheckpointFile
    from neocpu.train.checkpoint.tools import first_difference

    paths = (best_or_last(first), best_or_last(second))
    with CheckpointFile(paths[0]) as left, CheckpointFile(paths[1]) as right:
        # The digest is over all rows, so equal ones need no comparison.
        if left.digest == right.digest:
            click.echo(f"equal: digest {left.digest}")
            return 0
        for key, left_value, right_value in differences(left.header, right.header):
            click.echo(f"config {key}: {left_value} | {right_value}")
        if left.step != right.step:
            click.echo(f"step: {left.step} | {right.step}")
        difference = first_difference(left, right)
        click.echo(str(difference) if difference else "all tensors are equal")
    return 1


@checkpoint.command()
@click.argument("file", type=FILE)
@click.argument("target", type=FILE)
@force_option("TARGET")
def merge(file: Path, target: Path, force: bool) -> None:
    """Write FILE, and the files that it is based on, as TARGET: one whole checkpoint."""
    from neocpu.train.checkpoint.reading import CheckpointFile
    from neocpu.train.checkpoint.tools import merge as write

    check_target(target, force, [file])
    with CheckpointFile(file) as source:
        write(source, target)
        click.echo(
            f"{target}: {len(source.links)} files in one, {target.stat().st_size:,} bytes, digest "
            f"{source.digest}"
        )


@checkpoint.command()
@click.argument("source", type=FILE)
@click.argument("place")
def copy(source: Path, place: str) -> None:
    """Copy the checkpoint SOURCE, or the best or last one of a run's folder, to PLACE.

    PLACE is a folder, or an address as s3://models/a (fsspec). The files that it is based on come
    with it; those that are there are left, and a copy that was interrupted goes on.
    """
    from neocpu.core.errors import CheckpointError
    from neocpu.ingest.formats.files.remote import printed
    from neocpu.train.checkpoint.folder import best_or_last
    from neocpu.train.checkpoint.places import open_place
    from neocpu.train.checkpoint.reading import CheckpointFile

    with CheckpointFile(best_or_last(source)) as opened:
        files = sorted(link.path for link in opened.links)
    target = open_place(place)
    there = target.names()
    for file in files:  # what others are based on comes first
        size = file.stat().st_size
        if there.get(file.name, size) != size:
            raise CheckpointError(f"{target} has another {file.name}; name another place")
        if file.name not in there:
            target.put(file, printed(f"copying {file.name}", size))
        click.echo(f"{target}: {file.name}, {size:,} bytes")


@checkpoint.command()
@click.argument("file", type=FILE)
@click.argument("target", type=FILE)
@click.option(
    "--dense",
    is_flag=True,
    help="Whole tables, initial values filled in, instead of the learnt rows only.",
)
@force_option("TARGET")
def arrays(file: Path, target: Path, dense: bool, force: bool) -> None:
    """Write the arrays of FILE as TARGET, an .npz or .safetensors file.

    Tables come as rows (numbers of the learnt rows), weight and optimizer state; names are those in
    the checkpoint. `neocpu export` writes a model that other programs serve.
    """
    from neocpu.serve.exports.arrays import entries
    from neocpu.serve.exports.arrays import export as write
    from neocpu.train.checkpoint.reading import CheckpointFile

    check_target(target, force, [file])
    with CheckpointFile(file) as source:
        write(source, target, dense=dense)
        click.echo(
            f"{target}: {len(entries(source, dense))} arrays, {target.stat().st_size:,} bytes"
        )


checkpoint.add_command(
    click.Command(
        "export",
        callback=arrays.callback,
        params=arrays.params,
        hidden=True,
        deprecated="It is called `neocpu checkpoint arrays` now.",
    )
)


@checkpoint.command("import")
@click.argument("source", type=FILE)
@click.argument("config")
@click.argument("target", type=FILE)
@set_option("Override a key of CONFIG.")
@force_option("TARGET")
def import_(
    source: Path, config: str, target: Path, overrides: tuple[str, ...], force: bool
) -> None:
    """Write a DLRM of another program as TARGET, a checkpoint of step 0.

    SOURCE is the state_dict of facebookresearch/dlrm or of TorchRec's DLRM: what torch.save wrote,
    .safetensors or .npz. CONFIG says what model it is.
    """
    from neocpu.core.presets import model_path
    from neocpu.serve.state_dicts.imported import import_state_dict
    from neocpu.train.config.config import load

    check_target(target, force, [source, model_path(config)])
    written_digest = import_state_dict(source, load(config, overrides), target)
    click.echo(f"{target}: {target.stat().st_size:,} bytes, digest {written_digest}")
