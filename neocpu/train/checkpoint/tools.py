"""In what do two checkpoints differ, and how do several files become one?

Block by block, in bounded memory.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import numpy as np

from neocpu.core.errors import CheckpointError
from neocpu.core.targets import whole_file
from neocpu.core.types import Ints
from neocpu.train.checkpoint.folder import bases_in
from neocpu.train.checkpoint.layout import TEXTS, Part, create, lay_out, seal
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.checkpoint.snapshot import Share, write_share
from neocpu.train.state.blocks import BLOCK, Blocks, Tensor, Values
from neocpu.train.state.initial import initial_rows

# attributes that a merged file does not take over
OF_ONE_FILE = ("format", "version", "complete", "sealed", "base", "base_step", "base_digest")


@dataclass(frozen=True)
class Difference:
    """The first place in which two states differ, and their values there.

    column : None for a field with one number per row.
    """

    tensor: str
    row: int
    field: str
    column: int | None
    values: tuple[np.float32, np.float32]

    def __str__(self) -> str:
        where = "" if self.column is None else f" column {self.column}"
        first, second = (f"{value!s} ({value.view(np.uint32):#010x})" for value in self.values)
        return f"{self.tensor} row {self.row}, {self.field}{where}: {first} | {second}"


class FilledTensor:
    """One tensor of a file, in which rows that the file lacks have their initial values.

    hashes : of the blocks in the file, by number.
    """

    def __init__(self, file: CheckpointFile, number: int) -> None:
        self._config = file.config()
        name = file.tensors[number].name
        specs = {f"tables/{spec.name}": spec for spec in self._config.tables}
        self._spec = specs.get(name)  # None: a dense parameter
        blocks = file.index.of(number)
        numbers = file.index.number[blocks].tolist()
        self.hashes = {
            block: sha.tobytes() for block, sha in zip(numbers, file.index.sha256[blocks])
        }

    def values(self, blocks: Iterable[Blocks], rows: Ints) -> Values:
        """Fields of `rows`: those of the blocks, else initial values.

        `rows` are ascending, and all rows of the blocks are among them.
        """
        if self._spec is None:
            return next(iter(blocks)).values
        values = initial_rows(
            self._spec, self._config.optimizer.sparse, self._config.training.seed, rows
        )
        for part in blocks:
            positions = np.searchsorted(rows, part.rows)
            for name, stored in part.values.items():
                values[name][positions] = stored
        return values


def first_difference(first: CheckpointFile, second: CheckpointFile) -> Difference | None:
    """The first tensor, row, field and column in which two checkpoints differ.

    None if their states are equal.

    Raises CheckpointError where they are not comparable: other tensors, or other shapes.
    """
    _refuse_other_tensors(first, second)
    for number, tensor in enumerate(first.tensors):
        left = FilledTensor(first, number)
        right = FilledTensor(second, number)
        for block in sorted({*left.hashes, *right.hashes}):
            # equal hashes are equal rows: most blocks need not be read
            if left.hashes.get(block) == right.hashes.get(block):
                continue
            row = block * BLOCK
            left_blocks = list(first.blocks(number, row, row + 1))
            right_blocks = list(second.blocks(number, row, row + 1))
            rows = np.unique(np.concatenate([b.rows for b in (*left_blocks, *right_blocks)]))
            difference = _first_in_rows(
                tensor.name, rows, left.values(left_blocks, rows), right.values(right_blocks, rows)
            )
            if difference:
                return difference
    return None


def _refuse_other_tensors(first: CheckpointFile, second: CheckpointFile) -> None:
    """Raise CheckpointError for the first tensor that the files do not share."""
    for left, right in zip_longest(first.tensors, second.tensors):
        if _description(left) != _description(right):
            raise CheckpointError(
                f"{first.path} and {second.path} hold other tensors: {_description(left)} | "
                f"{_description(right)}"
            )


def _description(tensor: Tensor | None) -> str:
    """A tensor's name and shapes."""
    if tensor is None:
        return "nothing"
    fields = ", ".join(f"{name}{list(shape)}" for name, shape in tensor.fields)
    return f"{tensor.name} with {tensor.rows} rows of {fields}"


def _first_in_rows(tensor: str, rows: Ints, left: Values, right: Values) -> Difference | None:
    """The first of some rows in which two tensors differ."""
    unequal = {
        # bytes, as the digest sees them: -0 and +0 differ, equal NaNs do not
        name: (left[name].view(np.uint32) != right[name].view(np.uint32)).reshape(rows.size, -1)
        for name in left
    }
    anywhere = np.any([different.any(axis=1) for different in unequal.values()], axis=0)
    if not anywhere.any():
        return None
    row = int(np.argmax(anywhere))
    name = next(name for name, different in unequal.items() if different[row].any())
    column = int(np.argmax(unequal[name][row]))
    return Difference(
        tensor=tensor,
        row=int(rows[row]),
        field=name,
        column=column if left[name].ndim == 2 else None,
        values=(
            left[name].reshape(rows.size, -1)[row, column],
            right[name].reshape(rows.size, -1)[row, column],
        ),
    )


# ---- merging ----


def merge(file: CheckpointFile, target: Path) -> None:
    """Write a checkpoint, whatever files it is in, as one whole file; quantised weights as float32.

    Verifies what it reads.

    Raises CheckpointError where it cannot be read or written, or where `target` is a checkpoint
    that is needed.
    """
    refuse_needed_files(file, target)
    # the rows as they are read: rounding them again might give others
    tensors = [replace(tensor, quantized="") for tensor in file.tensors]
    counts = np.zeros((len(tensors), 3), np.int64)
    for number in range(len(tensors)):
        blocks = file.index.of(number)
        counts[number] = file.index.rows_of(number), 0, blocks.stop - blocks.start
    texts = {name: file.text(name) for name in TEXTS}
    attributes = {k: value for k, value in file.attributes.items() if k not in OF_ONE_FILE}
    # above 2^63 - 1 it is no int64, which Python's int would become
    attributes["seed"] = np.uint64(attributes["seed"])
    image = lay_out(tensors, counts, attributes, texts, file.vocabularies())
    with written(target) as partial:
        image = create(image, partial)
        share = Share(
            path=partial,
            tensors=tensors,
            offsets=image.offsets,
            before=np.zeros_like(counts),
            index=file.index,
            parts=_all_parts(file, tensors),
        )
        error = write_share(share)
        if error is not None:
            raise error
        seal(image, partial, tensors)


def refuse_needed_files(file: CheckpointFile, target: Path) -> None:
    """Raise CheckpointError where a target is one of the files of `file`, or of another chain."""
    try:
        status = os.stat(target)
    except OSError:  # there is no such file, or writing it will say what is wrong
        return
    needed = {link.path for link in file.links}
    # the target may be a link, and other chains may lie where it points
    for folder in {file.path.parent, target.parent, target.resolve().parent}:
        needed.update(bases_in(folder))
    for path in sorted(needed):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(path), status):
                raise CheckpointError(
                    f"{target}: writing it would overwrite {path.name}, of which {file.path} or "
                    "another checkpoint consists; choose another name"
                )


@contextlib.contextmanager
def written(target: Path) -> Iterator[Path]:
    """The path of a file that gets the name `target` once the block is done, or is removed.

    Raises CheckpointError where it cannot be written.
    """
    try:
        with whole_file(target) as draft:
            yield draft
    except OSError as error:
        raise CheckpointError(
            f"{target} could not be written: {error.strerror or error}"
        ) from error


def _all_parts(file: CheckpointFile, tensors: Sequence[Tensor]) -> Iterator[Part]:
    """What a whole file of these tensors has."""
    for number, tensor in enumerate(tensors):
        for blocks in file.blocks(number):
            yield Part.of(blocks, tensor)
