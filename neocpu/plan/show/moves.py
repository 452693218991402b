"""How is a job planned anew when only so many bytes may move from where they are?

All tables but some stay where the present plan has them, and the search (`search.py`) plans these.
They are those whose rectangles weigh most on loaded ranks for each byte of the table; how many may
move is found by halving, since more tables move more bytes.
"""

from dataclasses import replace

import numpy as np

from neocpu.core.types import Ints
from neocpu.core.units import bytes_text, seconds_text
from neocpu.parallel.sharding.plan import AUTO, Plan, shard_bytes
from neocpu.parallel.sharding.schemes import Shard
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.question import PlanQuestion


def moved_bytes(present: Plan, after: Plan, state_floats: tuple[int, int]) -> int:
    """Bytes of rows, with optimizer state, that ranks hold under `after` and did not before.

    state_floats : of the optimizer, per element and per row.
    """
    moved = 0.0
    for number, table in enumerate(present.tables):
        before = present.of_table(number)
        for shard in after.of_table(number):
            here = sum(_shared_cells(shard, other) for other in before if other.rank == shard.rank)
            rows, width = shard.shape
            moved += shard_bytes(table, shard, state_floats) * (1.0 - here / (rows * width))
    return round(moved)


def planned_anew(question: PlanQuestion, present: Plan, most: int) -> Answer:
    """The plan of fewest seconds that was found with at most so many bytes moved from `present`.

    Raises PlanError where the present plan does not fit and too few bytes may move to mend that.
    """
    state = question.work.state_floats
    answer = question.answer()
    if moved_bytes(present, answer.plan, state) <= most:
        return answer
    order = _heaviest_first(question, present)
    least = 0
    best = _with_movable(question, present, order[:0])
    too_many = order.size
    while too_many - least > 1:
        middle = (least + too_many) // 2
        answer = _with_movable(question, present, order[:middle])
        if moved_bytes(present, answer.plan, state) > most:
            too_many = middle
            continue
        least = middle
        if answer.seconds < best.seconds:
            best = answer
    return best


def moved_line(question: PlanQuestion, present: Plan, answer: Answer) -> str:
    """What would move from a plan to an answer, and what a step takes under both, as text."""
    moved = moved_bytes(present, answer.plan, question.work.state_floats)
    tables = sum(
        present.of_table(number) != answer.plan.of_table(number)
        for number in range(len(present.tables))
    )
    before = question.placed_as(present.placements).price(present).seconds
    return (
        f"of the plan in use {bytes_text(moved)} of {tables} table(s) move; a step takes "
        f"{seconds_text(before)} under it"
    )


def _with_movable(question: PlanQuestion, present: Plan, tables: Ints) -> Answer:
    """The answer with all tables but these where the present plan has them."""
    movable = set(tables.tolist())
    spec = {
        table.name: AUTO if number in movable else present.schemes[number]
        for number, table in enumerate(present.tables)
    }
    fixed = {
        number: present.of_table(number)
        for number in range(len(present.tables))
        if number not in movable and not present.replicated(number)
    }
    return replace(question, spec=spec, fixed=fixed).answer()


def _heaviest_first(question: PlanQuestion, present: Plan) -> Ints:
    """Tables by their seconds on loaded ranks for each of their bytes, i64[tables]."""
    priced = question.placed_as(present.placements).price(present)
    seconds = question.model.seconds(priced.rectangles).sum(axis=1)
    loads = priced.loads.sum(axis=1)
    weight = np.bincount(
        priced.rectangles.table,
        seconds * loads[priced.rectangles.rank],
        minlength=len(present.tables),
    )
    sizes = [
        sum(shard_bytes(table, shard, question.work.state_floats) for shard in present.of_table(t))
        for t, table in enumerate(present.tables)
    ]
    return np.argsort(-weight / np.array(sizes, np.float64), kind="stable")


def _shared_cells(one: Shard, other: Shard) -> int:
    """Cells that both rectangles of a table have."""
    height = min(one.rows[1], other.rows[1]) - max(one.rows[0], other.rows[0])
    width = min(one.cols[1], other.cols[1]) - max(one.cols[0], other.cols[0])
    return max(height, 0) * max(width, 0)
