"""What is a row of a table that is narrower at home than in its caches?

It has a codec, records (bytes) and values (numbers).

A record is the bytes of `storage.row_codecs.RowCodec`, then the states per element and per row,
fp32. Formats that scale whole rows have their scale and bias among the values, so that the same
bytes come back from a checkpoint.
"""

from collections.abc import Callable

import numpy as np

from neocpu.core.errors import TrainingError
from neocpu.core.rules import Rule
from neocpu.core.types import Bytes, Floats, FloatsByName, Ints
from neocpu.kernels.twins.numbers.philox import LEAVING, tensor_key
from neocpu.tables.embedding.lookups import Rectangle
from neocpu.tables.embedding.rounded import refuse_rounded
from neocpu.tables.specs.specs import TableSpec
from neocpu.tables.storage.row_codecs import RowCodec
from neocpu.tables.tiers.homes import NarrowBorder
from neocpu.tables.tiers.levels import Slots


class Narrowed:
    """The rows of one shard of a table that has a `cache_format`, outside its caches.

    Raises TrainingError for a shard of some columns of a format that scales whole rows.
    """

    def __init__(self, spec: TableSpec, shard: Rectangle, rule: Rule, seed: int) -> None:
        lo, hi = shard.cols
        if why := spec.unfit(cut=hi - lo < spec.dim):
            raise TrainingError(why)
        key = int(tensor_key(seed, LEAVING, spec.name))
        self.codec = RowCodec(spec.format, hi - lo, spec.rounding, key, lo)
        self._spec = spec
        self._row0 = shard.rows[0]
        self._element = rule.element_state
        self._row = rule.row_state
        # only numbers are narrowed: optimizer states stay fp32, as in FBGEMM
        state_floats = self.codec.columns * len(self._element) + len(self._row)
        self.record = self.codec.bytes + 4 * state_floats

    def border(
        self,
        wide: Slots,
        states: Slots,
        get: Callable[[Ints], Floats],
        put: Callable[[Ints, Floats], None],
    ) -> NarrowBorder:
        """Between slots and records."""
        return NarrowBorder(self.codec, wide, states, get, put)

    def nearest(self, numbers: Floats) -> Floats:
        """What becomes of numbers f32[n, D] that are written here, to nearest, and read again."""
        return self.codec.decode(self.codec.encode(numbers))

    def start(self, unrounded: FloatsByName) -> dict[str, Floats]:
        """Values of rows with these unrounded numbers and states, as `values` gives them."""
        # to nearest, without random words: a row starts alike whenever it is first seen
        data = self.codec.encode(unrounded["weight"])
        return {**unrounded, "weight": self.codec.decode(data), **self.codec.scales(data)}

    def values(self, records: Bytes) -> dict[str, Floats]:
        """Numbers, states, and what scales them, of records."""
        cut = self.codec.bytes
        width = self.codec.columns
        # a copy: behind the codec's bytes the states need not be aligned
        states = np.ascontiguousarray(records[:, cut:]).view(np.float32).reshape(len(records), -1)
        values = {"weight": self.codec.decode(records[:, :cut])}
        for i, name in enumerate(self._element):
            values[name] = states[:, i * width : (i + 1) * width]
        for i, name in enumerate(self._row, len(self._element) * width):
            values[name] = states[:, i]
        return values | self.codec.scales(records[:, :cut])

    def records(self, rows: Ints, values: FloatsByName) -> Bytes:
        """Records u8[n, record] of rows i64[n] with these values.

        Raises TrainingError for numbers that the format does not have.
        """
        weight = np.ascontiguousarray(values["weight"], np.float32)
        # encoding decoded numbers anew may move a scale by an ulp: the scales say which codes they
        # had
        data = self.codec.restore(weight, values)
        decoded = self.codec.decode(data)
        refuse_rounded(self._spec, self._row0 + rows, self.codec.column0, decoded, weight)
        states = [
            np.ascontiguousarray(values[name], np.float32) for name in (*self._element, *self._row)
        ]
        state_bytes = [state.reshape(len(data), -1).view(np.uint8) for state in states]
        return np.concatenate([data, *state_bytes], axis=1)
