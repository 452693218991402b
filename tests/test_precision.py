"""Are operands of products rounded as docs/arithmetic.md §17 says, and is a training with them one
training, however it runs?
"""

import re
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_model import DENSE, B, run
from test_optimizer_extras import FLAT, alone, digest_of, parameters
from tower_runs import DENSE as DENSE_FEATURES

from neocpu.core.codecs import HALF_UP, LAYOUTS, NEAREST, TRUNCATE
from neocpu.core.errors import ConfigError, TrainingError
from neocpu.core.formats import FORMATS
from neocpu.core.trees import leaf_cuts
from neocpu.kernels.dense import operands as kernels
from neocpu.kernels.operands import OperandFormat
from neocpu.kernels.twins.dense import gemm, interaction
from neocpu.kernels.twins.dense import operands as twin
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.serve.scoring.inspect import TrainedModel
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.model.layout import ModelLayout
from neocpu.train.model.precision.keys import PrecisionKeys
from neocpu.train.model.precision.operands import NarrowPrecision, scale_for
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.results import RunReport
from tests.cases import FILLS, assert_same, floats
from tests.small_run import config_of, write_log

ONE = np.float32(1)
UNLIMITED = np.float32(np.inf)
PEERS = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}


def hard_numbers(count: int = 1 << 16) -> np.ndarray:
    """Ties of bf16 and their neighbours, of any magnitude, and NaNs of any payload."""
    bits = np.random.default_rng(3).integers(0, 1 << 32, count, dtype=np.uint32)
    ties = bits & np.uint32(0xFFFF0000) | np.uint32(0x8000)
    special = np.uint32([0x7FFFFFFF, 0x7F800001, 0xFFFFFFFF, 0x7F800000, 0x80000000, 1, 0x7F7FFFFF])
    every = np.concatenate([bits, ties, ties + 1, ties - 1, special])
    return every.view(np.float32)[None]


@pytest.mark.parametrize("name", PEERS)
def test_nearest_is_that_of_the_field(name: str) -> None:
    x = hard_numbers()
    out = np.empty_like(x)
    form = OperandFormat(LAYOUTS[name], ONE, UNLIMITED)
    kernels.round_operand(x, form, NEAREST, out, False)
    with np.errstate(over="ignore", invalid="ignore"):
        assert_same(out, x.astype(PEERS[name]).astype(np.float32))
    upper = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    if name == "bf16":
        kernels.round_operand(x, form, TRUNCATE, out, False)
        assert_same(out, np.where(np.isnan(x), x, upper))


@given(
    st.integers(0, 2**32),
    st.sampled_from(FILLS),
    st.sampled_from(("bf16", "fp16", "fp8_e4m3", "fp8_e5m2")),
    st.sampled_from((NEAREST, TRUNCATE, HALF_UP, None)),
    st.booleans(),
)
def test_kernel_is_its_twin(seed, fill, name, rounding, inside):
    rng = np.random.default_rng(seed)
    x = floats(rng, tuple(rng.integers(0, 40, 2)), fill)
    scaled = LAYOUTS[name][0] == 8
    rounding = NEAREST if rounding == HALF_UP and name != "bf16" else rounding
    scale = np.float32(2.0 ** rng.integers(-20, 20)) if scaled else ONE
    most = np.float32(FORMATS[name].number.largest) if scaled else UNLIMITED
    form = OperandFormat(LAYOUTS[name], scale, most)
    key = np.uint64(rng.integers(2**63))
    results = []
    for module in (kernels, twin):
        to = x.copy() if inside else np.full_like(x, 7)
        source = to if inside else x
        if rounding is None:
            peak = module.round_operand_randomly(source, form, key, 2**33 + 5, 9, to, inside)
        else:
            peak = module.round_operand(source, form, rounding, to, inside)
        results.append((to, np.float32(peak)))
    assert_same(results[0][0], results[1][0])
    assert results[0][1].tobytes() == results[1][1].tobytes()


# ---- training ----

KEY = "model.precision"
BF16 = f"{KEY}.format=bf16"
FP16 = f"{KEY}.format=fp16"
FP8 = f"{KEY}.format=fp8"
SR = f"{KEY}.rounding=stochastic"
RUNS = {
    "bf16": (BF16,),
    "bf16, truncated, split": (BF16, f"{KEY}.rounding=truncate", f"{KEY}.weights=split"),
    "bf16, half up, no master weights": (BF16, f"{KEY}.rounding=half_up", f"{KEY}.weights=none"),
    "bf16, at random, no master weights": (BF16, SR, f"{KEY}.weights=none", "eval.ema=0.5"),
    "fp16": (FP16, f"{KEY}.init_scale=1048576", f"{KEY}.growth_interval=1"),
    "fp16, static": (FP16, f"{KEY}.loss_scale=1024", "wires.dense=bf16"),
    "fp8": (FP8, f"{KEY}.amax_history_len=2", f"{KEY}.margin=1"),
    "fp8, at random, cross layers": (FP8, SR, "model.interaction=['dcnv2', 'dot']"),
    "bf16 and Shampoo": (BF16, f"{KEY}.weights=none", "optimizer.shampoo.every=2"),
    "bf16 and LAMB": (BF16, f"{KEY}.weights=none", "optimizer.trust_ratio=true"),
    "bf16 and Muon": (BF16, f"{KEY}.weights=none", "optimizer.muon.steps=2"),
}


@pytest.mark.parametrize("name", RUNS)
def test_one_digest_over_ranks_and_pipelines(name: str) -> None:
    sets = (FLAT, *RUNS[name])
    expected = digest_of(sets, ["table_wise"] * 3, SingleComm())
    assert expected != digest_of((FLAT,), ["table_wise"] * 3, SingleComm())
    for ranks, pipeline in ((3, "off"), (4, "full")):
        more = (*sets, f"training.pipeline={pipeline}", "training.bucket_bytes=0")
        body = partial(digest_of, more, ["row_wise", "column_wise", "data_parallel"])
        assert run_threads(ranks, body, ranks_per_node=2) == [expected] * ranks, (ranks, pipeline)


def test_a_model_is_its_products_of_rounded_operands() -> None:
    """Losses, dE and gradients of a DLRM in bf16, by the twins of products and rounding alone."""
    layout = ModelLayout(DENSE, (4, 4, 4), (7, 4), (6, 1), precision=PrecisionKeys("bf16"))
    model = Dlrm(layout, seed=3)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((B, DENSE), dtype=np.float32)
    pooled = rng.standard_normal((B, 12), dtype=np.float32)
    labels = rng.integers(0, 2, B).astype(np.float32)
    _, logits, _, _, dE, gradient = run(model, x, pooled, labels)
    p = model.parameters
    w = {name: bf16(value) for name, value in p.items() if value.ndim == 2}
    cuts = np.array(leaf_cuts(B, 16), np.int64)
    nothing = np.empty((0, 0), np.float32)
    x0 = bf16(x)
    x1 = bf16(made(gemm.layer, (B, 7), x0, w["bottom.0.weight"], p["bottom.0.bias"], True))
    bottom = made(gemm.layer, (B, 4), x1, w["bottom.1.weight"], p["bottom.1.bias"], True)
    E = bf16(np.hstack([bottom, pooled]))
    z0 = bf16(made(interaction.dot_forward, (B, 10), E, 4, False))
    z1 = bf16(made(gemm.layer, (B, 6), z0, w["top.0.weight"], p["top.0.bias"], True))
    logit = made(gemm.layer, (B, 1), z1, w["top.1.weight"], p["top.1.bias"], False)
    assert logit.reshape(-1).tobytes() == logits.tobytes()
    g2 = bf16(model._objective.logit_gradient)
    g1 = bf16(made(gemm.input_gradient, (B, 6), g2, w["top.1.weight"], z1))
    dz = bf16(made(gemm.input_gradient, (B, 10), g1, w["top.0.weight"], nothing))
    by_twin = made(interaction.dot_backward, (B, 16), E, dz, 4, False)
    assert by_twin.tobytes() == dE.tobytes()
    h2 = bf16(np.where(bottom <= 0, np.float32(0), by_twin[:, :4]))
    h1 = bf16(made(gemm.input_gradient, (B, 7), h2, w["bottom.1.weight"], x1))
    views = layout.views(gradient)
    pairs = {"bottom.0": (h1, x0), "bottom.1": (h2, x1), "top.0": (g1, z0), "top.1": (g2, z1)}
    for name, (g, inputs) in pairs.items():
        weight = np.empty_like(views[f"{name}.weight"])
        bias = np.empty_like(views[f"{name}.bias"])
        gemm.weight_gradient(g, inputs, cuts, weight, bias)
        assert weight.tobytes() == views[f"{name}.weight"].tobytes(), name
        assert bias.tobytes() == views[f"{name}.bias"].tobytes(), name


def bf16(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def made(function: Any, shape: tuple[int, int], *arguments: Any) -> np.ndarray:
    out = np.empty(shape, np.float32)
    function(*arguments, out)
    return out


def test_a_power_of_two_before_the_loss_changes_no_bit_of_bf16() -> None:
    plain = parameters(alone(BF16))
    scaled = parameters(alone(BF16, f"{KEY}.loss_scale=4096"))
    assert plain.tobytes() == scaled.tobytes()


def test_split_weights_are_fp32_weights_under_the_same_gradients() -> None:
    """The optimizer joins both halves, and products read the upper one."""
    world = alone(BF16, f"{KEY}.weights=split")
    other = alone()
    gradients = np.random.default_rng(1).standard_normal((20, world.model.flat.size))
    for step, gradient in enumerate(gradients.astype(np.float32), 1):
        for each in (world, other):
            each.dense.step(gradient, step)
    assert world.model.flat.tobytes() == other.model.flat.tobytes()
    operand = world.model.precision.weight("w").of(world.model.parameters["top.0.weight"])
    upper = world.model.parameters["top.0.weight"].view(np.uint32) & np.uint32(0xFFFF0000)
    assert operand.tobytes() == upper.tobytes()


def test_small_updates_are_lost_without_master_weights_unless_rounding_is_random() -> None:
    """1,000 steps of 1e-3 from 1: fp32 comes to 2, the nearest bf16 number never leaves 1."""
    ends = {}
    for name, sets in {
        "master": (BF16,),
        "split": (BF16, f"{KEY}.weights=split"),
        "none": (BF16, f"{KEY}.weights=none"),
        "random": (BF16, f"{KEY}.weights=none", SR),
    }.items():
        world = alone(*sets, "optimizer.dense={ name='sgd', learning_rate=1e-3 }")
        world.model.flat[:] = 1
        for step in range(1, 1001):
            world.dense.step(np.full(world.model.flat.size, -1, np.float32), step)
        weights = world.model.parameters["top.0.weight"]
        ends[name] = weights.mean() if name == "random" else weights[0, 0]
        assert world.model.parameters["top.0.bias"][0] == np.float32(2.0000467)
    assert ends["none"] == 1
    assert ends["master"] == ends["split"] == np.float32(2.0000467)
    assert abs(ends["random"] - 2) < 0.05


def test_scales_of_fp8_follow_the_largest_numbers_of_all_ranks() -> None:
    assert scale_for(448.0, 448.0, 0) == 1 and scale_for(449.0, 448.0, 0) == 0.5
    assert scale_for(np.float32(1e-3), 448.0, 1) == 2.0**17
    assert scale_for(7.0, 448.0, 0) == 64
    assert scale_for(np.nextafter(np.float32(7), UNLIMITED), 448.0, 0) == 32
    assert scale_for(1e-38, 448.0, 0) == 2.0**100 and scale_for(3e38, 1e-6, 8) == 2.0**-100
    world = alone(FP8, f"{KEY}.amax_history_len=2")
    parameters(world)
    state = world.model.precision.state["precision.amax"]["value"]
    tensors = [operand.number for operand in world.model.precision._operands]
    assert state.shape == (len(tensors), 2) and state.all()
    world.model.precision.measure()
    for operand, history in zip(world.model.precision._operands, state):
        assert (
            operand.scale * history.max() <= operand.kind.limit < 2 * operand.scale * history.max()
        )


def test_loss_scales_stay_between_1_and_their_largest() -> None:
    none = np.empty((1, 0), np.float32)
    up = NarrowPrecision(PrecisionKeys("fp16", init_scale=2.0**38, growth_interval=2), 1)
    up.begin(1, 0, B)
    exponents = []
    for _ in range(8):
        up.end(none)
        exponents.append(np.log2(up.loss_scale))
    assert exponents == [38, 39, 39, 40, 40, 40, 40, 40]
    assert up.overflowed() and up.loss_scale == 2.0**39 and up.unscale == 2.0**-39
    # what was good before the overflow is not counted
    up.end(none)
    assert up.loss_scale == 2.0**39
    up.settle({}, 5)
    assert up.step == 1
    down = NarrowPrecision(PrecisionKeys("fp16", init_scale=2.0, backoff_factor=0.25), 1)
    assert down.loss_scale == 1
    down.begin(1, 0, B)
    assert down.overflowed() and down.loss_scale == 1 and not down.overflowed()
    still = NarrowPrecision(PrecisionKeys("bf16", loss_scale=64.0), 1)
    still.begin(1, 0, B)
    assert not (still.skips or still.state or still.overflowed()) and still.loss_scale == 64


def test_scales_of_fp8_begin_with_the_batch_and_forget() -> None:
    precision = NarrowPrecision(PrecisionKeys("fp8", amax_history_len=2), 1)
    x, g = precision.activation("x"), precision.gradient("x")
    precision.begin(1, 0, 24)
    assert (x.scale, g.scale) == (1, 16)
    x.peak, g.peak = np.float32(3), UNLIMITED
    assert precision.peaks.tolist() == [3, 0]
    precision.end(np.float32([[3, 0], [5, 2]]))
    for steps, scales in enumerate([(64, 2**14), (64, 2**14), (256, 2**15)], 2):
        precision.begin(steps, 0, 24)
        assert (x.scale, g.scale) == scales and not (x.peak or g.peak)
        precision.end(np.float32([[1, 1]]))
    # those of parameters are of the moment: unscaled, 2^-12 is too small for e4m3
    for largest, small in ((3.0, 2.0**-12), (np.inf, 0.0), (0.0, 0.0)):
        x = np.float32([[largest, 2.0**-12 if largest else 0.0]])
        operand = precision.weight("w").of(x)
        assert operand.tolist() == [[min(largest, 448.0), small]]


def test_a_step_that_overflows_is_left_out_and_lowers_the_scale(log: Path, tmp_path: Path) -> None:
    sets = (FP16, f"{KEY}.init_scale={2**40}", f"{KEY}.growth_interval=3", "training.epochs=12")
    lines: list[str] = []
    report = RunReport(tmp_path / "one", 0, tell=lines.append)
    config = config_of(log, *sets)
    whole = Trainer(config, SingleComm(), tmp_path / "one", report=report).run()["digest"]
    assert sum("loss scale" in line for line in lines) == 1
    # at the edge of overflow: it has fallen, and risen again
    last = max((tmp_path / "one" / "checkpoints").glob("*.h5"))
    with CheckpointFile(last) as file:
        scale = file.field(file.number("dense/precision.loss_scale"), "value")[:]
    assert 2**12 < scale[0] < 2**30
    assert "precision.loss_scale" not in TrainedModel(last).dense

    def body(comm: Comm, steps: int, resume: bool) -> str:
        options = config_of(log, *sets, f"training.steps={steps}")
        return Trainer(options, comm, tmp_path / "parts", resume=resume).run()["digest"]

    run_threads(3, partial(body, steps=7, resume=False))
    assert run_threads(2, partial(body, steps=0, resume=True)) == [whole] * 2


def test_what_no_scale_helps_ends_the_run(log: Path, tmp_path: Path) -> None:
    spoilt = write_log(tmp_path / "spoilt.h5", 70, 1e6)
    config = config_of(spoilt, FP16, "training.steps=4")
    with pytest.raises(TrainingError, match="the loss of sample"):
        Trainer(config, SingleComm(), tmp_path / "out").run()
    huge = config_of(log, FP16, f"{KEY}.init_scale=1", "optimizer.dense.learning_rate=1e9")
    with pytest.raises(TrainingError, match=r"is not finite|the loss of|is inf|is nan"):
        Trainer(huge, SingleComm(), tmp_path / "huge").run()


def test_what_is_measured_is_not_random() -> None:
    models = [alone(BF16, *sets).model for sets in ((SR,), ())]
    x = np.random.default_rng(1).standard_normal((B, DENSE_FEATURES), dtype=np.float32)
    outputs = []
    for model in models:
        model.precision.begin(1, 0, B)
        E = np.empty((2, B, model.columns), np.float32)
        model.forward_bottom(x, E[0])
        model.precision.measure()
        model.forward_bottom(x, E[1])
        outputs.append(E[:, :, : model.first_column])
    assert outputs[0][1].tobytes() == outputs[1][1].tobytes() == outputs[1][0].tobytes()
    assert outputs[0][0].tobytes() != outputs[0][1].tobytes()


def test_scales_have_the_defaults_of_the_field_and_may_be_1() -> None:
    keys = PrecisionKeys("fp16", init_scale=1.0, growth_factor=1.0)
    assert not [*keys.faults()]
    # of a dynamic scale those of torch's GradScaler
    defaults = PrecisionKeys("fp16")
    assert (defaults.init_scale, defaults.growth_factor) == (2.0**16, 2.0)
    assert (defaults.backoff_factor, defaults.growth_interval) == (0.5, 2000)
    assert (defaults.amax_history_len, defaults.margin) == (16, 0)
    assert PrecisionKeys("bf16").first_scale == 1


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ((SR,), "rounding: stochastic has no effect while model.precision.format is fp32"),
        ((FP16, f"{KEY}.rounding=half_up"), "half_up is a rounding of bf16"),
        ((FP8, f"{KEY}.weights=none"), "keep master weights"),
        ((FP16, f"{KEY}.weights=split"), "split keeps the two halves"),
        ((BF16, f"{KEY}.loss_scale=1000"), "1000 is no power of two"),
        ((FP8, f"{KEY}.loss_scale=2"), "scales of their own"),
        ((BF16, f"{KEY}.init_scale=2"), 'loss_scale is not "dynamic"'),
        ((BF16, f"{KEY}.margin=1"), 'format is not "fp8"'),
        ((FP16, f"{KEY}.backoff_factor=1"), "above 0 and below 1"),
        ((FP16, f"{KEY}.backoff_factor=0"), "above 0 and below 1"),
        ((FP16, f"{KEY}.init_scale=0.5"), "init_scale: 0.5 must be 1 or more"),
        ((FP16, f"{KEY}.growth_factor=0.5"), "growth_factor: 0.5 must be 1 or more"),
        ((FP16, f"{KEY}.init_scale=3"), "init_scale: 3 is no power of two"),
        ((FP16, f"{KEY}.growth_factor=3"), "growth_factor: 3 is no power of two"),
        ((FP16, f"{KEY}.backoff_factor=0.3"), "backoff_factor: 0.3 is no power of two"),
        ((BF16, "model.interaction=dhen"), 'the interaction "dhen" are made in fp32 only'),
        ((BF16, "tables.one.kind=tt"), "'tensor_train'"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(log, sets, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        config_of(log, *sets)
