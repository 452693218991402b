"""Does the page show runs as they are: whole, going on, damaged, side by side?"""

import json
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from neocpu.cli import run as command
from neocpu.core.errors import ConfigError, DataError
from neocpu.parallel.sharding.plan import place
from neocpu.serve.report.charts import MOST_POINTS, count, curves
from neocpu.serve.report.details import show
from neocpu.serve.report.page import page
from neocpu.serve.report.runs import Run, differing, find_runs
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.config import config
from neocpu.train.config.keys import config_record, defaults
from tests import recorded
from tests.small_run import CONFIG

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Checker(HTMLParser):
    """Raises where elements are not closed in order; collects texts and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += attributes

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def line(step: int, split: str, **values: float) -> dict[str, object]:
    return {"step": step, "samples": 64 * step, "split": split, "measured": 64, **values}


def write_run(folder: Path, rate: float, finished: bool = True) -> None:
    """The files of a run of two ranks that took three steps."""
    folder.mkdir(parents=True)
    settings = config.loads(CONFIG, overrides=[f"optimizer.sparse.learning_rate={rate}"])
    plan = place([TableSpec("<C1>", 90, 8, ("C1",))], ["column_wise"], 2).to_dict()
    lines = [line(step, "train", logloss=0.7 - rate * step, ne=1.0) for step in (1, 2, 3)]
    lines.append(line(3, "test", logloss=0.6, auc=0.7))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "config.json").write_text(json.dumps(config_record(settings)))
    if finished:
        link = {"messages": 1, "bytes": 1500}
        links = {"same_rank": link, "same_node": link, "other_node": link}
        summary = {
            "digest": "ab" * 32,
            "steps": 3,
            "samples": 192,
            "seconds": 1.5,
            "samples_per_second": 128.0,
            "metrics": {"test": {"samples": 64, "logloss": 0.6, "auc": 0.7, "ndcg@5": 0.25}},
            "doubts": {"test": ["worse than predicting the average"]},
            "baseline": {"split": "test", "model": "logistic regression", "metrics": {"auc": 0.65}},
            "deciles": {"test": [{"samples": 64, "predicted": 0.25, "label": 0.2}]},
            "memory_per_rank": 3 << 20,
            "memory_of_ranks": [3 << 20, 2 << 20],
            "ranks": 2,
            "plan": plan,
            "traffic": {"alltoallv": {"calls": 7, **links}},
            "sent": {"unit": "rank", "bytes": [[9, 1500], [3000, 9]]},
            "reliability": {
                "test": [
                    {"samples": 50, "predicted": 0.01, "label": 0.0},
                    {"samples": 14, "predicted": 0.4, "label": 0.5},
                ]
            },
            **config_record(settings),
        }
        (folder / "run.json").write_text(json.dumps(summary))


def words_of(text: str) -> str:
    """The texts of a page, after a look at its form."""
    checker = Checker()
    checker.feed(text)
    assert not checker.open
    for name, value in checker.attributes:
        assert name not in ("src", "onclick") and (name != "href" or str(value).startswith("#"))
    assert "<script" not in text and "@import" not in text and "url(" not in text
    for part in text.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + part[: part.index("</svg>")] + "</svg>")
    return " ".join(" ".join(checker.words).split())


def test_a_page_of_one_run(tmp_path: Path) -> None:
    write_run(tmp_path / "one", 0.05)
    column = {"column": "C1", "loss": 0.125, "loss_spread": 0.5, "auc": None, "auc_spread": None}
    (tmp_path / "one" / "importances.json").write_text(json.dumps({"columns": [column]}))
    runs = find_runs([tmp_path / "one"])
    text = page(runs)
    assert text == page(find_runs([tmp_path / "one"]))
    recorded.check("page of a run", recorded.lines_of(text.replace(str(tmp_path), "")))
    words = words_of(text)
    assert runs[0].state == "finished" and not runs[0].problems
    for part in (
        "ab" * 32,
        f"optimizer.sparse.learning_rate 0.05 {show(defaults()['optimizer.sparse.learning_rate'])}",
        "one, test: 0.6 at 192 samples",
        "rank 0, <C1>, column_wise: rows 0 to 90, columns 0 to 4, 1.44 kB",
        "rank 1 to 0: 3.00 kB",
        "50 samples predicted at 1 %, of which 0 % clicked",
        "rank 1 2.10 MB",
        "batch_size = 64",
        "one , test: worse than predicting the average",
        "auc 0.70000 0.65000",
        "ndcg@5 0.25000",
        "1 64 25.000 % 20.000 % 1.250",
        "C1 0.12500 0.50000",
    ):
        assert part in words, part
    assert "<C1>" not in text


def test_runs_side_by_side_and_what_is_wrong_with_some(tmp_path: Path) -> None:
    write_run(tmp_path / "first", 0.05)
    write_run(tmp_path / "second", 0.1, finished=False)
    write_run(tmp_path / "third", 0.05)
    (tmp_path / "third" / "run.json").write_text('{"digest": ')
    with open(tmp_path / "third" / "metrics.jsonl", "a") as file:
        file.write('{"step": 4, "samp')
    (tmp_path / "fourth").mkdir()
    (tmp_path / "fourth" / "plan.json").write_text('{"tables": 3}')
    (tmp_path / "no run").mkdir()
    config_file = tmp_path / "second" / "config.json"
    record = json.loads(config_file.read_text())
    record["config"]["tables"]["new.one"] = {"rows": 7, "dim": 8, "pooling": "sum"}
    config_file.write_text(json.dumps(record))
    runs = find_runs([tmp_path])
    words = words_of(page(runs))
    assert [run.name for run in runs] == ["first", "fourth", "second", "third"]
    assert [run.state for run in runs] == ["finished", *["unfinished"] * 3]
    assert "optimizer.sparse.learning_rate 0.05 none 0.1 0.05" in words
    assert "tables.new.one none none 7 x 8 none" in words
    assert "tables.new.one.pooling" not in dict(differing(runs))
    assert "its plan cannot be drawn" in words
    assert "run.json cannot be read" in words
    assert "metrics.jsonl: 1 lines cannot be read" in words


@pytest.mark.parametrize("steps", [MOST_POINTS, MOST_POINTS + 1, 3 * MOST_POINTS + 2])
def test_a_long_curve_is_thinned_out_and_keeps_its_ends(tmp_path: Path, steps: int) -> None:
    lines = [line(step, "train", logloss=1.0 / step) for step in range(1, steps + 1)]
    (series,) = curves([Run(tmp_path, "long", lines=lines)])[0].series
    assert MOST_POINTS // 2 < len(series.marks) <= MOST_POINTS + 1
    assert f"at {count(64)} samples" in series.marks[0][2]
    assert f"at {count(64 * steps)} samples" in series.marks[-1][2]


def test_a_file_is_measured_before_it_is_trained_on(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    write_run(folder, 0.05, finished=False)
    lines = [line(step, "progressive", logloss=0.6) for step in (0, 3)]
    text = "".join(json.dumps(each | {"file": "day.csv"}) + "\n" for each in lines)
    (folder / "metrics.jsonl").write_text(text)
    (run,) = find_runs([folder])
    assert not run.problems
    assert "progressive: 0.6 at 192 samples" in page([run])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "one", 0.05)
    out = tmp_path / "page.html"
    assert command(["report", str(tmp_path / "one"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"1 run in {out}\n"
    with pytest.raises(ConfigError, match="--force"):
        command(["report", str(tmp_path / "one"), "--out", str(out)])
    for wrong in (tmp_path / "none", tmp_path / "one" / ".." / "empty"):
        with pytest.raises(DataError, match=r"no such folder"):
            command(["report", str(wrong), "--out", str(out), "--force"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="results of a run"):
        command(["report", str(tmp_path / "empty"), "--out", str(out), "--force"])
    with pytest.raises(DataError):
        own = tmp_path / "one" / "run.json"
        command(["report", str(tmp_path / "one"), "--out", str(own), "--force"])
