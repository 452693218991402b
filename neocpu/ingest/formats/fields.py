"""Where are the fields of a block of rows, and what comes of them? Bytes, and the borders of each
field in them; then columns of the good rows, and the faults of the others.

    "0,68fd|1e64\\n1,\\n"    begin [[0, 12], [2, 14]]    end [[1, 13], [11, 14]]

A text is split at its delimiters; a data frame has no delimiters, and its fields are laid side by
side (`neocpu.ingest.formats.frames`). One parser reads both (`neocpu.ingest.formats.text`), so the
same rows have the same codes, numbers and faults.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Bytes, Floats, Ints
from neocpu.ingest.dataset_layout import BagColumn
from neocpu.ingest.formats.schema import CategoryField, Schema
from neocpu.kernels.logs import tokenize

I32 = NDArray[np.int32]
SHOWN = 80  # characters of the faulty text in a message


class Fault(NamedTuple):
    """A line that cannot be used.

    line : its number in the block, from 0. column : "" for the whole line. reason : what is wrong.
    """

    line: int
    column: str
    text: str
    reason: str

    def described(self, where: str) -> str:
        """What is wrong, and where."""
        if not self.column:
            return f"{where} {self.reason}: {self.text!r}"
        return f"{where}, column {self.column}: {self.text!r} {self.reason}"


class Items(NamedTuple):
    """The items of a column of lists.

    lengths : i32[rows]. begin, end : borders of each item, i32[sum of lengths]. weight_begin,
    weight_end : those of its weight; nothing between them: it has none.
    """

    lengths: I32
    begin: I32
    end: I32
    weight_begin: I32
    weight_end: I32


class Fields(NamedTuple):
    """The fields of a block.

    text : u8[n]. begin, end : i32[columns, rows]. faults : of rows that have other columns; their
    fields are empty. items : by column number, of lists that were lists already.
    """

    text: Bytes
    begin: I32
    end: I32
    faults: list[Fault]
    items: Mapping[int, Items]


def shown(raw: bytes) -> str:
    """Faulty bytes as they stand in a message."""
    text = raw.decode("utf-8", "backslashreplace")
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def split_text(schema: Schema, text: Bytes) -> Fields:
    """The fields of whole lines, u8[n] ending with a newline, in the columns of a schema."""
    # Counted first, so that the kernel fills arrays of the right size and never grows any.
    lines = int(np.count_nonzero(text == 10))
    columns = len(schema.columns)
    begin, end = np.empty((2, columns, lines), np.int32)
    first = np.empty(lines + 1, np.int64)
    column_counts = np.empty(lines, np.int32)
    delimiter = np.uint8(ord(schema.delimiter or "\0"))
    quote = np.uint8(ord(schema.quote or "\0"))
    tokenize.split_lines(text, delimiter, quote, begin, end, first, column_counts)
    faults = []
    wrong = column_counts != columns
    if not text.all():  # a disk or a host that failed leaves NULs where rows were
        wrong[np.searchsorted(first, np.flatnonzero(text == 0), side="right") - 1] = True
    for line in np.flatnonzero(wrong).tolist():
        # Faulty lines only: making Python texts of all would cost more than parsing them.
        raw = text[first[line] : first[line + 1]].tobytes().rstrip(b"\r\n")
        faults.append(_miscount(line, raw, int(column_counts[line]), columns))
    return Fields(text, begin, end, faults, {})


def with_constants(fields: Fields, values: Mapping[str, str]) -> Fields:
    """Fields with further columns behind the others, each of one value in all rows."""
    if not values:
        return fields
    rows = fields.begin.shape[1]
    texts = [value.encode("utf-8", "replace") for value in values.values()]
    end = fields.text.size + np.cumsum([len(text) for text in texts])
    begin = end - [len(text) for text in texts]
    text = np.frombuffer(bytearray(fields.text.tobytes() + b"".join(texts)), np.uint8)
    repeated = [np.repeat(border.astype(np.int32)[:, None], rows, 1) for border in (begin, end)]
    return fields._replace(
        text=text,
        begin=np.concatenate([fields.begin, repeated[0]]),
        end=np.concatenate([fields.end, repeated[1]]),
    )


def _miscount(line: int, raw: bytes, count: int, expected: int) -> Fault:
    reason = f"has {count} column{'s' * (count != 1)}, expected {expected}"
    if b"\0" in raw:
        reason = "has NUL bytes"
    elif count < 0:
        reason = "has a quote that is not closed"
    return Fault(line, "", shown(raw), reason)


def split_items(text: Bytes, begin: I32, end: I32, field: CategoryField) -> Items:
    """The items of fields that hold lists as text, cut at the separators of a category."""
    lengths = np.empty(begin.size, np.int32)
    separator = np.uint8(ord(field.separator))
    tokenize.count_items(text, begin, end, separator, lengths)
    first, last = np.empty((2, int(lengths.sum(dtype=np.int64))), np.int32)
    tokenize.split_items(text, begin, end, separator, first, last)
    if not field.weight_separator:
        # An empty span for each weight: the item has none, and counts once.
        return Items(lengths, first, last, last, last)
    stop = np.empty(last.size, np.int32)
    tokenize.find_last(text, first, last, np.uint8(ord(field.weight_separator)), stop)
    return Items(lengths, first, stop, np.minimum(stop + np.int32(1), last), last)


def join_weights(items: Items, weights: Items) -> Items:
    """Items with the items of another column as their weights.

    Where a row has other numbers of both, its items have no weights (the row is faulty).
    """
    if np.array_equal(items.lengths, weights.lengths):
        return items._replace(weight_begin=weights.begin, weight_end=weights.end)
    begin = np.zeros_like(items.begin)
    end = np.zeros_like(items.end)
    agree = items.lengths == weights.lengths
    here = np.repeat(agree, items.lengths)
    there = np.repeat(agree, weights.lengths)
    begin[here] = weights.begin[there]
    end[here] = weights.end[there]
    return items._replace(weight_begin=begin, weight_end=end)


def equal_to(text: Bytes, begin: I32, end: I32, word: bytes, among: Ints) -> Ints:
    """Which of some flat fields, by their numbers, are exactly this word."""
    # By length first: hardly any field is left for the bytes to be compared.
    matches = among[(end - begin)[among] == len(word)]
    for place, byte in enumerate(word):
        matches = matches[text[begin[matches] + place] == byte]
    return matches


def blank(text: Bytes, begin: I32, end: I32, words: tuple[bytes, ...]) -> I32:
    """The ends of flat fields, those that are one of these words made empty."""
    # The borders themselves stay: messages show a faulty field as it was written.
    blanked = end.copy()
    every = np.arange(begin.size)
    for word in words:
        matches = equal_to(text, begin, end, word, every)
        blanked[matches] = begin[matches]
    return blanked


@dataclass(frozen=True)
class Parsed:
    """The good lines of a block as columns, and its faults in line order.

    labels : f32[n]. dense : f32[n, Nd]. features : by name. missing_dense, missing : how many
    fields were empty. lines : of the block, faulty ones too. more_labels : f32[n] by name, besides
    `labels`. invalid : how many of the empty fields of dense columns were texts, by name of those
    where that is no fault.
    """

    labels: Floats | None
    dense: Floats
    features: dict[str, BagColumn]
    missing_dense: Ints
    missing: dict[str, int]
    lines: int
    faults: list[Fault]
    more_labels: Mapping[str, Floats] = field(default_factory=dict)
    invalid: Mapping[str, int] = field(default_factory=dict)


def joined(parts: list[Parsed]) -> Parsed:
    """Parsed rows of several blocks as one."""
    if len(parts) == 1:
        return parts[0]
    columns = {}
    for name in parts[0].features:
        bags = [part.features[name] for part in parts]
        lengths = [bag.lengths for bag in bags if bag.lengths is not None]
        weights = [bag.weights for bag in bags if bag.weights is not None]
        columns[name] = BagColumn(
            np.concatenate([bag.codes for bag in bags]),
            np.concatenate(lengths) if lengths else None,
            np.concatenate(weights) if weights else None,
        )
    labels = [part.labels for part in parts if part.labels is not None]
    return Parsed(
        labels=np.concatenate(labels) if labels else None,
        dense=np.concatenate([part.dense for part in parts]),
        features=columns,
        missing_dense=np.sum([part.missing_dense for part in parts], axis=0, dtype=np.int64),
        missing={name: sum(part.missing.get(name, 0) for part in parts) for name in columns},
        lines=sum(part.lines for part in parts),
        faults=[],
        more_labels={
            name: np.concatenate([part.more_labels[name] for part in parts])
            for name in parts[0].more_labels
        },
        invalid={name: sum(part.invalid[name] for part in parts) for name in parts[0].invalid},
    )
