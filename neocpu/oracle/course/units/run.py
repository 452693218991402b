"""Unit 10: can a student read a run: its trace, its counters, its digest?"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.core.errors import OracleError
from neocpu.oracle.course.solutions.run import hit_ratio, time_shares
from neocpu.oracle.course.unit import Exercise, Problem, Returned, unit_of

RANKS = 4
# of `neocpu train tiny`, however many ranks and tiers it has
DIGEST = "eacb3d8988ac2f707d2c8fe236f7249fac4107fb19c169bfd737066770cdf62e"
COMMAND = (
    "neocpu train tiny --ranks 4 --set memory.placement=hbm_over_ddr --set memory.hbm=400_000 "
    "--out runs/course --trace runs/course-trace.json"
)
TRACKS = ("steps", "compute", "waiting", "network: inputs", "network: pooled")


def trace(seed: int, ranks: int, shuffled: bool) -> list[dict[str, Any]]:
    """The events of a small trace, in the form of `neocpu train --trace`.

    shuffled : tracks have other numbers on every rank, and events no order.
    """
    rng = np.random.default_rng(seed)
    events: list[dict[str, Any]] = []
    for rank in range(ranks):
        numbers = rng.permutation(len(TRACKS)).tolist() if shuffled else list(range(len(TRACKS)))
        events.append(
            {
                "ph": "M",
                "name": "process_name",
                "pid": rank,
                "tid": 0,
                "args": {"name": f"rank {rank}"},
            }
        )
        events += [
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": n, "args": {"name": track}}
            for n, track in zip(numbers, TRACKS)
        ]
        time = 0.0
        for step in range(1, 4):
            compute, wait, rest = rng.integers(1, 400, 3).tolist()
            pieces = (
                (f"step {step}", 0, 0, compute + wait + rest),
                ("lookup", 1, 0, compute),
                ("wait: pooled output", 2, compute, wait),
                ("input rows", 3, 0, compute // 2),
                ("pooled output", 4, compute // 3, wait + compute // 2),
            )
            events += [
                {
                    "ph": "X",
                    "name": name,
                    "pid": rank,
                    "tid": numbers[track],
                    "ts": time + begin,
                    "dur": float(length),
                    "args": {"step": step},
                }
                for name, track, begin, length in pieces
            ]
            time += compute + wait + rest
    if shuffled:
        events = [events[k] for k in rng.permutation(len(events))]
    return events


def time_problems() -> Iterator[Problem]:
    """One rank, several, and tracks that are numbered otherwise."""
    yield Problem("one rank", {"events": trace(1, 1, False), "rank": 0})
    yield Problem("rank 1 of two", {"events": trace(2, 2, False), "rank": 1})
    yield Problem("rank 0 of two", {"events": trace(2, 2, False), "rank": 0})
    for rank in range(3):
        about = f"rank {rank} of three, with other numbers of tracks on each and events in no order"
        yield Problem(about, {"events": trace(3, 3, True), "rank": rank})


def tier_problems() -> Iterator[Problem]:
    """Caches of several tables and tiers, and homes, which have no hits."""

    def record(table: str, tier: str, unique: int, misses: int) -> dict[str, Any]:
        counters = {"requested": unique * 3, "unique": unique, "unique_misses": misses}
        return {"table": table, "tier": tier, "rows": misses, **counters}

    home = {"table": "C1", "tier": "ddr", "rows": 20, "read": 20, "written": 4}
    yield Problem("one cache", {"tiers": [record("C1", "hbm", 100, 20), home], "tier": "hbm"})
    two = [record("C1", "hbm", 1000, 500), record("C2", "hbm", 10, 0), home]
    yield Problem("two caches of very different sizes", {"tiers": two, "tier": "hbm"})
    three = [record("C1", "hbm", 64, 16), record("C1", "ddr", 16, 12), record("C2", "hbm", 8, 8)]
    yield Problem("caches in two tiers: the upper ones", {"tiers": three, "tier": "hbm"})
    yield Problem("caches in two tiers: the lower one", {"tiers": three, "tier": "ddr"})


def own_run(names: Mapping[str, object]) -> str:
    """What the student's own run shows. Raises OracleError if there is none.

    names : of her file; RUN is the folder of results.
    """
    folder = Path(str(names.get("RUN", "runs/course")))
    path = folder.with_name(f"{folder.name}-trace.json")
    try:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    except (OSError, ValueError, KeyError) as error:
        raise OracleError(f"your own run is not there yet ({error}); run:\n  {COMMAND}") from error
    if run.get("ranks") != RANKS or not run.get("tiers"):
        tiers = "with" if run.get("tiers") else "without"
        raise OracleError(
            f"{folder}: a run of {run.get('ranks')} ranks {tiers} tiers; the course asks for "
            f"{RANKS} ranks with tiers:\n  {COMMAND}"
        )
    if {event.get("pid") for event in events} != set(range(RANKS)):
        raise OracleError(f"{path}: not a trace of {RANKS} ranks; run:\n  {COMMAND}")
    shares = [time_shares(events, rank) for rank in range(RANKS)]
    lines = [
        f"rank {rank}: {computing:.0%} computing, {waiting:.0%} waiting, "
        f"{max(0.0, 1 - computing - waiting):.0%} neither"
        for rank, (computing, waiting) in enumerate(shares)
    ]
    lines.append(f"caches: {hit_ratio(run['tiers'], 'hbm'):.1%} of the rows were in them")
    same = "that" if run["digest"] == DIGEST else "not that"
    lines.append(f"digest {run['digest']}: {same} of the README's run, without tiers")
    return "your run\n  " + "\n  ".join(lines)


UNIT = unit_of(
    __file__,
    Exercise(
        function="time_shares",
        returned=(Returned("shares", "float", "(computing, waiting)", ("share",), 1e-9),),
        problems=time_problems,
        expected=time_shares,
    ),
    Exercise(
        function="hit_ratio",
        returned=(Returned("ratio", "float", "one number", (), 1e-9),),
        problems=tier_problems,
        expected=hit_ratio,
    ),
    own_run=own_run,
)
