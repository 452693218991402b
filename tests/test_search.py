"""Does the search find plans that are whole, that fit, and that are better than simple ones?"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neocpu.embedding.specs import TableSpec
from neocpu.planner.answer import Answer
from neocpu.planner.placements import Capacity
from neocpu.planner.search import plan_tables
from neocpu.planner.seconds import Layout, StepSeconds, loads_of, rectangles_of, step_seconds
from neocpu.planner.work import Workload
from neocpu.zionex.machine import LinkPeak, Machine, MemoryPeak

MACHINE = Machine(
    nodes=4,
    ranks_per_node=2,
    hbm=MemoryPeak(10**7, 1e12),
    ddr=MemoryPeak(10**8, 5e10, shared="node"),
    ssd=MemoryPeak(10**10, 2e9, 1e6),
    host_device=LinkPeak(3e10),
    inside_node=LinkPeak(3e11, 1e-6),
    between_nodes=LinkPeak(2e10, 5e-6),
)
SHAPES = st.lists(
    st.tuples(st.integers(1, 10**5), st.sampled_from((1, 4, 16, 40, 128, 256)), st.integers(1, 40)),
    min_size=1,
    max_size=8,
)
LAYOUTS = st.tuples(st.integers(1, 8), st.integers(1, 8)).map(
    lambda sizes: Layout(sizes[0], min(sizes))
)


def model_of(
    shapes: list[tuple[int, int, int]], layout: Layout
) -> tuple[StepSeconds, tuple[TableSpec, ...], Workload]:
    tables = tuple(
        TableSpec(f"t{i}", rows, dim, (f"f{i}",)) for i, (rows, dim, _) in enumerate(shapes)
    )
    pooling = {f"t{i}": float(hotness) for i, (_, _, hotness) in enumerate(shapes)}
    work = Workload(batch=512, pooling=pooling)
    return StepSeconds(MACHINE, tables, work, layout), tables, work


def search(
    shapes: list[tuple[int, int, int]], layout: Layout, capacity: Capacity | None = None
) -> Answer:
    model, tables, work = model_of(shapes, layout)
    return plan_tables(tables, "auto", layout, model, work, capacity)


@given(shapes=SHAPES, layout=LAYOUTS)
def test_the_answer_is_a_whole_plan_and_its_price(
    shapes: list[tuple[int, int, int]], layout: Layout
) -> None:
    answer = search(shapes, layout)
    plan = answer.plan
    assert plan.shards == tuple(sorted(plan.shards))
    loads = loads_of(answer.model, answer.rectangles, layout.ranks)
    np.testing.assert_allclose(answer.loads, loads, rtol=1e-12)
    np.testing.assert_allclose(answer.seconds, step_seconds(answer.model, loads), rtol=1e-12)
    for ours, theirs in zip(answer.rectangles, rectangles_of(plan)):
        np.testing.assert_array_equal(ours, theirs)
    state = answer.work.state_floats
    assert answer.memory[:, 0].tolist() == plan.rank_bytes(state)
    assert answer.bound <= answer.seconds
    again = search(shapes, layout)
    assert again.plan == plan
    assert again.seconds == answer.seconds
