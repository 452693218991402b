"""How does a click log become numbers?

First the borders of all fields are found, then a small parser reads each kind of field.

Text is bytes (u8) and holds whole lines. A field is text[begin:end]; the borders of all fields of a
block are two matrices [columns, lines], so that neighbouring columns of one kind are one contiguous
range of fields:

    "0\\t1\\t68fd1e64\\n1\\t\\t8cf07265\\n"
    begin [[0, 13], [2, 15], [4, 16]]   end [[1, 14], [3, 15], [12, 24]]

Every parser gives each field a status: 0 is valid, 1 empty (value 0), 2 and above an error. All
fields of a line that cannot be split are empty. Only `parse_decimals` and `squash` round, and say
so.
"""

import numpy as np

from neocpu.kernels.compile.jit import kernel
from neocpu.kernels.numbers.elementary import log1p

# Status of a field; `neocpu.ingest.formats.text` turns it into an error message.
_EMPTY = 1
_NOT_HEX = 2
_TOO_LONG = 3
_NOT_INTEGER = 4
_TOO_LARGE = 5
_NOT_NUMBER = 6
_INEXACT = 7

_NEWLINE = np.uint8(10)
_RETURN = np.uint8(13)
_ZERO = np.uint8(48)
_MINUS = np.uint8(45)
_PLUS = np.uint8(43)
_POINT = np.uint8(46)
# value of each byte as a hexadecimal digit, 255 if it is none
_HEX = np.full(256, 255, np.uint8)
for _digit, _letter in enumerate("0123456789abcdef"):
    _HEX[ord(_letter)] = _digit
    _HEX[ord(_letter.upper())] = _digit
# powers of ten that are exact in fp64
_POWERS = np.array([float(f"1e{power}") for power in range(23)])


@kernel
def split_lines(text, delimiter, quote, begin, end, first, found):
    """Borders of all fields of a block of lines, which end with LF or CR LF.

    A line whose number of fields is not `columns` gets empty fields. A field that opens with a
    quote reaches to the closing quote; inside it a doubled quote stands for one (`hash_text` skips
    the second). Quoted fields do not span lines.
    Shapes: text u8[n]; delimiter, quote u8 (quote 0: none); begin, end i32[columns, lines]; first
    i64[lines + 1], where each line starts (last entry: n); found i32[lines], the number of fields,
    -1 where a quote is not closed.
    """
    columns, lines = begin.shape
    p = np.int64(0)
    for line in range(lines):
        first[line] = p
        column = 0
        while True:
            opened = quote != 0 and text[p] == quote
            if opened:
                p += 1
                start = p
                while text[p] != _NEWLINE and not (text[p] == quote and text[p + 1] != quote):
                    p += 2 if text[p] == quote else 1
                stop = p
                if text[p] == _NEWLINE:
                    column = -1
                    break
                p += 1
                malformed = (
                    text[p] != delimiter
                    and text[p] != _NEWLINE
                    and not (text[p] == _RETURN and text[p + 1] == _NEWLINE)
                )
                if malformed:
                    column = -1
                    break
                if text[p] == _RETURN:
                    p += 1
            else:
                start = p
                while text[p] != delimiter and text[p] != _NEWLINE:
                    p += 1
                stop = p
                if text[p] == _NEWLINE and stop > start and text[stop - 1] == _RETURN:
                    stop -= 1
            if column < columns:
                begin[column, line] = start
                end[column, line] = stop
            column += 1
            if text[p] == _NEWLINE:
                break
            p += 1
        while text[p] != _NEWLINE:
            p += 1
        p += 1
        found[line] = column
        if column != columns:
            for c in range(columns):
                begin[c, line] = first[line]
                end[c, line] = first[line]
    first[lines] = p


@kernel
def parse_hex(text, begin, end, digits, out, status):
    """Hexadecimal fields of at most `digits` (<= 16) digits, upper or lower case.

    Shapes: text u8[t]; begin, end i32[n]; digits i64; out u64[n]; status u8[n].
    """
    for i in range(begin.size):
        start = begin[i]
        stop = end[i]
        value = np.uint64(0)
        union = np.uint8(0)
        # No branch on the text: digits and letters come at random and would be mispredicted.
        for p in range(start, stop):
            digit = _HEX[text[p]]
            union |= digit
            value = (value << np.uint64(4)) | np.uint64(digit)
        code = np.uint8(_NOT_HEX if union > 15 else _TOO_LONG if stop - start > digits else 0)
        if stop == start:
            code = np.uint8(_EMPTY)
        out[i] = value if code == 0 else np.uint64(0)
        status[i] = code


@kernel
def parse_integers(text, begin, end, out, status):
    """Decimal integers with an optional sign, -2^63 <= x < 2^63.

    Shapes: text u8[t]; begin, end i32[n]; out i64[n]; status u8[n].
    """
    limit = np.uint64(9223372036854775808)
    for i in range(begin.size):
        p = begin[i]
        stop = end[i]
        if p == stop:
            out[i] = 0
            status[i] = _EMPTY
            continue
        negative = text[p] == _MINUS
        if negative or text[p] == _PLUS:
            p += 1
        code = _NOT_INTEGER if p == stop else 0
        value = np.uint64(0)
        for q in range(p, stop):
            digit = np.uint64(text[q] - _ZERO)
            if text[q] < _ZERO or digit > 9:
                code = _NOT_INTEGER
                break
            # The first bound, 2^63 // 10, keeps value * 10 + digit below 2^64.
            if code == 0 and (
                value > np.uint64(922337203685477580)
                or value * np.uint64(10) + digit > (limit if negative else limit - np.uint64(1))
            ):
                code = _TOO_LARGE
            value = value * np.uint64(10) + digit
        # -2^63 has no positive counterpart: as a word, 2^63 wraps round to it
        signed = np.int64(value)
        out[i] = 0 if code else (-signed if negative else signed)
        status[i] = code


@kernel
def parse_decimals(text, begin, end, out, status):
    """Decimal numbers (sign, digits, point, exponent) as fp64, where one rounding suffices.

    A number of at most 15 digits and a power of ten within 10^±22 is one IEEE multiplication or
    division of exact values, hence correctly rounded. Longer ones get status 7 and value 0, and
    the caller converts their text exactly.
    Shapes: text u8[t]; begin, end i32[n]; out f64[n]; status u8[n].
    """
    for i in range(begin.size):
        p = np.int64(begin[i])
        stop = np.int64(end[i])
        out[i] = 0.0
        if p == stop:
            status[i] = _EMPTY
            continue
        negative = text[p] == _MINUS
        if negative or text[p] == _PLUS:
            p += 1
        mantissa = np.int64(0)
        significant = 0
        digit_count = 0
        power = np.int64(0)
        point = False
        while p < stop and (
            (text[p] >= _ZERO and text[p] <= 57) or (text[p] == _POINT and not point)
        ):
            if text[p] == _POINT:
                point = True
            else:
                digit_count += 1
                if significant > 0 or text[p] != _ZERO:
                    significant += 1
                # 15 digits are below 2^53: the mantissa is exact in fp64
                if significant <= 15:
                    mantissa = mantissa * 10 + np.int64(text[p] - _ZERO)
                if point:
                    power -= 1
            p += 1
        malformed = digit_count == 0
        if not malformed and p < stop and (text[p] | 32) == 101:  # e or E
            p += 1
            minus = p < stop and text[p] == _MINUS
            if p < stop and (minus or text[p] == _PLUS):
                p += 1
            malformed = p == stop
            exponent = np.int64(0)
            while p < stop and text[p] >= _ZERO and text[p] <= 57:
                # the limit only keeps a long exponent from overflowing
                exponent = min(exponent * 10 + np.int64(text[p] - _ZERO), 100000)
                p += 1
            power += -exponent if minus else exponent
        if malformed or p < stop:
            status[i] = _NOT_NUMBER
        elif significant > 15 or power > 22 or power < -22:
            status[i] = _INEXACT
        else:
            value = np.float64(mantissa)
            value = value / _POWERS[-power] if power < 0 else value * _POWERS[power]
            out[i] = -value if negative else value
            status[i] = 0


@kernel
def hash_text(text, begin, end, quote, out, status):
    """FNV-1a 64-bit hash of each field's bytes; a doubled quote counts as one.

    Shapes: text u8[t]; begin, end i32[n]; quote u8 (0: none); out u64[n], 0 for an empty field;
    status u8[n].
    Source: Fowler, Noll, Vo; offset 0xcbf29ce484222325, prime 0x100000001b3 (docs/arithmetic.md
    §10).
    """
    for i in range(begin.size):
        h = np.uint64(0xCBF29CE484222325)
        p = np.int64(begin[i])
        stop = np.int64(end[i])
        empty = p == stop
        while p < stop:
            # mod 2^64, as unsigned words wrap
            h = (h ^ np.uint64(text[p])) * np.uint64(0x100000001B3)
            p += (
                2
                if quote != 0 and text[p] == quote and p + 1 < stop and text[p + 1] == quote
                else 1
            )
        out[i] = np.uint64(0) if empty else h
        status[i] = _EMPTY if empty else 0


@kernel
def count_items(text, begin, end, separator, lengths):
    """Number of items of each list field: separators + 1, or 0 if the field is empty.

    Shapes: text u8[t]; begin, end i32[n]; separator u8; lengths i32[n].
    """
    for i in range(begin.size):
        count = 0 if begin[i] == end[i] else 1
        for p in range(begin[i], end[i]):
            if text[p] == separator:
                count += 1
        lengths[i] = count


@kernel
def split_items(text, begin, end, separator, item_begin, item_end):
    """Borders of the items of all list fields; `count_items` gives their numbers.

    Shapes: text u8[t]; begin, end i32[n]; separator u8; item_begin, item_end i32[sum of lengths].
    """
    item = 0
    for i in range(begin.size):
        start = begin[i]
        if start == end[i]:
            continue
        for p in range(begin[i], end[i]):
            if text[p] == separator:
                item_begin[item] = start
                item_end[item] = p
                item += 1
                start = p + 1
        item_begin[item] = start
        item_end[item] = end[i]
        item += 1


@kernel
def find_last(text, begin, end, mark, out):
    """Position of the last `mark` in each field (as in "code:weight"), else the field's end.

    Shapes: text u8[t]; begin, end i32[n]; mark u8; out i32[n].
    """
    for i in range(begin.size):
        out[i] = end[i]
        for p in range(begin[i], end[i]):
            if text[p] == mark:
                out[i] = p


@kernel
def squash(x, out):
    """Default transform of dense columns: log1p(max(x, 0)) in fp64, rounded to fp32; NaN stays.

    Shapes: x f64[n]; out f32[n]. Source: docs/arithmetic.md §10, after the DLRM reference.
    """
    for i in range(x.size):
        # `<=`, not a maximum: a NaN stays one
        out[i] = np.float32(log1p(0.0 if x[i] <= 0.0 else x[i]))
