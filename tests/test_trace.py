"""Is the trace of a run what its ranks did, on one clock, and never at the price of the run?"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from small_run import config_of, write_log

from neocpu.core.errors import ConfigError, Stopped
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.threads import run_threads
from neocpu.parallel.transport.timeline import ExchangeSpan, RunTimeline, TracedStep
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.trace import ClockSample, RunTrace, compare_clocks, on_clock_of_rank_0
from neocpu.train.watch.trace_events import RankSpans, trace_events, trace_pieces

# seconds by which the ranks' clocks are ahead, and by which they gain in a second
SKEW = (0.0, 5.0, -300.0)
DRIFT = (0.0, 0.01, -0.02)


def skewed(rank: int) -> Callable[[], float]:
    return lambda: SKEW[rank] + (1 + DRIFT[rank]) * time.perf_counter()


def test_skewed_and_drifting_clocks_are_brought_together() -> None:
    def body(comm: Comm) -> tuple[float, float]:
        clock = skewed(comm.rank)
        first = compare_clocks(comm, clock)
        comm.barrier()
        begin = (clock(), time.perf_counter())
        time.sleep(0.05)
        last = compare_clocks(comm, clock)
        assert comm.sent.calls == {"barrier": 1} or "alltoallv" not in comm.sent.calls
        # rank 0's clock is the true one, so what is corrected must be what it shows
        middle = on_clock_of_rank_0(begin[0], first, last)
        assert abs(middle - begin[1]) <= first.error + last.error + 1e-4
        return first.error, middle

    outcomes = run_threads(3, body)
    assert outcomes[0][0] == 0.0 and all(error < 0.05 for error, _ in outcomes)


def test_the_offset_between_two_comparisons_changes_evenly() -> None:
    first = ClockSample(local=100.0, offset=4.0, error=0.0)
    last = ClockSample(local=200.0, offset=6.0, error=0.0)
    assert on_clock_of_rank_0(100.0, first, last) == 96.0
    assert on_clock_of_rank_0(150.0, first, last) == 145.0
    assert on_clock_of_rank_0(150.0, first, first) == 146.0


def exchange(what: str, queue: str, start: float, awaited: float, over: float) -> ExchangeSpan:
    end = max(awaited, over)
    return ExchangeSpan(what, queue, start, start, awaited, end, over, 80, 0.0)


def test_waits_are_cut_out_of_stages_and_overlapping_exchanges_have_lines_of_their_own() -> None:
    step = TracedStep(1, 0.0)
    line = RunTimeline()
    with line.span("lookup"):
        pass
    span = line.steps[0].spans[0]._replace(start=1.0, end=9.0)
    step.spans = [span]
    step.exchanges = [
        exchange("pooled output", "exchange", 2.0, 4.0, 6.0),
        exchange("words", "exchange", 3.0, 6.0, 5.0),
        exchange("input rows", "input", 6.5, 12.0, 11.0),
    ]
    tracks, pieces = trace_pieces(RankSpans(3, [step], 12.0))
    by_track: dict[str, list[tuple[str, float, float]]] = {}
    for piece in pieces:
        by_track.setdefault(tracks[piece.track], []).append((piece.name, piece.begin, piece.end))
        assert piece.rank == 3 and piece.arguments["step"] == 1
    assert by_track == {
        "steps": [("step 1", 0.0, 12.0)],
        "compute": [("lookup", 1.0, 4.0), ("lookup", 6.0, 9.0)],
        "waiting": [("wait: pooled output", 4.0, 6.0)],
        "network: inputs": [("input rows", 6.5, 11.0)],
        "network: pooled": [("pooled output", 2.0, 6.0)],
        "network: pooled (2)": [("words", 3.0, 5.0)],
    }
    events = trace_events([RankSpans(3, [step], 12.0)])
    assert {event["ph"] for event in events} == {"M", "X"}
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert names == tracks
    rows = next(event for event in events if event["name"] == "input rows")
    assert (rows["ts"], rows["dur"], rows["args"]["bytes"]) == (6.5e6, 4.5e6, 80)


def test_a_long_run_keeps_its_ends() -> None:
    line = RunTimeline(kept=2)
    for step in range(1, 10):
        line.begin_step(step)
        with line.span("lookup"):
            pass
    assert [step.step for step in line.steps] == [0, 1, 2, 8, 9] and line.dropped == 5
    assert all(len(step.spans) == 1 for step in line.steps[1:])


def train(folder: Path, trace: Path, *overrides: str, kept: int = 50) -> list[Any]:
    """A run on two ranks as threads, and what rank 0 told."""
    log = folder / "log.h5"
    if not log.exists():
        write_log(log)
    config = config_of(log, "training.epochs=2", "parallel.plan=row_wise", *overrides)
    told: list[str] = []

    def body(comm: Comm) -> dict[str, Any]:
        trainer = Trainer(
            config, comm, folder / f"out{trace.name}", trace=RunTrace(trace, comm, kept)
        )
        if comm.rank == 0:
            trainer.report.tell = told.append  # type: ignore[method-assign]
        return trainer.run()

    return [*run_threads(2, body), told]


def check(trace: Path) -> dict[str, Any]:
    """The file, if it is what Perfetto reads: pieces of a track never overlap."""
    content: dict[str, Any] = json.loads(trace.read_text())
    ends: dict[tuple[int, int], float] = {}
    pieces = [event for event in content["traceEvents"] if event["ph"] == "X"]
    for event in sorted(pieces, key=lambda event: event["ts"]):
        track = event["pid"], event["tid"]
        assert event["ts"] >= ends.get(track, 0.0) - 0.002, event
        ends[track] = event["ts"] + event["dur"]
    return content


def test_a_run_leaves_a_trace_of_its_ends(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    first, second, told = train(tmp_path, trace, kept=2)
    content = check(trace)
    steps = {event["args"].get("step") for event in content["traceEvents"]}
    assert {1, 2, 5, 6} <= steps and not {3, 4} & steps
    assert content["otherData"]["steps left out"] == "steps 3 to 4"
    assert content["otherData"]["clocks"].startswith("of all ranks agree to ")
    pieces = {(event["pid"], event["name"]) for event in content["traceEvents"]}
    for rank in (0, 1):
        assert {(rank, "input rows"), (rank, "bottom_forward"), (rank, "step 5")} <= pieces
    assert any(f"the trace is in {trace}, without steps 3 to 4" in line for line in told)
    assert list(tmp_path.glob(".trace*")) == []
    # neither the digest nor the counted traffic knows of it
    plain = run_threads(2, lambda comm: Trainer(_plain(tmp_path), comm, tmp_path / "plain").run())
    assert plain[0]["digest"] == first["digest"] == second["digest"]
    assert plain[0]["traffic"] == first["traffic"]


def _plain(folder: Path) -> Any:
    return config_of(folder / "log.h5", "training.epochs=2", "parallel.plan=row_wise")


def test_a_stopped_run_leaves_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = write_log(tmp_path / "log.h5")
    trace = tmp_path / "trace.json"

    class StopAfterTwo:
        """A signal that comes after two steps."""

        def __init__(self, started: bool) -> None:
            self.asked = -2  # before the first step

        def __enter__(self) -> Self:
            return self

        def start(self, heed: object) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            pass

        @property
        def number(self) -> int:
            self.asked += 1
            return 15 if self.asked > 2 else 0

    monkeypatch.setattr("neocpu.train.run.trainer.StopSignal", StopAfterTwo)

    def body(comm: Comm) -> None:
        config = config_of(log, "training.steps=6")
        Trainer(config, comm, tmp_path / "out", trace=RunTrace(trace, comm)).run()

    with pytest.raises(Stopped):
        run_threads(2, body)
    steps = {event["args"].get("step") for event in check(trace)["traceEvents"]}
    assert {1, 2} <= steps and 3 not in steps


def test_a_trace_that_cannot_be_written_is_told_before_training(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "trace.json"
    with pytest.raises(ConfigError, match=r"--trace .*trace\.json: cannot be written: No such"):
        train(tmp_path, missing)
    assert not list((tmp_path / "outtrace.json").glob("run.json"))


def test_a_disk_that_fills_up_costs_the_trace_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    trace = tmp_path / "trace.json"
    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="No space left"):
        patch.setattr("os.posix_fallocate", full)
        train(tmp_path, trace)
    monkeypatch.setattr("neocpu.train.watch.trace._write", full)
    summary, _, told = train(tmp_path, trace, kept=3)
    assert summary["steps"] == 6 and not trace.exists()
    assert any("warning: the trace" in line and "No space left" in line for line in told)
