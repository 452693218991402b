"""Which bits does neocpu itself give for an operator? Its kernels, or their NumPy twins.

Narrow rows are decoded exactly to fp32 first and encoded at the end, as `docs/arithmetic.md` says;
between them the kernels of training are called on an operator's flat inputs. `backend` names the
package that answers: "kernels" (Numba) or "reference" (NumPy).
"""

import numpy as np

from neocpu.core.codecs import LAYOUTS, ROUNDINGS
from neocpu.core.formats import FORMATS
from neocpu.core.types import Elements, Floats, Ints
from neocpu.kernels.compile.choice import backend_module
from neocpu.kernels.operands import Bags, Entries, Lines
from neocpu.oracle.operator import Arrays, Options
from neocpu.oracle.truth.bags import SCALED, JaggedBatch, bags_of, row_bytes
from neocpu.oracle.truth.formats import decode

NONE = np.empty(0, np.float32)  # an array that a kernel takes and does not use


def decoded(codes: Elements, name: str) -> Floats:
    """Elements of a format as fp32 numbers, in an array of their own; the inverse of `encoded`."""
    return np.array(codes if name == "fp32" else decode(codes, name), np.float32)


def encoded(x: Floats, name: str, backend: str) -> Elements:
    """Numbers of any shape in a format, to nearest even.

    fp32 as it is; else codes, in records of one field named after the format.
    """
    if name == "fp32":
        return x
    flat = np.ascontiguousarray(x, np.float32).reshape(1, -1)
    codes = np.empty(flat.shape, FORMATS[name].dtype)
    nearest = ROUNDINGS["nearest"]
    backend_module("codecs.small_floats", backend).encode_rows(flat, LAYOUTS[name], nearest, codes)
    return FORMATS[name].view(codes).reshape(x.shape)


def lookups_of(inputs: Arrays, options: Options) -> tuple[JaggedBatch, Ints, Ints, Floats]:
    """The bags; offsets, rows (-1 reads nothing) and weights of all lookups of the inputs."""
    bags = bags_of(inputs, options, frozenset())
    rows = np.full(inputs["indices"].size, -1, np.int64)
    rows[bags.position] = bags.row
    weights = np.ascontiguousarray(inputs.get("per_sample_weights", NONE), np.float32)
    return bags, inputs["offsets"].astype(np.int64), rows, weights


class LookupArguments:
    """Arguments of the kernels of lookups that describe tables and output, by feature.

    table : the elements of all tables, flat, in the rows' format.
    base, stride, width : i64[F], first element of the feature's table, from row to row, columns.
    first_bag : i64[F+1], first bag of each feature.
    shape : of the output.
    place, pitch : i64[F], where the feature's first row begins in the flat output, from row to row.
    """

    def __init__(self, inputs: Arrays, options: Options, bags: JaggedBatch) -> None:
        name = str(options["weights_format"])
        feature_table = inputs["feature_table"].astype(np.int64)
        stride = inputs["dims"].astype(np.int64)
        alignment = int(options.get("row_alignment", 1))
        if name in SCALED:
            sizes = [row_bytes(name, dim) for dim in stride.tolist()]
            stride = np.array([-(-size // alignment) * alignment for size in sizes], np.int64)
        table_sizes = stride * inputs["rows"]
        self.table = np.ascontiguousarray(inputs["weights"]).reshape(-1)
        if name != "fp32":
            code = "u1" if name in SCALED else FORMATS[name].dtype
            # A record of one field names the format, by which kernels are compiled.
            self.table = self.table.view([(name, code)])
        self.base = (np.cumsum(table_sizes) - table_sizes)[feature_table]
        self.stride = stride[feature_table]
        self.width = bags.dims
        self.first_bag = np.append(0, np.cumsum(bags.batch_sizes)).astype(np.int64)
        self.shape: tuple[int, ...] = (
            int(bags.batch_sizes[0]) if bags.batch_sizes.size else 0,
            bags.width,
        )
        self.place = bags.column
        self.pitch = np.full(bags.dims.size, bags.width, np.int64)
        if "batch_sizes" in inputs:
            elements = bags.batch_sizes * bags.dims
            self.shape = (int(elements.sum()),)
            self.place = np.cumsum(elements) - elements
            self.pitch = bags.dims

    def entries(self, first: Ints) -> Entries:
        """The record that kernels take; first : i64[K+1], bags (or lookups) of each entry."""
        return Entries(self.base, self.width, self.stride, first)

    @property
    def lines(self) -> Lines:
        """Where pooled rows go."""
        return Lines(self.place, self.pitch)


def lookup_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    """Canonical answer of `lookup`."""
    bags, offsets, rows, weights = lookups_of(inputs, options)
    arguments = LookupArguments(inputs, options, bags)
    kernels = backend_module("rows.lookup", backend)
    with np.errstate(all="ignore"):
        if options["pooling"] == "none":
            width = int(bags.dims[0]) if bags.dims.size else 0
            first_lookup = offsets[arguments.first_bag]
            # Zeros: lookups that read nothing leave their line alone.
            out = np.zeros((rows.size, width), np.float32)
            lines = Lines(first_lookup[:-1] * width, bags.dims)
            kernels.gathered_rows(
                arguments.table,
                arguments.entries(first_lookup),
                rows,
                weights,
                lines,
                out.reshape(-1),
            )
        else:
            out = np.zeros(arguments.shape, np.float32)
            kernels.pooled_rows(
                arguments.table,
                arguments.entries(arguments.first_bag),
                Bags(offsets, rows, weights),
                options["pooling"] == "mean",
                arguments.lines,
                out.reshape(-1),
            )
    return {"out": encoded(out, str(options["output_format"]), backend)}


def weight_gradient_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    """Canonical gradient of the per-sample weights.

    Exact dot products, rounded once; for MEAN of gradients over L.
    """
    bags, offsets, rows, _ = lookups_of(inputs, options)
    arguments = LookupArguments(inputs, options, bags)
    out = np.zeros(rows.size, np.float32)
    gradient = np.ascontiguousarray(inputs["grad_output"], np.float32).reshape(-1)
    with np.errstate(all="ignore"):
        backend_module("rows.lookup", backend).weight_gradients(
            arguments.table,
            arguments.entries(arguments.first_bag),
            Bags(offsets, rows, NONE),
            gradient,
            options["pooling"] == "mean",
            arguments.lines,
            out,
        )
    return {"per_sample_weights_grad": out}


def gradient_start(inputs: Arrays, bags: JaggedBatch) -> Ints:
    """Where the gradient of each bag begins in the flat grad_output: i64[bags]."""
    if "batch_sizes" not in inputs:
        return bags.sample * bags.width + bags.column[bags.feature]
    elements = bags.batch_sizes * bags.dims
    first = np.cumsum(elements) - elements
    return first[bags.feature] + bags.sample * bags.dims[bags.feature]


def divided(inputs: Arrays, options: Options, bags: JaggedBatch) -> Floats:
    """grad_output f32, clipped, and for MEAN divided by the lengths of the bags."""
    # A copy: MEAN divides in place, and inputs are not modified.
    gradient = np.array(inputs["grad_output"], np.float32)
    limit = np.float32(options.get("max_gradient", 0.0))
    if limit:
        gradient = np.clip(gradient, -limit, limit)
    if options["pooling"] != "mean":
        return gradient
    flat = gradient.reshape(-1)
    start = gradient_start(inputs, bags)
    for f, dim in enumerate(bags.dims.tolist()):
        in_feature = np.flatnonzero(bags.feature == f)
        elements = start[in_feature, None] + np.arange(dim)
        flat[elements] /= np.maximum(bags.length[in_feature], 1).astype(np.float32)[:, None]
    return flat.reshape(gradient.shape)
