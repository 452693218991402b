"""Comm beside its conformance suite (`spmd_comm.py`): alone, in reports, and where a real MPI job
fails.
"""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import spmd_comm
from spmd import BODIES, run_under_mpi, spmd

from neocpu.core.types import Bytes
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.near import NearExchanges, Runs
from neocpu.parallel.transport.sent import sum_traffic
from neocpu.parallel.transport.threads import run_threads

SUITE = [body for name, body in BODIES.items() if name.startswith("comm.")]


@pytest.mark.parametrize("body", [b for b in SUITE if 1 in b.ranks], ids=lambda body: body.name)
def test_alone(body, tmp_path: Path) -> None:
    body.run(SingleComm(), tmp_path)


@pytest.mark.parametrize("ranks_per_node", [1, 2, 3])
def test_links_between_nodes_are_counted(ranks_per_node: int) -> None:
    run_threads(4, spmd_comm.traffic_counts_payload_by_link, ranks_per_node=ranks_per_node)


def test_reports_of_ranks_add_up() -> None:
    one = {"alltoall": [3, [[1, 10], [0, 0], [2, 5]]]}
    two = {"alltoall": [4, [[1, 1], [1, 1], [1, 1]]], "allgatherv": [1, [[0, 0]] * 3]}
    report = sum_traffic([one, two])
    assert list(report) == ["allgatherv", "alltoall"]
    assert report["alltoall"] == {
        "calls": 4,
        "same_rank": {"messages": 2, "bytes": 11},
        "same_node": {"messages": 1, "bytes": 1},
        "other_node": {"messages": 3, "bytes": 6},
    }


def test_irregular_nodes_count_as_one() -> None:
    comm = SingleComm()
    comm.size = 4
    for nodes, expected in (
        ([0, 0, 1, 1], 2),
        ([0, 0, 0, 1], 3),
        ([0, 1, 1, 1], 4),
        ([0, 1, 0, 1], 4),
        ([0] * 4, 4),
    ):
        comm.nodes = np.array(nodes)
        assert comm.ranks_per_node == expected


def test_a_rank_that_waits_by_memory_lets_mpi_go_on() -> None:
    """What it sent to another host may still be here, and who waits for that may be who it waits
    for.
    """

    class Late:
        """Windows and messages: a neighbour's is there once MPI has gone on."""

        pushed = False
        asked = 0

        def push(self) -> None:
            self.pushed = True

        def post(self, *message: object) -> bool:
            return True

        def take(self, exchange: int, host_rank: int, view: Bytes) -> int | None:
            self.asked += 1
            assert self.asked < 1000
            return view.size if self.pushed else None

    late = Late()
    near = NearExchanges(late, [0, 1], 0, 2.0, late)
    one = Runs(np.zeros(2, np.uint8), [0, 1], [1, 1])
    near.start(one, one).wait()


def test_alone_loads_no_mpi_and_no_numba() -> None:
    code = (
        "import sys; from neocpu.parallel.transport.launch import get_comm; get_comm().barrier(); "
        "sys.exit('mpi4py' in sys.modules or 'numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# ---- the harness itself: `test_spmd.py` never runs these bodies ----

BROKEN = """
import time
from spmd import spmd

@spmd(2)
def fails_on_one_rank(comm):
    if comm.rank == 1:
        raise AssertionError("one is not two")
    comm.barrier()

@spmd(2)
def hangs(comm):
    if comm.rank == 1:
        time.sleep(600)
    comm.barrier()

@spmd(2)
def is_fine(comm):
    comm.barrier()
"""


def test_the_harness_reports_failures_hangs_and_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import spmd as harness

    suite = tmp_path / "suite"
    suite.mkdir()
    for name in ("spmd.py", "spmd_main.py", "draws.py", "jobs.py"):
        (suite / name).write_bytes((Path(harness.__file__).parent / name).read_bytes())
    (suite / "spmd_broken.py").write_text(BROKEN)
    monkeypatch.setattr(harness, "TESTS", suite)
    begun = time.monotonic()
    names = ["broken.fails_on_one_rank", "broken.hangs", "broken.is_fine"]
    outcomes = run_under_mpi([(name, 2) for name in names], tmp_path / "out", seconds=15)
    assert [outcomes[name, 2].state for name in names] == ["failed", "failed", "ok"]
    assert "one is not two" in outcomes[names[0], 2].text
    assert "killed" in outcomes[names[1], 2].text
    assert time.monotonic() - begun < 300, "the one that sleeps for 600 s was not killed"


def test_a_body_is_registered_once() -> None:
    def small_things(comm) -> None: ...

    small_things.__module__ = "spmd_comm"
    with pytest.raises(AssertionError, match=r"two bodies are called comm\.small_things"):
        spmd(2)(small_things)
