"""How does a run leave a trace? `RunTrace` records every rank's spans, and rank 0 writes the file.

Spans are recorded by the comm and by the step (`parallel/transport/timeline.py`); they stay on
their rank until the run ends, also when a signal ends it. Then clocks are compared once more, rank
0 gathers the spans, and writes the file under another name first. A file that cannot be written is
told before the first step where that can be known, and later costs the trace, never the run.

Spans come onto one clock by messages to and fro, as NTP does it. Rank 0 sends one, rank r answers
at once:

    rank 0    t0 --------------> t3       offset = t1 - (t0 + t3) / 2
    rank r           t1                   round trip = t3 - t0

Of several round trips the shortest counts: its offset is wrong by half of it at most. Clocks are
compared when a run starts and when it ends, and their offset is taken to change evenly in between.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from neocpu.core.errors import ConfigError, told_as
from neocpu.core.targets import part_of, whole_file
from neocpu.core.types import Doubles, JsonObject, Tell
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.timeline import (
    KEPT_STEPS,
    ExchangeSpan,
    RunTimeline,
    StageSpan,
    TracedStep,
)
from neocpu.plan.simulation.chrome_trace import document
from neocpu.train.watch.exchange_times import uncounted
from neocpu.train.watch.trace_events import RankSpans, trace_events

Clock = Callable[[], float]
# Round trips with each rank, and in all.
TRIPS = 16
MOST_TRIPS = 512


class ClockSample(NamedTuple):
    """A comparison with rank 0's clock.

    local : when, on this rank's clock. offset : seconds by which this clock is ahead of rank 0's.
    error : half of the shortest round trip.
    """

    local: float
    offset: float
    error: float


def compare_clocks(comm: Comm, clock: Clock = time.perf_counter) -> ClockSample:
    """This rank's clock against rank 0's. Collective; its messages are neither counted nor slowed
    down.
    """
    with uncounted(comm):
        # ranks are asked one after the other, so many ranks get fewer trips
        trips = max(4, min(TRIPS, MOST_TRIPS // comm.size))
        sample = ClockSample(clock(), 0.0, 0.0)
        for rank in range(1, comm.size):
            best = min((_round_trip(comm, rank, clock) for _ in range(trips)), key=_error)
            if comm.rank == rank:
                sample = best
        return sample


def _error(sample: ClockSample) -> float:
    return sample.error


def _round_trip(comm: Comm, rank: int, clock: Clock) -> ClockSample:
    """One message to `rank` and back; the sample is of use on that rank only."""
    sent = clock()
    _send(comm, 0, rank, np.zeros(1))
    arrived = clock()
    _send(comm, rank, 0, np.zeros(1))
    # rank 0 knows t3 only now, so the times take a message of their own
    times = _send(comm, 0, rank, np.array([sent, clock()]))
    trip = float(times[1] - times[0])
    return ClockSample(arrived, arrived - float(times.mean()), max(trip, 0.0) / 2)


def _send(comm: Comm, source: int, target: int, numbers: Doubles) -> Doubles:
    """The numbers of rank `source` on rank `target`; zeros on the others."""
    sends = np.zeros(comm.size, np.int64)
    recvs = np.zeros(comm.size, np.int64)
    arrived = np.zeros(numbers.size)
    out = into = np.empty(0)
    if comm.rank == source:
        sends[target] = numbers.size
        out = numbers
    if comm.rank == target:
        recvs[source] = numbers.size
        into = arrived
    comm.alltoallv(out, sends, into, recvs, what="clocks")
    return arrived


def on_clock_of_rank_0(moment: float, first: ClockSample, last: ClockSample) -> float:
    """A moment of this rank's clock on rank 0's; the offset changes evenly between two samples."""
    span = last.local - first.local
    # a run without steps has one sample
    share = (moment - first.local) / span if span > 0 else 0.0
    return moment - (first.offset + share * (last.offset - first.offset))


# Bytes of the file for each step of a rank, which a disk must have room for before training starts.
STEP_BYTES = 12_000


class RunTrace:
    """The trace of one run; every method but `begin_step` is collective.

    path : of the file, which rank 0 writes. kept : steps at either end of the run that it shows.
    """

    def __init__(self, path: Path, comm: Comm, kept: int = KEPT_STEPS) -> None:
        self.path = path
        self.comm = comm
        self.kept = kept
        self._timeline: RunTimeline | None = None
        self._first = ClockSample(0.0, 0.0, 0.0)

    def check_writable(self) -> None:
        """Raise ConfigError, on every rank, if the file cannot be written or has no room."""
        with uncounted(self.comm), self.comm.agreeing():
            if self.comm.rank == 0:
                with told_as(ConfigError, f"--trace {self.path}"):
                    # a run of days should not end with a trace that has no room
                    _claim(part_of(self.path), self.comm.size * STEP_BYTES * 2 * self.kept)

    def start(self) -> None:
        """Spans are recorded from now on."""
        # once more at the end: clocks drift, evenly as far as two samples tell
        self._first = compare_clocks(self.comm)
        self._timeline = RunTimeline(self.kept)
        self.comm.sent.timeline = self._timeline

    def begin_step(self, step: int) -> None:
        """The step of this number begins."""
        assert self._timeline is not None
        self._timeline.begin_step(step)

    def finish(self, tell: Tell) -> None:
        """Stop recording, and write the file; tell : says where it is, or why it is not."""
        timeline = self._timeline
        if timeline is None:
            return
        # before the exchanges below, which are none of the run's
        self.comm.sent.timeline = None
        self._timeline = None
        end = time.perf_counter()
        message = _packed(timeline, self._first, compare_clocks(self.comm), end)
        with uncounted(self.comm):
            messages = gather(self.comm, message)
        if self.comm.rank:
            return
        try:
            packed = [json.loads(data) for data in messages]
            ranks = [_unpacked(rank, spans) for rank, spans in enumerate(packed)]
            notes = self._notes(timeline, [spans["error"] for spans in packed])
            _write(self.path, document(trace_events(ranks), notes))
        except OSError as problem:
            # a full disk costs the trace, not the run
            tell(f"warning: the trace {self.path} cannot be written: {problem.strerror}")
            return
        left_out = f", without {notes['steps left out']}" if timeline.dropped else ""
        tell(f"the trace is in {self.path}{left_out}; open it in ui.perfetto.dev")

    def _notes(self, timeline: RunTimeline, errors: list[float]) -> dict[str, object]:
        notes: dict[str, object] = {
            "title": f"neocpu train, {self.comm.size} rank(s)",
            "clocks": f"of all ranks agree to {1e6 * max(errors):.0f} microseconds",
        }
        if timeline.dropped:
            shown = [step.step for step in timeline.steps]
            gap = next(n for n, (a, b) in enumerate(pairwise(shown)) if b > a + 1)
            notes["steps left out"] = f"steps {shown[gap] + 1} to {shown[gap + 1] - 1}"
        return notes


def gather(comm: Comm, message: bytes) -> list[bytes]:
    """The messages of all ranks on rank 0, in rank order; none on the others. Collective."""
    size = np.array([len(message)], np.int64)
    sizes = np.empty(comm.size, np.int64)
    comm.allgatherv(size, sizes, np.ones(comm.size, np.int64))
    sends = np.zeros(comm.size, np.int64)
    sends[0] = len(message)
    recvs = sizes if comm.rank == 0 else np.zeros(comm.size, np.int64)
    everything = np.empty(int(recvs.sum()), np.uint8)
    comm.alltoallv(np.frombuffer(message, np.uint8), sends, everything, recvs)
    if comm.rank:
        return []
    return [packed.tobytes() for packed in np.split(everything, np.cumsum(sizes)[:-1])]


def _packed(timeline: RunTimeline, first: ClockSample, last: ClockSample, end: float) -> bytes:
    """One rank's spans on the clock of rank 0, as JSON."""

    def moved(values: tuple[Any, ...], times: int, before: int) -> list[Any]:
        """A span whose fields from `before` on are times."""
        fields = list(values)
        for field in range(before, before + times):
            fields[field] = on_clock_of_rank_0(fields[field], first, last)
        return fields

    steps = [
        {
            "step": step.step,
            "start": on_clock_of_rank_0(step.start, first, last),
            "spans": [moved(span, 2, 1) for span in step.spans],
            "exchanges": [moved(span, 5, 2) for span in step.exchanges],
        }
        for step in timeline.steps
    ]
    packed = {
        "steps": steps,
        "end": on_clock_of_rank_0(end, first, last),
        "error": max(first.error, last.error),
    }
    return json.dumps(packed).encode()


def _unpacked(rank: int, packed: JsonObject) -> RankSpans:
    """The spans of a rank, as `_packed` left them."""
    steps = []
    for entry in packed["steps"]:
        step = TracedStep(entry["step"], entry["start"])
        step.spans = [StageSpan(*fields) for fields in entry["spans"]]
        step.exchanges = [ExchangeSpan(*fields) for fields in entry["exchanges"]]
        steps.append(step)
    return RankSpans(rank, steps, packed["end"])


def _claim(draft: Path, size: int) -> None:
    """Raise OSError if a file of this size cannot be written there."""
    try:
        with open(draft, "wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def _write(path: Path, text: str) -> None:
    """Write a file that readers see whole or not at all. Raises OSError."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
