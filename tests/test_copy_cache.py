"""Do converted copies stay within their limit, and does a run keep those that it uses?"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from neocpu.cli import run
from neocpu.core.errors import ConfigError
from neocpu.core.targets import part_of
from neocpu.ingest import copy_cache
from neocpu.ingest.dataset.convert_options import ConvertOptions
from neocpu.ingest.dataset.copies import CopyFolders, ensure_dataset
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.before import conversions
from neocpu.train.before.conversions import copy_folders
from neocpu.train.config import config as configs

LINE = "\t".join(["1", *["0"] * 13, *["a"] * 26]) + "\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(copy_cache.FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(copy_cache, "_held", {})
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("idle", "in_use", "may_go"), [(599.9, False, False), (600.0, False, True), (1e6, True, False)]
)
def test_a_copy_may_go_ten_minutes_after_its_last_use(idle, in_use, may_go):
    assert copy_cache.CachedCopy(Path("a.converted.h5"), 1, idle, in_use).may_go == may_go


def stored(folder: Path, name: str, size: int, idle: float) -> Path:
    """A file in the cache that was last used so many seconds ago."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.converted.h5"
    path.write_bytes(bytes(size))
    os.utime(path, (time.time() - idle, 0))
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name.split(".")[0] for path in folder.glob(copy_cache.COPIES))


def test_the_least_recently_used_copies_make_room(folder, monkeypatch):
    monkeypatch.setenv(copy_cache.SIZE, str(1000 / copy_cache.GIB))
    for name, idle in (("old", 9e5), ("new", 1e4), ("older", 1e6), ("now", 0.0)):
        stored(folder, name, 300 if name != "now" else 50, idle)
    assert copy_cache.has_room(50) and names(folder) == ["new", "now", "old", "older"]
    assert copy_cache.has_room(350) and names(folder) == ["new", "now", "old"]
    # used just now: a run may be about to open it
    assert not copy_cache.has_room(1000) and names(folder) == ["new", "now", "old"]
    assert copy_cache.has_room(950) and names(folder) == ["now"]
    monkeypatch.setenv(copy_cache.SIZE, "much")
    with pytest.raises(ConfigError, match="NEOCPU_DATA_CACHE_GIB = 'much' is no size"):
        copy_cache.limit()


def test_a_copy_that_a_process_uses_stays(folder):
    path = stored(folder, "used", 10, 0.0)
    code = (
        "import sys; from pathlib import Path; from neocpu.ingest import copy_cache;"
        "print(copy_cache.use(Path(sys.argv[1])), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "True\n"
        stamp = path.stat().st_mtime_ns
        os.utime(path, ns=(0, stamp))
        gone, left = copy_cache.clear()
        assert (gone, [copy.path for copy in left], path.exists()) == ([], [path], True)
        process.stdin.close()
    gone, left = copy_cache.clear()
    assert ([copy.path for copy in gone], left, path.exists()) == ([path], [], False)


def test_equal_names_in_other_folders_are_other_copies(folder, tmp_path):
    logs = []
    for name in ("a", "b"):
        log = tmp_path / name / "log.tsv"
        log.parent.mkdir()
        log.write_text(LINE.replace("\ta", f"\t{name}"))
        os.utime(log, (1, 1))
        logs.append(log)
    first, second = (ensure_dataset([log], "criteo")[0] for log in logs)
    assert first != second and first.read_bytes() != second.read_bytes()
    assert ensure_dataset(logs, "criteo") == [first, second]
    assert first.parent == folder and folder.stat().st_mode & 0o077 == 0


def test_a_folder_is_one_copy_that_changes_with_its_files(tmp_path):
    log = tmp_path / "log"
    log.mkdir()
    for part in range(3):
        (log / f"part-{part}.tsv").write_text(LINE * 2)
    (copy,) = ensure_dataset([log], "criteo")
    assert copy.name.startswith("log.") and ensure_dataset([log], "criteo") == [copy]
    (log / "part-3.tsv").write_text(LINE)
    assert ensure_dataset([log], "criteo") != [copy]
    assert ensure_dataset([log / "part-[01].tsv"], "criteo")[0].name.startswith("part-")


def test_processes_that_want_one_copy_make_it_once(tmp_path):
    log = tmp_path / "log.tsv"
    log.write_text(LINE * 30000)
    code = (
        "import sys; from neocpu.ingest.dataset import copies, convert;"
        "made = []; real = convert.convert;"
        "convert.convert = lambda *a: (made.append(1), real(*a))[1];"
        "print(copies.ensure_dataset([sys.argv[1]], 'criteo')[0].name, len(made))"
    )
    line = [sys.executable, "-c", code, str(log)]
    processes = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [process.communicate()[0].split() for process in processes]
    assert len({name for name, _ in answers}) == 1
    assert sum(int(made) for _, made in answers) == 1
    assert not [*copy_cache.cache_folder().glob(".*")]


def test_ranks_that_do_not_see_the_cache_read_from_the_folder_of_the_run(folder, tmp_path):
    def seen(comm):
        return copy_folders(comm, tmp_path / "out")

    assert run_threads(2, seen) == [CopyFolders(tmp_path / "out")] * 2
    real = Path.exists
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "exists", lambda path: ".seen" not in path.name and real(path))
        assert run_threads(2, seen) == [CopyFolders(tmp_path / "out", cache=False)] * 2
    assert not [*folder.glob(".seen*")]
    folder.rmdir()
    folder.touch()  # no folder, so nobody writes into it
    assert run_threads(2, seen) == [CopyFolders(tmp_path / "out")] * 2


def test_the_command_shows_and_clears(folder, capsys):
    stored(folder, "log.tsv.abc", 3 << 20, 7200.0)
    run(["data", "cache"])
    shown = capsys.readouterr().out
    assert f"{folder}: 1 copies" in shown and "used 2.0 h ago  log.tsv.abc.converted.h5" in shown
    killed = part_of(folder / "other.converted.h5")
    killed = killed.with_name(f"{killed.name.rpartition('-')[0]}-999999999")
    killed.mkdir()
    run(["data", "cache", "--clear"])
    assert "1 copies removed" in capsys.readouterr().out and not [*folder.iterdir()]


def test_a_conversion_is_told_by_tenths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def converted(
        paths: tuple[str, ...],
        kind: str,
        options: ConvertOptions,
        folders: CopyFolders,
        progress: Callable[[int, int, int], None],
    ) -> list[Path]:
        for done in range(0, 1001, 25):
            progress(done, 1000, done)
        return [tmp_path / "a.h5", Path("b.h5")]

    monkeypatch.setattr(conversions, "ensure_dataset", converted)
    config = configs.loads("tables.a.rows = 2\ndata.train = 'a.csv'")
    lines: list[str] = []
    conversions.ensure(
        config, "train", ("a.csv", "b.h5"), CopyFolders(tmp_path), lines.append, None
    )
    told = [
        f"train: converting a.csv, b.h5, once: {share} %" for share in (0, 12, 25, 38, 50, 62, 75)
    ]
    assert lines[:7] == told
    assert lines[9:] == [f"train: a.csv is read as {tmp_path / 'a.h5'}"]
