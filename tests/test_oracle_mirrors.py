"""Do the mirrors give the peers' bits?

Against recorded answers everywhere; against the peers themselves where they are installed. Bits of
torch depend on the instructions it finds (docs/semantics.md §6): answers were recorded with
AVX-512, on an Intel processor.
"""

import re
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from neocpu import oracle
from neocpu.core.errors import OracleError
from neocpu.oracle.mirrors import MIRRORS, NoMirror, mirror_bits, mirrors_of
from neocpu.oracle.mirrors.order import RADIX_SORT, introsort_order
from neocpu.oracle.mirrors.root import mkl_root
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.semantics import PRESETS
from neocpu.oracle.verdicts.compare import agrees
from tests.mirror_questions import (
    RECORDED,
    WIDTHS,
    Question,
    nbit_questions,
    questions,
    recorded,
    stored,
)
from tests.oracle_cases import all_cases

PEERS = all(find_spec(name) for name in ("torch", "fbgemm_gpu", "torchrec"))
needs_peers = pytest.mark.skipif(
    not PEERS, reason="needs the peers extra: torch, fbgemm-gpu-cpu and torchrec"
)
CPU = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
# VRSQRT14PS, with which MKL's root begins, gives other bits on other makers' processors
MKL_ROOT = "GenuineIntel" in CPU and "avx512f" in CPU
needs_mkl_root = pytest.mark.skipif(not MKL_ROOT, reason="MKL's root of Intel's AVX-512")
pytestmark = pytest.mark.filterwarnings("ignore")  # the peers' own
F = np.float32
# (preset, operator) of the mirrors whose answers are compared with those of the peers
COMPARED = [
    key for key in MIRRORS if key[1] in ("lookup", "backward", "weight_gradient", "unique_gradient")
]


def different(ours: np.ndarray, theirs: np.ndarray) -> int:
    """Elements whose bits differ; any NaN equals any NaN."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    form = ours.dtype.names[0] if ours.dtype.names else ""
    a, b = (x[form] if form else x for x in (ours, theirs))
    if form == "bf16":
        a, b = ((x.astype(np.uint32) << np.uint32(16)).view(F) for x in (a, b))
    elif form == "fp16":
        a, b = (x.view(np.float16) for x in (a, b))
    if a.dtype.kind != "f":
        return int((a != b).sum())
    unequal = a.view(f"u{a.itemsize}") != b.view(f"u{a.itemsize}")
    return int((unequal & ~(np.isnan(a) & np.isnan(b))).sum())


def check(question: Question, theirs: dict[str, np.ndarray]) -> None:
    """The mirror's outputs are the peer's, bit for bit."""
    ours = mirror_bits(question.preset, question.op, question.inputs, question.options)
    assert ours.keys() == theirs.keys()
    wrong = {name: different(ours[name], theirs[name]) for name in ours}
    assert not any(wrong.values()), f"{question.preset} {question.op} {wrong}: {question.options}"


def test_mirrors_give_the_recorded_bits() -> None:
    seen = set()
    for question, theirs in recorded():
        check(question, theirs)
        seen.add((question.preset, question.op))
    assert seen >= set(COMPARED) - {("torch_sparse", "lookup")}


def test_the_record_names_its_peers() -> None:
    versions, _, _ = stored()
    assert RECORDED.stat().st_size < 200_000
    assert versions["instructions"] == "AVX512" and versions["torch"].startswith("2.")


@needs_peers
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("preset", "op"), [key for key in COMPARED if key[0] != "torchrec_row_wise"]
)
def test_mirrors_give_the_peers_bits(preset: str, op: str, width: int) -> None:
    import torch

    from tests import peer_answers

    if preset.startswith("torch") and op == "backward" and not MKL_ROOT:
        pytest.skip("MKL's root of Intel's AVX-512")
    before = torch.get_num_threads()
    try:
        for seed in (2, 3):
            torch.set_num_threads(1 + seed % 2)
            for question in questions(preset, op, width, seed):
                check(question, peer_answers.answer(question))
    finally:
        torch.set_num_threads(before)


@needs_peers
@pytest.mark.parametrize("form", ["nbit8", "nbit4", "nbit2"])
@pytest.mark.parametrize("width", [4, 8, 16, 20, 32, 64, 100, 128])
def test_mirrors_give_the_bits_of_inference(form: str, width: int) -> None:
    from tests import peer_answers

    for question in nbit_questions(form, width, 5):
        check(question, peer_answers.answer(question))


@needs_peers
def test_two_ranks_of_torchrec_give_the_mirrors_bits() -> None:
    from tests import peer_answers

    all_questions = [
        q
        for width in (4, 20, 64)
        for seed in (2, 3)
        for q in questions("torchrec_row_wise", "lookup", width, seed)
    ]
    for question, theirs in zip(all_questions, peer_answers.answers(all_questions)):
        check(question, theirs)


@needs_peers
def test_features_out_of_table_order_are_those_in_order() -> None:
    """FBGEMM's CPU operators take features in the order of their tables only.

    For features in another order the mirror gives what they give for the sorted ones.
    """
    from tests import peer_answers

    inputs = next(
        q for q in questions("fbgemm_cpu", "lookup", 8, 2) if q.inputs["feature_table"].size > 1
    ).inputs
    sizes = inputs["offsets"].reshape(-1)[:: (inputs["offsets"].size - 1) // 5]
    order = [4, 0, 3, 1, 2]
    bags = np.diff(inputs["offsets"]).reshape(5, -1)
    places = np.concatenate([np.arange(sizes[f], sizes[f + 1]) for f in order])
    mixed = {
        **inputs,
        "feature_table": inputs["feature_table"][order],
        "indices": inputs["indices"][places],
        "offsets": np.append(0, np.cumsum(bags[order].reshape(-1))),
    }
    if "per_sample_weights" in inputs:
        mixed["per_sample_weights"] = inputs["per_sample_weights"][places]
    options = OPERATORS["lookup"].complete({})
    sorted_out = peer_answers.fbgemm_lookup(inputs, options)["out"].reshape(-1, 5, 8)
    expected = np.ascontiguousarray(sorted_out[:, order].reshape(-1, 40))
    mirrored = mirror_bits("fbgemm_cpu", "lookup", mixed, {})["out"]
    assert different(mirrored, expected) == 0


@needs_peers
def test_codes_of_the_peers() -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import fbgemm_gpu  # noqa: F401
    x = np.random.default_rng(0).standard_normal((40, 37)).astype(F)
    ops = torch.ops.fbgemm
    half_up = (
        ops.FloatToBfloat16Quantized(torch.from_numpy(x)).view(torch.int16).numpy().view(np.uint16)
    )
    assert (
        mirror_bits("fbgemm_cpu", "round", {"x": x}, {"format": "bf16"})["codes"]["bf16"] == half_up
    ).all()
    for form, kind in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        cast = torch.from_numpy(x).to(kind).view(torch.int16).numpy().view(np.uint16)
        codes = mirror_bits("torch", "round", {"x": x}, {"format": form})["codes"]
        assert ((codes[form] if codes.dtype.names else codes.view(np.uint16)) == cast).all()
    codes = ops.FloatToFused8BitRowwiseQuantized(torch.from_numpy(x)).numpy()
    assert (
        mirror_bits("fbgemm_cpu", "quantize", {"x": x}, {"format": "int8"})["codes"] == codes
    ).all()
    noise = np.random.default_rng(1).integers(0, 256, (400, 45), dtype=np.uint8)
    for rows in (codes, noise):
        read = ops.Fused8BitRowwiseQuantizedToFloat(torch.from_numpy(rows)).numpy()
        ours = mirror_bits(
            "fbgemm_cpu", "dequantize", {"codes": rows}, {"format": "int8", "columns": 37}
        )["out"]
        assert different(ours, read) == 0


def test_the_root_is_one_step_low_where_every_line_of_its_table_says_so() -> None:
    line = np.arange(0x3F800000, 0x40800000, 61, dtype=np.uint32).view(F)  # [1, 4)
    low = np.sqrt(line).view(np.int32) - mkl_root(line).view(np.int32)
    # as an Intel processor answers: a number more in any line moves some of them
    assert (low.sum(), (low * np.arange(low.size)).sum()) == (1_710, 222_055_325)


@needs_peers
@needs_mkl_root
def test_the_root_is_mkls() -> None:
    import torch

    line = np.arange(0x3F800000, 0x40800000, 3, dtype=np.uint32).view(F)  # [1, 4)
    anything = (
        np.random.default_rng(0)
        .integers(0, 1 << 32, 200_000, dtype=np.uint64)
        .astype(np.uint32)
        .view(F)
    )
    tiny = np.arange(0, 1 << 23, 1001, dtype=np.uint32).view(F)
    for x in (line, anything, tiny, np.array([0.0, -0.0, np.inf, -1.0, np.nan], F)):
        assert different(mkl_root(x), torch.from_numpy(x.copy()).sqrt().numpy()) == 0


@needs_peers
@pytest.mark.parametrize("size", [1, 16, 17, 100, 3000, 32767, 32768])
def test_the_sort_is_torchs(size: int) -> None:
    import torch

    rng = np.random.default_rng(size)
    for rows in (1, 7, 1000, 1 << 40):
        keys = rng.integers(0, rows, size)
        for x in (keys, np.sort(keys), np.sort(keys)[::-1].copy()):
            np.testing.assert_array_equal(
                introsort_order(x), torch.sort(torch.from_numpy(x))[1].numpy()
            )


def test_many_keys_are_sorted_by_radix_which_is_stable() -> None:
    keys = np.random.default_rng(2).integers(0, 9, RADIX_SORT)
    stable = np.argsort(keys, kind="stable")
    assert np.array_equal(introsort_order(keys), stable)
    fewer = introsort_order(keys[:-1])
    assert (np.diff(keys[fewer]) >= 0).all() and (
        np.diff(fewer)[np.diff(keys[fewer]) == 0] < 0
    ).any()


def test_mirrors_lie_within_their_presets_and_refuse_with_a_reason() -> None:
    answered = set()
    for case in all_cases():
        # the two take a quarter of a second for each mirror, and have what smaller cases have
        if case.name in ("lookup-long-bag", "backward-hottest-row"):
            continue
        # FBGEMM rounds the step of fp16 rows before it is subtracted: of steps as large as these
        # the sum may be the other neighbour, which no preset allows
        if case.name.startswith(
            ("backward-rule-exact_sgd-fp16", "backward-rule-exact_adagrad-fp16")
        ):
            continue
        # combinations of what other cases have alone: some of them
        if "-pair-" in case.name and not case.name.endswith(("0", "5")):
            continue
        for mirror in mirrors_of(case.op):
            try:
                bits = mirror_bits(mirror.preset, case.op, case.inputs, case.options)
            except NoMirror as why:
                assert len(str(why)) > 10
                continue
            truths = OPERATORS[case.op].truth(case.inputs, case.options, PRESETS[mirror.preset])
            assert all(agrees(truths[name], x) for name, x in bits.items()), (mirror, case.name)
            answered.add((mirror.preset, case.op))
    assert MIRRORS.keys() - answered == {
        (p, "trajectory") for p in ("fbgemm_cpu", "torch", "torch_sparse")
    }  # pruned rows


@pytest.mark.parametrize("preset", ["fbgemm_cpu", "torch", "torch_sparse"])
def test_trajectories_are_lookups_and_backwards(preset: str) -> None:
    inputs = {
        "weights": np.arange(6, dtype=F) / 7,
        "rows": np.array([3]),
        "dims": np.array([2]),
        "feature_table": np.array([0]),
        "training": np.array([1, 0, 1]),
        "learning_rates": np.array([0.5, 0.5, 0.25]),
    }
    for k in range(3):
        inputs |= {
            f"step{k}/indices": np.array([k % 3, 1, 1]),
            f"step{k}/offsets": np.array([0, 2, 3]),
        }
        inputs[f"step{k}/grad_output"] = np.full((2, 2), 0.1 * (k + 1), F)
    options = {"optimizer": "exact_adagrad"}
    outputs = oracle.run("trajectory", inputs, options, preset=preset)
    truths = OPERATORS["trajectory"].truth(inputs, options, PRESETS[preset])
    assert outputs.keys() == truths.keys() and all(
        agrees(truths[name], x) for name, x in outputs.items()
    )


def mean() -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """A weighted MEAN: neocpu divides the sum, FBGEMM multiplies by the reciprocal."""
    rng = np.random.default_rng(1)
    inputs = {
        "weights": rng.standard_normal(70).astype(F),
        "rows": np.array([10]),
        "dims": np.array([7]),
    }
    inputs |= {
        "feature_table": np.array([0]),
        "indices": rng.integers(0, 10, 14),
        "offsets": np.array([0, 7, 14]),
    }
    return inputs, {"pooling": "mean"}


def test_bits_of_a_preset_are_asked_for_by_name() -> None:
    inputs, options = mean()
    fbgemm_out = oracle.run("lookup", inputs, options, preset="fbgemm_cpu")["out"]
    assert oracle.check("lookup", inputs, fbgemm_out, options)
    assert oracle.check("lookup", inputs, fbgemm_out, options, bits=True, preset="fbgemm_cpu")
    report = oracle.check("lookup", inputs, fbgemm_out, options, bits=True)
    assert not report and report.failures[0].diagnoses[0].kind == "mirror"
    assert "these are the bits of fbgemm_cpu" in str(report)
    neocpu_out = oracle.run("lookup", inputs, options, "reference")["out"]
    neocpu_report = oracle.check("lookup", inputs, neocpu_out, options, True, "fbgemm_cpu")
    assert not neocpu_report and "bit for bit as fbgemm_cpu" in str(neocpu_report)
    assert oracle.check("lookup", inputs, neocpu_out, options, True, "exact")


def test_a_case_without_a_mirror_is_judged_within_bounds_and_says_so() -> None:
    inputs, options = mean()
    inputs["indices"][0] = -1
    out = oracle.run("lookup", inputs, options, "reference")["out"]
    report = oracle.check("lookup", inputs, out, options, bits=True, preset="torch")
    assert report and "judged within bounds: pruned rows" in str(report)
    with pytest.raises(NoMirror, match="no bit mirror of permute"):
        oracle.run("permute", {}, preset="torch")
    with pytest.raises(OracleError, match="no preset pytorch"):
        oracle.run("lookup", inputs, options, preset="pytorch")


def test_the_example_of_the_manual_runs(capsys: pytest.CaptureFixture[str]) -> None:
    manual = (RECORDED.parent.parent / "docs" / "oracle.md").read_text(encoding="utf-8")
    code = next(
        part for part in re.findall(r"```python\n(.*?)```", manual, re.DOTALL) if "fl(1/3)" in part
    )
    exec(code, {})
    assert "these are the bits of torch" in capsys.readouterr().out
