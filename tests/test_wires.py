"""Do compressed wires round as their twins, and at points that no plan and no rank can move?"""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spmd_exchange import Case, digest, global_batch, train, unsharded

from neocpu.core.errors import ConfigError, PlanError
from neocpu.kernels.exchange import wires as kernels
from neocpu.kernels.twins.exchange import wires as twins
from neocpu.parallel.exchange.routes import ROUTES
from neocpu.parallel.exchange.wire_formats import WIRE_FORMATS, WireSpec, WireSpecs
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.specs.specs import bags
from neocpu.train.before.plans import make_plan
from neocpu.train.config import config as configs

PROFILE = settings(deadline=None, derandomize=True, max_examples=40)
FORMS = [(name, way) for name in WIRE_FORMATS for way in (0, 1) if name != "fp32"]


def code_of(spec: WireSpec, backward: int) -> kernels.WireCode:
    form = WIRE_FORMATS[spec.format].forms[backward]
    return kernels.WireCode(form, spec.block, np.float32(spec.scale))


def hard_numbers(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Numbers of all magnitudes, ties, limits, subnormals; in some rows infinities and NaN."""
    x = rng.standard_normal(shape).astype(np.float32)
    x *= np.float32(2) ** rng.integers(-40, 20, (shape[0], 1)).astype(np.float32)
    bits = rng.integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32).view(np.float32)
    finite = np.where(np.isfinite(bits), bits, np.float32(1e-40))
    x = np.where(rng.random(shape) < 0.05, finite, x)
    x = np.where(rng.random(shape) < 0.1, np.float32(0), x)
    edges = np.array([65504, 65519.996, 65520, 3.3895314e38, 3.4e38, 1e-45, 6e-8], np.float32)
    x = np.where(rng.random(shape) < 0.03, rng.choice(edges, shape), x)
    special = np.array([np.nan, np.inf, -np.inf], np.float32)
    wild = (rng.random(shape) < 0.05) & (rng.random((shape[0], 1)) < 0.2)
    x = np.where(wild, rng.choice(special, shape), x)
    x[rng.random(shape[0]) < 0.1] = 0.5
    return np.ascontiguousarray(x * rng.choice(np.array([-1, 1], np.float32), shape))


@PROFILE
@given(
    st.sampled_from(FORMS),
    st.sampled_from([1, 2, 3, 7, 8, 32]),
    st.sampled_from([1.0, 1024.0, 0.3]),
    st.integers(0, 2**32),
)
def test_kernels_match_their_twins(
    form: tuple[str, int], block: int, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    spec = WireSpec(form[0], block, scale)
    code = code_of(spec, form[1])
    rows = int(rng.integers(0, 40))
    widths = rng.integers(0, 70, 3).tolist()
    sizes = [spec.bytes(width) for width in widths]
    stride = sum(widths) + 2
    pitch = sum(sizes) + 2
    jobs = []
    for i, width in enumerate(widths):
        jobs.append((1 + sum(widths[:i]), stride, 2 + sum(sizes[:i]), pitch, rows, width))
    if not spec.blocks or all(size % 2 == 0 for size in sizes):
        assert all(job[2] % 2 == 0 for job in jobs)
    jobs = np.array(jobs, np.int64)
    x = hard_numbers(rng, (rows, stride)).reshape(-1)
    results = []
    for module in (kernels, twins):
        message = np.full(rows * pitch + 2, 7, np.uint8)
        module.encode_blocks(x, message, jobs, code)
        back = np.full(x.size, 3, np.float32)
        module.decode_blocks(message, back, jobs[:, [2, 3, 0, 1, 4, 5]].copy(), code)
        rounded = x.copy()
        places = np.concatenate([jobs[:, :2], jobs[:, :2], jobs[:, 4:]], axis=1)
        module.round_blocks(rounded, rounded, places, code)
        results.append((message, back, rounded))
    for actual, expected in zip(*results):
        np.testing.assert_array_equal(actual.view(np.uint8), expected.view(np.uint8))
    message, back, rounded = results[0]
    inside = np.zeros(x.size, bool).reshape(rows, stride)
    inside[:, 1 : 1 + sum(widths)] = True
    chosen = inside.reshape(-1)
    np.testing.assert_array_equal(rounded[chosen], back[chosen])


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [("fp16", 1025, 1025), ("bf16", 129, 129), ("fp8", 9, 5), ("int8", 256, 256), ("int4", 16, 16)],
)
def test_a_wire_tells_as_many_numbers_apart_as_its_bits(
    name: str, forward: int, backward: int
) -> None:
    x = np.linspace(1, 2, 4097, dtype=np.float32)
    whole = np.array([[0, x.size, 0, x.size, 1, x.size]], np.int64)
    counts = []
    for way in (0, 1):
        rounded = x.copy()
        twins.round_blocks(x, rounded, whole, code_of(WireSpec(name, x.size), way))
        counts.append(np.unique(rounded).size)
    assert counts == [forward, backward]


PAIRS = {
    "fp16, bf16": (WireSpec("fp16"), WireSpec("bf16")),
    "scaled": (WireSpec("bf16", scale=0.3), WireSpec("fp16", scale=4096.0)),
    "int8, fp8": (WireSpec("int8", 4), WireSpec("fp8", 4)),
    "fp8, int4": (WireSpec("fp8", 4), WireSpec("int4", 4, 65536.0)),
    "back only": (WireSpec(), WireSpec("int8", 2)),
}


def wires_of(name: str) -> WireSpecs:
    forward, backward = PAIRS[name]
    return WireSpecs(forward, backward)


@cache
def alone(name: str, **changes: object) -> str:
    return unsharded(Case(wires=wires_of(name), **changes))


@pytest.mark.parametrize("name", PAIRS)
def test_one_digest_for_every_plan_and_rank_count(name: str) -> None:
    for i, (plan, ranks) in enumerate(
        [("table_wise", 2), ("mixed", 3), ("mixed2", 4), ("grid_shard", 2), ("mixed", 1)]
    ):
        case = Case(plan=plan, route=sorted(ROUTES)[i % 3], wires=wires_of(name))
        digests = run_threads(ranks, lambda comm, case=case: digest(comm, case, *train(comm, case)))
        assert set(digests) == {alone(name)}, (plan, ranks)
    assert alone(name) != unsharded(Case())


def test_clipped_gradients_numbers_that_are_not_finite_and_odd_batches() -> None:
    for changes in ({"max_gradient": 1e-3}, {"special": True}, {"batch": 1}, {"lookups": 0}):
        case = Case(plan="mixed", route="two_level", wires=wires_of("fp16, bf16"), **changes)
        digests = run_threads(3, lambda comm, case=case: digest(comm, case, *train(comm, case)))
        assert set(digests) == {alone("fp16, bf16", **changes)}, changes


def test_pooled_sums_are_rounded_once_before_a_mean_is_divided() -> None:
    comm = SingleComm()
    exact = train(comm, Case(steps=1))[0][0]
    case = Case(steps=1, wires=wires_of("fp16, bf16"))
    compressed = train(comm, case)[0][0]
    lengths = global_batch(case, 1)[0].lengths
    first = case.first_column
    for key, bag in enumerate(bags(case.tables)):
        table = case.tables[bag.table]
        columns = slice(first, first + table.dim)
        first += table.dim
        divisor = np.ones((case.batch, 1), np.float32)
        if table.pooling == "mean":
            divisor = np.maximum(lengths[key], 1).astype(np.float32)[:, None]
        else:
            rounded = exact[:, columns].astype(np.float16).astype(np.float32)
            np.testing.assert_array_equal(compressed[:, columns], rounded)
        code = (compressed[:, columns] * divisor).astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(compressed[:, columns], code / divisor)


def test_a_plan_that_cuts_a_block_is_refused() -> None:
    with pytest.raises(PlanError, match="'few' is cut at column 4, inside a block of 32"):
        case = Case(plan="column_wise", wires=WireSpecs(forward=WireSpec("int8")))
        run_threads(2, lambda comm: train(comm, case))


def test_planners_cut_at_blocks_only() -> None:
    """Under "auto" columns are cut at multiples of the block; a plan that is named is refused."""
    settings = """
[model]
embedding_dim = 96
bottom = [96]
[tables]
wide = { rows = 100_000, dim = 96 }
"""
    for planner in ("greedy", "search"):
        sets = [f"parallel.planner={planner}", "wires.backward=int8"]
        config = configs.loads(settings, "x.toml", sets)
        plan = make_plan(config, SingleComm(), {"wide": 50.0}, ranks=4)
        assert all(cut % 32 == 0 for shard in plan.shards for cut in shard.cols)
        free = configs.loads(settings, "x.toml", sets[:1])
        cuts = make_plan(free, SingleComm(), {"wide": 50.0}, ranks=4).shards
        assert any(cut % 32 for shard in cuts for cut in shard.cols)
        refused = configs.loads(settings, "x.toml", [*sets, "parallel.plan=column_wise"])
        with pytest.raises(PlanError, match="'wide' is cut at column 24, inside a block of 32"):
            make_plan(refused, SingleComm(), {}, ranks=4)


def test_configs_say_what_is_wrong() -> None:
    tables = "[tables]\nC1.rows = 10\n"
    assert "wires" not in configs.loads(tables, "x", ["wires.block=8"]).header()
    header = configs.loads(tables, "x", ["wires.forward=fp16", "wires.forward_scale=8"]).header()
    assert header["wires"] == {"forward": {"format": "fp16", "scale": 8.0}}
    for key, why in {
        "wires.dense=int8": "wires.dense",
        "wires.forward=fp12": "wires.forward",
        "wires.backward_scale=2": 'no effect on wires.backward = "fp32"',
        "wires.dense_scale=0": "not from",
        "wires.block=0": "wires.block",
    }.items():
        with pytest.raises(ConfigError, match=why):
            configs.loads(tables, "x", [key])
