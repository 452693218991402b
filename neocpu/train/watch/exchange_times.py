"""How long did exchanges take, and how much of it was hidden? Seconds of a mean step.

    exposed     a rank started the exchange or waited for it, and did nothing else
    serialised  on links of a set speed, what the exchange takes them alone; else the time it was
                under way, because nobody knows when a transfer really ended that was not waited for
    hidden      1 - exposed / serialised, at least 0

An exchange is over once the last rank has come, so exposed time also holds the waits for slower
ranks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from neocpu.core.stages import QUEUES
from neocpu.core.types import JsonObject
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.sent import ExchangeTimes, Times, Traffic

UNNAMED = "agreements"
SECONDS = ("exposed", "under_way", "alone")


@contextmanager
def uncounted(comm: Comm) -> Iterator[None]:
    """What the ranks say to each other in the block is not part of the run."""
    sent = comm.sent
    # also without the throttle of slow links, which would shift the clocks
    comm.sent = Traffic()
    try:
        yield
    finally:
        comm.sent = sent


def exchange_report(comm: Comm, times: Times, steps: int) -> dict[str, object]:
    """What exchanges took in a mean step of `steps` steps: for each collective and queue, `calls`
    and `bytes` of all ranks, and seconds of a rank, `mean` and `max` over ranks. Collective.

    Keys: "steps"; "set_speed", do links have one? "collectives" and "queues", each a list.
    """
    packed = [[*key, asdict(value)] for key, value in times.items()]
    # asking for the counts must not change them
    with uncounted(comm):
        of_ranks = comm.allgather(packed)
    ranks: list[Times] = [
        {(queue, collective): ExchangeTimes(**fields) for queue, collective, fields in each}
        for each in of_ranks
    ]
    # without one nobody knows when a transfer ended that was not waited for
    set_speed = comm.sent.throttle is not None
    keys = sorted({key for rank in ranks for key in rank}, key=_order)
    queues = [{(queue, ""): each for queue, each in _by_queue(rank).items()} for rank in ranks]
    return {
        "steps": steps,
        "set_speed": set_speed,
        "collectives": [
            {"name": collective or UNNAMED} | _entry((queue, collective), ranks, steps, set_speed)
            for queue, collective in keys
        ],
        "queues": [
            _entry((queue, ""), queues, steps, set_speed)
            for queue in dict.fromkeys(queue for queue, _ in keys)
        ],
    }


def _order(key: tuple[str, str]) -> tuple[int, str]:
    """Queues in the order of the step, collectives of one queue by name."""
    queue, collective = key
    order = list(QUEUES)
    return (order.index(queue) if queue in order else len(order), collective)


def _by_queue(times: Times) -> dict[str, ExchangeTimes]:
    """Times of one rank, all collectives of a queue together."""
    totals: dict[str, ExchangeTimes] = {}
    for (queue, _), counted in times.items():
        total = totals.setdefault(queue, ExchangeTimes())
        for name, value in vars(counted).items():
            setattr(total, name, getattr(total, name) + value)
    return totals


def _entry(
    key: tuple[str, str], ranks: list[Times], steps: int, set_speed: bool
) -> dict[str, object]:
    """One line of the report."""
    queue, _ = key
    times = [rank.get(key, ExchangeTimes()) for rank in ranks]
    spans: dict[str, dict[str, float]] = {}
    for name in SECONDS:
        seconds = [getattr(each, name) / steps for each in times]
        spans[name] = {"mean": sum(seconds) / len(seconds), "max": max(seconds)}
    serialised = spans["alone" if set_speed else "under_way"]["mean"]
    # a rank also waits for those that come late, so it may wait for more than the transfer
    hidden = max(0.0, 1 - spans["exposed"]["mean"] / serialised) if serialised else 0.0
    return {
        "queue": queue,
        "calls": sum(each.calls for each in times) / steps,
        "bytes": sum(each.bytes for each in times) / steps,
        **spans,
        "hidden": hidden,
    }


def exchange_lines(report: JsonObject) -> list[str]:
    """The report as a small table, milliseconds of a mean step."""
    set_speed = report["set_speed"]
    key = "alone" if set_speed else "under_way"
    titles = ("alone" if set_speed else "under way", "waited for", "at most", "hidden")
    head = "".join(f"{title:>13}" for title in titles)
    lines = [f"{'ms of a step, per rank':26}{head}"]
    for queue in report["queues"]:
        title = QUEUES.get(queue["queue"], queue["queue"])
        lines.append(_line(title, queue, key))
        lines.extend(
            _line(f"  {entry['name']}", entry, key)
            for entry in report["collectives"]
            if entry["queue"] == queue["queue"]
        )
    return lines


def _line(title: str, entry: JsonObject, key: str) -> str:
    seconds = (entry[key]["mean"], entry["exposed"]["mean"], entry["exposed"]["max"])
    columns = "".join(f"{1e3 * value:>13.3f}" for value in seconds)
    return f"{title:26}{columns}{100 * entry['hidden']:>11.0f} %"
