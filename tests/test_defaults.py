"""What do keys mean that a config does not name, and do runs keep what they began with?"""

from dataclasses import replace
from pathlib import Path

import pytest

from neocpu.core.errors import ConfigError
from neocpu.train.checkpoint import snapshot
from neocpu.train.checkpoint.folder import checkpoints
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config import config as configs
from neocpu.train.config.defaults import BEFORE, as_overrides
from neocpu.train.run.trainer import Trainer

DATA = Path(__file__).parent.parent / "data" / "tiny-criteo-test.tsv.gz"
TEXT = f"""
[data]
train = "{DATA}"
[tables]
C1.rows = 100
C6.rows = 50
"""
COWCLIP = '[optimizer.sparse]\nname = "exact_rowwise_adagrad_with_cowclip"\n'


def rates(config):
    sparse = config.optimizer.sparse
    return sparse.name, sparse.learning_rate, config.optimizer.dense.name


def test_keys_that_are_not_named_have_values_that_serve():
    config = configs.loads(TEXT)
    assert rates(config) == ("exact_rowwise_adagrad", 0.04, "adagrad")
    assert config.for_samples(10_000).training.batch_size == 16
    assert config.for_samples(10**6).training.batch_size == 128
    named = configs.loads(TEXT, overrides=["training.batch_size=7", "optimizer.dense.name=sgd"])
    assert named.for_samples(10_000).training.batch_size == 7
    assert named.optimizer.dense.name == "sgd" and "optimizer.dense.name" not in named.chosen
    adam = configs.loads(TEXT + '[optimizer.sparse]\nname = "adam"\n')
    assert adam.optimizer.sparse.learning_rate == 0.01


def test_cowclip_trains_by_default_and_values_that_clip_all_are_refused():
    sparse = configs.loads(TEXT + COWCLIP).optimizer.sparse
    assert (sparse.weight_norm_coefficient, sparse.lower_bound) == (1.0, 1e-5)
    zeros = "weight_norm_coefficient = 0.0\nlower_bound = 0.0\n"
    with pytest.raises(ConfigError, match="every gradient is clipped to 0"):
        configs.loads(TEXT + COWCLIP + zeros)
    # a checkpoint of neocpu 0.1.0 could have them
    for text in (TEXT + COWCLIP, TEXT + COWCLIP + zeros):
        assert configs.loads(text, begun=True).optimizer.sparse.lower_bound == 0.0


def test_a_run_keeps_what_it_began_with(tmp_path, monkeypatch):
    config = configs.loads(TEXT, overrides=["training.steps=2"])
    summary = Trainer(config, None, tmp_path / "new").run()
    with CheckpointFile(checkpoints(tmp_path / "new")[-1]) as file:
        assert file.config().header() == file.header
        assert file.header["training"]["batch_size"] == 16
        assert file.digest == summary["digest"]
    # as neocpu 0.1.0 did: its values, of which nothing is noted
    named = configs.loads(TEXT, overrides=["training.steps=2", *as_overrides(BEFORE)[:2]])
    named = named.with_chosen({"training.batch_size": 2048})
    monkeypatch.setattr(snapshot, "as_overrides", lambda values: [])
    before = replace(named, overrides=config.overrides, chosen={})
    expected = Trainer(before, None, tmp_path / "whole").run()["digest"]
    half = replace(before, training=replace(before.training, steps=1))
    Trainer(half, None, tmp_path / "old").run()
    monkeypatch.undo()
    with CheckpointFile(checkpoints(tmp_path / "old")[-1]) as file:
        assert rates(file.config()) == ("exact_rowwise_adagrad", 0.01, "sgd")
    resumed = Trainer(config, None, tmp_path / "old", resume=True).run()
    assert resumed["digest"] == expected != summary["digest"]
