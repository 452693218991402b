"""Do wrong sums say which lookup is missing, doubled or foreign, and where the rest is wrong?"""

import re
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from neocpu import oracle
from neocpu.oracle.checking import judge_cases
from neocpu.oracle.operator import Arrays, Case
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.report import Report
from tests.oracle_cases import all_cases

F = np.float32
CASES = {case.name: case for case in all_cases(["lookup", "backward", "unique_gradient"])}
LOOKUPS = ("lookup-unsorted-shared", "lookup-weighted", "lookup-mean")
UPDATES = ("backward-adam", "backward-exact_rowwise_adagrad", "backward-lamb")


def right(case: Case) -> Arrays:
    return OPERATORS[case.op].run(case.inputs, case.options, "reference")


def report_on(names: tuple[str, ...], kernel: Callable[[Case], Arrays]) -> Report:
    """The whole report, with a budget that leaves no time for switches."""
    cases = [CASES[name] for name in names]
    return judge_cases([(case, kernel(case)) for case in cases]).explained(budget=1e-9)


def with_bags(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Case], Arrays]:
    """Lookups whose bags have other places of indices and weights: change(places of one bag)."""

    def kernel(case: Case) -> Arrays:
        inputs = dict(case.inputs)
        bags = [change(np.arange(*ends)) for ends in pairwise(inputs["offsets"])]
        places = np.concatenate(bags)
        if case.options.get("pooling") == "mean":
            # The divisor is the length of the whole bag.
            inputs["per_sample_weights"] = np.ones(inputs["indices"].size, F)
        for name in ("indices", "per_sample_weights"):
            if name in inputs:
                inputs[name] = inputs[name][places]
        lengths = np.array([bag.size for bag in bags])
        inputs["offsets"] = np.append(0, np.cumsum(lengths))
        out = oracle.run("lookup", inputs, {"pooling": "sum"}, backend="reference")["out"]
        if case.options.get("pooling") == "mean":
            features = inputs["feature_table"].size
            length = np.maximum(np.diff(case.inputs["offsets"]), 1).reshape(features, -1).T
            out = out / np.repeat(length, inputs["dims"][inputs["feature_table"]], axis=1)
        return {"out": out.astype(F)}

    return kernel


def with_weights(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Case], Arrays]:
    """Lookups with other weights: change(all weights)."""

    def kernel(case: Case) -> Arrays:
        weights = change(case.inputs["per_sample_weights"].copy())
        inputs = {**case.inputs, "per_sample_weights": weights}
        return OPERATORS["lookup"].run(inputs, case.options, "reference")

    return kernel


def in_tf32(x: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(F)


def second_of_bags_unweighted(case: Case) -> Arrays:
    def change(weights: np.ndarray) -> np.ndarray:
        offsets = case.inputs["offsets"]
        weights[offsets[:-1][np.diff(offsets) > 1] + 1] = 1
        return weights

    return with_weights(change)(case)


def bags_late(case: Case) -> Arrays:
    """Every bag of a feature begins and ends one lookup late."""
    inputs = dict(case.inputs)
    features = inputs["feature_table"].size
    begins = inputs["offsets"][:: (inputs["offsets"].size - 1) // features]
    places = np.concatenate([np.roll(np.arange(*ends), -1) for ends in pairwise(begins)])
    for name in ("indices", "per_sample_weights"):
        if name in inputs:
            inputs[name] = inputs[name][places]
    return OPERATORS["lookup"].run(inputs, case.options, "reference")


def second_elsewhere(case: Case) -> Arrays:
    """The second lookup of a bag reads a row three rows on, round the table."""
    inputs = {**case.inputs, "indices": case.inputs["indices"].copy()}
    offsets = inputs["offsets"]
    bags = np.flatnonzero(np.diff(offsets) > 1)
    table = inputs["feature_table"][bags // ((offsets.size - 1) // inputs["feature_table"].size)]
    places = offsets[bags] + 1
    inputs["indices"][places] = (inputs["indices"][places] + 3) % inputs["rows"][table]
    return OPERATORS["lookup"].run(inputs, case.options, "reference")


def lanes_swapped(case: Case) -> Arrays:
    out = right(case)["out"]
    return {"out": out.reshape(-1, 2)[:, ::-1].reshape(out.shape)}


def row_after(case: Case) -> Arrays:
    """Rows one after those asked for, where there is one."""
    inputs = dict(case.inputs)
    table = np.repeat(
        inputs["feature_table"],
        np.diff(inputs["offsets"]).reshape(inputs["feature_table"].size, -1).sum(1),
    )
    after = np.minimum(inputs["indices"] + 1, inputs["rows"][table] - 1)
    inputs["indices"] = np.where(inputs["indices"] < 0, inputs["indices"], after)
    return OPERATORS["lookup"].run(inputs, case.options, "reference")


HINTS: dict[str, tuple[tuple[str, ...], Callable[[Case], Arrays], str]] = {
    "second lookup lost": (
        LOOKUPS,
        with_bags(lambda bag: np.delete(bag, 1) if bag.size > 1 else bag),
        "lookup 1 (from 0) is missing",
    ),
    "first counts twice": (
        LOOKUPS,
        with_bags(lambda bag: np.append(bag[:1], bag)),
        "the first lookup counts twice",
    ),
    "every second lost": (
        LOOKUPS,
        with_bags(lambda bag: bag[::2]),
        "lookups 2k + 1 (from 0) are missing",
    ),
    "one block": (
        LOOKUPS,
        with_bags(lambda bag: bag[:4]),
        "lookups from 4 (from 0) on are missing",
    ),
    "next weight": (
        ("lookup-weighted",),
        with_weights(lambda weights: np.roll(weights, -1)),
        "every lookup takes the weight of the next lookup",
    ),
    "second weight ignored": (
        ("lookup-weighted",),
        second_of_bags_unweighted,
        "lookup 1 (from 0) takes no weight",
    ),
    "weights in TF32": (
        ("lookup-weighted",),
        with_weights(in_tf32),
        "weights are rounded to TF32",
    ),
    "a foreign row": (LOOKUPS, second_elsewhere, "one lookup takes another row of its table"),
    "bags late": (LOOKUPS, bags_late, "every lookup takes what the next lookup should add"),
    "lanes swapped": (
        ("lookup-variable-batch",),
        lanes_swapped,
        "columns stand in another order: swapped in pairs",
    ),
    "row after": (LOOKUPS, row_after, "every lookup takes the row after its own"),
    "other weights": (
        ("lookup-weighted",),
        with_weights(lambda weights: (weights * np.linspace(2, 3, weights.size)).astype(F)),
        "lookups have other weights than their own",
    ),
    "one number": (
        LOOKUPS,
        lambda case: {"out": right(case)["out"] + F(1)},
        "one number is added to all columns",
    ),
}


@pytest.mark.parametrize("name", HINTS)
def test_wrong_bags_say_what_they_lack(name: str) -> None:
    cases, kernel, hint = HINTS[name]
    text = str(report_on(cases, kernel))
    assert hint in text and "wrong sums" in text, text


@pytest.mark.parametrize(
    ("extra", "least", "most"),
    [
        ("the lookup after its end", 0, 7),
        ("the lookup after its end", 3, 4),
        ("the lookup before its beginning", 2, 8),
    ],
)
def test_wrong_segments_say_what_they_have_too_much(extra: str, least: int, most: int) -> None:
    (case,) = (case for case in all_cases(["segment_sum"]) if case.name == "segment-sum")
    ends = case.inputs["offsets"]
    beside = ends[1:] if "after" in extra else ends[:-1] - 1
    sums = right(case)["sums"].copy()
    sums[least:most] += case.inputs["values"][beside[least:most]]
    report = str(oracle.check(case.op, case.inputs, sums, case.options))
    assert f"{extra} is added (first: this call, segment {least})" in report


def merged_without(case: Case, lost: Callable[[np.ndarray], np.ndarray]) -> Arrays:
    """Merged gradients of some lookups of each row: lost(place in the row's segment)."""
    indices = case.inputs["indices"].copy()
    for row in np.unique(indices):
        members = np.flatnonzero(case.inputs["indices"] == row)
        indices[members[lost(np.arange(members.size))]] = -1
    return OPERATORS[case.op].run({**case.inputs, "indices": indices}, case.options, "reference")


def test_a_lookup_lost_at_a_border_is_no_race() -> None:
    case = CASES["unique-gradient-sequence-hot"]
    always = merged_without(case, lambda place: place == 8)
    report = str(oracle.check(case.op, case.inputs, always, case.options))
    assert "lookup_missing" in report and "lookup 8 (from 0) is missing" in report
    assert "duplicate_lost" not in report
    borders = merged_without(case, lambda place: (place > 0) & (place % 16 == 0))
    report = str(oracle.check(case.op, case.inputs, borders, case.options))
    assert "the first lookups of blocks of 16 but the first are missing" in report


@pytest.mark.parametrize(("largest", "both"), [(1.0, True), (2.0**17, False)])
def test_gradients_in_tf32_are_fp16_where_no_number_tells(largest: float, both: bool) -> None:
    case = CASES["unique-gradient-sum"]
    gradient = case.inputs["grad_output"] * F(largest)
    inputs = {**case.inputs, "grad_output": gradient}
    narrow = {**inputs, "grad_output": in_tf32(gradient)}
    answer = OPERATORS[case.op].run(narrow, case.options, "reference")
    report = str(oracle.check(case.op, inputs, answer, case.options))
    assert "gradients_in_tf32" in report and ("gradients_in_fp16" in report) == both


def test_a_page_draws_wrong_elements_where_they_are() -> None:
    (case,) = (case for case in all_cases(["segment_sum"]) if case.name == "segment-sum")
    sums = right(case)["sums"].copy()
    sums[2, 3:5] += 100
    page = oracle.check(case.op, case.inputs, sums, case.options).to_html()
    drawn = re.findall(r'<rect x="(\d+)" y="(\d+)" width="(\d+)" height="1" fill="([^"]+)"', page)
    worst = drawn[[(x, y) for x, y, _, _ in drawn].index(("3", "2"))]
    assert worst[2] == "2"
    assert [rect for rect in drawn if rect[3] == worst[3]] == [worst]


def stepped_in_parts(case: Case) -> Arrays:
    """Features of a table take their steps one after the other."""
    answer = dict(case.inputs)
    features = case.inputs["feature_table"].size
    begins = case.inputs["offsets"][:: (case.inputs["offsets"].size - 1) // features]
    for f in range(features):
        kept = np.zeros(case.inputs["indices"].size, bool)
        kept[begins[f] : begins[f + 1]] = True
        inputs = {**answer, "indices": np.where(kept, case.inputs["indices"], -1)}
        answer |= OPERATORS["backward"].run(inputs, case.options, "reference")
    return {name: answer[name] for name in right(case)}


def with_states(read: Callable[[np.ndarray], np.ndarray]) -> Callable[[Case], Arrays]:
    """Other states are read; rows and states are stored where they belong."""

    def kernel(case: Case) -> Arrays:
        inputs = dict(case.inputs)
        inputs["sum"] = read(inputs["sum"])
        answer = OPERATORS["backward"].run(inputs, case.options, "reference")
        touched = answer["weights"] != case.inputs["weights"]
        dims = np.repeat(inputs["dims"], inputs["rows"])
        stepped = np.logical_or.reduceat(touched, np.append(0, np.cumsum(dims)[:-1]))
        answer["sum"] = np.where(stepped, answer["sum"], case.inputs["sum"])
        return answer

    return kernel


def stepped_twice(case: Case) -> Arrays:
    """The whole step, and once more from what it left."""
    answer = right(case)
    inputs = {**case.inputs, **answer}
    if "prev_iter" in answer:
        inputs["prev_iter"] = np.minimum(answer["prev_iter"], int(case.options["step"]) - 1.0)
    return OPERATORS["backward"].run(inputs, case.options, "reference")


def gradient_of_next(case: Case) -> Arrays:
    """Each touched row takes the merged gradient of the next one of its table."""
    unique = OPERATORS["unique_gradient"]
    inputs = {name: case.inputs[name] for name in unique.inputs.keys() & case.inputs.keys()}
    touched = unique.run(inputs, {}, "reference")
    first = np.append(0, np.cumsum(case.inputs["rows"]))
    table = np.searchsorted(first, touched["rows"], side="right") - 1
    # A feature for each table, a sample for each row, and in it a lookup of one row.
    values = np.split(touched["values"], np.cumsum(case.inputs["dims"][table])[:-1])
    samples = int(np.bincount(table).max())
    features = case.inputs["rows"].size
    dims = case.inputs["dims"]
    columns = np.append(0, np.cumsum(dims))
    gradient = np.zeros((samples, int(columns[-1])), F)
    lengths = np.zeros((features, samples), np.int64)
    for t in range(features):
        members = np.flatnonzero(table == t)
        lengths[t, : members.size] = 1
        for sample, member in enumerate(np.roll(members, -1)):
            gradient[sample, columns[t] : columns[t + 1]] = values[member]
    inputs = {
        **case.inputs,
        "indices": touched["rows"] - first[table],
        "offsets": np.append(0, np.cumsum(lengths)),
        "feature_table": np.arange(features),
        "grad_output": gradient,
    }
    return OPERATORS["backward"].run(inputs, case.options, "reference")


STEPS: dict[str, tuple[tuple[str, ...], Callable[[Case], Arrays], str]] = {
    "in parts": (UPDATES, stepped_in_parts, "a row is stepped in two parts"),
    "states of the next row": (
        ("backward-exact_rowwise_adagrad",),
        with_states(lambda states: np.roll(states, -1)),
        "a step reads the states of the row after",
    ),
    "states of the next table": (
        ("backward-sequence-exact_rowwise_adagrad",),  # tables of 7 and 5 rows
        with_states(lambda states: np.concatenate([states[7:], states[5:]])),
        "a step reads the states of the same row of the next table",
    ),
    "states of a row farther off": (
        ("backward-exact_rowwise_adagrad",),
        with_states(lambda states: np.roll(states, 2)),
        "a step reads the states of another row",
    ),
    "twice": (
        ("backward-adam", "backward-adagradw-count"),
        stepped_twice,
        "rows take their step twice",
    ),
    "a moment that never falls": (
        ("backward-adam",),
        lambda case: {
            **right(case),
            "exp_avg_sq": np.maximum(right(case)["exp_avg_sq"], case.inputs["exp_avg_sq"]),
        },
        "states are as they were before the step, rows are not (first",
    ),
    "gradient of the next row": (UPDATES, gradient_of_next, "the sum is the next touched row's"),
    "rows not written": (
        UPDATES,
        lambda case: {**right(case), "weights": case.inputs["weights"]},
        "old_state",
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_wrong_rows_say_what_step_they_took(name: str) -> None:
    cases, kernel, hint = STEPS[name]
    text = str(report_on(cases, kernel))
    assert hint in text, text


def test_another_hyper_parameter_is_told_by_what_was_done_to_it() -> None:
    def kernel(case: Case) -> Arrays:
        momentum = float(case.options["momentum"]) ** 2
        options = {**case.options, "momentum": momentum}
        return OPERATORS["backward"].run(case.inputs, options, "reference")

    text = str(report_on(("backward-momentum_sgd", "backward-lars_sgd"), kernel))
    assert "of 2 of 2 cases answers are right with momentum squared" in text, text


def test_an_option_of_which_few_values_fail_is_told() -> None:
    def kernel(case: Case) -> Arrays:
        answer = {name: np.array(array) for name, array in right(case).items()}
        if case.options["optimizer"] == "lamb":
            answer["weights"] += np.linspace(0.1, 0.37, answer["weights"].size, dtype=F)
        return answer

    lambs = [f"backward-lamb{name}" for name in ("", "-first-step", "-l2", "-decoupled")]
    assert "; only with optimizer lamb" in str(report_on((*lambs, "backward-adam"), kernel))


PLACES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "first": (lambda c: c == 0, "all in the first column"),
    "even columns": (lambda c: c % 2 == 0, "all in even columns"),
    "odd columns": (lambda c: c % 2 == 1, "all in odd columns"),
    "lane 1": (lambda c: c % 4 == 1, "all in columns 4k + 1"),
    "lane 3": (lambda c: c % 4 == 3, "all in columns 4k + 3"),
    "first half": (lambda c: c < 32, "all in the first half of the columns"),
    "third vectors": (lambda c: c // 4 % 3 == 2, "the third of every 3 times 4 columns"),
}


@pytest.mark.parametrize("name", PLACES)
def test_what_has_no_name_says_where_it_is(name: str) -> None:
    mask, words = PLACES[name]
    case = CASES["lookup-unsorted-shared"]
    width = 64
    rows = case.inputs["rows"]
    inputs = {**case.inputs, "dims": np.full(rows.size, width)}
    inputs["weights"] = np.linspace(1, 2, int(rows.sum()) * width, dtype=F)
    out = oracle.run("lookup", inputs, backend="reference")["out"].copy()
    # Other by a factor that no lookup and no mistake explains.
    noise = 1 + np.linspace(0.1, 0.37, out.size).reshape(out.shape)
    out *= np.where(mask(np.arange(out.shape[1]) % width), noise, 1).astype(F)
    assert words in str(oracle.check("lookup", inputs, out))


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        (lambda length, pruned: pruned > 0, "those with pruned lookups, no right one"),
        (lambda length, pruned: length % 2 == 1, "those of an odd number of lookups, no right one"),
        (lambda length, pruned: length > 2, "those of 3 lookups or more, no right one"),
    ],
)
def test_wrong_bags_say_what_they_have_in_common(
    fact: Callable[[np.ndarray, np.ndarray], np.ndarray], words: str
) -> None:
    lengths = np.array([0, 1, 2, 3, 4, 2, 5, 1])
    ends = np.append(0, np.cumsum(lengths))
    indices = np.arange(ends[-1]) % 7
    indices[[1, 4, 9]] = -1
    pruned = np.add.reduceat(np.append(indices < 0, False), ends[:-1]) * (lengths > 0)
    inputs = {
        "weights": np.linspace(1, 2, 28, dtype=F),
        "rows": np.array([7]),
        "dims": np.array([4]),
        "feature_table": np.array([0]),
        "indices": indices,
        "offsets": ends,
    }
    out = oracle.run("lookup", inputs, backend="reference")["out"].copy()
    out[fact(lengths, pruned)] += np.array([0.1, -0.3, 0.7, 0.2], F)
    assert words in str(oracle.check("lookup", inputs, out))


def test_rows_narrower_than_a_vector_are_a_tail_too() -> None:
    inputs = {
        "weights": np.linspace(1, 2, 32, dtype=F),
        "rows": np.array([2, 2]),
        "dims": np.array([4, 12]),
        "feature_table": np.array([0, 1]),
        "indices": np.array([0, 1, 1, 0]),
        "offsets": np.arange(5),
    }
    out = oracle.run("lookup", inputs, backend="reference")["out"].copy()
    out[:, :4] = out[:, -4:] = 0
    assert "after the last whole 8 columns of a row" in str(oracle.check("lookup", inputs, out))


def test_samples_that_nobody_wrote_are_no_factor() -> None:
    case = CASES["lookup-weighted"]
    out = right(case)["out"].copy()
    out[1::2] = 0
    report = oracle.check("lookup", case.inputs, out, case.options, budget=1e-9)
    assert "only odd rows (or samples)" in str(report) and "sum_scaled" not in str(report)


def test_sizes_of_errors_say_of_which_format_they_are() -> None:
    (case,) = (c for c in all_cases(["trajectory"]) if c.name == "trajectory-adam")
    inputs = {
        name: in_tf32(array) if array.dtype == F else array for name, array in case.inputs.items()
    }
    out = OPERATORS[case.op].run(inputs, case.options, "reference")
    report = oracle.check(case.op, case.inputs, out, case.options, budget=1e-9)
    assert "have the size of roundings to TF32 or fp16" in str(report)


def test_zeros_for_subnormal_sums_are_no_output_that_nobody_wrote() -> None:
    (case,) = (case for case in all_cases(["segment_sum"]) if "subnormals" in case.name)
    report = oracle.check("segment_sum", case.inputs, np.zeros((4, 4), F))
    assert not report and "all_zeros" not in str(report)


def test_truncated_nvfp4_is_not_called_a_rounding_to_fp16() -> None:
    (case,) = (case for case in all_cases(["nvfp4_quantize"]) if case.name == "nvfp4-quantize")
    answer = {name: np.array(array) for name, array in right(case).items()}
    truth = OPERATORS[case.op].truth(case.inputs, case.options)["values"]
    grid = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    size = np.minimum(np.abs(truth.reference), 6.0)
    cut = grid[np.searchsorted(grid, size, side="right") - 1]
    answer["values"] = np.copysign(cut, truth.reference).astype(F)
    report = oracle.check(case.op, case.inputs, answer, case.options)
    assert not report and "rounded_to_fp16" not in str(report)
