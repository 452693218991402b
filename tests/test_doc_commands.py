"""Do the commands on pages of the documentation that are marked as runnable still run?"""

import re
from pathlib import Path

import pytest

from neocpu.cli import SECTIONS
from neocpu.train.config.config import load
from tests.doc_commands import commands, run, runnable_pages
from tests.doc_lines import FENCE, ROOT, faults, page_faults, pages

PAGE = """
<!-- runnable -->
```console
$ echo one \\
    two
one two
$ neocpu --version
```
<!-- not run -->
```console
$ false
```
```console
test -d data
```
"""


def test_commands_are_taken_from_console_blocks() -> None:
    assert commands(PAGE) == ["echo one \\\n    two", "neocpu --version", "test -d data"]


def test_commands_run_in_a_folder_of_their_own(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    folder = tmp_path / "run"
    folder.mkdir()
    outcome = run(page, folder)
    assert outcome.returncode == 0, outcome.stdout
    assert "one two" in outcome.stdout
    page.write_text(PAGE.replace("test -d data", "test -d nowhere"))
    folder = tmp_path / "again"
    folder.mkdir()
    assert run(page, folder).returncode == 1


@pytest.mark.parametrize("page", runnable_pages(), ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    outcome = run(page, tmp_path)
    assert outcome.returncode == 0, outcome.stdout


STALE = """
```sh
neocpu train my.toml --rank 4          # the option is --ranks
mpiexec -n 4 neocpu train my.toml --set training.batch=5 --resume
$ neocpu oracle info
neocpu predict runs/a new.csv --out s.csv && echo done
neocpu checkpoint show|digits FILE...
```
Between backticks: `neocpu init DATA… [--out DIR]`, `training.patience = 3`, `training.patients`,
`data.trains = "x"`,
`neocpu
train tiny --kernels fast`, `neocpu models a b`.
```toml
[optimizer.sparse]
learning_rate = 0.1
rate = 0.1
```
"""


def test_lines_that_neocpu_does_not_understand_are_found() -> None:
    faults_of_each = (
        "No such option",
        "no key training.batch",
        "no command info",
        "no command digits",
        "--kernels has no fast",
        "more arguments than it takes: b",
        "no key optimizer.sparse.rate",
        "no key training.patients",
        "no key data.trains",
    )
    found = faults(STALE)
    assert len(found) == len(faults_of_each), found
    for fault, text in zip(found, faults_of_each):
        assert text in fault


def test_neocpu_understands_every_line_that_the_pages_show() -> None:
    assert len(pages()) > 30
    found = {str(page.relative_to(ROOT)): page_faults(page) for page in pages()}
    assert {page: lines for page, lines in found.items() if lines} == {}


def test_the_keys_that_turn_on_a_published_system_go_together() -> None:
    text = (ROOT / "docs" / "systems.md").read_text()
    rows = [re.findall(r"`([a-z_.]+) = ([^`]+)`", line) for line in text.splitlines()]
    settings = [[f"{key}={value}" for key, value in row] for row in rows if row]
    assert len(settings) > 20
    for keys in settings:
        load("tiny", keys)


def test_the_page_of_commands_has_all_of_them_in_the_groups_of_the_help() -> None:
    sections = (ROOT / "docs" / "commands.md").read_text().split("\n## ")[1:-1]
    shown = dict[str, list[str]]()
    for section in sections:
        lines = FENCE.findall(section)[0][1].splitlines()
        names = [line.split()[1] for line in lines]
        shown[section.splitlines()[0]] = list(dict.fromkeys(names))
    assert shown == {group: list(commands) for group, commands in SECTIONS.items()}
