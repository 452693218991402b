"""What is in a log? Its first rows as columns of text, and how many rows there are in all.

Text, gzip and Parquet; delimiter, quotes and header are guessed from the first lines. Memory is
bounded: of a large log the first `LOOKED_AT` bytes of text are looked at, and its number of rows is
an estimate from its size.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from neocpu.core.errors import DataError
from neocpu.ingest.formats.avazu import avazu_schema
from neocpu.ingest.formats.criteo import CATEGORIES, DENSE, criteo_schema
from neocpu.ingest.formats.frames import POLARS_ERRORS
from neocpu.ingest.formats.parquet import scan
from neocpu.ingest.formats.readers import first_block, kind_of, text_blocks
from neocpu.tables.hdf5.walk import one_line

LOOKED_AT = 512 << 20  # bytes of text that are looked at, of all files together
ROWS_AT = 4_000_000  # rows of Parquet files that are looked at
GUESSED_FROM = 200  # lines that delimiter, quotes and header are guessed from
DELIMITERS = ("\t", ",", ";", "|", "\x01", " ")
MISSING = ("NULL", "null", "NaN", "nan", "None", "NA", "N/A", "\\N")
QUOTE = '"'


@dataclass(frozen=True)
class Dialect:
    """How the fields of a text log are written; quote "": they are not quoted."""

    delimiter: str = ","
    quote: str = ""
    header: bool = True


@dataclass(frozen=True)
class Log:
    """The first rows of a log.

    kind : of `data.format`: "criteo", "avazu" or "table". frame : text columns, null where a field
    is empty; Parquet's columns have their types, lists among them. rows : in all files; `whole`
    says whether the frame has all of them, otherwise it is an estimate. dialect : of text logs.
    missing : texts that stand for empty fields, null in the frame.
    """

    paths: tuple[Path, ...]
    kind: str
    frame: pl.DataFrame
    rows: int
    dialect: Dialect | None
    missing: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether every row was looked at."""
        return self.frame.height == self.rows


def look(paths: Sequence[str | Path], looked_at: int = LOOKED_AT, rows_at: int = ROWS_AT) -> Log:
    """Look at logs of the same columns, in the order given; their rows follow one another.

    looked_at : bytes of text. rows_at : rows of Parquet.

    Raises DataError for a file that cannot be read, is empty, or differs from the first one.
    """
    files = tuple(Path(path) for path in paths)
    kinds = {kind_of(path) for path in files}
    if "hdf5" in kinds:
        raise DataError(
            f"{files[0]}: a converted dataset has no names and kinds of its log's columns left; "
            "give the raw log"
        )
    if kinds == {"parquet"}:
        return _look_at_parquet(files, rows_at)
    if "parquet" in kinds:
        raise DataError("some of the files are Parquet and some are text; give one kind")
    return _look_at_text(files, looked_at)


def _look_at_parquet(files: tuple[Path, ...], rows_at: int) -> Log:
    parts = []
    rows = 0
    for path in files:
        try:
            log = scan(path)
            height = int(log.select(pl.len()).collect().item())
            # Parquet notes its number of rows, so only the first ones are read
            parts.append(log.head(max(rows_at - rows, 0)).collect())
        except POLARS_ERRORS as error:
            reason = one_line(error)[:300]
            raise DataError(f"{path}: not a readable Parquet file: {reason}") from error
        rows += height
    frame = _joined(files, parts)
    if not frame.height:
        raise DataError(f"{files[0]}: has no rows")
    kind = "avazu" if _is_avazu(frame.columns) else "table"
    frame, missing = _without_missing(frame, kind)
    return Log(files, kind, frame, rows, None, missing)


def _look_at_text(files: tuple[Path, ...], looked_at: int) -> Log:
    start = _first_lines(files[0])
    try:
        dialect = guess_dialect(start)
        names = _names(start, dialect)
    except csv.Error as error:
        raise DataError(
            f"{files[0]}: its first lines cannot be cut into fields: {error}; is it a table?"
        ) from error
    kind = "table"
    if _is_criteo(start, dialect):
        kind = "criteo"
        names = list(criteo_schema().columns)
    elif dialect.header and _is_avazu(names):
        kind = "avazu"
    parts = []
    rows = 0.0
    for path in files:
        # of every file a little, so that different columns are found before training
        text, share = _text_of(path, max(looked_at, 1 << 20))
        looked_at -= len(text)
        part = _parse(path, text, dialect, names)
        parts.append(part)
        # by compressed bytes: the only size that a compressed file tells
        rows += part.height if share == 1.0 else part.height / share
    frame = _joined(files, parts)
    if not frame.height:
        raise DataError(f"{files[0]}: has no rows")
    frame, missing = _without_missing(frame, kind)
    return Log(files, kind, frame, round(rows), dialect, missing)


def _without_missing(frame: pl.DataFrame, kind: str) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """A table with null for texts that stand for empty fields, and these texts."""
    texts = [name for name, dtype in frame.schema.items() if dtype == pl.String]
    missing = tuple(
        text
        for text in MISSING
        # a column of nothing else would be a constant, not missing values
        if kind == "table" and any(0 < (frame[name] == text).sum() < frame.height for name in texts)
    )
    if missing:
        columns = pl.col(texts)
        empty = pl.when(columns.is_in(missing)).then(None).otherwise(columns)
        frame = frame.with_columns(empty.name.keep())
    return frame, missing


def _text_of(path: Path, most: int) -> tuple[bytes, float]:
    """The first lines of a file, about `most` bytes, and which share of the file they are."""
    blocks = []
    size = 0
    done = 0
    reader = text_blocks(path)
    for block in reader:
        blocks.append(block.text.tobytes())
        size += block.text.size
        done = block.done
        if size >= most:
            break
    else:
        return b"".join(blocks), 1.0
    reader.close()
    total = max(path.stat().st_size, 1)
    return b"".join(blocks), min(done / total, 1.0)


def _first_lines(path: Path) -> list[str]:
    """The first complete lines of a text log."""
    block = first_block(path)
    if block is None:
        raise DataError(f"{path}: is empty")
    text = block.text[: 1 << 18].tobytes().decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise DataError(f"{path}: has no rows")
    return lines[:GUESSED_FROM]


def guess_dialect(lines: Sequence[str]) -> Dialect:
    """Delimiter, quotes and header of the first lines of a log.

    The delimiter is the one that cuts most lines into as many fields as the first one, more than
    one. Fields are quoted where a quote begins or ends one. The first line is a header where all
    its fields are different texts, none of them is a number, and the line below differs in kind.
    """
    best = (0.0, 0)
    delimiter = ","
    for candidate in DELIMITERS:
        counts = [len(fields) for fields in _split(lines, candidate)]
        alike = sum(count == counts[0] for count in counts) / len(counts)
        # 5 %: a delimiter in some text fields should not win over one with more fields
        if counts[0] > 1 and (alike > best[0] + 0.05 or (alike >= best[0] and counts[0] > best[1])):
            best = (alike, counts[0])
            delimiter = candidate
    # without any, a lone quote inside a field is text
    quote = ""
    if any(f"{delimiter}{QUOTE}" in line or line.startswith(QUOTE) for line in lines):
        quote = QUOTE
    return Dialect(delimiter, quote, _has_header([*_split(lines, delimiter)]))


def _split(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    return [*csv.reader(lines, delimiter=delimiter, quotechar=QUOTE)]


def _has_header(rows: Sequence[Sequence[str]]) -> bool:
    first = [name.strip() for name in rows[0]]
    if len(set(first)) < len(first) or any(not name or _is_number(name) for name in first):
        return False
    if len(rows) == 1:
        return True
    # without a number below any name, a name that is a value of its column is no name
    numbers = any(_is_number(field) for row in rows[1:] for field in row)
    values = [{row[i] for row in rows[1:] if len(row) > i} for i in range(len(first))]
    return numbers or not any(name in below for name, below in zip(first, values))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_criteo(lines: Sequence[str], dialect: Dialect) -> bool:
    if dialect.delimiter != "\t":
        return False
    return all(_is_criteo_row(line.split("\t")) for line in lines)


def _is_criteo_row(fields: Sequence[str]) -> bool:
    """Label 0 or 1, 13 integers, 26 hexadecimal texts of eight digits; fields may be empty."""
    if len(fields) != 1 + DENSE + CATEGORIES or fields[0] not in ("0", "1"):
        return False
    numbers = fields[1 : 1 + DENSE]
    if not all(not field or field.lstrip("-").isdigit() for field in numbers):
        return False
    hexes = fields[1 + DENSE :]
    return all(not field or (len(field) <= 8 and _is_hex(field)) for field in hexes)


def _is_hex(text: str) -> bool:
    return all(character in "0123456789abcdefABCDEF" for character in text)


def _is_avazu(names: Sequence[str]) -> bool:
    return set(avazu_schema().used) <= set(names)


def _names(lines: Sequence[str], dialect: Dialect) -> list[str]:
    """The columns' names; those of a log without a header are c0, c1, ..."""
    fields = _split(lines[:1], dialect.delimiter)[0]
    if dialect.header:
        return [name.strip() for name in fields]
    return [f"c{number}" for number in range(len(fields))]


def _parse(path: Path, text: bytes, dialect: Dialect, names: Sequence[str]) -> pl.DataFrame:
    """Text columns of these lines."""
    try:
        frame = pl.read_csv(
            text,
            separator=dialect.delimiter,
            quote_char=dialect.quote or None,
            has_header=dialect.header,
            # roles are guessed from the texts: 007 is a code, not a number
            infer_schema=False,
            encoding="utf8-lossy",
            # a malformed line is for `data.on_error` to judge, when the log is converted
            ignore_errors=True,
            truncate_ragged_lines=True,
        )
    except pl.exceptions.NoDataError as error:
        raise DataError(f"{path}: has no rows") from error
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path}: cannot be read as a table: {one_line(error)[:300]}") from error
    if frame.width != len(names):
        raise DataError(
            f"{path}: {frame.width} columns, but the first line of the first file has {len(names)}"
        )
    return frame.rename(dict(zip(frame.columns, names)))


def _joined(files: Sequence[Path], parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The rows of all files, which must have the same columns."""
    for path, part in zip(files, parts):
        if part.columns != parts[0].columns:
            raise DataError(
                f"{path}: its columns are not those of {files[0]}: {', '.join(part.columns[:20])}"
            )
    try:
        return pl.concat(parts, how="vertical_relaxed")
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{files[0]} and the others differ in types: {one_line(error)}") from error
