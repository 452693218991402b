"""How fast are tables of tensor trains? Lookup and update, against torch and against a GEMM.

One batch of Zipf ids, bags of one, of the seven largest Criteo Kaggle tables, D 16. Ours
is the path of a training step on one rank: core rows looked up, rows made and pooled; gradients
merged by leaf, taken to the cores, core rows updated (exact_sgd, 16 leaves). torch's is the
contraction as one writes it: rows of the cores gathered for every lookup, two bmm, autograd, SGD;
its gradients of cores are dense or sparse. "operation" is ours without the exchange and update of
core rows. The limit is one matrix product (`kernels/dense/gemm.py`) of as many multiply-adds as
ours does after its reuse.

    python -m benchmarks.tt
    python -m benchmarks.tt --scattered      # ids in no order of frequency: fewer shared products
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import ours, rivals
from benchmarks.harness import THREADS, Contender, main, measure, summarise
from neocpu.core.jagged import KJT
from neocpu.core.trees import leaf_cuts
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import SingleComm
from neocpu.tables.embedding.lookups import KeyLookups
from neocpu.tables.kinds.tt import TrainShape, cube_factors, even_factors
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.train.config import config as configs

TABLES = (10_131_227, 8_351_593, 7_046_547, 5_461_306, 2_202_608, 286_181, 142_572)
DIM = 16
LEAVES = 16
RATE = 0.01
CASES = tuple((batch, rank) for batch in (2048, 4096) for rank in (16, 32, 64))
AIM = 5.0  # times as fast as torch


def zipf_ids(rows: int, batch: int, scattered: bool) -> np.ndarray:
    """i64[batch], ids by frequency (Zipf 1.05); scattered : in no order."""
    weights = np.cumsum(np.arange(1, rows + 1) ** -1.05)
    rng = np.random.default_rng(batch + rows)
    ids = np.searchsorted(weights, rng.random(batch) * weights[-1]).astype(np.int64)
    return ids * 2654435761 % rows if scattered else ids


@dataclass
class Batch:
    """Lookups in one table: its shape, ids i64[B], gradient f32[B, D] of their rows."""

    shape: TrainShape
    ids: np.ndarray
    gradient: np.ndarray


def digits(ids: np.ndarray, shape: TrainShape) -> list[np.ndarray]:
    """Rows of the three cores."""
    _, p2, p3 = shape.rows
    return [ids // (p2 * p3), ids // p3 % p2, ids % p3]


class Ours:
    """Tables of kind "tt" on one rank, as in training."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        from neocpu.parallel.embeddings.mixed import MixedEmbedding
        from neocpu.parallel.exchange.sharding_env import ShardingEnv
        from neocpu.train.model.composition import Compositions

        tables = "\n".join(
            f"t{n} = {{ rows = {rows}, kind = 'tt', rank = {batches[0].shape.rank} }}"
            for n, rows in enumerate(TABLES)
        )
        config = configs.loads(f"[tables]\n{tables}", "tt.toml")
        layout = config.layout(1).composition
        assert layout is not None
        plan = place(config.tables, ["table_wise"] * len(config.tables), 1, 1)
        rule = SparseOptimizer("exact_sgd", learning_rate=RATE)
        env = ShardingEnv(plan, SingleComm(), rule, 1, LEAVES)
        self.embedding = MixedEmbedding(env, layout.once)
        self.model = Compositions(0, layout, {})
        samples = batches[0].ids.size
        keys = self.embedding.keys
        values = np.concatenate([rows for b in batches for rows in digits(b.ids, b.shape)])
        self.kjt = KJT(keys, np.ones((len(keys), samples), np.int32), values)
        self.gradient = np.concatenate([b.gradient for b in batches], axis=1)
        self.E = np.zeros((samples, 0), np.float32)
        self.lookups: Sequence[KeyLookups] = ()

    def lookup(self, _: int = 0) -> np.ndarray:
        """The pooled vectors of the batch, f32[B, 7 D]."""
        lookup = self.embedding.lookup(self.embedding.start(self.kjt, len(self.E)))
        lookup.send()
        self.lookups = lookup.finish(self.E)
        return self.model.forward(self.E, self.lookups)

    def train(self, i: int = 0) -> None:
        """Lookup and update."""
        self.lookup()
        dE = self.model.backward(self.gradient)
        update = self.embedding.start_backward(dE, i + 1, self.model.row_terms)
        update.merge_replicas()
        update.update_shards()
        update.update_replicas()

    def cores(self) -> list[np.ndarray]:
        """All rows of the physical tables; 0 where none was looked up."""
        tables = enumerate(self.embedding.env.plan.tables)
        tbe = self.embedding.tbe
        return [tbe.values(number, np.arange(spec.rows))["weight"] for number, spec in tables]


class OneOperation:
    """The operation alone, on core rows that are there, and the multiply-adds that it does."""

    def __init__(self, batch: Batch) -> None:
        from neocpu.train.model.composition_layout import KeyVectors
        from neocpu.train.model.operations.tensor_train import TensorTrain

        shape = batch.shape
        ids = batch.ids
        options = (("rows", shape.rows), ("dims", shape.dims), ("rank", shape.rank))
        part = KeyVectors("t", 0, DIM, "sum", "tensor_train", (), options=options)
        self.operation = TensorTrain(part, {})
        self.gradient = batch.gradient
        self.out = np.empty_like(batch.gradient)
        cuts = np.array(leaf_cuts(ids.size, LEAVES), np.int64)
        rng = np.random.default_rng(1)
        self.sources = []
        for rows, width in zip(digits(ids, shape), shape.widths):
            distinct, lines = np.unique(rows, return_inverse=True)
            values = rng.standard_normal((distinct.size, width), np.float32)
            offsets = np.arange(ids.size + 1)
            self.sources.append(KeyLookups(offsets, rows, values, lines, None, cuts))
        leaf = np.repeat(np.arange(LEAVES), np.diff(cuts))
        height = int(np.prod(shape.rows))
        p3 = shape.rows[2]
        by_prefix = shape.dims[0] * shape.widths[1]
        by_row = DIM * shape.rank
        pairs = np.unique(leaf * height + ids)
        nodes = np.unique(leaf * height + ids // p3)
        self.lookup_macs = np.unique(ids // p3).size * by_prefix + np.unique(ids).size * by_row
        self.train_macs = self.lookup_macs + 2 * (nodes.size * by_prefix + pairs.size * by_row)

    def lookup(self) -> None:
        """Rows of the lookups."""
        self.operation.forward(self.sources, self.out)

    def train(self) -> None:
        """Rows, and the gradients of core rows."""
        self.lookup()
        self.operation.backward(self.gradient)


class Operations:
    """The operations of all tables."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.parts = [OneOperation(batch) for batch in batches]

    def lookup(self, _: int = 0) -> None:
        """Rows of all lookups."""
        for part in self.parts:
            part.lookup()

    def train(self, _: int = 0) -> None:
        """Rows and gradients."""
        for part in self.parts:
            part.train()


class Product:
    """A matrix product of so many multiply-adds."""

    def __init__(self, macs: int) -> None:
        side = 256
        rng = np.random.default_rng(2)
        self.x = rng.standard_normal((max(1, macs // side**2), side), np.float32)
        self.w = rng.standard_normal((side, side), np.float32)
        self.bias = np.zeros(side, np.float32)
        self.out = np.empty((len(self.x), side), np.float32)

    def run(self, _: int = 0) -> None:
        """One layer without ReLU."""
        from neocpu.kernels.dense import gemm

        gemm.layer(self.x, self.w, self.bias, False, self.out)


class Torch:
    """The contraction in torch, each lookup with copies of its core rows."""

    def __init__(self, batches: Sequence[Batch], cores: Sequence[np.ndarray], sparse: bool) -> None:
        import torch

        self.torch = torch
        self.shapes = [batch.shape for batch in batches]
        self.tables = [
            torch.nn.Embedding.from_pretrained(torch.tensor(core), freeze=False, sparse=sparse)
            for core in cores
        ]
        self.optimizer = torch.optim.SGD([table.weight for table in self.tables], lr=RATE)
        self.digits = [torch.tensor(r) for b in batches for r in digits(b.ids, b.shape)]
        self.gradient = torch.tensor(np.concatenate([b.gradient for b in batches], axis=1))

    def rows(self) -> Any:
        """Rows of the lookups, side by side."""
        gathered = [table(rows) for table, rows in zip(self.tables, self.digits)]
        return self.torch.cat(
            [
                self.product(shape, *gathered[3 * t : 3 * t + 3])
                for t, shape in enumerate(self.shapes)
            ],
            dim=1,
        )

    def product(self, shape: TrainShape, first: Any, second: Any, third: Any) -> Any:
        """G1 G2 G3 of every lookup."""
        q1, q2, q3 = shape.dims
        rank = shape.rank
        prefix = self.torch.bmm(first.view(-1, q1, rank), second.view(-1, rank, q2 * rank))
        third = third.view(-1, q3, rank).transpose(1, 2)
        return self.torch.bmm(prefix.view(-1, q1 * q2, rank), third).reshape(-1, DIM)

    def lookup(self, _: int = 0) -> Any:
        """Rows of the lookups, without a graph."""
        with self.torch.no_grad():
            return self.rows()

    def train(self, _: int = 0) -> None:
        """Lookup, gradients and update."""
        self.optimizer.zero_grad()
        self.rows().backward(self.gradient)
        self.optimizer.step()


@dataclass
class Case:
    """All contenders of one batch and rank."""

    table: Ours
    operations: Operations
    torch: dict[str, Torch]


def make_case(samples: int, rank: int, scattered: bool, with_rivals: bool) -> Case:
    """Contenders that agree: on the rows, and on the cores after an update."""
    batches = []
    for rows in TABLES:
        shape = TrainShape(cube_factors(rows), even_factors(DIM), rank)
        gradient = np.random.default_rng(rows).standard_normal((samples, DIM), np.float32)
        batches.append(Batch(shape, zipf_ids(rows, samples, scattered), gradient))
    table = Ours(batches)
    expected = table.lookup().copy()  # core rows are made when first touched
    torches = {}
    if with_rivals:
        cores = table.cores()
        torches["torch, dense gradients"] = Torch(batches, cores, sparse=False)
        torches["torch, sparse gradients"] = Torch(batches, cores, sparse=True)
    for name, rival in torches.items():
        np.testing.assert_allclose(rival.lookup(), expected, rtol=1e-3, atol=1e-5, err_msg=name)
    if torches:
        table.train()
        cores = table.cores()
        for name, rival in torches.items():
            rival.train()
            for core, weights in zip(cores, rival.tables):
                numbers = weights.weight.detach().numpy()
                np.testing.assert_allclose(numbers, core, rtol=1e-3, atol=1e-3, err_msg=name)
    table.gradient = table.gradient * np.float32(1e-6)  # rows stay what they are, about
    for rival in torches.values():
        rival.gradient *= 1e-6
    return Case(table, Operations(batches), torches)


def contenders(case: Case, what: str) -> list[Contender]:
    """All of "lookup" or "train", at every thread count."""
    product = Product(sum(getattr(part, f"{what}_macs") for part in case.operations.parts))
    run_table = getattr(case.table, what)
    run_operations = getattr(case.operations, what)
    entries = []
    for threads in THREADS:
        entries += [
            Contender("neocpu", "ours", run_table, threads, ours.threads),
            Contender("operation", "note", run_operations, threads, ours.threads),
            Contender("GEMM of as many products", "limit", product.run, threads, ours.threads),
        ]
        for name, rival in case.torch.items():
            run = getattr(rival, what)
            entries.append(Contender(name, "rival", run, threads, rivals.threads))
    return entries


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Records of all cases."""
    with_rivals = not options.no_rivals and rivals.have("torch")
    if with_rivals:
        rivals.preload()
    records = []
    for samples, rank in ((256, 16),) if options.quick else CASES:
        case = make_case(samples, rank, getattr(options, "scattered", False), with_rivals)
        for what, name in (("lookup", "tt lookup"), ("train", "tt lookup and update")):
            entries = contenders(case, what)
            measure(entries, options.rounds)
            aims = dict.fromkeys(case.torch, AIM)
            shape = {"B": samples, "R": rank, "T": len(TABLES)}
            records.append(summarise(name, shape, entries, aims))
    return records


def extra(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--scattered", action="store_true", help="ids without an order")


if __name__ == "__main__":
    main(__doc__, benchmark, extra)
