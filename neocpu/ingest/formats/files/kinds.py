"""What is in a file? Told from its first bytes, never from its name.

`KINDS` is the table: what is read as frames names its reader (`frame_file.py`), what is not read
says what to do. Everything else is text, which a schema cuts into fields.
"""

import re
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from neocpu.core.errors import DataError
from neocpu.ingest.formats.files.streams import (
    UTF8_MARK,
    UTF16,
    as_utf8,
    byte_stream,
    compression_of,
    zip_members,
)
from neocpu.tables.hdf5.disk import SIGNATURE

HEAD = 1 << 16  # bytes of a text that its kind is told from
TAR = slice(257, 262)  # where a tar archive says what it is
# possessive, as digits that are given back make a line of numbers that fits nowhere take for ever
NUMBER = rb"[-+]?(?:\d++\.?\d*+|\.\d++)(?:[eE][-+]?\d++)?+"
LIBSVM = re.compile(
    rb"%(n)s(?:,%(n)s)*(?:\s+qid:\d+)?(?P<pairs>(?:\s+\d+:%(n)s)*)\s*(?:#.*)?" % {b"n": NUMBER}
)
# rows to be scored; a line of 12:30 is a time, so one of them must have two pairs
UNLABELLED = re.compile(rb"(?:\d+:%(n)s(?P<pairs>(?:\s+\d+:%(n)s)*))?\s*(?:#.*)?" % {b"n": NUMBER})
LIBFFM = re.compile(rb"%(n)s(?P<pairs>(?:\s+\d+:\d+:%(n)s)*)\s*" % {b"n": NUMBER})
# a label, or costs of actions, a tag, which touches the bar where it has no quote, and namespaces;
# names have no blank, bar or colon
VW = re.compile(
    rb"(?:(?P<costs>(?:shared|(?:ccb|slates) \w+|\d+:[-+.\d:eE]++)(?: *+\d+:[-+.\d:eE]++)*+ *+)"
    rb"|%(n)s(?: +%(n)s){0,2} +(?:'[^ |]*+ *+|[^ |]++(?=\|))?)?"
    rb"(?P<parts>(?:\|(?:[^ |:]++(?::%(n)s)?)?(?: +[^ |:]++(?::[^ |:]++)?)*+ *+)++)"
    % {b"n": NUMBER}
)
FEW = 50  # lines, of which one may be wrong
PANDAS = "as with polars' write_parquet or pandas' to_parquet"
REPACK = "unpack it, or pack it with gzip, xz or zstd"


class FileKind(NamedTuple):
    """One kind of file.

    title : in messages. magic : the bytes that it may begin with; none: another test tells it.
    reader : MODULE:CLASS of this folder that reads it as frames. advice : what to do
    with one that is not read.
    """

    title: str
    magic: tuple[bytes, ...] = ()
    reader: str = ""
    advice: str = ""


KINDS = {
    "hdf5": FileKind("HDF5 file", (SIGNATURE,)),
    "text": FileKind("text"),
    "parquet": FileKind("Parquet file", (b"PAR1",), "columnar:Columnar"),
    "arrow": FileKind("Arrow file", (b"ARROW1\0\0",), "columnar:Columnar"),
    "arrow stream": FileKind("Arrow stream", (b"\xff\xff\xff\xff",), "columnar:Columnar"),
    "npy": FileKind("NumPy array", (b"\x93NUMPY",), "arrays:ArrayFile"),
    "npz": FileKind("NumPy archive", (), "arrays:ArrayFile"),
    "json lines": FileKind("file of JSON lines", (), "json_records:JsonLines"),
    "json array": FileKind("JSON array", (), "json_records:JsonArray"),
    "libsvm": FileKind("libsvm file", (), "sparse_records:LibSvm"),
    "libffm": FileKind("libffm file", (), "sparse_records:LibFfm"),
    "vw": FileKind("Vowpal Wabbit file", (), "vw_records:VowpalWabbit"),
    "vw costs": FileKind(
        "Vowpal Wabbit file",
        advice="its labels are costs of actions, which no model takes; write LABEL |NAMESPACE ...",
    ),
    "xlsx": FileKind("Excel workbook", advice="save its sheet as CSV"),
    "xls": FileKind("Excel workbook", (b"\xd0\xcf\x11\xe0",), advice="save its sheet as CSV"),
    "sqlite": FileKind(
        "SQLite database",
        (b"SQLite format 3\0",),
        advice="write its table to Parquet or CSV, as with pandas' read_sql and to_parquet",
    ),
    "pickle": FileKind(
        "pickle",
        tuple(bytes([0x80, version]) for version in range(2, 6)),
        advice=f"reading one runs the program in it; write the frame in it to Parquet, {PANDAS}",
    ),
    "torch": FileKind("file of torch.save", advice="write its tensors with numpy.savez"),
    "feather": FileKind(
        "Feather file of version 1", (b"FEA1\0",), advice=f"write Parquet, {PANDAS}"
    ),
    "avro": FileKind("Avro file", (b"Obj\1",), advice=f"write Parquet, {PANDAS}"),
    "7z": FileKind("7z archive", (b"7z\xbc\xaf\x27\x1c",), advice="unpack it"),
    "rar": FileKind("RAR archive", (b"Rar!\x1a\7",), advice="unpack it"),
    "tar": FileKind("tar archive", advice="unpack it, and name the files of the log"),
    "lz4": FileKind("lz4 file", (b"\x04\x22M\x18", b"\x02\x21L\x18"), advice=REPACK),
    "Z": FileKind("file of compress", (b"\x1f\x9d",), advice=REPACK),
    "lzma": FileKind("lzma file without a frame", (b"]\0\0",), advice=REPACK),
    "lzip": FileKind("lzip file", (b"LZIP\1",), advice=REPACK),
    "lzop": FileKind("lzop file", (b"\x89LZO\0",), advice=REPACK),
    "snappy": FileKind("snappy file", (b"\xff\6\0\0sNaPpY",), advice=REPACK),
    "pzstd": FileKind(
        "zstd file that begins with a skippable frame, as of pzstd",
        tuple(bytes([number]) + b"*M\x18" for number in range(0x50, 0x60)),
        advice="unpack it, or pack it with zstd",
    ),
    "orc": FileKind("ORC file", advice=f"write Parquet, {PANDAS}"),
    "tfrecord": FileKind("TFRecord file", advice=f"write Parquet, {PANDAS}"),
    "sequence": FileKind("Hadoop SequenceFile", (b"SEQ\6",), advice="write Parquet, as Spark does"),
    "encrypted": FileKind("encrypted Parquet file", (b"PARE",), advice="write it without a key"),
    "page": FileKind(
        "page of HTML or XML",
        (b"<!DOCTYPE", b"<!doctype", b"<html", b"<?xml"),
        advice="a server may have sent it in place of the file, as where one has to log in",
    ),
    "pointer": FileKind(
        "pointer of Git LFS",
        (b"version https://",),
        advice="`git lfs pull` fetches the file itself",
    ),
}
SPARSE = ("libsvm", "libffm", "vw")  # text that says what its label is
RECORDS = ("json lines", "json array", *SPARSE)  # text that may be cut into fields too
ZIPPED = {"[Content_Types].xml": "xlsx", "data.pkl": "torch"}  # files that tell an archive's kind


def kind_of(path: Path) -> str:
    """The kind of a file, a key of `KINDS`.

    Raises DataError if it cannot be read, is no file with a name of its own, or is of a kind that
    is not read: what to do then.
    """
    try:
        _require_file(path)
        with open(path, "rb") as file:
            start = file.read(16)
        kind = _by_magic(start)
        if not kind:
            kind = _archive(path) if compression_of(start) == "zip" else _content(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the path
        raise DataError(f"{str(path)!r}: cannot be read: {error}") from error
    if advice := KINDS[kind].advice:
        raise DataError(f"{path}: this kind of file ({KINDS[kind].title}) is not read; {advice}")
    return kind


def _require_file(path: Path) -> None:
    """Raise DataError for a pipe, a device or /dev/stdin."""
    mode = path.stat().st_mode
    folder = path.parent.resolve()
    unnamed = folder == Path("/dev") or Path("/proc") in folder.parents
    if unnamed or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(
            f"{path}: not a regular file; data are read more than once, and their converted copy "
            "is found again by their name, so write them to a file first"
        )


def _by_magic(start: bytes) -> str:
    """The kind that begins with these bytes; "" if none does."""
    return next((name for name, kind in KINDS.items() if start.startswith(kind.magic)), "")


def _archive(path: Path) -> str:
    """What a zip archive is: a workbook, a model, arrays, or text in it."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = zip_members(archive)
    except (zipfile.BadZipFile, NotImplementedError):
        return "text"  # whoever unpacks it says what is wrong
    for name in names:
        if kind := ZIPPED.get(name if name in ZIPPED else name.rpartition("/")[2]):
            return kind
    if names and all(name.endswith(".npy") for name in names):
        return "npz"
    return _content(path) if len(names) == 1 else "text"


def _content(path: Path) -> str:
    """The kind of text in a file, or of what is compressed in it."""
    with byte_stream(path) as stream:
        head = stream.read(HEAD)
        if stream.compression:
            _refuse_packed(path, head)
    if head[TAR] == b"ustar" and b"\0" in head[: TAR.start]:
        return "tar"
    if head.startswith(b"ORC") and b"\0" in head:  # text may begin so as well
        return "orc"
    if _has_lengths(head):
        return "tfrecord"
    if head.startswith(UTF16):
        with byte_stream(path) as stream:
            head = as_utf8(path, stream, "")(HEAD)
    return text_kind(head.removeprefix(UTF8_MARK))


def _has_lengths(head: bytes) -> bool:
    """Do records of TFRecord begin so: length u64, its CRC, so many bytes, their CRC?"""
    second = int.from_bytes(head[:8], "little") + 16
    behind = head[second : second + 8]
    return 16 < second < len(head) and behind.endswith(bytes(4)) and behind != bytes(8)


def _refuse_packed(path: Path, head: bytes) -> None:
    """Raise DataError for what is compressed as a whole, though it is no text."""
    packed = compression_of(head)
    title = f"{packed} file" if packed else KINDS[_by_magic(head) or "text"].title
    if title != "text":
        raise DataError(f"{path}: a {title} that was compressed as a whole; unpack it")


def text_kind(head: bytes) -> str:
    """Which kind of text begins with these bytes? One whose lines name their columns, or "text"."""
    start = head.lstrip()
    if re.match(rb"\[\s*[\[{]", start):
        return "json array"
    if re.match(rb'\{\s*["}]', start):
        return "json lines"
    lines = start.splitlines()
    # the last one may be cut
    lines = lines[:-1] if len(lines) > 1 else lines
    lines = [line.strip() for line in lines if line.strip() and not line.startswith(b"#")]
    for kind, pattern in (("libffm", LIBFFM), ("libsvm", LIBSVM), ("libsvm", UNLABELLED)):
        matches = [pattern.fullmatch(line) for line in lines]
        # whoever reads the file says what is wrong with a few lines among many
        wrong = matches.count(None)
        if wrong * FEW <= len(lines) and any(match and match["pairs"] for match in matches):
            return kind
    return _vw_kind(lines)


def _vw_kind(lines: Sequence[bytes]) -> str:
    """A kind of Vowpal Wabbit's text, or "text"."""
    matches = [match for line in lines if (match := VW.fullmatch(line))]
    parts = [match["parts"] for match in matches]
    # rows have features; bars of tables have blanks around them, or none behind
    rows = [part for part in parts if re.search(rb"\|[^ |]* +[^ |]", part)]
    if any(part.count(b"| ") > 1 for part in parts) or (len(lines) - len(rows)) * FEW > len(lines):
        return "text"
    if any(match["costs"] for match in matches):
        return "vw costs"
    told = any(
        re.search(rb"(?:^| )\|[^ ]", match[0]) or re.search(rb"\|[^|]* [^ |]+ +[^ |]|:", part)
        for match, part in zip(matches, parts)
    )
    return "vw" if told and VW.fullmatch(lines[0]) else "text"
