"""How are rows kept in fewer bytes than in the cache above them?

They are encoded when they leave the cache, and decoded when they come up.

    cache      slots of fp32 or fp16 numbers, updated like rows that live there
    home       `homes.RecordHome`: narrow records, in memory or in an SSD file
    between    a `NarrowBorder`

A row for which no cache line is free is staged in scratch, updated there, and encoded when the next
batch comes. Optimizer states are not narrowed (Neo; FBGEMM's cache_precision; Yang et al., arXiv
2010.11305).
"""

from collections.abc import Callable

import numpy as np

from neocpu.core.types import Bytes, Floats, Ints
from neocpu.tables.storage.row_codecs import RowCodec, streams_of
from neocpu.tables.tiers.homes import Border
from neocpu.tables.tiers.levels import Slots


class NarrowBorder(Border):
    """Slots of a region inside; outside, records: the codec's bytes, then the states unchanged.

    codec : of the shard's rows.
    wide : the slots of the shard.
    states : their optimizer states.
    get, put : read and write the numbers f32[n, D] in slots i64[n].
    """

    def __init__(
        self,
        codec: RowCodec,
        wide: Slots,
        states: Slots,
        get: Callable[[Ints], Floats],
        put: Callable[[Ints, Floats], None],
    ) -> None:
        super().__init__(wide)
        self._codec = codec
        self._states = states
        self._get = get
        self._put = put
        self.record = codec.bytes + states.record

    def pack(self, rows: Ints, slots: Ints) -> Bytes:
        """Records u8[n, record] of rows i64[n] that are in slots, rounded."""
        streams = None
        if self._codec.rounding != "nearest":
            # of all that the row holds: the same bytes get the same codes whenever they leave
            streams = streams_of(rows, super().pack(rows, slots))
        data = self._codec.encode(self._get(slots), streams)
        return np.concatenate([data, self._states.pack(slots)], axis=1)

    def unpack(self, slots: Ints, records: Bytes) -> None:
        """Put records into slots, decoded."""
        cut = self._codec.bytes
        self._put(slots, self._codec.decode(records[:, :cut]))
        self._states.unpack(slots, records[:, cut:])
