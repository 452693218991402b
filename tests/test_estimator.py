"""Does `neocpu.DLRM` train what `neocpu train` trains, and behave as an estimator does?"""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import neocpu
from neocpu import DLRM, config
from neocpu.errors import CheckpointError, ConfigError, DataError
from neocpu.training.trainer import Trainer

KEYS = {"batch_size": 32, "embedding_dim": 4, "model__bottom": [4], "model__top": (1,)}


def clicks(rows: int, seed: int) -> tuple[pl.DataFrame, np.ndarray]:
    """Rows of which one shop and one tag sell, and whether they did: "yes" or "no"."""
    random = np.random.default_rng(seed)
    shop = random.integers(0, 4, rows)
    frame = pl.DataFrame(
        {
            "price": random.random(rows).astype(np.float32),
            "shop": [f"shop {i}" for i in shop],
            "size": random.integers(0, 3, rows),
            "tags": [["new", "red"][: i % 3] for i in range(rows)],
        }
    )
    sold = random.random(rows) < np.where(shop == 2, 0.9, 0.2)
    return frame, np.where(sold, "yes", "no")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> DLRM:
    folder = tmp_path_factory.mktemp("estimator") / "run"
    return DLRM(out=folder, **KEYS).fit(*clicks(400, 1), eval_set=clicks(100, 2))


def test_it_learns(fitted: DLRM) -> None:
    frame, sold = clicks(200, 3)
    probabilities = fitted.predict_proba(frame)
    assert probabilities.shape == (200, 2) and probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    assert fitted.classes_.tolist() == ["no", "yes"]
    predicted = fitted.predict(frame.to_dict(as_series=False))
    assert set(predicted) == {"no", "yes"}
    assert fitted.score(frame, sold) == np.mean(predicted == sold) > 0.7
    assert {line["split"] for line in fitted.history_} == {"train", "valid"}
    assert fitted.summary_["digest"] == fitted.model_.digest
    assert fitted.feature_names_in_.tolist() == frame.columns and fitted.n_features_in_ == 4


def test_the_command_trains_the_same(fitted: DLRM, tmp_path: Path) -> None:
    settings = config.load(fitted.out_ / "config.toml", fitted.overrides_)
    summary = Trainer(settings, None, tmp_path / "run").run()
    assert summary["digest"] == fitted.summary_["digest"]
    schema = fitted.model_.values.schema
    assert [number.column for number in schema.dense] == ["price"]
    kinds = {field.column: field.is_list for field in schema.categories}
    assert kinds == {"shop": False, "size": False, "tags": True}


def test_callbacks_hear_every_line_and_may_stop(fitted: DLRM, tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []

    def second(line: dict[str, Any]) -> bool:
        heard.append(line)
        return line["split"] == "valid" and line["step"] >= 2

    model = DLRM(epochs=50, every_steps=1, **KEYS)
    with pytest.raises(ConfigError, match="every_steps is no key"):
        model.set_params(nonsense=1, every_steps=1)


def test_saved_and_loaded(fitted: DLRM, tmp_path: Path) -> None:
    frame, _ = clicks(50, 4)
    expected = fitted.predict_proba(frame)
    fitted.save(tmp_path / "copy")
    assert not list((tmp_path / "copy").rglob("*.parquet"))
    again = DLRM.load(tmp_path / "copy")
    np.testing.assert_array_equal(again.predict_proba(frame), expected)
    assert again.classes_.tolist() == ["no", "yes"] and again.history_ == fitted.history_
    np.testing.assert_array_equal(neocpu.load(tmp_path / "copy").predict(frame), expected[:, 1])
    with pytest.raises(CheckpointError, match="no estimator"):
        DLRM.load(tmp_path)
