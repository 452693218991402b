"""Do ranks on threads fail together, in time, and with the error that was first?"""

import time

import numpy as np
import pytest

from neocpu.core.errors import DataError, EnvironmentProblem
from neocpu.parallel.transport import threads
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.threads import PeerFailed, run_threads


def test_results_come_in_rank_order_with_nodes_as_asked() -> None:
    assert run_threads(
        5, lambda comm: (comm.rank, comm.size, comm.ranks_per_node), ranks_per_node=2
    ) == [(rank, 5, 2) for rank in range(5)]
    assert run_threads(3, lambda comm: comm.nodes.tolist()) == [[0, 0, 0]] * 3


@pytest.mark.parametrize("in_turn", [False, True])
def test_a_failing_rank_ends_all_at_once(in_turn: bool) -> None:
    ended: list[str] = []

    def body(comm: Comm) -> None:
        if comm.rank == 2:
            raise DataError("rank 2 is unhappy")
        try:
            comm.barrier()
        except PeerFailed as error:
            ended.append(str(error))
            raise

    begun = time.monotonic()
    with pytest.raises(DataError, match="rank 2 is unhappy"):
        run_threads(4, body, in_turn=in_turn)
    assert time.monotonic() - begun < 5
    assert len(ended) == 3
    assert all("rank 2 is unhappy" in words for words in ended)


def test_a_missing_rank_is_named_after_the_timeout() -> None:
    with pytest.raises(TimeoutError, match=r"ranks \[1\] did not call barrier within 0.2 s"):
        run_threads(3, lambda comm: comm.barrier() if comm.rank != 1 else None, timeout=0.2)


def test_different_verbs_are_an_error_and_no_hang() -> None:
    def body(comm: Comm) -> None:
        if comm.rank:
            comm.barrier()
        else:
            comm.largest(3)

    with pytest.raises(RuntimeError, match="where another rank calls"):
        run_threads(2, body)


def test_counts_that_do_not_match_are_an_error() -> None:
    def body(comm: Comm) -> None:
        n = 1 + comm.rank
        comm.alltoallv(np.zeros(2 * n, np.int32), [n, n], np.zeros(2 * n, np.int32), [n, n])

    with pytest.raises(
        RuntimeError, match=r"rank 0 sends 1 int32 to rank 1, which expects 2 int32"
    ):
        run_threads(2, body)


def test_taking_turns_lets_one_rank_work_at_a_time() -> None:
    working: list[int] = []

    def body(comm: Comm) -> int:
        most = 0
        for _ in range(5):
            working.append(comm.rank)
            time.sleep(0.002)
            most = max(most, len(working))
            working.remove(comm.rank)
            comm.barrier()
        return most

    assert run_threads(4, body, in_turn=True) == [1] * 4


def test_abort_ends_everybody() -> None:
    def body(comm: Comm) -> None:
        if comm.rank:
            comm.abort(3)
        comm.barrier()

    with pytest.raises(SystemExit):
        run_threads(2, body)


def test_an_unsafe_threading_layer_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "threading_layer", lambda: "workqueue")
    with pytest.raises(EnvironmentProblem, match="omp or tbb"):
        run_threads(2, lambda comm: None)
    assert run_threads(2, lambda comm: comm.rank, in_turn=True) == [0, 1]
