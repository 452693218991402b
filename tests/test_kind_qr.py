"""Do quotients, remainders and other digits tell all rows apart, as published and at any size?"""

import math

import numpy as np
import pytest

from neocpu.core.errors import ConfigError
from neocpu.tables.embedding.mapped_rows import physical_rows
from neocpu.tables.kinds.qr import balanced, coprime, pair_of
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.advice.kinds import kind_lines
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.model.composition import Compositions

# rows of the tables of the Criteo Kaggle log, without rows for unknown values
KAGGLE = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)


def config_of(tables: str) -> Config:
    text = f'data.rows_by = "code"\n[model]\ninteraction = "cat"\n[tables]\n{tables}'
    return configs.loads(text, "qr.toml")


def digits(table: TableSpec, rows: list[int]) -> list[int]:
    out = np.empty(len(rows), np.int64)
    physical_rows(table.maps[0], np.array(rows, np.int64), out)
    return out.tolist()


@pytest.mark.parametrize(
    ("keys", "numbers", "factor"),
    [
        ("scheme = 'radix'", 135_054_048, 4.0),
        ("collisions = 4", 135_054_048, 4.0),
        ("collisions = 7", None, 7.0),
        ("collisions = 60", None, 59.9),
    ],
)
def test_parameters_on_criteo_kaggle(keys: str, numbers: int | None, factor: float) -> None:
    rows = "\n".join(f"C{number}.rows = {rows}" for number, rows in enumerate(KAGGLE, 1))
    config = config_of(f'default = {{ kind = "qr", kind_above = 200, {keys} }}\n{rows}')
    total = sum(table.rows * table.dim for table in config.tables)
    full = 16 * sum(KAGGLE)
    assert full == 540_201_232
    assert numbers in (None, total)
    assert full / total == pytest.approx(factor, rel=1e-3)
    assert {t.name for t in config.tables if "." not in t.name} == {
        f"C{number}" for number, rows in enumerate(KAGGLE, 1) if rows <= 200
    }


@pytest.mark.parametrize(
    "keys",
    [
        "collisions = 1",
        "collisions = 13",
        "collisions = 2000",
        "compression = 5.0",
        "compression = 1e6",
        "partitions = 3",
        "partitions = 7",
        "radices = [3, 40, 9]",
        'collisions = 10, scheme = "crt"',
        'partitions = 4, scheme = "crt"',
        'radices = [30, 42], scheme = "crt"',
    ],
)
def test_every_row_has_other_digits(keys: str) -> None:
    rows = 1009
    config = config_of(f"C1 = {{ rows = {rows}, kind = 'qr', {keys} }}")
    columns = [digits(table, list(range(rows))) for table in config.tables]
    assert len(set(zip(*columns))) == rows
    for table, column in zip(config.tables, columns):
        # no row of a part is in vain
        assert (min(column), max(column) + 1) == (0, table.rows)


@pytest.mark.parametrize(("operation", "m"), [("mult", 8), ("concat", 4)])
def test_compression_is_met_by_the_fewest_collisions(operation: str, m: int) -> None:
    keys = f"rows = 10000, kind = 'qr', compression = 7, operation = '{operation}'"
    parts = config_of(f"C1 = {{ {keys} }}").tables
    assert [table.rows for table in parts] == [-(-10_000 // m), m]
    assert sum(table.rows * table.dim for table in parts) <= 160_000 / 7
    assert (m - 1 + -(-10_000 // (m - 1))) * parts[0].dim > 160_000 / 7


def test_compression_goes_as_far_as_two_parts_do() -> None:
    config = config_of("C1 = { rows = 10000, kind = 'qr', compression = 1000 }")
    assert [table.rows for table in config.tables] == [100, 100]


@pytest.mark.parametrize("rows", [40_000_000, 2**31 + 11, 2**40 + 3, 2**52, 2**52 + 3, 2**62])
def test_quotients_are_whole_at_any_size(rows: int) -> None:
    """Where fp32 (from 2^24) and fp64 (from 2^53) divide wrongly."""
    ids = [rows - 1 - step for step in range(2000)] + [rows // 2 + step for step in range(2000)]
    for collisions in (4, 7, 60, 65_537):
        m, quotients = pair_of(rows, collisions)
        config = config_of(f"C1 = {{ rows = {rows}, kind = 'qr', collisions = {collisions} }}")
        quotient, remainder = config.tables
        assert (quotient.rows, remainder.rows) == (quotients, m)
        assert digits(quotient, ids) == [i // m for i in ids]
        assert digits(remainder, ids) == [i % m for i in ids]
        assert max(digits(quotient, ids)) == quotients - 1


def test_radices_are_balanced_and_coprime() -> None:
    for rows in (1, 2, 3, 7, 100, 1000, 40_000_000, 2**40 + 1):
        for count in (2, 3, 5):
            radices = balanced(rows, count)
            assert math.prod(radices) >= rows > (radices[0] - 1) ** count
            assert radices[0] - radices[-1] <= 1
            moduli = coprime(radices)
            assert math.lcm(*moduli) == math.prod(moduli) >= rows


@pytest.mark.parametrize("operation", ["concat", "add", "mult"])
@pytest.mark.parametrize("count", [2, 4])
def test_composed_rows_start_as_rows_of_a_full_table(operation: str, count: int) -> None:
    rows = 300
    config = config_of(
        f"C1 = {{ rows = {rows}, kind = 'qr', partitions = {count}, operation = '{operation}' }}"
    )
    random = np.random.default_rng(1)
    parts = [
        table.initial.mean + table.initial.bound * random.uniform(-1, 1, 400_000)
        for table in config.tables
    ]
    composed = {"concat": parts[1], "add": sum(parts), "mult": np.prod(parts, axis=0)}[operation]
    assert np.var(composed) == pytest.approx(1 / (3 * rows), rel=0.02)
    assert abs(np.mean(composed)) < 1e-3


def test_weights_of_lookups_count_once_in_a_product() -> None:
    config = config_of("C1 = { rows = 100, kind = 'qr', weighted = true }")
    assert [table.weighted for table in config.tables] == [True, False]
    config = config_of("C1 = { rows = 100, kind = 'qr', weighted = true, operation = 'add' }")
    assert [table.weighted for table in config.tables] == [True, True]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ("operation = 'dot'", "C1.operation: 'dot' is unknown"),
        ("scheme = 'prime'", "C1.scheme"),
        ("combine = 'both'", "C1.combine"),
        ("radices = [10, 9]", "tell 90 rows apart, but there are 100"),
        ("radices = [100]", "two or more"),
        ("partitions = 1", "C1.partitions"),
        ("compression = 0.5", "C1.compression"),
        ("collisions = 3, partitions = 2", "C1.partitions: collisions says already"),
        ("partitions = 3, operation = 'concat'", "C1.dim: 16 cannot be cut in 3"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why.replace("[", r"\[")):
        config_of(f"C1 = {{ rows = 100, kind = 'qr', {keys} }}")


def test_a_compression_out_of_reach_is_told() -> None:
    config = config_of("C1 = { rows = 100, kind = 'qr', compression = 1000 }")
    _, numbers, note = kind_lines(config)
    assert "320 numbers" in numbers
    assert "compression = 1000, but C1: 5.0" in note
    reached = config_of("C1 = { rows = 100, kind = 'qr', compression = 4 }")
    assert len([*kind_lines(reached)]) == 2


def test_a_plan_that_names_a_table_of_a_kind_is_told_its_parts() -> None:
    with pytest.raises(ConfigError, match=r"no table matches 'C1'; that of this name is kept in "):
        configs.loads(
            "[tables]\nC1 = { rows = 100, kind = 'qr' }", "x", ["parallel.plan={C1='row_wise'}"]
        )


# ---- the published code (docs/peer-differences.md) ----


def test_quotients_of_the_published_code_are_wrong_in_large_tables() -> None:
    """It divides in fp32: of the 40 million ids of a table, those from 2^24 on are rounded."""
    ids = np.arange(40_000_000 - 100_000, 40_000_000)
    published = (ids.astype(np.float32) / np.float32(4)).astype(np.int64)
    wrong = published != ids // 4
    assert 0.37 < wrong.mean() < 0.38
    assert published.max() == 10_000_000  # rows are 0 to 9,999,999
    small = np.arange(2**24 - 100_000, 2**24)
    assert ((small.astype(np.float32) / np.float32(4)).astype(np.int64) == small // 4).all()


def test_initial_values_of_the_published_code_are_not_around_zero() -> None:
    """`uniform_(w, sqrt(1 / n))` names the lower end only; the upper one stays 1."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
    weight = torch.empty(4000, 16).uniform_(math.sqrt(1 / 4000))
    assert weight.min() >= math.sqrt(1 / 4000)
    assert weight.mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("operation", ["mult", "add", "concat"])
def test_the_operators_formula_in_torch(operation: str) -> None:
    """Bags pooled in each table, then composed: vectors and gradients of rows."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
    config = config_of(f"C1 = {{ rows = 50, kind = 'qr', operation = '{operation}' }}")
    random = np.random.default_rng(2)
    ids = random.integers(0, 50, 60)
    offsets = np.arange(0, 60, 3)
    gradient = random.standard_normal((20, 16)).astype(np.float32)
    weights = [
        random.standard_normal((table.rows, table.dim)).astype(np.float32)
        for table in config.tables
    ]

    leaves = [torch.tensor(weight, requires_grad=True) for weight in weights]
    pooled = [
        torch.nn.functional.embedding_bag(
            torch.from_numpy(places), leaf, torch.from_numpy(offsets), mode="sum"
        )
        for places, leaf in zip((ids // 4, ids % 4), leaves)
    ]
    composed = {
        "mult": lambda: pooled[0] * pooled[1],
        "add": lambda: pooled[0] + pooled[1],
        "concat": lambda: torch.cat(pooled, 1),
    }[operation]()
    composed.backward(torch.from_numpy(gradient))

    model = Compositions(0, config.layout(1).composition, {})
    rows = [np.array(digits(table, ids.tolist())) for table in config.tables]
    physical = np.hstack(
        [np.add.reduceat(weight[row], offsets) for weight, row in zip(weights, rows)]
    )
    np.testing.assert_allclose(
        model.forward(physical), composed.detach().numpy(), rtol=1e-5, atol=1e-5
    )
    parts = np.split(model.backward(gradient), [weights[0].shape[1]], axis=1)
    for leaf, row, part, weight in zip(leaves, rows, parts, weights):
        gradients = np.zeros_like(weight)
        np.add.at(gradients, row, np.repeat(part, 3, axis=0))
        np.testing.assert_allclose(gradients, leaf.grad.numpy(), rtol=1e-4, atol=1e-4)
