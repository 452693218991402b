"""What does a run's trace show? The tracks of each rank, from the spans that it recorded.

    steps               one piece for each step
    compute             stages of the step, as in `core/stages.py`, without their waits
    waiting             exchanges that the rank started or waited for, and did nothing else
    network: inputs     exchanges under way, on the queue of lookups,
    network: pooled     on that of pooled vectors and their gradients,
    network: dense      and on that of dense gradients

An exchange is under way from the start of its call to its end; where several of one queue are, each
has a line of its own.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from neocpu.core.stages import QUEUES
from neocpu.core.types import Tree
from neocpu.parallel.transport.timeline import ExchangeSpan, StageSpan, TracedStep
from neocpu.plan.simulation.chrome_trace import TrackPiece, event, names

OWN_TRACKS = ("steps", "compute", "waiting")
# Waits shorter than this are left out: the call itself takes as long.
SHORTEST_WAIT = 5e-6


class RankSpans(NamedTuple):
    """The spans of one rank, on the clock of rank 0. end : of the last step."""

    rank: int
    steps: Sequence[TracedStep]
    end: float


class _Lanes:
    """Places exchanges of a queue on as few lines as they need not to overlap."""

    def __init__(self) -> None:
        self._free: list[float] = []

    def place(self, span: ExchangeSpan) -> int:
        """The line of an exchange; exchanges come in the order in which they start."""
        for lane, free in enumerate(self._free):
            # the first that is free, so that few lines are needed
            if free <= span.start:
                self._free[lane] = span.over
                return lane
        self._free.append(span.over)
        return len(self._free) - 1


def trace_pieces(spans: RankSpans) -> tuple[list[str], list[TrackPiece]]:
    """The names of a rank's tracks, and the pieces on them."""
    rank = spans.rank
    pieces: list[TrackPiece] = []
    exchanges = sorted(
        ((exchange, step.step) for step in spans.steps for exchange in step.exchanges),
        key=lambda pair: pair[0].start,
    )
    waits = sorted(
        (wait for exchange, number in exchanges for wait in _waits(exchange, rank, number)),
        key=lambda wait: wait.begin,
    )
    for number, step in enumerate(spans.steps):
        arguments = {"step": step.step}
        # spans before the first step belong to none
        if step.step:
            end = _end(spans, number)
            pieces.append(TrackPiece(f"step {step.step}", rank, 0, step.start, end, arguments))
        for span in step.spans:
            pieces.extend(
                TrackPiece(span.stage, rank, 1, begin, end, arguments)
                for begin, end in _without(span, waits)
            )
    pieces.extend(waits)
    tracks = list(OWN_TRACKS)
    for queue in dict.fromkeys((*QUEUES, *(exchange.queue for exchange, _ in exchanges))):
        lanes = _Lanes()
        for exchange, number in exchanges:
            if exchange.queue != queue:
                continue
            lane = lanes.place(exchange)
            title = QUEUES.get(queue, f"network: {queue}") + (f" ({lane + 1})" if lane else "")
            if title not in tracks:
                tracks.append(title)
            track = tracks.index(title)
            details = _arguments(exchange, number)
            pieces.append(
                TrackPiece(_name(exchange), rank, track, exchange.start, exchange.over, details)
            )
    return tracks, pieces


def _end(spans: RankSpans, number: int) -> float:
    """When the step at this place ended: where the next began, unless that was left out."""
    step = spans.steps[number]
    if number + 1 == len(spans.steps):
        return spans.end
    after = spans.steps[number + 1]
    # of a long run the middle is left out, and the next step is not the one that followed
    return after.start if after.step == step.step + 1 else _last_end(step)


def _without(span: StageSpan, waits: Sequence[TrackPiece]) -> Iterator[tuple[float, float]]:
    """What is left of a stage's time without the waits within it; waits are in order."""
    begin = span.start
    first = bisect_left(waits, span.start, key=lambda wait: wait.end)
    for wait in islice(waits, first, None):
        if wait.begin >= span.end:
            break
        if wait.begin > begin:
            yield begin, wait.begin
        begin = max(begin, wait.end)
    if begin < span.end:
        yield begin, span.end


def _last_end(step: TracedStep) -> float:
    ends = [span.end for span in step.spans] + [exchange.end for exchange in step.exchanges]
    return max(ends, default=step.start)


def _name(exchange: ExchangeSpan) -> str:
    return exchange.what or "agreements"


def _arguments(exchange: ExchangeSpan, step: int) -> dict[str, object]:
    arguments: dict[str, object] = {"step": step, "bytes": exchange.bytes}
    if exchange.alone:
        arguments["alone on its link, ms"] = round(1e3 * exchange.alone, 3)
    return arguments


def _waits(exchange: ExchangeSpan, rank: int, step: int) -> list[TrackPiece]:
    """Where the rank did nothing but start the exchange, and wait for it."""
    arguments = _arguments(exchange, step)
    stretches = [(exchange.start, exchange.started), (exchange.awaited, exchange.end)]
    if exchange.awaited - exchange.started < SHORTEST_WAIT:
        # nothing was computed between start and wait: one wait
        stretches = [(exchange.start, exchange.end)]
    return [
        TrackPiece(f"wait: {_name(exchange)}", rank, 2, begin, end, arguments)
        for begin, end in stretches
        if end - begin >= SHORTEST_WAIT
    ]


def trace_events(ranks: Sequence[RankSpans]) -> list[Tree]:
    """The events of all ranks, time 0 at the first of them."""
    drawn = [(spans.rank, *trace_pieces(spans)) for spans in ranks]
    begins = [piece.begin for _, _, pieces in drawn for piece in pieces]
    first = min(begins, default=0.0)
    events: list[Tree] = []
    for rank, tracks, pieces in drawn:
        events.extend(names(rank, tracks))
        for piece in pieces:
            events.append(event(piece._replace(begin=piece.begin - first, end=piece.end - first)))
    return events
