"""Do a rank's part of an exchange and a cache's stream say what neocpu's own ones do?"""

from functools import partial

import numpy as np
import pytest

from neocpu import oracle
from neocpu.oracle.operator import Arrays, Case, Value
from neocpu.oracle.ops import OPERATORS
from neocpu.parallel.exchange.two_level import TwoLevelComm, two_level
from neocpu.parallel.exchange.wire_formats import WireSpec
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.threads import run_threads
from tests.oracle_cases import all_cases

F = np.float32
CASES = {case.name: case for case in all_cases(["alltoall", "reduce_scatter", "row_cache"])}
NODES = np.array([0, 0, 0, 1, 1, 1, 2])


@pytest.mark.parametrize("op", ["alltoall", "reduce_scatter", "row_cache"])
def test_kernels_give_the_answers_of_the_plain_models(op: str) -> None:
    for case in CASES.values():
        if case.op != op:
            continue
        answers, expected = (
            OPERATORS[op].run(case.inputs, case.options, backend)
            for backend in ("kernels", "reference")
        )
        assert answers.keys() == expected.keys()
        for name, array in expected.items():
            assert np.array_equal(answers[name], array, equal_nan=array.dtype == F), case.name


def geometry(backward: bool) -> tuple[Arrays, dict[str, Value]]:
    """Seven ranks on three nodes, two of which pool two keys."""
    rng = np.random.default_rng(7)
    inputs: Arrays = {
        "dims": np.array([4, 8, 12, 4, 8, 8, 4, 4, 8]),
        "owner": np.array([0, 1, 2, 3, 4, 5, 6, 0, 3]),
        "cuts": np.array([0, 3, 5, 6, 10, 12, 13, 16]),
        "nodes": NODES,
        "values": rng.standard_normal((16, 60)).astype(F),
    }
    return inputs, {"format": "bf16", "backward": backward}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("levels", [1, 2])
def test_bytes_are_those_that_neocpu_sends(levels: int, backward: bool) -> None:
    inputs, options = geometry(backward)
    per_sample = np.bincount(inputs["owner"], WireSpec("bf16").bytes(inputs["dims"]))
    counts = np.outer(per_sample, np.diff(inputs["cuts"])).astype(np.int64)
    counts = counts.T if backward else counts

    def body(comm: Comm) -> dict[str, int]:
        if levels == 2:
            comm = two_level(comm)
        send = np.zeros(counts[comm.rank].sum(), np.uint8)
        recv = np.zeros(counts[:, comm.rank].sum(), np.uint8)
        known = {"table": counts} if isinstance(comm, TwoLevelComm) else {}
        comm.start_alltoallv(send, counts[comm.rank], recv, counts[:, comm.rank], **known).wait()
        report = comm.traffic().values()
        return {
            link: sum(entry[link]["bytes"] for entry in report)
            for link in ("same_node", "other_node")
        }

    # Every rank knows the traffic of all.
    traffic = run_threads(7, body, ranks_per_node=3, timeout=20.0)[0]
    totals = dict.fromkeys(traffic, 0)
    for rank in range(7):
        part = {**options, "rank": rank, "two_level": levels == 2}
        sent = oracle.run("alltoall", inputs, part, backend="reference")["sent_bytes"]
        near = NODES[rank] == NODES
        totals["same_node"] += int(sent[near].sum())
        totals["other_node"] += int(sent[~near].sum())
    assert traffic == totals


def other_codes(x: np.ndarray, widths: np.ndarray, block: int) -> np.ndarray:
    """int8 blocks by another honest kernel: divided by the scale, added without an fma."""
    out = np.empty_like(x)
    begins = np.append(0, np.cumsum(widths))
    for begin, end in zip(begins[:-1].tolist(), begins[1:].tolist()):
        for first in range(begin, end, block):
            part = x[:, first : min(first + block, end)]
            low = part.min(1, keepdims=True)
            scale = (part.max(1, keepdims=True) - low) / F(255)
            codes = np.rint((part - low) / np.where(scale == 0, F(1), scale))
            out[:, first : min(first + block, end)] = (codes * scale).astype(F) + low
    return out


def honest(case: Case) -> np.ndarray:
    """What arrives by NumPy's fp16 or by other int8 blocks; sums from the last rank on."""
    inputs = case.inputs
    options = OPERATORS[case.op].complete(case.options)
    scale = F(options["scale"])
    wire = partial(other_codes, widths=inputs["dims"], block=int(options["block"]))
    if options["format"] == "fp16":
        wire = lambda x: np.clip(x, -65504, 65504).astype(np.float16).astype(F)  # noqa: E731
    rank = int(options["rank"])
    own = slice(*inputs["cuts"][rank : rank + 2].tolist())
    if case.op == "reduce_scatter":
        terms = [wire(part[own] * scale) / scale for part in inputs["partials"]]
        return sum(terms[-2::-1], terms[-1])
    arrived = wire(inputs["values"] * scale) / scale
    mine = np.repeat(inputs["owner"] == rank, inputs["dims"])
    return arrived[:, mine] if options["backward"] else arrived[own]


HONEST = (
    "alltoall-fp16",
    "alltoall-fp16-backward",
    "alltoall-int8",
    "alltoall-int8-backward",
    "alltoall-scaled-int8",
    "alltoall-scaled-fp16",
    "reduce-scatter-fp16",
    "reduce-scatter-int8",
)


@pytest.mark.parametrize("name", HONEST)
def test_other_honest_wires_pass(name: str) -> None:
    case = CASES[name]
    assert oracle.check(case.op, case.inputs, {"out": honest(case)}, case.options)


def test_numbers_that_stay_at_home_unrounded_are_told_so() -> None:
    case = CASES["alltoall-int8"]
    out = OPERATORS[case.op].run(case.inputs, case.options, "reference")["out"].copy()
    own = np.repeat(case.inputs["owner"] == 1, case.inputs["dims"])
    out[:, own] = case.inputs["values"][2:5, own]
    assert "wire_home_exact" in str(oracle.check(case.op, case.inputs, {"out": out}, case.options))


def test_a_cache_that_drops_changes_is_told_so() -> None:
    case = CASES["cache-lru-one-set"]
    answers = OPERATORS[case.op].run(case.inputs, case.options, "reference")
    for name, rows in answers.items():
        if name.endswith("/written"):
            answers[name] = rows[:0]
    report = oracle.check(case.op, case.inputs, answers, case.options)
    assert "cache_drops_changes" in str(report)


@pytest.mark.parametrize(
    ("op", "name", "options", "words"),
    [
        ("row_cache", "cache-empty", {"policy": "fifo"}, "policy is 'fifo': choose lru"),
        ("row_cache", "cache-empty", {"in_flight": 0}, "in_flight is 0"),
        ("alltoall", "alltoall-fp16", {"format": "fp12"}, "format is 'fp12': choose fp32"),
        ("alltoall", "alltoall-fp16", {"rank": 6}, "rank is 6, of 6 ranks"),
        (
            "reduce_scatter",
            "reduce-scatter-int8",
            {"format": "int8", "round_sums": True},
            "int8 has blocks",
        ),
    ],
)
def test_questions_without_an_answer_are_refused(
    op: str, name: str, options: dict[str, Value], words: str
) -> None:
    for call in (OPERATORS[op].truth, OPERATORS[op].run):
        with pytest.raises(ValueError, match=words):
            call(CASES[name].inputs, options)
