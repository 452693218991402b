"""Do the commands run that the pages for users show, as they stand there?

The lines of a page's blocks, and some between backticks, run in their order in this process, in a
folder that has the files which the page speaks of, small ones. Launchers and `--ranks` of trainings
are left out: every command runs on one rank. That the other pages name options and keys that exist
is what `tests/test_doc_commands.py` looks at.
"""

import gzip
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from neocpu.cli import cli
from tests.doc_lines import FENCE, ROOT, SHELLS, commands, joined

DAYS = ("monday", "tuesday", "wednesday")
ROWS = 300  # of a day's log
SMALL = """
training.batch_size = 128
eval.every_steps = 0
checkpoint.every_steps = 0
data.format = "criteo"
data.train = "monday.tsv.gz"
data.test = "wednesday.tsv.gz"
model.embedding_dim = 8
model.bottom = [8]
model.top = [1]
tables."*".rows = 1000
"""
# Words of a page that stand for a file or a name.
WORDS = {
    "CONFIG": "my.toml",
    "RUN": "runs/b",
    "RUN...": "runs/a",
    "DATA...": "monday.tsv.gz",
    "COLUMN": "C9",
}
# How lines begin that are not run, and why.
NOT_RUN = {
    "init DATA": "start.md runs it on a log of its own",
    "checkpoint import": "needs a model of another library",
    "online CONFIG": "next-day.md runs it",
    "sweep": "use.md runs it",
    "together": "test_activations.py trains two models so",
    "search": "test_dnas.py runs it",
    "models NAME": "presets.md runs it",
    "export RUN model": "export.md runs it",
    "train CONFIG --hosts": "test_hosts.py runs it",
    "train tiny": "README.md and use.md run it",
    "train avazu": "a log that does not come along",
    "data generate": "a million rows",
    "data negatives": "test_negatives.py runs it",
    "data order": "test_together.py runs it, on data with a vocabulary",
    "predict RUN DATA... --top-k": "test_recommend.py runs it",
    "towers": "trains a probe",
    "compile": "the runs have compiled what they need",
    "doctor": "looks at the whole machine",
    "calibrate": "measures for minutes",
}
# Commands between backticks.
BETWEEN = {
    "start": [],
    "next-day": [
        "neocpu train my.toml --set data.train=tuesday.tsv.gz --set training.init_from=runs/monday"
    ],
    "see": ["neocpu train CONFIG --ranks 8 --dry-run"],
    "export": ["neocpu export RUN state.safetensors --names dlrm"],
    "presets": ["neocpu plan mlperf-dlrmv2 --machine zionex --ranks 16"],
    "commands": [],
}


def write_logs(folder: Path) -> None:
    """The logs and configs that the pages name."""
    with gzip.open(ROOT / "data" / "tiny-criteo-train.tsv.gz", "rt") as log:
        for name in (*(f"{day}.tsv.gz" for day in DAYS), "day_0.gz", "day_1.gz"):
            with gzip.open(folder / name, "wt") as file:
                file.writelines(islice(log, ROWS))
    (folder / "my.toml").write_text(SMALL)
    lines = [
        f"{1000 + n},2024-05-{n % 28 + 1:02} {n % 24:02}:00,{n * 7 % 90},shop {n % 5},"
        f"{n * 11 % 60},{n % 13}.5,{n % 3 / 10},{'|'.join(['new', 'red', 'big'][: n % 4])},"
        f"{int(n * 7 % 10 < 3)}"
        for n in range(2 * ROWS)
    ]
    columns = "request,time,user_id,shop,item_id,price,discount,tags,clicked"
    (folder / "clicks.csv").write_text("\n".join([columns, *lines, ""]))
    for name in ("new.csv", "other.csv"):
        (folder / name).write_text("\n".join([columns, *lines[-50:], ""]))


def invoke(words: list[str]) -> None:
    """Run a command in this process; fails with what it said."""
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, f"neocpu {' '.join(words)}: {done.output} {done.exception!r}"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Logs, configs, and a run in runs/a."""
    from neocpu.kernels.compile.threads import use_threads

    folder = tmp_path_factory.mktemp("pages")
    write_logs(folder)
    invoke(["train", str(folder / "my.toml"), "--out", str(folder / "runs" / "a")])
    yield folder
    use_threads(1 << 10)  # commands set it for their own process; this one is shared


def shown(page: str) -> list[list[str]]:
    """The commands of a page that are run, as lists of words."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    lines = [
        line
        for language, block in FENCE.findall(text)
        if language in SHELLS
        for line in joined(block)
    ]
    for line in BETWEEN[page]:
        assert f"`{line}`" in " ".join(text.split()), f"{page}.md no longer shows {line}"
    chosen = list[list[str]]()
    for line in [*lines, *BETWEEN[page]]:
        readings = list(commands(line))  # several: `show|digest`, names of commands alone
        if len(readings) == 1 and not " ".join(readings[0]).startswith(tuple(NOT_RUN)):
            chosen.append(on_one_rank([WORDS.get(word, word) for word in readings[0]]))
    return chosen


def on_one_rank(words: list[str]) -> list[str]:
    """A training without `--ranks N`, unless it only says what it would take."""
    if words[0] != "train" or "--ranks" not in words or "--dry-run" in words:
        return words
    place = words.index("--ranks")
    return words[:place] + words[place + 2 :]


@pytest.mark.parametrize("page", BETWEEN)
def test_the_commands_of_a_page_run_as_they_stand(
    page: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    if page != "commands":  # which trains it
        for run in ("b", "tiny", "monday"):
            shutil.copytree(tmp_path / "runs" / "a", tmp_path / "runs" / run)
    checkpoint = next((tmp_path / "runs" / "a" / "checkpoints").glob("*.h5"))
    chosen = shown(page)
    assert len(chosen) > 2
    for words in chosen:
        if words[0] == "models":  # which writes its own
            Path("my.toml").unlink(missing_ok=True)
        invoke([str(checkpoint) if word == "CKPT" else word for word in words])
