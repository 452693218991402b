"""Are paths in a config relative to its file, and those of --set to the current folder?"""

import json
import os
from pathlib import Path

import pytest

from neocpu.core.errors import ConfigError
from neocpu.core.paths import moved
from neocpu.train.config import config as configs

TEXT = """
[data]
train = ["../logs/a.tsv", '/far/b.tsv']  # two files
test = "logs/c.tsv"
vocabulary = "words.h5"
rows_by = "vocabulary"
[tables]
C1.rows = 10
[memory]
folder = "rows"
[parallel]
plan = "plans/p.json"
machine = "machines/m.toml"
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models/my.toml; the current folder is beside models/."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "my.toml").write_text(TEXT)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def paths_of(settings: configs.Config) -> dict[str, object]:
    data = settings.data
    parallel = settings.parallel
    return {
        "train": data.train,
        "test": data.test,
        "vocabulary": data.vocabulary,
        "folder": settings.memory.folder,
        "plan": parallel.plan,
        "machine": parallel.machine,
    }


def test_paths_in_a_file_are_relative_to_it(folders: Path) -> None:
    assert paths_of(configs.load("models/my.toml")) == {
        "train": ("logs/a.tsv", "/far/b.tsv"),
        "test": ("models/logs/c.tsv",),
        "vocabulary": "models/words.h5",
        "folder": "models/rows",
        "plan": "models/plans/p.json",
        "machine": "models/machines/m.toml",
    }
    overrides = ["data.test=logs/c.tsv", "parallel.plan=auto", "parallel.machine=zionex"]
    paths = paths_of(configs.load("models/my.toml", overrides))
    assert paths["test"] == ("logs/c.tsv",)
    assert (paths["plan"], paths["machine"]) == ("auto", "zionex")
    assert paths_of(configs.loads(TEXT))["vocabulary"] == "words.h5"


def test_the_users_own_folder_is_written_as_in_shells(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = TEXT.replace('"rows"', '"~/rows"').replace('"../logs/a.tsv"', '"~/a.tsv", "~x/b.tsv"')
    (folders / "models" / "my.toml").write_text(text)
    config = configs.load("models/my.toml", ["checkpoint.mirror=~/copies"])
    assert config.data.train == ("/home/me/a.tsv", "models/~x/b.tsv", "/far/b.tsv")
    assert config.checkpoint.mirror == "/home/me/copies"
    assert 'checkpoint.mirror="/home/me/copies"' in config.absolute
    (folders / "elsewhere" / "my.toml").write_text(moved(text, "models", "elsewhere"))
    assert configs.load("elsewhere/my.toml").memory.folder == "/home/me/rows"


def test_what_is_stored_means_the_same_files_anywhere(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = ["data.test=mine.tsv", "data.valid=[]", "training.init_from=old"]
    settings = configs.load("models/my.toml", sets)
    before = paths_of(settings)
    monkeypatch.chdir(folders / "elsewhere")
    stored = [*settings.overrides, *settings.absolute]
    after = configs.loads(settings.text, "checkpoint", json.loads(json.dumps(stored)))
    assert after.header() == settings.header()
    assert after.data.train == (f"{folders}/logs/a.tsv", "/far/b.tsv")
    assert after.data.test == (f"{folders}/mine.tsv",)
    assert after.training.init_from == f"{folders}/old"
    for key in ("vocabulary", "folder", "plan", "machine"):
        assert paths_of(after)[key] == f"{folders}/{before[key]}"
    assert not after.absolute


def test_a_path_of_the_current_folder_is_refused_with_both_places(folders: Path) -> None:
    Path("words.h5").touch()
    with pytest.raises(ConfigError) as error:
        configs.load("models/my.toml")
    for words in ("data.vocabulary", "models/words.h5", "'../words.h5'", "--set data.vocabulary"):
        assert words in str(error.value)
    configs.load("models/my.toml", ["data.vocabulary=words.h5"])
    Path("models/words.h5").touch()
    assert configs.load("models/my.toml").data.vocabulary == "models/words.h5"


def test_a_config_moves_with_its_paths(folders: Path) -> None:
    text = moved(TEXT, "models", "elsewhere")
    assert "# two files" in text
    Path("elsewhere/my.toml").write_text(text)
    for name in ("train", "test", "vocabulary", "folder", "plan", "machine"):
        old = paths_of(configs.load("models/my.toml"))[name]
        assert paths_of(configs.load("elsewhere/my.toml"))[name] == old
    assert moved(TEXT, "models", folders / "models") == TEXT
    with pytest.raises(ConfigError, match="make them absolute"):
        moved('[data]\ntrain = "\\u0061.tsv"', "models", "elsewhere")


def test_a_folder_behind_a_link_is_the_one_it_leads_to(folders: Path) -> None:
    (folders / "far" / "deep").mkdir(parents=True)
    os.symlink(folders / "far" / "deep", folders / "link")
    (folders / "link" / "my.toml").write_text('[data]\ntrain = "../a.tsv"\n[tables]\nC1.rows = 2')
    (train,) = configs.load("link/my.toml").data.train
    assert os.path.realpath(train) == str(folders / "far" / "a.tsv")
