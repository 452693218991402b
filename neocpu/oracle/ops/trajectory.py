"""What becomes of tables over several steps? The operator `trajectory`: training steps,
evaluations, a rate per step.

Rows are touched, skipped, touched again; the rate follows a schedule; evaluations look rows up and
must leave nothing behind, no step counted. Errors of one step are carried into the next, so the
bounds grow as they must.
"""

from typing import Any

import numpy as np

from neocpu.oracle.canonical import lookup_bits
from neocpu.oracle.canonical.update import backward_bits
from neocpu.oracle.operator import Arrays, Field, Operator, Truth, Value
from neocpu.oracle.ops.backward import HYPER, STATES, STORE, TableMemory, locate, step
from neocpu.oracle.ops.lookup import BAGS, POOLING, TABLES, joined
from neocpu.oracle.truth.bags import bags_of
from neocpu.oracle.truth.formats import in_format
from neocpu.oracle.truth.lookups import pooled, sequence
from neocpu.oracle.truth.numbers import Bounded

PER_STEP = ("indices", "offsets", "per_sample_weights", "grad_output", "batch_sizes")


def batches(inputs: Arrays) -> list[Arrays]:
    """The inputs of every step, those without a step number in each."""
    common = {name: array for name, array in inputs.items() if "/" not in name}
    found: list[Arrays] = []
    for k in range(inputs["training"].size):
        own = {
            name.split("/", 1)[1]: array
            for name, array in inputs.items()
            if name.startswith(f"step{k}/")
        }
        found.append({**common, **own})
    return found


def _seen(
    memory: TableMemory, batch: Arrays, options: dict[str, Value], switches: frozenset[str]
) -> Bounded:
    bags = bags_of(batch, options, switches)
    w = memory.weights
    rows = w.value, w.error, np.abs(w.value)
    if options["pooling"] == "none":
        return sequence(bags, rows, batch["indices"].size)
    return joined(bags, pooled(bags, rows, options, switches), "batch_sizes" in batch)


def _truth(inputs: Arrays, options: dict[str, Value], switches: frozenset[str]) -> dict[str, Truth]:
    memory = TableMemory(inputs, options, switches)
    found = dict[str, Truth]()
    start = {name: (x.value.copy(), x.error.copy()) for name, x in memory.states.items()}
    name = str(options["weights_format"])
    count = 0
    rates = inputs["learning_rates"].tolist()
    for k, (batch, training) in enumerate(zip(batches(inputs), inputs["training"].tolist())):
        found[f"step{k}/out"] = in_format(_seen(memory, batch, options, switches), "fp32")
        count += bool(training) or "evaluation_counts" in switches
        if not training:
            continue
        rate = rates[max(k - 1, 0)] if "rate_of_last_step" in switches else rates[k]
        if "state_not_kept" in switches:
            memory.states = {n: Bounded(v.copy(), e.copy()) for n, (v, e) in start.items()}
        step(memory, batch, {**options, "learning_rate": rate, "step": count}, switches)
        found[f"step{k}/weights"] = in_format(_copy(memory.weights), name)
        found |= {f"step{k}/{n}": in_format(_copy(x), "fp32") for n, x in memory.states.items()}
    return found


def _copy(x: Bounded) -> Bounded:
    return Bounded(x.value.copy(), x.error.copy())


def _bits(inputs: Arrays, options: dict[str, Value], backend: str) -> Arrays:
    found: dict[str, Any] = {}
    weights = inputs["weights"]
    states = {n: a for n, a in inputs.items() if n in STATES}
    count = 0
    for k, (batch, training) in enumerate(zip(batches(inputs), inputs["training"].tolist())):
        now = {**batch, "weights": weights, **states}
        found[f"step{k}/out"] = lookup_bits(
            now, {**options, "output_format": "fp32", "row_alignment": 1}, backend
        )["out"]
        if not training:
            continue
        count += 1
        rate = float(inputs["learning_rates"][k])
        after = backward_bits(now, {**options, "learning_rate": rate, "step": count}, backend)
        weights = after["weights"]
        states = {n: a for n, a in after.items() if n != "weights"}
        found |= {f"step{k}/{name}": array for name, array in after.items()}
    return found


STEPPED = {
    f"step0/{name}": Field(f"{field.about}; likewise step1/{name}, …", field.axes, field.optional)
    for name, field in {
        **BAGS,
        "grad_output": Field("gradient of the pooled rows, of training steps", (), True),
    }.items()
    if name in PER_STEP
}

TRAJECTORY = Operator(
    name="trajectory",
    about="Several steps in a row: lookup, then (in training steps) fused backward with the "
    "step's learning rate. "
    "Evaluations change nothing and count nothing.",
    inputs={
        **TABLES,
        "feature_table": BAGS["feature_table"],
        "training": Field("1: training step, 0: evaluation, int64[K]", ("step",)),
        "learning_rates": Field("learning rate of each step, fp64[K]", ("step",)),
        **STEPPED,
        **STATES,
    },
    options={**POOLING, **{k: v for k, v in HYPER.items() if k != "learning_rate"}, **STORE},
    outputs={
        "out": Field("step0/out, …: pooled rows before the update", ("sample", "column")),
        "weights": Field("step0/weights, …: all tables after each training step", ("element",)),
        **STATES,
    },
    run_=_bits,
    truth_=_truth,
    locate_=lambda inputs, options, output, index: {
        **({"step": int(output.split("/")[0][4:])} if "/" in output else {}),
        **locate(inputs, options, output, index),
    },
)

OPERATORS = (TRAJECTORY,)
