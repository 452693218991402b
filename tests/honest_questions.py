"""Which nasty questions do right kernels get? Inputs of every operator, drawn at random.

Subnormal numbers and those next to them, near overflow, cancelling, dyadic, zeros of both signs,
infinities; pruned lookups, empty bags, long ones; usual and unusual hyper-parameters.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from neocpu.core.formats import INFERENCE
from neocpu.oracle.cases.draw import coded
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.truth.bags import SCALED
from neocpu.oracle.truth.states import layout_of
from tests.honest_arithmetic import Array, F
from tests.honest_kernels import Arrays, Options
from tests.honest_rules import RULES

Generator = np.random.Generator
TINY = 2.0**-149


class Question(NamedTuple):
    """One case of an operator."""

    op: str
    inputs: Arrays
    options: Options


def ordinary(rng: Generator, shape: Any) -> Array:
    return rng.standard_normal(shape)


def subnormal(rng: Generator, shape: Any) -> Array:
    return rng.integers(-9, 10, shape) * TINY


def near_underflow(rng: Generator, shape: Any) -> Array:
    return np.ldexp(rng.standard_normal(shape), rng.integers(-150, -120, shape))


def dyadic(rng: Generator, shape: Any) -> Array:
    return rng.integers(-64, 65, shape) / 16


def powers_of_two(rng: Generator, shape: Any) -> Array:
    return np.ldexp(rng.choice([-1.0, 1.0], shape), rng.integers(-12, 12, shape))


def wide_range(rng: Generator, shape: Any) -> Array:
    return np.ldexp(rng.standard_normal(shape), rng.integers(-148, 126, shape))


def middle_range(rng: Generator, shape: Any) -> Array:
    return np.ldexp(rng.standard_normal(shape), rng.integers(-70, 60, shape))


def near_overflow(rng: Generator, shape: Any) -> Array:
    return np.ldexp(rng.uniform(-1, 1, shape), 128)


def cancelling(rng: Generator, shape: Any) -> Array:
    x = rng.choice([1.0, 3.7, 1e5, 2.0**24], shape) * rng.choice([-1, 1], shape)
    return x * (1 + rng.integers(0, 3, shape) * 2.0**-22)


def zeros(rng: Generator, shape: Any) -> Array:
    return np.where(rng.random(shape) < 0.5, -0.0, 0.0)


def mixed(rng: Generator, shape: Any) -> Array:
    x = rng.standard_normal(shape)
    for make in (subnormal, zeros, wide_range, dyadic):
        x = np.where(rng.random(shape) < 0.15, make(rng, shape), x)
    return x


def special(rng: Generator, shape: Any) -> Array:
    x = rng.standard_normal(shape)
    values = rng.choice([np.inf, -np.inf, np.nan, 3e38, -3e38, TINY], shape)
    return np.where(rng.random(shape) < 0.1, values, x)


MOODS: tuple[tuple[Callable[[Generator, Any], Array], float], ...] = (
    (ordinary, 5),
    (subnormal, 4),
    (near_underflow, 4),
    (dyadic, 2),
    (powers_of_two, 1),
    (wide_range, 2),
    (middle_range, 2),
    (near_overflow, 1),
    (cancelling, 1),
    (zeros, 0.5),
    (mixed, 3),
    (special, 1),
)
MOOD_SHARES = np.array([share for _, share in MOODS]) / sum(share for _, share in MOODS)


def nasty(rng: Generator, shape: Any) -> Array:
    """fp32 numbers of one mood."""
    make = MOODS[int(rng.choice(len(MOODS), p=MOOD_SHARES))][0]
    with np.errstate(all="ignore"):
        return make(rng, shape).astype(F)


def mild(rng: Generator, shape: Any) -> Array:
    """Ordinary numbers most of the time."""
    return ordinary(rng, shape).astype(F) if rng.random() < 0.6 else nasty(rng, shape)


def row_bytes(rng: Generator, name: str, rows: Array, dims: Array, alignment: int) -> Array:
    """Random bytes of row-scaled rows: scales and biases of any size, no NaN."""
    bits, dtype, header_first = SCALED[name]
    parts = []
    for count, dim in zip(rows.tolist(), dims.tolist()):
        code_bytes = -(-dim * bits // 8)
        codes = rng.integers(0, 256, (count, code_bytes), dtype=np.uint8)
        with np.errstate(all="ignore"):
            header = mild(rng, (count, 2)).astype(dtype)
        header = np.where(np.isfinite(header), header, 1).astype(dtype).view(np.uint8)
        row = np.concatenate([header, codes] if header_first else [codes, header], axis=1)
        padding = ((0, 0), (0, -row.shape[1] % alignment))
        parts.append(np.pad(row, padding).reshape(-1))
    return np.concatenate(parts)


class Shapes:
    """What a campaign asks for. long_bags : share of questions with bags of up to 2000 lookups."""

    long_bags = 0.02


def tables_and_bags(rng: Generator, options: Options) -> Arrays:
    """Tables, and bags of rows of them; few large shapes, so that answers are cheap."""
    tables = int(rng.integers(1, 3))
    long = rng.random() < Shapes.long_bags
    dims = rng.integers(1, 5 if long else 10, tables)
    if options["pooling"] == "none":
        dims[:] = dims[0]
    rows = rng.integers(1, 400 if long else 7, tables)
    features = rng.integers(0, tables, 1 if long else int(rng.integers(1, 4)))
    name = str(options.get("weights_format", "fp32"))
    if name in SCALED:
        weights = row_bytes(rng, name, rows, dims, int(options.get("row_alignment", 1)))
    else:
        weights = coded(nasty(rng, int(rows @ dims)), name)
    return {
        "weights": weights,
        "rows": rows,
        "dims": dims,
        "feature_table": features,
        **bags_of(rng, rows[features], long),
    }


def bags_of(rng: Generator, rows: Array, long: bool = False) -> Arrays:
    """Bags of every feature; rows : how many each feature's table has."""
    samples = 1 if long else int(rng.integers(1, 5))
    lengths = rng.choice([0, 1, 2, 3, 4, 5, 8, 16, 7], (rows.size, samples))
    if long:
        lengths[:] = rng.integers(100, 2000)
    of_lookup = np.repeat(np.repeat(rows, samples), lengths.reshape(-1))
    indices = (rng.random(of_lookup.size) * of_lookup).astype(np.int64)
    if rng.random() < 0.3:
        indices[rng.random(indices.size) < 0.3] = -1
    return {"indices": indices, "offsets": np.append(0, np.cumsum(lengths.reshape(-1)))}


def with_weights(rng: Generator, inputs: Arrays) -> Arrays:
    """Per-sample weights, now and then."""
    if rng.random() < 0.5:
        inputs["per_sample_weights"] = mild(rng, inputs["indices"].size)
    return inputs


def gradient_for(rng: Generator, inputs: Arrays, pooling: str) -> Array:
    """A gradient of the output of a lookup."""
    dims = inputs["dims"][inputs["feature_table"]]
    if pooling == "none":
        return nasty(rng, (inputs["indices"].size, int(dims[0])))
    samples = (inputs["offsets"].size - 1) // dims.size
    return nasty(rng, (samples, int(dims.sum())))


def pooling(rng: Generator) -> str:
    return str(rng.choice(["sum", "mean", "mean", "none"], p=[0.35, 0.3, 0.3, 0.05]))


def ask_lookup(rng: Generator) -> Question:
    formats = ["fp32", "fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", *SCALED]
    options: Options = {"pooling": pooling(rng), "weights_format": str(rng.choice(formats))}
    options["output_format"] = str(rng.choice(["fp32", "fp32", "fp16", "bf16"]))
    if options["weights_format"] in INFERENCE:
        options["row_alignment"] = int(rng.choice([1, 16]))
    return Question("lookup", with_weights(rng, tables_and_bags(rng, options)), options)


def ask_weight_gradient(rng: Generator) -> Question:
    options: Options = {"pooling": str(rng.choice(["sum", "mean"]))}
    inputs = with_weights(rng, tables_and_bags(rng, options))
    inputs["grad_output"] = gradient_for(rng, inputs, "sum")
    return Question("weight_gradient", inputs, options)


def ask_unique_gradient(rng: Generator) -> Question:
    options: Options = {"pooling": pooling(rng)}
    inputs = with_weights(rng, tables_and_bags(rng, options))
    inputs["grad_output"] = gradient_for(rng, inputs, str(options["pooling"]))
    if rng.random() < 0.2:
        options["max_gradient"] = float(rng.choice([0.1, 1.0, 3e-45, 1e-40]))
    return Question("unique_gradient", inputs, options)


def ask_segment_sum(rng: Generator) -> Question:
    lengths = rng.choice([0, 1, 2, 5, 33], int(rng.integers(1, 6)))
    values = nasty(rng, (int(lengths.sum()), int(rng.integers(1, 6))))
    return Question(
        "segment_sum", {"values": values, "offsets": np.append(0, lengths.cumsum())}, {}
    )


def hyper_parameters(rng: Generator, rule: str) -> Options:
    """Options of `backward`, the usual ones and hard ones."""

    def pick(*values: float) -> float:
        return float(rng.choice(values))

    options: Options = {
        "optimizer": rule,
        "learning_rate": pick(0.01, 0.1, 0.0625, 1.0, 1e-6, 20.0, 0.0),
        "eps": pick(1e-8, 1e-8, 2.0**-20, 1e-10, 1e-30, 1.0),
        "beta1": pick(0.9, 0.875, 0.0, 0.5),
        "beta2": pick(0.999, 1 - 2.0**-10, 0.99, 0.3),
        "momentum": pick(0.9, 0.625, 0.0),
        "eta": pick(0.001, 0.125),
        "step": int(rng.choice([1, 2, 3, 10, 1000])),
    }
    if rng.random() < 0.5:
        modes = ["l2", "decoupled"]
        options["weight_decay_mode"] = str(rng.choice(modes))
        options["weight_decay"] = pick(0.01, 0.125, 1e-6)
    if rng.random() < 0.15:
        options["max_norm"] = pick(1.0, 0.3, 1e-3)
    if rng.random() < 0.15:
        options["max_gradient"] = pick(0.1, 1.0, 1e-40)
    if "counter" in rule or "cowclip" in rule:
        options["counter_halflife"] = int(rng.choice([-1, 8, 100]))
    if "cowclip" in rule:
        options["weight_norm_coefficient"] = pick(0.5, 0.1)
        options["lower_bound"] = pick(0.125, 0.01)
    if rule.endswith("with_counter"):
        rates = ["equal", "counter_sgd", "tail_id_lr_increase", "tail_id_lr_decrease"]
        options["learning_rate_mode"] = str(rng.choice(rates))
        options["tail_id_threshold"] = pick(0.0, 2.5)
        options["max_counter"] = pick(1.0, 7.0)
        options["adjustment_iter"] = int(rng.choice([-1, 2]))
        options["adjustment_ub"] = pick(1.0, 0.5, 0.3)
    if rule == "ftrl":
        options["learning_rate"] = pick(0.01, 0.5)
        options["weight_decay"] = 0.0
        options |= {"lambda1": pick(0.0, 0.01, 1.0), "lambda2": pick(0.0, 0.1)}
        options["beta"] = pick(1.0, 0.3)
    if rng.random() < 0.15:
        options["momentum1_format"] = str(rng.choice(["fp16", "bf16"]))
        options["momentum2_format"] = str(rng.choice(["fp32", "bf16"]))
    if rule == "rowwise_rmsprop":
        options["ar_alpha"] = pick(0.0, 0.25, 0.1)
        options["min_shrinkage"] = pick(0.5, 0.1)
    return options


def states(rng: Generator, inputs: Arrays, options: Options) -> Arrays:
    """States of a rule as after some steps; none at all at times."""
    if rng.random() < 0.2:
        return {}
    layout = layout_of(options)
    arrays: Arrays = {}
    for name in (*layout.element, *layout.row):
        elements = int(inputs["rows"] @ inputs["dims"])
        size = elements if name in layout.element else int(inputs["rows"].sum())
        if name == "prev_iter":
            arrays[name] = rng.integers(0, int(options["step"]), size).astype(F)
        elif name == "row_counter":
            arrays[name] = rng.integers(0, 9, size).astype(F)
        else:
            value = mild(rng, size)
            signed = name in ("momentum_buffer", "exp_avg", "linear")
            arrays[name] = coded(value if signed else np.abs(value), layout.formats[name])
    return arrays


def ask_backward(rng: Generator) -> Question:
    rule = str(rng.choice(list(RULES)))
    options = hyper_parameters(rng, rule)
    options["pooling"] = pooling(rng)
    options["weights_format"] = str(rng.choice(["fp32", "fp32", "fp32", "fp16", "bf16"]))
    inputs = with_weights(rng, tables_and_bags(rng, options))
    inputs["weights"] = coded(
        mild(rng, int(inputs["rows"] @ inputs["dims"])), options["weights_format"]
    )
    inputs |= states(rng, inputs, OPERATORS["backward"].complete(options))
    inputs["grad_output"] = gradient_for(rng, inputs, str(options["pooling"]))
    return Question("backward", inputs, options)


def ask_trajectory(rng: Generator) -> Question:
    """Two to four steps on one set of tables, now and then an evaluation."""
    first = ask_backward(rng)
    options = {key: v for key, v in first.options.items() if key not in ("learning_rate", "step")}
    steps = int(rng.integers(2, 5))
    per_step = ("indices", "offsets", "per_sample_weights", "grad_output")
    inputs = {key: array for key, array in first.inputs.items() if key not in per_step}
    inputs["training"] = np.where(rng.random(steps) < 0.8, 1, 0)
    inputs["learning_rates"] = rng.choice([0.01, 0.1, 1.0], steps)
    rows = inputs["rows"][inputs["feature_table"]]
    for k in range(steps):
        batch = {**inputs, **bags_of(rng, rows)}
        if "per_sample_weights" in first.inputs:
            batch["per_sample_weights"] = mild(rng, batch["indices"].size)
        batch["grad_output"] = gradient_for(rng, batch, str(options["pooling"]))
        inputs |= {f"step{k}/{key}": batch[key] for key in per_step if key in batch}
    return Question("trajectory", inputs, options)


def ask_dequantize(rng: Generator) -> Question:
    name = str(rng.choice(["int8", "int4", "int2"]))
    rows = rng.integers(1, 5, 1)
    dims = 4 * rng.integers(1, 4, 1)
    codes = row_bytes(rng, name, rows, dims, 1).reshape(int(rows[0]), -1)
    return Question("dequantize", {"codes": codes}, {"format": name, "columns": int(dims[0])})
