"""Are the random numbers Philox4x32-10, the same in kernel and twin, and free of any order?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.kernels.numbers import philox
from neocpu.kernels.twins.numbers import philox as twin

SETTINGS = settings(deadline=None, derandomize=True, max_examples=25)

# Known-answer vectors published with Random123 (kat_vectors, "philox4x32 10"): counter, key,
# result.
KNOWN = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize("module", [philox, twin], ids=["kernel", "twin"])
@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(module, counter, key, result):
    c, k, expected = ([int(word, 16) for word in text.split()] for text in (counter, key, result))
    out = np.empty((1, 4), np.uint32)
    row = int(np.uint64(c[0] | c[1] << 32).astype(np.int64))
    module.random_words(np.uint64(k[0] | k[1] << 32), row, 4 * c[2], c[3], out)
    assert out[0].tolist() == expected


def test_mixers_have_their_published_values():
    assert twin.splitmix64(0) == 0xE220A8397B1DCDAF  # first output of SplitMix64 from state 0
    assert twin.fnv1a64("") == 0xCBF29CE484222325
    assert twin.fnv1a64("a") == 0xAF63DC4C8601EC8C
    assert twin.fnv1a64("foobar") == 0x85944171F73967E8


def test_keys_differ_by_seed_purpose_and_name():
    names = ("C1", "C2", "bottom.0.weight")
    keys = {int(twin.tensor_key(s, p, n)) for s in (0, 1, 2**63) for p in (1, 5) for n in names}
    assert len(keys) == 18


@SETTINGS
@given(
    seed=st.integers(0, 2**64 - 1),
    columns=st.sampled_from([0, 1, 3, 4, 5, 16, 33]),
    column0=st.sampled_from([0, 1, 2, 3, 4, 60, 1021]),
    rows=st.integers(0, 9),
)
def test_kernels_equal_twins(seed, columns, column0, rows):
    rng = np.random.default_rng(seed)
    key = twin.tensor_key(seed, twin.INIT, "C1")
    ids = rng.integers(0, 2**40, rows)
    answer = np.empty((rows, columns), np.float32)
    expected = np.empty((rows, columns), np.float32)
    scale = np.float32(rng.uniform(1e-9, 2))
    philox.uniform_rows(key, ids, column0, scale, answer)
    twin.uniform_rows(key, ids, column0, scale, expected)
    assert answer.tobytes() == expected.tobytes()
    assert (answer >= -scale).all() and (answer <= scale).all()
    answer = np.empty((rows, columns), np.uint32)
    expected = np.empty((rows, columns), np.uint32)
    philox.random_words(key, 2**33, column0, 7, answer)
    twin.random_words(key, 2**33, column0, 7, expected)
    assert answer.tobytes() == expected.tobytes()
    words = np.empty(rows, np.uint64)
    twin.random_words64(key, ids, column0 & ~1, 3, words)
    halves = np.empty((1, 2), np.uint32)
    for row, word in zip(ids, words):
        philox.random_words(key, row, column0 & ~1, 3, halves)
        assert word.tobytes() == halves.tobytes()


def test_any_block_of_a_tensor_can_be_drawn_alone():
    key = twin.tensor_key(5, twin.INIT, "C9")
    whole = np.empty((40, 30), np.float32)
    philox.uniform_rows(key, np.arange(40), 0, np.float32(0.25), whole)
    part = np.empty((10, 12), np.float32)
    philox.uniform_rows(key, np.arange(20, 30), 8, np.float32(0.25), part)
    assert part.tobytes() == np.ascontiguousarray(whole[20:30, 8:20]).tobytes()


def test_uniform_values_look_uniform():
    out = np.empty((2000, 64), np.float32)
    philox.uniform_rows(twin.tensor_key(1, twin.INIT, "C1"), np.arange(2000), 0, np.float32(1), out)
    counts, _ = np.histogram(out, bins=64, range=(-1, 1))
    assert abs(out.mean(dtype=np.float64)) < 5 / np.sqrt(3 * out.size)
    assert ((counts - 2000.0) ** 2 / 2000.0).sum() < 63 + 6 * np.sqrt(2 * 63)
