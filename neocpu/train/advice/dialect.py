"""How are the fields of a text written? Delimiter, quotes, header, decimal point, encoding.

All are guessed from the first lines, as a schema wants them.
"""

import csv
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from neocpu.ingest.formats.files.frame_file import Hint
from neocpu.ingest.formats.schema import TYPED_NAME, plain_names

DELIMITERS = ("\t", ", ", ",", ";", "|", "\x01", "::", " ")
QUOTE = '"'
COMMENTS = ("#", "%", "|", "//")
COMMA_NUMBER = re.compile(r"-?(\d+(,\d+)?|\d{1,3}(\.\d{3})+,\d+)")  # 1.234,50 too
NUMBERS = "a list of numbers, which a table does not look up"
CHECKED = 1000  # values whose form is looked at


@dataclass(frozen=True)
class Dialect:
    """How the fields of a text log are written; quote "": they are not quoted.

    decimal : the point of numbers. encoding : "": UTF-8, or UTF-16 that says so. comment : what the
    lines ahead of the header begin with; "": there are none.
    """

    delimiter: str = ","
    quote: str = ""
    header: bool = True
    decimal: str = "."
    encoding: str = ""
    comment: str = ""


def guess_encoding(text: bytes) -> str:
    """The encoding of text that was read as UTF-8: "latin-1" where it is none.

    Any bytes are Latin-1, and a category needs no more than that equal texts stay equal.
    """
    try:
        text.decode()
    except UnicodeDecodeError:
        return "latin-1"
    return ""


def guess_comment(lines: Sequence[str]) -> str:
    """What the comments begin with that the first lines of a log are; "": there are none.

    A header may begin with a # as well, but has as many fields as the rows. The first of two
    headers counts as a comment.
    """
    for mark in COMMENTS:
        rows = without_comments(lines, mark)
        if not rows or len(rows) == len(lines):
            continue
        delimiter = guess_dialect(rows).delimiter
        if len(lines[0].split(delimiter)) != len(rows[0].split(delimiter)):
            return mark
    if not _has_two_headers(lines):
        return ""
    # the least that tells the first line from the second
    marks = itertools.accumulate(lines[0])
    return next((mark for mark in marks if not lines[1].startswith(mark)), "")


def _has_two_headers(lines: Sequence[str]) -> bool:
    """Do two lines name columns, most of which hold numbers only?"""
    if len(lines) < 3:
        return False
    first, second, *rows = split_lines(lines[:CHECKED], guess_dialect(lines).delimiter)
    if len(first) != len(second) or any(map(_is_number, (*first, *second))):
        return False
    numbers = [all(map(_is_number, column)) for column in zip(*rows)]
    return 2 * sum(numbers) > len(first)


def without_comments(lines: Sequence[str], mark: str) -> list[str]:
    """The lines behind the comments that a log begins with."""
    return [*itertools.dropwhile(lambda line: mark and line.startswith(mark), lines)]


def guess_dialect(lines: Sequence[str]) -> Dialect:
    """Delimiter, quotes and header of the first lines of a log.

    The delimiter is the one that cuts most lines into as many fields as the first one, more than
    one. Fields are quoted where a quote begins one. The first line is a header where all
    its fields are different texts, none of them is a number, and the line below differs in kind.
    """
    best = (0.0, 0)
    delimiter = ","
    for candidate in DELIMITERS:
        counts = [len(fields) for fields in split_lines(lines, candidate)]
        alike = sum(count == counts[0] for count in counts) / len(counts)
        # 5 %: a delimiter in some text fields should not win over one with more fields
        if counts[0] > 1 and (alike > best[0] + 0.05 or (alike >= best[0] and counts[0] > best[1])):
            best = (alike, counts[0])
            delimiter = candidate
    quoted = len(delimiter) == 1 and any(
        f"{delimiter}{QUOTE}" in line or line.startswith(QUOTE) for line in lines
    )
    # Where commas divide fields a later line may be the first with quotes, as of an empty text;
    # a lone quote inside a field says that there are none, and is text.
    usual = delimiter in (",", ";") and not any(QUOTE in line for line in lines)
    quote = QUOTE if quoted or usual else ""
    return Dialect(delimiter, quote, _has_header([*split_lines(lines, delimiter)]))


def split_lines(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    """The fields of lines. Raises csv.Error where quotes are none."""
    if len(delimiter) > 1:
        return [line.split(delimiter) for line in lines]
    return [*csv.reader(lines, delimiter=delimiter, quotechar=QUOTE)]


def _has_header(rows: Sequence[Sequence[str]]) -> bool:
    first = [name.strip() for name in rows[0]]
    # the index of a pandas frame has no name
    first = [*plain_names(first[:1]), *first[1:]]
    if len(set(first)) < len(first) or any(not name or _is_number(name) for name in first):
        return False
    if len(rows) == 1:
        return True
    # without a number below any name, a name that is a value of its column is no name
    numbers = any(_is_number(field) for row in rows[1:] for field in row)
    values = [{row[i] for row in rows[1:] if len(row) > i} for i in range(len(first))]
    return numbers or not any(name in below for name, below in zip(first, values))


def names_twice(lines: Sequence[str], delimiter: str) -> list[str]:
    """Names that a header has more than once; []: none, or the first line is no header.

    It is one where it has texts only, in a column at least of nothing but numbers.
    """
    names, *rows = split_lines(lines[:CHECKED], delimiter)
    names = [name.strip() for name in names]
    numbers = [all(map(_is_number, column)) for column in zip(*rows)]
    if any(map(_is_number, names)) or not all(names) or not any(numbers):
        return []
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def column_names(lines: Sequence[str], dialect: Dialect) -> list[str]:
    """The columns' names; those of a log without a header are c0, c1, ..."""
    fields = split_lines([lines[0]], dialect.delimiter)[0]
    if dialect.header:
        return plain_names([name.strip() for name in fields])
    return [f"c{number}" for number in range(len(fields))]


def typed_hints(lines: Sequence[str], dialect: Dialect) -> dict[str, Hint]:
    """What the header of an atomic file of RecBole says of its columns; {}: it is none."""
    fields = [name.strip() for name in split_lines([lines[0]], dialect.delimiter)[0]]
    matches = [TYPED_NAME.fullmatch(name) for name in fields]
    if not dialect.header or not all(matches):
        return {}
    kinds = {
        "token": Hint(),
        "token_seq": Hint(separator=" "),
        "float_seq": Hint("left out", why=NUMBERS),
    }
    return {match[1]: kinds[match[2]] for match in matches if match and match[2] in kinds}


def has_decimal_comma(values: Sequence[str]) -> bool:
    """Are these texts numbers, some of which have a comma for a point?"""
    return all(map(COMMA_NUMBER.fullmatch, values)) and any("," in value for value in values)
