"""Are broken kernels named? Each is plain NumPy, and shares nothing with the switches."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from neocpu import oracle
from neocpu.oracle.diagnosis import conclusion
from neocpu.oracle.diagnosis.attribution import Attribution, SumHint

Array = NDArray[np.float32]
F32 = np.float32
H = 9
D = 8
LR = F32(0.1)
EPS = F32(1e-2)


def problem(
    pooling: str = "sum", optimizer: str = "exact_sgd"
) -> tuple[dict[str, NDArray], dict[str, object]]:
    """One table, seven bags (one empty), rows that recur in and between bags; state is not zero."""
    rng = np.random.default_rng(5)
    lengths = np.array([3, 0, 4, 1, 2, 5, 2])
    inputs = {
        "weights": rng.standard_normal(H * D, dtype=F32),
        "rows": np.array([H]),
        "dims": np.array([D]),
        "feature_table": np.array([0]),
        "indices": rng.integers(0, H - 2, lengths.sum()),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]),
    }
    options: dict[str, object] = {"pooling": pooling}
    if optimizer:
        inputs["grad_output"] = rng.standard_normal((lengths.size, D), dtype=F32)
        options |= {
            "optimizer": optimizer,
            "learning_rate": float(LR),
            "eps": float(EPS),
            "step": 3,
        }
    if optimizer == "exact_rowwise_adagrad":
        inputs["sum"] = rng.random(H, dtype=F32)
    if optimizer == "exact_adagrad":
        inputs["sum"] = rng.random(H * D, dtype=F32)
    return inputs, options


def bags(inputs: dict[str, NDArray]) -> list[NDArray[np.int64]]:
    return np.split(inputs["indices"], inputs["offsets"][1:-1])


def forward(
    inputs: dict[str, NDArray], divide: bool = False, take: Callable = lambda bag: bag
) -> Array:
    table = inputs["weights"].reshape(H, D)
    out = np.zeros((len(bags(inputs)), D), F32)
    for b, bag in enumerate(bags(inputs)):
        for row in take(bag):
            out[b] += table[row]
        if divide and bag.size:
            out[b] /= F32(bag.size)
    return out


def terms(inputs: dict[str, NDArray], divide: bool = False) -> list[tuple[int, Array]]:
    gradients = []
    for g, bag in zip(inputs["grad_output"], bags(inputs)):
        gradients += [(int(row), g / F32(bag.size) if divide else g) for row in bag]
    return gradients


def merged_runs(inputs: dict[str, NDArray]) -> list[tuple[int, Array]]:
    """A sum for each run of equal rows, as of kernels that take their lookups for sorted."""
    runs: list[tuple[int, Array]] = []
    for row, g in terms(inputs):
        if runs and runs[-1][0] == row:
            runs[-1] = (row, runs[-1][1] + g)
        else:
            runs.append((row, g))
    return runs


def upper_half(x: Array) -> Array:
    """bf16 by dropping bits."""
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(F32)


def with_upper_halves(inputs: dict[str, NDArray]) -> dict[str, NDArray]:
    return inputs | {"grad_output": upper_half(inputs["grad_output"])}


def merged(inputs: dict[str, NDArray], divide: bool = False) -> dict[int, Array]:
    sums: dict[int, Array] = {}
    for row, g in terms(inputs, divide):
        sums[row] = sums.get(row, np.zeros(D, F32)) + g
    return sums


def rowwise(
    inputs: dict[str, NDArray],
    gradients: list[tuple[int, Array]],
    inside: bool = False,
    total: bool = False,
    early: bool = False,
    eps: np.float32 = EPS,
) -> dict[str, Array]:
    """Row-wise AdaGrad, with the mistakes that people make."""
    w = inputs["weights"].copy().reshape(H, D)
    s = inputs["sum"].copy()
    for row, g in gradients:
        before = s[row]
        s[row] += (g * g).sum(dtype=F32) if total else (g * g).mean(dtype=F32)
        used = before if early else s[row]
        w[row] -= LR * g / (np.sqrt(used + eps) if inside else np.sqrt(used) + EPS)
    return {"weights": w.reshape(-1), "sum": s}


def sgd(
    inputs: dict[str, NDArray], gradients: dict[int, Array] | list[tuple[int, Array]]
) -> dict[str, Array]:
    w = inputs["weights"].copy().reshape(H, D)
    for row, g in gradients.items() if isinstance(gradients, dict) else gradients:
        w[row] -= LR * g
    return {"weights": w.reshape(-1)}


def last_of(inputs: dict[str, NDArray]) -> dict[int, Array]:
    return dict(terms(inputs))


def first_of(inputs: dict[str, NDArray]) -> dict[int, Array]:
    return dict(reversed(terms(inputs)))


def scaled(inputs: dict[str, NDArray], factor: float) -> dict[int, Array]:
    return {row: g * F32(factor) for row, g in merged(inputs).items()}


ROWWISE = ("backward", "sum", "exact_rowwise_adagrad")
SGD = ("backward", "sum", "exact_sgd")
BROKEN: dict[str, tuple[tuple[str, str, str], Callable[[dict[str, NDArray]], object]]] = {
    "mean_not_divided": (("lookup", "mean", ""), forward),
    "last_lookup_dropped": (("lookup", "sum", ""), lambda i: forward(i, take=lambda bag: bag[:-1])),
    "first_lookup_dropped": (("lookup", "sum", ""), lambda i: forward(i, take=lambda bag: bag[1:])),
    "duplicates_in_sequence": (ROWWISE, lambda i: rowwise(i, terms(i))),
    "duplicates_merged_where_adjacent": (ROWWISE, lambda i: rowwise(i, merged_runs(i))),
    "last_run_wins": (SGD, lambda i: sgd(i, dict(merged_runs(i)))),
    "gradients_cut_to_bf16": (SGD, lambda i: sgd(i, merged(with_upper_halves(i)))),
    "mean_empty_is_nan": (
        ("lookup", "mean", ""),
        lambda i: np.where(np.diff(i["offsets"])[:, None], forward(i, divide=True), F32(np.nan)),
    ),
    "eps_squared_inside_root": (
        ROWWISE,
        lambda i: rowwise(i, list(merged(i).items()), inside=True, eps=EPS * EPS),
    ),
    "eps_inside_root": (ROWWISE, lambda i: rowwise(i, list(merged(i).items()), inside=True)),
    "square_sum_not_mean": (ROWWISE, lambda i: rowwise(i, list(merged(i).items()), total=True)),
    "update_before_state": (ROWWISE, lambda i: rowwise(i, list(merged(i).items()), early=True)),
    "last_duplicate_wins": (SGD, lambda i: sgd(i, last_of(i))),
    "first_duplicate_wins": (SGD, lambda i: sgd(i, first_of(i))),
    "divided_by_2": (SGD, lambda i: sgd(i, scaled(i, 0.5))),
    "divided_by_4": (SGD, lambda i: sgd(i, scaled(i, 0.25))),
    "sign_flipped": (SGD, lambda i: sgd(i, scaled(i, -1.0))),
    "old_state": (SGD, lambda i: {"weights": i["weights"].copy()}),
    "all_zeros": (("lookup", "sum", ""), lambda i: np.zeros((7, D), F32)),
    "constant_factor": (("lookup", "sum", ""), lambda i: forward(i) / F32(7)),
    "rounded_to_bf16": (
        ("lookup", "sum", ""),
        lambda i: upper_half(forward(i)),
    ),
    "permuted": (("lookup", "sum", ""), lambda i: forward(i)[::-1].copy()),
    "transposed": (("lookup", "sum", ""), lambda i: forward(i).T.copy().reshape(7, D)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_is_named(name: str) -> None:
    (op, pooling, optimizer), kernel = BROKEN[name]
    inputs, options = problem(pooling, optimizer)
    report = oracle.check(op, inputs, kernel(inputs), options)
    assert not report
    best = report.failures[0].diagnoses[0]
    assert name in best.names, str(report)
    assert name in str(report) and (best.fix or best.kind == "quirk")


def adam(inputs: dict[str, NDArray], t: int, corrected: bool = True) -> dict[str, Array]:
    """Lazy Adam at step t, fp32."""
    w, m, v = (inputs[name].copy().reshape(H, D) for name in ("weights", "exp_avg", "exp_avg_sq"))
    b1 = F32(0.9)
    b2 = F32(0.999)
    for row, g in merged(inputs).items():
        m[row] = b1 * m[row] + (F32(1) - b1) * g
        v[row] = b2 * v[row] + (F32(1) - b2) * g * g
        c1, c2 = (F32(1) - b1**t, F32(1) - b2**t) if corrected else (F32(1), F32(1))
        w[row] -= LR * (m[row] / c1) / (np.sqrt(v[row] / c2) + EPS)
    return {"weights": w.reshape(-1), "exp_avg": m.reshape(-1), "exp_avg_sq": v.reshape(-1)}


@pytest.mark.parametrize(
    ("name", "how"),
    [("bias_correction_missing", {"t": 3, "corrected": False}), ("step_counted_late", {"t": 2})],
)
def test_a_broken_adam_is_named(name: str, how: dict[str, int]) -> None:
    inputs, options = problem("sum", "adam")
    rng = np.random.default_rng(6)
    inputs |= {
        "exp_avg": rng.standard_normal(H * D, dtype=F32),
        "exp_avg_sq": rng.random(H * D, dtype=F32),
    }
    assert oracle.check("backward", inputs, adam(inputs, 3), options)
    report = oracle.check("backward", inputs, adam(inputs, **how), options)
    assert name in report.failures[0].diagnoses[0].names, str(report)


def test_a_clamped_index_is_named() -> None:
    """A row out of range that is set to 0 trains row 0."""
    inputs, options = problem(*SGD[1:])
    inputs["indices"][[1, 6]] = H, H + 5
    options["bounds_check"] = "ignore"
    clamped = inputs | {"indices": np.where(inputs["indices"] < H, inputs["indices"], 0)}
    report = oracle.check("backward", inputs, sgd(clamped, merged(clamped)), options)
    assert "out_of_bounds_row_0" in report.failures[0].diagnoses[0].names, str(report)


def test_rounding_half_up_is_named() -> None:
    x = np.random.default_rng(7).standard_normal((5, 8)).astype(F32)
    # ties between even codes and odd ones
    x.view(np.uint32)[1, ::2] = x.view(np.uint32)[1, ::2] >> 17 << 17 | 0x8000
    up = ((x.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
    options: dict[str, object] = {"format": "bf16", "rounding": "nearest"}
    report = oracle.check("round", {"x": x}, up, options)
    assert not report and "half_up" in report.failures[0].diagnoses[0].names, str(report)


def test_right_kernels_pass() -> None:
    inputs, options = problem("mean", "")
    assert oracle.check("lookup", inputs, forward(inputs, divide=True), options)
    inputs, options = problem("sum", "exact_rowwise_adagrad")
    assert oracle.check("backward", inputs, rowwise(inputs, list(merged(inputs).items())), options)


def test_two_mistakes_at_once_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, options = problem("sum", "exact_rowwise_adagrad")
    both = rowwise(inputs, list(merged(inputs).items()), inside=True, total=True)
    report = oracle.check("backward", inputs, both, options)
    assert set(report.failures[0].diagnoses[0].names) == {"eps_inside_root", "square_sum_not_mean"}
    # but one that fits all wrong sums comes before two
    for fitting, named in ((2, 2), (3, 1)):
        hint = SumHint("stepped_in_parts", "")
        whole = Attribution(hint, fitting, 3, "", (report.failures[0].case.name,))
        monkeypatch.setattr(conclusion, "attributed", lambda trials, whole=whole: whole)
        report = oracle.check("backward", inputs, both, options)
        assert len(report.failures[0].diagnoses[0].names) == named


def test_half_of_the_signs_may_be_wrong() -> None:
    codes = np.zeros((4, 16), np.uint8)
    codes[:, :8] = np.arange(1, 33).reshape(4, 8)
    codes[:, 8:12] = np.frombuffer(F32(1).tobytes(), np.uint8)  # scale; the bias is 0
    right = oracle.run("dequantize", {"codes": codes}, {"columns": 8}, "reference")["out"]
    answer = right * np.tile([F32(1), F32(-1)], 4)
    report = oracle.check("dequantize", {"codes": codes}, answer, {"columns": 8})
    assert not report and "odd columns" in str(report)


def test_an_answer_that_nothing_explains_says_so() -> None:
    inputs, options = problem("sum", "")
    noise = np.random.default_rng(0).standard_normal((7, D)).astype(F32) * F32(100)
    assert "no known mistake explains it" in str(oracle.check("lookup", inputs, noise, options))
