"""What becomes of a table that gets a row for each new id, and evicts rows? `kv_trajectory`.

Training steps, evaluations and evictions of one key-value table. The rows of all ids that ever
occur are one ordinary table, whose rows are set back when their ids are evicted: so lookups and
updates are those of `trajectory`, and only the bookkeeping of truth/key_store.py is new.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from neocpu.core.rules import RULES
from neocpu.core.types import Ints
from neocpu.oracle.canonical import lookup_bits
from neocpu.oracle.canonical.update import backward_bits
from neocpu.oracle.operator import Arrays, Field, Operator, Options, Switches, Truth, Truths, Value
from neocpu.oracle.ops.backward import BACKWARD, HYPER, STATES, BoundedTables, step
from neocpu.oracle.ops.lookup import LOOKUP, POOLING, looked_up
from neocpu.oracle.options import Number, OneOf
from neocpu.oracle.truth.bags import DecodedRows
from neocpu.oracle.truth.formats import in_format
from neocpu.oracle.truth.key_store import STRATEGIES, KeyStore
from neocpu.oracle.truth.numbers import Bounded, square_sum
from neocpu.tables.specs.optimizers import TABLE_RULES

STORE_OPTIONS = ("strategy", "ttl", "min_count", "decay_rate", "min_norm")


class Step(NamedTuple):
    """One step of a history."""

    number: int
    batch: Arrays  # inputs of a lookup or backward; a row number is an id's place among all ids
    training: bool
    evicts: bool
    time: int


def _places(inputs: Arrays, ids: Ints) -> Ints:
    """Where ids stand among all; -1 for pruned lookups. Raises ValueError for an unknown id."""
    keys = inputs["keys"].astype(np.int64)
    place = np.searchsorted(keys, ids)
    stored = keys[np.minimum(place, keys.size - 1)] == ids
    if not (stored | (ids == -1)).all():
        missing = int(ids[~stored & (ids != -1)][0])
        raise ValueError(f"id {missing} is not among the input keys")
    return np.where(ids == -1, -1, place)


def _steps(inputs: Arrays) -> Iterator[Step]:
    """All steps in order."""
    shared = {
        "weights": inputs["weights"],
        "rows": np.array([inputs["keys"].size], np.int64),
        "dims": inputs["dims"],
        "feature_table": np.zeros(1, np.int64),
    }
    for k in range(inputs["training"].size):
        batch = {
            name: inputs[f"step{k}/{name}"]
            for name in ("indices", "offsets", "grad_output")
            if f"step{k}/{name}" in inputs
        }
        batch["indices"] = _places(inputs, batch["indices"].astype(np.int64))
        yield Step(
            number=k,
            batch={**shared, **batch},
            training=bool(inputs["training"][k]),
            evicts=bool(inputs["evict"][k]),
            time=int(inputs["times"][k]),
        )


def _table_options(options: Options) -> dict[str, Value]:
    """The options of lookups and updates, without those of the store."""
    return {name: value for name, value in options.items() if name not in STORE_OPTIONS}


def _read_rows(batch: Arrays) -> Ints:
    """Rows of all lookups of a batch that are not pruned."""
    return batch["indices"][batch["indices"] >= 0]


class _Numbers:
    """Rows and states of all ids as bounded numbers."""

    def __init__(self, inputs: Arrays, options: Options, bends: Switches) -> None:
        first = next(_steps(inputs)).batch
        self.options = BACKWARD.complete(_table_options(options))
        self.bends = bends
        self.tables = BoundedTables(first, self.options, bends)
        # Updates write to the rows themselves.
        self.initial = self.tables.weights.copy()
        self.row_states = RULES[str(self.options["optimizer"])].row_state

    def norms(self) -> Bounded:
        """Norms of all rows."""
        rows = self.tables.weights.reshape(-1, int(self.tables.geometry.dims[0]))
        return square_sum(rows).sqrt()

    def reset(self, places: Ints) -> None:
        """Give evicted ids their initial rows, and states of 0."""
        elements = self.tables.elements(0, places)
        if "kv_row_not_reset" not in self.bends:
            self.tables.weights.put(elements, self.initial.take(elements))
        if "kv_state_not_reset" in self.bends:
            return
        for name, state in self.tables.states.items():
            where = places if name in self.row_states else elements
            state.value[where] = 0.0
            state.error[where] = 0.0


def _store(inputs: Arrays, options: Options, bends: Switches = frozenset()) -> KeyStore:
    """Who is in the table before the first step."""
    counts = np.array(inputs.get("counts", np.zeros(inputs["keys"].size)), np.int64)
    return KeyStore(options, bends, counts, int(inputs["times"][:1].sum()))


def _truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    numbers = _Numbers(inputs, options, switches)
    tables = numbers.tables
    store = _store(inputs, options, switches)
    keys = inputs["keys"].astype(np.int64)
    outputs: dict[str, Truth] = {}
    count = 0
    for k, batch, training, evicts, time in _steps(inputs):
        store.record(_read_rows(batch), time, training)
        w = tables.weights
        rows = DecodedRows(w.value, w.error, np.abs(w.value))
        pooled = looked_up(batch, rows, numbers.options, switches)
        outputs[f"step{k}/out"] = in_format(pooled, "fp32")
        if training:
            count += 1
            step(tables, batch, {**numbers.options, "step": count}, switches)
        if evicts:
            norm = numbers.norms()
            numbers.reset(store.evict(time, norm.value, norm.error))
        outputs[f"step{k}/kept"] = Truth.exactly(keys[store.present])
    kept = np.flatnonzero(store.present)
    outputs["counts"] = Truth.exactly(store.count[kept])
    outputs["last_times"] = Truth.exactly(store.time[kept])
    elements = tables.elements(0, kept).reshape(-1)
    outputs["weights"] = in_format(tables.weights.take(elements), "fp32")
    for name, state in tables.states.items():
        where = kept if name in numbers.row_states else elements
        outputs[name] = in_format(state.take(where), "fp32")
    return outputs


def _bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    update_options = BACKWARD.complete(_table_options(options))
    lookup_options = LOOKUP.complete({"pooling": options["pooling"]})
    rule = RULES[str(update_options["optimizer"])]
    keys = inputs["keys"].astype(np.int64)
    dim = int(inputs["dims"][0])
    initial = np.array(inputs["weights"], np.float32).reshape(-1, dim)
    weights = initial.copy()
    states: Arrays = {
        **{name: np.zeros((keys.size, dim), np.float32) for name in rule.element_state},
        **{name: np.zeros((keys.size, 1), np.float32) for name in rule.row_state},
    }
    store = _store(inputs, options)
    outputs: Arrays = {}
    count = 0
    for k, batch, training, evicts, time in _steps(inputs):
        store.record(_read_rows(batch), time, training)
        current = {**batch, "weights": weights.reshape(-1)}
        outputs[f"step{k}/out"] = lookup_bits(current, lookup_options, backend)["out"]
        if training:
            count += 1
            flat = {name: state.reshape(-1) for name, state in states.items()}
            updated = backward_bits({**current, **flat}, {**update_options, "step": count}, backend)
            weights = updated["weights"].reshape(-1, dim)
            states = {name: updated[name].reshape(keys.size, -1) for name in states}
        if evicts:
            # In fp64, whose error is far below the least distance that the model asks for.
            norm = np.sqrt(np.square(weights.astype(np.float64)).sum(1))
            evicted = store.evict(time, norm, np.zeros(keys.size))
            weights[evicted] = initial[evicted]
            for state in states.values():
                state[evicted] = 0
        outputs[f"step{k}/kept"] = keys[store.present]
    kept = store.present
    outputs |= {"counts": store.count[kept], "last_times": store.time[kept]}
    outputs["weights"] = weights[kept].reshape(-1)
    return outputs | {name: state[kept].reshape(-1) for name, state in states.items()}


KV_TRAJECTORY = Operator(
    name="kv_trajectory",
    about="A table whose rows are born when training meets their ids, and evicted: lookups, fused "
    "backwards, evaluations and evictions (FBGEMM: KV-ZCH, tables in DRAM with feature eviction). "
    "An evaluation reads the initial row of an id that is not there, and changes nothing.",
    inputs={
        "keys": Field("all ids that occur, ascending, int64[U]", ("id",)),
        "dims": Field("columns, int64[1]", ("table",)),
        "weights": Field("the row that each id begins with, also anew, fp32[U*D]", ("element",)),
        "training": Field("1: training step, 0: evaluation, int64[K]", ("step",)),
        "evict": Field("1: the step ends with an eviction, int64[K]", ("step",)),
        "times": Field("seconds, int64[K]", ("step",)),
        "counts": Field(
            "training steps of each id before the first one, int64[U]; ids that have some are in "
            "the table, as if they had last occurred when the first step begins",
            ("id",),
            True,
        ),
        "step0/indices": Field("ids of all bags, int64[n]; likewise step1/indices, …", ("lookup",)),
        "step0/offsets": Field("where each bag begins, and the end of the last", ("bag",)),
        "step0/grad_output": Field("fp32[B, D], of training steps", ("sample", "column"), True),
    },
    options={
        "pooling": POOLING["pooling"],
        "optimizer": OneOf("exact_sgd", TABLE_RULES),
        "learning_rate": HYPER["learning_rate"],
        "eps": HYPER["eps"],
        "strategy": OneOf("timestamp", STRATEGIES),
        "ttl": 60,
        "min_count": 2,
        "decay_rate": Number(1.0, 0),
        "min_norm": Number(0.0, 0),
    },
    outputs={
        "out": Field("step0/out, …: pooled rows before the update", ("sample", "column")),
        "kept": Field("step0/kept, …: ids in the table after the step, ascending", ("id",)),
        "counts": Field("training steps, faded, of each id that is left, int64", ("id",)),
        "last_times": Field("when each id that is left last occurred, int64", ("id",)),
        "weights": Field("rows of the ids that are left, ascending, fp32", ("element",)),
        **STATES,
    },
    run_=_bits,
    truth_=_truth,
    in_place=True,
)

OPERATORS = (KV_TRAJECTORY,)
