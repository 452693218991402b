"""Are gradients that went through calls those of one process, to the last bit, and do passes mix?

A DLRM as parameter servers have it: a trainer, a rank with tables, a rank with MLPs.
"""

import re
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from delays import LateMail

from neocpu.core.errors import RpcError
from neocpu.parallel.rpc import operations as op
from neocpu.parallel.rpc.agent import RpcAgent
from neocpu.parallel.rpc.failures import RemoteError
from neocpu.parallel.rpc.functions import Functions
from neocpu.parallel.rpc.gradients import GradientContext, PassId
from neocpu.parallel.rpc.optimizer import DistributedOptimizer, Parameters
from neocpu.parallel.rpc.tape import Variable
from neocpu.parallel.sharding.plan import Shard
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec

DIM = 8
ROWS = (40, 25)
RULE = SparseOptimizer(name="exact_sgd", learning_rate=0.1)
SHAPES = {"bottom.w": (DIM, 13), "bottom.b": (DIM,), "top.w": (1, DIM + 3), "top.b": (1,)}


def drawn(name: str, shape: tuple[int, ...]) -> Any:
    seed = sum(name.encode())
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Batch:
    """Samples of one step of one trainer."""

    def __init__(self, seed: int, samples: int = 6) -> None:
        draws = np.random.default_rng(seed)
        self.dense = draws.normal(size=(samples, 13)).astype(np.float32)
        self.labels = draws.integers(0, 2, samples).astype(np.float32)
        lengths = draws.integers(0, 4, (len(ROWS), samples))
        self.offsets = [np.append(0, np.cumsum(of)) for of in lengths]
        self.rows = [draws.integers(0, n, o[-1]) for n, o in zip(ROWS, self.offsets)]


class Rank:
    """A rank with its share of the model. homes : ranks of the tables and of the MLPs."""

    def __init__(self, comm: Comm, homes: tuple[int, int], seed: int | None) -> None:
        self.homes = homes
        functions = Functions()
        for name in ("vectors", "features", "losses", "pass_on"):
            functions.add(name, getattr(self, name))
        mail = None if seed is None else LateMail(comm.mail(), seed)
        self.agent = RpcAgent(comm, functions, mail=mail, threads=2)
        named: dict[str, Variable] = {}
        if comm.rank == homes[0]:
            for number in range(len(ROWS)):
                named[f"t{number}"] = table_of(number)
        if comm.rank == homes[1]:
            named |= {name: Variable(drawn(name, shape)) for name, shape in SHAPES.items()}
        self.parameters = Parameters(self.agent, named, RULE)
        self.names = list(named)
        tables = [f"t{number}" for number in range(len(ROWS))]
        by_rank = {homes[0]: tables} | {homes[1]: list(SHAPES)}
        if homes[0] == homes[1]:
            by_rank = {homes[0]: [*tables, *SHAPES]}
        self.optimizer = DistributedOptimizer(self.agent, by_rank)
        # the agent serves since it was made, what it serves is complete now
        comm.barrier()

    def vectors(self, rows: Any, offsets: Any) -> Variable:
        tables = [self.parameters[f"t{number}"] for number in range(len(ROWS))]
        assert all(isinstance(table, op.EmbeddingParameter) for table in tables)
        bags = map(op.embedding_bag, tables, rows, offsets)  # type: ignore[arg-type]
        return op.concatenate(*bags)

    def features(self, dense: Any) -> Variable:
        linear = op.linear(dense, self.parameters["bottom.w"], self.parameters["bottom.b"])
        return op.relu(linear)

    def losses(self, vectors: Variable, features: Variable, labels: Any) -> Variable:
        pairs = op.interact(op.concatenate(features, vectors), DIM)
        logits = op.linear(pairs, self.parameters["top.w"], self.parameters["top.b"])
        return op.binary_cross_entropy(logits, labels)

    def pass_on(self, vectors: Variable, features: Variable, batch: list[Any]) -> Any:
        dense, labels = batch
        features = op.add(features, self.doubled(dense[::-1]))
        return self.agent.rpc_sync(self.homes[1], "losses", vectors, features, labels)

    def doubled(self, dense: Any) -> Variable:
        """What the bottom MLP makes of samples, and of half of each."""
        calls = [self.agent.rpc_async(self.homes[1], "features", x) for x in (dense, dense / 2)]
        return op.add(*(call.wait() for call in calls))  # type: ignore[arg-type]

    def forward(self, batch: Batch) -> Variable:
        """Losses of a batch. Weights of the bottom MLP are read by four calls of two ranks."""
        tables = self.homes[0]
        vectors = self.agent.rpc_async(tables, "vectors", batch.rows, batch.offsets)
        features = self.doubled(batch.dense)
        # the rank with tables calls the one with MLPs
        return self.agent.rpc_sync(  # type: ignore[return-value]
            tables, "pass_on", vectors.wait(), features, [batch.dense, batch.labels]
        )

    def gradients(self, context: GradientContext) -> dict[str, Any]:
        """Of this rank's parameters, in a pass."""
        found: dict[str, Any] = {}
        for name in self.names:
            variable = self.parameters[name]
            value = self.agent.gradients.gradient(context.number, variable)
            if isinstance(variable, op.EmbeddingParameter) and value is not None:
                value = np.concatenate([np.ravel(part) for part in value.of_rows(variable)])
            found[name] = value
        return found

    def state(self) -> dict[str, Any]:
        """This rank's parameters."""
        return {
            name: variable.embedding.state(0)["weight"].copy()
            if isinstance(variable := self.parameters[name], op.EmbeddingParameter)
            else variable.array.copy()
            for name in self.names
        }


def train(
    ranks: int, homes: tuple[int, int], seed: int | None, trainers: int = 1
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Gradients of the first pass of each trainer, and the parameters after three steps of one."""
    of_ranks = run_threads(ranks, lambda comm: train_rank(comm, homes, seed, trainers), timeout=60)
    firsts = [
        {name: value for first, _ in of_ranks for name, value in first[number].items()}
        for number in range(trainers)
    ]
    return firsts, {name: value for _, state in of_ranks for name, value in state.items()}


def train_rank(
    comm: Comm, homes: tuple[int, int], seed: int | None, trainers: int = 1
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """`train` on one rank, whose parameters alone it returns."""
    rank = Rank(comm, homes, seed)
    firsts = []
    with rank.agent as agent:
        for step in range(3 if trainers == 1 else 1):
            context = agent.gradients.begin()
            if comm.rank < trainers:
                with context:
                    context.backward(rank.forward(Batch(10 * comm.rank + step)))
                    comm.barrier()
                    # passes are numbered alike, and other ranks know them by their numbers
                    if not step:
                        firsts = [rank.gradients(of) for of in all_of(agent, trainers)]
                    comm.barrier()
                    if trainers == 1:
                        rank.optimizer.step(context)
                comm.barrier()
                continue
            comm.barrier()
            if not step:
                firsts = [rank.gradients(of) for of in all_of(agent, trainers)]
            comm.barrier()
            comm.barrier()
    assert agent.gradients.passes() == 0
    return firsts, rank.state()


def all_of(agent: RpcAgent, trainers: int) -> list[GradientContext]:
    """The first passes of all trainers."""
    return [GradientContext(agent.gradients, PassId(rank, 1)) for rank in range(trainers)]


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value is not None, name
        assert value.tobytes() == other[name].tobytes(), name


def test_gradients_and_steps_are_those_of_one_process_to_the_bit() -> None:
    (alone,), trained = train(1, (0, 0), None)
    assert {"t0", "t1", *SHAPES} == alone.keys()
    for seed in (1, 2):
        (spread,), after = train(3, (1, 2), seed)
        same(alone, spread)
        same(trained, after)
    (pair,), _ = train(2, (1, 1), 3)
    same(alone, pair)


def test_gradients_are_those_of_the_formula() -> None:
    (alone,), _ = train(1, (0, 0), None)
    batch = Batch(0)
    table = [initial_rows(number) for number in range(len(ROWS))]

    def loss(changed: str, at: int, by: float) -> float:
        p = {name: drawn(name, shape).astype(np.float64) for name, shape in SHAPES.items()}
        p |= {f"t{k}": rows.astype(np.float64) for k, rows in enumerate(table)}
        p[changed].reshape(-1)[at] += by
        w, b = p["bottom.w"], p["bottom.b"]
        samples = [d / k for d in (batch.dense, batch.dense[::-1]) for k in (1, 2)]
        x = sum(np.maximum(d @ w.T + b, 0) for d in samples)
        bags = [
            np.stack([p[f"t{k}"][r[lo:hi]].sum(0) for lo, hi in pairwise(o)])
            for k, (r, o) in enumerate(zip(batch.rows, batch.offsets))
        ]
        e = np.stack([x, *bags], 1)
        pairs = np.stack([(e[:, i] * e[:, j]).sum(1) for i, j in ((1, 0), (2, 0), (2, 1))], 1)
        z = np.concatenate([x, pairs], 1) @ p["top.w"].T + p["top.b"]
        z = z[:, 0]
        return float(np.mean(np.logaddexp(0, z) - z * batch.labels))

    for name in SHAPES:
        for at in range(0, alone[name].size, 7):
            slope = (loss(name, at, 1e-5) - loss(name, at, -1e-5)) / 2e-5
            assert alone[name].reshape(-1)[at] == pytest.approx(slope, rel=2e-3, abs=2e-5)
    for number in range(len(ROWS)):
        rows = np.unique(batch.rows[number])
        numbers = alone[f"t{number}"]
        assert numbers[: rows.size].tolist() == rows.tolist()
        at = int(rows[0]) * DIM + 3
        slope = (loss(f"t{number}", at, 1e-5) - loss(f"t{number}", at, -1e-5)) / 2e-5
        assert numbers[rows.size + 3] == pytest.approx(slope, rel=2e-3, abs=2e-5)


def initial_rows(number: int) -> Any:
    """The rows of a table before training."""
    embedding = table_of(number).embedding
    rows = np.arange(ROWS[number])
    out = np.empty((rows.size, DIM), np.float32)
    lookups = op.Lookups(np.arange(rows.size + 1), rows, op.NO_FLOATS, rows.size)
    embedding.forward(op._LAYOUT, lookups, out)
    return out


def test_passes_of_two_trainers_do_not_mix() -> None:
    (first, second), _ = train(4, (2, 3), 7, trainers=2)
    (alone,), _ = train(1, (0, 0), None)
    same(alone, first)
    assert first["top.w"].tobytes() != second["top.w"].tobytes()
    (again, swapped), _ = train(4, (3, 2), 8, trainers=2)
    same(second, swapped)
    same(first, again)


def on_ranks(body: Callable[[RpcAgent], None], **functions: Callable[..., object]) -> None:
    """Run a body on the first of two ranks, which have these functions."""

    def rank(comm: Comm) -> None:
        registered = Functions()
        for name, function in functions.items():
            registered.add(name, function)
        with RpcAgent(comm, registered) as agent:
            if comm.rank == 0:
                body(agent)

    run_threads(2, rank, timeout=30)


def test_what_a_pass_cannot_do_is_told() -> None:
    weight = Variable(np.full(3, 2.0, np.float32))

    def body(agent: RpcAgent) -> None:
        x = Variable(np.arange(3, dtype=np.float32))
        optimizer = DistributedOptimizer(agent, {1: ["weight"]})
        with agent.gradients.begin() as context:
            for early in (optimizer.step, lambda context: context.gradient(x)):
                with pytest.raises(RpcError, match="no gradients before its backward pass"):
                    early(context)
            y: Any = agent.rpc_sync(1, "scale", x)
            context.backward(y)
            assert context.gradient(x).tolist() == [2.0] * 3  # type: ignore[union-attr]
            with pytest.raises(RpcError, match="one backward pass"):
                context.backward(y)
            for root in (x, y.array):
                with pytest.raises(RpcError, match="has to be computed within its context"):
                    context.backward(root)
        for late in (context.backward, context.gradient, optimizer.step):
            with pytest.raises(RpcError, match="block of this context is over"):
                late(context if late == optimizer.step else y)  # type: ignore[operator]
        with pytest.raises(RpcError, match="a context has one block"), context:
            pass
        with agent.gradients.begin() as context:
            with pytest.raises(RpcError, match="'add' takes a variable of another pass"):
                op.add(y, y)
            with pytest.raises(RpcError, match="'a call' takes a variable of another pass"):
                agent.rpc_sync(1, "scale", y)
            # of two values in one message, one may be left; of two messages none
            first, second = agent.rpc_sync(1, "twice", op.multiply(x, x))  # type: ignore[misc]
            both = [agent.rpc_sync(1, "scale", value) for value in (first, first)]
            with pytest.raises(RpcError, match=r"missing on rank 0.*send its array"):
                context.backward(both[0])  # type: ignore[arg-type]
        with agent.gradients.begin() as context:
            first, second = agent.rpc_sync(1, "twice", op.multiply(x, x))  # type: ignore[misc]
            context.backward(second)
            # of 2x²·x²
            assert context.gradient(x).tolist() == [0.0, 8.0, 64.0]  # type: ignore[union-attr]
        with agent.gradients.begin() as context, pytest.raises(RemoteError, match="cannot go back"):
            context.backward(agent.rpc_sync(1, "broken", x))  # type: ignore[arg-type]
        # outside of a pass a variable is its array, and nothing is noted
        assert agent.rpc_sync(1, "scale", x).needs is False  # type: ignore[attr-defined]

    def twice(x: Variable) -> tuple[Variable, Variable]:
        double = op.add(x, x)
        return double, op.multiply(double, x)

    def refuse(saved: object, gradient: object) -> Any:
        raise ValueError("cannot go back")

    rule = op.GradientRule("broken", lambda x: (x + 1, None), refuse)
    on_ranks(
        body,
        scale=lambda x: op.multiply(x, weight),
        twice=twice,
        broken=lambda x: op.apply(rule, x),
    )


def test_the_programs_of_the_page_run_and_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neocpu.parallel.transport.mpi.MpiComm", SingleComm)
    text = (Path(__file__).parents[1] / "docs" / "rpc.md").read_text()
    names: dict[str, Any] = {}
    for program in re.findall("```python\n(.*?)```", text, re.DOTALL):
        exec(program, names)
    assert names["bias"].array[0] < 0 < names["w"].array.min() < 1


def test_operations_refuse_what_their_kernels_would_misread() -> None:
    f = np.float32
    (ones, row, labels) = (np.ones((2, 6), f), np.ones((3, 6), f), np.ones(2, f))
    for wrong, why in (
        (
            lambda: op.linear(ones, row.astype(np.float64), labels),
            "takes float32 of 2 dim.*float64",
        ),
        (lambda: op.linear(ones, row[:, :5], labels), "cannot multiply"),
        (lambda: op.linear(ones, row, labels), "cannot multiply"),
        (lambda: op.interact(ones, 4), "6 columns are no vectors of 4"),
        (lambda: op.add(ones, ones[0]), "one dtype and shape"),
        (lambda: op.multiply(ones, np.float32(2)), "dtype and shape, not float32"),
        (lambda: op.add(ones, ones.astype(float)), "not float32 .* and float64"),
        (lambda: op.concatenate(ones, row), "as many samples"),
        (lambda: op.binary_cross_entropy(np.ones(9, f), labels), "2 labels of 9 logits"),
        (lambda: op.binary_cross_entropy(labels, np.ones(2)), "takes float32"),
        (lambda: op.embedding_bag(table_of(0), [0.5], [0, 1]), "are integers"),
        (lambda: op.embedding_bag(Variable(ones), [0], [0, 1]), "of an EmbeddingParameter"),
        (lambda: Parameters(Any, {"w": Variable(ones[:, ::2])}, RULE), "one after the other"),
        (lambda: Parameters(Any, {"w": ones}, RULE), "one after the other"),
    ):
        with pytest.raises(RpcError, match=why):
            wrong()


def test_rules_know_how_often_a_parameter_was_updated() -> None:
    rule = SparseOptimizer(name="adam", learning_rate=0.1)
    weight, expected = np.ones((2, 3), np.float32), np.ones(6, np.float32)
    gradient = np.float32([[1, -2, 3], [0.5, 0, 4]])
    agent: Any = SimpleNamespace(
        functions=Functions(), gradients=SimpleNamespace(gradient=lambda *_: gradient)
    )
    parameters = Parameters(agent, {"w": Variable(weight)}, rule)
    reference = DenseOptimizer(rule, expected)
    for step in (1, 2):
        parameters._step((0, step), ["w"])
        reference.step(gradient.reshape(-1), step)
    assert weight.tobytes() == expected.tobytes()
    # nobody asks for a gradient of what is computed outside a pass
    assert not op.add(gradient, gradient).needs


def test_what_changes_in_place_before_the_way_back_changes_no_gradient() -> None:
    """Nor do blocks of passes that overlap."""
    ones = np.ones((1, 6), np.float32)
    x, e, w = ones.copy(), Variable(ones.copy()), Variable(ones.copy())
    rows, table = np.array([1, 2, 3], np.int32), table_of(0)
    with RpcAgent(SingleComm(), Functions()) as agent:
        outer, context = agent.gradients.begin(), agent.gradients.begin()
        outer.__enter__()
        context.__enter__()
        linear = op.linear(x, w, np.zeros(1, np.float32))
        root = op.concatenate(linear, op.interact(e, 2), op.embedding_bag(table, rows, [0, 3]))
        for array in (x, e.array, rows):
            array[:] = 9
        outer.__exit__(None, None, None)
        context.backward(root)
        assert np.array_equal(context.gradient(w), ones)  # type: ignore[arg-type]
        assert context.gradient(e).tolist() == [[3, 3, 2, 2, 2, 2]]  # type: ignore[union-attr]
        bags = context.gradient(table)
        assert isinstance(bags, op.BagGradient)
        assert bags.lookups.rows.tolist() == [1, 2, 3]
        context.__exit__(None, None, None)
        assert op.add(w, w).node is None
        for parts, why in (
            ((), "0 gradients of 1 inputs"),
            ((ones[0],), r"gradient float32 \(6,\)"),
        ):
            rule = op.GradientRule("own", lambda x: (x, None), lambda saved, g, p=parts: p)
            with agent.gradients.begin() as context, pytest.raises(RpcError, match=why):
                context.backward(op.apply(rule, w))


def test_calls_that_outlive_their_pass_leave_nothing_on_any_rank() -> None:
    def rank(comm: Comm) -> int:
        functions = Functions()
        gate = threading.Event()
        with RpcAgent(comm, functions) as agent:
            functions.add("open", gate.set, quick=True)

            def hop(x: Variable, more: int) -> Variable:
                gate.wait(20)
                if more:
                    agent.rpc_async((comm.rank + 1) % 3, "hop", x, more - 1)
                return op.add(x, x)

            functions.add("hop", hop)
            comm.barrier()
            if comm.rank == 0:
                with agent.gradients.begin():
                    agent.rpc_async(1, "hop", Variable(np.ones(3, np.float32)), 4)
                for to in range(3):
                    agent.rpc_sync(to, "open")
        return agent.gradients.passes()

    assert run_threads(3, rank, timeout=30) == [0, 0, 0]


def table_of(number: int) -> op.EmbeddingParameter:
    spec = TableSpec(f"t{number}", ROWS[number], DIM, ("f",))
    shards = [Shard(0, (0, ROWS[number]), (0, DIM), 0)]
    return op.EmbeddingParameter(TableBatchedEmbedding([spec], shards, RULE, seed=5))
