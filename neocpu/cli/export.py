"""`neocpu export`: a trained model as a file that other programs serve."""

from pathlib import Path

import click

from neocpu.cli.screen.options import option_with_default
from neocpu.cli.screen.targets import check_target, force_option

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("checkpoint", type=FILE)
@click.argument("target", type=FILE)
@click.option(
    "--vocabulary",
    type=FILE,
    help="Converted data set with the run's vocabulary, if it was moved.",
)
@option_with_default(
    "--unlearnt",
    type=click.Choice(("initial", "zero")),
    default="initial",
    help="What rows that were never trained give.",
)
@click.option("--fp32", is_flag=True, help="Tables of narrow formats as float32 (.safetensors).")
@option_with_default(
    "--part",
    type=click.Choice(("auto", "whole", "dense")),
    default="auto",
    help="ONNX: the whole model, or what follows the lookups; auto: whole where tables are small.",
)
@option_with_default(
    "--inputs",
    type=click.Choice(("codes", "rows")),
    default="codes",
    help="ONNX: what a feature's input holds.",
)
@click.option(
    "--names",
    type=click.Choice(("dlrm", "torchrec")),
    help="A state_dict (.safetensors) with the names of facebookresearch/dlrm or TorchRec.",
)
@force_option("TARGET")
def export(
    checkpoint: Path,
    target: Path,
    vocabulary: Path | None,
    unlearnt: str,
    fp32: bool,
    part: str,
    inputs: str,
    names: str | None,
    force: bool,
) -> None:
    """Write a checkpoint's model as a file that other programs serve.

    TARGET is a .safetensors file with weights, vocabularies, features and transforms, which
    neocpu/serve/exports/torch_model.py loads with torch and safetensors only; or an .onnx file.
    """
    from neocpu.core.errors import ConfigError
    from neocpu.serve.exports.card import data_facts
    from neocpu.serve.exports.onnx import export_onnx
    from neocpu.serve.exports.scorer import export_scorer
    from neocpu.serve.state_dicts.exported import export_state_dict
    from neocpu.train.before.preflight import human
    from neocpu.train.checkpoint.folder import checkpoint_of
    from neocpu.train.checkpoint.reading import CheckpointFile

    check_target(target, force, [checkpoint, *([vocabulary] if vocabulary else [])])
    checkpoint = checkpoint_of(checkpoint)
    # Told before the checkpoint is opened and verified, which may take long.
    if target.suffix not in (".safetensors", ".onnx"):
        raise ConfigError(f"{target}: a model ends in .safetensors or .onnx")
    if names and target.suffix != ".safetensors":
        raise ConfigError(f"{target}: a state_dict (--names) ends in .safetensors")
    with CheckpointFile(checkpoint) as file:
        if names:
            export_state_dict(file, target, names)
            click.echo(f"{target}: {target.stat().st_size:,} bytes, names of {names}")
            return
        facts = data_facts(file, vocabulary)
        if target.suffix == ".onnx":
            written, table_bytes = export_onnx(
                file, target, facts, part=part, inputs=inputs, unlearnt=unlearnt
            )
            click.echo(f"{target}: {written} model, {target.stat().st_size:,} bytes")
            # Nobody asked for half a model: say why the other half is missing.
            if (part, written) == ("auto", "dense"):
                click.echo(
                    f"its tables, {human(table_bytes)}, are not in it: --part whole writes them"
                    + (", --unlearnt zero the trained rows" if unlearnt == "initial" else "")
                )
            return
        tables = export_scorer(file, target, facts, unlearnt=unlearnt, narrow=not fp32)
    click.echo(f"{target}: {target.stat().st_size:,} bytes")
    for table in tables:
        rows = table.spec.rows if table.whole else table.learnt
        click.echo(
            f"  {table.spec.name.ljust(24)} {rows:,} of {table.spec.rows:,} rows, {table.form}"
        )
