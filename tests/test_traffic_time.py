"""Is the time of counted traffic on another machine what the formula says?"""

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_run import config_of, write_log

from neocpu.cli.screen.machine_times import machine_lines
from neocpu.core.errors import ConfigError
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.sent import CallName, Traffic
from neocpu.parallel.transport.threads import run_threads
from neocpu.plan.machines.machine import LinkPeak, Machine, MemoryPeak, TransferRates
from neocpu.plan.machines.traffic_time import traffic_time
from neocpu.train.config.config import Config
from neocpu.train.run.trainer import Trainer

MACHINE = Machine(
    name="made-up",
    nodes=2,
    ranks_per_node=2,
    hbm=MemoryPeak(capacity_bytes=1, bandwidth_bytes_per_s=1000.0),
    inside_node=LinkPeak(100.0, 0.5),
    between_nodes=LinkPeak(10.0, 2.0),
)
# of two ranks: calls, [messages, bytes] of each link class
STATES = [
    {"alltoallv": [4, [[4, 500], [4, 80], [8, 120]]]},
    {"alltoallv": [4, [[4, 300], [4, 200], [8, 40]]], "allgatherv": [1, [[0, 0]] * 3]},
]


def test_each_link_class_takes_what_its_busiest_rank_needs() -> None:
    time = traffic_time(MACHINE, STATES, ranks_per_node=2)["alltoallv"]
    assert time.busiest_bytes == {"same_rank": 500, "same_node": 200, "other_node": 120}
    assert time.seconds["same_rank"] == 2 * 500 / 1000
    assert time.seconds["same_node"] == 4 * (0.5 + 50 / 100)
    assert time.seconds["other_node"] == 4 * (2.0 + 30 / 10)
    assert time.total_seconds == 20.0  # the classes use different links at the same time


def test_curves_are_asked_for_the_size_of_a_call_and_the_ranks_of_the_link() -> None:
    inside = TransferRates("alltoallv", "inside_node", 2, (50.0,), (25.0,))
    between = TransferRates("alltoallv", "between_nodes", 4, (30.0,), (5.0,))
    machine = replace(MACHINE, transfers=(inside, between))
    time = traffic_time(machine, [*STATES, *STATES], ranks_per_node=2)["alltoallv"]
    assert time.seconds["same_node"] == 4 * 50 / 25
    assert time.seconds["other_node"] == 4 * 30 / 5


def test_what_sends_nothing_takes_no_time_and_a_missing_link_is_told() -> None:
    times = traffic_time(replace(MACHINE, between_nodes=LinkPeak()), STATES, 2)
    assert times["allgatherv"].total_seconds == 0.0
    assert times["alltoallv"].total_seconds == float("inf")
    entry = times["alltoallv"].to_dict()
    assert entry["other_node"] == {"bytes": 120, "seconds": None} and entry["seconds"] is None
    assert entry["calls"] == 4


def test_traffic_counts_the_time_of_waiting() -> None:
    traffic = Traffic()
    none = np.zeros(1, np.int64)
    call = traffic.begin(CallName("input", "alltoallv", "input rows"), none, none, none, none)
    call.begun()
    time.sleep(0.001)
    call.over(awaited=call.started)
    assert traffic.waited["alltoallv"] >= 0.001
    assert traffic.state() == {"alltoallv": [1, [[0, 0]] * 3]}


def train(settings: Config, out: Path, comm: Comm) -> dict[str, Any]:
    """Summary of a run."""
    return Trainer(settings, comm, out).run()


def test_a_run_tells_the_time_of_its_traffic_and_learns_the_same(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.h5")
    summaries = {}
    for machine in ("", "zionex"):
        settings = config_of(
            log, f"parallel.machine={machine}", "parallel.plan=row_wise", "training.steps=3"
        )
        body = partial(train, settings, tmp_path / f"run-{machine}")
        summaries[machine] = run_threads(2, body, ranks_per_node=1)[0]
    assert summaries[""]["digest"] == summaries["zionex"]["digest"]
    assert "machine" not in summaries[""]
    report = json.loads((tmp_path / "run-zionex/run.json").read_text())["machine"]
    assert (report["name"], report["nodes"], report["ranks_per_node"]) == ("zionex", 16, 8)
    exchanges = report["collectives"]["alltoallv"]
    assert exchanges["calls"] == summaries["zionex"]["traffic"]["alltoallv"]["calls"]
    assert exchanges["other_node"]["bytes"] > 0 == exchanges["same_node"]["bytes"]
    assert 0 < exchanges["other_node"]["seconds"] <= exchanges["seconds"] < 1
    assert exchanges["waited_seconds"] > 0
    lines = machine_lines(report)
    assert lines[0].startswith("on zionex, 16 x 8") and "alltoallv" in "".join(lines)


def test_an_unknown_machine_is_an_error_on_every_rank(tmp_path: Path) -> None:
    settings = config_of(write_log(tmp_path / "log.h5"), "parallel.machine=zionx")

    def body(comm: Comm) -> None:
        with pytest.raises(ConfigError, match=r"parallel\.machine: no machine 'zionx'; choose one"):
            Trainer(settings, comm, tmp_path / "run").run()

    run_threads(2, body)
    assert not (tmp_path / "run").exists()
