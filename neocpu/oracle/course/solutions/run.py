"""Where does the time of a step go? A run's trace and its counters say so."""

from typing import Any

import numpy as np

RUN = "runs/course"  # --out of your run, with its trace.json


def time_shares(events: list[dict[str, Any]], rank: int) -> np.ndarray:
    """Which shares of its steps does a rank compute and wait?

    events : the list "traceEvents" of a trace. An event of "ph" "M" and "name" "thread_name" names
        the track "tid" of the rank "pid": its "args" have the "name". An event of "ph" "X" lasted
        "dur" microseconds on the track "tid" of the rank "pid".
    Returns (computing, waiting), f64[2]: the time on the rank's tracks "compute" and "waiting",
    each divided by that on its track "steps". Exchanges on the network's tracks do not count: they
    are under way while the rank computes or waits.
    """
    tracks = {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "thread_name" and event["pid"] == rank:
            tracks[event["tid"]] = event["args"]["name"]
    seconds = {"steps": 0.0, "compute": 0.0, "waiting": 0.0}
    for event in events:
        if event["ph"] == "X" and event["pid"] == rank and tracks[event["tid"]] in seconds:
            seconds[tracks[event["tid"]]] += event["dur"]
    return np.array([seconds["compute"], seconds["waiting"]]) / seconds["steps"]


def hit_ratio(tiers: list[dict[str, Any]], tier: str) -> float:
    """Which share of the rows that batches asked a cache for were there?

    tiers : the list "tiers" of run.json: records with "table" and "tier". Those of caches also have
        "unique", how many rows all batches asked for, each batch counting a row once, and
        "unique_misses", how many of these were not there.
    tier : of which tier, such as "hbm"; all of its tables together.
    """
    caches = [record for record in tiers if record["tier"] == tier and "unique" in record]
    asked = sum(record["unique"] for record in caches)
    return 1 - sum(record["unique_misses"] for record in caches) / asked
