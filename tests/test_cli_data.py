"""Do `neocpu data convert` and `show` do what they say, and speak plainly when they cannot?"""

import json
import os
import sys

import click
import pytest
from sealed_files import edit

from neocpu.cli import cli, run
from neocpu.core.errors import ConfigError, DataError
from neocpu.ingest.dataset.convert import convert
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.parallel.transport.comm import SingleComm
from neocpu.train.before.datasets import open_splits
from neocpu.train.config.config import loads
from tests.jobs import ran

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
    done = ran(command, timeout=60)
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
    done = ran([sys.executable, "-c", code], timeout=60)
    assert done.returncode == 0 and "Usage: neocpu data" in done.stdout, done.stderr


# ---- files that exist, and files that are read ----


@pytest.mark.parametrize("name", ["same", "spelling", "symlink", "hardlink"])
def test_a_target_is_never_a_source(log, tmp_path, monkeypatch, name):
    before = log.read_bytes()
    target = tmp_path / "alias.tsv"
    if name == "same":
        target = log
    elif name == "spelling":
        (tmp_path / "folder").mkdir()
        target = tmp_path / "folder" / ".." / "log.tsv"
    elif name == "symlink":
        target.symlink_to(log)
    else:
        target.hardlink_to(log)
    for force in ([], ["--force"]):
        with pytest.raises(DataError, match="is read by the same command"):
            run(["data", "convert", "criteo", str(log), str(target), *force])
    with pytest.raises(DataError, match="is read by the same command"):
        convert([log], target, "criteo")
    assert log.read_bytes() == before


def test_no_target_is_a_schema_a_vocabulary_or_the_report_of_a_source(log, tmp_path):
    schema = tmp_path / "s.toml"
    schema.write_text('[[category]]\ncolumns = ["a"]\n')
    table = tmp_path / "t.csv"
    table.write_text("a\n1\n")
    with pytest.raises(DataError, match="is read by the same command"):
        run(["data", "convert", "table", str(schema), str(table), str(schema), "--force"])
    words = tmp_path / "words.h5"
    run(["data", "convert", "criteo", str(log), str(words), "--min-count", "1"])
    line = ["data", "convert", "criteo", str(log), str(words), "--vocabulary", str(words)]
    with pytest.raises(DataError, match="is read by the same command"):
        run([*line, "--force"])
    report = tmp_path / "x.h5.errors.txt"
    log.rename(report)
    with pytest.raises(DataError, match=r"errors\.txt: is read by the same command"):
        run(["data", "convert", "criteo", str(report), str(tmp_path / "x.h5")])
    assert report.exists() and Dataset(words).rows == 3


WRITERS = {
    "models": ["tiny", "--out", "{target}"],
    "init": ["{source}", "--out", "{target}"],
    "plan": ["{source}", "--out", "{target}"],
    "towers": ["{source}", "--towers", "2", "--out", "{target}"],
    "data convert criteo": ["{source}", "{target}"],
    "data convert avazu": ["{source}", "{target}"],
    "data convert table": ["{source}", "{source}", "{target}"],
    "data generate": ["criteo", "{target}", "--rows", "3"],
    "data order": ["{source}", "{target}"],
    "data negatives": ["{source}", "--user", "u", "--item", "i", "--out", "{target}"],
    "predict": ["{source}", "{source}", "--out", "{target}"],
    "checkpoint merge": ["{source}", "{target}"],
    "checkpoint arrays": ["{source}", "{target}"],
    "checkpoint import": ["{source}", "{source}", "{target}"],
    "export": ["{source}", "{target}"],
    "oracle export": ["{target}"],
    "oracle check": ["{source}", "{source}", "--json", "{target}"],
    "calibrate": ["--out", "{target}"],
    "report": ["{source}", "--out", "{target}"],
    "simulate": ["{source}", "--trace", "{target}"],
    "train": ["{source}", "--trace", "{target}"],
}


@pytest.mark.parametrize("command", WRITERS)
def test_every_command_replaces_a_file_only_by_force(tmp_path, command):
    source = tmp_path / "source"
    target = tmp_path / "target"
    source.write_text("source")
    target.write_text("precious")
    words = [word.format(source=source, target=target) for word in WRITERS[command]]
    with pytest.raises(ConfigError, match="target exists; --force replaces it"):
        run([*command.split(), *words])
    if "{source}" in WRITERS[command]:
        words = [word.format(source=source, target=source) for word in WRITERS[command]]
        with pytest.raises(DataError, match="is read by the same command"):
            run([*command.split(), *words, "--force"])
    assert target.read_text() == "precious" and source.read_text() == "source"


def commands(group, name=""):
    """(name, command) of all commands."""
    context = click.Context(group)
    for child in group.list_commands(context):
        command = group.get_command(context, child)
        path = f"{name} {child}".strip()
        if isinstance(command, click.Group):
            yield from commands(command, path)
        elif not command.hidden:
            yield path, command


def test_force_is_where_files_are_written_and_nowhere_else():
    with_force = {
        name
        for name, command in commands(cli)
        if any(parameter.name == "force" for parameter in command.params)
    }
    assert with_force == set(WRITERS)
    writes = {"dst", "target", "out", "as_json", "as_html", "trace"}
    named = {
        name
        for name, command in commands(cli)
        for parameter in command.params
        if parameter.name in writes and not getattr(parameter, "is_flag", False)
    }
    # `oracle export` names its file "suite"
    assert named == set(WRITERS) - {"oracle export"}


# ---- markup in names ----


def test_names_with_markup_are_shown_as_they_are(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "d[" / "a]"
    folder.mkdir(parents=True)
    out = folder / "[bold]b.h5"
    schema = tmp_path / "s.toml"
    schema.write_text('[[dense]]\ncolumns = ["x"]\n[[category]]\ncolumns = ["y[red]", "[bold]z"]\n')
    table = tmp_path / "[red]t.csv"
    table.write_text("x,y[red],[bold]z\n1,2,3\n")
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    run(["data", "convert", "table", str(schema), str(table), str(out)])
    run(["data", "generate", "criteo", str(folder / "[link]g.h5"), "--rows", "3"])
    capsys.readouterr()
    monkeypatch.undo()
    monkeypatch.setenv("COLUMNS", "200")
    edit(out, lambda file: file["dense"].attrs.__setitem__("columns", '["x[/a]"]'))
    run(["data", "show", str(out)])
    shown = capsys.readouterr().out
    for name in ("d[/a]/[bold]b.h5", "x[/a]", "y[red]", "[bold]z"):
        assert name in shown


def test_names_that_are_not_text_are_shown(tmp_path):
    source = os.fsdecode(os.fsencode(str(tmp_path)) + b"/\xff.tsv")
    with open(source, "w") as file:
        file.write(ROW + "\n")
    target = str(tmp_path / "a.h5")
    lines = ["data", "convert", "criteo", source, target]
    for words in (lines, ["data", "show", target], ["data", "show", source]):
        done = ran([sys.executable, "-m", "neocpu", *words])
        assert "Traceback" not in done.stderr, done.stderr
        # no name in what pytest shows: its workers' reports are UTF-8
        assert (done.returncode == 0) == (words[-1] != source), ascii(done.stderr)


def test_names_that_are_not_text_are_refused_where_texts_hold_them():
    with pytest.raises(ConfigError, match=r"'runs/.udcff' is not UTF-8 text"):
        run(["train", "tiny", "--out", "runs/\udcff"])
    # its files are polars' to write
    for words in (["a.csv", "--out", "\udcff.csv"], ["a.csv", "--label", "\udcff"]):
        with pytest.raises(ConfigError, match="is not UTF-8 text"):
            run(["data", "negatives", "--user", "u", "--item", "i", *words])


@pytest.mark.parametrize("command", ["convert", "generate"])
def test_a_command_that_is_stopped_leaves_nothing_and_says_so(log, tmp_path, command):
    """The signal comes in the middle: when progress is shown first."""
    place = tmp_path / "place"
    place.mkdir()
    arguments = {
        "convert": ["convert", "criteo", str(log), str(place / "log.h5")],
        "generate": ["generate", "criteo", str(place / "log.h5"), "--rows", "9000"],
    }[command]
    patch = (
        "import os, signal, sys\n"
        "from rich.progress import Progress\n"
        "Progress.update = lambda *a, **k: os.kill(os.getpid(), signal.SIGTERM)\n"
        "from neocpu.cli import main\n"
        "sys.exit(main())\n"
    )
    done = ran([sys.executable, "-c", patch, "data", *arguments])
    assert (done.returncode, list(place.iterdir())) == (128 + 15, [])
    assert done.stderr == "neocpu: stopped by signal 15; what was not finished is removed\n"


def test_extreme_numbers_are_told_when_they_are_converted_and_trained_on(tmp_path, capsys):
    log = tmp_path / "log.csv"
    rows = [f"{i % 2},{i},{i % 5},a{i % 3}" for i in range(40)]
    rows[17] = "1,-3e38,2,a1"
    rows[18] = "1,0,999999936,a1"  # the last fp32 number below 1e9
    log.write_text("\n".join(["click,price,size,site", *rows]))
    schema = """
        label = { column = "click" }
        dense = [
            { columns = ["price"], kind = "float", transform = "none"CLIP },
            { columns = ["size"], kind = "float", transform = "none" },
        ]
        category = [{ columns = ["site"] }]
    """
    told = "column 'price' has numbers up to 3e+38 in size"
    for clip, extreme in (("", True), (", clip = [0, 100]", False)):
        form = tmp_path / "schema.toml"
        form.write_text(schema.replace("CLIP", clip))
        out = tmp_path / f"{extreme}.h5"
        run(["data", "convert", "table", str(form), str(log), str(out)])
        shown = capsys.readouterr().out
        assert (told in shown) == extreme and "'size'" not in shown
        dataset = Dataset([out])
        assert list(dataset.extreme[0]) == ["price"] * extreme
        told_again = []
        config = loads(f'data.train = "{out}"\n[tables]\nsite.rows = 9', "x.toml")
        open_splits(config, SingleComm(), tmp_path, told_again.append)
        assert any(told in line for line in told_again) == extreme
    log.write_text(log.read_text().replace("999999936", "1000000000"))
    run(["data", "convert", "table", str(form), str(log), str(out), "--force"])
    assert "column 'size' has numbers up to 1e+09 in size" in capsys.readouterr().out
