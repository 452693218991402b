"""Does a run compile few kernels, each for one kind of argument, and only once? Compile time is a
figure that users feel.
"""

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from neocpu.core.cores import is_running
from neocpu.kernels.compile import cache as kernel_cache
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport import comm as comm_file
from neocpu.parallel.transport import threads
from neocpu.train.before import companion, kernel_markers, warmup
from neocpu.train.before.companion import Companion
from neocpu.train.config import config
from tests.jobs import ran

ROOT = Path(__file__).resolve().parent.parent
START = """
import json, sys
from neocpu.train.config import config
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.sharding.plan import place
from neocpu.train.run.trainer import warm_up
from neocpu.train.before import warmup
from neocpu.kernels.compile import cache as kernel_cache
"""
PROGRAM = (
    START
    + """
import gc
from numba.core.dispatcher import Dispatcher
from neocpu.train.before.companion import Companion

settings = config.load(sys.argv[1], ())
plan = place(settings.tables, ["table_wise"] * len(settings.tables), 1, 1)
warmup._train_miniature(settings, plan, Companion())
dispatchers = [d for d in gc.get_objects() if isinstance(d, Dispatcher)]
kernels = [d for d in dispatchers if isinstance(d._cache, kernel_cache.KernelCache)]
names = [d.py_func.__module__ + "." + d.py_func.__qualname__ for d in kernels]
print(json.dumps(dict(zip(names, [len(d.nopython_signatures) for d in kernels]))))
"""
)
WARM = (
    START
    + """
settings = config.load(sys.argv[1], ())
plan = place(settings.tables, ["table_wise"] * len(settings.tables), 1, 1)
lines = []
warm_up(settings, plan, SingleComm(), lines.append)
print(json.dumps([kernel_cache.activity.compiled, kernel_cache.activity.loaded, lines]))
"""
)
CONFIG = ROOT / "data" / "models" / "tiny.toml"


def test_a_run_compiles_few_signatures() -> None:
    command = [sys.executable, "-c", PROGRAM, "data/models/criteo-kaggle.toml"]
    done = ran(command, timeout=300, check=True)
    used = {
        name: count for name, count in json.loads(done.stdout.splitlines()[-1]).items() if count
    }
    assert 20 < len(used) < 60, sorted(used)  # the walk found the kernels, and they are not many
    assert sum(used.values()) <= 50, sorted(used.items(), key=lambda item: -item[1])
    assert max(used.values()) <= 2, {name: count for name, count in used.items() if count > 1}


def test_the_second_process_compiles_its_half() -> None:
    facts = {
        "interaction": ["dcnv2", "dhen"],
        "modules": ["attention"],
        "diagonal": False,
        "loss": "bce",
        "dense_optimizer": "sgd",
    }
    done = ran(
        [sys.executable, "-m", companion.MODULE, json.dumps(facts), str(os.getpid())], timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout) <= {"."}  # one for each kernel that it compiled


def test_the_second_process_ends_with_the_first(tmp_path: Path) -> None:
    program = (
        "import sys, time; from neocpu.train.before.companion import companion;"
        "from neocpu.train.config.config import load;"
        "held = companion(load(sys.argv[1]));"
        "print(held.__enter__()._process.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program, str(CONFIG)]
    environment = os.environ | {"NEOCPU_CACHE_DIR": str(tmp_path)}  # it has all to compile
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as first:
        assert first.stdout is not None
        second = int(first.stdout.readline())
        time.sleep(1.0)  # it imports NumPy, or more
        first.kill()
    end = time.monotonic() + 5.0
    while is_running(second):
        assert time.monotonic() < end, "it compiles for nobody"
        time.sleep(0.05)


def warm_up(installation: Path, cache: Path) -> tuple[int, int, list[str]]:
    """(kernels compiled, kernels loaded, lines told) by a warm-up in a new process."""
    done = ran(
        [sys.executable, "-B", "-c", WARM, str(CONFIG)],
        timeout=300,
        cwd=installation,
        env={**os.environ, "PYTHONPATH": str(installation), "NEOCPU_CACHE_DIR": str(cache)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    compiled, loaded, lines = json.loads(done.stdout.splitlines()[-1])
    return compiled, loaded, lines


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which a run of `CONFIG` finds every kernel."""
    from neocpu.kernels.compile.cache import cache_folder

    shared = cache_folder().parent.resolve()
    warm_up(ROOT, shared)
    copy = tmp_path_factory.mktemp("filled") / "cache"
    return Path(shutil.copytree(shared, copy, copy_function=os.symlink))


def test_rates_that_made_up_samples_do_not_bear_end_no_run() -> None:
    settings = config.load(CONFIG, ("optimizer.dense.learning_rate=1e30",))
    plan = place(settings.tables, ["table_wise"] * len(settings.tables), 1, 1)
    warmup._train_miniature(settings, plan, Companion())


def test_ranks_wait_as_long_as_one_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config.load(str(CONFIG), ())
    plan = place(settings.tables, ["table_wise"] * len(settings.tables), 2, 2)

    class Impatient(threads.ThreadWorld):
        def __init__(self, timeout: float | None, in_turn: bool) -> None:
            super().__init__(None if timeout is None else 0.05, in_turn)

    class SlowCompanion(Companion):
        def wait(self) -> None:
            time.sleep(0.2)

    monkeypatch.setattr(threads, "ThreadWorld", Impatient)
    warmup._train_miniature(settings, plan, SlowCompanion())


def test_a_rank_of_every_host_compiles_what_is_missing_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = config.load(str(CONFIG), ())
    plan = place(settings.tables, ["table_wise"] * len(settings.tables), 4, 4)
    walked: list[str] = []
    monkeypatch.setattr(
        warmup, "_train_miniature", lambda *_: walked.append(threading.current_thread().name)
    )
    monkeypatch.setattr(warmup, "is_warm", lambda marker: False)
    monkeypatch.setattr(warmup, "cannot_write", lambda: "")
    monkeypatch.setattr(warmup, "_mark", lambda marker: None)
    monkeypatch.setattr(companion, "available", lambda: {0})
    threads.run_threads(4, lambda comm: warmup.warm_up(settings, plan, comm))
    assert walked == ["rank 0"]
    # ranks 0 and 1 of one host, 2 and 3 of another, though all are one node and kind of CPU
    host = {f"rank {rank}": "aabb"[rank] for rank in range(4)}
    monkeypatch.setattr(comm_file, "host_key", lambda: host[threading.current_thread().name])
    threads.run_threads(4, lambda comm: warmup.warm_up(settings, plan, comm))
    assert walked == ["rank 0", "rank 0", "rank 2"]


def test_warm_is_warm_for_another_installation_too(filled: Path, tmp_path: Path) -> None:
    assert warm_up(ROOT, filled) == (0, 0, [])
    shutil.copytree(ROOT / "neocpu", tmp_path / "neocpu")
    assert warm_up(tmp_path, filled) == (0, 0, [])


def test_an_edit_without_effect_costs_a_walk_that_compiles_nothing(
    filled: Path, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "neocpu", tmp_path / "neocpu")
    for name in ("kernels/dense/loss.py", "train/step/step.py"):
        path = tmp_path / "neocpu" / name
        path.write_text("# a comment\n" + path.read_text())
    compiled, loaded, lines = warm_up(tmp_path, filled)
    assert (compiled, lines) == (0, [])
    assert loaded > 20
    assert warm_up(tmp_path, filled) == (0, 0, [])


def test_a_kernel_that_was_deleted_is_missed(filled: Path) -> None:
    loss = list(filled.rglob("dense.loss.bce-*.nbc"))
    for path in loss:
        path.unlink()
    compiled, _, lines = warm_up(ROOT, filled)
    assert compiled + any(path.exists() for path in loss) >= 1  # by one process or the other
    # the marker lists all kernels, so the one that is missing is known
    (line,) = lines
    assert line.startswith("compiling a kernel, about ")
    assert line.endswith("(once; later runs load them from the cache)")
    assert warm_up(ROOT, filled) == (0, 0, [])
    assert [path for path in loss if path.exists()]


def test_compiling_is_told_when_it_begins_and_once() -> None:
    lines: list[str] = []
    walk = warmup.Kernels(3, 3)  # nothing is known of them
    with warmup._compiling(lines.append, lambda count: nullcontext(), [walk]):
        assert not lines
        for _ in range(2):
            if begin := kernel_cache.activity.on_compile:
                begin()
        assert not gc.isenabled()
    (line,) = lines
    assert line.startswith("compiling about 3 kernels, about ") and gc.isenabled()


def test_the_time_to_compile_follows_from_what_kernels_took_and_from_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEOCPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_markers, "available", lambda: {0, 1})
    monkeypatch.setattr(kernel_markers, "core_quota", lambda: float("inf"))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert kernel_markers.expected_seconds(40) == 40 * kernel_markers.USUAL / 2
    kernel_markers.remember(kernel_markers.FEWEST - 1, 500.0)
    assert kernel_markers.expected_seconds(40) == 40 * kernel_markers.USUAL / 2
    kernel_markers.remember(10, 30.0)
    assert kernel_markers.expected_seconds(40) == 60
    monkeypatch.setattr(os, "getloadavg", lambda: (6.0, 0.0, 0.0))
    assert kernel_markers.expected_seconds(40) == 240  # eight on two cores
    monkeypatch.setattr(kernel_markers, "available", lambda: {0})
    assert kernel_markers.expected_seconds(40) == 840
    for damaged in (b"", b"nan", b"-1", b"1e9", b"\xff"):
        kernel_cache.write(kernel_cache.cache_folder() / "pace", damaged)
        assert kernel_markers.expected_seconds(1) == 7 * kernel_markers.USUAL
