"""Do `neocpu data convert` and `show` do what they say, and speak plainly when they cannot?"""

import json
import subprocess
import sys

import pytest

from neocpu.cli import run
from neocpu.errors import ConfigError, DataError
from neocpu.ingest.dataset import Dataset

ROW = "\t".join(["1", *map(str, range(13)), *(f"{i:x}" for i in range(26))])


@pytest.fixture
def log(tmp_path):
    (tmp_path / "log.tsv").write_text(f"{ROW}\n0{ROW[1:]}\n{ROW}\n")
    return tmp_path / "log.tsv"


def test_convert_criteo_and_show(log, tmp_path, capsys):
    out = tmp_path / "log.h5"
    run(["data", "convert", "criteo", str(log), str(log), str(out), "--min-count", "2"])
    assert capsys.readouterr().out == f"{out}: 6 rows\n"
    run(["data", "show", str(out)])
    shown = capsys.readouterr().out
    assert (
        "6 rows, mean label 0.6667" in shown
        and "C26" in shown
        and "vocab" in shown
        and "log: criteo" in shown
    )
    run(["data", "show", str(out), "--json"])
    card = json.loads(capsys.readouterr().out)
    assert card["rows"] == 6 and card["positive_rate"] == pytest.approx(2 / 3)
    assert (
        card["features"][0] | {"distinct": 1, "top_share": 1.0, "vocabulary": 1, "bag_most": 1}
        == card["features"][0]
    )
    assert card["dense"][1]["name"] == "I2" and card["dense"][1]["mean"] == pytest.approx(
        0.6931, abs=1e-4
    )
    run(["data", "show", str(out), str(out)])
    assert "12 rows" in capsys.readouterr().out


def test_convert_avazu_and_table(tmp_path, capsys):
    names = [
        "id",
        "click",
        "hour",
        "C1",
        "banner_pos",
        "site_id",
        "site_domain",
        "site_category",
        "app_id",
        "app_domain",
    ]
    names += [
        "app_category",
        "device_id",
        "device_ip",
        "device_model",
        "device_type",
        "device_conn_type",
    ]
    names += [f"C{i}" for i in range(14, 22)]
    (tmp_path / "a.csv").write_text(
        ",".join(names) + "\n" + ",".join(["7", "1", "14102101"] + ["x"] * 21) + "\n"
    )
    run(["data", "convert", "avazu", str(tmp_path / "a.csv"), str(tmp_path / "a.h5")])
    assert Dataset(tmp_path / "a.h5").features["hour"].kind == "hour"
    schema = '[label]\ncolumn = "y"\n[[category]]\ncolumns = ["tags"]\nseparator = "|"\n'
    (tmp_path / "s.toml").write_text(schema)
    (tmp_path / "b.csv").write_text("y,tags\n1,a|b|c\n0,\n")
    run(
        [
            "data",
            "convert",
            "table",
            str(tmp_path / "s.toml"),
            str(tmp_path / "b.csv"),
            str(tmp_path / "b.h5"),
        ]
    )
    capsys.readouterr()
    run(["data", "show", str(tmp_path / "b.h5"), "--json"])
    feature = json.loads(capsys.readouterr().out)["features"][0]
    assert (feature["bag_least"], feature["bag_mean"], feature["bag_most"], feature["missing"]) == (
        0,
        1.5,
        3,
        1,
    )
    run(["data", "show", str(tmp_path / "b.h5")])
    assert "1.50 (0" in capsys.readouterr().out


def test_faulty_lines_stop_or_are_reported(log, tmp_path, capsys):
    log.write_text(f"{ROW}\n1\t2\n")
    out = tmp_path / "log.h5"
    with pytest.raises(DataError, match="line 2 has 2 columns, expected 40"):
        run(["data", "convert", "criteo", str(log), str(out)])
    assert not out.exists()
    run(["data", "convert", "criteo", str(log), str(out), "--on-error", "skip"])
    report = tmp_path / "log.h5.errors.txt"
    assert capsys.readouterr().out == f"{out}: 1 row\n1 faulty line was skipped; see {report}\n"
    assert "line 2 has 2 columns" in report.read_text()


def test_usage_errors(log, tmp_path):
    out = tmp_path / "log.h5"
    out.write_text("precious")
    with pytest.raises(ConfigError, match=r"log\.h5 exists; --force replaces it"):
        run(["data", "convert", "criteo", str(log), str(out)])
    assert out.read_text() == "precious"
    run(["data", "convert", "criteo", str(log), str(out), "--force"])
    with pytest.raises(ConfigError, match="give one of them"):
        run(
            [
                "data",
                "convert",
                "criteo",
                str(log),
                str(tmp_path / "x.h5"),
                "--min-count",
                "1",
                "--vocabulary",
                str(out),
            ]
        )
    with pytest.raises(ConfigError, match="sqrt"):
        run(
            [
                "data",
                "convert",
                "criteo",
                str(log),
                str(tmp_path / "x.h5"),
                "--dense-transform",
                "sqrt",
            ]
        )
    with pytest.raises(DataError, match="not an HDF5 file"):
        run(["data", "show", str(log)])


def test_an_error_is_one_line_and_a_status(tmp_path):
    command = [sys.executable, "-m", "neocpu", "data", "show", str(tmp_path / "none.h5")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (
        done.returncode == 1
        and "none.h5: no such file" in done.stderr
        and "Traceback" not in done.stderr
    )


@pytest.mark.parametrize(
    "command", [["data"], ["data", "convert"], ["data", "convert", "table"], ["data", "show"]]
)
def test_help_imports_no_numba(command):
    call = f"import sys; from neocpu.cli import run\ntry: run({[*command, '--help']})\n"
    code = call + "finally: assert 'numba' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "Usage: neocpu data" in done.stdout, done.stderr
