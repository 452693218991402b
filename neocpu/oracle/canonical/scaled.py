"""Which bytes does a fused backward leave in int8 and int4 rows? Decoded, updated, encoded again.

The formats of neocpu's row codecs, which are FBGEMM's on a CPU (docs/formats.md §3). Rows without a
gradient keep their bytes.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Floats
from neocpu.kernels.records import Segments
from neocpu.kernels.twins.numbers.philox import STOCHASTIC_ROUNDING, tensor_key
from neocpu.oracle.adapters import codes_of
from neocpu.oracle.canonical import encoded
from neocpu.oracle.operator import Arrays, Value
from neocpu.oracle.truth.bags import TableGeometry, row_bytes
from neocpu.oracle.truth.scaled import header_format, parts_of
from neocpu.tables.storage.row_codecs import RowCodec


class ScaledTables:
    """Tables of row-scaled rows in the course of an update.

    data : the bytes of each table, u8[rows, bytes]. numbers : all rows decoded, f32[elements].
    """

    def __init__(
        self, inputs: Arrays, options: dict[str, Value], tables: TableGeometry, backend: str
    ) -> None:
        self.inputs = inputs
        self.name = str(options["weights_format"])
        self.rounding = str(options["rounding"])
        self.tables = tables
        flat = codes_of(inputs["weights"]).reshape(-1)
        stream = f"step{options['step']}/table"
        self.data: list[NDArray[np.uint8]] = []
        self.codecs: list[RowCodec] = []
        start = 0
        for t, (rows, columns) in enumerate(zip(tables.rows.tolist(), tables.dims.tolist())):
            size = row_bytes(self.name, columns)
            # A copy: rows without a gradient keep their bytes, all others are written here.
            self.data.append(flat[start : start + rows * size].reshape(rows, size).copy())
            start += rows * size
            # The step is part of the key, so that every update draws other numbers.
            key = tensor_key(int(options["seed"]), STOCHASTIC_ROUNDING, f"{stream}{t}")
            self.codecs.append(
                RowCodec(self.name, columns, self.rounding, int(key), backend=backend)
            )
        decoded = [codec.decode(data).reshape(-1) for codec, data in zip(self.codecs, self.data)]
        self.numbers: Floats = np.concatenate(decoded)

    def encode(self, segments: Segments) -> None:
        """Write the rows that were updated, from `numbers`, rounded."""
        for t, (lo, hi) in zip(segments.shards.tolist(), pairwise(segments.first.tolist())):
            first = self.tables.first_element[t]
            end = self.tables.first_element[t + 1]
            table = self.numbers[first:end].reshape(len(self.data[t]), -1)
            rows = segments.unique[lo:hi]
            self.data[t][rows] = self.codecs[t].encode(table[rows], rows)

    def outputs(self) -> Arrays:
        """Codes, as fp32, of all elements; scale and bias of all rows."""
        weights = np.concatenate([data.reshape(-1) for data in self.data])
        parts = parts_of({**self.inputs, "weights": weights}, self.name)
        header = header_format(self.name)
        formats = {"codes": "fp32", "scale": header, "bias": header}
        return {
            part: encoded(parts[part].astype(np.float32), form, "reference")
            for part, form in formats.items()
        }
