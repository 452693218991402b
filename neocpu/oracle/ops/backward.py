"""What must the fused backward leave behind? Operators `backward` (every rule) and
`unique_gradient` (no rule).
"""

from typing import Any

import numpy as np

from neocpu.oracle.canonical.update import backward_bits, unique_gradient_bits
from neocpu.oracle.operator import Arrays, Field, Operator, Truth, Value
from neocpu.oracle.ops.lookup import BAGS, POOLING, TABLES, rounding_of
from neocpu.oracle.truth.bags import TableGeometry, bags_of, only, rows_of, tables_of
from neocpu.oracle.truth.formats import decode, in_format, joined_halves, stored
from neocpu.oracle.truth.lookups import MergedTruth, merged
from neocpu.oracle.truth.numbers import Bounded, Real
from neocpu.oracle.truth.rules import RULES, Hyper, RowsOfRule, limited
from neocpu.oracle.truth.sums import segment_sums
from neocpu.reference.rules import RULES as RECORDS

HYPER: dict[str, Value] = {
    "optimizer": "exact_rowwise_adagrad",
    "learning_rate": 0.01,
    "eps": 1e-8,
    "beta1": 0.9,
    "beta2": 0.999,
    "weight_decay": 0.0,
    "weight_decay_mode": "none",
    "momentum": 0.9,
    "eta": 0.001,
    "max_norm": 0.0,
    "max_gradient": 0.0,
    "ar_alpha": 0.0,
    "min_shrinkage": 0.1,
    "counter_halflife": -1,
    "adjustment_iter": -1,
    "adjustment_ub": 1.0,
    "learning_rate_mode": "equal",
    "max_counter": 1.0,
    "tail_id_threshold": 0.0,
    "tail_id_threshold_is_ratio": False,
    "weight_norm_coefficient": 0.0,
    "lower_bound": 0.0,
}
# nearest, stochastic, or fbgemm (fp16)
STORE: dict[str, Value] = {"rounding": "nearest", "seed": 0}
GRADIENT = Field(
    "gradient of the pooled rows, fp32[B, sum of dims]; none: [n, D]; variable batches: flat",
    ("sample", "column"),
)
STATES = {
    "sum": Field(
        "AdaGrad's sum: fp32 per element, or per row for row-wise rules", ("element",), True
    ),
    "exp_avg": Field("first moment, fp32 per element", ("element",), True),
    "exp_avg_sq": Field(
        "second moment, fp32 per element, or per row for partial row-wise rules", ("element",), True
    ),
    "momentum_buffer": Field("momentum, fp32 per element", ("element",), True),
    "square_avg": Field("mean square of row-wise RMSProp, fp32 per row", ("element",), True),
    "prev_iter": Field("step of a row's last update, fp32 per row; 0: never", ("element",), True),
    "row_counter": Field("how often a row was updated, fp32 per row", ("element",), True),
}


class TableMemory:
    """Weights and states of all tables as bounded numbers, while a model of training changes them."""

    def __init__(self, inputs: Arrays, options: dict[str, Value], bends: frozenset[str]) -> None:
        self.tables: TableGeometry = tables_of(inputs)
        value, error, _ = rows_of(inputs, options)
        if "weights_low" in inputs and "low_half_ignored" not in bends:
            value = decode(joined_halves(inputs["weights"], inputs["weights_low"]), "fp32")
        self.weights = Bounded(value.copy(), error.copy())
        record = RECORDS[str(options["optimizer"])]
        self.per_row = record.row_state
        shared = np.bincount(inputs["feature_table"], minlength=self.tables.rows.size) > 1
        compiled = inputs["weights"].dtype != np.float32 or options["pooling"] == "none"
        rowwise = options["optimizer"] == "exact_rowwise_adagrad"
        self.decays = rowwise & (shared | compiled)  # on FBGEMM's CPU
        sizes = {n: int(self.tables.element[-1]) for n in record.element_state}
        sizes |= {n: int(self.tables.row[-1]) for n in record.row_state}
        self.states = {n: Bounded.exactly(_given(inputs, n, size)) for n, size in sizes.items()}

    def places(self, table: int, rows: Any) -> Any:
        """Elements [U, D] of some rows of a table."""
        d = int(self.tables.dims[table])
        return self.tables.element[table] + rows[:, None] * d + np.arange(d)

    def update(
        self, table: int, found: MergedTruth, options: dict[str, Value], bends: frozenset[str]
    ) -> None:
        """One optimizer step on the rows of one table."""
        if "weight_decay_shared_only" in bends and not self.decays[table]:
            bends |= {"weight_decay_ignored"}
        at = self.places(table, found.rows)
        row = self.tables.row[table] + found.rows
        take = {n: x.take(row if n in self.per_row else at) for n, x in self.states.items()}
        g = -found.gradient if "sign_flipped" in bends else found.gradient
        state = RowsOfRule(self.weights.take(at), g, take, None, bends)
        if "squares_before_merge" in bends:
            squares = Bounded(np.square(found.terms.value), np.zeros(found.terms.value.shape))
            state.squares = segment_sums(
                squares, squares.value, found.starts, 1, np.ones(row.size, np.int64)
            )
        hyper = Hyper(options, bends)
        w = limited(RULES[str(options["optimizer"])](state, hyper), hyper)
        w = stored(w, str(options["weights_format"]), rounding_of(options, bends))
        for name, x in state.states.items():
            _put(self.states[name], row if name in self.per_row else at, x)
        _put(self.weights, at, w)


def _given(inputs: Arrays, name: str, size: int) -> Real:
    return np.array(inputs.get(name, np.zeros(size)), np.float64).reshape(-1)


def _put(target: Bounded, at: Any, x: Bounded) -> None:
    target.value[at] = x.value
    target.error[at] = x.error


def step(
    memory: TableMemory, inputs: Arrays, options: dict[str, Value], switches: frozenset[str]
) -> None:
    """One fused backward on all tables."""
    bags = bags_of(inputs, options, switches)
    if "features_in_sequence" in switches:
        for f in range(bags.dims.size):
            _update(memory, merged(only(bags, f), inputs, options, switches), options, switches)
    else:
        _update(memory, merged(bags, inputs, options, switches), options, switches)


def _update(
    memory: TableMemory,
    tables: dict[int, MergedTruth],
    options: dict[str, Value],
    switches: frozenset[str],
) -> None:
    for table, found in tables.items():
        if "untouched_rows_step" in switches:
            memory.update(table, _dense(found, int(memory.tables.rows[table])), options, switches)
            continue
        alone = "sgd_duplicates_in_sequence" in switches and options["optimizer"] == "exact_sgd"
        if not alone and "duplicates_in_sequence" not in switches:
            memory.update(table, found, options, switches)
            continue
        count = np.diff(found.starts)
        for k in range(int(count.max())):
            live = np.flatnonzero(count > k)
            at = found.starts[live] + k
            terms = found.terms.take(at)
            memory.update(
                table,
                MergedTruth(found.rows[live], terms, terms, np.arange(live.size + 1)),
                options,
                switches,
            )


def _dense(found: MergedTruth, rows: int) -> MergedTruth:
    """Every row of the table, those without a lookup with gradient 0."""
    width = found.gradient.value.shape[1]
    total = Bounded(np.zeros((rows, width)), np.zeros((rows, width)))
    _put(total, found.rows, found.gradient)
    return MergedTruth(np.arange(rows), total, total, np.arange(rows + 1))


def _backward_truth(
    inputs: Arrays, options: dict[str, Value], switches: frozenset[str]
) -> dict[str, Truth]:
    memory = TableMemory(inputs, options, switches)
    # narrow rows: the truth wants the numbers before they are rounded
    step(memory, inputs, {**options, "weights_format": "fp32"}, switches)
    rounding = "toward_zero" if "weights_low" in inputs else rounding_of(options, switches)
    found = {"weights": in_format(memory.weights, str(options["weights_format"]), rounding)}
    if "weights_low" in inputs:
        found["joined"] = in_format(memory.weights, "fp32")
    return found | {n: in_format(x, "fp32") for n, x in memory.states.items()}


def _unique_truth(
    inputs: Arrays, options: dict[str, Value], switches: frozenset[str]
) -> dict[str, Truth]:
    tables = tables_of(inputs)
    found = merged(bags_of(inputs, options, switches), inputs, options, switches)
    rows = [tables.row[t] + m.rows for t, m in found.items()]
    value = [m.gradient.value.reshape(-1) for m in found.values()]
    error = [m.gradient.error.reshape(-1) for m in found.values()]
    all_rows = np.concatenate([np.empty(0, np.int64), *rows])
    none = np.empty(0)
    return {
        "rows": Truth(all_rows, np.zeros(all_rows.size), exact=True, format="int64"),
        "values": in_format(
            Bounded(np.concatenate([none, *value]), np.concatenate([none, *error])), "fp32"
        ),
    }


def locate(
    inputs: Arrays, options: dict[str, Value], output: str, index: tuple[int, ...]
) -> dict[str, int]:
    """Table, row and column of an element of the weights or of a state."""
    tables = tables_of(inputs)
    name = output.rsplit("/", 1)[-1]
    at = index[0] if index else 0
    optimizer = str(options.get("optimizer", ""))
    if name not in STATES and name not in ("weights", "joined"):
        return {}
    if optimizer in RECORDS and name in RECORDS[optimizer].row_state:
        t = int(np.searchsorted(tables.row, at, side="right")) - 1
        return {"table": t, "row": at - int(tables.row[t])}
    t = int(np.searchsorted(tables.element, at, side="right")) - 1
    row, column = divmod(at - int(tables.element[t]), max(int(tables.dims[t]), 1))
    return {"table": t, "row": row, "column": column}


BACKWARD = Operator(
    name="backward",
    about="Fused backward: gradients of a row's lookups merge exactly, then one optimizer step "
    "per touched row. "
    "FBGEMM: the autograd backward of SplitTableBatchedEmbeddingBagsCodegen.",
    inputs={
        **TABLES,
        **BAGS,
        "grad_output": GRADIENT,
        **STATES,
        "weights_low": Field(
            "split-SGD: lower halves, uint16, of fp32 weights; the bf16 rows are the upper ones",
            ("element",),
            True,
        ),
    },
    options={**POOLING, **HYPER, "step": 1, **STORE},
    outputs={
        "weights": Field("all tables after the step, as the input", ("element",)),
        **STATES,
        "joined": Field("split-SGD: both halves as fp32", ("element",), True),
    },
    run_=backward_bits,
    truth_=_backward_truth,
    locate_=locate,
)
UNIQUE_GRADIENT = Operator(
    name="unique_gradient",
    about=(
        "Touched rows and their merged gradients, for an optimizer of one's own. FBGEMM: "
        "OptimType.NONE."
    ),
    inputs={**TABLES, **BAGS, "grad_output": GRADIENT},
    options={**POOLING, "max_gradient": 0.0},
    outputs={
        "rows": Field("touched rows, ascending, counted over all tables, int64[U]", ("unique",)),
        "values": Field("their gradients, flat, fp32[sum of their dims]", ("element",)),
    },
    run_=unique_gradient_bits,
    truth_=_unique_truth,
    locate_=locate,
)

OPERATORS = (BACKWARD, UNIQUE_GRADIENT)
