"""Which questions are mirrors and peers both asked? By preset and operator: inputs and options.

Hard numbers are among the inputs. Run as a script where the peers are installed, it asks them and
records the answers: python -m tests.mirror_questions
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.truth.bags import row_bytes

# Arrays as one run of bytes, with an index of them in JSON.
RECORDED = Path(__file__).resolve().parent / "mirrors.npz"
WIDTHS = (1, 3, 4, 8, 15, 16, 17, 32, 64, 100, 128)
F = np.float32
HARD = np.array([0.0, -0.0, 1e-40, -1e-42, 3e38, -3e38, np.inf, -np.inf, np.nan], F)
SGD = {"optimizer": "exact_sgd", "learning_rate": 0.1}
FBGEMM = (
    SGD,
    {"optimizer": "exact_adagrad", "learning_rate": 0.1, "eps": 0.03},
    {"optimizer": "exact_rowwise_adagrad", "learning_rate": 0.1, "eps": 1e-8, "max_gradient": 1.5},
    {
        "optimizer": "exact_rowwise_adagrad",
        "eps": 0.03,
        "weight_decay": 0.9,
        "weight_decay_mode": "l2",
    },
    {
        "optimizer": "exact_rowwise_adagrad",
        "learning_rate": 0.7,
        "weight_decay": 0.9,
        "weight_decay_mode": "decoupled",
    },
)
ADAM = {"optimizer": "adam", "learning_rate": 0.1, "step": 3}
MOMENTUM = {"optimizer": "momentum_sgd", "learning_rate": 0.1}
L2 = {"weight_decay": 0.3, "weight_decay_mode": "l2"}
TORCH = (
    SGD,
    {**SGD, **L2},
    {**MOMENTUM, "step": 1},
    {**MOMENTUM, **L2, "step": 2},
    {"optimizer": "exact_adagrad", "learning_rate": 0.1, **L2},
    {"optimizer": "exact_rowwise_adagrad", "learning_rate": 0.1},
    {**ADAM, "beta1": 0.3, **L2},
    {**ADAM, "weight_decay": 0.3, "weight_decay_mode": "decoupled"},
)
TORCH_SPARSE = (
    SGD,
    {"optimizer": "exact_adagrad", "learning_rate": 0.1},
    ADAM,
    {**ADAM, "eps": 0.03, "step": 1},
)


class Question(NamedTuple):
    """One question to a peer and to its mirror."""

    preset: str
    op: str
    inputs: dict[str, np.ndarray]
    options: dict[str, Any]


def numbers(rng: np.random.Generator, shape: Any, hard: bool) -> np.ndarray:
    """fp32 numbers of 12 binades; `hard`: one in 30 is a zero, subnormal, huge, infinite or NaN."""
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-6, 6, shape))).astype(F)
    return np.where(rng.random(shape) < 1 / 30, rng.choice(HARD, shape), x) if hard else x


def narrow(x: np.ndarray, form: str) -> np.ndarray:
    """fp32 numbers as elements of a format."""
    if form == "fp16":
        with np.errstate(all="ignore"):
            return x.astype(np.float16).view([("fp16", "<u2")])
    if form == "bf16":
        return (x.view(np.uint32) >> 16).astype(np.uint16).view([("bf16", "<u2")])
    return x


def batch(
    rng: np.random.Generator,
    dims: Sequence[int],
    feature_table: Sequence[int],
    weighted: bool,
    hard: bool,
    rows: int,
    size: int,
) -> dict[str, np.ndarray]:
    """Tables and bags: empty ones, long ones, many duplicates."""
    lengths = rng.integers(0, 14, len(feature_table) * size)
    lengths[::5] = 0
    lookups = int(lengths.sum())
    inputs = {
        "weights": numbers(rng, sum(dims) * rows, hard),
        "rows": np.full(len(dims), rows),
        "dims": np.array(dims),
        "feature_table": np.array(feature_table),
        "indices": (rows * rng.random(lookups) ** 2).astype(np.int64),
        "offsets": np.append(0, np.cumsum(lengths)),
    }
    if weighted:
        inputs["per_sample_weights"] = rng.standard_normal(lookups).astype(F)
    return inputs


def with_gradient(
    rng: np.random.Generator, inputs: dict[str, np.ndarray], options: dict[str, Any], hard: bool
) -> None:
    """Adds grad_output and the states of the optimizer."""
    dims = inputs["dims"][inputs["feature_table"]]
    shape = ((inputs["offsets"].size - 1) // inputs["feature_table"].size, int(dims.sum()))
    if options["pooling"] == "none":
        shape = (inputs["indices"].size, int(dims[0]))
    inputs["grad_output"] = numbers(rng, shape, hard)
    name = options.get("optimizer", "exact_sgd")
    states = {
        "adam": ("exp_avg", "exp_avg_sq"),
        "momentum_sgd": ("momentum_buffer",),
        "exact_sgd": (),
    }
    for state in states.get(name, ("sum",)):
        if name != "momentum_sgd" or options["step"] > 1:
            per_row = 1 if name == "exact_rowwise_adagrad" else inputs["dims"]
            inputs[state] = rng.random(int((inputs["rows"] * per_row).sum())).astype(F)


def _poolings(preset: str) -> list[tuple[str, bool]]:
    """(pooling, weighted); torch has no weighted MEAN."""
    poolings = [("sum", False), ("sum", True), ("mean", False), ("mean", True), ("none", False)]
    if preset != "fbgemm_cpu":
        poolings.remove(("mean", True))
    return poolings


def _lookups(preset: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    if preset == "torchrec_row_wise":
        yield from (("lookup", {"pooling": p}, w) for p in ("sum", "mean") for w in (False, True))
        return
    forms = ("fp32", "fp16") if preset == "fbgemm_cpu" else ("fp32", "fp16", "bf16")
    for form in forms:
        for out in forms if preset == "fbgemm_cpu" else (form,):
            for pooling, weighted in _poolings(preset):
                formats = {"weights_format": form, "output_format": out}
                yield "lookup", {**formats, "pooling": pooling}, weighted


def _backwards(preset: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    rules = {"fbgemm_cpu": FBGEMM, "torch": TORCH, "torch_sparse": TORCH_SPARSE}.get(preset, ())
    for rule in rules:
        for form in ("fp32", "fp16") if preset == "fbgemm_cpu" else ("fp32",):
            for pooling, weighted in _poolings(preset):
                yield "backward", {**rule, "weights_format": form, "pooling": pooling}, weighted
    if preset == "fbgemm_cpu":
        yield from (
            ("weight_gradient", {"weights_format": form, "pooling": "sum"}, True)
            for form in ("fp32", "fp16")
        )
    if preset == "torch_sparse":
        yield from (
            ("unique_gradient", {"pooling": p}, w)
            for p, w in (("sum", True), ("mean", False), ("none", False))
        )


def questions(
    preset: str, op: str, width: int, seed: int, rows: int = 23, size: int = 8
) -> Iterator[Question]:
    """All questions to one operator of a preset with rows of one width."""
    rng = np.random.default_rng((seed, width))
    hard = bool(seed % 2)
    for name, options, weighted in (*_lookups(preset), *_backwards(preset)):
        if name != op:
            continue
        single = options["pooling"] == "none" or rng.random() < 0.4
        dims = [width] if single else [width, width]
        feature_table = [0] if single else [0, 0, 1, 1, 1]
        inputs = batch(rng, dims, feature_table, weighted, hard, rows, size)
        if op != "lookup":
            with_gradient(rng, inputs, options, hard)
        inputs["weights"] = narrow(inputs["weights"], str(options.get("weights_format", "fp32")))
        yield Question(preset, op, inputs, OPERATORS[op].complete(options))


def nbit_questions(form: str, width: int, seed: int) -> Iterator[Question]:
    """Lookups of quantised rows, some of them pruned; any bytes, headers of ordinary size."""
    rng = np.random.default_rng((seed, width))
    for output_format in ("fp32", "fp16", "bf16"):
        for pooling, weighted, alignment in (
            ("sum", True, 1),
            ("sum", False, 16),
            ("mean", False, 1),
            ("mean", True, 1),
        ):
            inputs = batch(rng, [width, width], [0, 0, 1], weighted, False, 23, 8)
            inputs["indices"][::5] = -1
            codes = rng.integers(
                0, 256, (46, -(-row_bytes(form, width) // alignment) * alignment), dtype=np.uint8
            )
            codes[:, :4] = (rng.standard_normal((46, 2)) * 3).astype(np.float16).view(np.uint8)
            inputs["weights"] = codes.reshape(-1)
            options = {
                "weights_format": form,
                "output_format": output_format,
                "pooling": pooling,
                "row_alignment": alignment,
            }
            yield Question("fbgemm_cpu", "lookup", inputs, OPERATORS["lookup"].complete(options))


def small_questions() -> Iterator[Question]:
    """The questions whose answers are recorded: few rows, one width."""
    for preset, op in (
        *(("fbgemm_cpu", op) for op in ("lookup", "weight_gradient", "backward")),
        *(("torch", op) for op in ("lookup", "backward")),
        *(("torch_sparse", op) for op in ("unique_gradient", "backward")),
        ("torchrec_row_wise", "lookup"),
    ):
        yield from questions(
            preset, op, 9 if preset != "torchrec_row_wise" else 8, seed=1, rows=4, size=4
        )
    yield from list(nbit_questions("nbit4", 8, 1))[:4]


def stored() -> tuple[dict[str, str], list[dict[str, Any]], bytes]:
    """Versions of the peers; what was asked; the bytes of all arrays."""
    with np.load(RECORDED) as file:
        versions, entries = json.loads(str(file["index"]))
        return versions, entries, file["data"].tobytes()


def recorded() -> Iterator[tuple[Question, dict[str, np.ndarray]]]:
    """Recorded questions with the peers' answers."""
    _, entries, data = stored()
    start = 0
    for entry in entries:
        sides: dict[str, dict[str, np.ndarray]] = {"in": {}, "out": {}}
        for side, name, form, kind, shape in entry["arrays"]:
            dtype = np.dtype([(form, kind)]) if form else np.dtype(kind)
            size = dtype.itemsize * int(np.prod(shape))
            sides[side][name] = np.frombuffer(data[start : start + size], dtype).reshape(shape)
            start += size
        yield Question(entry["preset"], entry["op"], sides["in"], entry["options"]), sides["out"]
    assert start == len(data)


def record() -> None:
    """Asks the peers and writes their answers."""
    from tests import peer_answers

    all_questions = list(small_questions())
    entries = []
    data = []
    for question, answer in zip(all_questions, peer_answers.answers(all_questions)):
        arrays = []
        for side, named in (("in", question.inputs), ("out", answer)):
            for name, x in named.items():
                form = x.dtype.names[0] if x.dtype.names else ""
                arrays.append(
                    [side, name, form, (x.dtype[0] if form else x.dtype).str, list(x.shape)]
                )
                data.append(np.ascontiguousarray(x).tobytes())
        entries.append(
            {
                "preset": question.preset,
                "op": question.op,
                "options": question.options,
                "arrays": arrays,
            }
        )
    index = np.array(json.dumps([peer_answers.versions(), entries]))
    np.savez_compressed(RECORDED, index=index, data=np.frombuffer(b"".join(data), np.uint8))
    print(
        f"{RECORDED}: {len(all_questions)} answers, {RECORDED.stat().st_size:,} bytes, "
        f"{peer_answers.versions()}"
    )


if __name__ == "__main__":
    record()
