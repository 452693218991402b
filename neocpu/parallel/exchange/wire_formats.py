"""In which formats may vectors, gradients and row numbers travel, and how many bytes is that?

    fp32              as they are
    fp16, bf16        number by number
    fp8, int8, int4   in blocks of columns, each a row of its own as FBGEMM writes it: codes, then
                      the numbers that scale them

To add a format: a line in `WIRE_FORMATS`, and its branch in `kernels/exchange/wires.py` and its
twin. Data only, so that configs and planners need no compiler. What a wire does to a number, and at
which points of a step: `docs/arithmetic.md` §13.

Row numbers travel as they are, or equal ones once (`unique_rows.py`). A segment is what one rank
asks of one shard: n lookups with U unique rows.

    off    8 bytes for each lookup
    on     8 bytes for each unique row; n positions among them, 64 // bits to a word of 8 bytes,
           where bits is the least number that holds U - 1, at least one
    auto   as on where that is shorter, otherwise as off; the sender decides batch by batch
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, overload

import numpy as np

from neocpu.core.errors import PlanError
from neocpu.core.formats import FORMATS, RowFormat
from neocpu.core.formats import WIRES as TRAVELLING
from neocpu.core.records import Limits
from neocpu.core.types import Elements, Ints, Json
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.sharding.schemes import Shard

BLOCK = 32  # columns under one header: FBGEMM's row_dim
DIRECTIONS = ("forward", "backward", "dense")
UNIQUE_ROWS = ("off", "on", "auto")


class WireFormat(NamedTuple):
    """A format of numbers that travel.

    row : bytes of a row, or of a block of columns.
    blocks : whether columns are encoded in blocks, each under a header of its own.
    forms : what kernels call it (`kernels/exchange/wires.py`), on the way forward and on the way
        back.
    """

    row: RowFormat
    blocks: bool
    forms: tuple[int, int]


WIRE_FORMATS = {
    # exact: no kernel is told of it
    "fp32": WireFormat(FORMATS["fp32"], blocks=False, forms=(-1, -1)),
    "fp16": WireFormat(FORMATS["fp16"], blocks=False, forms=(0, 0)),
    "bf16": WireFormat(FORMATS["bf16"], blocks=False, forms=(1, 1)),
    # HFP8: 1-4-3 bits forward; 1-5-2 on the way back, where gradients need the range
    "fp8": WireFormat(TRAVELLING["fp8_row_forward"], blocks=True, forms=(4, 5)),
    "int8": WireFormat(FORMATS["int8"], blocks=True, forms=(2, 2)),
    "int4": WireFormat(FORMATS["int4"], blocks=True, forms=(3, 3)),
}
# no blocks: nodes of dense gradients are cut by ranks and buckets, which would move the scales
DENSE_FORMATS = tuple(name for name, form in WIRE_FORMATS.items() if not form.blocks)


@dataclass(frozen=True)
class WireSpec:
    """The wire of one direction.

    format : a name in WIRE_FORMATS. block : columns under one header. scale : numbers are
    multiplied by it before they are encoded, and divided by it afterwards.
    """

    format: str = "fp32"
    block: int = BLOCK
    scale: float = 1.0

    @property
    def exact(self) -> bool:
        """Whether numbers travel as they are."""
        return self.format == "fp32"

    @property
    def blocks(self) -> bool:
        """Whether columns are encoded in blocks."""
        return WIRE_FORMATS[self.format].blocks

    @property
    def number_bytes(self) -> float:
        """Mean bytes of a number, of whole blocks."""
        return float(self.bytes(self.block)) / self.block

    @overload
    def bytes(self, width: int) -> int: ...
    @overload
    def bytes(self, width: Ints) -> Ints: ...
    def bytes(self, width: int | Ints) -> int | Ints:
        """Bytes of the codes of so many columns of a sample: an int, or i64[n] of i64[n]."""
        row = WIRE_FORMATS[self.format].row
        widths = np.asarray(width, np.int64)
        if not self.blocks:
            size = widths * row.bits // 8
        else:
            # FBGEMM refuses a last block that is short; here it is a short row
            last = widths % self.block
            unit = 8 * row.multiple
            codes = (last * row.bits + unit - 1) // unit * row.multiple
            rest = np.where(last > 0, codes + row.header_bytes, 0)
            size = widths // self.block * row.row_bytes(self.block) + rest
        return int(size) if np.ndim(width) == 0 else size.astype(np.int64)

    def header(self) -> dict[str, Json]:
        """What decides the bits, as JSON values."""
        keys: dict[str, Json] = {"format": self.format}
        if self.blocks:
            keys["block"] = self.block
        if self.scale != 1.0:
            keys["scale"] = self.scale
        return keys


@dataclass(frozen=True)
class WireSpecs:
    """The wires of a run. forward : of pooled vectors. backward : of their gradients. dense : of
    gradients of the dense parameters.
    """

    forward: WireSpec = field(default_factory=WireSpec)
    backward: WireSpec = field(default_factory=WireSpec)
    dense: WireSpec = field(default_factory=WireSpec)


FP32 = WireSpecs()


@dataclass(frozen=True)
class WiresConfig:
    """In which formats numbers travel between ranks; they change the bits, as a model's shape does.

    What is rounded is rounded alike where nothing travels: one digest for every plan and rank count
    (docs/arithmetic.md §13).

    forward : of pooled vectors: fp32, fp16, bf16, fp8, int8 or int4. backward : of their gradients.
    dense : of gradients of the dense parameters: fp32, fp16 or bf16.
    block : columns of a vector that fp8, int8 and int4 encode together, under one scale. No plan
    may cut columns inside a block.
    forward_scale, backward_scale, dense_scale : numbers are multiplied by it before they are
    encoded, and divided by it afterwards; powers of two are exact.
    """

    forward: Annotated[str, Limits(tuple(WIRE_FORMATS))] = "fp32"
    backward: Annotated[str, Limits(tuple(WIRE_FORMATS))] = "fp32"
    dense: Annotated[str, Limits(DENSE_FORMATS)] = "fp32"
    block: Annotated[int, Limits(least=1)] = BLOCK
    forward_scale: float = 1.0
    backward_scale: float = 1.0
    dense_scale: float = 1.0

    @property
    def specs(self) -> WireSpecs:
        """The wires."""
        return WireSpecs(
            *(
                WireSpec(getattr(self, name), self.block, getattr(self, f"{name}_scale"))
                for name in DIRECTIONS
            )
        )

    def header(self) -> dict[str, Json]:
        """What decides the bits, of the wires that round."""
        specs = {name: getattr(self.specs, name) for name in DIRECTIONS}
        return {name: spec.header() for name, spec in specs.items() if not spec.exact}

    def faults(self) -> Iterator[tuple[str, str]]:
        """(key, what is wrong with it)."""
        for name in DIRECTIONS:
            spec: WireSpec = getattr(self.specs, name)
            # numbers are divided by it on arrival: its inverse has to be a normal number too
            if not 2.0**-126 <= spec.scale <= 2.0**126:
                yield f"{name}_scale", f"{spec.scale} is not from 2^-126 to 2^126"
            elif spec.exact and spec.scale != 1.0:
                yield f"{name}_scale", f'it has no effect on wires.{name} = "fp32"'


def cut_blocks(wires: WireSpecs, dim: int, shards: Iterable[Shard]) -> Iterator[tuple[str, int]]:
    """(direction, column) of every cut of a table's columns inside a block of a wire."""
    for name in ("forward", "backward"):
        wire: WireSpec = getattr(wires, name)
        if wire.blocks:
            cuts = {cut for shard in shards for cut in shard.cols}
            yield from ((name, cut) for cut in sorted(cuts) if cut % wire.block and cut != dim)


def refuse_cut_blocks(plan: Plan, wires: WireSpecs) -> None:
    """Raise PlanError for a plan that cuts columns inside a block of a wire."""
    if not (wires.forward.blocks or wires.backward.blocks):
        return
    for number, table in enumerate(plan.tables):
        shards = [shard for shard in plan.shards if shard.table == number]
        for name, cut in cut_blocks(wires, table.dim, shards):
            wire: WireSpec = getattr(wires, name)
            raise PlanError(
                f"table {table.name!r} is cut at column {cut}, inside a block of {wire.block} "
                f"columns that wires.{name} = {wire.format!r} encodes together; give it a plan "
                "that does not cut columns there (table_wise, row_wise, data_parallel, auto), set "
                "a wires.block that divides the cut, or use fp16 or bf16"
            )


def positions_per_word(distinct: Elements) -> Ints:
    """How many positions among so many unique rows a word of 8 bytes holds."""
    # planners ask with expected numbers, which are no whole ones
    highest = np.ceil(np.maximum(distinct - 1, 0)).astype(np.float64)
    # frexp's exponent is the bit length of a whole number, without a rounded logarithm
    bits = np.maximum(np.frexp(highest)[1], 1)
    return 64 // bits.astype(np.int64)


def message_words(lookups: Ints, distinct: Ints) -> Ints:
    """Words of 8 bytes of segments of so many lookups, with so many unique rows (-1: they travel
    as they are).
    """
    packed = distinct + -(-lookups // positions_per_word(distinct))
    return np.where(distinct < 0, lookups, packed)


def segment_words(lookups: Elements, distinct: Elements, unique_rows: str) -> Elements:
    """Words of segments, i64 where lookups and unique rows were counted, f64 where expected;
    unique_rows : one of UNIQUE_ROWS.
    """
    if unique_rows == "off":
        return lookups
    packed: Elements = (
        message_words(lookups, distinct)
        if lookups.dtype == np.int64
        else distinct + lookups / positions_per_word(distinct)
    )
    return np.minimum(packed, lookups) if unique_rows == "auto" else packed
