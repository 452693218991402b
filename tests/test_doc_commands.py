"""Do the commands on pages of the documentation that are marked as runnable still run?"""

from pathlib import Path

import pytest

from tests.doc_commands import commands, run, runnable_pages

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
