"""How is a simulation looked at? As a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.

A process is a rank, a thread one of its streams. An exchange begins where its last rank has
arrived; before that a rank that waits for slower ones shows `wait`.
"""

import json
from typing import Any

import numpy as np

from neocpu.simulation.engine import Timeline
from neocpu.simulation.schedule import QUEUES

# More ranks than this are sampled.
MOST_RANKS = 256
MICROSECONDS = 1e6


def traced_ranks(line: Timeline, most: int = MOST_RANKS) -> list[int]:
    """Ranks that a trace shows: all, or evenly chosen ones and the one with most to compute."""
    if line.ranks <= most:
        return list(range(line.ranks))
    computing = [n for n, task in enumerate(line.tasks) if task.stage.queue == "compute"]
    busiest = int((line.finish - line.start)[computing].sum(axis=0).argmax())
    sample = np.linspace(0, line.ranks - 1, most - 1).astype(int)
    return sorted({busiest, *sample.tolist()})


def trace_text(line: Timeline, title: str, most: int = MOST_RANKS) -> str:
    """The trace as JSON, times in microseconds."""
    ranks = traced_ranks(line, most)
    threads = {queue: place for place, queue in enumerate(QUEUES)}
    events: list[dict[str, Any]] = []
    for rank in ranks:
        events.append(_metadata("process_name", rank, 0, f"rank {rank}"))
        for queue, place in threads.items():
            events.append(_metadata("thread_name", rank, place, QUEUES[queue]))
    for number, task in enumerate(line.tasks):
        thread = threads[task.stage.queue]
        arrivals = (line.arrival[number] * MICROSECONDS).tolist()
        starts = (line.start[number] * MICROSECONDS).tolist()
        finishes = (line.finish[number] * MICROSECONDS).tolist()
        for rank in ranks:
            arguments = {"batch": task.batch}
            if task.exchange and starts[rank] > arrivals[rank] and finishes[rank] > starts[rank]:
                span = (arrivals[rank], starts[rank])
                events.append(_slice(f"wait: {task.name}", rank, thread, span, arguments))
            if round(finishes[rank] - starts[rank], 3) > 0:
                span = (starts[rank], finishes[rank])
                events.append(_slice(task.name, rank, thread, span, arguments))
    note = "all ranks" if len(ranks) == line.ranks else f"{len(ranks)} of {line.ranks} ranks"
    trace = {
        "displayTimeUnit": "ms",
        "otherData": {"title": title, "ranks": note},
        "traceEvents": events,
    }
    return json.dumps(trace) + "\n"


def _metadata(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": {"name": name}}


def _slice(
    name: str, rank: int, thread: int, span: tuple[float, float], arguments: dict[str, Any]
) -> dict[str, Any]:
    """A named piece of time of a rank's stream."""
    begin, end = span
    return {
        "ph": "X",
        "name": name,
        "pid": rank,
        "tid": thread,
        "ts": round(begin, 3),
        "dur": round(end - begin, 3),
        "args": arguments,
    }
