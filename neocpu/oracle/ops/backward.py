"""What must the fused backward leave behind?

Operators `backward` (every optimizer rule) and `unique_gradient` (merged gradients, no rule).
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from neocpu.core.types import Bools, Ints
from neocpu.oracle.canonical.global_decay import backward_bits
from neocpu.oracle.canonical.update import unique_gradient_bits
from neocpu.oracle.operator import Arrays, Field, Operator, Options, Switches, Truth, Truths, Value
from neocpu.oracle.ops.lookup import BAGS, FLOATS, POOLING, TABLES, rounding_of
from neocpu.oracle.options import Number, OneOf, Whole
from neocpu.oracle.truth.bags import (
    SCALED,
    TableGeometry,
    bags_of,
    numbers_of_runs,
    only,
    rows_of,
    tables_of,
)
from neocpu.oracle.truth.bends import flushed_bounded
from neocpu.oracle.truth.formats import FORMATS, decode, in_format, joined_halves, stored
from neocpu.oracle.truth.global_decay import factors, is_active
from neocpu.oracle.truth.hyper import Hyper
from neocpu.oracle.truth.lookups import MergedGradients, merged
from neocpu.oracle.truth.numbers import Bounded, Real
from neocpu.oracle.truth.rules import RULES, RowUpdate, limited
from neocpu.oracle.truth.scaled import stored_tables
from neocpu.oracle.truth.states import GLOBAL, STATE_FORMATS, layout_of
from neocpu.oracle.truth.sums import segment_sums
from neocpu.tables.specs.optimizers import RATE_MODES, TABLE_RULES, WEIGHT_DECAY_MODES

HYPER: dict[str, Value] = {
    "optimizer": OneOf("exact_rowwise_adagrad", TABLE_RULES),
    "learning_rate": Number(0.01),
    "eps": Number(1e-8, 0),
    "beta1": Number(0.9, 0, 1),
    "beta2": Number(0.999, 0, 1),
    "weight_decay": Number(0.0, 0),
    "weight_decay_mode": OneOf("none", (*WEIGHT_DECAY_MODES, GLOBAL)),
    "momentum": Number(0.9, 0),
    "eta": Number(0.001, 0),
    "max_norm": Number(0.0, 0),
    "max_gradient": Number(0.0, 0),
    "ar_alpha": Number(0.0, 0),
    "min_shrinkage": Number(0.1, 0),
    "counter_halflife": -1,
    "adjustment_iter": -1,
    "adjustment_ub": Number(1.0, 0),
    "learning_rate_mode": OneOf("equal", RATE_MODES),
    "max_counter": Number(1.0, 0),
    "tail_id_threshold": Number(0.0, 0),
    "tail_id_threshold_is_ratio": False,
    "weight_norm_coefficient": Number(0.0, 0),
    "lower_bound": Number(0.0, 0),
    "beta": Number(1.0, 0),
    "lambda1": Number(0.0, 0),
    "lambda2": Number(0.0, 0),
    "decay_start": Whole(0, 0),
    "decay_lower_bound": Number(0.0, 0),
    "momentum1_format": OneOf("fp32", STATE_FORMATS),
    "momentum2_format": OneOf("fp32", STATE_FORMATS),
}
TRAINED = OneOf("fp32", (*FLOATS, "int8", "int4"))  # weights_format
# How narrow rows are stored; fbgemm: its way to round to fp16.
STORE: dict[str, Value] = {
    "rounding": OneOf("nearest", ("nearest", "stochastic", "fbgemm")),
    "seed": 0,
}
GRADIENT = Field(
    "gradient of the pooled rows, fp32[B, sum of dims]; none: [n, D]; variable batches: flat",
    ("sample", "column"),
)
# fp32, or in `momentum1_format` and `momentum2_format`; prev_iter and row_counter are fp32.
STATES = {
    "sum": Field("AdaGrad's sum: per element, or per row for row-wise rules", ("element",), True),
    "accumulator": Field("FTRL's n, the sum of squares, per element", ("element",), True),
    "linear": Field("FTRL's z, per element", ("element",), True),
    "exp_avg": Field("first moment, per element", ("element",), True),
    "exp_avg_sq": Field(
        "second moment, per element, or per row for partial row-wise rules", ("element",), True
    ),
    "momentum_buffer": Field("momentum, per element", ("element",), True),
    "square_avg": Field("mean square of row-wise RMSProp, per row", ("element",), True),
    "prev_iter": Field("step of a row's last update, fp32 per row; 0: never", ("element",), True),
    "row_counter": Field("how often a row was updated, fp32 per row", ("element",), True),
}
# Row-scaled rows after the step, which are judged by their parts.
SCALED_OUTPUTS = {
    "codes": Field("int8, int4: codes of all elements, whole numbers as fp32", ("element",), True),
    "scale": Field("int8, int4: scale of each row, fp32 or fp16", ("row",), True),
    "bias": Field("int8, int4: bias of each row, fp32 or fp16", ("row",), True),
}


class BoundedTables:
    """Weights and states of all tables as bounded numbers, in the course of training."""

    def __init__(self, inputs: Arrays, options: Options, bends: Switches) -> None:
        self.geometry: TableGeometry = tables_of(inputs)
        rows = rows_of(inputs, options, bends)
        value = rows.value
        if "weights_low" in inputs and "low_half_ignored" not in bends:
            value = decode(joined_halves(inputs["weights"], inputs["weights_low"]), "fp32")
        # Copies: steps write to these arrays.
        self.weights = Bounded(value.copy(), rows.error.copy())
        self.layout = layout_of(options)
        sizes = {name: int(self.geometry.first_element[-1]) for name in self.layout.element}
        sizes |= {name: int(self.geometry.first_row[-1]) for name in self.layout.row}
        if sizes and "states_ignored" in bends:
            inputs = {name: array for name, array in inputs.items() if name not in sizes}
        self.states = {
            name: Bounded.exactly(_initial_state(inputs, name, size, self.layout.formats[name]))
            for name, size in sizes.items()
        }
        self.touched = np.zeros(int(self.geometry.first_row[-1]), bool)  # rows that were updated
        # the tables whose row-wise AdaGrad decays weights on FBGEMM's CPU
        shared = np.bincount(inputs["feature_table"], minlength=self.geometry.rows.size) > 1
        compiled = inputs["weights"].dtype != np.float32 or options["pooling"] == "none"
        rowwise = options["optimizer"] == "exact_rowwise_adagrad"
        self.decays_on_cpu = rowwise & (shared | compiled)

    def elements(self, table: int, rows: Ints) -> Ints:
        """Elements [U, D] of some rows of a table."""
        dim = int(self.geometry.dims[table])
        first: Ints = self.geometry.first_element[table] + rows[:, None] * dim
        return first + np.arange(dim)

    def seen_rows(self, options: Options, bends: Switches) -> Bounded:
        """The weights as lookups of a training step read them."""
        unseen = {"global_decay_forward_missing", "weight_decay_ignored"}
        if not is_active(options) or bends & unseen:
            return self.weights
        factor = factors(self.states["prev_iter"], options, bends)
        row = np.repeat(
            np.arange(int(self.geometry.first_row[-1])),
            np.repeat(self.geometry.dims, self.geometry.rows),
        )
        return factor.take(row) * self.weights

    def touched_elements(self, inputs: Arrays, options: Options, bends: Switches) -> Bools:
        """Which elements belong to rows that a batch looks up."""
        bags = bags_of(inputs, options, bends)
        touched = np.zeros(self.weights.value.size, bool)
        for table in range(self.geometry.rows.size):
            touched[self.elements(table, bags.row[bags.table == table])] = True
        return touched

    def update(
        self, table: int, merged_gradients: MergedGradients, options: Options, bends: Switches
    ) -> None:
        """One optimizer step on the rows of one table."""
        if "weight_decay_shared_only" in bends and not self.decays_on_cpu[table]:
            # A new set: the caller's is frozen and goes on to other tables.
            bends |= {"weight_decay_ignored"}
        elements = self.elements(table, merged_gradients.rows)
        rows = self.geometry.first_row[table] + merged_gradients.rows
        self.touched[rows] = True
        gradient = merged_gradients.gradient
        states = {
            name: state.take(rows if name in self.layout.row else elements)
            for name, state in self.states.items()
        }
        update = RowUpdate(
            w=flushed_bounded(self.weights.take(elements), bends),
            g=-gradient if "sign_flipped" in bends else gradient,
            states={name: flushed_bounded(state, bends) for name, state in states.items()},
            bends=bends,
            formats=self.layout.formats,
            lookups=np.diff(merged_gradients.starts).astype(np.float64),
            rest=self._rest(table, elements) if "norm_over_table" in bends else 0.0,
        )
        if "squares_before_merge" in bends:
            update.squares = _summed_squares(merged_gradients)
        hyper = Hyper(options, bends)
        if is_active(options):
            if not ("global_decay_not_kept" in bends or "weight_decay_ignored" in bends):
                update.w = factors(update.states["prev_iter"], options, bends).column() * update.w
            update.states["prev_iter"] = Bounded.exactly(np.full(rows.size, float(hyper.step)))
        if options["max_norm"] and "max_norm_before_step" in bends:
            update.w = limited(update.w, hyper, update.rest)
            w = RULES[str(options["optimizer"])](update, hyper)
        else:
            w = limited(RULES[str(options["optimizer"])](update, hyper), hyper, update.rest)
        w = flushed_bounded(w, bends)
        # Several updates of a row in one step round in between, as kernels do.
        w = stored(w, str(options["weights_format"]), rounding_of(options, bends))
        if self.states and "states_not_stored" in bends:
            update.states = states
        for name, state in update.states.items():
            state = flushed_bounded(state, bends)
            places = rows if name in self.layout.row else elements
            # fp32 here; `round_states` narrows them once their truths were taken.
            self.states[name].put(places, stored(state, "fp32"))
        self.weights.put(elements, w)

    def _rest(self, table: int, elements: Ints) -> float:
        """Sum of squares of the elements of a table that are not updated."""
        first, end = self.geometry.first_element[table : table + 2]
        squares = np.square(self.weights.value)
        with np.errstate(invalid="ignore"):
            return float(squares[first:end].sum() - squares[elements].sum())

    def round_states(self) -> None:
        """States as kernels have stored them, in their formats."""
        self.states = {
            name: stored(state, self.layout.formats[name]) for name, state in self.states.items()
        }

    def state_truths(self) -> Truths:
        """What may stand in each state, if states are as they were before they are stored."""
        return {
            name: in_format(state.copy(), form)
            for name, form in self.layout.formats.items()
            for state in [self.states[name]]
        }


def _initial_state(inputs: Arrays, name: str, size: int, form: str) -> Real:
    """A state as it came in, zeros if it did not."""
    if name not in inputs:
        return np.zeros(size)
    return decode(inputs[name], form).reshape(-1).copy()


def _summed_squares(merged_gradients: MergedGradients) -> Bounded:
    """Squares of the gradients of single lookups, added by row: [U, D]."""
    terms = merged_gradients.terms.value
    squares = Bounded(np.square(terms), np.zeros(terms.shape))
    divisions = np.ones(merged_gradients.rows.size, np.int64)
    return segment_sums(squares, squares.value, merged_gradients.starts, 1, divisions)


def step(tables: BoundedTables, inputs: Arrays, options: Options, switches: Switches) -> None:
    """One fused backward on all tables."""
    bags = bags_of(inputs, options, switches)
    batches = [bags]
    if "features_in_sequence" in switches:
        batches = [only(bags, bags.feature[bags.bag] == f) for f in range(bags.dims.size)]
    elif "duplicates_merged_where_adjacent" in switches:
        number = numbers_of_runs(bags)
        batches = [only(bags, number == k) for k in range(int(number.max(initial=-1)) + 1)]
    for batch in batches:
        for table, gradients in merged(batch, inputs, options, switches).items():
            for part in _updates(gradients, int(tables.geometry.rows[table]), options, switches):
                tables.update(table, part, options, switches)


def _updates(
    gradients: MergedGradients, rows: int, options: Options, switches: Switches
) -> Iterator[MergedGradients]:
    """The updates of one table in one step: one, unless a switch says otherwise."""
    if "untouched_rows_step" in switches:
        yield _with_all_rows(gradients, rows)
        return
    single = "duplicates_in_sequence" in switches
    single |= "sgd_duplicates_in_sequence" in switches and options["optimizer"] == "exact_sgd"
    if not single:
        yield gradients
        return
    count = np.diff(gradients.starts)
    for k in range(int(count.max())):
        with_more = np.flatnonzero(count > k)
        terms = gradients.terms.take(gradients.starts[with_more] + k)
        starts = np.arange(with_more.size + 1)
        yield MergedGradients(gradients.rows[with_more], terms, terms, starts)


def _with_all_rows(gradients: MergedGradients, rows: int) -> MergedGradients:
    """Every row of the table, those without a lookup with gradient 0."""
    shape = (rows, gradients.gradient.value.shape[1])
    total = Bounded(np.zeros(shape), np.zeros(shape))
    total.put(gradients.rows, gradients.gradient)
    return MergedGradients(np.arange(rows), total, total, np.arange(rows + 1))


def _backward_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    tables = BoundedTables(inputs, options, switches)
    # narrow rows: the truth wants the numbers before they are rounded
    step(tables, inputs, {**options, "weights_format": "fp32"}, switches)
    # The upper half of a split weight is its bits cut off.
    rounding = "toward_zero" if "weights_low" in inputs else rounding_of(options, switches)
    outputs = _weight_truths(tables, inputs, options, rounding)
    if "weights_low" in inputs:
        outputs["joined"] = in_format(tables.weights, "fp32")
    return outputs | tables.state_truths()


def _weight_truths(
    tables: BoundedTables, inputs: Arrays, options: Options, rounding: str
) -> Truths:
    """The rows after the step: numbers of a format, or the parts of row-scaled rows."""
    name = str(options["weights_format"])
    if name in SCALED:
        return stored_tables(inputs, name, tables.weights, tables.touched, rounding)
    weights = in_format(tables.weights, name, rounding)
    if options["rounding"] == "fbgemm" and weights.probability is not None:
        # 13 bits below fp16's normal numbers: either neighbour of a subnormal, no certain chance
        normal = np.abs(tables.weights.value) >= 2.0 ** FORMATS["fp16"].smallest
        weights = replace(weights, probability=np.where(normal, weights.probability, np.nan))
    return {"weights": weights}


def _unique_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    tables = tables_of(inputs)
    by_table = merged(bags_of(inputs, options, switches), inputs, options, switches)
    rows = [np.empty(0, np.int64)]
    value = [np.empty(0)]
    error = [np.empty(0)]
    for table, gradients in by_table.items():
        rows.append(tables.first_row[table] + gradients.rows)
        value.append(gradients.gradient.value.reshape(-1))
        error.append(gradients.gradient.error.reshape(-1))
    all_rows = np.concatenate(rows)
    values = Bounded(np.concatenate(value), np.concatenate(error))
    return {
        "rows": Truth.exactly(all_rows),
        "values": in_format(values, "fp32"),
    }


def locate(inputs: Arrays, options: Options, output: str, index: tuple[int, ...]) -> dict[str, int]:
    """Table, row and column of an element of the weights or of a state."""
    name = output.rsplit("/", 1)[-1]
    if name not in STATES and name not in ("weights", "joined", "sparse_ema", *SCALED_OUTPUTS):
        return {}
    tables = tables_of(inputs)
    number = index[0] if index else 0
    by_row: tuple[str, ...] = ("scale", "bias")
    if "optimizer" in options:
        by_row += layout_of(options).row
    return tables.place_of_row(number) if name in by_row else tables.place_of_element(number)


BACKWARD = Operator(
    name="backward",
    about="Fused backward: gradients of a row's lookups merge exactly, then one optimizer step "
    "per touched row. FBGEMM: the autograd backward of SplitTableBatchedEmbeddingBagsCodegen.",
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
    options={**POOLING, "weights_format": TRAINED, **HYPER, "step": Whole(1, 1), **STORE},
    outputs={
        "weights": Field(
            "all tables after the step, as the input; not of int8 and int4 rows", ("element",), True
        ),
        **STATES,
        "joined": Field("split-SGD: both halves as fp32", ("element",), True),
        **SCALED_OUTPUTS,
    },
    run_=backward_bits,
    truth_=_backward_truth,
    locate_=locate,
    in_place=True,
)
UNIQUE_GRADIENT = Operator(
    name="unique_gradient",
    about="Touched rows and their merged gradients, for an optimizer of one's own. FBGEMM: "
    "OptimType.NONE.",
    inputs={**TABLES, **BAGS, "grad_output": GRADIENT},
    options={**POOLING, "max_gradient": HYPER["max_gradient"]},
    outputs={
        "rows": Field("touched rows, ascending, counted over all tables, int64[U]", ("unique",)),
        "values": Field("their gradients, flat, fp32[sum of their dims]", ("element",)),
    },
    run_=unique_gradient_bits,
    truth_=_unique_truth,
    locate_=locate,
)

OPERATORS = (BACKWARD, UNIQUE_GRADIENT)
