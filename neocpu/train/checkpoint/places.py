"""Where do copies of checkpoints lie? In a folder, or at an address of a store (fsspec)."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from neocpu.core.errors import CheckpointError, ConfigError
from neocpu.core.paths import full_address, is_address
from neocpu.ingest.formats.files.remote import (
    checked_address,
    store_at,
    store_errors,
    transfer,
    upload,
)
from neocpu.train.checkpoint.folder import PATTERN

Moved = Callable[[int], None]  # is called with the bytes of a file that are there so far


class Place(Protocol):
    """A place for copies, whose `str` is shown to people.

    Raises NeocpuError where it cannot be reached, is full, or refuses; FileNotFoundError for a file
    that is to be copied and is not there.
    """

    def names(self) -> dict[str, int]:
        """Bytes of each checkpoint that is there, by name; an unfinished copy is none."""

    def put(self, source: Path, moved: Moved) -> None:
        """Copy a local file there, under its name."""

    def get(self, name: str, target: Path, moved: Moved) -> None:
        """Copy a file from there; a copy that was interrupted goes on where it was."""

    def write(self, name: str, content: bytes) -> None:
        """Let a small file have this content."""

    def read(self, name: str) -> bytes:
        """The content of a small file; b"" where there is none."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""


def open_place(path: str) -> Place:
    """The place of a path or an address. Raises ConfigError for an address that cannot be used."""
    if is_address(path) and full_address(path).startswith(("file:", "local:")):
        with store_errors(path):
            return _Folder(Path(store_at(path)[1]))
    if is_address(path):
        return _Store(path)
    if "://" in path:  # S3://, or a chain of fsspec: no folder of that name is meant
        raise ConfigError(
            f"{path}: neither a folder nor the address of a store, as s3://backup/runs"
        )
    return _Folder(Path(path))


class _Local:
    """Local files, as `transfer` reads those of a store."""

    def open(self, name: str, mode: str, block_size: int) -> Any:
        return open(name, mode)


class _Folder:
    """A folder, of another disk or a mounted file system."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def names(self) -> dict[str, int]:
        try:
            with os.scandir(self._path) as entries:
                return {
                    entry.name: entry.stat().st_size
                    for entry in entries
                    if Path(entry.name).match(PATTERN)
                }
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._failed(error) from error

    def put(self, source: Path, moved: Moved) -> None:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            _copy(_Local(), source, self._path / source.name, moved)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._failed(error) from error

    def get(self, name: str, target: Path, moved: Moved) -> None:
        try:
            _copy(_Local(), self._path / name, target, moved)
        except OSError as error:
            raise self._failed(error) from error

    def write(self, name: str, content: bytes) -> None:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            (self._path / name).write_bytes(content)
        except OSError as error:
            raise self._failed(error) from error

    def read(self, name: str) -> bytes:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise self._failed(error) from error

    def remove(self, name: str) -> None:
        try:
            (self._path / name).unlink(missing_ok=True)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self}: {error.strerror or error}")


class _Store:
    """A store behind an address. A file appears there when all of it has come, or in parts on
    stores that cannot do that; what is loaded is verified anyway.
    """

    def __init__(self, address: str) -> None:
        self._address = checked_address(address)
        with store_errors(self._address):
            self._store, self._root = store_at(self._address)

    def __str__(self) -> str:
        return self._address

    def names(self) -> dict[str, int]:
        with store_errors(self._address):
            self._store.invalidate_cache()
            try:
                entries = self._store.ls(self._root, detail=True)
            except FileNotFoundError:
                return {}
            sizes = {Path(entry["name"]).name: entry["size"] or 0 for entry in entries}
            return {name: size for name, size in sizes.items() if Path(name).match(PATTERN)}

    def put(self, source: Path, moved: Moved) -> None:
        with open(source, "rb"), store_errors(self._address):
            upload(self._store, source, f"{self._root}/{source.name}", moved)

    def get(self, name: str, target: Path, moved: Moved) -> None:
        with store_errors(self._address):
            file = f"{self._root}/{name}"
            size = self._store.info(file)["size"]
            _put_in_place(
                transfer(self._store, file, size, target, f"{file} {size}", moved), target
            )

    def write(self, name: str, content: bytes) -> None:
        with store_errors(self._address):
            self._store.pipe_file(f"{self._root}/{name}", content)

    def read(self, name: str) -> bytes:
        with store_errors(self._address):
            try:
                return bytes(self._store.cat_file(f"{self._root}/{name}"))
            except FileNotFoundError:
                return b""

    def remove(self, name: str) -> None:
        with store_errors(self._address):
            try:
                self._store.rm_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return


def _copy(files: _Local, source: Path, target: Path, moved: Moved) -> None:
    """Copy a file with its time, which says how old a checkpoint is. Raises OSError."""
    facts = source.stat()
    mark = f"{source} {facts.st_size} {facts.st_mtime_ns}"
    part = transfer(files, str(source), facts.st_size, target, mark, moved)
    os.utime(part, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    _put_in_place(part, target)


def _put_in_place(part: Path, target: Path) -> None:
    """Give a copy its name once it is on the disk. Raises OSError."""
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    part.replace(target)
