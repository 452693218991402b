"""Which models and plans does the prediction benchmark run? Five models, plans drawn at random."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from neocpu.core.jagged import KJT
from neocpu.parallel.sharding.plan import Plan, place
from neocpu.parallel.sharding.schemes import SCHEMES, RankLayout
from neocpu.plan.cost.work import DenseWork, Workload
from neocpu.tables.specs.specs import TableSpec

# Leaves of the batch tree.
LEAVES = 16
# On one node the hierarchical schemes are these.
DRAWN = ("table_wise", "row_wise", "column_wise", "data_parallel")
# Numbers of dense features.
DENSE_FEATURES = 13


@dataclass(frozen=True)
class Model:
    """One DLRM with lookups of constant mean length."""

    name: str
    batch: int
    rows: tuple[int, ...]
    dims: tuple[int, ...]
    pooling: tuple[int, ...]
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    interaction: str

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """Its tables, each with one feature."""
        return tuple(
            TableSpec(f"t{i}", rows, dim, (f"f{i}",))
            for i, (rows, dim) in enumerate(zip(self.rows, self.dims))
        )

    @property
    def work(self) -> Workload:
        """What the planner is told of it."""
        dot = self.interaction == "dot"
        vectors = len(self.dims) + 1
        width = self.bottom[-1] + sum(self.dims)
        if dot:
            width = self.bottom[-1] + vectors * (vectors - 1) // 2
        bottom = [DENSE_FEATURES, *self.bottom]
        top = [width, *self.top]
        layers = [*pairwise(bottom), *pairwise(top)]
        return Workload(
            batch=self.batch,
            pooling={f"t{i}": float(length) for i, length in enumerate(self.pooling)},
            state_floats=(0, 1),
            dense=DenseWork(tuple(layers), vectors if dot else 0, self.dims[0] if dot else 0),
        )

    def lookups(self, seed: int, lo: int, hi: int) -> KJT:
        """Samples [lo, hi) of a batch; bags have 1 to 2 L - 1 lookups, rows are uniform."""
        lengths = []
        values = []
        for i, (rows, length) in enumerate(zip(self.rows, self.pooling)):
            rng = np.random.default_rng([seed, i])
            sizes = rng.integers(1, 2 * length, self.batch).astype(np.int32)
            first = int(sizes[:lo].sum())
            last = int(sizes[:hi].sum())
            lengths.append(sizes[lo:hi])
            values.append(rng.integers(0, rows, int(sizes.sum()))[first:last])
        keys = tuple(f"f{i}" for i in range(len(self.rows)))
        return KJT(keys, np.stack(lengths), np.concatenate(values))


def _heights(seed: int, count: int, least: float, most: float) -> tuple[int, ...]:
    """Rows of tables, log-uniform."""
    rng = np.random.default_rng(seed)
    return tuple(int(x) for x in np.exp(rng.uniform(np.log(least), np.log(most), count)))


def _choice(seed: int, count: int, values: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(x) for x in np.random.default_rng(seed).choice(values, count))


MODELS = (
    Model(
        name="clicks",  # one-hot, 26 tables, as the Kaggle preset
        batch=2048,
        rows=_heights(1, 26, 10, 300_000),
        dims=(16,) * 26,
        pooling=(1,) * 26,
        bottom=(256, 64, 16),
        top=(256, 128, 1),
        interaction="dot",
    ),
    Model(
        name="many",  # one-hot, 150 tables
        batch=1024,
        rows=_heights(2, 150, 100, 50_000),
        dims=_choice(2, 150, (8, 16, 32)),
        pooling=(1,) * 150,
        bottom=(64, 16),
        top=(64, 1),
        interaction="cat",
    ),
    Model(
        name="bags",  # multi-hot
        batch=1024,
        rows=_heights(3, 16, 1_000, 200_000),
        dims=(64,) * 16,
        pooling=_choice(3, 16, (4, 10, 20, 40)),
        bottom=(128, 64),
        top=(128, 64, 1),
        interaction="dot",
    ),
    Model(
        name="dense",  # few tables below large layers
        batch=1024,
        rows=_heights(4, 8, 1_000, 100_000),
        dims=(64,) * 8,
        pooling=(2,) * 8,
        bottom=(512, 256, 64),
        top=(1024, 512, 256, 1),
        interaction="dot",
    ),
    Model(
        name="wide",  # wide rows
        batch=1024,
        rows=_heights(5, 6, 1_000, 100_000),
        dims=_choice(5, 6, (128, 256, 512)),
        pooling=(5,) * 6,
        bottom=(64, 32),
        top=(64, 1),
        interaction="cat",
    ),
)


def draw_plan(model: Model, ranks: int, seed: int) -> Plan:
    """A random plan: how often each scheme occurs, schemes of tables, and homes.

    In half of the plans homes are balanced by bytes, in the others drawn.
    """
    rng = np.random.default_rng([seed, ranks, len(model.rows)])
    # on one rank a copy is the table itself
    drawn = DRAWN if ranks > 1 else DRAWN[:-1]
    often = rng.dirichlet(np.full(len(drawn), 0.5))
    schemes = [str(name) for name in rng.choice(drawn, len(model.rows), p=often)]
    if rng.random() < 0.5:
        costs = [float(length * dim) for length, dim in zip(model.pooling, model.dims)]
        return place(model.tables, schemes, ranks, costs=costs)
    layout = RankLayout(ranks, ranks)
    shards = []
    for number, (name, table) in enumerate(zip(schemes, model.tables)):
        scheme = SCHEMES[name]
        home = int(rng.choice(scheme.choices(layout)))
        shards += scheme.cut(number, table.rows, table.dim, layout, home)
    return Plan(model.tables, tuple(schemes), tuple(sorted(shards)), ranks, ranks).check()
