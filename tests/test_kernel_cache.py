"""Is a compiled kernel found again by whoever may use it, and by nobody else?

Most tests run a toy package in processes of its own: kernels with a callee in another file, a
factory, an intrinsic and a parallel loop, small enough to compile in a second.
"""

import ast
import hashlib
import importlib
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba.core import types

from neocpu.kernels.compile import cache as kernel_cache
from neocpu.kernels.compile import key as kernel_key
from neocpu.kernels.compile import trust
from neocpu.kernels.compile.jit import kernel
from neocpu.train.before.kernel_markers import is_warm
from tests.jobs import ran

ROOT = Path(__file__).resolve().parent.parent
CALLEES = '''
"""Callees."""
from typing import NamedTuple
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable
from neocpu.kernels.compile.jit import inlined

FACTOR = 3.0
BIAS = np.array([0.5])


class Pair(NamedTuple):
    """Two numbers."""

    left: float
    right: float


def constant(value):
    """An intrinsic's helper, in Python."""
    return ir.Constant(ir.DoubleType(), value)


@intrinsic
def added(typing, x):
    """x + 7"""

    def generate(context, builder, signature, arguments):
        """Write the IR."""
        return builder.fadd(arguments[0], constant(7.0))

    return types.float64(types.float64), generate


@register_jitable
def scaled(x):
    """x times FACTOR"""
    return x * FACTOR + BIAS[0]


@inlined
def plus(x, y):
    return x + y


@inlined
def minus(x, y):
    return x - y


@register_jitable
def unused(x):
    return x + 1.0
'''
KERNELS = '''
"""Kernels."""
import numpy as np
from numba import prange
from toy import callees
from toy.callees import added, scaled
from neocpu.kernels.compile.jit import called_kernel, kernel, parallel_kernel


@called_kernel
def scale_all(x, out):
    """out = scaled(x)"""
    for i in range(x.size):
        out[i] = scaled(x[i])


@kernel
def scale(x, out):
    """Calls another kernel, and a function of NumPy that Numba inlines."""
    if x.min() >= 0.0:
        scale_all(x, out)


@parallel_kernel
def raise_all(x, out):
    """out = x + 7"""
    for i in prange(x.size):
        out[i] = added(x[i])


@kernel
def apart(pair):
    """left - right"""
    return pair.left - pair.right


def made(rule):
    """A kernel of a rule."""

    @kernel
    def apply(x, out):
        """out = rule(x, 1)"""
        for i in range(x.size):
            out[i] = rule(x[i], 1.0)

    return apply
'''
PROGRAM = """
import json, sys
import numpy as np
from neocpu.kernels.compile import cache as kernel_cache
from toy import callees, kernels

x = np.arange(4.0)
results = {}
symbols = []
def note(kernel):
    symbols.extend(result.fndesc.mangled_name for result in kernel.overloads.values())
def run(name, kernel):
    before = kernel_cache.activity.compiled
    out = np.empty(4)
    kernel(x, out)
    results[name] = [out.tolist(), kernel_cache.activity.compiled - before]
    note(kernel)
def pair(kernel):
    before = kernel_cache.activity.compiled
    results["apart"] = [kernel(callees.Pair(5.0, 2.0)), kernel_cache.activity.compiled - before]
names = sys.argv[1].split(",")
if "scale" in names: run("scale", kernels.scale)
if "raise_all" in names: run("raise_all", kernels.raise_all)
if "apart" in names: pair(kernels.apart)
if "plus" in names: run("plus", kernels.made(callees.plus))
if "minus" in names: run("minus", kernels.made(callees.minus))
assert len(symbols) == len(set(symbols)), symbols
# what compiling needs takes memory in each of many ranks: loading does without
assert kernel_cache.activity.compiled or "numba.np.arraymath" not in sys.modules
print(json.dumps(results))
"""
EVERYTHING = "scale,raise_all,apart,plus,minus"
RESULTS = {
    "scale": [0.5, 3.5, 6.5, 9.5],
    "raise_all": [7.0, 8.0, 9.0, 10.0],
    "apart": 3.0,
    "plus": [1.0, 2.0, 3.0, 4.0],
    "minus": [-1.0, 0.0, 1.0, 2.0],
}
Edit = tuple[str, str]


def install(folder: Path, *edits: Edit) -> Path:
    """Write the toy package below `folder`, with some texts replaced."""
    package = folder / "toy"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    for name, text in (("callees", CALLEES), ("kernels", KERNELS)):
        for old, new in edits:
            text = text.replace(old, new)
        (package / f"{name}.py").write_text(text)
    return folder


def start(folder: Path, cache: Path, names: str, **environment: str) -> "subprocess.Popen[str]":
    """Run kernels of the toy package in `folder` in a new process."""
    paths = f"{folder}{os.pathsep}{ROOT}"
    return subprocess.Popen(
        [sys.executable, "-B", "-c", PROGRAM, names],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": paths,
            "NEOCPU_CACHE_DIR": str(cache),
            "NUMBA_NUM_THREADS": "2",
            **environment,
        },
    )


def finish(process: "subprocess.Popen[str]") -> tuple[dict[str, Any], set[str], str]:
    """(results by kernel, kernels that were compiled, stderr) of a process that was started."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    answers = json.loads(out)
    results = {name: value for name, (value, _) in answers.items()}
    return results, {name for name, (_, compiled) in answers.items() if compiled}, err


def run(folder: Path, cache: Path, names: str = EVERYTHING, **environment: str) -> Any:
    """`start` and `finish`."""
    return finish(start(folder, cache, names, **environment))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with every kernel of the toy package, `plus` and `minus` compiled in two processes
    that are alike otherwise; not to be changed.
    """
    folder = tmp_path_factory.mktemp("first")
    cache = folder / "cache"
    install(folder)
    processes = [
        start(folder, cache, names) for names in ("plus", "minus", "scale,raise_all,apart")
    ]
    for process in processes:
        results, compiled, err = finish(process)
        assert results == {name: RESULTS[name] for name in results}
        assert compiled == set(results)
        assert err == ""
    return cache


@pytest.fixture
def cache(filled: Path, tmp_path: Path) -> Path:
    """A copy of the filled cache."""
    return Path(shutil.copytree(filled, tmp_path / "cache"))


def kernel_files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.nbc"))


def test_another_installation_finds_every_kernel(filled: Path, tmp_path: Path) -> None:
    """Another folder, other times of files, comments, docstrings and lines: nothing is compiled,
    and two kernels of one factory, compiled in two processes, are not mixed up.
    """
    edits = (
        ('"""Callees."""', '"""Other words."""\n# a comment\n\n\n'),
        ('"""x times FACTOR"""', "# no docstring, another line"),
        ("def plus(x, y):", 'def plus(x, y):\n    """A docstring where there was none."""'),
        ('"""Write the IR."""', ""),
        ("left: float", "left: float  # a comment"),
        ('"""out = rule(x, 1)"""', '"""Other words."""'),
        ("return x + 1.0", "return x + 2.0"),  # of a function that nobody calls
    )
    installation = install(tmp_path / "second", *edits)
    results, compiled, err = run(installation, filled, PYTHONHASHSEED="77")
    assert (results, compiled, err) == (RESULTS, set(), "")
    assert len(kernel_files(filled)) == len(RESULTS) + 1  # and `scale_all`


@pytest.mark.parametrize(
    "edits",  # by the one kernel that each is seen in
    [
        {
            "scale": (("FACTOR = 3.0", "FACTOR = 4.0"), [0.5, 4.5, 8.5, 12.5]),
            "minus": (("    return x - y", "    return y - x"), [1.0, 0.0, -1.0, -2.0]),
        },
        {
            "scale": (("np.array([0.5])", "np.array([1.5])"), [1.5, 4.5, 7.5, 10.5]),
            "raise_all": (("constant(7.0)", "constant(8.0)"), [8.0, 9.0, 10.0, 11.0]),
        },
        {
            "raise_all": (("DoubleType(), value)", "DoubleType(), -value)"), [-7.0, -6, -5, -4]),
            "apart": (
                ("left: float\n    right: float", "right: float\n    left: float"),
                -3.0,
            ),
        },
    ],
    ids=" and ".join,
)
def test_an_edited_callee_recompiles_what_uses_it_and_nothing_else(
    cache: Path, tmp_path: Path, edits: dict[str, tuple[Edit, Any]]
) -> None:
    edited = install(tmp_path / "edited", *(edit for edit, _ in edits.values()))
    results, compiled, _ = run(edited, cache)
    assert compiled == set(edits)
    assert results == RESULTS | {name: changed for name, (_, changed) in edits.items()}


def with_hash(content: bytes) -> bytes:
    """A file of the cache whose checksum is right."""
    return kernel_cache.MAGIC + hashlib.sha256(content).digest() + content


def test_a_kernel_of_the_cache_finds_what_it_calls_whoever_compiled_it(
    cache: Path, tmp_path: Path
) -> None:
    installation = install(tmp_path)
    (caller,) = cache.rglob("*kernels.scale-*")
    (called,) = cache.rglob("*kernels.scale_all-*")
    kept = caller.read_bytes()
    called.unlink()
    for compiled in ({"scale"}, set()):
        assert run(installation, cache, "scale")[:2] == ({"scale": RESULTS["scale"]}, compiled)
    assert called.exists()
    assert caller.read_bytes() == kept


@pytest.mark.parametrize("kind", ["cut", "odd"])
def test_damaged_files_are_compiled_again(cache: Path, tmp_path: Path, kind: str) -> None:
    installation = install(tmp_path)
    files = kernel_files(cache)
    if kind == "cut":
        for number, path in enumerate(files):
            data = path.read_bytes()
            middle = len(data) // 2
            bad = (
                b"",
                data[:10],
                data[:middle],
                data[:-1],
                data + b"\0",
                data[:middle] + b"\0" * (len(data) - middle),
            )
            path.write_bytes(bad[number])
    else:
        files[0].write_bytes(with_hash(b""))  # EOFError
        files[1].write_bytes(with_hash(pickle.dumps(())))  # TypeError
        files[2].chmod(0o666)
        for path in files[3:]:
            path.unlink()
        files[3].mkdir()
        os.mkfifo(files[4])
    results, compiled, err = run(installation, cache)
    assert (results, compiled) == (RESULTS, set(RESULTS))
    assert len(err.splitlines()) == 1
    assert "a kernel is compiled again, because its file cannot be used: " in err
    assert run(installation, cache) == (RESULTS, set(), "")


@pytest.mark.parametrize(
    ("mode", "user", "group", "reason"),
    [
        (stat.S_IFDIR | 0o755, 0, 0, ""),
        (stat.S_IFDIR | 0o700, 700, 700, ""),
        (stat.S_IFDIR | 0o775, 700, 0, ""),
        (stat.S_IFDIR | 0o775, 700, 700, ""),  # a group of this user alone
        (stat.S_IFDIR | 0o1777, 0, 0, ""),
        (stat.S_IFDIR | 0o755, 800, 0, "it belongs to another user (number 800)"),
        (stat.S_IFDIR | 0o1777, 800, 0, "it belongs to another user (number 800)"),
        (stat.S_IFDIR | 0o777, 700, 700, "everybody can write to it (mode 0777)"),
        (stat.S_IFDIR | 0o775, 700, 900, "group number 900 can write to it (mode 0775)"),
        (stat.S_IFREG | 0o644, 700, 900, ""),
        (stat.S_IFREG | 0o646, 700, 900, "everybody can write to it (mode 0646)"),
        (stat.S_IFREG | 0o1666, 700, 900, "everybody can write to it (mode 1666)"),
    ],
)
def test_what_others_could_have_written_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, mode: int, user: int, group: int, reason: str
) -> None:
    def account(number: int) -> Any:
        if number != 700:
            raise KeyError(number)
        return SimpleNamespace(pw_name="me", pw_gid=700, gr_name="me", gr_mem=[])

    monkeypatch.setattr(trust.os, "geteuid", lambda: 700)
    monkeypatch.setattr(trust, "pwd", SimpleNamespace(getpwuid=account))
    monkeypatch.setattr(trust, "grp", SimpleNamespace(getgrgid=account))
    assert trust._reason(os.stat_result((mode, 1, 1, 1, user, group, 0, 0, 0, 0))) == reason


@pytest.mark.parametrize("which", ["base", "environment"])
def test_a_foreign_folder_is_said_once_and_never_read(
    cache: Path, tmp_path: Path, which: str
) -> None:
    installation = install(tmp_path)
    (folder,) = cache.iterdir()
    foreign = cache if which == "base" else folder
    foreign.chmod(0o777)
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    results, compiled, err = run(installation, cache, "scale,apart")
    assert compiled == {"scale", "apart"}
    assert results == {name: RESULTS[name] for name in compiled}
    assert len(err.splitlines()) == 1
    assert f"{foreign}: everybody can write to it (mode 0777); set NEOCPU_CACHE_DIR to a" in err
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == before


def test_folders_and_files_are_made_for_one_user_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEOCPU_CACHE_DIR", str(tmp_path / "a" / "cache"))
    before = os.umask(0)
    try:
        kernel_cache.write(kernel_cache.cache_folder() / "x.nbc", with_hash(b"x"))
    finally:
        os.umask(before)
    assert kernel_cache.refusal() == ""
    assert kernel_cache.is_sound(kernel_cache.cache_folder() / "x.nbc")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"3",
        b'"x"',
        b"[3]",
        b'["gone.nbc"]',
        b'["\\u0000"]',
        b"\xff",
        b"[" * 9999,
    ],
    ids=lambda content: content[:12].decode("latin-1"),
)
def test_a_damaged_marker_is_not_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setenv("NEOCPU_CACHE_DIR", str(tmp_path))
    kernel_cache.write(kernel_cache.cache_folder() / "x.nbc", with_hash(b"x"))
    marker = kernel_cache.cache_folder() / "warm-1"
    kernel_cache.write(marker, b'["x.nbc"]')
    assert is_warm(marker)
    marker.write_bytes(content)
    assert not is_warm(marker)


def test_what_killed_processes_left_goes_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEOCPU_CACHE_DIR", str(tmp_path))
    for name in (".12-ab", ".13-cd", "probe-12", "x.nbc"):
        path = kernel_cache.cache_folder() / name
        kernel_cache.write(path, b"")
        if name != ".13-cd":
            os.utime(path, (0, 0))
    kernel_cache.remove_leftovers()
    assert {path.name for path in kernel_cache.cache_folder().iterdir()} == {".13-cd", "x.nbc"}


def test_a_marker_counts_only_with_whole_and_trusted_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEOCPU_CACHE_DIR", str(tmp_path))
    kernel_file = kernel_cache.cache_folder() / "x.nbc"
    marker = kernel_cache.cache_folder() / "warm-1"
    kernel_cache.write(kernel_file, with_hash(b"x"))
    kernel_cache.write(marker, b'["x.nbc"]')
    kernel_file.write_bytes(with_hash(b"x")[:-1])
    assert not is_warm(marker)
    kernel_file.write_bytes(with_hash(b"x"))
    assert is_warm(marker)
    tmp_path.chmod(0o777)
    assert not is_warm(marker)
    tmp_path.chmod(0o700)
    for odd in (os.mkfifo, os.mkdir):
        marker.unlink()
        odd(marker)
        assert not is_warm(marker)


def test_processes_that_compile_the_same_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    installation = install(tmp_path)
    for process in [start(installation, cache, "scale,apart") for _ in range(3)]:
        results, _, err = finish(process)
        assert results == {"scale": RESULTS["scale"], "apart": RESULTS["apart"]}
        assert err == ""
    assert len(kernel_files(cache)) == 3  # and `scale_all`
    assert not list(cache.rglob(".*"))


def test_a_folder_that_cannot_be_made_is_said_once(tmp_path: Path) -> None:
    installation = install(tmp_path)
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / "cache"
    results, compiled, err = run(installation, folder, "scale,apart")
    assert compiled == {"scale", "apart"}
    assert results == {name: RESULTS[name] for name in compiled}
    assert len(err.splitlines()) == 1
    for words in ("in memory only", str(folder), "Not a directory", "NEOCPU_CACHE_DIR"):
        assert words in err
    assert run(installation, folder, "apart", NEOCPU_CACHE_QUIET="1")[2] == ""
    assert not list(tmp_path.rglob("*.nb?"))


def read_only(folder: Path) -> str:
    """Text of a sitecustomize that lets nobody write below a folder: root may write anywhere."""
    return f"""
import os
real = os.open
def refuse(path, flags, *rest, **more):
    if flags & os.O_CREAT and str(path).startswith({str(folder)!r}):
        raise OSError(30, "Read-only file system")
    return real(path, flags, *rest, **more)
os.open = refuse
"""


def test_a_read_only_folder_is_used_as_far_as_it_goes(cache: Path, tmp_path: Path) -> None:
    installation = install(tmp_path / "toy")
    (installation / "sitecustomize.py").write_text(read_only(cache))
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    assert run(installation, cache) == (RESULTS, set(), "")
    other = install(tmp_path / "other", ("FACTOR = 3.0", "FACTOR = 4.0"))
    shutil.copy(installation / "sitecustomize.py", other)
    _, compiled, err = run(other, cache)
    assert compiled == {"scale"}
    assert len(err.splitlines()) == 1
    assert "Read-only file system" in err
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == before


def test_variables_of_numba_that_change_in_the_process_do_not_move_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @kernel
    def twice(x):
        return x * 2.0

    monkeypatch.setenv("NEOCPU_CACHE_DIR", str(tmp_path / "ours"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numbas"))
    try:
        numba.config.reload_config()  # type: ignore[attr-defined]
        assert twice(4.0) == 8.0
    finally:
        monkeypatch.undo()
        numba.config.reload_config()  # type: ignore[attr-defined]
    assert [path.name.split("-")[0] for path in tmp_path.rglob("*.nbc")] == [f"{__name__}.twice"]
    assert not (tmp_path / "numbas").exists()


# ---- what the key sees: no kernel is compiled ----


@pytest.fixture
def key_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Key of a root of the toy package with some texts replaced."""
    numbers = iter(range(1000))

    def find(root: str, *edits: Edit) -> str:
        folder = install(tmp_path / f"{next(numbers)}", *edits)
        monkeypatch.syspath_prepend(folder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
            del sys.modules[name]
        module = importlib.import_module("toy.kernels")
        space = {**vars(module), **vars(importlib.import_module("toy.callees"))}
        return kernel_key.key(eval(root, space))

    yield find
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("root", "edit"),
    [
        ("scale", ("range(x.size)", "range(1, x.size)")),
        ("scale", ("scaled(x[i])", "scaled(x[i] + 1.0)")),
        ("scale", ("x * FACTOR + BIAS[0]", "x * FACTOR - BIAS[0]")),
        ("scale", ("@register_jitable\ndef scaled", "@inlined\ndef scaled")),
        ("scale", ("def scaled(x)", "def scaled(x, y=2.0)")),
        ("scale", ("import added, scaled", "import added, unused as scaled")),
        ("raise_all", ("@parallel_kernel\ndef raise_all", "@kernel\ndef raise_all")),
        ("raise_all", ("builder.fadd", "builder.fsub")),
        ("made(plus)", ("rule(x[i], 1.0)", "rule(x[i], 1)")),
        ("made((plus, minus))", ("return x + y", "return y + x")),
        ("made({'a': minus, 'b': 2})", ("return x - y", "return y - x")),
    ],
)
def test_an_edit_changes_the_key(key_of: Callable[..., str], root: str, edit: Edit) -> None:
    assert any(edit[0] in text for text in (CALLEES, KERNELS))
    assert key_of(root) == key_of(root)
    assert key_of(root) != key_of(root, edit)


def test_cells_are_told_apart(key_of: Callable[..., str]) -> None:
    roots = ("made(plus)", "made(minus)", "made((plus, minus))", "made((minus, plus))", "made(1)")
    numbers = ("made(1.0)", "made(True)", "made(np.float32(1))", "made('1')", "made(np.ones(1))")
    assert len({key_of(root) for root in roots + numbers}) == len(roots + numbers)


class Left(NamedTuple):
    """Fields in one order."""

    a: Any
    b: Any


class Right(NamedTuple):
    """And in the other."""

    b: Any
    a: Any


def test_arguments_are_told_apart() -> None:
    def named(cls: Any) -> types.Type:
        return numba.typeof(cls(1, 2.0))

    alike = types.NamedTuple((types.int64, types.float64), Left)
    assert kernel_key.key(named(Left)) == kernel_key.key(alike)
    line = types.Array(types.float32, 1, "C")
    kinds = (
        named(Left),
        named(Right),
        line,
        types.Array(types.float32, 1, "A"),
        types.Array(types.float32, 1, "C", readonly=True),
        types.Array(types.float32, 2, "C"),
        types.UniTuple(line, 2),
        types.Tuple((line, types.int64)),
        types.float32,
        types.float64,
    )
    assert len({kernel_key.key(kind) for kind in kinds}) == len(kinds)


KEYS = """
import gc, importlib, json, pkgutil
from neocpu.core.rules import RULES
from numba.core.dispatcher import Dispatcher
import neocpu.kernels
from neocpu.kernels.compile import cache as kernel_cache, key as kernel_key
for module in pkgutil.walk_packages(neocpu.kernels.__path__, "neocpu.kernels."):
    importlib.import_module(module.name)
from neocpu.kernels.rows import update
made = update.fused(RULES["exact_rowwise_adagrad"], False)
kernels = [d for d in gc.get_objects() if isinstance(d, Dispatcher)]
kernels = [d for d in kernels if isinstance(d._cache, kernel_cache.KernelCache)]
names = [f"{d.py_func.__module__}.{d.py_func.__qualname__}" for d in kernels]
names = sorted(zip(names, map(kernel_key.key, kernels)))
sources = kernel_key._all_sources.cache_info().currsize
print(json.dumps([names, sources, neocpu.__file__]))
"""


def test_keys_of_all_kernels_are_those_of_another_installation(tmp_path: Path) -> None:
    """Nothing in them depends on the process or the folder, and nothing is unknown to the key."""
    shutil.copytree(ROOT / "neocpu", tmp_path / "neocpu")
    answers = []
    for number, folder in enumerate((ROOT, tmp_path)):
        done = ran(
            [sys.executable, "-B", "-c", KEYS],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": str(number)},
        )
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    (names, unknown, first), (copied, _, second) = answers
    assert first != second
    assert len(names) > 50
    assert names == copied
    assert unknown == 0


def test_kernels_use_nothing_that_the_key_cannot_see() -> None:
    unseen = {"overload", "overload_method", "lower_builtin", "type_callable", "jitclass"}
    for path in kernel_key.PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "id", getattr(node, "attr", ""))
            assert name not in unseen, f"{path}: {name}"


def test_plain_functions_stay_plain_where_numba_is_switched_off() -> None:
    assert kernel_cache.keep(np.sum) is np.sum
