"""`neocpu predict`: what does a checkpoint's model predict for each sample of some data?"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from neocpu.cli.targets import check_target, force_option
from neocpu.errors import DataError
from neocpu.parallel.launch import exec_mpiexec, get_comm, launched, prepare_threads


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("data", nargs=-1, required=True, metavar="DATA...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="CSV file to write.",
)
@force_option("OUT")
@click.option("--unlabelled", is_flag=True, help="The raw log has no label column.")
@click.option(
    "--ranks",
    type=click.IntRange(1),
    help="Start so many MPI ranks on this machine (not under mpiexec).",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the run's config.",
)
def predict(
    checkpoint: Path,
    data: tuple[str, ...],
    out: Path,
    force: bool,
    unlabelled: bool,
    ranks: int | None,
    overrides: tuple[str, ...],
) -> None:
    """Write the predictions of a checkpoint's model for every row, in order.

    OUT has the columns row (from 0, over all DATA files) and prediction (click probability; for mse
    the number itself).
    """
    check_target(out, force, [checkpoint, *map(Path, data)])
    if ranks is not None and ranks > 1 and not launched():
        line = ["predict", str(checkpoint), *data, "--out", str(out), "--ranks", str(ranks)]
        for override in overrides:
            line += ["--set", override]
        if force:
            line.append("--force")
        if unlabelled:
            line.append("--unlabelled")
        exec_mpiexec(ranks, line)
    comm = get_comm(ranks)
    prepare_threads(comm)

    from neocpu.training.evaluate import predict as score
    from neocpu.training.results import silent
    from neocpu.training.scoring import restore

    world, loader = restore(
        checkpoint,
        comm,
        data,
        overrides=overrides,
        labelled=not unlabelled,
        need_labels=False,
        tell=partial(click.echo, err=True) if comm.rank == 0 else silent,
    )
    writer = ScoreWriter(out) if comm.rank == 0 else None
    try:
        count = score(world, loader.batches(0, 0), writer.write if writer else lambda part: None)
        if writer:
            writer.finish()
            click.echo(f"{out}: {count} predictions")
    finally:
        if writer:
            writer.discard()


class ScoreWriter:
    """A CSV file `row,prediction`, one line per sample, which gets its name once it is complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = path.with_name(f".{path.name}.partial")
        self._samples = 0
        try:
            self._file = open(self._partial, "w", encoding="ascii")  # noqa: SIM115
        except OSError as error:
            raise DataError(f"{path}: cannot be written: {error.strerror}") from error
        self._file.write("row,prediction\n")

    def write(self, predictions: NDArray[np.float32]) -> None:
        """Append predictions f32[n], each with the fewest digits that give the same fp32 back."""
        lines = [f"{sample},{value!s}\n" for sample, value in enumerate(predictions, self._samples)]
        self._samples += len(lines)
        with self._explained():
            self._file.write("".join(lines))

    def finish(self) -> None:
        """Give the file its name."""
        with self._explained():
            self._file.close()
            os.replace(self._partial, self.path)

    def discard(self) -> None:
        """Remove the file unless `finish` gave it its name."""
        with suppress(OSError):  # what could not be written is not wanted any more
            self._file.close()
        self._partial.unlink(missing_ok=True)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what a full disk raises into a DataError."""
        try:
            yield
        except OSError as error:
            raise DataError(f"{self.path}: cannot be written: {error.strerror}") from error
