"""Which bits does an update give whose rows also decay for the steps that they missed?

Touched rows are multiplied by their factors G (`truth/global_decay.py`) and updated with decoupled
weight decay. G = max(fl(decay_lower_bound), fl(c^n)), c = fl(1 - lr*wd), the power by binary
powering in fp64; a row is fl(G*w).
"""

import numpy as np

from neocpu.core.types import Floats, Ints
from neocpu.kernels.twins.rows.row_counters import missed_decay
from neocpu.oracle.canonical import decoded, encoded, lookups_of
from neocpu.oracle.canonical import update as plain_update
from neocpu.oracle.operator import Arrays, Options, Value
from neocpu.oracle.options import optimizer_of
from neocpu.oracle.truth.bags import tables_of
from neocpu.oracle.truth.global_decay import is_active
from neocpu.oracle.truth.states import GLOBAL


def factors(inputs: Arrays, options: Options) -> Floats:
    """G of every row of all tables; one NumPy program is kernel and twin."""
    rows = int(inputs["rows"].sum())
    prev_iter = np.array(inputs.get("prev_iter", np.zeros(rows)), np.float32)
    step = int(options["step"])
    keep = optimizer_of(_decoupled(options)).hyper(step).keep
    return missed_decay(prev_iter, step, keep, float(options["decay_lower_bound"]))


def decayed_inputs(inputs: Arrays, options: Options) -> Arrays:
    """The inputs of a training step's lookup: all rows decayed, as fp32."""
    return {**inputs, "weights": _numbers(inputs, options) * _by_element(inputs, options)}


def backward_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    """Canonical answer of `backward`, for every mode of weight decay.

    Raises ValueError for split rows and stochastic rounding with `decoupled_global`.
    """
    if options["weight_decay_mode"] != GLOBAL:
        return plain_update.backward_bits(inputs, options, backend)
    form = str(options["weights_format"])
    if "weights_low" in inputs or (form != "fp32" and options["rounding"] != "nearest"):
        raise ValueError(
            f"weight_decay_mode {GLOBAL}: there are canonical bits of fp32 rows and of rows that "
            'are rounded to nearest; "truth" has the others too'
        )
    rows = int(inputs["rows"].sum())
    prev_iter = np.array(inputs.get("prev_iter", np.zeros(rows)), np.float32).reshape(-1)
    weights = _numbers(inputs, options)
    touched = _touched_rows(inputs, options)
    # Only these: rows that rest are not even decoded and encoded again.
    elements = np.repeat(_touched_mask(rows, touched), _row_widths(inputs))
    if is_active(options):
        decay = _by_element(inputs, options)
        weights[elements] = decay[elements] * weights[elements]
        prev_iter[touched] = np.float32(int(options["step"]))
    # One rounding to the format, after decay and step.
    fp32_options = {**_decoupled(options), "weights_format": "fp32"}
    outputs = plain_update.backward_bits({**inputs, "weights": weights}, fp32_options, backend)
    if form != "fp32":
        codes = np.array(inputs["weights"]).reshape(-1)
        codes[elements] = encoded(outputs["weights"][elements], form, backend)
        outputs["weights"] = codes
    return {**outputs, "prev_iter": prev_iter}


def _decoupled(options: Options) -> dict[str, Value]:
    return {**options, "weight_decay_mode": "decoupled"}


def _numbers(inputs: Arrays, options: Options) -> Floats:
    """All weights as fp32 numbers, in an array of their own."""
    return decoded(inputs["weights"].reshape(-1), str(options["weights_format"]))


def _row_widths(inputs: Arrays) -> Ints:
    """Columns of every row of all tables."""
    return np.repeat(inputs["dims"].astype(np.int64), inputs["rows"])


def _by_element(inputs: Arrays, options: Options) -> Floats:
    """G of every element."""
    return np.repeat(factors(inputs, options), _row_widths(inputs))


def _touched_rows(inputs: Arrays, options: Options) -> Ints:
    """Rows with a lookup, counted over all tables."""
    bags = lookups_of(inputs, options)[0]
    return np.unique(tables_of(inputs).first_row[bags.table] + bags.row)


def _touched_mask(rows: int, touched: Ints) -> np.ndarray:
    mask = np.zeros(rows, bool)
    mask[touched] = True
    return mask
