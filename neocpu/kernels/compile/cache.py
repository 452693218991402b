"""Where do compiled kernels live? In one file each, named by what decides its code
(`compile/key.py`).

    NEOCPU_CACHE_DIR / environment / module.kernel-key.nbc

The default of NEOCPU_CACHE_DIR is ~/.cache/neocpu (XDG_CACHE_HOME is respected). Installations,
versions, processes and hosts may share it: a file never changes its meaning, is written under
another name and renamed, and carries a checksum. No file in it can end a run:

    cannot be written       used as far as it goes; what is missing is compiled in memory, in every
                            process again (`trouble`)
    others could write it   not used (`compile/trust.py`): all is compiled in memory (`trouble`)
    a file is damaged       removed and compiled again (`damage`)

Each is said once on stderr, by the first process.

Numba's own cache is not used. It keys on the path and time of one file, does not see callees in
other files, and picks its folder anew for each kernel.
"""

import contextlib
import hashlib
import io
import itertools
import os
import pickle
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba.core.bytecode import FunctionIdentity
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.environment import Environment, _rebuild_env, lookup_environment
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature

from neocpu.kernels.compile import key as kernel_key
from neocpu.kernels.compile.linking import offer, optimised_once
from neocpu.kernels.compile.trust import base_folder, distrust, read

QUIET = "NEOCPU_CACHE_QUIET"  # set on ranks that leave it to rank 0 to speak
MAGIC = b"neocpu kernel 1\n"
HEADER = len(MAGIC) + hashlib.sha256().digest_size
ADVICE = "set NEOCPU_CACHE_DIR to a folder that can be written, on every host"
OWN = "set NEOCPU_CACHE_DIR to a folder that only you can write (chmod go-w)"

# Numba numbers the functions that it compiles, from 1 in every process, and only the number tells
# apart the symbols (and environments) of two kernels that one factory made. Two kernels that were
# compiled by two processes must not have one number when a third loads both.
FunctionIdentity._unique_ids = itertools.count(secrets.randbits(60))


class Activity:
    """What the cache has done in this process.

    loaded, compiled : kernels (one type of arguments each) that were in the cache, or were not.
    files : names of the cache's files that this process has loaded or written.
    trouble : why kernels cannot be kept, or why the folder is not used; "" if neither.
    damage : the first file that was damaged or not trusted, and how; "" if there was none.
    on_compile : called whenever a kernel is about to be compiled.
    """

    def __init__(self) -> None:
        self.loaded = 0
        self.compiled = 0
        self.files: set[str] = set()
        self.trouble = ""
        self.damage = ""
        self.on_compile: Callable[[], None] | None = None

    def begin(self) -> None:
        """A kernel is about to be compiled; before the first one, a cache that will not keep it is
        told.
        """
        if not self.compiled and not self.trouble:
            if reason := refusal():
                self.refuse(reason)
            elif reason := cannot_write():
                self.fail(reason)
        self.compiled += 1
        if self.on_compile:
            self.on_compile()

    def fail(self, reason: str) -> None:
        """Something could not be written; said once."""
        if not self.trouble:
            self.trouble = reason
            _say(
                "every process compiles kernels again and keeps them in memory only, because the "
                f"kernel cache cannot be written: {reason}; {ADVICE}"
            )

    def refuse(self, reason: str) -> None:
        """The folder is not trusted; said once."""
        if not self.trouble:
            self.trouble = reason
            _say(
                "every process compiles kernels again and keeps them in memory only, because "
                f"others could have written the kernel cache, which is code: {reason}; {OWN}"
            )

    def drop(self, path: Path, reason: str) -> None:
        """A file is damaged and is removed, if it can be."""
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        self.skip(path, reason)

    def skip(self, path: Path, reason: str) -> None:
        """A file cannot be used; the first one is said."""
        if not self.damage:
            self.damage = f"{path}: {reason}"
            _say(f"a kernel is compiled again, because its file cannot be used: {self.damage}")


def _say(text: str) -> None:
    """One line on stderr, unless this process is to be quiet or has no stderr."""
    if QUIET not in os.environ:
        # ValueError: a closed stream; AttributeError: None, as of a process without a terminal
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print(f"neocpu: {text}", file=sys.stderr, flush=True)


activity = Activity()


def cache_folder() -> Path:
    """Folder of the kernels that this process can use: one per compiler and kind of CPU."""
    return base_folder() / kernel_key.environment()


def refusal() -> str:
    """Why nothing is loaded from the cache folder; "" where it is trusted, or not there yet."""
    folder = cache_folder()
    # whoever can write the parent can put another folder in the place of this one
    for path in (folder.parent, folder):
        if reason := distrust(path):
            return f"{path}: {reason}"
    return ""


def cannot_write() -> str:
    """Why no kernel can be kept in the cache folder; "" where it can."""
    if reason := refusal():
        return reason
    probe = cache_folder() / f"probe-{os.getpid()}"
    try:
        write(probe, b"")
        probe.unlink(missing_ok=True)
    except OSError as error:
        return f"{probe.parent}: {error.strerror or error}"
    return ""


def write(path: Path, content: bytes) -> None:
    """Write a file so that readers see all of it or nothing; OSError if that is impossible.

    Files and folders are made for this user to write, whatever the umask.
    """
    for folder in (path.parent.parent, path.parent):
        if not folder.exists():
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    # in the same folder, so that the rename is one step of one file system
    temporary = path.with_name(f".{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(content)
        if path.is_dir():
            path.rmdir()  # nothing of ours is a folder, and a file could not replace it
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def remove_leftovers() -> None:
    """Remove what processes that were killed while they wrote left in the cache folder.

    A file that is a day old: processes of other hosts may be writing, each for a moment.
    """
    folder = cache_folder()
    for pattern in (".[0-9]*-*", "probe-[0-9]*"):
        for path in folder.glob(pattern):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > 86400:
                    path.unlink()


def is_sound(path: Path) -> bool:
    """Is there a file of a kernel that is whole and trusted?"""
    try:
        data, reason = read(path)
    except (OSError, ValueError):
        return False
    return not reason and _content(data) is not None


def _content(data: bytes) -> bytes | None:
    """The pickled kernel of a file; None if the file is damaged."""
    # the checksum tells a file that was cut or overwritten, not one that was forged: that is
    # trust's
    content = data[HEADER:]
    return content if data[:HEADER] == MAGIC + hashlib.sha256(content).digest() else None


class _Unpickler(pickle.Unpickler):
    """Reads a kernel without the modules of Numba that it has functions of."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (_rebuild_env.__module__, _rebuild_env.__name__):
            return _environment
        return super().find_class(module, name)


def _environment(module: str, constants: Any, name: str) -> Any:
    """What a compiled function of a module needs of Python."""
    if not module.startswith("numba.") or lookup_environment(name) is not None:
        return _rebuild_env(module, constants, name)
    # machine code reads the constants; globals are for functions that run as Python, and no kernel
    # has such
    environment: Any = Environment({"__name__": module})
    environment.consts[:] = constants
    environment.env_name = name
    Environment._memo[name] = environment
    return environment


class KernelCache(_Cache):
    """The cache of one kernel, as Numba's dispatchers ask for it."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher
        self._enabled = True
        self._names: dict[tuple[Any, ...], str] = {}

    @property
    def cache_path(self) -> str:
        """The folder."""
        return str(cache_folder())

    def enable(self) -> None:
        """Load and save from now on."""
        self._enabled = True

    def disable(self) -> None:
        """Neither load nor save from now on."""
        self._enabled = False

    def flush(self) -> None:
        """Nothing: a file is valid as long as it exists."""

    def load_overload(self, sig: Any, target_context: Any) -> CompileResult | None:
        """The kernel compiled for these arguments, or None if it is not there or damaged."""
        # A kernel that is loaded needs the addresses of Numba's allocator. Its registries of all
        # functions, which take 15 MiB, and 10 more where there is a SciPy, are read, and loaded,
        # when something is compiled.
        rtsys.initialize(target_context)
        result = self._load(self._path(sig), target_context) if self._enabled else None
        if result is None:
            activity.begin()
        else:
            offer(self._dispatcher, sig, result)
        return result

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled kernel, if it can be kept."""
        offer(self._dispatcher, sig, data)
        # dynamic globals are addresses of this process, lifted loops are kernels beside this one
        if not self._enabled or data.library.has_dynamic_globals or data.lifted:
            return
        if reason := refusal():
            activity.refuse(reason)
            return
        path = self._path(sig)
        content = dumps(data._reduce())
        try:
            write(path, MAGIC + hashlib.sha256(content).digest() + content)
            activity.files.add(path.name)
        except OSError as error:
            activity.fail(f"{path.parent}: {error.strerror or error}")

    def _path(self, sig: Any) -> Path:
        arguments = tuple(normalize_signature(sig)[0])
        if arguments not in self._names:
            function = self._dispatcher.py_func
            module = function.__module__.removeprefix("neocpu.kernels.")
            digest = kernel_key.key(self._dispatcher, *arguments)[:32]
            self._names[arguments] = f"{module}.{function.__name__}-{digest}.nbc"
        return cache_folder() / self._names[arguments]

    def _load(self, path: Path, target_context: Any) -> CompileResult | None:
        """The kernel of a file; None if there is no such file or it cannot be used."""
        if reason := refusal():
            activity.refuse(reason)
            return None
        try:
            data, reason = read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            data, reason = b"", error.strerror or f"{error}"
        if reason:
            activity.skip(path, reason)
            return None
        content = _content(data)
        if content is None:
            activity.drop(path, f"damaged ({len(data)} bytes)")
            return None
        try:
            parts = _Unpickler(io.BytesIO(content)).load()
            result = CompileResult._rebuild(target_context, *parts)
        # Unpickling a file of another build can raise anything, and compiling again is always
        # right.
        except Exception as error:
            activity.drop(path, f"cannot be loaded ({type(error).__name__}: {error})")
            return None
        activity.loaded += 1
        activity.files.add(path.name)
        return result


def keep(function: Any) -> Any:
    """Give a jitted function this cache; a plain one (NUMBA_DISABLE_JIT) is returned as it is."""
    # NUMBA_DISABLE_JIT: a debugger steps through the Python functions
    if not isinstance(function, Dispatcher):
        return function
    dispatcher: Any = function
    dispatcher._cache = KernelCache(dispatcher)
    dispatcher._compiler.compile = optimised_once(dispatcher._compiler.compile)
    return dispatcher
