"""What do the parsers of a click log compute? The plain twin of `kernels/logs/tokenize.py`."""

import itertools
import re

import numpy as np

from neocpu.kernels.twins.numbers.elementary import log1p

EMPTY = 1
NOT_HEX = 2
TOO_LONG = 3
NOT_INTEGER = 4
TOO_LARGE = 5
NOT_NUMBER = 6
INEXACT = 7


def _fields(text, begin, end):
    """Bytes of every field."""
    block = bytes(text)
    return [block[b:e] for b, e in zip(begin.tolist(), end.tolist())]


def _quoted(line, delimiter, quote):
    """Spans of the fields of a line without its newline; None where a quote is not closed."""
    d = re.escape(bytes([delimiter]))
    q = re.escape(bytes([quote]))
    field = re.compile(
        b"(?:%b((?:[^%b]|%b%b)*)%b|((?!%b)[^%b]*))(%b|\\Z)" % (q, q, q, q, q, q, d, d), re.DOTALL
    )
    spans = []
    position = 0
    while True:
        match = field.match(line, position)
        if match is None:
            return None
        spans.append(match.span(1 if match.group(1) is not None else 2))
        if not match.group(3):
            return spans
        position = match.end()


def _plain(line, delimiter):
    """Spans of the fields of a line without quotes."""
    cuts = [-1, *(i for i, byte in enumerate(line) if byte == delimiter), len(line)]
    return [(a + 1, b) for a, b in itertools.pairwise(cuts)]


def split_lines(text, delimiter, quote, begin, end, first, found):
    """Borders of all fields of a block of lines; see `kernels.logs.tokenize.split_lines`."""
    lines = bytes(text).split(b"\n")[:-1]
    first[:] = np.cumsum([0, *(len(line) + 1 for line in lines)])
    for i, line in enumerate(lines):
        body = line.removesuffix(b"\r")
        spans = _quoted(body, delimiter, quote) if quote else _plain(body, delimiter)
        found[i] = -1 if spans is None else len(spans)
        if spans is None or len(spans) != begin.shape[0]:
            spans = [(0, 0)] * begin.shape[0]
        begin[:, i] = first[i] + np.array(spans)[:, 0]
        end[:, i] = first[i] + np.array(spans)[:, 1]


def parse_hex(text, begin, end, digits, out, status):
    """Hexadecimal fields; see `kernels.logs.tokenize.parse_hex`."""
    for i, field in enumerate(_fields(text, begin, end)):
        match = re.fullmatch(b"[0-9a-fA-F]+", field)
        status[i] = (
            EMPTY if not field else NOT_HEX if not match else TOO_LONG if len(field) > digits else 0
        )
        out[i] = 0 if status[i] else int(field, 16)


def parse_integers(text, begin, end, out, status):
    """Decimal integers; see `kernels.logs.tokenize.parse_integers`."""
    for i, field in enumerate(_fields(text, begin, end)):
        match = re.fullmatch(b"[+-]?[0-9]+", field)
        # Python's integers do not overflow: whether the value fits is asked afterwards
        value = int(field) if match else 0
        fits = -(2**63) <= value < 2**63
        status[i] = EMPTY if not field else NOT_INTEGER if not match else 0 if fits else TOO_LARGE
        out[i] = value if fits else 0


def parse_decimals(text, begin, end, out, status):
    """Decimal numbers, where few digits make them exact; see
    `kernels.logs.tokenize.parse_decimals`.
    """
    for i, field in enumerate(_fields(text, begin, end)):
        out[i] = 0.0
        match = re.fullmatch(rb"[+-]?(?=\.?[0-9])([0-9]*)\.?([0-9]*)(?:[eE]([+-]?[0-9]+))?", field)
        if not field or not match:
            status[i] = NOT_NUMBER if field else EMPTY
            continue
        whole, fraction, exponent = match.groups(b"")
        power = max(-100000, min(int(exponent or 0), 100000)) - len(fraction)
        short = len((whole + fraction).lstrip(b"0")) <= 15 and -22 <= power <= 22
        status[i] = 0 if short else INEXACT
        # Python rounds any text correctly, as one operation on exact numbers does
        out[i] = float(field) if short else 0.0


def hash_text(text, begin, end, quote, out, status):
    """FNV-1a 64 hash of each field; see `kernels.logs.tokenize.hash_text`."""
    for i, field in enumerate(_fields(text, begin, end)):
        if quote:
            field = field.replace(bytes([quote, quote]), bytes([quote]))
        value = 0xCBF29CE484222325
        for byte in field:
            value = (value ^ byte) * 0x100000001B3 % 2**64
        out[i] = value if field else 0
        status[i] = 0 if field else EMPTY


def count_items(text, begin, end, separator, lengths):
    """Number of items of each list field; see `kernels.logs.tokenize.count_items`."""
    fields = _fields(text, begin, end)
    lengths[:] = [field.count(bytes([separator])) + 1 if field else 0 for field in fields]


def split_items(text, begin, end, separator, item_begin, item_end):
    """Borders of the items of list fields; see `kernels.logs.tokenize.split_items`."""
    fields = zip(begin.tolist(), _fields(text, begin, end))
    spans = [
        (start + a, start + b)
        for start, field in fields
        if field
        for a, b in _plain(field, separator)
    ]
    item_begin[:] = [a for a, _ in spans]
    item_end[:] = [b for _, b in spans]


def find_last(text, begin, end, mark, out):
    """Position of the last mark in each field; see `kernels.logs.tokenize.find_last`."""
    positions = [field.rfind(bytes([mark])) for field in _fields(text, begin, end)]
    out[:] = np.where(np.array(positions, int) < 0, end, begin + np.array(positions, int))


def squash(x, out):
    """fp32 of log1p(max(x, 0)), log1p in fp64; see `kernels.logs.tokenize.squash`."""
    out[:] = log1p(np.where(x <= 0, 0.0, x)).astype(np.float32)
