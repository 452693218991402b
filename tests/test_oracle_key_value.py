"""Do ids enter, fade and leave a key-value table as a dictionary of rows says?"""

import math
from itertools import pairwise

import numpy as np
import pytest

from neocpu.oracle.checking import check, run
from neocpu.oracle.operator import Case
from neocpu.oracle.ops import OPERATORS
from tests.oracle_cases import all_cases

CASES = {case.name: case for case in all_cases(["kv_trajectory"])}
F = np.float32


def dictionary(case: Case) -> dict[str, np.ndarray]:
    """A plain table: id -> [row, sum, count, time]; fp32, one lookup after the other."""
    options = OPERATORS[case.op].complete(case.options)
    inputs = case.inputs
    dim = int(inputs["dims"][0])
    initial = dict(zip(inputs["keys"].tolist(), inputs["weights"].reshape(-1, dim)))
    begin = int(inputs["times"][0])
    counts = dict(zip(inputs["keys"].tolist(), inputs.get("counts", np.zeros(0, int)).tolist()))
    table: dict[int, list] = {
        i: [initial[i].copy(), F(0), count, begin] for i, count in counts.items() if count
    }
    out: dict[str, np.ndarray] = {}
    for k, training in enumerate(inputs["training"].tolist()):
        ids = inputs[f"step{k}/indices"].tolist()
        offsets = inputs[f"step{k}/offsets"].tolist()
        time = int(inputs["times"][k])
        if training:
            for i in sorted(set(ids) - {-1}):
                entry = table.setdefault(i, [initial[i].copy(), F(0), 0, 0])
                entry[2] += 1
                entry[3] = time
        pooled = np.zeros((len(offsets) - 1, dim), F)
        gradient: dict[int, np.ndarray] = {}
        for bag, (first, end) in enumerate(pairwise(offsets)):
            for i in ids[first:end]:
                if i == -1:
                    continue
                pooled[bag] += table[i][0] if i in table else initial[i]
                if training:
                    total = gradient.setdefault(i, np.zeros(dim, F))
                    total += inputs[f"step{k}/grad_output"][bag]
        out[f"step{k}/out"] = pooled
        for i, g in gradient.items():
            rate = F(options["learning_rate"])
            if options["optimizer"] == "exact_rowwise_adagrad":
                table[i][1] += np.mean(g * g, dtype=F)
                rate = rate / (np.sqrt(table[i][1]) + F(options["eps"]))
            table[i][0] = table[i][0] - rate * g
        if inputs["evict"][k]:
            evict(table, time, options)
        out[f"step{k}/kept"] = np.array(sorted(table), np.int64)
    entries = [table[i] for i in sorted(table)]
    out["counts"] = np.array([entry[2] for entry in entries], np.int64)
    out["last_times"] = np.array([entry[3] for entry in entries], np.int64)
    out["weights"] = np.concatenate([np.zeros(0, F), *(entry[0] for entry in entries)])
    if options["optimizer"] == "exact_rowwise_adagrad":
        out["sum"] = np.array([entry[1] for entry in entries], F)
    return out


def evict(table: dict[int, list], time: int, options: dict) -> None:
    """Remove what the strategy names."""
    for i in list(table):
        row, _, count, last = table[i]
        faded = math.floor(count * options["decay_rate"])
        old = time - last > options["ttl"]
        gone = {
            "timestamp": old,
            "counter": faded < options["min_count"],
            "timestamp_and_counter": old and faded < options["min_count"],
            "l2_weight": float(np.linalg.norm(row)) < options["min_norm"],
            "timestamp_threshold": last < time - options["ttl"],
        }[options["strategy"]]
        if "counter" in options["strategy"]:
            table[i][2] = faded
        if gone:
            del table[i]


@pytest.mark.parametrize("name", CASES)
def test_a_dictionary_of_rows_is_right(name: str) -> None:
    case = CASES[name]
    answer = dictionary(case)
    report = check(case.op, case.inputs, answer, case.options)
    assert report, str(report)
    survivors = [answer[f"step{k}/kept"].size for k in range(case.inputs["training"].size)]
    assert min(survivors[1:]) < max(survivors), "somebody is evicted"


def test_who_never_evicts_is_found() -> None:
    case = CASES["kv-timestamp"]
    never = Case(case.name, case.op, {**case.inputs, "evict": np.zeros(8, int)}, case.options, "")
    wrong = {"step7/kept": run(never.op, never.inputs, never.options)["step7/kept"]}
    report = check(case.op, case.inputs, wrong, case.options)
    assert not report and "expected" in str(report)


def test_a_norm_at_the_threshold_is_no_question() -> None:
    inputs = {
        "keys": np.array([7]),
        "dims": np.array([1]),
        "weights": np.array([2.0], F),
        "training": np.array([1]),
        "evict": np.array([1]),
        "times": np.array([0]),
        "step0/indices": np.array([7]),
        "step0/offsets": np.array([0, 1]),
        "step0/grad_output": np.zeros((1, 1), F),
    }
    with pytest.raises(ValueError, match="min_norm"):
        OPERATORS["kv_trajectory"].truth(inputs, {"strategy": "l2_weight", "min_norm": 2.0})
    with pytest.raises(ValueError, match="choose"):
        OPERATORS["kv_trajectory"].truth(inputs, {"strategy": "lru"})
