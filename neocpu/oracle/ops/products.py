"""What must products of bf16, fp16 or fp8 operands with fp32 sums give? Operators `narrow_gemm`,
`narrow_mlp` and `narrow_interaction`.

Operands come as fp32 numbers and are rounded to nearest even on their way in, as a training in
mixed precision does (docs/precision.md); numbers of the format stay what they are, so that a kernel
that takes codes is asked the same. Scales of fp8 are powers of two at most, which change no bit,
and are left out here.
"""

import numpy as np

from neocpu.core.codecs import LAYOUTS, NEAREST
from neocpu.core.formats import FORMATS
from neocpu.kernels.compile.choice import backend_module
from neocpu.kernels.operands import OperandFormat
from neocpu.oracle.operator import Arrays, Field, Operator, Options, Switches, Truth, Truths, Value
from neocpu.oracle.ops.lookup import FLOATS, rounding_of
from neocpu.oracle.options import OneOf
from neocpu.oracle.truth.dense.products import layer, operand, pairs, products, relu
from neocpu.oracle.truth.formats import in_format, stored
from neocpu.oracle.truth.numbers import Bounded

NO_BIAS = np.empty(0, np.float32)
NO_GATE = np.empty((0, 0), np.float32)
LAYERS = (1, 2, 3)
OPTIONS: dict[str, Value] = {
    "format": OneOf("bf16", FLOATS[1:]),
    "output": OneOf("fp32", FLOATS),
}


def _rounded(x: np.ndarray, options: Options, backend: str) -> np.ndarray:
    """The operand f32[R, C] of x."""
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty_like(x)
    form = OperandFormat(LAYOUTS[str(options["format"])], np.float32(1), np.float32(np.inf))
    backend_module("dense.operands", backend).round_operand(x, form, NEAREST, out, False)
    return out


def _written(x: np.ndarray, form: str, backend: str) -> np.ndarray:
    """Numbers f32[R, C] as an output has them."""
    if form == "fp32":
        return x
    codes = np.empty(x.shape, FORMATS[form].dtype)
    backend_module("codecs.small_floats", backend).encode_rows(x, LAYOUTS[form], NEAREST, codes)
    return FORMATS[form].view(codes)


def _output(x: Bounded, options: Options, switches: Switches) -> Truth:
    rounding = {"truncate": "toward_zero"}.get(
        rounding_of(options, switches), rounding_of(options, switches)
    )
    return in_format(x, str(options["output"]), rounding)


# ---- one product ----


def _matrices(inputs: Arrays, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """a f32[M, K] and b f32[N, K], whatever axis of the inputs is contracted."""
    a, b = inputs["a"], inputs["b"]
    product = options["product"]
    return (a.T if product == "weight_gradient" else a, b if product == "layer" else b.T)


def _gemm_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    a, b = _matrices(inputs, options)
    left = Bounded.exactly(operand(a, options, switches))
    if options["product"] != "layer":
        right = operand(b, options, switches)
        return {"out": _output(products(left, right, options, switches), options, switches)}
    bias = inputs.get("bias", NO_BIAS)
    if options["relu"] and "relu_before_bias" in switches and bias.size:
        total = relu(layer(left, b, NO_BIAS, options, switches))
        added = np.broadcast_to(np.asarray(bias, np.float64), total.value.shape)
        return {"out": _output(total + Bounded.exactly(added), options, switches)}
    total = layer(left, b, bias, options, switches)
    return {"out": _output(relu(total) if options["relu"] else total, options, switches)}


def _gemm_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    gemm = backend_module("dense.gemm", backend)
    a = _rounded(inputs["a"], options, backend)
    b = _rounded(inputs["b"], options, backend)
    left, right = _matrices({"a": a, "b": b}, options)
    out = np.empty((len(left), len(right)), np.float32)
    if options["product"] == "layer":
        bias = inputs.get("bias", NO_BIAS)
        bias = bias if bias.size else np.zeros(len(b), np.float32)
        gemm.layer(a, b, np.ascontiguousarray(bias, np.float32), bool(options["relu"]), out)
    elif options["product"] == "input_gradient":
        gemm.input_gradient(a, b, NO_GATE, out)
    else:
        cuts = np.array([0, len(a)], np.int64)
        gemm.weight_gradient(a, b, cuts, out, np.empty(0, np.float32))
    return {"out": _written(out, str(options["output"]), backend)}


# ---- layers behind one another ----


def _mlp_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    form = str(options["format"])
    x = Bounded.exactly(operand(inputs["x"], options, switches))
    truths: dict[str, Truth] = {}
    for number, last in _numbered(inputs):
        total = layer(x, inputs[f"w{number}"], inputs[f"b{number}"], options, switches)
        if last:
            return truths | {"out": _output(total, options, switches)}
        total = relu(total)
        truths[f"h{number}"] = in_format(total, form)
        x = total if "hidden_not_rounded" in switches else stored(total, form)
    return truths


def _numbered(inputs: Arrays) -> list[tuple[int, bool]]:
    """(number of a layer, is it the last?)."""
    present = [number for number in LAYERS if f"w{number}" in inputs]
    return [(number, number == present[-1]) for number in present]


def _mlp_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    gemm = backend_module("dense.gemm", backend)
    x = _rounded(inputs["x"], options, backend)
    outputs: Arrays = {}
    for number, last in _numbered(inputs):
        w = _rounded(inputs[f"w{number}"], options, backend)
        out = np.empty((len(x), len(w)), np.float32)
        bias = np.ascontiguousarray(inputs[f"b{number}"], np.float32)
        gemm.layer(x, w, bias, not last, out)
        name = "out" if last else f"h{number}"
        form = str(options["output" if last else "format"])
        outputs[name] = _written(out, form, backend)
        x = _rounded(out, options, backend)
    return outputs


# ---- pairs of vectors ----


def _interaction_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    e = operand(inputs["e"], options, switches)
    dots = pairs(e, bool(options["diagonal"]), options, switches)
    first = Bounded.exactly(e[:, 0])
    value = np.hstack([first.value, dots.value])
    error = np.hstack([first.error, dots.error])
    return {"out": _output(Bounded(value, error), options, switches)}


def _interaction_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    samples, vectors, width = inputs["e"].shape
    e = _rounded(inputs["e"].reshape(samples, vectors * width), options, backend)
    diagonal = bool(options["diagonal"])
    dots = vectors * (vectors - 1) // 2 + vectors * diagonal
    out = np.empty((samples, width + dots), np.float32)
    backend_module("dense.interaction", backend).dot_forward(e, width, diagonal, out)
    return {"out": _written(out, str(options["output"]), backend)}


GEMM = Operator(
    name="narrow_gemm",
    about="A product of matrices of bf16, fp16 or fp8 numbers that adds in fp32. product: layer, a "
    "times b transposed, plus bias, with a ReLU or not; input_gradient, a times b; "
    "weight_gradient, a transposed times b.",
    inputs={
        "a": Field("fp32[M, K]; weight_gradient: [K, M]; rounded to the format", ("row", "step")),
        "b": Field("fp32[N, K]; else [K, N]; rounded to the format", ("row", "step")),
        "bias": Field("fp32[N], added in fp32; of a layer", ("column",), optional=True),
    },
    options={
        "product": OneOf("layer", ("layer", "input_gradient", "weight_gradient")),
        "relu": False,
        **OPTIONS,
    },
    outputs={"out": Field("fp32 or codes of `output` [M, N]", ("row", "column"))},
    run_=_gemm_bits,
    truth_=_gemm_truth,
)
MLP = Operator(
    name="narrow_mlp",
    about="Two or three layers: operands of bf16, fp16 or fp8 numbers, sums and biases in fp32, a "
    "ReLU after all but the last, outputs of hidden layers rounded to the format.",
    inputs={
        "x": Field("fp32[B, in], rounded to the format", ("sample", "column")),
        **{
            name: Field(about, axes, optional=number == LAYERS[-1])
            for number in LAYERS
            for name, about, axes in (
                (f"w{number}", "fp32[out, in], rounded to the format", ("row", "column")),
                (f"b{number}", "fp32[out]", ("column",)),
            )
        },
    },
    options=OPTIONS,
    outputs={
        "h1": Field("codes of the format [B, out]", ("sample", "column")),
        "h2": Field("codes of the format [B, out]", ("sample", "column"), optional=True),
        "out": Field("fp32 or codes of `output` [B, out]", ("sample", "column")),
    },
    run_=_mlp_bits,
    truth_=_mlp_truth,
)
INTERACTION = Operator(
    name="narrow_interaction",
    about="DLRM's dot interaction of bf16, fp16 or fp8 vectors that adds in fp32: the first "
    "vector, then the products of pairs, the lower triangle row by row.",
    inputs={"e": Field("fp32[B, F, D], rounded to the format", ("sample", "vector", "column"))},
    options={"diagonal": False, **OPTIONS},
    outputs={"out": Field("fp32 or codes of `output` [B, D + pairs]", ("sample", "column"))},
    run_=_interaction_bits,
    truth_=_interaction_truth,
)
OPERATORS = (GEMM, MLP, INTERACTION)
