"""Are rows that are looked up together put side by side, always alike, and with what gain?"""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.cli.logs.order import order
from neocpu.core.errors import DataError
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.together import Occurrences, occurrences, order_together, prefixes
from neocpu.ingest.dataset.vocabulary import fit_vocabularies
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import BagColumn, FeatureColumn
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.run.trainer import Trainer
from tests.small_run import config_of


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 60), groups=st.integers(0, 40))
def test_an_order_has_every_row_once_and_says_the_same_of_shuffled_pairs(seed, size, groups):
    rng = np.random.default_rng(seed)
    pairs = np.unique(rng.integers(0, [[size], [max(groups, 1)]], (2, 3 * groups)), axis=1)
    ordered = order_together(size, Occurrences(*pairs))
    assert sorted(ordered.tolist()) == list(range(size))
    mixed = pairs[:, rng.permutation(pairs.shape[1])]
    assert order_together(size, Occurrences(*mixed)).tolist() == ordered.tolist()
    counts = np.bincount(pairs[0], minlength=size)
    common = counts * 16 >= max(np.unique(pairs[1]).size, 1)
    # those that most groups have stay in front, by their numbers; those of no group are last
    assert ordered[: common.sum()].tolist() == np.flatnonzero(common).tolist()
    assert set(ordered[(counts > 0).sum() :].tolist()) <= set(np.flatnonzero(counts == 0).tolist())


def bags_of_communities(path: Path, samples: int = 800) -> Path:
    """A log of bags of five, each out of one of 60 communities of ten scattered codes."""
    rng = np.random.default_rng(4)
    scattered = rng.permutation(600).astype(np.uint32)
    bags = rng.integers(0, 60, (samples, 1)) * 10 + rng.integers(0, 10, (samples, 5))
    codes = {
        "one": rng.integers(0, 9, samples).astype(np.uint32),
        "many": BagColumn(scattered[bags].reshape(-1), np.full(samples, 5, np.int32)),
    }
    columns = [FeatureColumn("one"), FeatureColumn("many", hotness=5)]
    with DatasetWriter(path, ["a"], columns) as writer:
        dense = rng.standard_normal((samples, 1)).astype(np.float32)
        writer.append((codes["one"] % 3 == 0).astype(np.float32), dense, codes)
    with DatasetWriter(path.with_name("train.h5"), ["a"], columns) as writer:
        writer.append((codes["one"] % 3 == 0).astype(np.float32), dense, codes)
        writer.vocabularies.update(fit_vocabularies(Dataset(path), 1))
    return path.with_name("train.h5")


def test_a_tensor_train_in_this_order_makes_fewer_products_and_keeps_its_promise(tmp_path):
    train = bags_of_communities(tmp_path / "log.h5")
    rows = tmp_path / "rows.h5"
    result = CliRunner().invoke(order, [str(train), str(rows)], catch_exceptions=False)
    shown = {line.split()[0]: line.split() for line in result.output.splitlines()[1:]}
    before, after = map(float, shown["many"][2:])
    # a bag's codes were anywhere, and are now of ten rows side by side: one prefix, or two
    assert after < 2.0 < 3.5 < before
    old, new = Dataset(train).vocabularies["many"], Dataset(rows).vocabularies["many"]
    assert sorted(old.tolist()) == sorted(new.tolist()) and old.tolist() != new.tolist()
    found = occurrences(Dataset(train), "many", 256)
    assert found.rows.size == np.unique(np.stack(found), axis=1).shape[1]
    assert prefixes(found, None, 10**6) == 1.0
    for source, why in (("log.h5", "has no vocabulary to order"), ("rows.h5", "has no samples")):
        with pytest.raises(DataError, match=why):
            files = [str(tmp_path / source), str(tmp_path / "x.h5")]
            CliRunner().invoke(order, files, catch_exceptions=False)
    keys = ("data.rows_by=vocabulary", "training.steps=8", "training.batch_size=100")
    tables = ("tables.one.rows=20", "tables.many.rows=601", "tables.many.kind=tt")
    digests = set()
    for ranks in (1, 3):
        for vocabulary in ("", str(rows)):
            named = [f"data.vocabulary={vocabulary}"] if vocabulary else []
            config = config_of(train, *keys, *tables, "tables.many.rank=3", *named)
            out = tmp_path / f"{ranks}{bool(vocabulary)}"
            summary = run_threads(ranks, lambda comm, c=config, o=out: Trainer(c, comm, o).run())
            digests.add((vocabulary, summary[0]["digest"]))
    assert len(digests) == 2 == len({digest for _, digest in digests})
