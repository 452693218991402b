"""What would change a decision? How much a table or the machine must differ for another way to win.

One quantity is multiplied by more and more, then by less and less, until another way to keep the
table is cheaper than the present one; the point between is found by halving. The other tables stay
where they are.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import sqrt

from neocpu.core.errors import ConfigError
from neocpu.core.units import bytes_text
from neocpu.plan.cost.seconds import CostModel
from neocpu.plan.machines.scaling import scaled
from neocpu.plan.search.question import PlanQuestion
from neocpu.plan.search.trials import Trial, Trials, is_same, of_answer

FACTORS = (4.0, 64.0)
HALVINGS = 5
# Other ways that are looked at, the cheapest as things are.
RIVALS = 12
# Another way must be better by this part of the step, or of the table's work where the step is the
# same, or chance would decide.
GAIN = 1e-3


def turning_points(
    question: PlanQuestion, trials: Trials, table: int, machine: bool = False
) -> Iterator[str]:
    """Sentences about what would change the way in which a table is kept.

    machine : look at the machine's links and memory too, which takes longer.
    """
    kept = of_answer(trials, table)
    fitting = [way for way in trials.of_schemes(table) if way.fits]
    present = next((way for way in fitting if is_same(way, kept)), None)
    rivals = [way for way in fitting if way is not present][:RIVALS]
    if present is None or not rivals:
        yield "nothing: there is no other way that fits"
        return
    ways = [present, *rivals]
    name = trials.answer.plan.tables[table].name
    lookups = question.work.pooling.get(name, 1.0)

    def of_lookups(factor: float) -> tuple[CostModel, CostModel | None]:
        pooling = dict(question.work.pooling) | {name: factor * lookups}
        # only this table's lookups change, so the others keep their price
        return replace(question, work=replace(question.work, pooling=pooling)).model, None

    tied = next((way for way in rivals if _better(way, present)), None)
    if tied is not None:
        # it wins as things are: points above and below would only surround the present
        yield f"{tied.words} is as good as things are, beside the other tables where they are"
        return
    without = ["lookups"]
    for factor, winner in _turns(trials, table, ways, present, of_lookups):
        without = []
        side = "above" if factor > 1 else "below"
        yield f"{winner.words} would win {side} {lookups * factor:.2g} lookups a bag"
    for key, words, peak in _machine_keys(question) if machine else ():
        # a default binds the key now, not when the loop has gone on
        def of_machine(factor: float, key: str = key) -> tuple[CostModel, CostModel | None]:
            model = replace(question, machine=scaled(question.machine, key, factor)).model
            return model, model

        without.append(words)
        for factor, winner in _turns(trials, table, ways, present, of_machine):
            without = [name for name in without if name != words]
            side = "above" if factor > 1 else "below"
            yield f"{winner.words} would win {side} {bytes_text(int(peak * factor))}/s of {words}"
    if without:
        yield f"no other way wins between 1/64 and 64 times the present {', '.join(without)}"


def _machine_keys(question: PlanQuestion) -> Iterator[tuple[str, str, float]]:
    """(key for `scaled`, words, bytes/s) of what may be faster or slower."""
    machine = question.machine
    if question.layout.nodes > 1:
        yield "nic", "links between nodes", machine.between_nodes.bandwidth_bytes_per_s
    if question.layout.ranks_per_node > 1:
        yield "nvlink", "links inside nodes", machine.inside_node.bandwidth_bytes_per_s
    if machine.hbm.capacity_bytes:
        yield "hbm.bandwidth", "HBM", machine.hbm.bandwidth_bytes_per_s


def _turns(
    trials: Trials,
    table: int,
    ways: list[Trial],
    present: Trial,
    models: Callable[[float], tuple[CostModel, CostModel | None]],
) -> Iterator[tuple[float, Trial]]:
    """(factor, the way that wins from there on) upwards and downwards, where there is one.

    models : of a factor, (of the table, of all others or None for the present one).
    """

    def winner(factor: float) -> Trial | None:
        try:
            own, others = models(factor)
        # a machine that cannot have this factor has no winner
        except ConfigError:
            return None
        order = trials.repriced(table, ways, own, others)
        now = next(way for way in order if way.candidate == present.candidate)
        best = order[0]
        return best if _better(best, now) else None

    for up in (True, False):
        last = 1.0
        for step in FACTORS:
            factor = step if up else 1.0 / step
            best = winner(factor)
            if best is None:
                last = factor
                continue
            low = last
            high = factor
            for _ in range(HALVINGS):
                # factors are compared by ratio
                middle = sqrt(low * high)
                between = winner(middle)
                if between is None:
                    low = middle
                else:
                    high = middle
                    best = between
            yield high, best
            break


def _better(way: Trial, now: Trial) -> bool:
    """Is a way clearly cheaper: for the step, or for all ranks where the step is as long?"""
    if way.candidate == now.candidate:
        return False
    gain = now.alternative.seconds - way.alternative.seconds
    if abs(gain) > GAIN * now.alternative.seconds:
        return gain > 0
    return float(way.own.sum()) < (1 - GAIN) * float(now.own.sum())
