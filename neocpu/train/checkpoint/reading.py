"""How is a checkpoint read? All its files at once: a whole one, then those with what changed.

A row is what the newest file that has it says (`layout.py`). Whatever is read is verified against
the hashes of whole blocks, which the digest of the newest file covers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import CheckpointError, ConfigError
from neocpu.core.types import Elements, Floats, Ints, JsonObject
from neocpu.tables.embedding.dense_optimizer import AVERAGE
from neocpu.train.checkpoint.layout import file_bytes
from neocpu.train.checkpoint.links import Joined, Link, merged
from neocpu.train.config.config import Config, loads
from neocpu.train.state.blocks import BLOCK, Blocks, Index, digest_of
from neocpu.train.state.dense_inputs import BOTTOM
from neocpu.train.state.identity import with_schema
from neocpu.train.state.initial import fields_of

READ = 4 << 20  # bytes of rows that are read at a time


class CheckpointFile:
    """A complete checkpoint, opened for reading; use it as a context manager.

    Attributes: path, step, digest, attributes, header (JSON), tensors, index; links, its files, the
    whole one first.

    Raises CheckpointError for a file that is missing, truncated, foreign, newer, incomplete or
    damaged, or whose base is.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        newest = Link(self.path)
        self.links = [newest]
        self.step = newest.step
        self.digest = newest.digest
        self.attributes = newest.attributes
        self.header = newest.header
        self.tensors = newest.tensors
        try:
            while (base := self.links[0].base) is not None:
                self.links.insert(0, self._open_base(self.links[0], *base))
            self.index = self._whole_index()
            self._check_config()
        except BaseException:
            self.close()
            raise

    def _check_config(self) -> None:
        """Raise CheckpointError unless the config is that of the header.

        Initial values come from the config, but the digest covers the header.
        """
        newest = self.links[-1]
        try:
            config = self.config()
            header = config.header()
        except (ConfigError, RecursionError) as error:
            raise newest.damaged(f"its config cannot be used: {error}") from error
        disagreement = _disagreement(self.header, header)
        if disagreement:
            raise newest.damaged(f"its config and its header disagree: {disagreement}")
        specs = {f"tables/{spec.name}": spec for spec in config.tables}
        for tensor in self.tensors:
            if not tensor.table:
                continue
            spec = specs[tensor.name]
            fields = (("weight", (spec.dim,)), *fields_of(spec, config.optimizer.sparse))
            if (tensor.rows, tensor.fields) != (spec.rows, fields):
                raise newest.damaged(f"{tensor.name} is another table than in its config")

    def _open_base(self, link: Link, name: str, digest: str) -> Link:
        """The file that `link` is based on."""
        try:
            base = Link(self.path.with_name(name))
        except CheckpointError as error:
            raise CheckpointError(
                f"{link.path}: holds only what changed since {name}, which cannot be used: {error}"
            ) from error
        # a step that does not fall would let a damaged file refer to itself for ever
        if base.digest != digest or base.step >= link.step or base.tensors != link.tensors:
            base.close()
            raise CheckpointError(
                f"{link.path}: holds only what changed since {name} with digest {digest[:12]}…, "
                f"but that is another file now (step {base.step}, digest {base.digest[:12]}…); use "
                "another checkpoint"
            )
        return base

    def _whole_index(self) -> Index:
        """Index of the state; raises CheckpointError where a file's does not have its digest."""
        index = self.links[0].index
        for number, link in enumerate(self.links):
            if number > 0:
                index = link.index.over(index)
            if digest_of(link.header, link.step, link.tensors, index) == link.digest:
                continue
            error = link.damaged("its index does not have the digest that is noted in it")
            if link is self.links[-1]:
                raise error
            raise CheckpointError(
                f"{self.path}: holds only what changed since {link.path.name}, which cannot be "
                f"used: {error}"
            )
        return index

    @property
    def quantized(self) -> str:
        """Row format to which the weights of float32 tables are rounded; "": none."""
        return next((tensor.quantized for tensor in self.tensors if tensor.quantized), "")

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(link.path.stat().st_size for link in self.links)

    @property
    def changes(self) -> int:
        """About how many bytes the files with changes take."""
        return sum(file_bytes(self.tensors, link.counts) for link in self.links[1:])

    def text(self, name: str) -> str:
        """One of the texts in /run."""
        return self.links[-1].text(name)

    def json(self, name: str) -> JsonObject:
        """A JSON object among the texts in /run."""
        return self.links[-1].json(name)

    def data(self) -> JsonObject:
        """The description of the data that the run was trained on (`train/state/identity.py`)."""
        data = self.json("data")
        splits = data.get("splits")
        words = data.get("vocabularies")
        if not isinstance(data.get("schema", {}), dict):
            raise self.links[-1].damaged("/run/data does not describe data")
        if data and not (isinstance(splits, dict) and isinstance(words, dict)):
            raise self.links[-1].damaged("/run/data does not describe data")
        for split in (splits or {}).values():
            match split:
                case {"rows": int(), "fingerprint": str(), "files": [*files]} if all(
                    isinstance(name, str) for name in files
                ):
                    continue
            raise self.links[-1].damaged("/run/data does not describe data")
        return data

    def vocabularies(self) -> dict[str, Elements]:
        """Codes of each feature whose rows are chosen by a vocabulary, entry i for row i + 1.

        {} where rows are chosen by hash, and in files of neocpu 0.1.0.
        """
        # a file of changes holds them only where they changed
        every = (link.vocabularies() for link in reversed(self.links))
        return next((words for words in every if words), {})

    def config(self, overrides: Sequence[str] = ()) -> Config:
        """The config of the run that wrote the checkpoint, with further overrides.

        The schema of a table is the one that the checkpoint holds.
        """
        newest = self.links[-1]
        all_overrides = [*newest.strings(self.text("overrides"), "/run/overrides"), *overrides]
        text = self.text("config")
        # keys that nobody named have the values that the run began with, not today's
        config = loads(text, f"{self.path} (config)", all_overrides, begun=True)
        # the file that data.schema names may be gone, or changed, since
        return with_schema(config, self.data(), overrides)

    @property
    def dense_features(self) -> int:
        """Dense inputs of the model: columns of the bottom MLP's first layer."""
        return dict(self.tensors[self.number(f"dense/{BOTTOM}")].fields)["value"][0]

    @property
    def dense_field(self) -> str:
        """The field of dense parameters that the model is used with: their moving average, if the
        config wants it, else their values.
        """
        return AVERAGE if self.config().eval.uses_average else "value"

    def number(self, name: str) -> int:
        """Index of a tensor by name, for example "tables/C1".

        Raises CheckpointError if there is none.
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
        rows, _ = self._merged_rows(number)
        return rows

    def _merged_rows(self, number: int) -> tuple[Ints, Ints]:
        """Rows of a table in the state, and where they are in the files (`links.merged`)."""
        rows = [link.rows(number) for link in self.links]
        gone = [link.gone(number) for link in self.links]
        return merged(rows, gone)

    def field(self, number: int, name: str) -> Any:
        """A field of all rows in the state, mapped from the files, read-only and not verified.

        f32[n, ...], or an object whose `[rows]` finds and decodes some of them.
        """
        if len(self.links) == 1 or not self.tensors[number].table:
            return self.links[-1].field(number, name)
        _, places = self._merged_rows(number)
        return Joined([link.field(number, name) for link in self.links], places)

    def blocks(self, number: int, lo: int = 0, hi: int | None = None) -> Iterator[Blocks]:
        """Blocks of a tensor with rows in [lo, hi), whole and verified, some megabytes at a time.

        Raises CheckpointError for a broken one.
        """
        tensor = self.tensors[number]
        entries = self.index.of(number)
        numbers = self.index.number[entries]
        counts = self.index.rows[entries]
        hashes = self.index.sha256[entries]
        ends = np.cumsum(counts)
        last_row = tensor.rows if hi is None else hi
        # a hash is of a whole block, so rows beyond [lo, hi) are read too
        limits = [lo // BLOCK, -(-last_row // BLOCK)]
        first, last = np.searchsorted(numbers, limits).tolist()
        while first < last:
            # as many blocks as fit in READ bytes, at least one
            rows_before = int(ends[first] - counts[first])
            most_rows = rows_before + READ // tensor.row_bytes
            end = max(int(np.searchsorted(ends[:last], most_rows, "right")), first + 1)
            part = slice(first, end)
            rows, values = self._read(number, int(numbers[first]), int(numbers[end - 1]) + 1)
            blocks = Blocks(number, numbers[part], counts[part], rows, values)
            yield self._verified(blocks, hashes[part])
            first = end

    def _read(self, number: int, first: int, end: int) -> tuple[Ints, dict[str, Floats]]:
        """Rows of blocks [first, end) and their fields."""
        tensor = self.tensors[number]
        # every file holds the dense parameters whole
        links = self.links if tensor.table else self.links[-1:]
        parts = [link.read(number, first, end) for link in links]
        if len(parts) == 1:
            return parts[0].rows, dict(parts[0].values)
        rows, places = merged([part.rows for part in parts], [part.gone for part in parts])
        values = {
            name: np.concatenate([part.values[name] for part in parts])[places]
            for name, _ in tensor.fields
        }
        return rows, values

    def _verified(self, blocks: Blocks, hashes: NDArray[np.uint8]) -> Blocks:
        """The blocks; raises CheckpointError unless they have these hashes u8[m, 32]."""
        tensor = self.tensors[blocks.tensor]
        recomputed = np.frombuffer(b"".join(blocks.sha256()), np.uint8).reshape(-1, 32)
        wrong = np.flatnonzero((recomputed != hashes).any(axis=1))
        if not wrong.size and _rows_of(blocks, tensor.rows):
            return blocks
        block = int(blocks.numbers[wrong[0] if wrong.size else -1])
        last_row = min((block + 1) * BLOCK, tensor.rows) - 1
        bases = ""
        if len(self.links) > 1:
            bases = f", or one of the {len(self.links) - 1} files that it is based on"
        raise self.links[-1].damaged(
            f"{tensor.name}, block {block} (rows {block * BLOCK} to {last_row}), has other bytes "
            f"than were written{bases}"
        )

    def recomputed_digest(self) -> str:
        """The digest from all rows in the files. Raises CheckpointError if any of them changed."""
        hashes: list[bytes] = []
        for number in range(len(self.tensors)):
            for blocks in self.blocks(number):
                hashes += blocks.sha256()
        sha256 = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)
        # numbers and counts were checked block by block in `_verified`
        index = replace(self.index, sha256=sha256)
        return digest_of(self.header, self.step, self.tensors, index)

    def close(self) -> None:
        """Close the files; maps of them stay valid."""
        for link in self.links:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _rows_of(blocks: Blocks, rows: int) -> bool:
    """Whether the rows of blocks of a tensor with so many rows are in these blocks, ascending."""
    numbers = blocks.rows
    return bool(
        int(blocks.counts.sum()) == numbers.size
        and (np.diff(numbers) > 0).all()
        and (numbers // BLOCK == np.repeat(blocks.numbers, blocks.counts)).all()
        and (not numbers.size or numbers[-1] < rows)
    )


def _disagreement(stored: object, computed: object, key: str = "") -> str:
    """The first place where a header lacks or contradicts what is stored; "": there is none.

    A newer program may have more keys.
    """
    if isinstance(stored, Mapping) and isinstance(computed, Mapping):
        pairs = [(f"{key}.{name}", value, computed.get(name)) for name, value in stored.items()]
    elif isinstance(stored, list) and isinstance(computed, list) and len(stored) == len(computed):
        pairs = [(f"{key}[{i}]", *pair) for i, pair in enumerate(zip(stored, computed))]
    elif isinstance(stored, bool) == isinstance(computed, bool) and stored == computed:
        return ""
    else:
        return f"{key.strip('.')} is {str(computed)[:60]} and {str(stored)[:60]}"
    return next(filter(None, (_disagreement(*pair[1:], pair[0]) for pair in pairs)), "")
