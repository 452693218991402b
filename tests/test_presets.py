"""Are the presets in data/models whole configs for Criteo-shaped logs?"""

from pathlib import Path

import pytest

from neocpu import config
from neocpu.ingest.synthetic import criteo_shape

ROOT = Path(__file__).resolve().parent.parent
CATEGORIES = criteo_shape()["categories"]


@pytest.mark.parametrize("path", sorted((ROOT / "data" / "models").glob("*.toml")), ids=lambda path: path.stem)
def test_presets_load_and_hold_the_26_categories(path):
    given = config.load(path, ["data.train=a.tsv", "data.test=b.tsv"])
    assert [table.name for table in given.tables] == [entry["name"] for entry in CATEGORIES]
    if path.stem == "criteo-kaggle":
        assert [table.rows for table in given.tables] == [entry["rows"] for entry in CATEGORIES]


def test_the_tiny_preset_names_the_committed_log():
    given = config.load(ROOT / "data" / "models" / "tiny.toml")
    assert all((ROOT / name).is_file() for name in (*given.data.train, *given.data.test))
