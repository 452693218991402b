"""What helps where tables do not fit a machine? Remedies, each planned to see that it does.

A remedy changes one thing of the question: more ranks, rows in fp16, optimizer state by row, other
memories, other schemes. What does not help alone is tried together with more ranks. The cheapest
remedies take the fewest seconds of all ranks together for a step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from neocpu.core.errors import ConfigError, PlanError
from neocpu.core.units import bytes_text, seconds_text
from neocpu.parallel.sharding.plan import AUTO
from neocpu.plan.cost.capacity import model_bytes
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.options import SearchTask, options_of
from neocpu.plan.search.question import PlanQuestion
from neocpu.plan.tiers.placements import Variant

SHOWN = 3
# Optimizer floats per element and per row of row-wise AdaGrad.
BY_ROW = (0, 1)
# Formats whose rows become half as large in fp16.
WIDE = ("fp32", "bf16_split")
# More ranks are looked for up to so many times the present number.
MOST_TIMES = 256


@dataclass(frozen=True)
class Remedy:
    """A change, and the answer with it."""

    words: str
    answer: Answer

    @property
    def ranks(self) -> int:
        """Ranks that it takes."""
        return self.answer.layout.ranks

    @property
    def rank_seconds(self) -> float:
        """Seconds of all ranks together for a step."""
        return self.answer.seconds * self.ranks


def missing_bytes(question: PlanQuestion) -> int:
    """Bytes that all ranks lack for the tables cut finest, or the fullest rank for its largest.

    0 where neither is short: then the planner found no plan that fits all the same.
    """
    tables = question.tables
    capacity = question.capacity
    layout, model, work = question.layout, question.model, question.work
    options = options_of(SearchTask(tables, (AUTO,) * len(tables), layout, model, work, capacity))
    limits = capacity.limits
    excess = np.maximum(options.peak_bytes[:, : limits.size] - limits, 0.0).max(axis=1)
    fullest = float(np.minimum.reduceat(excess, options.start[:-1]).max())
    whole_bytes = options.bytes[:, :3].sum(axis=1)
    least_bytes = float(np.minimum.reduceat(whole_bytes, options.start[:-1]).sum())
    memories = [i for i in range(3) if _uses(options.variants, i)]
    # a memory without limit holds the tables together; only a rank's largest may lack room
    if not np.isfinite(limits[memories]).all():
        return int(fullest)
    room = float(limits[memories].sum()) * question.layout.ranks
    return int(max(least_bytes - room, fullest, 0.0))


def remedies(question: PlanQuestion) -> list[Remedy]:
    """The cheapest changes with which the tables fit, cheapest first."""
    fitting = []
    too_little = []
    for words, changed in _changes(question):
        answer = _planned(changed)
        if answer is not None:
            fitting.append(Remedy(words, answer))
        else:
            too_little.append((words, changed))
    more = _more_ranks(question)
    if more is not None:
        fitting.append(more)
    # each is a search over ranks, so no more of them than can be shown
    for words, changed in too_little[: SHOWN - len(fitting)]:
        # what does not help alone may save ranks
        fewer = _more_ranks(changed)
        if fewer is not None and (more is None or fewer.ranks < more.ranks):
            fitting.append(Remedy(f"{fewer.words}, with {words}", fewer.answer))
    return sorted(fitting, key=lambda remedy: remedy.rank_seconds)[:SHOWN]


def remedy_lines(question: PlanQuestion) -> Iterator[str]:
    """What is missing, and what helps, as text."""
    missing = 0 if question.lacking else missing_bytes(question)
    if question.lacking:
        size = model_bytes(question.tables, question.work.state_floats).total
        nodes = question.layout.nodes
        yield (
            f"it does not fit: {question.machine.name} has no {' and no '.join(question.lacking)}, "
            f"and all tables take {bytes_text(size)}: {bytes_text(-(-size // nodes))} on each of "
            f"{nodes} node(s)"
        )
    elif missing:
        yield f"it does not fit: {bytes_text(missing)} ({missing:,} bytes) are missing"
    else:
        yield "it does not fit: there are bytes enough, but no plan was found that fits each rank"
    groups = question.layout.replica_groups
    if groups > 1:
        yield (
            f"  each of {groups} replica groups holds all tables; with fewer of them "
            "(parallel.replica_groups) more ranks share a copy"
        )
        return
    helpful = remedies(question)
    for remedy in helpful:
        yield (
            f"  {remedy.words}: fits, a step takes {seconds_text(remedy.answer.seconds)}, "
            f"{seconds_text(remedy.rank_seconds)} of all ranks"
        )
    if not helpful:
        yield "  no change of ranks, formats, optimizer, memories or schemes helps"


def _uses(variants: tuple[Variant, ...], memory: int) -> bool:
    """May rows lie in a memory, or be cached there?"""
    return any(variant.whole[memory] or variant.cached[memory] for variant in variants)


def _changes(question: PlanQuestion) -> Iterator[tuple[str, PlanQuestion]]:
    """Single changes that make tables smaller, or give them more room."""
    tables = question.tables
    if any(table.format in WIDE for table in tables):
        narrow = tuple(
            replace(table, format="fp16") if table.format in WIDE else table for table in tables
        )
        yield "rows in fp16 (model.embedding_format)", replace(question, tables=narrow)
    if question.work.state_floats[0]:
        work = replace(question.work, state_floats=BY_ROW)
        by_row = "optimizer state by row (optimizer.sparse.name = exact_rowwise_adagrad)"
        yield by_row, replace(question, work=work)
    if question.spec != AUTO:
        yield "schemes chosen by the planner (parallel.plan = auto)", replace(question, spec=AUTO)
    if question.placements != (AUTO,):
        below = "memories chosen by the planner, caches above DDR or SSD (memory.placement = auto)"
        yield below, replace(question, placements=(AUTO,))


def _planned(question: PlanQuestion) -> Answer | None:
    """The answer; None where nothing fits."""
    try:
        return question.answer()
    except (PlanError, ConfigError):
        return None


def _more_ranks(question: PlanQuestion) -> Remedy | None:
    """The fewest whole nodes on which the tables fit."""
    # no number of ranks has a memory that its machine lacks
    if question.lacking:
        return None
    layout = question.layout
    per_node = max(layout.ranks_per_node, min(question.machine.ranks_per_node, MOST_TIMES))

    def on(nodes: int) -> Answer | None:
        wider = replace(layout, ranks=nodes * per_node, ranks_per_node=per_node)
        return _planned(replace(question, layout=wider))

    too_few = layout.ranks // per_node
    nodes = too_few + 1
    answer = on(nodes)
    while answer is None:
        too_few = nodes
        # fitting grows with nodes, so doubling and halving finds the fewest
        nodes *= 2
        if nodes * per_node > MOST_TIMES * layout.ranks:
            return None
        answer = on(nodes)
    while nodes - too_few > 1:
        middle = (nodes + too_few) // 2
        fewer = on(middle)
        if fewer is None:
            too_few = middle
        else:
            nodes = middle
            answer = fewer
    return Remedy(f"{nodes * per_node} ranks on {nodes} node(s)", answer)
