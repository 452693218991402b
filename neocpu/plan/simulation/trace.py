"""How is a simulation looked at? As a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.

A process is a rank, a thread one of its streams. An exchange begins where its last rank has
arrived; before that a rank that waits for slower ones shows `wait`.
"""

import numpy as np

from neocpu.core.stages import QUEUES
from neocpu.plan.simulation.chrome_trace import Event, TrackPiece, document, event, names
from neocpu.plan.simulation.engine import Timeline

# More ranks than this are sampled.
MOST_RANKS = 256


def traced_ranks(line: Timeline, most: int = MOST_RANKS) -> list[int]:
    """Ranks that a trace shows: all, or evenly chosen ones and the one with most to compute."""
    if line.ranks <= most:
        return list(range(line.ranks))
    computing = [n for n, task in enumerate(line.tasks) if task.stage.queue == "compute"]
    busiest = int((line.finish - line.start)[computing].sum(axis=0).argmax())
    # the busiest rank beside an even sample: it is the one for which the others wait
    sample = np.linspace(0, line.ranks - 1, most - 1).astype(int)
    return sorted({busiest, *sample.tolist()})


def trace_text(line: Timeline, title: str, most: int = MOST_RANKS) -> str:
    """The trace as JSON, times in microseconds."""
    ranks = traced_ranks(line, most)
    tracks = list(QUEUES)
    events: list[Event] = []
    for rank in ranks:
        events.extend(names(rank, [QUEUES[queue] for queue in tracks]))
    for number, task in enumerate(line.tasks):
        track = tracks.index(task.stage.queue)
        arrivals = line.arrival[number].tolist()
        starts = line.start[number].tolist()
        finishes = line.finish[number].tolist()
        arguments = {"batch": task.batch}
        for rank in ranks:
            start = starts[rank]
            if task.exchange and start > arrivals[rank] and finishes[rank] > start:
                waiting = f"wait: {task.name}"
                events.append(
                    event(TrackPiece(waiting, rank, track, arrivals[rank], start, arguments))
                )
            # pieces shorter than the file's resolution would be drawn as pieces without length
            if round((finishes[rank] - start) * 1e6, 3) > 0:
                events.append(
                    event(TrackPiece(task.name, rank, track, start, finishes[rank], arguments))
                )
    note = "all ranks" if len(ranks) == line.ranks else f"{len(ranks)} of {line.ranks} ranks"
    return document(events, {"title": title, "ranks": note})
