"""How do rows of Vowpal Wabbit become columns?

    1 2.0 'id |user u7 vip |ad:0.5 price:3 site:news     label "1", weight "2.0", tag "id",
                                                         user "u7 vip", ad "price:1.5 site=news:0.5"

A namespace is a list of weighted items, as a row of libsvm is (`sparse_records.py`), and the one
without a name is `features`. A value that is no number is part of the item's name. A row without a
weight has weight 1.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import polars as pl

from neocpu.ingest.formats.files.frame_file import Hint
from neocpu.ingest.formats.files.record_file import NoRecordError, Record, Rows, line_rows
from neocpu.ingest.formats.files.sparse_records import FEATURES, SparseRecords, item

NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
HEAD = ("label", "weight", "base")  # numbers before the tag
LEFT_OUT = {
    "weight": "how often each row counts; `neocpu fit --weight weight` takes it",
    "base": "predictions to begin with, which no model takes",
    "tag": "names of rows",
}
LIST = Hint("text", " ", ":")


def parse_vw(line: str) -> Record:
    """A row of Vowpal Wabbit. Raises NoRecordError where a line is none."""
    head, bar, body = line.partition("|")
    words = head.split()
    record: Record = {}
    if words and bar and (words[-1].startswith("'") or not head[-1].isspace()):
        record["tag"] = words.pop().removeprefix("'")
    if not bar or len(words) > len(HEAD) or not all(map(NUMBER.fullmatch, words)):
        raise NoRecordError(f"has {head!r:.40} where Vowpal Wabbit has LABEL WEIGHT 'TAG |")
    record |= {name: word.removeprefix("+") for name, word in zip(HEAD, words)}
    items: dict[str, list[str]] = {}
    for part in body.split("|"):
        words = part.split()
        name, _, scale = words.pop(0).partition(":") if part[:1].strip() else (FEATURES, "", "")
        if scale and not NUMBER.fullmatch(scale):
            raise NoRecordError(f"has {scale!r:.40} as the scale of a namespace")
        column = f"{name}_" if name in (*HEAD, "tag") else name
        items.setdefault(column, []).extend(_item(word, scale) for word in words)
    return record | {name: " ".join(each) for name, each in items.items()}


def _item(word: str, scale: str) -> str:
    """A feature as an item of a list, its value times the scale of its namespace."""
    code, colon, value = word.partition(":")
    if not code or (colon and not value) or ":" in value:
        raise NoRecordError(f"has {word!r:.40} where Vowpal Wabbit has NAME:VALUE")
    if colon and not NUMBER.fullmatch(value):
        code, value = f"{code}={value}", ""
    if scale:
        value = repr(float(value or 1) * float(scale))
    return item(code, value or "1")


class VowpalWabbit(SparseRecords):
    """A text of Vowpal Wabbit rows: a list, or a category, for each namespace."""

    def __init__(self, path: Path, wanted: Collection[str] = ()) -> None:
        self._lists: set[str] = set()
        super().__init__(path)
        # all rows of a file may lack a namespace, and a weight is 1 then
        self.types |= {name: pl.String() for name in wanted if name != "label"}
        self._absent = {"weight": "1"}
        namespaces = [name for name in self.types if name not in (*HEAD, "tag")]
        self.hints: Mapping[str, Hint] = {
            name: Hint("left out", why=why) for name, why in LEFT_OUT.items()
        } | {name: LIST if name in self._lists else Hint() for name in namespaces}

    def _note(self, name: str, value: object) -> None:
        self.types[name] = pl.String()
        if isinstance(value, str) and (" " in value or ":" in value):
            self._lists.add(name)

    def parsed(self) -> Iterator[tuple[Rows, int]]:
        """The rows of the file, piece by piece, and the bytes read so far."""
        return line_rows(self.path, parse_vw, "#")
