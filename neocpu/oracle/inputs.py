"""Do the inputs of a question fit together? What does not is no kernel's fault.

Looked at are names, offsets, lengths, and the sizes of arrays whose size follows from others. What
tables, gradients and states hold is free, and row numbers are left to `bounds_check`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from neocpu.core.formats import FORMATS, INFERENCE
from neocpu.core.rules import RULES
from neocpu.core.types import Elements

STEP = re.compile(r"step\d+/")
WHOLE = ("rows", "dims", "feature_table", "indices", "offsets", "lengths", "batch_sizes", "keys")
Inputs = Mapping[str, Elements]


def unknown_name(names: Iterable[str], known: Iterable[str]) -> str:
    """The first name that no input has, "" if all are known; those of any step are as of step 0."""
    known = set(known)
    return next((name for name in names if STEP.sub("step0/", name) not in known), "")


def fault(inputs: Inputs, options: Mapping[str, object]) -> str:
    """What does not fit, in words; "" where everything does.

    options : complete ones.
    """
    steps = dict.fromkeys(match[0] for match in map(STEP.match, inputs) if match) or [""]
    for step in steps:
        batch = {name.removeprefix(step): array for name, array in inputs.items()}
        for why in _faults(batch, options):
            return step + why
    return ""


def _faults(inputs: Inputs, options: Mapping[str, object]) -> Iterator[str]:
    for name in WHOLE:
        if name in inputs and inputs[name].dtype.kind not in "iu" and inputs[name].size:
            yield f"{name} has elements of type {inputs[name].dtype}: give whole numbers"
    yield from _bags(inputs)
    if "rows" not in inputs or "dims" not in inputs:
        return
    if inputs["rows"].size != inputs["dims"].size:
        yield f"rows has {inputs['rows'].size} tables, dims has {inputs['dims'].size}"
        return
    if (inputs["rows"] < 0).any() or (inputs["dims"] < 0).any():
        yield "rows and dims of tables must be 0 or more"
    for name, size in _sizes(inputs, options).items():
        if name in inputs and inputs[name].size != size:
            yield f"{name} has {inputs[name].size} elements, but by rows and dims it has {size}"
    if "feature_table" in inputs:
        yield from _features(inputs, options)


def _bags(inputs: Inputs) -> Iterator[str]:
    """Where bags begin, how long they are, and what has an entry for each lookup."""
    counted = next((name for name in ("indices", "values") if name in inputs), "")
    lookups = len(np.atleast_1d(inputs[counted])) if counted else 0
    if "offsets" in inputs:
        offsets = inputs["offsets"].reshape(-1)
        falls = np.flatnonzero(offsets[1:] < offsets[:-1])
        if not offsets.size or offsets[0] != 0:
            yield "offsets must begin with 0"
        if falls.size:
            k = int(falls[0])
            yield (
                f"offsets[{k + 1}] is {offsets[k + 1]}, below offsets[{k}], which is {offsets[k]}: "
                "bags begin one after the other"
            )
        if counted and offsets[-1] != lookups:
            yield f"offsets end at {offsets[-1]}, but {counted} has {lookups} lookups"
    if "lengths" in inputs and counted:
        total = int(inputs["lengths"].sum())
        if (inputs["lengths"] < 0).any() or total != lookups:
            yield f"lengths add up to {total}, but {counted} has {lookups} lookups"
    weights = inputs.get("per_sample_weights")
    if weights is not None and weights.size != lookups:
        yield f"per_sample_weights has {weights.size} numbers, but {counted} {lookups} lookups"


def _sizes(inputs: Inputs, options: Mapping[str, object]) -> dict[str, int]:
    """Elements of the arrays of all tables, by name."""
    rows = inputs["rows"].astype(np.int64)
    dims = inputs["dims"].astype(np.int64)
    elements = int((rows * dims).sum())
    sizes = {"weights_low": elements, "sparse_ema": elements}
    if "weights_format" in options:
        form = (FORMATS | INFERENCE)[str(options["weights_format"])]
        unit = int(str(options.get("row_alignment", 1)))
        padded = [-(-form.row_bytes(dim) // unit) * unit for dim in dims.tolist()]
        sizes["weights"] = int(rows @ np.array(padded, int)) if form.row_scaled else elements
    if "optimizer" in options:
        rule = RULES[str(options["optimizer"])]
        sizes |= dict.fromkeys(rule.element_state, elements)
        sizes |= dict.fromkeys((*rule.row_state, "prev_iter"), int(rows.sum()))
    return sizes


def _features(inputs: Inputs, options: Mapping[str, object]) -> Iterator[str]:
    """Which tables features have, their batches, and the gradient of what is pooled."""
    features = inputs["feature_table"]
    tables = inputs["rows"].size
    if features.size and not (features.min() >= 0 and features.max() < tables):
        yield f"feature_table names tables {features.min()} to {features.max()}, of {tables} tables"
        return
    if "offsets" not in inputs:
        return
    bags = inputs["offsets"].size - 1
    batch_sizes = inputs.get("batch_sizes")
    if batch_sizes is not None:
        if batch_sizes.size != features.size or (batch_sizes < 0).any():
            yield f"batch_sizes must have a number for each of the {features.size} features"
            return
        if int(batch_sizes.sum()) != bags:
            yield f"batch_sizes add up to {int(batch_sizes.sum())} bags, but offsets has {bags}"
    elif bags % max(features.size, 1):
        yield f"offsets has {bags} bags, no multiple of the {features.size} features"
    if "grad_output" not in inputs:
        return
    widths = inputs["dims"][features].astype(np.int64)
    shape: tuple[int, ...] = (bags // max(features.size, 1), int(widths.sum()))
    if options.get("pooling") == "none":
        shape = (inputs["indices"].size, int(widths.max(initial=0)))
    elif batch_sizes is not None:
        shape = (int((batch_sizes * widths).sum()),)
    if inputs["grad_output"].shape != shape:
        yield f"grad_output has shape {inputs['grad_output'].shape}, but by the bags it is {shape}"
