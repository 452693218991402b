"""Do the README's two set-up commands still do what it says? The first must print the digest that
it shows.
"""

import re
import sys
from pathlib import Path

from tests.jobs import ran

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks() -> list[str]:
    """The README's `sh` blocks."""
    return re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_there_are_exactly_two_set_up_commands() -> None:
    assert len(blocks()) == 2
    assert "mpiexec -n 4 neocpu train" in blocks()[0]
    assert "pytest" in blocks()[1]


def test_the_main_job_prints_the_digest_that_the_readme_shows(tmp_path: Path) -> None:
    shown = re.findall(r"^digest ([0-9a-f]{64})$", README, re.MULTILINE)
    assert len(shown) == 1
    command = next(line for line in blocks()[0].splitlines() if line.startswith("mpiexec"))
    program, *rest = command.split()
    mpiexec = Path(sys.executable).with_name(program)
    arguments = [
        str(mpiexec),
        *rest[:2],
        sys.executable,
        "-m",
        *rest[2:],
        "--out",
        str(tmp_path / "out"),
    ]
    run = ran(arguments, cwd=ROOT, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == f"digest {shown[0]}"
