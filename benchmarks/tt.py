"""How fast is a table of tensor trains? Lookup and update, against torch and against a GEMM.

One batch of Zipf ids, bags of one, of the largest Criteo Kaggle table (10,131,227 rows, D 16,
row factors 216 216 218). Ours is the path of a training step on one rank: core rows looked up, rows
made and pooled; gradients merged by leaf, taken to the cores, core rows updated (exact_sgd, 16
leaves). torch's is the contraction as one writes it: rows of the cores gathered for every lookup,
two bmm, autograd, SGD; its gradients of cores are dense or sparse. "kernels" are ours without
lookups of core rows, numbering and pooling. The limit is one matrix product (`kernels/gemm.py`) of
as many multiply-adds as ours does after its reuse.

    python -m benchmarks.tt
    python -m benchmarks.tt --scattered      # ids without an order by frequency
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import ours, rivals
from benchmarks.harness import THREADS, Contender, main, measure, summarise
from neocpu import config as configs
from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.embedding.row_lookups import KeyLookups
from neocpu.jagged import KJT
from neocpu.kinds.tt import TrainShape, cube_factors, even_factors
from neocpu.parallel.comm import SingleComm
from neocpu.parallel.plan import place
from neocpu.trees import leaf_cuts

ROWS = 10_131_227
DIM = 16
LEAVES = 16
RATE = 0.01
CASES = tuple((batch, rank) for batch in (2048, 4096) for rank in (16, 32, 64))
AIM = 5.0  # times as fast as torch


def zipf_ids(batch: int, scattered: bool) -> np.ndarray:
    """i64[batch], ids by frequency (Zipf 1.05); scattered : in no order."""
    weights = np.cumsum(np.arange(1, ROWS + 1) ** -1.05)
    rng = np.random.default_rng(batch)
    ids = np.searchsorted(weights, rng.random(batch) * weights[-1]).astype(np.int64)
    return ids * 2654435761 % ROWS if scattered else ids


def digits(ids: np.ndarray, shape: TrainShape) -> list[np.ndarray]:
    """Rows of the three cores."""
    _, p2, p3 = shape.rows
    return [ids // (p2 * p3), ids // p3 % p2, ids % p3]


class Ours:
    """A table of kind "tt" on one rank, as in training."""

    def __init__(self, ids: np.ndarray, gradient: np.ndarray, shape: TrainShape) -> None:
        from neocpu.model.composition import Compositions
        from neocpu.parallel.mixed import MixedEmbedding

        text = f"[tables]\nt = {{ rows = {ROWS}, kind = 'tt', rank = {shape.rank} }}"
        config = configs.loads(text, "tt.toml")
        layout = config.layout(1).composition
        assert layout is not None
        plan = place(config.tables, ["table_wise"] * 3, 1, 1)
        rule = SparseOptimizer("exact_sgd", learning_rate=RATE)
        self.embedding = MixedEmbedding(plan, SingleComm(), rule, 1, LEAVES, distinct=layout.once)
        self.model = Compositions(0, layout, {})
        keys = self.embedding.keys
        lengths = np.ones((len(keys), ids.size), np.int32)
        self.kjt = KJT(keys, lengths, np.concatenate(digits(ids, shape)))
        self.gradient = gradient
        self.E = np.zeros((ids.size, 0), np.float32)
        self.lookups: Sequence[KeyLookups] = ()

    def lookup(self, _: int = 0) -> np.ndarray:
        """The pooled vectors of the batch."""
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
        """All rows of the three tables."""
        tables = enumerate(self.embedding.plan.tables)
        tbe = self.embedding.tbe
        return [tbe.values(number, np.arange(spec.rows))["weight"] for number, spec in tables]


class Kernels:
    """The kernels alone, on core rows that are there, and the multiply-adds that they do."""

    def __init__(self, ids: np.ndarray, gradient: np.ndarray, shape: TrainShape) -> None:
        from neocpu.model.composition_layout import KeyVectors
        from neocpu.model.operations.tensor_train import TensorTrain

        options = (("rows", shape.rows), ("dims", shape.dims), ("rank", shape.rank))
        part = KeyVectors("t", 0, DIM, "sum", "tensor_train", (), options=options)
        self.operation = TensorTrain(part, {})
        self.gradient = gradient
        self.out = np.empty_like(gradient)
        cuts = np.array(leaf_cuts(ids.size, LEAVES), np.int64)
        rng = np.random.default_rng(1)
        self.sources = []
        for rows, width in zip(digits(ids, shape), shape.widths):
            distinct, lines = np.unique(rows, return_inverse=True)
            values = rng.standard_normal((distinct.size, width), np.float32)
            offsets = np.arange(ids.size + 1)
            self.sources.append(KeyLookups(offsets, rows, values, lines, None, cuts))
        leaf = np.repeat(np.arange(LEAVES), np.diff(cuts))
        p3 = shape.rows[2]
        by_prefix = shape.dims[0] * shape.widths[1]
        by_row = DIM * shape.rank
        pairs = np.unique(leaf * ROWS + ids)
        nodes = np.unique(leaf * ROWS + ids // p3)
        self.lookup_macs = np.unique(ids // p3).size * by_prefix + np.unique(ids).size * by_row
        self.train_macs = self.lookup_macs + 2 * (nodes.size * by_prefix + pairs.size * by_row)

    def lookup(self, _: int = 0) -> None:
        """Rows of the lookups."""
        self.operation.forward(self.sources, self.out)

    def train(self, _: int = 0) -> None:
        """Rows, and the gradients of core rows."""
        self.operation.forward(self.sources, self.out)
        self.operation.backward(self.gradient)


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
        from neocpu.kernels import gemm

        gemm.layer(self.x, self.w, self.bias, False, self.out)


class Torch:
    """The contraction in torch, each lookup with copies of its core rows."""

    def __init__(
        self,
        ids: np.ndarray,
        gradient: np.ndarray,
        shape: TrainShape,
        cores: Sequence[np.ndarray],
        sparse: bool,
    ) -> None:
        import torch

        self.torch = torch
        self.shape = shape
        self.tables = [
            torch.nn.Embedding.from_pretrained(torch.tensor(core), freeze=False, sparse=sparse)
            for core in cores
        ]
        parameters = [table.weight for table in self.tables]
        self.optimizer = torch.optim.SGD(parameters, lr=RATE)
        self.digits = [torch.tensor(rows) for rows in digits(ids, shape)]
        self.gradient = torch.tensor(gradient)

    def rows(self) -> Any:
        """Rows of the lookups."""
        q1, q2, q3 = self.shape.dims
        rank = self.shape.rank
        first, second, third = (table(rows) for table, rows in zip(self.tables, self.digits))
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
    kernels: Kernels
    torch: dict[str, Torch]


def make_case(batch: int, rank: int, scattered: bool, with_rivals: bool) -> Case:
    """Contenders that agree: on the rows, and on the cores after an update."""
    shape = TrainShape(cube_factors(ROWS), even_factors(DIM), rank)
    ids = zipf_ids(batch, scattered)
    gradient = np.random.default_rng(rank).standard_normal((batch, DIM), np.float32)
    table = Ours(ids, gradient, shape)
    expected = table.lookup().copy()  # core rows are made when first touched
    torches = {}
    if with_rivals:
        for name, sparse in (("dense", False), ("sparse", True)):
            torches[f"torch, {name} gradients"] = Torch(ids, gradient, shape, table.cores(), sparse)
    for name, rival in torches.items():
        np.testing.assert_allclose(rival.lookup(), expected, rtol=1e-3, atol=1e-5, err_msg=name)
    if torches:
        table.train()
        for name, rival in torches.items():
            rival.train()
            for ours_core, core in zip(table.cores(), rival.tables):
                numbers = core.weight.detach().numpy()
                np.testing.assert_allclose(numbers, ours_core, rtol=1e-3, atol=1e-4, err_msg=name)
    table.gradient = gradient * np.float32(1e-6)  # rows stay what they are, about
    for rival in torches.values():
        rival.gradient *= 1e-6
    return Case(table, Kernels(ids, gradient, shape), torches)


def contenders(case: Case, what: str) -> list[Contender]:
    """All of "lookup" or "train", at every thread count."""
    macs = case.kernels.lookup_macs if what == "lookup" else case.kernels.train_macs
    product = Product(macs)
    lists = []
    for threads in THREADS:
        lists += [
            Contender("neocpu", "ours", getattr(case.table, what), threads, ours.threads),
            Contender("kernels", "note", getattr(case.kernels, what), threads, ours.threads),
            Contender("GEMM of as many products", "limit", product.run, threads, ours.threads),
        ]
        for name, rival in case.torch.items():
            run = getattr(rival, what)
            lists.append(Contender(name, "rival", run, threads, rivals.threads))
    return lists


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Records of all cases."""
    with_rivals = not options.no_rivals and rivals.have("torch")
    if with_rivals:
        rivals.preload()
    records = []
    for batch, rank in ((256, 16),) if options.quick else CASES:
        case = make_case(batch, rank, getattr(options, "scattered", False), with_rivals)
        for what, name in (("lookup", "tt lookup"), ("train", "tt lookup and update")):
            entries = contenders(case, what)
            measure(entries, options.rounds)
            aims = dict.fromkeys(case.torch, AIM)
            shape = {"B": batch, "R": rank, "rows": ROWS}
            records.append(summarise(name, shape, entries, aims))
    return records


def extra(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--scattered", action="store_true", help="ids without an order")


if __name__ == "__main__":
    main(__doc__, benchmark, extra)
