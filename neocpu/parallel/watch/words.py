"""What is said of a job that stands still? Which collective is waited for, and who is not there."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neocpu.parallel.watch.rank_page import RankState

States = dict[int, RankState]  # by rank, of those that can be seen
STALLED = "the run has stood still"


@dataclass(frozen=True)
class Member:
    """Where a rank runs. key : the same for ranks that share memory and process numbers."""

    rank: int
    host: str
    key: str
    process: int


def collective(name: tuple[str, str, str]) -> str:
    """A collective, for people."""
    _, verb, what = name
    return f"{verb} '{what}'" if what else verb


def is_awake(state: RankState, period: float) -> bool:
    """Does a rank's watch run, which writes every `period` seconds?"""
    return state.process_state in ("", "disk") and state.silent < 3 * period + 1.0


def speaker(states: States, period: float) -> int:
    """The lowest rank that can speak; -1: none can be seen."""
    return min((rank for rank, state in states.items() if is_awake(state, period)), default=-1)


def describe(
    members: Sequence[Member],
    states: States,
    heard: Mapping[int, tuple[float, RankState]],
    still: float,
    period: float,
) -> str:
    """Why a job has stood still for so many seconds, in one line.

    heard : newest answers of other hosts, and when they came.
    """
    waits = Counter(
        (state.wait, state.step)
        for state in states.values()
        if state.wait and is_awake(state, period)
    )
    usual = waits.most_common(1)[0][0] if waits else None
    wanted = ""
    if usual:
        where = f" of step {usual[1]}" if usual[1] else " before the first step"
        wanted = f", waiting for {usual[0]}{where}"
    absent = _unseen_hosts(members, states, heard)
    absent += [
        line for _, state in sorted(states.items()) if (line := _absence(state, usual, period))
    ]
    if not absent:
        absent = ["all ranks are there, but their messages do not arrive"]
    return f"{STALLED} for {still:.0f} s{wanted}: {'; '.join(absent)}"


def _unseen_hosts(
    members: Sequence[Member], states: States, heard: Mapping[int, tuple[float, RankState]]
) -> list[str]:
    """A line for each host of which no rank can be seen."""
    lines = []
    for key in dict.fromkeys(member.key for member in members):
        there = [member for member in members if member.key == key]
        if any(member.rank in states for member in there):
            continue
        ranks = ", ".join(str(member.rank) for member in there)
        plural = "s" if len(there) > 1 else ""
        line = f"host {there[0].host} (rank{plural} {ranks}) does not answer"
        known = [heard[member.rank] for member in there if member.rank in heard]
        if known:
            when, state = known[0]
            ago = time.monotonic() - when + state.silent
            line += f"; {ago:.0f} s ago its rank {state.rank} was {state.where}"
        lines.append(line)
    return lines


def _absence(state: RankState, usual: tuple[str, int] | None, period: float) -> str:
    """Why a rank that can be seen does not wait as most do; "": it does."""
    who = f"rank {state.rank} on {state.host} (process {state.process})"
    seen = f", last seen {state.where}"
    match state.process_state:
        case "gone":
            return f"{who} is no more{seen}"
        case "stopped":
            return f"{who} is stopped{seen}; `kill -CONT {state.process}` there wakes it"
        case "traced":
            return f"{who} is held by a debugger{seen}"
        case _ if not is_awake(state, period):
            return f"{who} has not answered for {state.silent:.0f} s{seen}"
        case disk if (state.wait, state.step) != usual:
            why = ", where it waits for a disk" if disk else ""
            return f"{who} is {state.where} for {state.still:.0f} s{why}"
    return ""
