"""How does a model leave neocpu, so that one file is all it takes to serve it?

A `.safetensors` file: weights, vocabularies, and in its metadata the card (`export_card.py`), the
config and the digest. `torch_model.py` loads it without neocpu.

    dense/bottom.0.weight …   f32, the parameters
    tables/C1/weight          rows of the table, in its format (int8 and int4: u8[n, bytes])
    tables/C1/rows            i64[n], ascending: which rows these are; absent where all are there
    vocabularies/C1           i64[V], the bits of 64-bit codes: entry i is row i + 1

A row that was never trained is noise, which its number and the seed give again: it is not stored,
unless the table is small, or most of its rows were trained. With `unlearnt="zero"` such rows are
zeros instead, which is simpler to serve and predicts slightly differently.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neocpu.core.formats import table_format
from neocpu.core.types import Elements
from neocpu.serve.exports.arrays import (
    Entry,
    field_parts,
    row_parts,
    whole_values,
    write_arrays,
)
from neocpu.serve.exports.card import DataFacts, Facts, card_of, vocabulary_array
from neocpu.tables.specs.specs import TableSpec
from neocpu.tables.storage.row_codecs import RowCodec
from neocpu.train.checkpoint.number_codes import Code
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config.config import Config

UNLEARNT = ("initial", "zero")
SMALL = 1 << 16  # bytes of a table that is always written whole
# how weights are written -> dtype of their codes, safetensors' name of the type
STORED = {
    "fp32": ("<f4", "float32"),
    "fp16": ("<f2", "float16"),
    "bf16": ("<u2", "bfloat16"),
    "fp8_e4m3": ("|u1", "float8_e4m3fn"),
    "fp8_e5m2": ("|u1", "float8_e5m2"),
    "int8": ("|u1", "uint8"),
    "int4": ("|u1", "uint8"),
}


@dataclass(frozen=True)
class StoredTable:
    """How one table is written.

    number : of its tensor.
    learnt : rows in the state.
    unlearnt : one of UNLEARNT.
    narrow : keep its own format; else fp32.
    all_rows : write all rows, however many.
    """

    spec: TableSpec
    number: int
    learnt: int
    unlearnt: str
    narrow: bool = True
    all_rows: bool = False

    @property
    def form(self) -> str:
        """A key of STORED: what lookups read."""
        name = "bf16" if self.spec.format == "bf16_split" else self.spec.format
        return name if self.narrow and name in STORED else "fp32"

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row in the file."""
        if table_format(self.form).row_scaled:
            return (table_format(self.form).row_bytes(self.spec.dim),)
        return (self.spec.dim,)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in the file, without its number."""
        return self.row_shape[0] * np.dtype(STORED[self.form][0]).itemsize

    @property
    def whole(self) -> bool:
        """Whether all rows are written: few, nearly all trained, or not to be made again."""
        size = self.spec.rows * self.row_bytes
        # Initial values are made of fp32 numbers; encoded rows hold other ones, with their scales.
        if self.all_rows or (self.unlearnt == "initial" and self.spec.row_format.row_scaled):
            return True
        # 8 bytes of its number for each row: nearly whole tables are smaller without them.
        return size <= max(SMALL, self.learnt * (self.row_bytes + 8))

    def encode(self, values: Mapping[str, Elements]) -> Elements:
        """What is written of rows with these fields, f32[n, dim] and their scales."""
        weight = np.ascontiguousarray(values["weight"], np.float32)
        if self.spec.format == "bf16_split":  # lookups read the upper half
            weight = (weight.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        if table_format(self.form).row_scaled:
            # By the twins, in NumPy: an export loads no compiler.
            codec = RowCodec(self.form, self.spec.dim, backend="reference")
            return codec.restore(weight, values)
        return Code(self.form, (self.spec.dim,)).encode(weight)

    def entries(self, file: CheckpointFile) -> list[Entry]:
        """Its arrays."""
        name = f"tables/{self.spec.name}"
        dtype, kind = STORED[self.form]
        shape = (self.spec.rows if self.whole else self.learnt, *self.row_shape)
        weight = Entry(f"{name}/weight", dtype, shape, lambda: self._parts(file), kind)
        if self.whole:
            return [weight]
        rows = Entry(f"{name}/rows", "<i8", (self.learnt,), row_parts(file, self.number))
        return [rows, weight]

    def _parts(self, file: CheckpointFile) -> Iterator[Elements]:
        if not self.whole:
            for block in file.blocks(self.number):
                yield self.encode(block.values)
            return
        learnt = file.rows(self.number)
        start = 0
        for filled in whole_values(file, self.number):
            values = dict(filled)
            count = len(values["weight"])
            if self.unlearnt == "zero":
                # Both ascend, so the rows of a piece are a slice of those that were learnt.
                bounds = np.searchsorted(learnt, [start, start + count])
                never = np.ones(count, np.bool_)
                never[learnt[slice(*bounds)] - start] = False
                for array in values.values():
                    array[never] = 0
            start += count
            yield self.encode(values)

    def facts(self) -> Facts:
        """What the card says of it."""
        return {
            "stored": self.form,
            "whole": self.whole,
            "unlearnt": self.unlearnt,
            "truncated": self.spec.format == "bf16_split",
        }


def stored_tables(
    file: CheckpointFile, config: Config, unlearnt: str = "initial", narrow: bool = True
) -> list[StoredTable]:
    """How each table of a checkpoint is written."""
    tables = []
    for spec in config.tables:
        number = file.number(f"tables/{spec.name}")
        tables.append(
            StoredTable(
                spec=spec,
                number=number,
                learnt=file.index.rows_of(number),
                unlearnt=unlearnt,
                narrow=narrow,
            )
        )
    return tables


def scorer_entries(
    file: CheckpointFile, tables: list[StoredTable], facts: DataFacts
) -> list[Entry]:
    """The arrays of the file."""
    arrays = []
    for number, tensor in enumerate(file.tensors):
        if tensor.parameter:
            shape = (tensor.rows, *dict(tensor.fields)["value"])
            parts = field_parts(file, number, file.dense_field)
            arrays.append(Entry(tensor.name, "<f4", shape, parts))
    for table in tables:
        arrays += table.entries(file)
    for feature, codes in facts.vocabularies.items():
        arrays.append(Entry.of(f"vocabularies/{feature}", vocabulary_array(codes)))
    return arrays


def export_scorer(
    file: CheckpointFile,
    target: Path,
    facts: DataFacts,
    *,
    unlearnt: str = "initial",
    narrow: bool = True,
) -> list[StoredTable]:
    """Write a model with all that serving it takes; returns how its tables were written.

    unlearnt : what rows that were never trained give, their "initial" values or "zero".
    narrow : keep tables of narrow formats as they are; else as float32.

    Raises CheckpointError where the checkpoint cannot be read, or the target not be written.
    """
    config = file.config()
    tables = stored_tables(file, config, unlearnt, narrow)
    card = card_of(file, facts)
    for entry, table in zip(card["tables"], tables):
        entry.update(table.facts())
    run_config = {
        "toml": file.text("config"),
        "overrides": json.loads(file.text("overrides")),
        "header": file.header,
    }
    # one entry: the library writes several in any order, and equal models shall be equal files
    metadata = {"neocpu": json.dumps({**card, "config": run_config})}
    advice = "" if unlearnt == "zero" else "--unlearnt zero leaves out more"
    write_arrays(file, target, scorer_entries(file, tables, facts), metadata, advice)
    return tables
