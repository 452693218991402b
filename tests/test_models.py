"""Are models, machines and small logs found by name, and copied with what they need?"""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from neocpu.cli import run
from neocpu.core import presets
from neocpu.core.errors import ConfigError
from neocpu.ingest.settings import feature_names
from neocpu.train.config import config as configs

ROOT = Path(__file__).resolve().parent.parent


def test_a_name_is_a_model_unless_it_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert configs.load("tiny").header() == configs.load(presets.model_path("tiny")).header()
    assert presets.model_path("tiny.toml") == Path("tiny.toml")
    with pytest.raises(ConfigError, match="is called tiny, without"):
        configs.load("tiny.toml")
    with pytest.raises(ConfigError, match="no model of this name; did you mean criteo-kaggle"):
        configs.load("criteo-kagle")
    with pytest.raises(ConfigError, match="cannot read the config"):
        configs.load("tiny/tiny")
    Path("tiny").write_text("[tables]\nmine.rows = 3\n")
    assert [table.name for table in configs.load("tiny").tables] == ["mine"]


def test_logs_are_found_by_name_unless_there_is_such_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train = str(presets.FOLDER / "tiny-criteo-train.tsv.gz")
    assert Path(train).is_file()
    config = configs.load("tiny", ["data.valid=tiny-criteo-train"])
    assert config.data.train == config.data.valid == (train,)
    assert f'data.train="{train}"' in config.absolute
    run(["init", "tiny-criteo-test"])
    (written,) = configs.load("tiny-criteo-test.toml").data.train
    assert Path(written).resolve() == presets.log_file("tiny-criteo-test")
    Path("tiny-criteo-train").touch()
    config = configs.load("tiny", ["data.valid=tiny-criteo-train"])
    assert (config.data.train, config.data.valid) == ((train,), ("tiny-criteo-train",))


@pytest.mark.parametrize("name", presets.names(presets.MODELS))
def test_tables_of_models_look_up_features_of_their_logs(name: str) -> None:
    config = configs.load(name)
    features = {feature for table in config.tables for feature in table.features}
    assert features == set(feature_names(config.data))


def test_models_are_listed_printed_and_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(["models"])
    listed = capsys.readouterr().out
    for name in (*presets.names(presets.MODELS), *presets.log_names()):
        assert name in listed
    assert max(map(len, listed.splitlines())) <= 100
    assert listed in (ROOT / "docs" / "presets.md").read_text()
    run(["models", "tiny"])
    assert capsys.readouterr().out == presets.model_path("tiny").read_text()
    run(["models", "tiny", "--out", "my.toml"])
    assert configs.load("my.toml").data == configs.load("tiny").data
    with pytest.raises(ConfigError, match="did you mean tiny"):
        run(["models", "tinny"])


def build_script(monkeypatch: pytest.MonkeyPatch, made: dict[str, str]) -> dict[str, Any]:
    """What setup.py defines; what it gives to setuptools comes into `made`."""
    setuptools = pytest.importorskip("setuptools")
    monkeypatch.setattr(setuptools, "setup", lambda **keys: made.update(keys))
    return runpy.run_path(str(ROOT / "setup.py"))


def test_the_package_holds_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = build_script(monkeypatch, {})["BuildWithData"]
    build = command(pytest.importorskip("setuptools").Distribution())
    monkeypatch.chdir(ROOT)
    build.build_lib = str(tmp_path)
    build.editable_mode = False
    packed = {target.relative_to(tmp_path) for _, target in build.data()}
    folder = Path("neocpu/data")
    expected = {folder / f"{name}{presets.LOG_SUFFIX}" for name in presets.log_names()}
    for kind in (presets.MODELS, presets.MACHINES):
        expected |= {folder / kind / f"{name}.toml" for name in presets.names(kind)}
    assert packed == expected and len(packed) > 10


def test_the_readme_of_an_index_has_no_links_into_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, str] = {}
    rewritten = build_script(monkeypatch, made)["index_readme"]
    assert not re.search(r"\]\((?!https?:|#)", made["long_description"])
    text = "![A](docs/a.svg)[guide](docs/g.md#x), [docs/g.md](docs/g.md), [b](https://x.y) [c](#d)"
    kept = "[b](https://x.y) [c](#d)"
    assert rewritten(text).startswith(f"guide (`docs/g.md`), `docs/g.md`, {kept}\n")
    site = "https://x.y/neo"
    assert rewritten(text, f"{site}/{{kind}}/v1") == (
        f"![A]({site}/raw/v1/docs/a.svg)[guide]({site}/blob/v1/docs/g.md#x), "
        f"[docs/g.md]({site}/blob/v1/docs/g.md), {kept}"
    )
