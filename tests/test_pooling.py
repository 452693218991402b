"""Are pooled sums exact, rounded once, for any numbers, widths and lengths of bags?"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.kernels.compile.jit import kernel
from neocpu.kernels.numbers.rounding import CANONICAL_NAN
from neocpu.kernels.operands import Bag, Bags, Entries, Lines, Terms, WideBags
from neocpu.kernels.rows import few, lookup, pooling
from neocpu.kernels.rows.compensated import BagGroup, round_group
from neocpu.kernels.rows.pooling import sum_plain
from neocpu.kernels.simd.ahead import near_of
from neocpu.kernels.simd.bags import plain_rows_1
from neocpu.kernels.simd.flags import rounded
from neocpu.kernels.simd.quiet import QUIET, X86
from neocpu.kernels.twins.numbers.exact import exact_sum, whole
from neocpu.kernels.twins.rows import lookup as lookup_twin
from neocpu.kernels.twins.rows import pooling as twin
from neocpu.parallel.transport.buffers import in_lines
from tests.cases import FILLS, assert_same, bag_offsets, floats, lookups

WIDTHS = (1, 2, 3, 4, 5, 15, 16, 17, 20, 63, 64, 67, 100, 128, 149)


NONE = np.empty(0, np.float32)
round_bag = kernel(pooling.round_bag)
sum_bag = kernel(pooling.sum_bag)


class Case(NamedTuple):
    """Arguments of a lookup in fp32 tables, and the matrix [samples, columns] it writes."""

    table: np.ndarray
    entries: Entries
    bags: Bags
    lines: Lines
    samples: int
    columns: int

    def pooled(self, module, mean=False):
        """The matrix that a kernel or its twin makes of it."""
        out = np.full((self.samples, self.columns), 7, np.float32)
        arguments = (self.table, self.entries, self.bags, mean, self.lines)
        module.pooled_rows(*arguments, out.reshape(-1))
        return out


def case_of(table, base, width, bags, samples, column, columns):
    """A case whose entries have `samples` bags each, entry k at columns column[k] and on."""
    entries = Entries(base, width, width, np.arange(base.size + 1) * samples)
    lines = Lines(column, np.full(base.size, columns))
    return Case(table, entries, bags, lines, samples, columns)


def random_case(seed, fill, entries, samples, longest, weighted, widths=WIDTHS):
    """A case with random tables of `entries` widths; one column is left free on either side."""
    rng = np.random.default_rng(seed)
    width = rng.choice(widths, entries).astype(np.int64)
    heights = rng.integers(1, 12, entries)
    base = np.cumsum(heights * width) - heights * width
    table = floats(rng, int((heights * width).sum()), fill)
    offsets = bag_offsets(rng, entries * samples, longest)
    rows = lookups(rng, offsets, heights, samples)
    weights = floats(rng, rows.size, FILLS[seed % len(FILLS)]) if weighted else NONE
    column = np.cumsum(width) - width + 1
    bags = Bags(offsets, rows, weights)
    return case_of(table, base, width, bags, samples, column, 2 + int(width.sum()))


def one_table(table, offsets, rows):
    """A case of unweighted bags of one table f32[H, D]."""
    width = np.array([table.shape[1]])
    zero = np.zeros(1, np.int64)
    bags = Bags(np.asarray(offsets), np.asarray(rows), NONE)
    return case_of(table.reshape(-1), zero, width, bags, len(offsets) - 1, zero, table.shape[1])


def sums_agree(case):
    """Kernel and twin pool the same bits."""
    assert_same(case.pooled(lookup), case.pooled(lookup_twin))


@given(
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    entries=st.integers(0, 4),
    samples=st.integers(0, 5),
    longest=st.sampled_from([0, 1, 3, 30]),
    weighted=st.booleans(),
)
def test_pooled_sums_are_exact(seed, fill, entries, samples, longest, weighted):
    with np.errstate(all="ignore"):
        sums_agree(random_case(seed, fill, entries, samples, longest, weighted))


@pytest.mark.parametrize("width", [1, 7, 64, 130, 192, 1024])
@pytest.mark.parametrize("fill", ["normal", "wild", "ties"])
def test_long_bags_and_wide_rows(width, fill):
    with np.errstate(all="ignore"):
        sums_agree(random_case(width, fill, 1, 2, 300 if width < 100 else 40, False, (width,)))


def total(words):
    """Sum of words f64[k, width] per column: exact, or infinite, or NaN."""
    return [
        exact_sum(column, 10**6) if not np.isfinite(column).all() else sum(map(whole, column))
        for column in words.T
    ]


@given(
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    entries=st.integers(0, 3),
    samples=st.integers(0, 4),
    longest=st.sampled_from([0, 1, 3, 30]),
    weighted=st.booleans(),
)
def test_words_are_the_exact_sum(seed, fill, entries, samples, longest, weighted):
    with np.errstate(all="ignore"):
        case = random_case(seed, fill, entries, samples, longest, weighted)
        base, width, stride, _ = case.entries
        offsets, rows, weights = case.bags
        first_words, twin_words = (np.full((samples, case.columns), 7.0) for _ in "ab")
        used = np.zeros(entries * samples, np.int64)
        enough = np.zeros(entries * samples, np.int64)
        arguments = case.table, case.entries, case.bags, case.lines
        pooling.pooled_words(*arguments, first_words.reshape(-1), used)
        twin.pooled_words(*arguments, twin_words.reshape(-1), enough)
        assert (used >= enough).all()
        for bag in range(entries * samples):
            k, s = divmod(bag, samples)
            columns = slice(case.lines.place[k], case.lines.place[k] + width[k])
            if used[bag] == 1:
                assert_same(first_words[s, columns], twin_words[s, columns] + 0.0)
                continue
            wide = WideBags(
                lo=offsets[bag : bag + 1],
                hi=offsets[bag + 1 : bag + 2],
                base=base[k : k + 1],
                stride=stride[k : k + 1],
                width=width[k : k + 1],
                used=used[bag : bag + 1],
                place=np.array([1]),
                start=np.array([1]),
            )
            totals = []
            for module in (pooling, twin):
                first = np.full(width[k] + 2, 7.0)
                further = np.full((used[bag] - 1) * width[k] + 1, 7.0)
                module.bag_words(Terms(case.table, rows, weights), wide, first, further)
                assert first[0] == first[-1] == further[0] == 7.0
                words = np.concatenate([first[1:-1], further[1:]]).reshape(-1, width[k])
                totals.append(total(words))
            np.testing.assert_equal(*totals)


@given(
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    width=st.sampled_from(WIDTHS),
    weighted=st.booleans(),
)
def test_one_bag(seed, fill, width, weighted):
    with np.errstate(all="ignore"):
        case = random_case(seed, fill, 1, 1, 40, weighted, (width,))
        terms = Terms(case.table, case.bags.rows, case.bags.weights)
        bag = Bag(0, int(case.bags.offsets[1]), int(case.entries.base[0]), width, width)
        answer, expected = (np.full(width + 1, 7, np.float32) for _ in "ab")
        round_bag(terms, bag, answer, np.empty(128))
        twin.round_bag(terms, bag, expected, np.empty(128))
        assert_same(answer, expected)
        assert (answer.view(np.int32)[np.isnan(answer)] == 0x7FC00000).all()
        answer64, expected64 = (np.full(width, 7.0) for _ in "ab")
        used = sum_bag(terms, bag, answer64, np.empty(128))
        assert used >= twin.sum_bag(terms, bag, expected64, np.empty(128))
        if used == 1:
            assert_same(answer64, expected64 + 0.0)


def test_tasks_share_all_bags():
    for lengths in ([], [0], [5], [0] * 1000, list(range(300)), [10**6, 1, 1]):
        offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
        tasks = pooling.task_count(offsets)
        cuts = [pooling.task_bags(offsets, task, tasks) for task in range(tasks)]
        assert 1 <= tasks <= pooling.TASKS
        assert cuts[0][0] == 0 and cuts[-1][1] == len(lengths)
        assert all(a[1] == b[0] for a, b in pairwise(cuts))


def test_no_lookup_is_plus_zero_and_minus_zero_is_not_stored():
    table = np.float32([[-0.0] * 3])
    for offsets in ([0, 2, 3], [0, 1, 1]):
        out = one_table(table, offsets, [0, 0, -1]).pooled(lookup)
        assert out.tobytes() == bytes(24)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_a_large_output(weighted, length, shift):
    # aligned to a cache line they are written past the caches, shifted by a number they are not
    rng = np.random.default_rng(shift)
    width = np.array([32])
    bags = few.LARGE // 32 + 5
    table = floats(rng, 100 * 32, "special")
    rows = rng.integers(0, 100, bags * length)
    weights = floats(rng, rows.size, "special") if weighted else NONE
    out = in_lines(bags * 32 + 1, np.float32)[shift : shift + bags * 32]
    entries = Entries(np.zeros(1, np.int64), width, width, np.array([0, bags]))
    operands = Bags(np.arange(bags + 1) * length, rows, weights)
    lines = Lines(np.zeros(1, np.int64), width)
    lookup.pooled_rows(table, entries, operands, False, lines, out)
    with np.errstate(all="ignore"):
        terms = table.reshape(100, 32)[rows]
        if weighted:
            terms = terms * weights[:, None]
        # at most one addition, so fp32 is exact but for its one rounding; -0 becomes +0
        expected = np.add.reduce(terms.reshape(bags, length, 32), axis=1) + np.float32(0)
    expected[np.isnan(expected)] = CANONICAL_NAN
    assert_same(out.reshape(bags, 32), expected)


def test_a_tie_is_decided_by_the_last_bit_there_is():
    table = np.float32([[1], [2**-24], [2**-149], [-(2**-149)]])
    out = one_table(table, [0, 2, 5, 8], [0, 1, 0, 1, 2, 0, 1, 3]).pooled(lookup)
    assert out.ravel().tolist() == [1, 1 + 2**-23, 1]


def test_a_sum_that_passes_the_largest_number_on_its_way_is_exact():
    large = np.finfo(np.float32).max
    table = np.float32([[large], [-large], [1]])
    rows = [0, 0, 0, 1, 1, 2, 1, 0, 0]
    out = one_table(table, [0, 6, 9], rows).pooled(lookup)
    assert out.ravel().tolist() == [large, large]
    out = one_table(table, [0, 2, 3], rows).pooled(lookup)
    assert out.ravel().tolist() == [np.inf, large]


@pytest.mark.parametrize("spoiled", [(), (3,), tuple(range(0, 200, 17)), tuple(range(40, 120))])
@pytest.mark.parametrize("width", [5, 16, 80, 4100])
def test_groups_of_bags_in_which_some_sums_round(width, spoiled):
    """Bags are checked in groups; a bag whose fp64 sum is not exact must not pass with its
    neighbours, nor harm them.
    """
    rng = np.random.default_rng(width)
    bags = 200 if width < 1000 else 12
    table = rng.standard_normal((40, width)).astype(np.float32)
    table[0], table[1], table[2] = 2.0**60, 2.0**-30 * rng.standard_normal(width), -(2.0**60)
    rows = rng.integers(3, 40, 4 * bags)
    for bag in spoiled:
        if bag < bags:
            rows[4 * bag : 4 * bag + 3] = 0, 1, 2
    sums_agree(one_table(table, np.arange(0, rows.size + 1, 4), rows))


# Terms of a bag whose sum two floats do not hold: a tie that a bit far below decides, numbers that
# are no more, and one that is larger than all that the bags before have summed up to.
SPOILS = {
    "tie": (1, 2**-24, 2**-90),
    "tie, other side": (1, 2**-24, -(2**-90)),
    "infinity": (np.inf, 1, 1),
    "both infinities": (np.inf, 1, -np.inf),
    "nan": (1, np.nan, 1),
    "beyond the largest": (3e38, 3e38, 1),
    "back from beyond": (3e38, 3e38, -3e38),
    "large": (2**30, 1, 2**-20),
    "large and back": (2**50, 2**-20, -(2**50)),
    "nothing": (0, -0.0, 0),
}


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("bag", [0, 1, 37, 39])
@pytest.mark.parametrize("width", [16, 80])
def test_a_bag_that_two_floats_do_not_hold(width, bag, spoil):
    """Its group may not pass with it; the groups after it begin with what it has taught."""
    table = np.random.default_rng(1).standard_normal((40, width)).astype(np.float32)
    table[:3] = np.array(SPOILS[spoil], np.float32)[:, None]
    rows = np.random.default_rng(2).integers(3, 40, 4 * 40)
    rows[4 * bag : 4 * bag + 4] = 0, 1, 2, -1
    with np.errstate(all="ignore"):
        sums_agree(one_table(table, np.arange(0, rows.size + 1, 4), rows))


@given(
    seed=st.integers(0, 2**32),
    width=st.sampled_from([3, 16, 20, 64]),
    spread=st.integers(0, 70),
    bags=st.integers(1, 40),
    weighted=st.booleans(),
    mean=st.booleans(),
)
def test_groups_of_terms_of_many_sizes(seed, width, spread, bags, weighted, mean):
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((30, width)).astype(np.float32)
    table = np.ldexp(table, rng.integers(-spread, 1, table.shape)).astype(np.float32)
    # pairs that cancel: what is left of the bag is its smallest bits
    table[::2] = -table[1::2]
    offsets = bag_offsets(rng, bags, 12)
    rows = rng.integers(-1, 30, offsets[-1])
    weights = floats(rng, rows.size, "normal") if weighted else NONE
    width = np.array([width])
    zero = np.zeros(1, np.int64)
    case = case_of(
        table.reshape(-1), zero, width, Bags(offsets, rows, weights), bags, zero, int(width[0])
    )
    assert_same(case.pooled(lookup, mean), case.pooled(lookup_twin, mean))


def test_ordinary_sums_are_held_by_two_floats():
    """Compensated sums would be useless if the processor always refused them."""
    if not QUIET:
        pytest.skip("this processor cannot add without raising the flag")
    rng = np.random.default_rng(3)
    table = rng.random((40, 208)).astype(np.float32) - np.float32(0.5)
    case = one_table(table, np.arange(9) * 20, rng.integers(0, 40, 8 * 20))
    out = np.zeros((8, 208), np.float32)
    exact, peak = ask_compensated(case, out.reshape(-1))
    assert exact
    assert peak == 2 * int(np.abs(out).max().view(np.uint32))
    assert_same(out, case.pooled(lookup_twin))
    table[case.bags.rows[70], 0] = 2.0**-80
    assert not ask_compensated(case, out.reshape(-1))[0]


@pytest.mark.parametrize("spoiled", [(), (0,), (127,), (128,), (250, 299), (290,), (299,)])
def test_columns_whose_sums_round_are_found_block_by_block(spoiled):
    """A large bag is added plainly first, block after block of its columns; from a block that
    rounds on, it is not.
    """
    rng = np.random.default_rng(5)
    table = rng.standard_normal((30, 300)).astype(np.float32)
    for column in spoiled:
        table[:3, column] = 2.0**60, 2.0**-30, -(2.0**60)
    terms = Terms(table.reshape(-1), np.arange(30), NONE)
    bag = Bag(0, 30, 0, 300, 300)
    answer, expected = (np.full(301, 7, np.float32) for _ in "ab")
    round_bag(terms, bag, answer, np.empty(128))
    twin.round_bag(terms, bag, expected, np.empty(128))
    assert_same(answer, expected)


def test_the_processor_tells_of_rounding_where_it_is_asked():
    """`rounded`, on which the groups rest, is silent over exact sums and heard over others."""
    if not X86:
        pytest.skip("this processor is not asked")
    values = np.array([1.0, 2.0, -0.5, 2.0**-60, 1.0], np.float32)
    assert [ask(values[lo:hi]) for lo, hi in ((0, 3), (2, 5), (0, 1), (3, 5), (4, 5))] == [
        False,
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("width", [1, 16, 64])
def test_a_rounded_product_is_not_held_against_the_sum(width):
    """A weight times a row is rounded by definition; the processor is asked about the sum of such
    terms alone.
    """
    if not QUIET:
        pytest.skip("this processor cannot multiply without raising the flag")
    rows = np.full((3, width), 1 / 3, np.float32)
    weights = np.array([1 / 3, 0.7, 2.0**-70], np.float32)
    terms = weights * rows[:, 0]
    assert (terms.astype(np.float64) != weights.astype(np.float64) * rows[:, 0]).any(), (
        "no product was rounded"
    )
    for count, rounds in ((1, False), (2, False), (3, True)):
        sums = np.empty(width)
        assert ask_weighted(rows.reshape(-1), weights[:count], width, sums) == rounds
        np.testing.assert_array_equal(sums, terms[:count].astype(np.float64).sum())


@kernel
def ask_weighted(values, weights, width, out):
    """Did the plain fp64 sums of so many columns of weighted rows round?"""
    rounded()
    terms = Terms(values, np.arange(weights.size), weights)
    sum_plain(terms, Bag(0, weights.size, 0, width, width), out)
    return rounded()


@kernel
def ask(values):
    """Did the plain fp64 sum of `values` (one column) round?"""
    rounded()
    terms = Terms(values, np.arange(values.size), values[:0])
    out = np.empty(1)
    plain_rows_1(terms, Bag(0, values.size, 0, 1, 1), 0, out)
    return rounded()


def ask_compensated(case, out):
    """(are they right?, their peak) of the compensated sums of a case of one entry."""
    terms = Terms(case.table, case.bags.rows, NONE)
    return compensated_group(terms, case.entries, case.bags.offsets, case.lines, out)


@kernel
def compensated_group(terms, entries, offsets, lines, out):
    """What `round_group` says of all bags of one entry."""
    group = BagGroup(0, 0, offsets.size - 1)
    return round_group(terms, entries, offsets, group, lines, 0, np.zeros(16, np.uint32), out)


@pytest.mark.parametrize(
    ("processor", "near"), [("znver4", 16), ("znver3", 16), ("sapphirerapids", 4), ("generic", 4)]
)
def test_rows_are_asked_for_as_suits_the_processor(processor, near):
    assert near_of(processor) == near
