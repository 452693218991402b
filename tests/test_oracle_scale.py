"""Do questions about tables that no memory holds have the answers of tables that do fill it?

The formula's table is allocated in full, as pages that nobody has written yet, and only the rows
that are read are filled: so neocpu's own kernels answer with offsets beyond 32 bits.
"""

import os

import numpy as np
import pytest

from neocpu.core.rules import RULES
from neocpu.kernels.rows import update
from neocpu.oracle.canonical import lookup_bits
from neocpu.oracle.canonical.update import places_of, segments_of
from neocpu.oracle.checking import check
from neocpu.oracle.operator import Case
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.ops.scale import GRADIENT, WEIGHTS, numbers_at
from neocpu.oracle.testing import assert_correct
from neocpu.oracle.truth.bags import tables_of
from neocpu.oracle.truth.formats import FORMATS, nearest
from neocpu.tables.specs.optimizers import SparseOptimizer
from tests.oracle_cases import all_cases

MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
CASES = {case.name: case for case in all_cases(["lookup_at_scale", "backward_at_scale"])}
enough_memory = pytest.mark.skipif(MEMORY < 12 << 30, reason="8 GiB of address space and some")


def rows_filled(table: np.ndarray, case: Case, rows: np.ndarray, tables: np.ndarray) -> None:
    """Give rows of some tables the formula's numbers, in a table of zeros."""
    geometry = tables_of(case.inputs)
    for t, row in zip(tables.tolist(), rows.tolist()):
        dim = int(geometry.dims[t])
        elements = geometry.first_element[t] + row * dim + np.arange(dim)
        table[elements] = numbers_at(elements, WEIGHTS)


def in_full(case: Case) -> dict[str, np.ndarray]:
    """The inputs of `lookup` and `backward`, without weights: whole bags of the whole batch."""
    inputs = case.inputs
    bags = inputs["feature_table"].size * int(case.options["batch"])
    return {
        "rows": inputs["rows"],
        "dims": inputs["dims"],
        "feature_table": inputs["feature_table"],
        "indices": inputs["indices"],
        "offsets": np.searchsorted(inputs["bags"], np.arange(bags + 1)),
    }


def lookups_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Row and table of every lookup."""
    feature = case.inputs["bags"] // int(case.options["batch"])
    return case.inputs["indices"], case.inputs["feature_table"][feature]


def test_the_formula_is_the_one_that_the_texts_say() -> None:
    elements = [0, 1, 2**30, 2**31, 2**32, 2**32 + 1, 2**33 - 1, 123_456_789_012]
    for salt in (WEIGHTS, GRADIENT):
        for e, number in zip(elements, numbers_at(np.array(elements), salt).tolist()):
            h = (2654435761 * (e % 2**32) + 2246822519 * (e // 2**32) + 3266489917 * salt) % 2**32
            assert number == (h // 2**24 - 128) / 256
    e = np.arange(1000)
    for wrap in (2**31, 2**32):
        assert (numbers_at(e, WEIGHTS) != numbers_at(e + wrap, WEIGHTS)).all()


@enough_memory
def test_our_lookup_kernel_answers_with_the_whole_table_in_memory() -> None:
    case = CASES["lookup-at-scale-elements"]
    inputs = in_full(case)
    inputs["weights"] = np.zeros(int(tables_of(inputs).first_element[-1]), np.float32)
    rows_filled(inputs["weights"], case, *lookups_of(case))
    out = lookup_bits(inputs, OPERATORS["lookup"].complete({}), "kernels")["out"]
    assert inputs["weights"].size > 2**31
    answer = out[case.inputs["check_samples"]]
    assert_correct(case.op, case.inputs, answer, case.options, bits=True)
    answer[-1, 0] = 3.0
    assert not check(case.op, case.inputs, answer, case.options)


@enough_memory
def test_our_update_kernel_answers_with_the_whole_table_in_memory() -> None:
    case = CASES["backward-at-scale-elements-exact_rowwise_adagrad"]
    inputs = in_full(case)
    geometry = tables_of(inputs)
    weights = np.zeros(int(geometry.first_element[-1]), np.float32)
    state = np.zeros(int(geometry.first_row[-1]), np.float32)
    check_rows = case.inputs["check_rows"]
    rows_filled(weights, case, check_rows, np.zeros(check_rows.size, np.int64))
    rows_filled(weights, case, *lookups_of(case))
    batch = int(case.options["batch"])
    gradient = numbers_at(np.arange(batch * 128), GRADIENT).reshape(batch, 128)
    optimizer = SparseOptimizer("exact_rowwise_adagrad", learning_rate=0.0625, eps=2.0**-20)
    rule = RULES[optimizer.name]
    options = OPERATORS["backward"].complete({})
    _, segments, flat = segments_of({**inputs, "grad_output": gradient}, options)
    fused = update.fused(rule, False)
    places = places_of(geometry, 0)
    fused(weights, rule.element_record(), state, places, segments, flat, optimizer.hyper(1))
    answers = {
        "weights": weights.reshape(-1, 128)[check_rows].reshape(-1),
        "sum": state[check_rows],
    }
    assert_correct(case.op, case.inputs, answers, case.options, bits=True)


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("lookup-at-scale-unsigned", "row_offset_32bit"),
        ("lookup-at-scale-bytes", "byte_offset_32bit"),
        ("backward-at-scale-rows", "row_offset_32bit"),
        ("lookup-at-scale-tables", "table_offset_32bit"),
        ("backward-at-scale-output", "byte_offset_32bit"),
    ],
)
def test_offsets_of_32_bits_are_found_and_named(name: str, mistake: str) -> None:
    case = CASES[name]
    bent = OPERATORS[case.op].truth(case.inputs, case.options, frozenset({mistake}))
    answers = {
        output: nearest(truth.reference, FORMATS[truth.format]) for output, truth in bent.items()
    }
    report = check(case.op, case.inputs, answers, case.options)
    assert not report and mistake in str(report)


def test_places_of_wrong_elements_are_those_of_the_whole_tables() -> None:
    case = CASES["backward-at-scale-tables"]
    place = OPERATORS[case.op].locate(case, "weights", (129,))
    row = int(case.inputs["check_rows"][1])
    assert place == {"table": 0, "row": row, "column": 1}
    last = OPERATORS[case.op].locate(case, "weights", (case.inputs["check_rows"].size * 128 - 1,))
    assert last == {"table": 8, "row": (1 << 22) + 7, "column": 127}
