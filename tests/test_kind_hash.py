"""Do hashed rows go where the formula says, with signs, weights, means and repeated bags?"""

from pathlib import Path

import numpy as np
import pytest

from neocpu.core.errors import ConfigError, DataError
from neocpu.core.jagged import KJT
from neocpu.ingest.dataset.dataset import BagColumn, Dataset
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import FeatureColumn
from neocpu.ingest.loader import BatchShare, Loader, Reading
from neocpu.kernels.twins.numbers.philox import feature_key, fnv1a64, splitmix64
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import SingleComm
from neocpu.tables.specs.feature_groups import key_groups
from neocpu.tables.specs.specs import bags
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.state.state import digest
from neocpu.train.step.world import build

SAMPLES = 30


def config_of(tables: str) -> Config:
    text = f"""
        data.rows_by = "code"
        [model]
        embedding_dim = 4
        bottom = [4]
        top = [1]
        interaction = "cat"
        [training]
        batch_size = {SAMPLES}
        [tables]
        {tables}
    """
    return configs.loads(text, "hash.toml")


def loader_of(config: Config, path: Path, groups: bool = False, rows_by: str = "code") -> Loader:
    of_keys = key_groups(config.tables, [["*"]]) if groups else ()
    reading = Reading(rows_by=rows_by, groups=of_keys, depth=0)
    return Loader(Dataset(path), config.tables, BatchShare(SAMPLES), reading)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A feature of weighted bags, each of them five times."""
    random = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("hash") / "log.h5"
    lengths = np.repeat(random.integers(0, 4, 6), 5).astype(np.int32)
    firsts = np.cumsum(lengths) - lengths
    values = np.empty(lengths.sum(), np.uint32)
    weights = np.empty(values.size, np.float32)
    for sample, (first, length) in enumerate(zip(firsts, lengths)):
        values[first : first + length] = np.arange(length) * 7 + sample // 5 * 11
        weights[first : first + length] = 0.5 + np.arange(length)
    codes = {"bag": BagColumn(values, lengths, weights)}
    with DatasetWriter(path, ["x"], [FeatureColumn("bag", hotness=0, weighted=True)]) as writer:
        writer.append(
            random.integers(0, 2, SAMPLES).astype(np.float32),
            random.standard_normal((SAMPLES, 1)).astype(np.float32),
            codes,
        )
    return path


def sign(table: str, number: int, row: int) -> int:
    key = splitmix64(fnv1a64(f"{table}:{number}"))
    return -1 if splitmix64(~key % 2**64 ^ row) & 1 else 1


def place_of(table: str, number: int, row: int, rows: int) -> int:
    return splitmix64(splitmix64(fnv1a64(f"{table}:{number}")) ^ row) % rows


@pytest.mark.parametrize("weighted", ["true", "false"])
def test_lookups_are_those_of_the_formula(log: Path, weighted: str) -> None:
    """Signs times weights of the log, which count only where the logical table is weighted."""
    config = config_of(
        "bag = { rows = 90, kind = 'hash', hash_rows = 13, hashes = 2, signed = true, "
        f"weighted = {weighted} }}"
    )
    assert [key.key for key in bags(config.tables)] == ["bag@bag.hashed:0", "bag@bag.hashed:1"]
    batch = next(loader_of(config, log).batches()).sparse
    assert isinstance(batch, KJT) and batch.weights is not None
    column = Dataset(log).take(np.arange(SAMPLES), ["bag"]).features["bag"]
    data_weights = column.weights if weighted == "true" else np.ones_like(column.weights)
    rows = [int(code) % 90 for code in column.codes]
    for number, part in enumerate(np.split(np.arange(batch.values.size), 2)):
        assert batch.values[part].tolist() == [place_of("bag", number, row, 13) for row in rows]
        signs = np.array([sign("bag", number, row) for row in rows], np.float32)
        assert {-1, 1} == set(signs.tolist())
        np.testing.assert_array_equal(batch.weights[part], signs * data_weights)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_repeated_bags_with_signs_stand_once_to_the_same_digest(log: Path, pooling: str) -> None:
    config = config_of(
        f"bag = {{ rows = 90, kind = 'hash', hash_rows = 13, hashes = 2, signed = true, "
        f"pooling = '{pooling}', weighted = true }}"
    )
    digests = []
    for groups in (False, True):
        run = configs.loads(
            config.text, "hash.toml", ["data.deduplicate=[['*']]"] if groups else []
        )
        world = build(run, SingleComm(), place(run.tables, ["table_wise"], 1), 1, huge=False)
        batch = next(loader_of(run, log, groups).batches())
        world.step(batch, 1)
        world.step(batch, 2)
        digests.append(digest(world, 2))
    assert digests[0] == digests[1]


def test_weights_that_a_signed_table_needs_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "plain.h5"
    with DatasetWriter(path, ["x"], [FeatureColumn("bag")]) as writer:
        writer.append(
            np.zeros(2, np.float32),
            np.zeros((2, 1), np.float32),
            {"bag": np.array([0, 1], np.uint32)},
        )
    keys = "rows = 90, kind = 'hash', hash_rows = 13, signed = true"
    loader_of(config_of(f"bag = {{ {keys} }}"), path)
    with pytest.raises(DataError, match="bag has no weights"):
        loader_of(config_of(f"bag = {{ {keys}, weighted = true }}"), path)


def test_mod_and_salts() -> None:
    mod = config_of("a = { rows = 90, kind = 'hash', hash_rows = 13, hash = 'mod' }").tables[0]
    assert (mod.maps[0].rule, mod.maps[0].divisor, mod.maps[0].modulus) == ("digit", 1, 13)
    tables = "default = { rows = 90, kind = 'hash', compression = 7.0, hashes = 2 }\na = {}\nb = {}"
    keys = [row_map.key for table in config_of(tables).tables for row_map in table.maps]
    assert len(set(keys)) == 4
    assert [table.rows for table in config_of(tables).tables] == [12, 12]


def test_features_of_one_table_share_its_hashes() -> None:
    config = config_of(
        "a = { rows = 90, kind = 'hash', hash_rows = 13, hashes = 2, features = ['x', 'y'] }"
    )
    table = config.tables[0]
    assert table.features == ("x", "y", "x", "y")
    assert table.maps[0] == table.maps[1] != table.maps[2] == table.maps[3]
    assert [[term.place for term in terms] for terms in config.compositions[0].terms] == [
        [0, 2],
        [1, 3],
    ]


def test_parts_of_a_table_share_the_hash_of_codes(log: Path) -> None:
    """Rows of the logical table are those of a full one: hash first, then map."""
    tables = (
        "full = { rows = 90, features = ['bag'] }\n"
        "hashed = { rows = 90, features = ['bag'], kind = 'hash', hash_rows = 13, hash = 'mod' }"
    )
    config = config_of(tables)
    batch = next(loader_of(config, log, rows_by="hash").batches()).sparse
    assert isinstance(batch, KJT)
    full, hashed = np.split(batch.values, 2)
    np.testing.assert_array_equal(full % 13, hashed)
    code = int(Dataset(log).take(np.arange(SAMPLES), ["bag"]).features["bag"].codes[0])
    assert full[0] == splitmix64(int(feature_key(0, "bag")) ^ code) % 90


def test_a_sum_of_hashed_rows_starts_as_a_row_of_a_full_table() -> None:
    table = config_of("a = { rows = 300, kind = 'hash', hash_rows = 40, hashes = 3 }").tables[0]
    assert table.initial.mean == 0
    assert 3 * table.initial.bound**2 / 3 == pytest.approx(1 / (3 * 300))


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ("hash_rows = 0", "either hash_rows"),
        ("hash_rows = 9, compression = 3", "either hash_rows"),
        ("compression = 0.5", "a.compression"),
        ("hash_rows = 9, hash = 'md5'", "a.hash: 'md5' is unknown"),
        ("hash_rows = 9, hash = 'mod', hashes = 2", "mod is one hash only"),
        ("hash_rows = 9, hashes = 17", "a.hashes: 17 should be 1 to 16"),
        ("hash_rows = 9, collisions = 2", "a table of kind hash has no such key"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config_of(f"a = {{ rows = 100, kind = 'hash', {keys} }}")
