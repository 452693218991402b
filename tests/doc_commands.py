"""Which commands does a page of the documentation show, and do they still run?

A page takes part with the comment `<!-- runnable -->` anywhere in it. Its ```console blocks are run
in their order, in one folder: lines that begin with `$ ` are commands (and what follows a `\\` at
their end), all others are output, which is not compared. A block without `$ ` is commands only. A
block after the comment `<!-- not run -->` is left out.

    python tests/doc_commands.py docs/start.md      runs a page's commands, and shows them
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = "<!-- runnable -->"
BLOCK = re.compile(r"(<!-- not run -->\s*)?^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What commands of the pages name, beside files that they make.
SHOWN_FOLDERS = ("data", "examples", "docs")


def runnable_pages() -> list[Path]:
    """Pages with the mark."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [page for page in pages if MARK in page.read_text()]


def commands(text: str) -> list[str]:
    """The commands of a page, in their order, each maybe of several lines."""
    found = list[str]()
    for skipped, block in BLOCK.findall(text):
        if skipped:
            continue
        prompts = "$ " in {line[:2] for line in block.splitlines()}
        continued = False
        for line in block.splitlines():
            if continued:
                found[-1] += "\n" + line
            elif line.strip() and (not prompts or line.startswith("$ ")):
                found.append(line.removeprefix("$ "))
            else:
                continue
            continued = line.endswith("\\")
    return found


def script(text: str) -> str:
    """A shell script that shows and runs the commands of a page, up to the first that fails."""
    return "\n".join(["set -euo pipefail", "set -x", *commands(text), ""])


def environment(folder: Path) -> dict[str, str]:
    """Variables under which `neocpu` and `python` are those that run this."""
    programs = folder / ".programs"
    programs.mkdir()
    for name, arguments in (("python", ""), ("neocpu", "-m neocpu ")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        program.chmod(0o755)
    path = [str(programs), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    modules = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join(filter(None, modules)),
        "MPLBACKEND": "Agg",
    }


def run(page: Path, folder: Path, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Run the commands of a page in an empty folder; output and errors are in `stdout`."""
    for name in SHOWN_FOLDERS:
        (folder / name).symlink_to(ROOT / name, target_is_directory=True)
    return subprocess.run(
        ["bash", "-c", script(page.read_text())],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as temporary:
            outcome = run(Path(name).resolve(), Path(temporary))
        print(outcome.stdout)
        if outcome.returncode:
            sys.exit(f"{name}: a command ended with status {outcome.returncode}")
