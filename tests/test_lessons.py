"""Do the lessons run, show what they promise, and stay short? Is every page of docs/ on the site's
lists, and does every key of a config have a meaning?

The lessons run here without the site, on the kernels of the cache.
"""

import ast
import importlib
import json
import math
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from neocpu.kernels.compile.threads import thread_count, use_threads

pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parent.parent
LESSONS = sorted((ROOT / "examples" / "lessons").glob("[0-9][0-9]_*.py"))
CODE_LINES = 80

# Lesson -> what its variables must show.
RESULTS: dict[str, Any] = {
    "01_bag": lambda lesson: lesson["same_bits"],
    "02_step": lambda lesson: lesson["difference"] < 1e-7,
    "03_order": lambda lesson: len(lesson["kernel"]) == 1 < len(set(lesson["naive"])),
    "04_skew": lambda lesson: lesson["longest"] > 500 and lesson["segments"].unique.size < 1000,
    "05_schemes": lambda lesson: set(lesson["digests"].values()) == {lesson["alone"]},
    "06_alltoall": lambda lesson: (
        lesson["measured"]["same_node"] == lesson["predicted"]["same_node"]
    ),
    "07_backward": lambda lesson: (len(lesson["merged"]), len(lesson["ends"])) == (1, 24),
    "08_caches": lambda lesson: all(
        low <= rate
        for curve in lesson["curves"].values()
        for low, rate in zip(lesson["curves"]["Belady"], curve)
    ),
    "09_narrow": lambda lesson: (
        (lesson["paths"]["nearest"] == 1).all()
        and abs(lesson["paths"]["stochastic"][-1].mean() - 0.6) < 0.02
    ),
    "10_oracle": lambda lesson: (
        [bool(r) for r in lesson["reports"].values()] == [True] + 4 * [False]
        and "last_lookup_dropped" in str(lesson["reports"]["last lookup is lost"])
        and "no known mistake" in str(lesson["reports"]["sums are kept in fp16"])
        and "a race" in str(lesson["race"])
    ),
    "11_operator": lambda lesson: lesson["same_bits"],
    "12_kinds": lambda lesson: (
        lesson["apart"]["hash"] < lesson["apart"]["quotient + remainder"] == 10_000
        and lesson["errors"]["quotient * remainder"][-1][1] < lesson["errors"]["hash"][-1][1]
    ),
    "13_preconditioner": lambda lesson: (
        lesson["ends"]["across the axes", "Shampoo"]
        < 1e-6 * lesson["ends"]["across the axes", "AdaGrad"]
    ),
    "14_asynchronous": lambda lesson: (
        {key for key, losses in lesson["losses"].items() if losses[-1] > losses[0]}
        == {(16, 0.2), (64, 0.2)}
        and lesson["waited"][-1] < 0.1 * lesson["losses"][64, 0.02][-1]
        and all(
            abs(rate / (2 * math.sin(math.pi / (4 * age + 2))) - 1) < 0.03
            for age, rate in lesson["tried"].items()
        )
        and lesson["apart"].pop(0) == 0 < min(lesson["apart"].values())
    ),
    "15_operands": lambda lesson: (
        lesson["errors"]["bf16", "truncate"][:, -1].max() < -0.005
        and abs(lesson["errors"]["fp8_e4m3", "nearest"][:, -1]).max() < 0.002
        and {name for name, (losses, _) in lesson["runs"].items() if losses[-1] > 1.1}
        == {"bf16 only"}
        and lesson["spoilt"]["bf16"][0] == min(lesson["spoilt"]["fp16"]) == 0
        and lesson["spoilt"]["fp8_e5m2"][0] > lesson["spoilt"]["fp16"][0] > 0.4
        and lesson["runs"]["fp16, dynamic loss scale"][1][0] == 2.0**30
        and 2.0**18 < lesson["runs"]["fp16, dynamic loss scale"][1][-1] < 2.0**24
    ),
}


def code_lines(path: Path) -> int:
    """Lines of code, without comments, docstrings and blank lines."""
    text = path.read_text()
    docstring = ast.parse(text).body[0].end_lineno or 0
    lines = text.splitlines()[docstring:]
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in lines)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_shows_what_it_says(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.chdir(tmp_path)
    plt = importlib.import_module("matplotlib.pyplot")
    plt.switch_backend("Agg")
    threads = thread_count()
    lesson = runpy.run_path(str(path))
    try:
        assert RESULTS[path.stem](lesson)
        assert plt.get_fignums(), "no picture"
    finally:
        use_threads(threads)
        plt.close("all")
        sys.modules.pop("lesson", None)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_is_short_and_leads_on(path: Path) -> None:
    text = path.read_text()
    assert code_lines(path) <= CODE_LINES
    assert "**Exercise.**" in text and "**Read on.**" in text
    places = re.findall(r"``((?:neocpu|tests|docs|benchmarks)/[\w./]+)``", text)
    assert all((ROOT / place).exists() for place in places), places
    for room in ("neocpu/kernels/twins/", "neocpu/kernels/", "tests/"):
        assert any(place.startswith(room) for place in places), f"no link to {room}"


def test_every_page_is_on_a_list_of_the_site() -> None:
    sections = ("index", "train", "check", "learn", "concepts", "reference")
    listed = {f"{name}.md" for name in sections[:1]}
    for name in sections:
        text = (ROOT / "docs" / f"{name}.md").read_text()
        listed |= set(re.findall(r"^\* \[[^]]*\]\(([\w/-]+\.md)\)", text, re.MULTILINE))
    docs = ROOT / "docs"
    found = [*docs.glob("*.md"), *docs.glob("course/*.md")]
    pages = {path.relative_to(docs).as_posix() for path in found}
    assert pages == listed, "docs/design.md, section 3, says where a page is put on a list"


def test_every_key_of_a_config_has_a_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    page = importlib.import_module("key_reference").page()
    assert "| `batch_size` | samples of all ranks together" in page


def test_the_search_finds_a_key_by_its_whole_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = pytest.importorskip("sphinx.application")
    pytest.importorskip("myst_parser")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    (tmp_path / "generated").mkdir()
    (tmp_path / "index.md").write_text("# x\n\n```{toctree}\ngenerated/keys\n```\n")
    rows = "\n\n| key | meaning |\n|---|---|\n| `placement` | a `hbm` |\n"
    sections = [f"## {name}{rows}" for name in ("memory", "tables.NAME (kind tt)")]
    (tmp_path / "generated" / "keys.md").write_text("# Keys\n\n" + "\n".join(sections))
    site = tmp_path / "site"
    application.Sphinx(
        tmp_path,
        None,
        site,
        tmp_path / "trees",
        "html",
        confoverrides={"extensions": ["myst_parser", "key_anchors"]},
        status=None,
    ).build()
    index = json.loads((site / "searchindex.js").read_text()[len("Search.setIndex(") : -1])
    page = index["docnames"].index("generated/keys")
    entries = {name: found[0][:2] for name, found in index["indexentries"].items()}
    assert entries == {
        "memory.placement": [page, "key-memory-placement"],
        "tables.name.placement": [page, "key-tables-name-kind-tt-placement"],
    }
    assert 'id="key-memory-placement"' in (site / "generated" / "keys.html").read_text()
