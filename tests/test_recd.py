"""Are sessions generated, clustered, shuffled whole and deduplicated as docs/communication.md
says?
"""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.cli import cli
from neocpu.core.errors import ConfigError
from neocpu.core.jagged import KJT
from neocpu.ingest.dataset.cluster import by_session
from neocpu.ingest.dataset.convert import convert
from neocpu.ingest.dataset.convert_options import ConvertOptions
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import BagColumn, FeatureColumn
from neocpu.ingest.epoch_order import EpochOrder
from neocpu.ingest.loader import BatchShare, Loader, Reading
from neocpu.ingest.synthetic.generate import write_dataset
from neocpu.ingest.synthetic.law import Hotness, SyntheticCriteo
from neocpu.ingest.synthetic.sessions import Sessions, parse_keep
from neocpu.tables.embedding.distinct_bags import deduplicate, expand
from neocpu.tables.specs.feature_groups import key_groups
from neocpu.tables.specs.specs import TableSpec, bags
from neocpu.train.config import config as configs

PROFILE = settings(deadline=None, derandomize=True, max_examples=30)
TABLES = (
    TableSpec("one", 50, 4, ("a", "b")),
    TableSpec("two", 9, 4, ("c",), "mean", True),
    TableSpec("three", 9, 4, ("d", "a")),
)


def make_kjt(seed: int, samples: int, rows: int, weighted: bool) -> KJT:
    rng = np.random.default_rng(seed)
    keys = tuple(bag.key for bag in bags(TABLES))
    lengths = rng.integers(0, 3, (len(keys), samples)).astype(np.int32)
    values = rng.integers(-1, rows, int(lengths.sum()))
    weights = rng.integers(0, 2, values.size).astype(np.float32) if weighted else None
    return KJT(keys, lengths, values, weights)


@PROFILE
@given(st.integers(0, 2**32), st.integers(0, 30), st.integers(1, 3), st.booleans())
def test_the_inverse_is_an_inverse(seed: int, samples: int, rows: int, weighted: bool) -> None:
    kjt = make_kjt(seed, samples, rows, weighted)
    for patterns in ([["c"]], [["*"]], [["a", "b", "d"], ["c"]]):
        groups = key_groups(TABLES, patterns)
        batch = deduplicate(kjt, groups)
        back = expand(batch)
        assert back.keys == kjt.keys
        assert np.array_equal(batch.lengths, kjt.lengths)
        assert np.array_equal(back.lengths, kjt.lengths)
        assert np.array_equal(back.values, kjt.values)
        assert (back.weights is None) == (kjt.weights is None)
        if weighted:
            assert back.weights.tobytes() == kjt.weights.tobytes()
        for group, keys in zip(batch.groups, groups):
            # numbers count up in the order of first samples; no two distinct bags are equal
            assert np.array_equal(group.inverse[group.first], np.arange(group.first.size))
            assert (np.diff(group.first) > 0).all()
            contents = {_content(kjt, keys, s) for s in range(samples)}
            assert len(contents) == group.first.size


def _content(kjt: KJT, keys: tuple[int, ...], sample: int) -> tuple[bytes, ...]:
    content = []
    for key in keys:
        bag = key * kjt.samples + sample
        span = slice(kjt.offsets[bag], kjt.offsets[bag + 1])
        content.append(kjt.values[span].tobytes())
        content.append(b"" if kjt.weights is None else kjt.weights[span].tobytes())
    return tuple(content)


def test_groups_are_checked() -> None:
    assert key_groups(TABLES, ()) == ()
    assert key_groups(TABLES, (("c",), ("?", "a"))[:1]) == ((2,),)
    for patterns, message in (
        ([["x*"]], "no feature matches 'x\\*'; the features are a, b, c, d"),
        ([["a", "b", "d"], ["a"]], "feature 'a' is in two groups"),
        ([["a"]], r"table 'one' is looked up by features of different groups \('a' in group 1"),
        ([["a", "b"], ["d"]], r"table 'three' .* \('d' in group 2, 'a' in group 1\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            key_groups(TABLES, patterns)
    text = "[tables]\nC1.rows = 10\nC2 = { rows = 20, features = ['a', 'b'] }\n"
    config = configs.loads(text, overrides=['data.deduplicate=["C1", ["a", "b"]]'])
    assert config.data.deduplicate == (("C1",), ("a", "b"))
    assert config.header() == configs.loads(text).header()
    with pytest.raises(ConfigError, match=r"data\.deduplicate: table 'C2' is looked up"):
        configs.loads(text, overrides=['data.deduplicate=["a"]'])
    with pytest.raises(ConfigError, match="expected a list, got 'C1'"):
        configs.loads(text, overrides=["data.deduplicate=C1"])


def test_runs_stay_together_when_shuffled() -> None:
    samples = 4096 * 17 + 100
    order = EpochOrder(samples, 3, 1, True, 48).samples(0, samples)
    assert np.array_equal(np.sort(order), np.arange(samples))
    starts = np.flatnonzero(np.diff(order, prepend=-2) != 1)
    # every run begins a multiple of 48 after its block does
    assert (order[starts] % 4096 % 48 == 0).all()
    lengths = np.diff(starts, append=samples)
    # of a block of 4,096 and of the last one of 100
    assert {16, 4} <= set(lengths.tolist())
    assert np.median(lengths) == 48
    single = EpochOrder(samples, 3, 1, True).samples(0, 9000)
    assert np.array_equal(single, EpochOrder(samples, 3, 1, True, 1).samples(0, 9000))
    parts = EpochOrder(samples, 3, 1, True, 48)
    pieces = [parts.samples(lo, min(lo + 5000, samples)) for lo in range(0, samples, 5000)]
    assert np.array_equal(np.concatenate(pieces), order)
    changed = configs.loads("[tables]\nC1.rows = 9\n[data]\nshuffle_run = 48\n")
    assert changed.header()["data"]["shuffle_run"] == 48


def test_a_loader_gives_inverse_batches(tmp_path: Path) -> None:
    columns = [FeatureColumn("a"), FeatureColumn("b", hotness=0)]
    with DatasetWriter(tmp_path / "s.h5", ["x"], columns) as writer:
        ids = np.arange(90) // 3
        lengths = (ids % 3).astype(np.int32)
        writer.append(
            ids % 2, ids[:, None], {"a": ids, "b": BagColumn(np.repeat(ids, lengths), lengths)}
        )
    tables = (TableSpec("a", 1000, 4, ("a",)), TableSpec("b", 1000, 4, ("b",)))
    for rank in range(2):
        share = BatchShare(30, leaves=2, rank=rank, ranks=2)
        plain = Loader(tmp_path / "s.h5", tables, share)
        groups = key_groups(tables, [["*"]])
        once = Loader(tmp_path / "s.h5", tables, share, Reading(groups=groups))
        for left, right in zip(plain.batches(), once.batches(), strict=True):
            assert right.sparse.groups[0].first.size == 5
            assert np.array_equal(expand(right.sparse).values, left.sparse.values)


# ---- sessions ----


@pytest.mark.parametrize(("length", "keep"), [(4, 0.9), (16, 0.5)])
def test_sessions_repeat_as_often_as_asked(length: int, keep: float) -> None:
    sessions = Sessions(length, {"": keep, "C2": 0.0, "C3": 1.0}, (("C4", "C5"),))
    log = SyntheticCriteo(1, sessions=sessions, hotness={"C6": Hotness(3.0, True)})
    block = log.block(length, 512 * length)
    for name, bags_of in block.categories.items():
        if bags_of.lengths is not None:
            continue
        codes = bags_of.codes.reshape(512, length)
        changed = np.diff(codes.astype(np.int64), axis=1) != 0
        # equal codes may be drawn anew
        expected = {"C2": 0.0, "C3": 1.0}.get(name, keep)
        assert changed.mean() < 1 - expected + 0.02, name
    alone = SyntheticCriteo(1).block(length, 512 * length).categories
    assert np.array_equal(block.categories["C2"].codes, alone["C2"].codes)
    assert (np.diff(block.categories["C3"].codes.reshape(512, length), axis=1) == 0).all()
    sources = [sessions.sources(1, name, 0, 0, 999) for name in ("C4", "C5", "C7")]
    assert np.array_equal(*sources[:2]) and not np.array_equal(*sources[1:])
    distinct = np.unique(sources[2]).size / 999
    assert distinct == pytest.approx(1 - (length - 1) / length * keep, abs=0.06)
    # blocks may begin inside a session
    whole = log.block(0, 70)
    parts = [log.block(lo, hi - lo) for lo, hi in ((0, 3), (3, 41), (41, 70))]
    assert np.array_equal(whole.labels, np.concatenate([part.labels for part in parts]))
    for name in ("C1", "C6"):
        codes = [part.categories[name].codes for part in parts]
        assert np.array_equal(whole.categories[name].codes, np.concatenate(codes))
    for left, right in zip(whole.probability, np.concatenate([p.probability for p in parts])):
        assert left == right


def test_sessions_are_checked() -> None:
    assert parse_keep("0.9,C1=1") == {"": 0.9, "C1": 1.0}
    with pytest.raises(ConfigError, match=r"keep 'C1=x': write 0\.9"):
        parse_keep("C1=x")
    with pytest.raises(ConfigError, match="keep C1 2: from 0 to 1"):
        Sessions(4, {"C1": 2.0})
    with pytest.raises(ConfigError, match="sessions of 0 samples"):
        Sessions(0)
    with pytest.raises(ConfigError, match="feature 'C1' is in two groups"):
        Sessions(4, {}, (("C1",), ("C1", "C2")))
    with pytest.raises(ConfigError, match="sessions name feature 'C99'"):
        SyntheticCriteo(1, sessions=Sessions(4, {"C99": 0.5}))


# ---- clustering ----


def test_clustering_makes_the_rows_of_a_session_neighbours(tmp_path: Path) -> None:
    assert by_session(np.array([7, 3, 7, 9, 3, 7])).tolist() == [0, 2, 5, 1, 4, 3]
    rng = np.random.default_rng(1)
    lines = []
    sessions = rng.integers(1, 9, 300)
    for i, session in enumerate(sessions.tolist()):
        codes = [f"{session:x}", *("" if i % 7 == c else f"{i + c:x}" for c in range(25))]
        lines.append("\t".join([str(i % 2), *(str(i) for _ in range(13)), *codes]))
    source = tmp_path / "log.tsv"
    source.write_text("\n".join(lines) + "\n")
    target = tmp_path / "clustered.h5"
    command = f"data convert criteo {source} {target} --cluster-by C1 --cluster-rows 128"
    result = CliRunner().invoke(cli, command.split())
    assert result.exit_code == 0, result.output
    convert([source], tmp_path / "plain.h5", "criteo")
    order = [lo + by_session(sessions[lo : lo + 128]) for lo in range(0, 300, 128)]
    plain = Dataset(tmp_path / "plain.h5").take(np.concatenate(order))
    clustered = Dataset(target).take(np.arange(300))
    assert np.array_equal(clustered.labels, plain.labels)
    assert np.array_equal(clustered.dense, plain.dense)
    for name, column in plain.features.items():
        assert np.array_equal(clustered.features[name].codes, column.codes)
    assert Dataset(target).missing == Dataset(tmp_path / "plain.h5").missing
    with h5py.File(target) as file:
        assert json.loads(file.attrs["clustered"]) == {"by": "C1", "rows": 128}
    with pytest.raises(ConfigError, match="cluster by 'C99': no such feature"):
        convert([source], tmp_path / "x.h5", "criteo", ConvertOptions(cluster_by="C99"))
    assert ConvertOptions(cluster_rows=5).key() == ConvertOptions().key()
    assert ConvertOptions(cluster_by="C1").key() != ConvertOptions().key()


def test_the_command_writes_sessions(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    command = f"data generate criteo {path} --rows 64 --sessions 8 --keep 0.5,C1=1 --together C2,C3"
    result = CliRunner().invoke(cli, command.split())
    assert result.exit_code == 0, result.output
    sessions = Sessions(8, {"": 0.5, "C1": 1.0}, (("C2", "C3"),))
    log = SyntheticCriteo(1, sessions=sessions)
    write_dataset(log, tmp_path / "t.h5", 0, 64)
    assert path.read_bytes() == (tmp_path / "t.h5").read_bytes()
    refused = f"data generate criteo {path} --rows 64 --together C2 --force"
    result = CliRunner().invoke(cli, refused.split())
    assert result.exit_code == 2 and "--together is about --sessions" in result.output
