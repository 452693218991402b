"""Do further heads and sample weights train what they say, with one digest however they run?"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from neocpu.cli import run as cli
from neocpu.core.errors import ConfigError, DataError
from neocpu.core.trees import leaf_cuts
from neocpu.kernels.twins.dense import model as twin
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.config import config
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.model.head_layout import HeadLayout
from neocpu.train.model.layout import ModelLayout
from neocpu.train.run.trainer import Trainer

B = 20
DENSE = 3
HEADS = (HeadLayout("likes", "like", (3, 1), "bce", 0.5), HeadLayout("time", "s", (1,), "mse", 2.0))


def test_gradients_are_those_of_the_weighted_sum_of_losses() -> None:
    model = Dlrm(ModelLayout(DENSE, (4, 4), (4,), (3, 1), heads=HEADS), seed=2)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((B, DENSE), dtype=np.float32)
    pooled = rng.standard_normal((B, 8), dtype=np.float32)
    labels = rng.integers(0, 2, (3, B)).astype(np.float32)
    weights = rng.integers(0, 3, B).astype(np.float32)
    E = np.empty((B, model.columns), np.float32)
    model.forward_bottom(x, E)
    E[:, 4:] = pooled
    model.forward_top(E)
    _, losses = model.loss_gradient(labels[0], B, weights)
    assert losses.all()  # no weight has touched them
    for head, values in zip(model.heads, labels[1:]):
        head.loss_gradient(values, B, weights)
    dE = model.backward().copy()
    cuts = np.array(leaf_cuts(B, 16), np.int64)
    gradient = model.weight_gradient_node(cuts, np.empty_like(model.flat))
    wide = {name: value.astype(np.float64) for name, value in model.parameters.items()}
    pooled64 = pooled.astype(np.float64)

    def objective() -> float:
        bottom = twin.mlp(wide, "bottom", x.astype(np.float64), True)
        z = twin.interact([bottom, pooled64[:, :4], pooled64[:, 4:]], "dot", False)
        total = np.zeros(B)
        for name, loss, weight, y in zip(
            ("top", "heads.likes", "heads.time"), ("bce", "bce", "mse"), (1, 0.5, 2), labels
        ):
            logit = twin.mlp(wide, name, z, False)[:, 0]
            bce = np.logaddexp(0.0, logit) - logit * y
            total += weight * (bce if loss == "bce" else (logit - y) ** 2)
        return float((weights * total).mean())

    def slopes(array: np.ndarray, h: float = 1e-6) -> np.ndarray:
        slope = np.empty_like(array)
        for index in np.ndindex(array.shape):
            kept = array[index]
            array[index] = kept + h
            up = objective()
            array[index] = kept - h
            slope[index] = (up - objective()) / (2 * h)
            array[index] = kept
        return slope

    for name, computed in model.layout.views(gradient).items():
        np.testing.assert_allclose(computed, slopes(wide[name]), rtol=5e-4, atol=4e-6, err_msg=name)
    np.testing.assert_allclose(dE[:, 4:], slopes(pooled64), rtol=5e-4, atol=1e-6)


SCHEMA = """
[[label]]
column = "click"
[[label]]
column = "seconds"
kind = "number"
[[label]]
column = "like"
[[label]]
column = "weight"
kind = "number"
[[dense]]
columns = ["price"]
kind = "float"
[[category]]
columns = ["site", "user"]
"""
CONFIG = """
[data]
train = "log.csv"
test = "log.csv"
format = "table"
schema = "schema.toml"
sample_weight = "weight"
[model]
embedding_dim = 4
bottom = [4]
top = [3, 1]
[model.heads.likes]
label = "like"
weight = 0.5
[model.heads.time]
label = "seconds"
loss = "mse"
top = [1]
[tables]
"*".rows = 30
[training]
batch_size = 32
"""


def write_log(folder: Path, weight: str = "") -> None:
    """A log of 80 samples, its schema and the config."""
    rng = np.random.default_rng(3)
    lines = ["click,seconds,like,weight,price,site,user"]
    for _ in range(80):
        click, like = rng.integers(0, 2, 2)
        numbers = f"{rng.gamma(2):.2f},{like},{weight or rng.integers(0, 4) / 2},{rng.normal():.3f}"
        lines.append(f"{click},{numbers},s{rng.integers(9)},u{rng.integers(9)}")
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "config.toml").write_text(CONFIG)


def trained(comm: Comm, folder: Path, out: str, *sets: str) -> dict:
    options = config.load(folder / "config.toml", sets)
    return Trainer(options, comm, folder / out).run()


def test_a_log_with_several_labels_and_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path)
    one = trained(SingleComm(), tmp_path, "one")
    assert list(one["metrics"]) == ["train", "test", "test:likes", "test:time"]
    assert "logloss" in one["metrics"]["test:likes"] and "mse" in one["metrics"]["test:time"]
    two = run_threads(2, partial(trained, folder=tmp_path, out="two"))[0]
    full = ["training.pipeline=full", "parallel.plan=row_wise"]
    three = run_threads(3, lambda comm: trained(comm, tmp_path, "three", *full))[0]
    assert {one["digest"]} == {two["digest"], three["digest"]}
    assert one["metrics"] == two["metrics"] == three["metrics"]
    heavier = trained(SingleComm(), tmp_path, "heavier", "model.heads.likes.weight=1.0")
    alone = trained(SingleComm(), tmp_path, "alone", "model.heads={}")
    assert len({one["digest"], heavier["digest"], alone["digest"]}) == 3

    capsys.readouterr()
    log = str(tmp_path / "log.csv")
    assert cli(["eval", str(tmp_path / "one"), log, "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["heads"]["likes"] == one["metrics"]["test:likes"]
    scores = {}
    for head in ("", "likes"):
        out = tmp_path / f"scores{head}.npy"
        line = ["predict", str(tmp_path / "one"), log, "--out", str(out)]
        assert cli([*line, *(["--head", head] if head else [])]) == 0
        scores[head] = np.load(out)
    assert (scores[""] != scores["likes"]).any()
    with pytest.raises(ConfigError, match="no head 'none'; the model has likes, time"):
        cli([*line, "--head", "none", "--force"])


def test_weights_of_one_are_no_weights(tmp_path: Path) -> None:
    write_log(tmp_path, weight="1")
    one = trained(SingleComm(), tmp_path, "weighted")
    none = trained(SingleComm(), tmp_path, "none", "data.sample_weight=")
    assert one["metrics"] == none["metrics"]
    assert one["digest"] != none["digest"]  # the key is in it


@pytest.mark.parametrize(
    ("sets", "error", "message"),
    [
        (["model.heads.likes.label=x"], DataError, "no label 'x' (a label of model.heads); its"),
        (["data.sample_weight=x"], DataError, "no label 'x' (data.sample_weight); its labels are"),
        (["data.sample_weight=price"], DataError, "no label 'price'"),
        (["model.heads.time.loss=bce"], DataError, 'model.heads.time.loss = "bce" takes labels'),
        (["model.heads.time.loss=mae"], ConfigError, "model.heads.time.loss: 'mae' is not"),
        (["model.heads.time.top=[2]"], ConfigError, "model.heads.time.top: the last size must be"),
        (['model.heads.more={loss="mse"}'], ConfigError, "model.heads.more.label: it must name"),
        (['model.heads."a/b".label="like"'], ConfigError, "'a/b' is no head's name"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(
    sets: list[str], error: type[Exception], message: str, tmp_path: Path
) -> None:
    write_log(tmp_path)
    with pytest.raises(error) as caught:
        trained(SingleComm(), tmp_path, "out", *sets)
    assert message in str(caught.value)


def test_weights_of_samples_are_not_negative(tmp_path: Path) -> None:
    write_log(tmp_path, "-0.5")
    why = "data.train: sample weights 'weight' are from -0.5 to -0.5; they must be finite"
    with pytest.raises(DataError, match=why):
        trained(SingleComm(), tmp_path, "out")
