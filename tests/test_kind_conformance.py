"""Does every kind of table do what its formula says, on any plan? One suite for all kinds.

A new kind adds its examples to EXAMPLES: keys of a table NAME that has 41 rows of dim 4.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from neocpu.ingest.code_map import CodeMap
from neocpu.ingest.dataset.dataset import BagColumn, Dataset
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import FeatureColumn
from neocpu.ingest.loader import BatchShare, Loader, Reading
from neocpu.kernels.twins.dense import model as formula
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.kinds import KINDS
from neocpu.tables.specs.specs import bags
from neocpu.train import checkpoint
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.model.logical_rows import LogicalRows
from neocpu.train.model.operations import make_operation
from neocpu.train.state.state import digest
from neocpu.train.step.world import World, build

ROWS = 41
DIM = 4
SAMPLES = 44
BATCH = 22
DENSE = 2


class Example(NamedTuple):
    """Keys of a table, whose name stands for NAME.

    numbers : parameters of the kind's tables, by its formula. commutes : is the vector of a bag the
    sum of its rows' vectors?
    """

    keys: str
    numbers: int
    commutes: bool = True


EXAMPLES: dict[str, list[Example]] = {
    "hash": [
        Example("hash_rows = 7", 7 * DIM),
        Example("compression = 4, hash = 'mod'", 10 * DIM),
        Example("hash_rows = 9, hashes = 3, signed = true", 9 * DIM),
    ],
    "qr": [
        Example("operation = 'concat'", (11 + 4) * DIM // 2),
        Example("collisions = 6, operation = 'add'", (7 + 6) * DIM),
        Example("collisions = 5", (9 + 5) * DIM, commutes=False),
        Example("collisions = 5, combine = 'rows'", (9 + 5) * DIM),
        Example("partitions = 2, operation = 'concat', combine = 'rows'", (7 + 6) * DIM // 2),
        Example("partitions = 3, operation = 'add'", (4 + 4 + 3) * DIM),
        Example("radices = [3, 5, 4]", (3 + 5 + 3) * DIM, commutes=False),
        Example("partitions = 2, scheme = 'crt', operation = 'concat'", (7 + 6) * DIM // 2),
    ],
    "md": [
        Example("own_dim = 2", (41 + DIM) * 2),
        Example("blocks = [5, 20], block_dims = [4, 2, 1]", 5 * 4 + (15 + DIM) * 2 + 21 + DIM),
    ],
    "unified": [
        Example("table = 'NAME.shared', shared_rows = 7", 7 * DIM),
        Example("table = 'NAME.shared', shared_rows = 9, chunks = 4", 9),
        Example("table = 'NAME', shared_rows = 5, shared_tables = 2, chunks = 2", 2 * 5 * 2),
    ],
    "tt": [
        Example("rank = 2", 2 * (3 * 2 + 2 * 3 * 1 + 5 * 2)),
        Example("rank = 17, row_factors = [2, 3, 7]", 17 * (2 * 2 + 17 * 3 + 7 * 2)),
        Example("rank = 4, dim_factors = [1, 2, 2]", 4 * (3 + 4 * 3 * 2 + 5 * 2)),
        Example("compression = 2, row_factors = [7, 2, 3]", 3 * (7 * 2 + 3 * 2 + 3 * 2)),
        Example("rank = 2, cache_rows = 6", 2 * (3 * 2 + 2 * 3 * 1 + 5 * 2) + 6 * DIM),
    ],
    "cafe": [
        Example("compression = 1, threshold = 1.0, every = 2", (4 + 20) * DIM),
        Example("compression = 2, threshold = 0.5, every = 2, slots = 2", (3 + 10) * DIM),
    ],
}
CASES = [
    pytest.param(kind, example, id=f"{kind}-{number}")
    for kind, examples in EXAMPLES.items()
    for number, example in enumerate(examples)
]
all_kinds = pytest.mark.parametrize(("kind", "example"), CASES)


def settings(kind: str, *examples: Example) -> Config:
    """For each example, tables of one-hot features, of weighted bags, and of two features; and a
    full table.
    """
    tables = ""
    for number, example in enumerate(examples):
        keys = f"rows = {ROWS}, kind = '{kind}', {example.keys}"
        many = keys.replace("NAME", f"many{number}")
        tables += f"""
        one{number} = {{ features = ["one"], {keys.replace("NAME", f"one{number}")} }}
        many{number} = {{ features = ["many"], pooling = "mean", weighted = true, {many} }}
        full{number} = {{ features = ["full"], rows = 9 }}
        pair{number} = {{ features = ["left", "right"], {keys.replace("NAME", f"pair{number}")} }}
        """
    text = f"""
        data.rows_by = "code"
        [model]
        embedding_dim = {DIM}
        bottom = [4]
        top = [1]
        interaction = "cat"
        [tables]
        {tables}
        [training]
        batch_size = {BATCH}
        leaves = 8
        [optimizer.sparse]
        name = "exact_sgd"
        learning_rate = 1.0
        [optimizer.dense]
        name = "sgd"
        learning_rate = 1.0
    """
    return configs.loads(text, "kinds.toml")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Codes are rows; bags of 0 to 3, some rows twice in one, and the last row in each feature."""
    random = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("kinds") / "log.h5"
    codes: dict[str, Any] = {}
    columns = []
    for name in ("one", "many", "full", "left", "right"):
        multi_hot = name in ("many", "right")
        lengths = np.ones(SAMPLES, np.int32)
        if multi_hot:
            lengths = random.integers(0, 4, SAMPLES).astype(np.int32)
            lengths[1] = 2
        values = random.integers(0, ROWS, lengths.sum()).astype(np.uint32)
        values[-1] = ROWS - 1
        values[lengths[0] : lengths[0] + 2] = 5  # a row twice
        weights = random.uniform(0.5, 2, values.size).astype(np.float32)
        columns.append(FeatureColumn(name, hotness=0 if multi_hot else 1, weighted=name == "many"))
        codes[name] = values
        if multi_hot:
            codes[name] = BagColumn(values, lengths, weights if name == "many" else None)
    labels = random.integers(0, 2, SAMPLES).astype(np.float32)
    with DatasetWriter(path, ["x", "y"], columns) as writer:
        writer.append(labels, random.standard_normal((SAMPLES, DENSE)).astype(np.float32), codes)
    return path


def loader_of(config: Config, log: Path, comm: Comm, tables: Any = None) -> Loader:
    share = BatchShare(BATCH, config.training.leaves, comm.rank, comm.size)
    reading = Reading(rows_by="code", depth=0)
    return Loader(Dataset(log), tables or config.tables, share, reading)


def world_of(config: Config, comm: Comm, scheme: str = "table_wise") -> World:
    plan = place(config.tables, [scheme] * len(config.tables), comm.size)
    return build(config, comm, plan, DENSE, huge=False)


def train(world: World, log: Path, first: int = 1, last: int = 2) -> None:
    batches = list(loader_of(world.config, log, world.comm).batches())
    for step in range(first, last + 1):
        world.step(batches[(step - 1) % 2], step)


def tables_of(world: World) -> list[np.ndarray]:
    """All rows of the physical tables, f32[rows, dim] each, of a world on one rank."""
    tbe = world.embedding.tbe
    return [
        tbe.values(number, np.arange(spec.rows))["weight"].copy()
        for number, spec in enumerate(world.plan.tables)
    ]


def pooled(kjt: Any, tables: Any, rows_of: Callable[[int, np.ndarray], np.ndarray]) -> list:
    """Each key's pooled vectors f32[b, width]; rows_of(key, rows) : of the rows of its lookups."""
    samples = kjt.lengths.shape[1]
    ends = np.cumsum(kjt.lengths.sum(axis=1))
    vectors = []
    for number, key in enumerate(bags(tables)):
        lookups = slice(ends[number] - kjt.lengths[number].sum(), ends[number])
        sample = np.repeat(np.arange(samples), kjt.lengths[number])
        rows = rows_of(number, kjt.values[lookups]).astype(np.float64)
        rows[kjt.values[lookups] < 0] = 0  # the part has nothing for it
        if tables[key.table].weighted:
            rows *= kjt.weights[lookups, None]
        sums = np.zeros((samples, rows.shape[1]))
        np.add.at(sums, sample, rows)
        if tables[key.table].pooling == "mean":
            sums /= np.maximum(kjt.lengths[number], 1)[:, None]
        vectors.append(sums.astype(np.float32))
    return vectors


def logical_rows(world: World) -> LogicalRows:
    tables = tables_of(world)
    layout = world.model.layout.composition
    assert layout is not None
    return LogicalRows(
        world.plan.tables,
        layout,
        world.model.parameters,
        lambda table, rows: tables[table][rows],
        {} if world.dynamic is None else world.dynamic.maps,
    )


def physical(world: World, batch: Any) -> Any:
    """The lookups of a batch in the physical tables, also where rows move in training."""
    return batch.sparse if world.dynamic is None else world.dynamic.translate(batch.sparse)


def vectors_of(world: World, batch: Any) -> np.ndarray:
    """E of a batch, f32[b, ...], as the model sees it."""
    composition = world.model.composition
    assert composition is not None
    E = np.empty((len(batch.labels), composition.columns), np.float32)
    E[:] = np.nan
    world.model.forward_bottom(batch.dense, E)
    lookup = world.embedding.lookup(world.embedding.start(physical(world, batch), batch.samples))
    lookup.send()
    return composition.forward(E, lookup.finish(E) or ())


def test_every_kind_has_examples() -> None:
    assert set(EXAMPLES) == set(KINDS)


@all_kinds
def test_the_model_is_that_of_the_explicit_tables(kind: str, example: Example, log: Path) -> None:
    config = settings(kind, example)
    world = world_of(config, SingleComm())
    train(world, log)
    explicit = logical_rows(world)
    every = np.arange(ROWS)
    full = [
        explicit.rows(part, every if part.table != "full0" else every[:9])
        for part in explicit.parts
    ]
    batch = next(loader_of(config, log, SingleComm()).batches())
    logical = next(loader_of(config, log, SingleComm(), config.model_tables).batches())
    vectors = pooled(logical.sparse, config.model_tables, lambda key, rows: full[key][rows])
    E = vectors_of(world, batch)
    for part, expected in zip(explicit.parts, vectors):
        computed = E[:, DIM + part.column :][:, : part.dim]
        if not example.commutes:
            single = logical.sparse.lengths[explicit.parts.index(part)] < 2
            computed, expected = computed[single], expected[single]
        np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=1e-6)


@all_kinds
def test_gradients_are_those_of_finite_differences(kind: str, example: Example, log: Path) -> None:
    config = settings(kind, example)
    world = world_of(config, SingleComm())
    train(world, log)
    before = tables_of(world)
    parameters = {name: value.copy() for name, value in world.model.parameters.items()}
    wide = {name: value.astype(np.float64) for name, value in parameters.items()}
    batch = next(loader_of(config, log, SingleComm()).batches())
    layout = world.model.layout.composition
    assert layout is not None
    keys = bags(config.tables)

    logical = next(loader_of(config, log, SingleComm(), config.model_tables).batches()).sparse

    lookups = physical(world, batch)
    moved = {} if world.dynamic is None else world.dynamic.maps

    def loss(tables: list[np.ndarray]) -> float:
        sources = pooled(lookups, config.tables, lambda key, rows: tables[keys[key].table][rows])
        explicit = LogicalRows(
            config.tables, layout, parameters, lambda table, rows: tables[table][rows], moved
        )
        by_bag = pooled(
            logical, config.model_tables, lambda key, rows: explicit.rows(layout.parts[key], rows)
        )
        vectors = []
        for number, part in enumerate(layout.parts):
            if not part.pooled:
                vectors.append(by_bag[number].astype(np.float64))
                continue
            out = np.empty((BATCH, part.dim), np.float32)
            inputs = [sources[source.key] for source in part.sources]
            make_operation(part, parameters).forward(inputs, out)
            vectors.append(out.astype(np.float64))
        z = formula.logits(wide, batch.dense.astype(np.float64), vectors, "cat", False)
        return formula.mean_loss(z, batch.labels.astype(np.float64), "bce")

    def slope(array: np.ndarray, index: tuple[int, ...]) -> float:
        old = array[index]
        losses = []
        for shift in (1 / 64, -1 / 64):
            array[index] = old + np.float32(shift)
            losses.append(loss(before))
        array[index] = old
        return (losses[0] - losses[1]) * 32

    world.step(batch, 3)
    learnt = [
        (old, (old.astype(np.float64) - new) / config.optimizer.sparse.learning_rate)
        for old, new in zip(before, tables_of(world))
    ]
    learnt += [
        (
            old,
            (old.astype(np.float64) - world.model.parameters[name])
            / config.optimizer.dense.learning_rate,
        )
        for name, old in parameters.items()
        if name.startswith("kinds.")
    ]
    for values, gradient in learnt:
        assert gradient.any()
        row = int(np.abs(gradient).sum(axis=1).argmax())
        for column in range(values.shape[1]):
            expected = slope(values, (row, column))
            np.testing.assert_allclose(gradient[row, column], expected, rtol=0.02, atol=2e-5)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_one_digest_on_any_plan_and_from_any_checkpoint(
    kind: str, log: Path, tmp_path: Path
) -> None:
    config = settings(kind, *EXAMPLES[kind])

    def answer(comm: Comm, scheme: str, begin: int, stop: int) -> str:
        world = world_of(config, comm, scheme)
        if begin > 1:
            path = checkpoint.latest(tmp_path, comm)
            assert path is not None
            assert checkpoint.load(path, world) == begin - 1
        train(world, log, begin, stop)
        if stop == 1:
            return checkpoint.save(tmp_path, world, 1)
        return digest(world, 2)

    run_threads(2, lambda comm: answer(comm, "column_wise", 1, 1))
    answers = {
        answer(SingleComm(), "table_wise", 1, 2),
        run_threads(2, lambda comm: answer(comm, "row_wise", 2, 2))[0],
        run_threads(3, lambda comm: answer(comm, "data_parallel", 2, 2))[0],
        run_threads(3, lambda comm: answer(comm, "column_wise", 1, 2))[0],
    }
    assert len(answers) == 1


@all_kinds
def test_numbers_are_those_of_the_formula(kind: str, example: Example) -> None:
    config = settings(kind, example)
    names = {term.table for terms in config.compositions[0].terms for term in terms}
    parts = [table for table in config.tables if table.name in names]
    layout = config.layout(DENSE)
    dense = sum(
        math.prod(shape) for name, shape in layout.tensors() if name.startswith("kinds.one0.")
    )
    assert sum(part.rows * part.dim for part in parts) + dense == example.numbers
    world = world_of(config, SingleComm())
    allocated = sum(table.nbytes for table in tables_of(world))
    reported = sum(spec.rows * spec.row_bytes(spec.dim, (0, 0)) for spec in config.tables)
    assert reported == allocated == 4 * (9 * DIM + 3 * (example.numbers - dense))


@all_kinds
def test_maps_stay_inside_their_tables(kind: str, example: Example) -> None:
    config = settings(kind, example)
    code_map = CodeMap(config.tables, "code")
    for key in bags(config.tables):
        if key.row_map is not None and key.row_map.rule == "row":
            continue  # found in training only
        rows = code_map.rows_of(key, np.arange(ROWS, dtype=np.uint64))
        assert rows.min() >= -1 and rows.max() < config.tables[key.table].rows


def test_bags_of_one_row_are_combined_alike_before_and_after_pooling(log: Path) -> None:
    keys = "collisions = 5, combine"
    vectors = []
    for combine in ("bags", "rows"):
        config = settings("qr", Example(f"{keys} = '{combine}'", 0))
        batch = next(loader_of(config, log, SingleComm()).batches())
        vectors.append(vectors_of(world_of(config, SingleComm()), batch))
    one_hot = slice(DIM, 2 * DIM)
    assert vectors[0][:, one_hot].tobytes() == vectors[1][:, one_hot].tobytes()
    assert vectors[0].tobytes() != vectors[1].tobytes()  # those of longer bags
