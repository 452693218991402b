"""How do JSON objects become rows? A column for each key, of texts as they are written.

    {"id": 7, "user": {"age": 31.0}, "tags": ["a", "b"], "new": true}
    id "7", user.age "31.0", tags ["a", "b"], new "true"

Numbers keep their digits, so an object has the codes that the same row has in CSV. `null` and NaN
are missing values. An object inside an object gives columns with a dot in their names, and so does
a list of objects, `[{"id": 1, "n": 2}, ...]`: lists of `id` and of `n`, one of which may be the
weights of the other.
"""

import codecs
import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from neocpu.core.errors import DataError
from neocpu.ingest.formats.files.record_file import (
    NoRecordError,
    Record,
    RecordFile,
    Rows,
    Value,
    line_rows,
)
from neocpu.ingest.formats.files.streams import as_utf8, byte_stream
from neocpu.ingest.formats.readers import BLOCK_BYTES

LARGEST = 64 << 20  # characters of one object; bounds memory for a text that is none
ADVICE = "write it with an object for each row, as pandas' to_json(orient='records', lines=True)"
# the second half, or one of another kind, is not behind the first, or the first not before it
HALF = re.compile(
    r"\\u[dD][89abAB]\w{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]\w{2})\\u[dD][c-fC-F]\w{2}"
)
_DECODER = json.JSONDecoder(
    parse_int=str,
    parse_float=str,
    # NaN is how a float says that it is missing; what is infinite is text, which no number is
    parse_constant=lambda word: None if word == "NaN" else word,
)


def record_of(value: object) -> Record:
    """An object as a row. Raises NoRecordError for anything else."""
    if not isinstance(value, dict):
        raise NoRecordError("is no JSON object")
    record: Record = {}
    _flatten(value, "", record)
    return record


def _flatten(value: dict[str, Any], prefix: str, record: Record) -> None:
    for key, inner in value.items():
        kind = type(inner)
        if kind is dict:
            _flatten(inner, f"{prefix}{key}.", record)
        elif kind is list and any(type(item) is dict for item in inner):
            record |= _lists(inner, f"{prefix}{key}.")
        else:
            record[prefix + key] = inner if kind is str else _value(inner)


def _lists(items: list[Any], prefix: str) -> Record:
    """A list for each key of the objects in a list, as long as that."""
    rows = [record_of(item) if isinstance(item, dict) else {} for item in items]
    return {prefix + key: [row.get(key) for row in rows] for key in dict.fromkeys(chain(*rows))}


def _value(value: Any) -> Value:
    """A value as text, or as a list of texts or of lists."""
    if isinstance(value, list):
        return [item if type(item) is str else _value(item) for item in value]
    if isinstance(value, bool):
        return "true" if value else "false"
    return None


def _decode(line: str) -> Record:
    try:
        return record_of(_DECODER.decode(_whole(line.strip())))
    except RecursionError as error:
        raise NoRecordError("is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise NoRecordError(f"is no JSON object ({error.msg})") from error


def _whole(text: str) -> str:
    """A text without escapes that are half of a surrogate pair, which no text can hold."""
    return HALF.sub(r"\\ufffd", text) if "\\ud" in text or "\\uD" in text else text


class JsonLines(RecordFile):
    """A text with a JSON object on each line."""

    advice = f"; {ADVICE}"

    def parsed(self) -> Iterator[tuple[Rows, int]]:
        """The rows of the file, piece by piece, and the bytes read so far."""
        for number, (rows, done) in enumerate(line_rows(self.path, _decode)):
            if not number and rows and isinstance(rows[0], dict):
                self._refuse_columns(rows[0])
            yield rows, done

    def _refuse_columns(self, row: Record) -> None:
        """Raise DataError for a file that is one object of columns."""
        # pandas writes {"column": {"0": value, "1": value}} unless it is asked for records
        if row and all(re.fullmatch(r"[^.]+\.\d+", name) for name in row):
            raise DataError(f"{self.path}: one JSON object of columns; {ADVICE}")


class JsonArray(RecordFile):
    """A text that is one JSON array of objects."""

    def parsed(self) -> Iterator[tuple[Rows, int]]:
        """The rows of the file, piece by piece, and the bytes read so far."""
        # such a text may be a single line, so it is read by bytes
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = ""
        opened = False
        with byte_stream(self.path) as stream:
            read = as_utf8(self.path, stream, "")
            while chunk := read(BLOCK_BYTES):
                text += decoder.decode(chunk)
                if not opened:
                    text = text.lstrip().removeprefix("[")
                    opened = bool(text)
                # no pair of surrogates is cut at a brace
                cut = text.rfind("}") + 1
                rows, rest = self._objects(_whole(text[:cut]))
                text = rest + text[cut:]
                if rows:
                    yield rows, stream.done()
                if len(text) > LARGEST:
                    raise DataError(f"{self.path}: holds an object that does not end; {ADVICE}")
        _, text = self._objects(text)  # says what is there in place of an object
        if text.strip() != "]":
            raise DataError(
                f"{self.path}: a damaged or truncated JSON array: {text.strip()[:60]!r} cannot be "
                "read; fetch it again"
            )

    def _objects(self, text: str) -> tuple[list[Record], str]:
        """The objects that a text begins with, and the rest of it."""
        rows: list[Record] = []
        at = 0
        while True:
            start = at
            while start < len(text) and text[start] in " \t\r\n,":
                start += 1
            if text[start : start + 1] in ("", "]"):
                return rows, text[start:]
            try:
                value, at = _DECODER.raw_decode(text, start)
                rows.append(record_of(value))
            except RecursionError as error:
                raise DataError(f"{self.path}: an object is nested too deeply") from error
            except json.JSONDecodeError:
                return rows, text[start:]  # it may go on in the next block
            except NoRecordError as error:
                raise DataError(f"{self.path}: a value in its array {error}; {ADVICE}") from error
