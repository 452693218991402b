"""Are the presets in data/models whole configs for Criteo-shaped logs?"""

import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from neocpu.cli.plan import model_lines
from neocpu.ingest.synthetic.law import criteo_shape
from neocpu.parallel.transport.comm import SingleComm
from neocpu.train.before.datasets import open_splits
from neocpu.train.before.plans import make_plan
from neocpu.train.config import config
from neocpu.train.step.world import build

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "data" / "models"))
import make_neo  # noqa: E402

CATEGORIES = criteo_shape()["categories"]


MODELS = sorted((ROOT / "data" / "models").glob("*.toml"))
OTHER_LOGS = ("avazu", "din", "movielens")
MADE = {model.name: model for model in make_neo.MODELS}


@pytest.mark.parametrize(
    "path",
    [path for path in MODELS if path.stem not in {*MADE, *OTHER_LOGS}],
    ids=lambda path: path.stem,
)
def test_presets_load_and_hold_the_26_categories(path):
    settings = config.load(path, ["data.train=a.tsv", "data.test=b.tsv"])
    names = [table.name for table in settings.tables if not table.name.endswith(".wide")]
    assert names == [entry["name"] for entry in CATEGORIES]
    if path.stem == "criteo-kaggle":
        # a row more than published values, for those that training did not see
        rows = [table.rows - 1 for table in settings.tables]
        assert rows == [entry["rows"] for entry in CATEGORIES]


@pytest.mark.parametrize("name", ["tiny", "dcnv2", "deepfm", "wide-deep", "dhen"])
def test_presets_of_the_committed_log_train_on_it(name, tmp_path):
    settings = config.load(ROOT / "data" / "models" / f"{name}.toml", ["training.steps=2"])
    assert all(Path(path).is_file() for path in (*settings.data.train, *settings.data.test))
    if name != "tiny":  # the README's tests train that one
        splits = open_splits(settings, SingleComm(), tmp_path, print)
        loader = splits.loader("train")
        world = build(settings, SingleComm(), make_plan(settings, SingleComm(), {}), 13)
        for step, batch in enumerate(islice(loader.batches(), 2), 1):
            assert np.isfinite(world.step(batch, step).loss).all()


def test_din_attends_to_histories():
    settings = config.load(ROOT / "data" / "models" / "din.toml", ["data.train=clicks.csv"])
    assert settings.layout(0).vector_widths == (16, 16, 16)
    assert settings.model.attention["history"].target == "movie"


@pytest.mark.parametrize("name", MADE)
def test_the_papers_other_models_have_its_sizes(name):
    path = ROOT / "data" / "models" / f"{name}.toml"
    model = MADE[name]
    assert path.read_text() == make_neo.text(model), "run data/models/make_neo.py"
    settings = config.load(path)
    dims = [table.dim for table in settings.tables]
    assert abs(sum(table.rows * table.dim for table in settings.tables) - model.parameters) < 1000
    assert {feature for table in settings.tables for feature in table.features} == {
        f"C{i}" for i in range(1, 27)
    }
    widths = (*settings.model.bottom, *settings.model.top)
    assert len(widths) == model.layers and abs(sum(widths) / len(widths) - model.width) < 2
    assert 0.75 < make_neo.mflops(model) / model.mflops < 1.1
    for said in (
        f"from {min(dims)} to {max(dims)} with mean {sum(dims) // len(dims)}",
        f"all of dim {dims[0]}",
    ):
        if said in model.remembered:
            break
    else:
        raise AssertionError(model.remembered)
    assert f"{model.pooling} lookups a bag" in model.remembered
    assert model_lines(settings)[0].startswith(f"{model.tables:,} tables".replace(",", ""))
