"""Which local files hold a log that lies in a store? Copies in the cache, fetched once each.

    s3://logs/clicks/day=2014-10-21/part-0.parquet      fsspec knows the protocol
    gs://logs/clicks/                                   all files below
    https://host/clicks.tsv.gz

A copy lies at `remote/PROTOCOL/HOST/PATH` of the data cache, beside it a note of what the store
said about the file (size, hash, time); a file that has changed is fetched anew. A transfer that is
interrupted goes on where it was. Credentials are fsspec's business: it reads them from the
environment and from its own files, and a name that carries some is refused, as names are written
into configs, reports and checkpoints.
"""

import contextlib
import errno
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from neocpu.core.errors import ConfigError, DataError, NeocpuError
from neocpu.core.paths import full_address
from neocpu.ingest.copy_cache import (
    FOLDER,
    REMOTE,
    cache_folder,
    has_room,
    is_cached,
    making,
    use,
)
from neocpu.tables.hdf5.walk import one_line

# what stores say of a file that changes with its content
MARKS = ("size", "ETag", "etag", "LastModified", "last_modified", "mtime", "updated", "generation")
TIMES = ("LastModified", "last_modified", "mtime", "updated")
# parameters by which signed addresses let their holder in
SECRETS = re.compile(
    r"signature|^sig$|token|credential|accesskey|api_?key|secret|password", re.IGNORECASE
)
# what to do about protocols that fsspec knows under another name, or by another package
UNKNOWN = {
    "s3n": "write s3://",
    "abfss": "pip install adlfs",
    "wasb": "write abfs://, and pip install adlfs",
    "wasbs": "write abfs://, and pip install adlfs",
    "viewfs": "write hdfs://",
}
BLOCK = 8 << 20  # bytes asked for at a time
BUSY = (429, 500, 502, 503, 504)  # answers of a server that may give another one later
TRIES = 5  # in a row without a byte
PAUSE = 0.5  # seconds before the second try; each later one waits twice as long
NEWS = 10.0  # seconds between lines of progress
LONGEST = 200  # characters of a folder's name on common file systems, less the endings put here


def checked_address(path: str | Path) -> str:
    """An address, whole. Raises ConfigError where it carries credentials."""
    text = full_address(path)
    try:
        parts = urlsplit(text)
    except ValueError:  # brackets of a pattern where a host would stand
        return text
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    # a name alone is a user, or a container of Azure; on the web it may be a token
    named = parts.username is not None and parts.scheme in ("http", "https")
    secrets = any(SECRETS.search(name) for name, _ in parse_qsl(parts.query))
    if parts.password is not None or named or secrets:
        raise ConfigError(
            f"{shown}: the address carries credentials, which would be kept in configs and "
            "reports; put them where fsspec reads them: the environment, or ~/.config/fsspec"
        )
    return text


def fetched(path: str | Path, is_log: Callable[[Path], bool]) -> list[Path]:
    """Local copies of the files of a remote log, in the order of their names.

    A folder stands for the files below it that `is_log` accepts by their names relative to it, a
    pattern for all that it fits. Raises DataError where the store has none, cannot be reached or
    refuses, and where the cache has no room; ConfigError where a library is missing.
    """
    address = checked_address(path)
    with store_errors(address):
        store, name = store_at(address)
        store.invalidate_cache()  # a process may have seen what lay there before
        copies = [_copy(store, file, address) for file in _files(store, name, is_log)]
    if twice := [str(copy) for copy, count in Counter(copies).items() if count > 1]:
        raise DataError(f"{address}: two files of it would have one copy, {twice[0]}; rename one")
    return copies


def store_at(address: str) -> tuple[Any, str]:
    """fsspec's file system of an address, and the name there."""
    from fsspec.core import url_to_fs

    store, name = url_to_fs(address)
    return store, str(name)


def upload(store: Any, source: Path, name: str, moved: Callable[[int], None]) -> None:
    """Copy a local file to a store; `moved` is called with the bytes that are there."""
    from fsspec.callbacks import Callback

    callback = Callback(hooks={"moved": lambda size, value, **_: moved(value)})
    store.put_file(str(source), name, callback=callback)


@contextlib.contextmanager
def store_errors(address: str) -> Iterator[None]:
    """Whatever a store raises, as one sentence."""
    try:
        yield
    except NeocpuError:
        raise
    except ImportError as error:
        # fsspec's own text names the package of a protocol
        missing = "pip install 'neocpu[remote]'" if error.name == "fsspec" else str(error)
        raise ConfigError(f"{address}: reading it needs another package: {missing}") from error
    except Exception as error:  # every store has errors of its own
        raise DataError(_meaning(address, error)) from error


def _meaning(address: str, error: Exception) -> str:
    """What an error means: of the store or, where it is of a file of ours, of the cache."""
    if isinstance(error, OSError):
        ours = isinstance(error.filename, str | Path) and is_cached(Path(error.filename))
        if ours or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            return (
                f"{address}: its copy cannot be kept in {cache_folder()}: {error.strerror}; "
                f"{FOLDER} names another folder"
            )
    # fsspec's HTTP has one error for all answers to its first question
    status = _status_of(error)
    if status in (404, 410) or (not status and isinstance(error, FileNotFoundError)):
        return f"{address}: no such file in the store"
    cause = error.__cause__ if status and error.__cause__ else error
    # without the place that a server sent us on to, and what lets its holder in there
    text = re.sub(r", url=.*", "", one_line(cause))[:300]
    if isinstance(error, PermissionError):
        return (
            f"{address}: access denied ({text}); fsspec reads credentials from the environment and "
            "from ~/.config/fsspec"
        )
    advice = UNKNOWN.get(address.partition(":")[0], "")
    return f"{address}: the store says: {text}{advice and '; '}{advice}"


def _files(store: Any, name: str, is_log: Callable[[Path], bool]) -> list[str]:
    """Names in the store of a log's files."""
    tops = [name]
    # of a file as "a[1].csv" the name is no pattern, nor is that of a page with "?"
    if re.search(r"[*?\[]", name) and not store.exists(name):
        fitting = sorted(store.glob(name))
        tops = [top for top in fitting if is_log(Path(Path(top).name))] or fitting
    files = []
    for top in tops:
        if not _is_folder(store, top):
            files.append(top)
            continue
        below = store.find(top)
        if _is_web(store):  # the links of a listing by which it is sorted
            below = [file for file in below if "?" not in file]
        # a store may have an object beside a folder of its name, by which tools mark the folder
        folders = {str(folder) for file in below for folder in PurePosixPath(file).parents}
        below = [file for file in below if not file.endswith("/") and file not in folders]
        files += [file for file in sorted(below) if is_log(Path(os.path.relpath(file, top)))]
    if not files:
        raise FileNotFoundError(name)
    return files


def _is_web(store: Any) -> bool:
    return "http" in store.protocol


def _is_folder(store: Any, name: str) -> bool:
    """Does a name stand for all files below it?

    On the web it ends with a slash: fsspec would read a whole file to look for links in it.
    """
    return name.endswith("/") if _is_web(store) else bool(store.isdir(name))


def _status_of(error: Exception) -> int:
    """The status of HTTP by which a server refused; 0: it is another error."""
    return int(getattr(error, "status", 0) or getattr(error.__cause__, "status", 0) or 0)


def _is_final(error: Exception) -> bool:
    """Would asking again have the same answer?"""
    refused = isinstance(error, FileNotFoundError | PermissionError | NeocpuError)
    return refused and _status_of(error) not in BUSY


def _copy(store: Any, name: str, address: str) -> Path:
    """The copy of one file, fetched where there is none or it has changed."""
    facts = _facts(store, name)
    mark = json.dumps({key: str(facts[key]) for key in MARKS if facts.get(key) is not None})
    path = copy_path(address, store.unstrip_protocol(name))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with making(path):
        note = path.with_name(f".{path.name}.mark")
        if use(path) and note.exists() and note.read_text() == mark:
            return path
        if not has_room(facts.get("size") or 0):
            raise DataError(
                f"{address}: no room for a copy of {name} in {cache_folder()}; {FOLDER} names "
                "another folder"
            )
        note.unlink(missing_ok=True)
        part = transfer(store, name, facts.get("size"), path, mark)
        # copies of a log are known by its time: the store's, so that a copy fetched anew is known
        if (changed := _time_of(facts)) is not None:
            os.utime(part, (time.time(), changed))
        part.replace(path)
        note.write_text(mark)
        use(path)
    return path


def _facts(store: Any, name: str) -> dict[str, Any]:
    """What a store says of a file; one that has too much to do is asked again."""
    for tries in range(1, TRIES):
        try:
            return dict(store.info(name))
        except Exception as error:
            if _status_of(error) not in BUSY:
                raise
            time.sleep(PAUSE * 2**tries)
    return dict(store.info(name))


def copy_path(address: str, full_name: str) -> Path:
    """Where the copy of a file lies; its folders keep their names, as some are columns (`day=…`).

    full_name : with its protocol.
    """
    protocol, _, rest = full_name.partition("://")
    parts = [part for part in rest.split("/") if part]
    if any(part in (".", "..") or len(part.encode()) > LONGEST for part in parts):
        raise DataError(f"{address}: {full_name} has no name that a local file can have")
    return Path(cache_folder(), REMOTE, protocol, *(quote(part, safe="=%+,@ ") for part in parts))


def transfer(
    store: Any,
    name: str,
    size: int | None,
    path: Path,
    mark: str,
    moved: Callable[[int], None] | None = None,
) -> Path:
    """Bytes of a file, in a part file beside `path` that a later try or run goes on with.

    size : None: the store does not say. mark : the same as long as the file has the same content.
    moved : is called with the bytes that have come (None: progress is printed).
    """
    part = path.with_name(f".{path.name}.part")
    begun = path.with_name(f".{path.name}.begun")
    if not (part.exists() and begun.exists() and begun.read_text() == mark):
        part.unlink(missing_ok=True)
        begun.write_text(mark)
    moved = moved or printed(f"fetching {name}", size)
    tries = 0
    size_asked = BLOCK
    with open(part, "ab") as target:
        while size is None or target.tell() < size:
            before = target.tell()
            try:
                for block in _blocks(store, name, before, size_asked):
                    target.write(block)
                    moved(target.tell())
            except Exception as error:  # of a connection: what has come is kept
                if _is_final(error):
                    raise
                if isinstance(error, ValueError) and size_asked:
                    size_asked = 0  # of fsspec's HTTP: the server has no parts of files
                    continue
                tries = 0 if target.tell() > before else tries + 1
                if tries >= TRIES:
                    raise
                time.sleep(PAUSE * 2**tries)
                continue
            if size is None:
                break
            if target.tell() == before:
                raise OSError(f"{name} ends after {before} of {size} bytes")
    begun.unlink()
    return part


def printed(what: str, size: int | None) -> Callable[[int], None]:
    """Prints now and then how much of a file has been copied. size : its bytes (None: unknown)."""
    news = time.monotonic() + NEWS

    def moved(done: int) -> None:
        nonlocal news
        if time.monotonic() > news:
            news += NEWS
            share = f"{100 * done / size:.0f} %" if size else "…"
            print(f"neocpu: {what}: {share}", file=sys.stderr, flush=True)

    return moved


def _blocks(store: Any, name: str, start: int, size: int) -> Iterator[bytes]:
    """The bytes of a file from `start` on.

    size : bytes asked for at a time; 0: the whole file is sent, of which the start is left out.
    """
    with store.open(name, "rb", block_size=size) as source:
        if start and size:
            source.seek(start)
        left = 0 if size else start
        while left and (block := source.read(min(left, BLOCK))):
            left -= len(block)
        while block := source.read(BLOCK):
            yield block


def _time_of(facts: Mapping[str, Any]) -> float | None:
    """When the store's file was changed, in seconds; None: the store does not say."""
    for key in TIMES:
        value = facts.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None
