"""Where can any line of a compressed text be read? In its text, which is kept in the cache.

A text that is compressed, or not in UTF-8, is read from its start only. Unpacked once, as UTF-8, it
is a log like any other. A copy goes as converted ones do (`copy_cache.py`).
"""

import hashlib
import json
from pathlib import Path

from neocpu.core.errors import DataError
from neocpu.ingest.copy_cache import REMOTE, cache_folder, has_room, making, use
from neocpu.ingest.formats.files.streams import as_utf8, byte_stream, text_start

BLOCK = 1 << 20  # bytes of one read
RATIO = 5  # bytes of text for each compressed one, about


def unpacked(path: Path, encoding: str) -> Path:
    """A file with the text of another one as UTF-8, that one itself where it is such text.

    encoding : as of a schema. Folders that name columns stay in the name. Raises DataError where
    the cache has no room.
    """
    if text_start(path, encoding) >= 0:
        return path
    status = path.stat()
    facts = [str(path.resolve()), status.st_size, status.st_mtime_ns, encoding]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]
    columns = [part for part in path.parts[:-1] if "=" in part]
    copy = Path(cache_folder(), REMOTE, "unpacked", key, *columns, path.name)
    part = copy.with_name(f".{copy.name}.part")
    try:
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with making(copy):
            if use(copy):
                return copy
            if not has_room(RATIO * status.st_size):
                raise DataError(f"{path}: no room for its text in {cache_folder()}")
            with byte_stream(path) as stream, open(part, "wb") as file:
                read = as_utf8(path, stream, encoding)
                while text := read(BLOCK):
                    file.write(text)
            part.replace(copy)
            use(copy)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise DataError(f"{copy}: the text of {path} cannot be kept: {error.strerror}") from error
    return copy
