"""What do lookups' gradients do? They are merged row by row, then each touched row takes a step."""

from typing import Any, NamedTuple

import numpy as np

from benchmarks.oracle_mutants.formats import F32, SMALL
from benchmarks.oracle_mutants.geometry import Batch, Lookups
from benchmarks.oracle_mutants.lookups import Pooling
from benchmarks.oracle_mutants.questions import Array, Question
from benchmarks.oracle_mutants.rules import STATES, Rules
from benchmarks.oracle_mutants.terms import Update


class Merged(NamedTuple):
    """Touched rows of a table and their gradients."""

    rows: Array
    gradient: Array  # fp32[U, D]
    squares: Array  # of single gradients, for kernels that add them before the merge
    counts: Array  # fp32[U]: lookups of each row


class Gradients(Pooling, Rules):
    """The operators weight_gradient, unique_gradient, backward and trajectory."""

    def op_weight_gradient(self, question: Question) -> dict[str, Array]:
        """Gradients of the per-sample weights."""
        batch = self.batch(question.inputs, question.options)
        out = np.zeros(len(batch.indices), F32)
        for feature in batch.features:
            part = self.lookups(batch, feature)
            _, inside = self.row_numbers(batch, feature, part)
            x = self.feature_rows(question.inputs["weights"], batch, feature, part)
            gradient = self.weight_gradient_of_bags(question, batch, feature, part)
            dots = self.dot(self.vector(x), gradient[part.sample], batch, part)
            out[part.position] = np.where(inside, dots, F32(0))
        return {"per_sample_weights_grad": out}

    def weight_gradient_of_bags(
        self, question: Question, batch: Batch, feature: int, part: Lookups
    ) -> Array:
        """Gradients of a feature's bags as weight_gradient takes them."""
        gradient = self.bag_gradient(question.inputs["grad_output"], batch, feature, part)
        if batch.options["pooling"] == "mean":
            gradient = self.mean_gradient(gradient, batch, feature, part)
        return gradient

    def dot(self, x: Array, gradient: Array, batch: Batch, part: Lookups) -> Array:
        """Products of columns, added up."""
        return self.column_sum((x * gradient).astype(F32))

    def bag_gradient(self, grad: Array, batch: Batch, feature: int, part: Lookups) -> Array:
        """The gradient of a feature's bags, fp32[B, D]; of its lookups where nothing is pooled."""
        width = int(batch.dims[batch.tables[feature]])
        if batch.options["pooling"] == "none":
            return grad[part.position]
        if batch.variable:
            sizes = batch.batch_sizes * batch.dims[batch.tables]
            start = int(self.gradient_starts(sizes)[feature])
            flat = grad[np.clip(np.arange(start, start + sizes[feature]), 0, grad.size - 1)]
            return flat.reshape(-1, width)
        start = int(self.column_starts(batch)[feature])
        columns = np.clip(np.arange(start, start + width), 0, max(grad.shape[1] - 1, 0))
        return self.gradient_rows(grad)[:, columns]

    def gradient_starts(self, sizes: Array) -> Array:
        """Where each feature's gradient begins in a flat one."""
        return np.cumsum(sizes) - sizes

    def gradient_rows(self, grad: Array) -> Array:
        """The gradient of the output, sample by sample."""
        return grad

    def mean_gradient(self, gradient: Array, batch: Batch, feature: int, part: Lookups) -> Array:
        """The gradient of the sums, of that of the means."""
        lengths = self.lengths(batch, feature)
        return self.over_length(gradient, self.divisor(lengths, batch, feature, part))

    def clipped(self, gradient: Array, limit: float) -> Array:
        """Gradients of pooled rows within [-limit, limit]."""
        return np.clip(gradient, -F32(limit), F32(limit)) if limit > 0 else gradient

    def terms(self, grad: Array, batch: Batch, feature: int) -> tuple[Array, Array]:
        """Rows and the gradient that each lookup of a feature gives its row."""
        part = self.lookups(batch, feature)
        row, inside = self.row_numbers(batch, feature, part)
        gradient = self.bag_gradient(grad, batch, feature, part)
        gradient = self.clipped(gradient, float(batch.options.get("max_gradient", 0.0)))
        if batch.options["pooling"] == "mean":
            gradient = self.mean_gradient(gradient, batch, feature, part)
        if batch.options["pooling"] != "none":
            gradient = gradient[part.sample]
        w = self.gradient_weights(batch, feature, part)
        if w is not None:
            gradient = self.weighted(gradient, w)
        return row[inside], gradient[inside]

    def gradient_weights(self, batch: Batch, feature: int, part: Lookups) -> Array | None:
        """The weights that gradients are multiplied by."""
        return self.lookup_weights(batch, feature, part)

    def features_of(self, batch: Batch, table: int) -> list[int]:
        """The features that share a table."""
        return [feature for feature in batch.features if batch.tables[feature] == table]

    def table_terms(self, grad: Array, batch: Batch, table: int) -> tuple[Array, Array]:
        """Rows and gradients of all lookups of a table."""
        parts = [self.terms(grad, batch, feature) for feature in self.features_of(batch, table)]
        if not parts:
            return np.zeros(0, np.int64), np.zeros((0, int(batch.dims[table])), F32)
        rows = np.concatenate([row for row, _ in parts])
        return rows, np.concatenate([gradient for _, gradient in parts])

    def merge(self, rows: Array, gradient: Array, batch: Batch) -> Merged:
        """Different rows, ascending, and the sums of their gradients."""
        gradient = self.arriving(gradient, batch)
        kept = self.merged_lookups(rows)
        if kept is not None:
            rows = rows[kept]
            gradient = gradient[kept]
        unique, inverse = np.unique(rows, return_inverse=True)
        sums = self.add_gradients(gradient, inverse, len(unique))
        squares = np.zeros_like(sums)
        np.add.at(squares, inverse, gradient * gradient)
        counts = np.bincount(inverse, minlength=len(unique)).astype(F32)
        return self.leaving(Merged(unique, self.vector(sums), squares, counts), batch)

    def arriving(self, gradient: Array, batch: Batch) -> Array:
        """Gradients of lookups as they come to the merge."""
        return gradient

    def merged_lookups(self, rows: Array) -> Array | None:
        """Which lookups reach the merge: a mask or places; None is all of them."""
        return None

    def add_gradients(self, gradient: Array, inverse: Array, size: int) -> Array:
        """Sums of the gradients of each row."""
        return self.add_up(gradient, inverse, size)

    def leaving(self, merged: Merged, batch: Batch) -> Merged:
        """Merged gradients as the optimizer gets them."""
        return merged

    def op_unique_gradient(self, question: Question) -> dict[str, Array]:
        """Touched rows of all tables and their merged gradients."""
        batch = self.batch(question.inputs, question.options)
        first_row = np.cumsum(batch.rows) - batch.rows
        rows = []
        values = []
        for table in range(len(batch.rows)):
            terms = self.table_terms(question.inputs["grad_output"], batch, table)
            merged = self.merge(*terms, batch)
            rows.append(merged.rows + first_row[table])
            values.append(merged.gradient.reshape(-1))
        return self.unique_answer(np.concatenate(rows), np.concatenate(values))

    def unique_answer(self, rows: Array, values: Array) -> dict[str, Array]:
        """The answer of unique_gradient."""
        return {"rows": rows, "values": values}

    def op_backward(self, question: Question) -> dict[str, Array]:
        """Tables and states after one step."""
        batch = self.batch(question.inputs, question.options)
        tables = self.tables(question, batch)
        self.train(tables, question.inputs["grad_output"], batch, batch.options)
        low = tables.pop("weights_low", None)
        if low is not None:
            tables["joined"] = joined(tables["weights"], low)
        return tables

    def tables(self, question: Question, batch: Batch) -> dict[str, Array]:
        """Copies of weights and states; a state that is not given is 0."""
        sizes = {True: int(batch.rows.sum()), False: int((batch.rows * batch.dims).sum())}
        tables = {"weights": question.inputs["weights"].copy()}
        if "weights_low" in question.inputs:
            tables["weights_low"] = question.inputs["weights_low"].copy()
        for name in self.state_names(question.options):
            dtype = F32
            if self.state_format(name, question.options) != "fp32":
                dtype = np.uint16
            zeros = np.zeros(sizes[is_by_row(name, question.options)], dtype)
            tables[name] = question.inputs.get(name, zeros).copy()
        return tables

    def state_names(self, options: dict[str, Any]) -> tuple[str, ...]:
        """The states of the optimizer; prev_iter with it where decay catches up."""
        if options["optimizer"] not in STATES:
            raise NotImplementedError(options["optimizer"])
        names = STATES[options["optimizer"]]
        if options["weight_decay_mode"] == "decoupled_global":
            return (*names, "prev_iter")
        return names

    def state_format(self, name: str, options: dict[str, Any]) -> str:
        """The format of a state: that of the first or second momentum; counters are fp32."""
        names = STATES[options["optimizer"]]
        if name in ("prev_iter", "row_counter"):
            return "fp32"
        return options.get(f"momentum{names.index(name) + 1}_format", "fp32")

    def missed_decay(self, options: dict[str, Any], before: Array) -> Array:
        """The decay of the steps that rows missed, for those that were updated before."""
        t = float(options["step"])
        if options["weight_decay_mode"] != "decoupled_global" or t < options["decay_start"]:
            return np.ones_like(before)
        factor = 1.0 - float(options["learning_rate"]) * float(options["weight_decay"])
        steps = np.maximum(t - before.astype(np.float64) - 1, 0)
        missed = np.maximum(float(options["decay_lower_bound"]), factor**steps)
        return np.where(before > 0, missed, 1.0).astype(F32)

    def train(
        self, tables: dict[str, Array], grad: Array, batch: Batch, options: dict[str, Any]
    ) -> None:
        """One step of all tables, in place."""
        name = options["weights_format"]
        if name != "fp32" and name not in SMALL:
            raise NotImplementedError(f"training of {name} rows")
        bases = self.bases(batch, batch.dims)
        row_bases = np.cumsum(batch.rows) - batch.rows
        for table in range(len(batch.rows)):
            merged = self.merge(*self.table_terms(grad, batch, table), batch)
            steps = self.table_steps(merged, grad, batch, table)
            for step in steps:
                place = Place(int(bases[table]), int(row_bases[table]), int(batch.dims[table]))
                self.update_rows(tables, self.updated(step, batch, table), place, options)

    def table_steps(self, merged: Merged, grad: Array, batch: Batch, table: int) -> list[Merged]:
        """The updates of a table: one, with all its rows."""
        return [merged]

    def updated(self, merged: Merged, batch: Batch, table: int) -> Merged:
        """The rows that the optimizer's loop reaches."""
        return merged

    def update_rows(
        self, tables: dict[str, Array], merged: Merged, place: "Place", options: dict[str, Any]
    ) -> None:
        """The optimizer step of touched rows, read, computed and stored."""
        cells = self.address(place.base, merged.rows, place.columns)[:, None]
        cells = cells + np.arange(place.columns)
        state_rows = self.state_address(place, merged.rows)
        states = {}
        for name in self.state_names(options):
            by_row = is_by_row(name, options)
            state = tables[name][state_rows if by_row else self.state_cells(cells)]
            form = self.state_format(name, options)
            states[name] = state if form == "fp32" else self.decode_small(state, form)
        w = self.weights_of(tables, cells, options)
        if options["weight_decay_mode"] == "decoupled_global":
            w = w * self.missed_decay(options, states["prev_iter"])[:, None]
        update = Update.of(
            w=w,
            g=merged.gradient.astype(F32),
            states={name: state.astype(F32) for name, state in states.items()},
            options=options,
            squares=merged.squares,
            lookups=merged.counts,
        )
        self.step(update)
        if options["weight_decay_mode"] == "decoupled_global":
            self.note_step(update)
        for name, state in update.states.items():
            by_row = is_by_row(name, options)
            form = self.state_format(name, options)
            if form != "fp32":
                state = self.encode_small(state, form, "nearest")
            tables[name][state_rows if by_row else self.state_cells(cells)] = state
        self.store_rows(tables, cells, update, options)

    def note_step(self, update: Update) -> None:
        """Rows of global decay keep the step of their update."""
        if update.t >= update.options["decay_start"]:
            update.states["prev_iter"] = np.full_like(update.states["prev_iter"], F32(update.t))

    def state_address(self, place: "Place", rows: Array) -> Array:
        """Where a row's scalar state is."""
        return place.row_base + rows

    def state_cells(self, cells: Array) -> Array:
        """Where the states of elements are."""
        return cells

    def weights_of(self, tables: dict[str, Array], cells: Array, options: dict[str, Any]) -> Array:
        """Rows before the step, fp32."""
        codes = tables["weights"][cells]
        if "weights_low" in tables:
            return joined(codes, self.low_half(tables["weights_low"][cells]))
        return self.decode(codes, options["weights_format"], cells.shape[1])

    def low_half(self, low: Array) -> Array:
        """Lower halves of split weights."""
        return low

    def store_rows(
        self,
        tables: dict[str, Array],
        cells: Array,
        update: Update,
        options: dict[str, Any],
    ) -> None:
        """Rows after the step, in the table's format."""
        name = options["weights_format"]
        if "weights_low" in tables:
            self.store_split(tables, cells, update.w)
        elif name == "fp32":
            tables["weights"][cells] = update.w
        else:
            mode = options["rounding"]
            tables["weights"][cells] = self.narrow_rows(update, name, mode)

    def narrow_rows(self, update: Update, name: str, mode: str) -> Array:
        """Codes of updated rows."""
        return self.encode_small(update.w, name, mode)

    def store_split(self, tables: dict[str, Array], cells: Array, w: Array) -> None:
        """Both halves of fp32 rows."""
        bits = np.ascontiguousarray(w, F32).view(np.uint32)
        tables["weights"][cells] = (bits >> 16).astype(np.uint16)
        tables["weights_low"][cells] = (bits & 0xFFFF).astype(np.uint16)

    def op_trajectory(self, question: Question) -> dict[str, Array]:
        """Every step's lookup, and what the training steps leave."""
        inputs = question.inputs
        tables = self.tables(question, self.batch(inputs, question.options, "step0/"))
        answers: dict[str, Array] = {}
        trained = 0
        for k, training in enumerate(inputs["training"]):
            batch = self.batch(inputs, question.options, f"step{k}/")
            trained = self.count_step(trained, bool(training))
            rate = float(inputs["learning_rates"][self.rate_number(k)])
            options = {**question.options, "learning_rate": rate, "step": trained}
            batch.options = options
            if training:
                batch.row_factors = self.forward_decay(tables, options)
            answers[f"step{k}/out"] = self.forward(self.weights_seen(tables, answers, k), batch)
            if not self.trains(bool(training)):
                continue
            self.before_step(tables, inputs)
            self.train(tables, inputs[f"step{k}/grad_output"], batch, options)
            for name, array in tables.items():
                answers[f"step{k}/{name}"] = array.copy()
        return answers

    def forward_decay(self, tables: dict[str, Array], options: dict[str, Any]) -> Array | None:
        """What lookups of a training step multiply rows by, where decay catches up."""
        if options["weight_decay_mode"] != "decoupled_global":
            return None
        return self.missed_decay(options, tables["prev_iter"])

    def weights_seen(self, tables: dict[str, Array], answers: dict[str, Array], k: int) -> Array:
        """The table that a step's lookup reads."""
        return tables["weights"]

    def count_step(self, trained: int, training: bool) -> int:
        """Steps so far, this one included."""
        return trained + training

    def trains(self, training: bool) -> bool:
        """Does the step train?"""
        return training

    def rate_number(self, k: int) -> int:
        """Whose rate a step takes."""
        return k

    def before_step(self, tables: dict[str, Array], inputs: dict[str, Array]) -> None:
        """What happens to states before a step: nothing."""


class Place(NamedTuple):
    """Where a table begins, among elements and among rows."""

    base: int
    row_base: int
    columns: int


BY_ROW = {"prev_iter", "row_counter", "square_avg"}
ROW_SUMS = ("rowwise", "partial")


def is_by_row(name: str, options: dict[str, Any]) -> bool:
    """Has the state one number for each row?"""
    if name in ("sum", "exp_avg_sq"):
        return any(word in options["optimizer"] for word in ROW_SUMS)
    return name in BY_ROW


def joined(high: Array, low: Array) -> Array:
    """fp32 numbers of both halves."""
    return (high.astype(np.uint32) << 16 | low).view(F32)
