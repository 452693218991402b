"""Is the synthetic log bit-equal in blocks of any size, of Criteo's shape, and predictable?"""

import gzip
import hashlib
import io
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.cli.logs.generate import generate as command
from neocpu.core.errors import ConfigError, DataError
from neocpu.core.targets import part_of
from neocpu.ingest.dataset.convert import convert
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset_layout import BagColumn
from neocpu.ingest.synthetic import generate
from neocpu.ingest.synthetic.law import (
    ABSENT,
    Block,
    Hotness,
    Reuse,
    SyntheticCriteo,
    Tally,
    criteo_shape,
    parse_hotness,
    published_reuse,
)
from neocpu.kernels.logs import synthetic as kernels
from neocpu.kernels.twins.logs import synthetic as twin

SETTINGS = settings(deadline=None, derandomize=True, max_examples=15)
DATA = Path(__file__).resolve().parent.parent / "data"
SHAPE = criteo_shape()


@pytest.fixture(scope="module")
def log() -> SyntheticCriteo:
    return SyntheticCriteo(1)


@pytest.fixture(scope="module")
def sample(log):
    return log.block(0, 60_000)


# --- kernels against their twins, bit for bit ---


def copied(argument):
    """The argument, with copies of its arrays."""
    if isinstance(argument, tuple):
        return argument._make(map(copied, argument))
    return argument.copy() if isinstance(argument, np.ndarray) else argument


def arrays_of(arguments):
    """All arrays among arguments and their fields."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from arrays_of(argument)
        elif isinstance(argument, np.ndarray):
            yield argument


def both(name, *arguments):
    """Run kernel and twin on copies of the arguments; arrays and results must be bit-equal."""
    kernel_arguments, twin_arguments = (
        [copied(argument) for argument in arguments] for _ in range(2)
    )
    result = getattr(kernels, name)(*kernel_arguments)
    expected = getattr(twin, name)(*twin_arguments)
    bits, expected_bits = (np.asarray(0.0 if x is None else x) for x in (result, expected))
    assert bits.tobytes() == expected_bits.tobytes()
    for array, twin_array in zip(
        arrays_of(kernel_arguments), arrays_of(twin_arguments), strict=True
    ):
        assert array.tobytes() == twin_array.tobytes()
    return kernel_arguments


def draw_key(rng) -> np.uint64:
    return rng.integers(0, 2**64, dtype=np.uint64, endpoint=False)


@SETTINGS
@given(
    seed=st.integers(0, 2**32),
    rows=st.sampled_from([0, 1, 7, 100]),
    row0=st.sampled_from([0, 5, 2**32 - 3, 2**59]),
)
def test_fields_equal_their_twins(seed, rows, row0):
    rng = np.random.default_rng(seed)
    draws = kernels.RowDraws(draw_key(rng), int(rng.integers(0, 2)), row0)
    rates = np.array([0.0, 1.0, *rng.random(3)])
    both("missing_groups", draws, rates, np.empty((rows, 5), np.uint8))
    absent = (rng.random(rows) < 0.3).astype(np.uint8)
    knots = np.array([0.0, 0.1, 0.5, 0.999])
    heights = rng.uniform(0, 14, 5)
    slopes = np.diff(heights) / np.diff(np.append(knots, 1.0))
    quantiles = kernels.Quantiles(knots, heights[:4].copy(), slopes, 3.0)
    *_, values = both("integers", draws, absent, quantiles, np.empty(rows, np.int64))
    terms = kernels.IntegerTerms(*rng.normal(size=4).tolist(), rng.normal(size=4))
    logit = rng.normal(size=rows)
    *_, vectors = both("integer_effects", values, terms, logit, rng.normal(size=(rows, 4)))
    *_, squares = both("square_norms", vectors, np.empty(rows))
    both("add_pairs", vectors, squares, rng.normal(size=rows))
    for mean, geometric in ((1.0, False), (5.0, False), (1.0, True), (2.75, True), (60.0, True)):
        both("bag_lengths", draws, absent, mean, geometric, np.empty(rows, np.int64))


@SETTINGS
@given(
    seed=st.integers(0, 2**32),
    rows=st.sampled_from([0, 1, 9, 60]),
    row0=st.sampled_from([0, 2**32 - 3, 2**59]),
    feature=st.integers(0, 25),
    longest=st.sampled_from([1, 1, 4]),
    paired=st.booleans(),
    reuse=st.sampled_from([None, "2021", "2022"]),
)
def test_bags_equal_their_twin(log, seed, rows, row0, feature, longest, paired, reuse):
    rng = np.random.default_rng(seed)
    category = log._categories[feature]
    lengths = np.ones(rows, np.int64) if longest == 1 else rng.integers(0, longest + 1, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    absent = (rng.random(rows) < 0.3).astype(np.uint8)
    amplitudes = np.array([0.4, 20.0, 0.6 if paired else 0.0])
    sums = kernels.RowSums(rng.normal(size=rows), rng.normal(size=(rows, 4)), rng.random(rows))
    cuts, firsts = Reuse(reuse, rows + 1).classes(2.0) if reuse else np.empty((2, 0))
    law = kernels.CategoryLaw(
        effect_key=category.effect_key,
        name=category.code_key,
        law=category.law,
        cuts=cuts,
        firsts=firsts,
        amplitudes=amplitudes,
    )
    draws = kernels.RowDraws(category.key, 0, row0)
    codes = np.empty(offsets[-1], np.uint32)
    *_, codes, _ = both("bags", draws, offsets, absent, law, codes, sums)
    assert ((codes == 0) == (absent[np.repeat(np.arange(rows), lengths)] != 0)).all()


@SETTINGS
@given(seed=st.integers(0, 2**32), rows=st.sampled_from([2, 3, 200]))
def test_clicks_equal_their_twins(seed, rows):
    rng = np.random.default_rng(seed)
    raw = rng.normal(size=rows) * rng.choice([1e-3, 1.0, 30.0])
    both("calibrate", raw, 1.4, 0.22)
    draws = kernels.RowDraws(draw_key(rng), 0, 2**40)
    outputs = np.empty(rows), np.empty(rows, np.float32)
    *_, p, labels = both("clicks", draws, raw, 1.5, -1.2, *outputs)
    both("tally", np.clip(p, 1e-12, 1 - 1e-12), labels, np.zeros((2, 64), np.int64))


@SETTINGS
@given(seed=st.integers(0, 2**32), rows=st.sampled_from([0, 1, 30]))
def test_format_equals_its_twin(seed, rows):
    rng = np.random.default_rng(seed)
    values = rng.choice([ABSENT, ABSENT + 1, -2, 0, 9, 10, 2**63 - 1], (13, rows))
    codes = rng.choice([0, 1, 0xABCDEF, 2**32 - 1], (26, rows)).astype(np.uint32)
    labels = rng.integers(0, 2, rows).astype(np.float32)
    both("format_rows", labels, values, codes, np.zeros(rows * (2 + 21 * 13 + 9 * 26), np.uint8))


def test_codes_of_a_category_are_distinct_and_never_the_missing_one(log):
    for category in log._categories:
        if category.cardinality < 300_000:
            codes = twin.code_of(np.arange(1, category.cardinality + 1), category.code_key)
            assert np.unique(codes).size == category.cardinality
        # so rank ^ name, and with it the code, is never 0
        assert int(category.code_key) >= 2**31 > category.cardinality


# --- the log ---


def fingerprint(blocks) -> str:
    """SHA-256 of all columns, however the rows were cut."""
    columns: dict[str, list[bytes]] = {}
    for block in blocks:
        parts = {
            "y": block.labels,
            "p": block.probability,
            "i": np.ascontiguousarray(block.integers.T),
        }
        for name, bags in block.categories.items():
            parts[name] = bags.codes
            if bags.lengths is not None:
                parts[f"{name}.lengths"] = bags.lengths
        for name, part in parts.items():
            columns.setdefault(name, []).append(part.tobytes())
    return hashlib.sha256(b"".join(b"".join(parts) for parts in columns.values())).hexdigest()


def test_rows_do_not_depend_on_the_blocks(log):
    expected = fingerprint([log.block(1000, 700)])
    for size in (1, 64, 333):
        assert fingerprint(log.blocks(1000, 700, size)) == expected
    bags = SyntheticCriteo(3, max_rows=50, hotness=parse_hotness("2,C3=geometric:5"))
    assert fingerprint(bags.blocks(0, 300, 77)) == fingerprint([bags.block(0, 300)])


def test_the_bits_are_these_on_every_machine():
    """A known answer: it may only change together with the definition of the log (and then data/
    changes too).
    """
    log = SyntheticCriteo(1, max_rows=1000, hotness=parse_hotness("C1=geometric:3,C2=2"))
    assert (
        fingerprint([log.block(0, 500)])
        == "5795beb8d3c36c43ba48405da1fb4e6072000506f8d196b829ccb7f61d279137"
    )


def test_options_are_checked():
    assert parse_hotness("2,C1=8,C3=geometric:20") == {
        "": Hotness(2),
        "C1": Hotness(8),
        "C3": Hotness(20, True),
    }
    for bad in ("0", "1.5", "x", "poisson:3", "C1=", "geometric:0.5", "nan", "inf"):
        with pytest.raises(ConfigError, match="hotness"):
            parse_hotness(bad)
    with pytest.raises(ConfigError, match="C99"):
        SyntheticCriteo(1, hotness={"C99": Hotness(2)})
    with pytest.raises(ConfigError, match="cardinality scale"):
        SyntheticCriteo(1, cardinality_scale=0.0)
    with pytest.raises(ConfigError, match="max rows"):
        SyntheticCriteo(1, max_rows=0)


def test_cardinalities_shrink_as_asked(log):
    # C3 can be missing, C9 cannot
    assert log.cardinalities["C3"] == 10_131_226 and log.cardinalities["C9"] == 3
    small = SyntheticCriteo(1, cardinality_scale=1e-3, max_rows=1000)
    assert max(small.cardinalities.values()) == 1000 and min(small.cardinalities.values()) == 3
    block = small.block(0, 4000)
    for name, bags in block.categories.items():
        assert np.unique(bags.codes[bags.codes != 0]).size <= small.cardinalities[name]


# --- its shape, with bounds of 5 standard deviations ---


def near(share: float, expected: float, rows: int) -> bool:
    return abs(share - expected) <= 5 * math.sqrt(max(expected * (1 - expected), 1e-9) / rows)


def test_fields_go_missing_together_at_the_fitted_rates(log, sample):
    rows = sample.labels.size
    empty = {name: bags.codes == 0 for name, bags in sample.categories.items()}
    empty |= {name: line == ABSENT for name, line in zip(log.integer_names, sample.integers)}
    grouped = set()
    for group in SHAPE["missing"]:
        first = empty[group["fields"][0]]
        assert near(first.mean(), group["rate"], rows)
        assert all((empty[field] == first).all() for field in group["fields"])
        grouped.update(group["fields"])
    assert not any(empty[field].any() for field in empty.keys() - grouped)


def test_integers_have_the_fitted_quantiles(log, sample):
    for entry, line in zip(SHAPE["integers"], sample.integers):
        present = line[line != ABSENT]
        for share, value in list(zip(SHAPE["probabilities"], entry["quantiles"]))[3:-2]:
            # the value at a quantile: at most that share lies below it, at least that share at or
            # below it
            slack = 5 * math.sqrt(share * (1 - share) / present.size)
            assert (present < value).mean() <= share + slack and (
                present <= value
            ).mean() >= share - slack
        assert entry["quantiles"][0] <= present.min() and present.max() <= entry["quantiles"][-1]


def test_categories_grow_and_skew_as_their_law_says(log, sample):
    """Expected number of distinct codes, and share of the most frequent, from the law itself."""
    for category in log._categories:
        top, offset, power, first, span, ranks = category.law
        cuts = np.arange(1.0, min(ranks, 200_000) + 2)
        share = np.diff((cuts + offset) ** (1 / power) - first) / span * (1 - top)
        share[0] += top
        codes = sample.categories[category.name].codes
        codes = codes[codes != 0]
        counts = np.unique(codes, return_counts=True)[1]
        assert near(counts.max() / codes.size, share.max(), codes.size), category.name
        if ranks <= 200_000:
            seen = 1 - (1 - share.clip(0, 1)) ** codes.size
            deviation = math.sqrt((seen * (1 - seen)).sum())
            assert abs(counts.size - seen.sum()) <= 5 * deviation + 1, category.name


def test_clicks_follow_the_true_probabilities(sample):
    tally = Tally()
    tally.add(sample)
    score = tally.score()
    p = sample.probability
    y = sample.labels.astype(np.float64)
    assert 0.21 < score["click_rate"] < 0.24
    assert 0.79 < score["best_auc"] < 0.83
    assert abs(y.mean() - p.mean()) <= 5 * math.sqrt((p * (1 - p)).mean() / y.size)
    # calibrated in every tenth of the scores, too
    for part in np.array_split(np.argsort(p, kind="stable"), 10):
        assert abs(y[part].mean() - p[part].mean()) <= 5 * math.sqrt(
            (p[part] * (1 - p[part])).mean() / part.size
        )


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_every_seed_is_calibrated(seed):
    tally = Tally()
    tally.add(SyntheticCriteo(seed, cardinality_scale=0.1).block(0, 16384))
    assert 0.20 < tally.score()["click_rate"] < 0.25 and 0.77 < tally.score()["best_auc"] < 0.84


def test_scores_are_those_of_the_definition(log):
    block = log.block(0, 3000)
    tally = Tally()
    for part in log.blocks(0, 3000, 100):
        tally.add(part)
    score = tally.score()
    p = block.probability
    y = block.labels
    positive = p[y == 1][:, None]
    negative = p[y == 0][None, :]
    assert score["click_rate"] == y.mean(dtype=np.float64)
    assert score["best_logloss"] == pytest.approx(
        -np.log(np.where(y == 1, p, 1 - p)).mean(), abs=1e-8
    )
    assert score["best_auc"] == pytest.approx(
        (positive > negative).mean() + 0.5 * (positive == negative).mean(), abs=1e-5
    )


def test_bags_have_the_lengths_asked_for():
    log = SyntheticCriteo(1, max_rows=100, hotness=parse_hotness("C1=3,C2=geometric:4,C3=2"))
    categories = log.block(0, 20_000).categories
    assert (categories["C1"].lengths == 3).all() and categories["C4"].lengths is None
    lengths = categories["C2"].lengths
    assert lengths.min() == 1 and abs(lengths.mean() - 4) <= 5 * math.sqrt(12 / lengths.size)
    assert set(np.unique(categories["C3"].lengths)) == {0, 2}  # a missing one is an empty bag


# --- files ---


def test_a_dataset_holds_the_rows_and_their_best_score(log, tmp_path):
    path = tmp_path / "log.h5"
    seen = []
    score = generate.write_dataset(log, path, 100, 20_000, progress=seen.append)
    data = Dataset(path)
    block = log.block(100, 20_000)
    assert seen[-1] == data.rows == 20_000
    assert all(data.attributes[name] == value for name, value in score.items())
    rows = data.take(np.arange(20_000))
    assert rows.labels.tobytes() == block.labels.tobytes()
    assert all(
        rows.features[name].codes.tobytes() == bags.codes.tobytes()
        for name, bags in block.categories.items()
    )
    expected = np.log1p(np.maximum(block.integers.T, 0).astype(np.float64)).astype(np.float32)
    assert np.allclose(rows.dense, expected, rtol=1e-6, atol=0)
    assert data.missing["C3"] == (block.categories["C3"].codes == 0).sum() == data.missing["C4"]
    assert data.missing_dense.tolist() == (block.integers == ABSENT).sum(axis=1).tolist()


def test_writing_the_dataset_is_converting_the_raw_log(log, tmp_path):
    generate.write_dataset(log, tmp_path / "direct.h5", 7, 3000)
    generate.write_log(log, tmp_path / "log.tsv.gz", 7, 3000)
    convert([tmp_path / "log.tsv.gz"], tmp_path / "converted.h5", "criteo")
    direct = Dataset(tmp_path / "direct.h5")
    converted = Dataset(tmp_path / "converted.h5")
    assert direct.features == converted.features and direct.dense_columns == converted.dense_columns
    assert (
        direct.missing == converted.missing
        and (direct.missing_dense == converted.missing_dense).all()
    )
    one, two = (data.take(np.arange(3000)) for data in (direct, converted))
    assert (
        one.labels.tobytes() == two.labels.tobytes() and one.dense.tobytes() == two.dense.tobytes()
    )
    assert all(
        one.features[name].codes.tobytes() == two.features[name].codes.tobytes()
        for name in direct.features
    )
    assert Dataset([tmp_path / "direct.h5", tmp_path / "converted.h5"]).rows == 6000


@pytest.mark.parametrize("year", ["2021", "2022"])
def test_codes_are_used_as_often_as_published(year):
    rows = 60_000
    log = SyntheticCriteo(1, hotness=parse_hotness("C1=geometric:8"), reuse=Reuse(year, rows))
    codes, uses = np.unique(log.block(0, rows).categories["C1"].codes, return_counts=True)
    bins = np.searchsorted(2 ** np.arange(16), uses, side="left")
    published = published_reuse()["years"][year]
    shares = np.bincount(bins, minlength=17) / codes.size, np.bincount(bins, uses, 17) / uses.sum()
    np.testing.assert_allclose(shares[0], published["row_share"], atol=0.01)
    # above: single codes here
    np.testing.assert_allclose(shares[1][:13], published["lookup_share"][:13], atol=0.01)
    assert abs(codes.size / uses.sum() - published["rows"] / published["lookups"]) < 0.005
    with pytest.raises(ConfigError, match="published are 2021, 2022"):
        Reuse("2020", 1)
    with pytest.raises(ConfigError, match="how many codes there are"):
        SyntheticCriteo(1, max_rows=5, reuse=Reuse(year, rows))


def test_multi_hot_datasets_keep_their_bags(tmp_path):
    log = SyntheticCriteo(1, max_rows=100, hotness=parse_hotness("C1=3,C2=geometric:4,C3=2"))
    generate.write_dataset(log, tmp_path / "log.h5", 0, 5000)
    data = Dataset(tmp_path / "log.h5")
    block = log.block(0, 5000)
    assert data.attributes["generator"]["hotness"] == {"C1": "3", "C2": "geometric:4", "C3": "2"}
    assert [data.features[name].hotness for name in ("C1", "C2", "C3", "C4")] == [3, 0, 0, 1]
    rows = data.take(np.arange(5000))
    for name, bags in block.categories.items():
        assert rows.features[name].codes.tobytes() == bags.codes.tobytes()
    with pytest.raises(ConfigError, match="multi-hot"):
        generate.write_log(log, tmp_path / "log.tsv", 0, 10)


def test_targets_that_cannot_be_written_say_so(log, tmp_path):
    for write in (generate.write_dataset, generate.write_log):
        with pytest.raises(DataError, match="does not exist"):
            write(log, tmp_path / "nowhere" / "log.h5", 0, 10)
    assert not list(tmp_path.iterdir())
    full = Path("/dev/full")
    if full.exists():
        part = part_of(tmp_path / "log.tsv")
        part.symlink_to(full)
        with pytest.raises(DataError, match="No space left"):
            generate.write_log(log, tmp_path / "log.tsv", 0, 2000)


def test_gzip_and_plain_hold_the_same_text(log, tmp_path):
    for name in ("a.tsv", "a.tsv.gz", "b.tsv.gz"):
        generate.write_log(log, tmp_path / name, 3, 500)
    text = (tmp_path / "a.tsv").read_bytes()
    assert gzip.decompress((tmp_path / "a.tsv.gz").read_bytes()) == text
    assert (tmp_path / "a.tsv.gz").read_bytes() == (tmp_path / "b.tsv.gz").read_bytes()
    assert text.count(b"\n") == 500 and all(line.count(b"\t") == 39 for line in text.splitlines())


@pytest.mark.parametrize(("part", "first", "rows"), [("train", 0, 13_000), ("test", 13_000, 4_000)])
def test_the_committed_log_is_made_again_to_the_bit(tmp_path, part, first, rows):
    name = f"tiny-criteo-{part}.tsv.gz"
    score = generate.write_log(SyntheticCriteo(1, max_rows=2000), tmp_path / name, first, rows)
    text = gzip.decompress((tmp_path / name).read_bytes())
    assert text == gzip.decompress((DATA / name).read_bytes())
    card = (DATA / "README.md").read_text()
    assert hashlib.sha256(text).hexdigest() in card
    assert f"{score['best_logloss']:.5f}" in card and f"{score['best_auc']:.5f}" in card


def test_the_command_writes_either_form_and_prints_the_best_score(tmp_path):
    options = ["--rows", "3000", "--seed", "5", "--max-rows", "50"]
    for name in ("log.h5", "log.tsv.gz"):
        result = CliRunner().invoke(
            command, ["criteo", str(tmp_path / name), *options], catch_exceptions=False
        )
        assert (
            result.exit_code == 0
            and "best logloss 0." in result.output
            and "best AUC 0." in result.output
        )
    score = Dataset(tmp_path / "log.h5").attributes["best_auc"]
    assert f"{score:.5f}" in result.output
    result = CliRunner().invoke(
        command, ["criteo", str(tmp_path / "x.tsv"), *options, "--compress", "gzip"]
    )
    assert result.exit_code == 2 and "--compress" in result.output
    result = CliRunner().invoke(command, ["criteo", str(tmp_path / "log.h5"), *options])
    assert result.exit_code == 2 and "--force" in result.output
    assert (
        CliRunner()
        .invoke(command, ["criteo", str(tmp_path / "log.h5"), *options, "--force"])
        .exit_code
        == 0
    )


def test_help_loads_no_numba():
    code = "import sys, neocpu.cli.logs.generate; sys.exit('numba' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=DATA.parent, check=False).returncode == 0
    )


def test_the_longest_rows_are_written_whole() -> None:
    samples = 500
    least = ABSENT + 1
    block = Block(
        labels=np.ones(samples, np.float32),
        integers=np.full((13, samples), least),
        categories={"C1": BagColumn(np.full(samples, 2**32 - 1, np.uint32), None)},
        probability=np.ones(samples),
    )
    file = io.BytesIO()
    generate._write_rows(file, block)
    assert file.getvalue() == (b"1" + 13 * f"\t{least}".encode() + b"\tffffffff\n") * samples
