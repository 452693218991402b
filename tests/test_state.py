"""Is the state the same whoever holds it: any ranks, any plan? And is the digest what
docs/arithmetic.md §11 says?
"""

import hashlib
import json
from collections.abc import Mapping

import numpy as np
import pytest

from neocpu.parallel.sharding.plan import Plan, place
from neocpu.parallel.sharding.schemes import SCHEMES
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.state import state as states
from neocpu.train.state.blocks import BLOCK, digest_of, not_finite
from neocpu.train.state.initial import initial_rows, state_shapes
from neocpu.train.state.state import State

TABLES = (
    TableSpec("C1", 3 * BLOCK + 17, 8, ("C1",)),
    TableSpec("C2", 5, 12, ("C2",)),
    TableSpec("C3", BLOCK, 7, ("C3",)),
    TableSpec("C4", 2 * BLOCK, 4, ("C4",)),  # never touched
)
HEADER = {"training": {"seed": 9, "leaves": 16}, "model": {"loss": "bce"}}
OPTIMIZERS = [SparseOptimizer(name=name) for name in ("exact_rowwise_adagrad", "adam")]


class Whole:
    """The state of all tables in one place: fields of table t, and which rows were touched."""

    def __init__(self, optimizer: SparseOptimizer, seed: int = 3) -> None:
        random = np.random.default_rng(seed)
        self.optimizer = optimizer
        self.values: list[dict[str, np.ndarray]] = []
        self.touched: list[np.ndarray] = []
        for spec in TABLES:
            values = initial_rows(spec, optimizer, 9, np.arange(spec.rows))
            touched = random.random(spec.rows) < (0 if spec.name == "C4" else 0.1)
            if spec.name == "C2":
                touched[:] = True
            changed = np.flatnonzero(touched)[::2]  # the others were looked up only
            for value in values.values():
                value[changed] += random.standard_normal(value[changed].shape).astype(np.float32)
            self.values.append(values)
            self.touched.append(touched)
        self.values[1]["weight"][2, 5] = np.array([0xFFC12345], np.uint32).view(np.float32)[0]

    def dense(self) -> dict[str, dict[str, np.ndarray]]:
        random = np.random.default_rng(1)
        return {
            name: {
                "value": random.random(shape).astype(np.float32),
                "sum": random.random(shape).astype(np.float32),
            }
            for name, shape in (
                ("bottom.0.weight", (BLOCK + 3, 2)),
                ("bottom.0.bias", (BLOCK + 3,)),
            )
        }


class Part:
    """What one rank holds of it."""

    def __init__(self, whole: Whole, plan: Plan, rank: int) -> None:
        self.whole = whole
        self.shards = plan.local(rank)

    def flush(self) -> None:
        """Everything is here."""

    def existing(self, shard: int, lo: int, hi: int) -> np.ndarray:
        s = self.shards[shard]
        return np.flatnonzero(self.whole.touched[s.table][slice(*s.rows)][lo:hi]) + lo

    def values(self, shard: int, rows: np.ndarray) -> Mapping[str, np.ndarray]:
        s = self.shards[shard]
        fields = {k: v[slice(*s.rows)][rows] for k, v in self.whole.values[s.table].items()}
        return {k: v[:, slice(*s.cols)] if v.ndim == 2 else v for k, v in fields.items()}


def make(whole: Whole, comm: Comm, plan: Plan) -> State:
    return State(
        comm,
        whole.dense(),
        plan,
        Part(whole, plan, comm.rank),
        lambda table: state_shapes(whole.optimizer, TABLES[table].dim),
        lambda table, rows: initial_rows(TABLES[table], whole.optimizer, 9, rows),
    )


def digest_on(whole: Whole, comm: Comm, schemes: list[str], nodes: int | None = None) -> str:
    state = make(whole, comm, place(TABLES, schemes, comm.size, nodes))
    return digest_of(HEADER, 7, state.tensors, state.index())


def by_hand(whole: Whole) -> str:
    """The digest straight from the definition."""

    def line(data: object) -> bytes:
        return json.dumps(data, sort_keys=True, separators=(",", ":")).encode() + b"\n"

    out = hashlib.sha256(line({"version": 1, "config": HEADER, "seed": 9, "step": 7}))
    tensors = [
        (f"dense/{name}", fields, np.ones(len(fields["value"]), bool))
        for name, fields in whole.dense().items()
    ]
    for spec, values in zip(TABLES, whole.values):
        before = initial_rows(spec, whole.optimizer, 9, np.arange(spec.rows))
        belongs = np.zeros(spec.rows, bool)
        for name, value in values.items():
            value[np.isnan(value)] = np.nan
            belongs |= (
                (value.view(np.uint32) != before[name].view(np.uint32))
                .reshape(spec.rows, -1)
                .any(axis=1)
            )
        tensors.append((f"tables/{spec.name}", values, belongs))
    for name, values, belongs in tensors:
        fields = [[k, "float32", list(v.shape[1:])] for k, v in values.items()]
        blocks = b""
        count = 0
        for b in range(-(-belongs.size // BLOCK)):
            rows = np.flatnonzero(belongs[b * BLOCK : (b + 1) * BLOCK]) + b * BLOCK
            if rows.size:
                data = rows.astype("<i8").tobytes() + b"".join(
                    v[rows].astype("<f4").tobytes() for v in values.values()
                )
                blocks += np.int64(b).tobytes() + hashlib.sha256(data).digest()
                count += 1
        out.update(
            line({"name": name, "rows": belongs.size, "fields": fields, "blocks": count}) + blocks
        )
    return out.hexdigest()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_digest_is_that_of_the_definition(optimizer: SparseOptimizer) -> None:
    whole = Whole(optimizer)
    assert digest_on(whole, SingleComm(), ["table_wise"] * 4) == by_hand(whole)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("scheme", [*SCHEMES, "mixed"])
def test_digest_does_not_depend_on_ranks_and_plan(scheme: str, ranks: int) -> None:
    whole = Whole(OPTIMIZERS[0])
    expected = digest_on(whole, SingleComm(), ["table_wise"] * 4)
    schemes = (
        ["row_wise", "data_parallel", "column_wise", "grid_shard"]
        if scheme == "mixed"
        else [scheme] * 4
    )
    assert set(run_threads(ranks, lambda comm: digest_on(whole, comm, schemes, 2))) == {expected}


@pytest.mark.parametrize("budget", [1, 100_000])
def test_rounds_of_any_size_give_the_same(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Whole(OPTIMIZERS[1])
    expected = digest_on(whole, SingleComm(), ["table_wise"] * 4)
    monkeypatch.setattr(states, "ROUND", budget)
    schemes = ["grid_shard", "row_wise", "column_wise", "table_wise"]
    assert set(run_threads(4, lambda comm: digest_on(whole, comm, schemes, 2))) == {expected}


def test_every_bit_counts() -> None:
    whole = Whole(OPTIMIZERS[0])
    before = digest_on(whole, SingleComm(), ["table_wise"] * 4)
    row = int(np.flatnonzero(whole.touched[0])[1])
    whole.values[0]["weight"].view(np.uint32)[row, 3] ^= 1
    after = digest_on(whole, SingleComm(), ["table_wise"] * 4)
    assert before != after
    whole.values[0]["weight"].view(np.uint32)[row, 3] ^= 1
    assert digest_on(whole, SingleComm(), ["table_wise"] * 4) == before


def test_blocks_hold_only_rows_that_changed() -> None:
    whole = Whole(OPTIMIZERS[0])
    state = make(whole, SingleComm(), place(TABLES, ["table_wise"] * 4, 1))
    index = state.index()
    for table in range(len(TABLES)):
        blocks = index.of(table + 2)
        rows = int(index.rows[blocks].sum())
        assert rows == -(-int(whole.touched[table].sum()) // 2)
    assert TABLES[3].name == "C4" and index.of(5).stop == index.of(5).start


def test_the_row_of_a_number_that_is_not_finite_is_named() -> None:
    values = {"weight": np.zeros((3, 4)), "sum": np.zeros(3)}
    assert not not_finite("t", np.array([5, 7, 9]), values)
    values["weight"][1, 2] = np.nan
    message = not_finite("t", np.array([5, 7, 9]), values)
    assert message == "weight of row 7 of t is not finite"


def test_a_replica_that_did_not_look_a_row_up_does_not_matter() -> None:
    whole = Whole(OPTIMIZERS[0])
    replica = Whole(OPTIMIZERS[0])
    looked_up = np.flatnonzero(replica.touched[0])[1::2]  # looked up, never changed
    replica.touched[0][looked_up] = False

    def body(comm: Comm) -> str:
        return digest_on(whole if comm.rank else replica, comm, ["data_parallel"] * 4)

    assert set(run_threads(3, body)) == {digest_on(whole, SingleComm(), ["table_wise"] * 4)}
