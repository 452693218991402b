"""Does each recipe of docs/design.md §3 work as a stranger would follow it?

A copy of the package gets a toy of each kind (`toys.py`): the lines that the recipe names, in the
files that it names, and nothing else. Processes of their own import the copy, train with it, and
run the tests of the optimizer. The format has a copy to itself: in it all lookups and updates are
compiled anew, as they know all formats.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from toys import COMMAND, FORMAT, KIND, OPTIMIZER, POLICY, SCHEME, TOYS, Lines, Toy

from tests.jobs import ran

ROOT = Path(__file__).resolve().parent.parent


# Tests that know every optimizer, and those of them that a new one meets.
OPTIMIZER_TESTS = ("rules", "rule_formulas", "optimizers", "config", "oracle_cover", "oracle_cases")
MET = f"{OPTIMIZER.name} or every or docs or twins_lie_within_the_bounds"


def copied(folder: Path) -> Path:
    """A folder with a copy of the package, its tests and its pages."""
    for name in ("neocpu", "tests", "docs"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "generated")
        )
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def python(package: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python in a process that imports the package from this folder."""
    return ran(
        [sys.executable, *arguments],
        cwd=package,
        env=os.environ | {"PYTHONPATH": str(package)} | variables,
        timeout=900,
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with all toys but the format."""
    folder = copied(tmp_path_factory.mktemp("toys"))
    for toy in TOYS:
        if toy is not FORMAT:
            toy.write(folder)
    return folder


def trained(package: Path, log: Path, folder: Path, toy: Toy) -> Any:
    """What `toy_runs.py` says of a toy."""
    script = str(ROOT / "tests" / "toy_runs.py")
    done = python(package, script, str(log), str(folder), toy.recipe)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def trains(package: Path, log: Path, tmp_path: Path) -> Callable[[Toy], Any]:
    """What `toy_runs.py` says of a toy of the package."""
    return partial(trained, package, log, tmp_path)


@pytest.mark.parametrize("toy", TOYS, ids=lambda toy: toy.recipe)
def test_the_recipe_names_the_files_that_are_written(toy: Toy) -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    rows = [
        line.split("|")[2] for line in text.splitlines() if line.startswith(f"| {toy.recipe} |")
    ]
    assert len(rows) == 1, f"docs/design.md §3 has {len(rows)} recipes for {toy.recipe}"
    files = r"`((?:neocpu|docs|tests)/[\w/]+\.(?:py|md))`"
    named = set(re.findall(files, rows[0].replace("<name>", toy.name)))
    assert named == toy.files


def test_a_format_is_trained_saved_resumed_and_asked_of_the_oracle(
    tmp_path: Path, log: Path
) -> None:
    package = copied(tmp_path)
    FORMAT.write(package)
    run = trained(package, log, tmp_path, FORMAT)
    assert len(set(run["digests"])) == 1
    assert run["stored"] == ["|u1", FORMAT.name] and run["bytes of a number"] == 1
    assert run["all numbers are of the format"] and run["numbers"] > 20
    assert run["oracle"] == {
        "kernels are twins": True,
        "right": True,
        "wrong": False,
        "rounded": True,
    }


def test_an_optimizer_trains(trains: Callable[[Toy], Any]) -> None:
    sgd, toy, spread = trains(OPTIMIZER)
    assert toy == spread != sgd


def test_an_optimizer_leaves_its_tests_green(package: Path) -> None:
    table = python(package, "docs/_ext/optimizer_table.py")
    assert table.returncode == 0, table.stderr
    tests = [f"tests/test_{name}.py" for name in OPTIMIZER_TESTS]
    # what is recorded of all cases has those of the optimizer too
    words = ["-m", "pytest", "-q", "-n", "0", *tests, "-k", MET]
    done = python(package, *words, NEOCPU_RECORD="1")
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 10


def test_a_scheme_changes_no_bit(trains: Callable[[Toy], Any]) -> None:
    plain, scheme = trains(SCHEME)
    assert plain == scheme


def test_a_policy_decides_which_rows_stay_and_changes_no_bit(trains: Callable[[Toy], Any]) -> None:
    digests, misses = zip(*trains(POLICY))
    assert len(set(digests)) == 1
    assert misses[0] != misses[1]


def test_a_kind_trains_and_is_looked_at(trains: Callable[[Toy], Any]) -> None:
    run = trains(KIND)
    assert len(set(run["digests"])) == 1
    assert run["physical tables"] == {"one.shared": 25, "many.shared": 10}
    assert run["neighbours share"] and run["rows that differ"] == 25


def test_a_command_is_called_and_listed(package: Path) -> None:
    done = python(package, "-m", "neocpu", COMMAND.name, "world")
    assert (done.returncode, done.stdout) == (0, "hello world\n"), done.stderr
    assert "Say hello to NAME." in python(package, "-m", "neocpu", "--help").stdout


LACKING = {
    "no meaning": ('"|u1", 8, trains=True', "neither a SmallFloat nor a header"),
    "no width": ('"|u1", 6, SmallFloat(6, 2, 3), trains=True', "8 or 16 bits"),
    "a wire": ('"|u1", 8, SmallFloat(8, 3, 15, limit=0.9), trains=True', "travels"),
    "no codec": ('"|u1", 8, header=_SCALE16, trains=True', "core/codecs.py"),
    "not to be trained in": ('"|u1", 8, SmallFloat(8, 4, 3)', "choose"),
}
REFUSED = """
import json, sys
from neocpu.core.errors import ConfigError
from neocpu.train.config import config

messages = []
for name in json.loads(sys.argv[1]):
    text = '[model]\\nbottom = [4, 4]\\ntop = [1]\\nembedding_dim = 4\\n[data]\\ntrain = "x"\\n'
    try:
        config.loads(text + f'[tables]\\none.rows = 5\\none.format = "{name}"\\n')
        messages.append("")
    except ConfigError as error:
        messages.append(str(error))
print(json.dumps(messages))
"""


def test_a_format_that_lacks_a_part_is_refused_with_the_config(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    names = [name.replace(" ", "_") for name in LACKING]
    lines = [
        f'    RowFormat("{name}", {fields}),' for name, (fields, _) in zip(names, LACKING.values())
    ]
    records = Lines(
        "neocpu/core/formats.py", "\n".join(lines) + "\n", before='    RowFormat("int8"'
    )
    records.write(folder)
    done = python(folder, "-c", REFUSED, json.dumps(names))
    assert done.returncode == 0, done.stderr
    for name, message, (_, why) in zip(names, json.loads(done.stdout), LACKING.values()):
        assert name in message and why in message, message
