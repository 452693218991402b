"""How is a trace written for Perfetto (ui.perfetto.dev) or chrome://tracing? As Chrome's JSON.

A process is a rank, a thread one of its tracks. Pieces of one track must not overlap.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from neocpu.core.types import Tree

MICROSECONDS = 1e6
# an object of "traceEvents"
Event: TypeAlias = Mapping[str, Any]


class TrackPiece(NamedTuple):
    """A named piece of time of a track, from `begin` to `end` in seconds."""

    name: str
    rank: int
    track: int
    begin: float
    end: float
    arguments: Tree


def names(rank: int, tracks: Sequence[str]) -> list[Event]:
    """The events that name a rank and its tracks, which are numbered from 0."""
    events = [_metadata("process_name", rank, 0, name=f"rank {rank}")]
    events.append(_metadata("process_sort_index", rank, 0, sort_index=rank))
    for number, track in enumerate(tracks):
        events.append(_metadata("thread_name", rank, number, name=track))
        events.append(_metadata("thread_sort_index", rank, number, sort_index=number))
    return events


def _metadata(kind: str, rank: int, track: int, **arguments: object) -> Event:
    return {"ph": "M", "name": kind, "pid": rank, "tid": track, "args": arguments}


def event(piece: TrackPiece) -> Event:
    """The event of a piece, times in microseconds."""
    begin = round(piece.begin * MICROSECONDS, 3)
    return {
        "ph": "X",
        "name": piece.name,
        "pid": piece.rank,
        "tid": piece.track,
        "ts": begin,
        # from the rounded begin, or neighbours on a track would overlap by rounding
        "dur": round(piece.end * MICROSECONDS - begin, 3),
        "args": dict(piece.arguments),
    }


def document(events: Sequence[Event], notes: Tree) -> str:
    """The text of a trace file; notes : what it shows, and what it leaves out."""
    trace = {"displayTimeUnit": "ms", "otherData": notes, "traceEvents": events}
    return json.dumps(trace) + "\n"
