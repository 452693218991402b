"""What does one rank send and receive, on wires of fewer bits and through nodes? Its part alone.

    alltoall         pooled vectors go from the ranks that pool them to the homes of their samples,
                     or their gradients back: bytes to each rank, and the numbers that arrive
    reduce_scatter   every rank's partial sums of this rank's samples, added in one tree

`wire(x) = decode(encode(x))` is that of docs/arithmetic.md §13. No rank is needed but the one that
is asked.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from neocpu.core.types import Floats, Ints
from neocpu.kernels.compile.choice import backend_module
from neocpu.oracle.operator import Arrays, Field, Operator, Options, Switches, Truth, Truths, Value
from neocpu.oracle.ops.fp8_rows import fp8_numbers
from neocpu.oracle.options import Number, OneOf, Whole
from neocpu.oracle.truth.formats import FORMATS, in_format, stored
from neocpu.oracle.truth.numbers import SMALL as LEAST_NORMAL
from neocpu.oracle.truth.numbers import TINY, Bounded, where
from neocpu.oracle.truth.scaled import interval_of, stored_rows
from neocpu.parallel.exchange.wire_formats import WIRE_FORMATS, WireSpec

N = TypeVar("N", Bounded, Floats)  # numbers with their errors, or as they are
SMALL = ("fp16", "bf16")
HEADER = {"int8": 8, "int4": 4, "fp8": 8}  # bytes of a block, beside its codes
PER_BYTE = {"int8": 1, "int4": 2, "fp8": 1}  # codes
FP8_UNIT = 4  # codes of fp8 are padded to a multiple


class RankPart(NamedTuple):
    """One rank's part of an exchange.

    widths : i64[K], columns of each key, by place. owner : i64[K], who pools it. cuts : rank q's
    samples are [cuts[q], cuts[q + 1]).
    """

    rank: int
    widths: Ints
    owner: Ints
    cuts: Ints
    nodes: Ints

    @staticmethod
    def of(inputs: Arrays, options: Options) -> "RankPart":
        """Raises ValueError for a rank that does not exist."""
        ranks = inputs["cuts"].size - 1
        if not 0 <= int(options["rank"]) < ranks:
            raise ValueError(f"rank is {options['rank']}, of {ranks} ranks")
        widths = inputs["dims"].astype(np.int64)
        return RankPart(
            rank=int(options["rank"]),
            widths=widths,
            owner=inputs.get("owner", np.zeros(widths.size)).astype(np.int64),
            cuts=inputs["cuts"].astype(np.int64),
            nodes=inputs.get("nodes", np.zeros(ranks)).astype(np.int64),
        )

    @property
    def samples(self) -> slice:
        """This rank's samples."""
        return slice(*self.cuts[self.rank : self.rank + 2].tolist())

    def columns(self, mask: Ints) -> Ints:
        """Columns of some keys."""
        return np.flatnonzero(np.repeat(mask, self.widths))


def wire_bytes(width: int, options: Options) -> int:
    """Bytes of so many columns of a sample."""
    name = str(options["format"])
    if name not in HEADER:
        return width * (4 if name == "fp32" else 2)
    total = 0
    for first in range(0, width, int(options["block"])):
        columns = min(int(options["block"]), width - first)
        codes = -(-columns // PER_BYTE[name])
        total += HEADER[name] + (-(-codes // FP8_UNIT) * FP8_UNIT if name == "fp8" else codes)
    return total


def _sizes(part: RankPart, options: Options, backward: bool) -> Ints:
    """Bytes from every rank to every other, i64[sender, receiver], as pooled vectors go."""
    per_key = [wire_bytes(int(width), options) for width in part.widths]
    ranks = part.cuts.size - 1
    per_sample = np.bincount(part.owner, per_key, ranks).astype(np.int64)
    sizes = np.multiply.outer(per_sample, np.diff(part.cuts))
    np.fill_diagonal(sizes, 0)
    return sizes.T if backward else sizes


def _sent(part: RankPart, options: Options, bends: Switches) -> Ints:
    """Bytes that the rank hands to every other one, i64[W]."""
    sizes = _sizes(part, options, bool(options["backward"]))
    if not options["two_level"] or "two_level_direct" in bends:
        return sizes[part.rank]
    sent = np.zeros(part.nodes.size, np.int64)
    mates = np.flatnonzero(part.nodes == part.nodes[part.rank])
    for receiver in range(part.nodes.size):
        # The rank of this node that has the receiver's place there takes all that goes to it.
        place = int((part.nodes[:receiver] == part.nodes[receiver]).sum())
        server = int(mates[place % mates.size])
        if server != part.rank:
            sent[server] += sizes[part.rank, receiver]
        elif part.nodes[receiver] != part.nodes[part.rank]:
            sent[receiver] += sizes[mates, receiver].sum()
    return sent


def _blocks(part: RankPart, width: int, options: Options, bends: Switches) -> list[int]:
    """Where blocks of columns end, the last one included."""
    block = int(options["block"])
    if "wire_blocks_span_keys" in bends:
        return sorted({*range(block, width, block), width})
    ends: list[int] = []
    first = 0
    for columns in part.widths.tolist():
        ends += [*range(first + block, first + columns, block), first + columns]
        first += columns
    return ends


def wired(x: Bounded, ends: list[int], options: Options, bends: Switches = frozenset()) -> Bounded:
    """Numbers [R, C] as a wire leaves them. ends : of the blocks of columns."""
    name = str(options["format"])
    scale = float(options["scale"])
    if name == "fp32":
        return x
    scaled = _times(x, scale)
    if name in SMALL:
        limit = FORMATS[name].largest
        clipped = np.where(np.isnan(scaled.value), np.nan, np.clip(scaled.value, -limit, limit))
        arrived = stored(Bounded(clipped, scaled.error), name)
    else:
        parts = []
        first = 0
        for end in ends:
            block = Bounded(scaled.value[:, first:end], scaled.error[:, first:end])
            parts.append(_wired_block(block, name, bool(options["backward"])))
            first = end
        values = [np.zeros((len(x.value), 0)), *(part.value for part in parts)]
        errors = [np.zeros((len(x.value), 0)), *(part.error for part in parts)]
        arrived = Bounded(np.concatenate(values, 1), np.concatenate(errors, 1))
    return arrived if "wire_scale_not_divided" in bends else _times(arrived, scale, over=True)


def _times(x: Bounded, scale: float, over: bool = False) -> Bounded:
    """x times, or over, a scale: exactly so for powers of two, but for what becomes subnormal."""
    factor = Bounded.constant(scale)
    if np.frexp(scale)[0] != 0.5:
        return x / factor if over else x * factor
    power = 1 / scale if over else scale
    value = x.value * power
    lost = np.where((np.abs(value) < LEAST_NORMAL) & (power < 1), TINY, 0.0)
    return Bounded(value, x.error * power + lost)


def _wired_block(x: Bounded, name: str, backward: bool) -> Bounded:
    """A block of columns [R, w] as its codes and header leave it; NaN where it is not finite."""
    if name == "fp8":
        arrived = fp8_numbers(x.value, backward)
    else:
        truths = stored_rows(x, name, "nearest")
        codes, scale, bias = (interval_of(truths[part]) for part in ("codes", "scale", "bias"))
        arrived = codes * scale.column() + bias.column()
        # All columns are the bias, which int8 holds as it is.
        same = (x.value == x.value[:, :1]).all(1, keepdims=True) & (x.error == 0)
        if name == "int8":
            arrived = where(same, x, arrived)
    unfit = ~np.isfinite(x.value).all(1, keepdims=True)
    nan = Bounded(np.full(x.value.shape, np.nan), np.zeros(x.value.shape))
    return where(np.broadcast_to(unfit, x.value.shape), nan, arrived)


def _alltoall_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    part = RankPart.of(inputs, options)
    x = Bounded.exactly(inputs["values"])
    arrived = wired(x, _blocks(part, x.value.shape[1], options, switches), options, switches)
    if "wire_home_exact" in switches:
        own = np.zeros(x.value.shape, bool)
        own[part.samples, part.columns(part.owner == part.rank)] = True
        arrived = where(own, x, arrived)
    return {
        "sent_bytes": Truth.exactly(_sent(part, options, switches)),
        "out": in_format(arrived.take(_place(part, options, x.value.shape)), "fp32"),
    }


def _place(part: RankPart, options: Options, shape: tuple[int, ...]) -> tuple[Ints, ...]:
    """What arrives at the rank, of all values."""
    if options["backward"]:
        return np.ix_(np.arange(shape[0]), part.columns(part.owner == part.rank))
    return np.ix_(np.arange(shape[0])[part.samples], np.arange(shape[1]))


def _tree(terms: Sequence[N], rounded: Callable[[N], N]) -> N:
    """The sum in one tree, left half and right half of the next power of two; each is rounded."""
    if len(terms) == 1:
        return terms[0]
    half = 1 << (len(terms) - 1).bit_length() - 1
    return rounded(_tree(terms[:half], rounded) + _tree(terms[half:], rounded))


def _reduce_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    part = RankPart.of(inputs, options)
    _refuse_rounded_blocks(options)
    partials = np.asarray(inputs["partials"], np.float64)
    ends = _blocks(part, partials.shape[2], options, switches)
    terms = []
    for rank, values in enumerate(partials):
        term = Bounded.exactly(values[part.samples])
        stays = rank == part.rank and "wire_home_exact" in switches
        terms.append(term if stays else wired(term, ends, options, switches))
    rounds = bool(options["round_sums"]) and "wire_sums_not_rounded" not in switches
    total = _tree(terms, lambda x: wired(x, [], options) if rounds else x)
    return {
        "sent_bytes": Truth.exactly(_reduced_bytes(part, options)),
        "out": in_format(total, "fp32"),
    }


def _refuse_rounded_blocks(options: Options) -> None:
    """Raise ValueError where sums would be rounded in blocks."""
    if options["round_sums"] and options["format"] in HEADER:
        raise ValueError(f"round_sums rounds number by number: {options['format']} has blocks")


def _reduced_bytes(part: RankPart, options: Options) -> Ints:
    """Bytes of partial sums that the rank hands to every other one, i64[W]."""
    sizes = np.diff(part.cuts) * sum(wire_bytes(int(width), options) for width in part.widths)
    sizes[part.rank] = 0
    return sizes


def _spec(options: Options) -> WireSpec:
    return WireSpec(str(options["format"]), int(options["block"]), float(options["scale"]))


def _rounded(x: Floats, part: RankPart, options: Options, backend: str) -> Floats:
    """Numbers f32[R, C] as neocpu's wires leave them."""
    spec = _spec(options)
    out = x.copy()
    if spec.exact:
        return out
    form = WIRE_FORMATS[spec.format].forms[bool(options["backward"])]
    code: tuple[int, int, np.float32] = (form, spec.block, np.float32(spec.scale))
    if backend == "kernels":
        # It compiles kernels, which nobody who only judges needs.
        from neocpu.kernels.exchange.wires import WireCode

        code = WireCode(*code)
    begins = np.cumsum(part.widths) - part.widths
    jobs = [
        (begin, x.shape[1], begin, x.shape[1], len(x), width)
        for begin, width in zip(begins.tolist(), part.widths.tolist())
    ]
    backend_module("exchange.wires", backend).round_blocks(
        np.ascontiguousarray(x).reshape(-1), out.reshape(-1), np.array(jobs, np.int64), code
    )
    return out


def _alltoall_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    from neocpu.parallel.exchange.two_level import Places

    part = RankPart.of(inputs, options)
    out = _rounded(np.array(inputs["values"], np.float32), part, options, backend)
    spec = _spec(options)
    per_sample = np.bincount(part.owner, spec.bytes(part.widths), part.nodes.size).astype(np.int64)
    sizes = np.multiply.outer(per_sample, np.diff(part.cuts))
    sizes = sizes.T if options["backward"] else sizes
    places = Places(part.nodes, part.rank)
    sent = sizes[part.rank].copy()
    if options["two_level"]:
        servers = places.servers[places.host]
        sent = np.bincount(servers, sizes[part.rank], part.nodes.size).astype(np.int64)
        relayed = np.setdiff1d(places.clients, places.peers)
        sent[relayed] += sizes[np.ix_(places.peers, relayed)].sum(0)
    sent[part.rank] = 0
    return {"sent_bytes": sent, "out": np.ascontiguousarray(out[_place(part, options, out.shape)])}


def _reduce_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    part = RankPart.of(inputs, options)
    _refuse_rounded_blocks(options)
    rounds = bool(options["round_sums"])
    partials = np.array(inputs["partials"], np.float32)[:, part.samples]
    terms = [_rounded(values, part, options, backend) for values in partials]
    total = _tree(terms, lambda x: _rounded(x, part, options, backend) if rounds else x)
    sent = np.diff(part.cuts) * int(_spec(options).bytes(part.widths).sum())
    sent[part.rank] = 0
    return {"sent_bytes": sent, "out": total}


WIRE_OPTIONS: dict[str, Value] = {
    "rank": Whole(0, 0),
    "format": OneOf("fp32", WIRE_FORMATS),
    "block": Whole(32, 1),
    "scale": Number(1.0, LEAST_NORMAL),
    "backward": False,
}
CUTS = Field("rank q's samples are [cuts[q], cuts[q + 1]), int64[W+1]", ("rank",))
DIMS = Field("columns of each key, int64[K]", ("key",))
SENT = Field("bytes handed to each rank, 0 to itself, int64[W]", ("rank",))

ALLTOALL = Operator(
    name="alltoall",
    about="One rank's part of the exchange of pooled vectors, or with backward of their gradients "
    "(TorchRec: PooledEmbeddingsAllToAll with quantised communication): the bytes that it sends, "
    "and the numbers that arrive, own ones too. With two_level it hands them to the rank of its "
    "node that has the receiver's place, which sends those of the whole node on.",
    inputs={
        "values": Field(
            "vectors, or gradients, of the whole batch, fp32[B, C]", ("sample", "column")
        ),
        "dims": DIMS,
        "owner": Field("the rank that pools each key, int64[K]", ("key",)),
        "cuts": CUTS,
        "nodes": Field("the node of each rank, int64[W]; else one node", ("rank",), True),
    },
    options={**WIRE_OPTIONS, "two_level": False},
    outputs={
        "sent_bytes": SENT,
        "out": Field(
            "fp32: [own samples, C]; backward: [B, columns of own keys]", ("sample", "column")
        ),
    },
    run_=_alltoall_bits,
    truth_=_alltoall_truth,
)
REDUCE_SCATTER = Operator(
    name="reduce_scatter",
    about="One rank's part of a sum over ranks: partial sums of all ranks arrive on a wire and are "
    "added in one tree, of halves of the next power of two of the ranks. With round_sums every sum "
    "is rounded as a wire would, too (neocpu's dense gradients); not in blocks.",
    inputs={
        "partials": Field(
            "partial sums of every rank, fp32[W, B, C]", ("rank", "sample", "column")
        ),
        "dims": DIMS,
        "cuts": CUTS,
    },
    options={**WIRE_OPTIONS, "round_sums": False},
    outputs={"sent_bytes": SENT, "out": Field("fp32[own samples, C]", ("sample", "column"))},
    run_=_reduce_bits,
    truth_=_reduce_truth,
)

OPERATORS = (ALLTOALL, REDUCE_SCATTER)
