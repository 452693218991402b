"""Are frequent codes counted in bounded memory, and do warm caches find more without changing a
bit?
"""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.ingest.dataset import vocabulary
from neocpu.ingest.dataset.convert import convert
from neocpu.ingest.dataset.convert_options import ConvertOptions
from neocpu.ingest.dataset.copies import copy_name
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.vocabulary import FrequentCodes, frequencies
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import FeatureColumn
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.config import config
from neocpu.train.run.trainer import Trainer

TINY = Path(__file__).resolve().parent.parent / "data" / "tiny-criteo-test.tsv.gz"
CONFIG = """
[data]
train = "log.h5"
[model]
embedding_dim = 4
bottom = [6, 4]
top = [5, 1]
[tables]
one.rows = 5000
[training]
batch_size = 100
steps = 25
"""


@settings(max_examples=20)
@given(seed=st.integers(0, 99), skew=st.sampled_from((1.1, 1.5, 3.0)), parts=st.integers(1, 9))
def test_counts_in_bounded_memory_miss_nothing_frequent(seed: int, skew: float, parts: int) -> None:
    stream = (np.random.default_rng(seed).zipf(skew, 30_000) % 2**32).astype(np.uint32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "SLOTS", 4096)
        counter = FrequentCodes()
        whole = FrequentCodes()
        for part in np.array_split(stream, parts):
            counter.add(part)
        whole.add(stream)
    codes, counts = counter.by_count()
    assert codes.size <= 2048 and all(map(np.array_equal, whole.by_count(), (codes, counts)))
    counted = dict(zip(codes.tolist(), counts.tolist()))
    for code, times in zip(*(array.tolist() for array in np.unique(stream, return_counts=True))):
        assert times - counter.short <= counted.get(code, 0) <= times


def test_half_of_the_largest_map_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "SLOTS", 4096)
    counter = FrequentCodes()
    counter.add(np.arange(1, 2049, dtype=np.uint32))
    assert counter.by_count()[0].size == 2048 and not counter.short
    counter.add(np.arange(2049, 2050, dtype=np.uint32))
    assert counter.by_count()[0].tolist() == [2049] and counter.short == 1


def test_a_conversion_keeps_them_and_other_files_are_counted_when_asked(tmp_path: Path) -> None:
    plain = ConvertOptions()
    with_frequencies = ConvertOptions(frequencies=True)
    raw = tmp_path / "log.tsv"
    raw.write_bytes(b"".join(gzip.decompress(TINY.read_bytes()).splitlines(keepends=True)[:1500]))
    names = {
        copy_name([raw], "criteo", options, placed=True) for options in (plain, with_frequencies)
    }
    assert len(names) == 2
    assert "frequencies" not in plain.key()
    for name, options in (
        ("plain.h5", plain),
        ("asked.h5", with_frequencies),
        ("fit.h5", ConvertOptions("none", min_count=3)),
    ):
        convert([raw], tmp_path / name, "criteo", options)
    data = Dataset(tmp_path / "asked.h5")
    assert not Dataset(tmp_path / "plain.h5").frequencies("C3")
    for feature in ("C3", "C9", "C17"):
        codes, counts = np.unique(
            np.concatenate(list(data.code_blocks(feature))), return_counts=True
        )
        order = np.lexsort((codes, -counts))[: np.count_nonzero(counts > 1)]
        for file in ("asked.h5", "plain.h5"):
            frequent = frequencies(Dataset(tmp_path / file), feature)
            assert np.array_equal(frequent[0], codes[order]) and np.array_equal(
                frequent[1], counts[order]
            )
        twice = frequencies(Dataset([tmp_path / "asked.h5", tmp_path / "asked.h5"]), feature)
        assert np.array_equal(twice[1], 2 * counts[order])
        # a vocabulary is in the order of falling frequency already: row 1 is the most frequent code
        words = Dataset(tmp_path / "fit.h5").vocabularies[feature]
        assert np.array_equal(words, codes[order][counts[order] >= 3])


@pytest.mark.parametrize("rows_by", ["hash", "vocabulary"])
def test_warm_caches_find_more_and_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_by: str
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    codes = (rng.zipf(1.3, 2500) % 4000).astype(np.uint32)
    with DatasetWriter("log.h5", ["a"], [FeatureColumn("one")]) as writer:
        writer.append(codes % 2, rng.standard_normal((2500, 1)), {"one": codes})
        writer.vocabularies["one"] = vocabulary.frequent_of(_counted(codes))[0]
    misses = {}
    digests = set()
    for ranks, warm, place in (
        (1, "false", "hbm"),
        (1, "false", "x"),
        (1, "true", "x"),
        (3, "true", "x"),
    ):
        place = "hbm" if place == "hbm" else "hbm_over_ddr_over_ssd"
        keys = [
            f"memory.warm={warm}",
            f"memory.placement={place}",
            f"data.rows_by={rows_by}",
            "memory.policy=lfu",
        ]
        keys += ["memory.hbm=16_000", "memory.ddr=24_000"] if place != "hbm" else []
        run_config = config.loads(CONFIG, overrides=keys)
        out = tmp_path / f"{ranks}{warm}{place}"
        summary = run_threads(
            ranks, lambda comm, run_config=run_config, out=out: Trainer(run_config, comm, out).run()
        )[0]
        digests.add(summary["digest"])
        if ranks == 1 and summary["tiers"]:
            near = summary["tiers"][0]
            misses[warm] = near["unique_misses"]
            assert near["calls"] == 25  # what was warmed was not asked for
    assert len(digests) == 1
    assert misses["true"] < 0.8 * misses["false"]


def _counted(codes: np.ndarray) -> FrequentCodes:
    counter = FrequentCodes()
    counter.add(codes)
    return counter
