"""Are files of Vowpal Wabbit read as they are meant, and nothing else as one?"""

import numpy as np
import pytest

import neocpu
from neocpu.core.errors import DataError
from neocpu.ingest.formats.files.kinds import kind_of
from neocpu.ingest.formats.files.record_file import NoRecordError
from neocpu.ingest.formats.files.vw_records import parse_vw
from neocpu.train.advice.look import look

ROWS = (
    "1 2.0 'first |user u7 vip |ad:0.5 price:3 site:news",
    "# a comment",
    "-1 second|user u9 |ad price:-2e-1 cheap",
    "+1 |user u7 |label x |user vip:.5",
    "",
    "-1 0.5 0.25 |user |ad cheap",
)


def test_namespaces_are_lists_of_weighted_items(tmp_path):
    log = tmp_path / "log.vw"
    log.write_text("\n".join(ROWS * 20))
    assert kind_of(log) == "vw"
    seen = look([log])
    frame = seen.frame
    assert frame["label"].to_list()[:4] == ["1", "-1", "1", "-1"]
    assert frame["weight"].to_list()[:4] == ["2.0", "1", "1", "0.5"]
    assert frame["tag"].to_list()[:4] == ["first", "second", None, None]
    assert frame["user"].to_list()[:4] == ["u7 vip", "u9", "u7 vip:.5", None]
    assert frame["ad"].to_list()[:4] == [
        "price:1.5 site=news:0.5",
        "price:-2e-1 cheap",
        None,
        "cheap",
    ]
    assert frame["label_"].to_list()[:4] == [None, None, "x", None]
    assert {name: hint.kind for name, hint in seen.hints.items()} == {
        "weight": "left out",
        "base": "left out",
        "tag": "left out",
        "user": "text",
        "ad": "text",
        "label_": "text",
    }


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1 2 3 4 |a b", "has '1 2 3 4 ' where"),
        ("1 a b", "has '1 a b' where"),
        ("1 |a b:", "has 'b:' where Vowpal Wabbit has NAME:VALUE"),
        ("1 |a :2", "has ':2' where"),
        ("1 |a b:1:2", "has 'b:1:2' where"),
        ("1 |a:x b", "has 'x' as the scale of a namespace"),
    ],
)
def test_what_is_no_row_is_told(line, problem, tmp_path):
    with pytest.raises(NoRecordError, match=problem):
        parse_vw(line)
    log = tmp_path / "log.vw"
    log.write_text("\n".join([*ROWS * 50, line, ""]))
    with pytest.raises(DataError, match=f"row 201 {problem}"):
        neocpu.fit(log, out=tmp_path / "out")


@pytest.mark.parametrize(
    "text",
    [
        "1|24|M|technician|85711\n2|53|F|other|94043\n",
        "1|5.0|hello world\n2|4.0|bad film\n",
        " id | name | age\n----+------+----\n 1 | new york | 3\n 2 | foo | 4\n",
        "| a | b |\n| 1 | 2 |\n",
        "1 |new york |3\n4 |boston |6\n",
        "1\t2|3\t4|5\n",
        "1 Action|Comedy 5\n2 War|Drama 4\n",
        "id |a b\n1 |c d\n",
    ],
)
def test_tables_with_bars_are_tables(text, tmp_path):
    (tmp_path / "log").write_text(text * 10)
    assert kind_of(tmp_path / "log") == "text"


@pytest.mark.parametrize(
    "text",
    [
        "1:1.0 2:0.0 3:2.0 | a b c\n1:1.0 2:0.0 | b c d\n",
        "shared |User user=Tom time\n|Action article=politics \n0:-1:0.14 |Action article=food \n",
        "ccb shared |User b\nccb action |Action d\nccb slot 0:0:0.2 |Slot h\n",
    ],
)
def test_costs_of_actions_are_refused(text, tmp_path):
    (tmp_path / "log").write_text(text * 10)
    with pytest.raises(DataError, match="its labels are costs of actions, which no model takes"):
        kind_of(tmp_path / "log")


def test_weights_count_and_rows_without_labels_or_namespaces_are_scored(tmp_path):
    rng = np.random.default_rng(1)
    lines = []
    for row in range(120):
        site, price, weight = rng.integers(4), rng.normal(), 1 + row % 3
        label = 1 if price + site - 1.5 > rng.normal() else -1
        lines.append(f"{label} {weight} |site s{site} |ad price:{price:.3f}")
    log = tmp_path / "log.vw"
    log.write_text("\n".join(lines))
    keys = {"overrides": ["data.split=[]"], "tolerance": 1e-12}
    weighted = neocpu.fit(log, out=tmp_path / "weighted", weight="weight", **keys)
    log = tmp_path / "repeated.vw"
    repeated = [line for line in lines for _ in range(int(line.split()[1]))]
    log.write_text("\n".join(" ".join([line.split()[0], *line.split()[2:]]) for line in repeated))
    again = neocpu.fit(log, out=tmp_path / "repeated", **keys)
    assert np.sort(weighted.fitted.weights) == pytest.approx(
        np.sort(again.fitted.weights), abs=1e-9
    )
    (tmp_path / "new.vw").write_text("\n".join(line.split(" ", 2)[2] for line in lines[:50]))
    scores = weighted.predict(tmp_path / "new.vw")
    assert scores.tobytes() == weighted.predict(tmp_path / "log.vw")[:50].tobytes()
    (tmp_path / "none.vw").write_text("|ad price:1\n|ad price:2 x:1\n")
    assert np.isfinite(weighted.predict(tmp_path / "none.vw")).all()
