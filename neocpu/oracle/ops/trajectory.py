"""What becomes of tables over several steps? The operator `trajectory`.

Training steps and evaluations, with a learning rate per step. Rows are touched, skipped, touched
again; evaluations look rows up, change nothing and count as no step. The error bounds of one step
are carried into the next.
"""

import numpy as np

from neocpu.oracle.canonical import encoded, lookup_bits
from neocpu.oracle.canonical.ensemble import averaged_bits
from neocpu.oracle.canonical.global_decay import backward_bits, decayed_inputs
from neocpu.oracle.operator import Arrays, Field, Operator, Options, Switches, Truth, Truths, Value
from neocpu.oracle.ops.backward import HYPER, STATES, STORE, TRAINED, BoundedTables, locate, step
from neocpu.oracle.ops.lookup import BAGS, POOLING, TABLES, looked_up
from neocpu.oracle.truth.bags import DecodedRows
from neocpu.oracle.truth.ensemble import OPTIONS as ENSEMBLE
from neocpu.oracle.truth.ensemble import averaged, keeps_shadow
from neocpu.oracle.truth.formats import decode, in_format, stored
from neocpu.oracle.truth.global_decay import is_active
from neocpu.oracle.truth.numbers import Bounded

PER_STEP = ("indices", "offsets", "per_sample_weights", "grad_output", "batch_sizes")


def batches(inputs: Arrays) -> list[Arrays]:
    """The inputs of every step, those without a step number in each."""
    common = {name: array for name, array in inputs.items() if "/" not in name}
    steps: list[Arrays] = []
    for k in range(inputs["training"].size):
        of_step = {
            name.split("/", 1)[1]: array
            for name, array in inputs.items()
            if name.startswith(f"step{k}/")
        }
        steps.append({**common, **of_step})
    return steps


def _truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    tables = BoundedTables(inputs, options, switches)
    initial_states = {name: state.copy() for name, state in tables.states.items()}
    weights_format = str(options["weights_format"])
    rates = inputs["learning_rates"].tolist()
    outputs: dict[str, Truth] = {}
    count = 0
    shadow = initial_shadow(inputs, options)
    earlier = tables.weights.copy()
    for k, (batch, training) in enumerate(zip(batches(inputs), inputs["training"].tolist())):
        count += bool(training) or "evaluation_counts" in switches
        if training and shadow is not None:
            touched = tables.touched_elements(batch, options, switches)
            tables.weights, shadow = averaged(
                tables.weights, shadow, options, count, touched, switches
            )
            # updates write to these arrays
            tables.weights = stored(tables.weights, weights_format).copy()
        rate = rates[max(k - 1, 0)] if "rate_of_last_step" in switches else rates[k]
        step_options = {**options, "learning_rate": rate, "step": count}
        w = tables.seen_rows(step_options, switches) if training else tables.weights
        w = earlier if "rows_of_earlier_step" in switches else w
        # With the errors of all steps before: a right kernel's rows may be off by so much.
        rows = DecodedRows(w.value, w.error, np.abs(w.value))
        outputs[f"step{k}/out"] = in_format(looked_up(batch, rows, options, switches), "fp32")
        if not training:
            continue
        if "state_not_kept" in switches:
            tables.states = {name: state.copy() for name, state in initial_states.items()}
        earlier = tables.weights.copy()
        step(tables, batch, step_options, switches)
        outputs[f"step{k}/weights"] = in_format(tables.weights.copy(), weights_format)
        outputs |= {f"step{k}/{name}": state for name, state in tables.state_truths().items()}
        # After their truths: a kernel's next step starts from what was stored.
        tables.round_states()
        if shadow is not None:
            shadow_format = str(options["momentum2_format"])
            outputs[f"step{k}/sparse_ema"] = in_format(shadow, shadow_format)
    return outputs


def initial_shadow(inputs: Arrays, options: Options) -> Bounded | None:
    """The average of the weights as it came in, zeros if it did not; None: there is none."""
    if not keeps_shadow(options):
        return None
    if "sparse_ema" not in inputs:
        return Bounded.exactly(np.zeros(inputs["weights"].size))
    codes = inputs["sparse_ema"].reshape(-1)
    return Bounded.exactly(decode(codes, str(options["momentum2_format"])))


def _bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    """Canonical answer: lookups and backwards step by step, from bits to bits."""
    outputs: Arrays = {}
    weights = inputs["weights"]
    states = {name: array for name, array in inputs.items() if name in STATES}
    lookup_options = {**options, "output_format": "fp32", "row_alignment": 1}
    count = 0
    shadow = None
    if keeps_shadow(options):
        zeros = np.zeros(weights.size, np.float32)
        shadow_format = str(options["momentum2_format"])
        shadow = inputs.get("sparse_ema", encoded(zeros, shadow_format, backend))
    for k, (batch, training) in enumerate(zip(batches(inputs), inputs["training"].tolist())):
        if training and shadow is not None:
            weights, shadow = averaged_bits(weights, shadow, options, count + 1, backend)
            outputs[f"step{k}/sparse_ema"] = shadow
        step_inputs = {**batch, "weights": weights, **states}
        count += bool(training)
        rate = float(inputs["learning_rates"][k])
        step_options = {**options, "learning_rate": rate, "step": count}
        lookup_inputs = step_inputs
        if training and is_active(step_options):
            lookup_inputs = decayed_inputs(step_inputs, step_options)
            lookup_format: Value = "fp32"
        else:
            lookup_format = options["weights_format"]
        rows_options = {**lookup_options, "weights_format": lookup_format}
        outputs[f"step{k}/out"] = lookup_bits(lookup_inputs, rows_options, backend)["out"]
        if not training:
            continue
        updated = backward_bits(step_inputs, step_options, backend)
        weights = updated["weights"]
        states = {name: array for name, array in updated.items() if name != "weights"}
        outputs |= {f"step{k}/{name}": array for name, array in updated.items()}
    return outputs


SHADOW = Field(
    "average of the weights, by step_ema and step_swap; per element, in momentum2_format",
    ("element",),
    True,
)
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
    "step's learning rate. Evaluations change nothing and count nothing.",
    inputs={
        **TABLES,
        "feature_table": BAGS["feature_table"],
        "training": Field("1: training step, 0: evaluation, int64[K]", ("step",)),
        "learning_rates": Field("learning rate of each step, fp64[K]", ("step",)),
        **STEPPED,
        **STATES,
        "sparse_ema": SHADOW,
    },
    options={
        **POOLING,
        "weights_format": TRAINED,
        **{k: v for k, v in HYPER.items() if k != "learning_rate"},
        **STORE,
        **ENSEMBLE,
    },
    outputs={
        "out": Field("step0/out, …: pooled rows before the update", ("sample", "column")),
        "weights": Field("step0/weights, …: all tables after each training step", ("element",)),
        **STATES,
        "sparse_ema": SHADOW,
    },
    run_=_bits,
    truth_=_truth,
    locate_=lambda inputs, options, output, index: {
        **({"step": int(output.split("/")[0][4:])} if "/" in output else {}),
        **locate(inputs, options, output, index),
    },
    in_place=True,
)

OPERATORS = (TRAJECTORY,)
