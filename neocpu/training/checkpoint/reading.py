"""How is a checkpoint read? All its files at once: the whole one first, then those with what
changed (`layout.py`).

The state is what the newest file that has a row says of it. Whatever is read is verified against
the hashes of whole blocks, which the digest of the newest file covers.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from neocpu.config import Config, loads
from neocpu.errors import CheckpointError
from neocpu.training.checkpoint.layout import file_bytes
from neocpu.training.checkpoint.links import Joined, Link, merged
from neocpu.training.state_blocks import BLOCK, Blocks, Index, Ints, digest_of

READ = 4 << 20  # bytes of rows that are read at a time


class CheckpointFile:
    """A complete checkpoint, opened for reading; use it as a context manager.

    Attributes: path, step, digest, attributes, header (JSON), tensors, index; links: its files, the
    whole one first. Raises CheckpointError for a file that is missing, truncated, foreign, newer,
    incomplete or damaged, or whose base is.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.links = [newest := Link(self.path)]
        self.step = newest.step
        self.digest = newest.digest
        self.attributes = newest.attributes
        self.header = newest.header
        self.tensors = newest.tensors
        self._file = newest.file
        try:
            while (base := self.links[0].base) is not None:
                self.links.insert(0, self._below(self.links[0], *base))
            self.index = self._whole_index()
        except CheckpointError:
            self.close()
            raise

    def _below(self, link: Link, name: str, digest: str) -> Link:
        """The file that another one has the changes since."""
        try:
            if Path(name).name != name:
                raise CheckpointError(f"{name}: no name of a file beside it")
            below = Link(self.path.with_name(name))
        except CheckpointError as error:
            raise CheckpointError(
                f"{link.path}: holds only what changed since {name}, which cannot be used: {error}"
            ) from error
        if below.digest != digest or below.step >= link.step or below.tensors != link.tensors:
            below.close()
            raise CheckpointError(
                f"{link.path}: holds only what changed since {name} with digest {digest[:12]}…, "
                "but that is another file now "
                f"(step {below.step}, digest {below.digest[:12]}…); use another checkpoint"
            )
        return below

    def _whole_index(self) -> Index:
        index: Index | None = None
        for link in self.links:
            index = link.index if index is None else link.index.over(index)
            if digest_of(link.header, link.step, link.tensors, index) != link.digest:
                error = link.damaged("its index does not have the digest that is noted in it")
                based = (
                    f"{self.path}: holds only what changed since {link.path.name}, which "
                    "cannot be used: "
                )
                raise error if link is self.links[-1] else CheckpointError(f"{based}{error}")
        assert index is not None
        return index

    @property
    def quantized(self) -> str:
        """Format to which it has rounded the weights of float32 tables; "": none."""
        return next((tensor.quantized for tensor in self.tensors if tensor.quantized), "")

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(link.path.stat().st_size for link in self.links)

    @property
    def changes(self) -> int:
        """About how many bytes its files of changes take."""
        return sum(file_bytes(self.tensors, link.counts) for link in self.links[1:])

    def text(self, name: str) -> str:
        """One of the texts in /run."""
        return self.links[-1].text(name)

    def config(self, overrides: Sequence[str] = ()) -> Config:
        """The config of the run that wrote the checkpoint, with further overrides."""
        given = [*json.loads(self.text("overrides")), *overrides]
        return loads(self.text("config"), f"{self.path} (config)", given)

    def number(self, name: str) -> int:
        """Index of a tensor by name, for example "tables/C1". Raises CheckpointError if there is
        none.
        """
        for number, tensor in enumerate(self.tensors):
            if tensor.name == name:
                return number
        raise CheckpointError(
            f"{self.path}: has no {name}; it has {', '.join(t.name for t in self.tensors)}"
        )

    def rows(self, number: int) -> Ints:
        """Row numbers of a tensor in the state: i64[n], ascending."""
        if not self.tensors[number].table:
            return np.arange(self.tensors[number].rows, dtype=np.int64)
        return merged(
            [link.rows(number) for link in self.links], [link.gone(number) for link in self.links]
        )[0]

    def field(self, number: int, name: str) -> Any:
        """A field of all rows in the state, mapped from the files, read-only and not verified:
        f32[n, ...], or what finds and decodes the rows that are asked for.
        """
        if len(self.links) == 1 or not self.tensors[number].table:
            return self.links[-1].field(number, name)
        _, source = merged(
            [link.rows(number) for link in self.links], [link.gone(number) for link in self.links]
        )
        return Joined([link.field(number, name) for link in self.links], source)

    def blocks(self, number: int, lo: int = 0, hi: int | None = None) -> Iterator[Blocks]:
        """Blocks of a tensor with rows in [lo, hi), whole and verified, some megabytes at a time.
        Raises CheckpointError for a broken one.
        """
        tensor = self.tensors[number]
        here = self.index.of(number)
        numbers = self.index.number[here]
        counts = self.index.rows[here]
        shas = self.index.sha256[here]
        ends = np.cumsum(counts)
        first, last = np.searchsorted(
            numbers, [lo // BLOCK, -(-(tensor.rows if hi is None else hi) // BLOCK)]
        ).tolist()
        while first < last:
            begin = int(ends[first] - counts[first])
            till = max(
                int(np.searchsorted(ends[:last], begin + READ // tensor.row_bytes, "right")),
                first + 1,
            )
            some = slice(first, till)
            rows, values = self._read(number, int(numbers[first]), int(numbers[till - 1]) + 1)
            yield self._verified(
                Blocks(number, numbers[some], counts[some], rows, values), shas[some]
            )
            first = till

    def _read(self, number: int, first: int, end: int) -> tuple[Ints, dict[str, Any]]:
        """Rows of blocks [first, end) and their fields."""
        tensor = self.tensors[number]
        links = self.links if tensor.table else self.links[-1:]
        parts = [link.read(number, first, end) for link in links]
        if len(parts) == 1:
            return parts[0].rows, dict(parts[0].values)
        rows, source = merged([part.rows for part in parts], [part.gone for part in parts])
        values = {
            name: np.concatenate([part.values[name] for part in parts])[source]
            for name, _ in tensor.fields
        }
        return rows, values

    def _verified(self, blocks: Blocks, shas: NDArray[np.uint8]) -> Blocks:
        found = np.frombuffer(b"".join(blocks.sha256()), np.uint8).reshape(-1, 32)
        wrong = np.flatnonzero((found != shas).any(axis=1))
        if wrong.size or int(blocks.counts.sum()) != blocks.rows.size:
            tensor = self.tensors[blocks.tensor]
            block = int(blocks.numbers[wrong[0] if wrong.size else -1])
            files = (
                f", or one of the {len(self.links) - 1} files that it is based on"
                if len(self.links) > 1
                else ""
            )
            raise self.links[-1].damaged(
                f"{tensor.name}, block {block} (rows {block * BLOCK} to "
                f"{min((block + 1) * BLOCK, tensor.rows) - 1}), "
                f"has other bytes than were written{files}"
            )
        return blocks

    def recomputed_digest(self) -> str:
        """The digest from all rows in the files. Raises CheckpointError if any of them changed."""
        shas = [
            sha
            for number in range(len(self.tensors))
            for b in self.blocks(number)
            for sha in b.sha256()
        ]
        sha = np.frombuffer(b"".join(shas), np.uint8).reshape(-1, 32)
        index = Index(self.index.tensor, self.index.number, self.index.rows, sha)
        return digest_of(self.header, self.step, self.tensors, index)

    def close(self) -> None:
        """Close the files; maps of them stay valid."""
        for link in self.links:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def base_of(path: Path) -> str | None:
    """Name of the file that another one has the changes since; None for a whole file, or one that
    cannot be read.
    """
    try:
        with h5py.File(path, "r", locking=False) as file:
            return str(file.attrs["base"]) if "base" in file.attrs else None
    except OSError:
        return None
