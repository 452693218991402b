"""Do the parsers of a click log agree with their plain twins on any bytes, and with Python on what
a number is?
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.kernels.logs import tokenize
from neocpu.kernels.twins.logs import tokenize as twin

SETTINGS = settings(deadline=None, derandomize=True, max_examples=30)
SEEDS = st.integers(0, 2**32 - 1)
ALPHABET = b"0123456789abcdefABCDEF+-.eE\"',;:|\tx \r\n\xc3\xa9"


def bytes_of(data: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(data), np.uint8)


def split(module, data, columns, delimiter=b"\t", quote=b"\0"):
    lines = data.count(b"\n")
    begin = np.full((columns, lines), -7, np.int32)
    end = np.full((columns, lines), -7, np.int32)
    first = np.empty(lines + 1, np.int64)
    field_counts = np.empty(lines, np.int32)
    module.split_lines(
        bytes_of(data), np.uint8(delimiter[0]), np.uint8(quote[0]), begin, end, first, field_counts
    )
    return begin, end, first, field_counts


def fields(data, begin, end):
    return [[data[b:e] for b, e in zip(bs, es)] for bs, es in zip(begin.T.tolist(), end.T.tolist())]


def flat(values):
    """Text and borders of a list of fields."""
    ends = np.cumsum([len(v) for v in values], dtype=np.int32)
    begin = (ends - np.array([len(v) for v in values], np.int32)).astype(np.int32)
    return bytes_of(b"".join(values)), begin, ends


def parse(module, name, values, *extra, out=np.uint64):
    text, begin, end = flat(values)
    result = np.full(len(values), 77, out)
    status = np.full(len(values), 99, np.uint8)
    getattr(module, name)(text, begin, end, *extra, result, status)
    return result, status


def same(name, values, *extra, out=np.uint64):
    answers = parse(tokenize, name, values, *extra, out=out)
    expected = parse(twin, name, values, *extra, out=out)
    for answer, twin_answer in zip(answers, expected):
        assert answer.tobytes() == twin_answer.tobytes(), [
            v for v, a, b in zip(values, answer, twin_answer) if a.tobytes() != b.tobytes()
        ]
    return answers


def random_fields(seed, alphabet, longest=12):
    rng = np.random.default_rng(seed)
    return [
        bytes(rng.choice(list(alphabet), rng.integers(0, longest + 1)).astype(np.uint8))
        for _ in range(200)
    ]


@SETTINGS
@given(SEEDS, st.integers(1, 5), st.booleans())
def test_split_lines_equals_twin_on_random_bytes(seed, columns, quotes):
    rng = np.random.default_rng(seed)
    letters = list(b'\t\t\t\n\n\r""ab' if quotes else b"\t\t\t\n\n\rab\x00\xff")
    data = bytes(rng.choice(letters, rng.integers(0, 400)).astype(np.uint8)) + b"\n"
    quote = b'"' if quotes else b"\0"
    for answer, expected in zip(
        split(tokenize, data, columns, quote=quote), split(twin, data, columns, quote=quote)
    ):
        assert np.array_equal(answer, expected), data


@pytest.mark.parametrize("module", [tokenize, twin])
def test_split_lines_knows_line_ends_counts_and_quotes(module):
    data = b"1\t2\t3\r\n\t\t\n4\t5\n6\t7\t8\t9\n\n"
    begin, end, first, field_counts = split(module, data, 3)
    assert fields(data, begin, end) == [[b"1", b"2", b"3"], [b"", b"", b""], *[[b""] * 3] * 3]
    assert field_counts.tolist() == [3, 3, 2, 4, 1] and first.tolist() == [0, 7, 10, 14, 22, 23]
    data = b'"a,b","c ""d""",e\r\n"open,b,c\n"x"y,b,c\n"","",""\n'
    begin, end, _, field_counts = split(module, data, 3, b",", b'"')
    assert fields(data, begin, end)[0] == [b"a,b", b'c ""d""', b"e"] and field_counts.tolist() == [
        3,
        -1,
        -1,
        3,
    ]


@SETTINGS
@given(SEEDS, st.sampled_from([8, 16]))
def test_hex_equals_twin(seed, digits):
    same(
        "parse_hex",
        random_fields(seed, b"0123456789abcdefABCDEF", 18) + random_fields(seed, ALPHABET),
        digits,
    )
    every = [bytes([byte]) for byte in range(256)]
    same("parse_hex", every, digits)


def test_hex_of_known_fields():
    values, status = same(
        "parse_hex", [b"68fd1e64", b"FFFFFFFF", b"", b"123456789", b"12g", b"-1", b"0000000001"], 8
    )
    assert values.tolist() == [0x68FD1E64, 0xFFFFFFFF, 0, 0, 0, 0, 0] and status.tolist() == [
        0,
        0,
        1,
        3,
        2,
        2,
        3,
    ]


@SETTINGS
@given(SEEDS)
def test_integers_equal_twin(seed):
    rng = np.random.default_rng(seed)
    edges = [str(m * 2**63 + d).encode() for m in (-2, -1, 1, 2) for d in range(-2, 3)]
    usual = [str(v).encode() for v in rng.integers(-(2**63), 2**63, 50)]
    odd = [
        b"",
        b"-",
        b"+",
        b"+7",
        b"--1",
        b"1-",
        b"00012",
        b"9" * 40,
        b"9" * 40 + b"x",
        b"1.0",
        b" 1",
    ]
    values, _ = same(
        "parse_integers",
        edges + usual + odd + random_fields(seed, b"+-0123456789x", 21),
        out=np.int64,
    )
    assert values[len(edges) : len(edges) + 50].tolist() == [int(v) for v in usual]


@SETTINGS
@given(SEEDS)
def test_decimals_equal_twin_and_are_correctly_rounded(seed):
    rng = np.random.default_rng(seed)
    usual = [
        f"{v:.{rng.integers(0, 12)}{rng.choice(list('efg'))}}".encode()
        for v in rng.normal(0, 1e3, 100)
    ]
    odd = [
        b"",
        b".",
        b"-.",
        b"1.",
        b".5",
        b"-0",
        b"1e5",
        b"1E+22",
        b"1e23",
        b"1e",
        b"1e+",
        b"e5",
        b"1.2.3",
        b"nan",
        b"inf",
    ]
    long = [
        b"0." + b"0" * 30,
        b"123456789012345",
        b"1234567890123456",
        b"0.00000000000000012345",  # zeros before the first digit do not count
        b"1e99999999999",
        b"1e-99999999999",
        b"1_0",
    ]
    values, status = same(
        "parse_decimals",
        usual + odd + long + random_fields(seed, b"+-.eE0123456789"),
        out=np.float64,
    )
    assert status[:100].max() in (0, 7)
    for text, value, state in zip(usual, values.tolist(), status.tolist()):
        assert state == 7 or value == float(text)


@SETTINGS
@given(SEEDS, st.sampled_from([0, 34]))
def test_text_hash_equals_twin(seed, quote):
    same("hash_text", random_fields(seed, ALPHABET + b'"' * 20, 30), np.uint8(quote))


def test_text_hash_is_fnv1a():
    values, status = same("hash_text", [b"", b"a", b"foobar"], np.uint8(0))
    assert values.tolist() == [0, 0xAF63DC4C8601EC8C, 0x85944171F73967E8] and status.tolist() == [
        1,
        0,
        0,
    ]


@SETTINGS
@given(SEEDS)
def test_lists_equal_twin(seed):
    values = random_fields(seed, b"ab||:")
    text, begin, end = flat(values)
    results = []
    for module in (tokenize, twin):
        lengths = np.empty(len(values), np.int32)
        module.count_items(text, begin, end, np.uint8(ord("|")), lengths)
        first, last = np.empty((2, int(lengths.sum())), np.int32)
        module.split_items(text, begin, end, np.uint8(ord("|")), first, last)
        mark = np.empty(len(values), np.int32)
        module.find_last(text, begin, end, np.uint8(ord(":")), mark)
        results.append((lengths, first, last, mark))
    for answer, expected in zip(*results):
        assert np.array_equal(answer, expected)
    whole = b"".join(values)
    items = [whole[a:b] for a, b in zip(results[0][1], results[0][2])]
    assert items == [item for value in values if value for item in value.split(b"|")]


@SETTINGS
@given(SEEDS)
def test_squash_equals_twin(seed):
    rng = np.random.default_rng(seed)
    x = np.concatenate(
        [
            [0.0, -0.0, -3.0, np.nan, np.inf, 1e308, 5e-324],
            rng.integers(-9, 2**40, 300),
            rng.normal(0, 9, 99),
        ]
    )
    answer = np.empty(x.size, np.float32)
    expected = np.empty(x.size, np.float32)
    tokenize.squash(x, answer)
    twin.squash(x, expected)
    assert answer.tobytes() == expected.tobytes() and answer[2] == 0 and answer[4] == np.inf
