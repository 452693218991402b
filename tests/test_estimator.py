"""Does `neocpu.DLRM` train what `neocpu train` trains, and behave as an estimator does?"""

import copy
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import neocpu
from neocpu import DLRM
from neocpu.core.errors import CheckpointError, ConfigError, DataError
from neocpu.train.config import config
from neocpu.train.run.fitting import FitRun
from neocpu.train.run.trainer import Trainer

KEYS = {"batch_size": 32, "embedding_dim": 4, "model__bottom": [4], "model__top": (1,)}


EASY = {**KEYS, "epochs": 12, "learning_rate": 0.1}


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
    return DLRM(out=folder, **EASY).fit(*clicks(400, 1), eval_set=clicks(100, 2))


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


def test_a_missing_id_leaves_a_column_what_it_is() -> None:
    """pandas makes floats of whole numbers where one is missing."""
    pandas = pytest.importorskip("pandas")
    users = [100 + i % 9 for i in range(200)]
    sold = [user % 2 for user in users]
    price = [0.25 * (i % 5) for i in range(200)]
    whole = pandas.DataFrame({"user_id": users, "price": price})
    holed = pandas.DataFrame({"user_id": [None, *users[1:]], "price": price})
    assert holed["user_id"].dtype == np.float64
    model = DLRM(**EASY).fit(holed, sold)
    schema = model.model_.values.schema
    assert [field.column for field in schema.categories] == ["user_id"]
    assert [number.column for number in schema.dense] == ["price"]
    np.testing.assert_array_equal(model.predict_proba(whole)[1:], model.predict_proba(holed)[1:])
    assert model.score(whole, sold) > 0.9


def test_a_row_without_a_score_has_no_class() -> None:
    frame, sold = clicks(60, 1)
    model = DLRM(data__on_error="skip", epochs=1, **KEYS).fit(frame, sold)
    broken = frame.with_columns(price=pl.Series(["cheap", *["0.5"] * 59]))
    with pytest.warns(UserWarning, match="row 0, column price: 'cheap' is not a number"):
        assert np.flatnonzero(np.isnan(model.predict_proba(broken)[:, 1])).tolist() == [0]
    with (
        pytest.warns(UserWarning, match="no score"),
        pytest.raises(DataError, match=r"have no class.*: rows 0$"),
    ):
        model.predict(broken)


def test_samples_have_weights() -> None:
    frame, sold = clicks(300, 1)
    wrong = np.arange(300) % 3 == 0
    labels = np.where(wrong, np.where(sold == "yes", "no", "yes"), sold)
    model = DLRM(**EASY, seed=3)
    ones = model.fit(frame, labels, sample_weight=np.ones(300)).predict_proba(frame)
    plain = DLRM(**EASY, seed=3).fit(frame, labels).predict_proba(frame)
    np.testing.assert_array_equal(ones, plain)
    weighted = DLRM(**EASY, seed=3)
    weighted.fit(frame, labels, eval_set=(frame, sold), sample_weight=np.where(wrong, 0, 1))
    # rows of no weight are as good as none: flip their labels back
    same = DLRM(**EASY, seed=3).fit(frame, sold, sample_weight=np.where(wrong, 0.0, 1.0))
    np.testing.assert_array_equal(weighted.predict_proba(frame), same.predict_proba(frame))
    assert not np.array_equal(weighted.predict_proba(frame), plain)
    right = weighted.predict(frame) == sold
    assert weighted.score(frame, sold, wrong) == right[wrong].mean()
    with pytest.raises(DataError, match=r"300 rows, but weights of shape \(2,\)"):
        model.fit(frame, labels, sample_weight=[1, 2])
    with pytest.raises(DataError, match="at least 0"):
        model.fit(frame, labels, sample_weight=-np.ones(300))


def test_callbacks_hear_every_line_and_may_stop() -> None:
    heard: list[dict[str, Any]] = []

    def stop(line: dict[str, Any]) -> bool:
        heard.append(line)
        return line["split"] == "valid" and line["step"] >= 2

    model = DLRM(epochs=50, eval__every_steps=1, seed=7, **KEYS)
    rows = clicks(100, 5)
    model.fit(*rows, eval_set=[rows], callbacks=[stop])
    assert model.summary_["steps"] == 2 and heard == model.history_
    folder = model.out_
    assert folder.exists() and model.predict_proba(rows[0]).shape == (100, 2)
    del model
    assert not folder.exists()


def test_what_a_callback_raises_ends_the_fit() -> None:
    called: list[dict[str, Any]] = []

    def fail(line: dict[str, Any]) -> float:
        called.append(line)
        return 1 / 0

    with pytest.raises(ZeroDivisionError):
        DLRM(epochs=2, eval__every_steps=1, **KEYS).fit(
            *clicks(100, 5), eval_set=clicks(100, 5), callbacks=[fail]
        )
    assert len(called) == 1


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_signals_are_no_errors_that_a_search_would_swallow(
    tmp_path: Path, number: signal.Signals, kind: type[BaseException]
) -> None:
    frame, sold = clicks(200, 1)

    def strike(line: object) -> None:
        os.kill(os.getpid(), number)

    with pytest.raises(kind, match=r"^stopped by signal .* a checkpoint is written$") as caught:
        DLRM(**KEYS, eval__every_steps=2, epochs=20).fit(
            frame, sold, eval_set=(frame, sold), callbacks=[strike]
        )
    assert not isinstance(caught.value, Exception)
    assert getattr(caught.value, "code", 130) == 128 + number
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(kind, match="after step 1"):
        patch.setattr(FitRun, "_note", lambda run, facts: strike(facts))
        neocpu.fit(frame.with_columns(sold=sold), label="sold", out=tmp_path / "fit")


def test_numbers_are_regressed() -> None:
    frame, _ = clicks(200, 6)
    price = frame["price"].to_numpy() * 3 + 1
    model = DLRM(loss="mse", epochs=3, learning_rate=0.05, numbers=["size"], embedding_dim=4)
    model.fit(frame, price)
    predicted = model.predict(frame)
    rest = ((price - predicted) ** 2).sum() / ((price - price.mean()) ** 2).sum()
    assert model.score(frame, price) == pytest.approx(1 - rest, rel=1e-5)
    assert model.model_.config.model.bottom[-1] == 4 and model._estimator_type == "regressor"
    dense = [number.column for number in model.model_.values.schema.dense]
    assert sorted(dense) == ["price", "size"]
    with pytest.raises(DataError, match="no probabilities"):
        model.predict_proba(frame)


def test_saved_and_loaded(fitted: DLRM, tmp_path: Path) -> None:
    frame, _ = clicks(50, 4)
    expected = fitted.predict_proba(frame)
    fitted.save(tmp_path / "copy")
    with pytest.raises(DataError, match=r"copy exists; choose another folder, or remove it$"):
        fitted.save(tmp_path / "copy")
    assert not list((tmp_path / "copy").rglob("*.parquet"))
    again = DLRM.load(tmp_path / "copy")
    np.testing.assert_array_equal(again.predict_proba(frame), expected)
    assert again.classes_.tolist() == ["no", "yes"] and again.history_ == fitted.history_
    np.testing.assert_array_equal(neocpu.load(tmp_path / "copy").predict(frame), expected[:, 1])
    with pytest.raises(CheckpointError, match="no estimator"):
        DLRM.load(tmp_path)
    packed = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(packed.predict_proba(frame), expected)
    assert packed.out_ != fitted.out_ and DLRM.load(packed.out_).classes_.tolist() == ["no", "yes"]


def test_what_cannot_be_fitted(fitted: DLRM, tmp_path: Path) -> None:
    frame, sold = clicks(20, 8)
    with pytest.raises(DataError, match="y has 3 classes"):
        DLRM().fit(frame, np.arange(20) % 3)
    with pytest.raises(DataError, match="20 rows, but labels of shape"):
        DLRM().fit(frame, sold[:-1])
    with pytest.raises(DataError, match="class 'maybe'"):
        DLRM().fit(frame, sold, eval_set=(frame, np.where(sold == "yes", "maybe", "no")))
    with pytest.raises(DataError, match="not fitted yet"):
        DLRM().predict(frame)
    with pytest.raises(ConfigError, match="batch is no key of a config"):
        DLRM(batch=3)
    with pytest.raises(ConfigError, match="nonsense is no key"):
        DLRM().set_params(nonsense=1)
    with pytest.raises(DataError, match=r"config\.toml exists"):
        DLRM(out=fitted.out_).fit(frame, sold)


@pytest.mark.parametrize("lack", [None, np.nan, "NA of pandas"])
def test_what_is_missing_is_told_with_its_rows(lack: object) -> None:
    frame, sold = clicks(100, 1)
    if isinstance(lack, str):
        lack = pytest.importorskip("pandas").NA
    labels = np.where(sold == "yes", 1, 0).astype(object)
    labels[[3, 70]] = lack
    said = " is missing or not finite in rows 3, 70;"
    model = DLRM(**KEYS)
    with pytest.raises(DataError, match="^y" + said):
        model.fit(frame, labels)
    with pytest.raises(DataError, match="^y" + said):
        DLRM(loss="mse", **KEYS).fit(frame, labels)
    with pytest.raises(DataError, match="^y of eval_set" + said):
        model.fit(frame, sold, eval_set=[(frame, labels)])
    with pytest.raises(DataError, match="^sample_weight" + said):
        model.fit(frame, sold, sample_weight=labels)


def test_forms_of_labels_and_eval_sets() -> None:
    frame, sold = clicks(100, 1)
    for wrong in ([frame, sold], (frame, sold, sold), frame):
        with pytest.raises(DataError, match=r"eval_set is a tuple \(X, y\), or a list of such"):
            DLRM(**KEYS).fit(frame, sold, eval_set=wrong)  # type: ignore[arg-type]
    column = pl.DataFrame({"sold": sold})
    model = DLRM(seed=1, **KEYS).fit(frame, column, eval_set=((frame, column),))
    same = DLRM(seed=1, **KEYS).fit(frame, sold, eval_set=(frame, sold))
    assert model.summary_["digest"] == same.summary_["digest"]
    assert model.score(frame, column) == model.score(frame, sold)
    with pytest.raises(ConfigError, match="column 'price' has no numbers"):
        DLRM(**KEYS).fit(frame.with_columns(price=pl.lit(np.inf)), sold)


def test_keys_that_are_misspelt_or_of_several_sections() -> None:
    with pytest.raises(ConfigError, match=r"did you mean batch_size\?"):
        DLRM(batchsize=3)
    with pytest.raises(ConfigError, match="optimizer__sparse__name or optimizer__dense__name"):
        DLRM(name="adam")


def test_parameters() -> None:
    model = DLRM(batch_size=8, optimizer__dense__name="adam")
    params = model.get_params()
    assert params["batch_size"] == 8 and params["out"] is None
    model.set_params(batch_size=np.int64(16), verbose=True)
    assert model.get_params() == params | {"batch_size": 16, "verbose": True}
    again = copy.deepcopy(model)
    assert again.get_params() == model.get_params()
    assert (
        repr(model) == "DLRM(verbose=True, batch_size=np.int64(16), optimizer__dense__name='adam')"
    )


def test_scikit_learn_takes_it() -> None:
    pytest.importorskip("sklearn")
    from sklearn.base import clone, is_classifier, is_regressor
    from sklearn.model_selection import GridSearchCV

    model = DLRM(batch_size=32, embedding_dim=4)
    assert is_classifier(model) and is_regressor(clone(model).set_params(loss="mse"))
    pandas = pytest.importorskip("pandas")
    frame, sold = clicks(120, 9)
    table = pandas.DataFrame({name: frame[name].to_list() for name in frame.columns})
    search = GridSearchCV(model, {"epochs": [2]}, cv=2, error_score="raise")
    search.fit(table, sold)
    assert search.best_params_ == {"epochs": 2}
    assert search.predict(table).shape == (120,)
