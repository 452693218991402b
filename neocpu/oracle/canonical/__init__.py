"""Which bits does neocpu itself give for an operator? Its kernels, or their twins, called on an
operator's flat inputs.

Narrow rows are decoded exactly to fp32 first and encoded at the end, as `docs/arithmetic.md` says;
what lies between are the kernels that train. `backend` is the package that is asked: "kernels"
(Numba) or "reference" (NumPy).
"""

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.formats import FORMATS
from neocpu.kernels.operands import Bags, Entries, Lines
from neocpu.oracle.operator import Arrays, Value
from neocpu.oracle.truth.bags import SCALED, CaseBags, bags_of, row_bytes
from neocpu.reference.codecs import LAYOUTS, ROUNDINGS

Floats = NDArray[np.float32]
NONE = np.empty(0, np.float32)


def asked(name: str, backend: str) -> Any:
    """The module of that name among the kernels or among their twins."""
    return import_module(f"neocpu.{backend}.{name}")


def coded(x: Floats, name: str, backend: str) -> NDArray[Any]:
    """Numbers of any shape as codes of a format, to nearest even: fp32, or records of one field
    named after the format.
    """
    if name == "fp32":
        return x
    flat = np.ascontiguousarray(x, np.float32).reshape(1, -1)
    out = np.empty(flat.shape, FORMATS[name].dtype)
    asked("codecs", backend).encode_rows(flat, LAYOUTS[name], ROUNDINGS["nearest"], out)
    return FORMATS[name].view(out).reshape(x.shape)


def lookups_of(
    inputs: Arrays, options: dict[str, Value]
) -> tuple[CaseBags, NDArray[np.int64], NDArray[np.int64], Floats]:
    """The bags; offsets, rows (-1 reads nothing) and weights of all lookups."""
    bags = bags_of(inputs, options, frozenset())
    rows = np.full(inputs["indices"].size, -1, np.int64)
    rows[bags.place] = bags.at
    weights = np.ascontiguousarray(inputs.get("per_sample_weights", NONE), np.float32)
    return bags, inputs["offsets"].astype(np.int64), rows, weights


class RowPlaces:
    """Where everything stands, as `kernels.lookup` wants to be told: by feature, in elements of the
    rows' format.
    """

    def __init__(self, inputs: Arrays, options: dict[str, Value], bags: CaseBags) -> None:
        name = str(options["weights_format"])
        of = inputs["feature_table"].astype(np.int64)
        step = inputs["dims"].astype(np.int64)
        unit = int(options.get("row_alignment", 1))
        if name in SCALED:
            step = np.array([-(-row_bytes(name, int(d)) // unit) * unit for d in step], np.int64)
        size = step * inputs["rows"]
        codes = np.ascontiguousarray(inputs["weights"]).reshape(-1)
        self.table = (
            codes
            if name == "fp32"
            else codes.view([(name, "u1" if name in SCALED else FORMATS[name].dtype)])
        )
        self.base = (np.cumsum(size) - size)[of]
        self.stride = step[of]
        self.width = bags.dims
        self.first_bag = np.append(0, np.cumsum(bags.batch)).astype(np.int64)
        self.shape: tuple[int, ...] = (int(bags.batch[0]) if bags.batch.size else 0, bags.width)
        self.place = bags.column
        self.pitch = np.full(bags.dims.size, bags.width, np.int64)
        if "batch_sizes" in inputs:
            elements = bags.batch * bags.dims
            self.shape = (int(elements.sum()),)
            self.place = np.cumsum(elements) - elements
            self.pitch = bags.dims

    def entries(self, first: NDArray[np.int64]) -> Entries:
        """The record that kernels take; first i64[K+1]: bags (or lookups) of each entry."""
        return Entries(self.base, self.width, self.stride, first)

    @property
    def lines(self) -> Lines:
        """Where pooled rows go."""
        return Lines(self.place, self.pitch)


def lookup_bits(inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    """Canonical answer of `lookup`."""
    bags, offsets, rows, weights = lookups_of(inputs, options)
    at = RowPlaces(inputs, options, bags)
    kernels = asked("lookup", backend)
    with np.errstate(all="ignore"):
        if options["pooling"] == "none":
            width = int(bags.dims[0]) if bags.dims.size else 0
            first = offsets[at.first_bag]
            out = np.zeros((rows.size, width), np.float32)
            lines = Lines(first[:-1] * width, bags.dims)
            kernels.gathered_rows(
                at.table, at.entries(first), rows, weights, lines, out.reshape(-1)
            )
        else:
            out = np.zeros(at.shape, np.float32)
            mean = options["pooling"] == "mean"
            kernels.pooled_rows(
                at.table,
                at.entries(at.first_bag),
                Bags(offsets, rows, weights),
                mean,
                at.lines,
                out.reshape(-1),
            )
    return {"out": coded(out, str(options["output_format"]), backend)}


def weight_gradient_bits(inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    """Canonical gradient of the per-sample weights: exact dot products, rounded once, of gradients
    over L for MEAN.
    """
    bags, offsets, rows, _ = lookups_of(inputs, options)
    at = RowPlaces(inputs, options, bags)
    out = np.zeros(rows.size, np.float32)
    gradient = np.ascontiguousarray(inputs["grad_output"], np.float32).reshape(-1)
    with np.errstate(all="ignore"):
        asked("lookup", backend).weight_gradients(
            at.table,
            at.entries(at.first_bag),
            Bags(offsets, rows, NONE),
            gradient,
            options["pooling"] == "mean",
            at.lines,
            out,
        )
    return {"per_sample_weights_grad": out}


def columns_of(inputs: Arrays, bags: CaseBags) -> NDArray[np.int64]:
    """Where the gradient of each bag begins in the flat grad_output: i64[bags]."""
    if "batch_sizes" in inputs:
        start = np.cumsum(bags.batch * bags.dims) - bags.batch * bags.dims
        return start[bags.feature] + bags.sample * bags.dims[bags.feature]
    return bags.sample * bags.width + bags.column[bags.feature]


def divided(inputs: Arrays, options: dict[str, Value], bags: CaseBags) -> Floats:
    """grad_output f32, clipped, and for MEAN divided by the lengths of the bags."""
    given = np.array(inputs["grad_output"], np.float32)
    most = np.float32(options.get("max_gradient", 0.0))
    if most:
        given = np.clip(given, -most, most)
    if options["pooling"] != "mean":
        return given
    flat = given.reshape(-1)
    first = columns_of(inputs, bags)
    for f, d in enumerate(bags.dims.tolist()):
        mine = np.flatnonzero(bags.feature == f)
        at = first[mine, None] + np.arange(d)
        flat[at] /= np.maximum(bags.length[mine], 1).astype(np.float32)[:, None]
    return flat.reshape(given.shape)
