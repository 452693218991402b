"""Are slower links as slow as they are set, by the model and in a run? Do they change no bit?"""

import time

import numpy as np
import pytest
from small_run import config_of, write_log

from neocpu.core.errors import ConfigError
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.sent import Times
from neocpu.parallel.transport.threads import run_threads
from neocpu.parallel.transport.throttle import LinkSpeed, LinkTime, Throttle, link_speeds

INSIDE = {"same_node": LinkSpeed(100.0, 0.5)}
BOTH = INSIDE | {"other_node": LinkSpeed(10.0, 2.0)}
# of rank 0 of 4, two to a node
LINKS = np.array([0, 1, 2, 2])


class FakeClock:
    """A clock that stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def sizes(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_a_call_takes_latency_for_each_peer_and_bytes_by_bandwidth() -> None:
    clock = FakeClock()
    throttle = Throttle(BOTH, clock)
    # what a rank sends itself costs nothing, a peer without bytes gets no message
    assert throttle.start(LINKS, sizes(999, 0, 0, 0), sizes(999, 0, 0, 0)) == LinkTime(0.0, 0.0)
    assert throttle.start(LINKS, sizes(9, 200, 0, 0), sizes(9, 0, 0, 0)) == LinkTime(2.5, 2.5)
    # both links at once; both directions of a link at once, the longer one counts
    clock.now = 10.0
    call = throttle.start(LINKS, sizes(0, 50, 20, 10), sizes(0, 100, 5, 0))
    assert call == LinkTime(10 + 2 * 2.0 + 3.0, 2 * 2.0 + 3.0)


def test_calls_wait_for_their_link_and_only_for_theirs() -> None:
    clock = FakeClock()
    throttle = Throttle(BOTH, clock)
    assert throttle.start(LINKS, sizes(0, 50, 0, 0), sizes(0, 0, 0, 0)).done == 1.0
    clock.now = 0.5
    assert throttle.start(LINKS, sizes(0, 50, 0, 0), sizes(0, 0, 0, 0)) == LinkTime(2.0, 1.0)
    assert throttle.start(LINKS, sizes(0, 0, 0, 10), sizes(0, 0, 0, 0)).done == 0.5 + 2 + 1
    clock.now = 9.0
    assert throttle.start(LINKS, sizes(0, 0, 0, 0), sizes(0, 50, 0, 0)).done == 10.0


def test_links_without_a_speed_are_not_slowed_down() -> None:
    assert link_speeds(0.0, 0.0) == {}
    assert link_speeds({"other_node": 1e6}, {}) == {"other_node": LinkSpeed(1e6, 0.0)}
    both = link_speeds(1e9, {"same_node": 1e-6})
    assert both == {"same_node": LinkSpeed(1e9, 1e-6), "other_node": LinkSpeed(1e9, 0.0)}
    throttle = Throttle({"other_node": LinkSpeed(0.0, 1.0)}, FakeClock())
    assert throttle.start(LINKS, sizes(0, 5, 0, 0), sizes(0, 0, 0, 0)).done == 0.0
    assert throttle.start(LINKS, sizes(0, 0, 5, 0), sizes(0, 0, 0, 0)).done == 1.0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("link_bandwidth={same_nod=1e9}", "'same_nod' is no class of links; write same_node or"),
        ("link_bandwidth={same_rank=1e9}", "'same_rank' is no class"),
        ("link_bandwidth=12", "12 bytes a second for same_node are too few"),
        ("link_bandwidth=-1", "must be a finite number, at least 0"),
        ("link_bandwidth.other_node=inf", "link_bandwidth.other_node: inf must be a finite"),
        ("link_latency=nan", "must be a finite number"),
        ("link_latency=60", "60 seconds for same_node are too many"),
        ("link_latency=fast", "expected a number, got 'fast'"),
        ("link_latency={same_node=true}", "link_latency.same_node: expected a number, got True"),
    ],
)
def test_numbers_without_sense_are_refused(tmp_path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        config_of(tmp_path / "log.h5", f"parallel.{override}")
    assert "parallel.link_" in str(error.value)


def test_every_verb_is_over_no_earlier_than_its_link_and_brings_the_same() -> None:
    speed = LinkSpeed(1e6, 1e-3)

    def body(comm: Comm) -> Times:
        times: Times = {}
        comm.sent.throttle = Throttle({"same_node": speed})
        queue = comm.queue("dense")
        with comm.sent.counting(times):
            send = np.full(2000, comm.rank, np.uint8)
            recv = np.empty(2000, np.uint8)
            halves = sizes(1000, 1000)
            start = time.perf_counter()
            first = comm.start_alltoallv(send, halves, recv, halves, "pooled output")
            # one link below both queues: the second call waits for the first
            both = np.empty(2 * 2000, np.uint8)
            queue.allgatherv(send, both, sizes(2000, 2000), "dense gather")
            assert time.perf_counter() - start >= 0.002 + 0.003
            first.wait()
            first.wait()
            assert recv.tolist() == [0] * 1000 + [1] * 1000 and both[-1] == 1
            start = time.perf_counter()
            assert comm.alltoall(np.full((2, 1), comm.rank)).tolist() == [[0], [1]]
            assert time.perf_counter() - start >= 0.001
        comm.sent.throttle = None
        return times

    for times in run_threads(2, body):
        gather = times["dense", "dense gather"]
        assert gather.calls == 1 and gather.bytes == 2000 and gather.alone == pytest.approx(0.003)
        assert gather.under_way >= 0.003
        pooled = times["exchange", "pooled output"]
        # over on its link while the rank waited for the other call: hidden
        assert pooled.calls == 1 and pooled.alone == pytest.approx(0.002)
        assert pooled.exposed < pooled.under_way
        assert times["exchange", ""].calls == 1


def test_a_run_on_slow_links_learns_the_same_and_reports_them(tmp_path) -> None:
    from neocpu.train.run.trainer import Trainer
    from neocpu.train.watch.exchange_times import exchange_lines

    log = write_log(tmp_path / "log.h5")
    summaries = []
    for place, overrides in enumerate(((), ("parallel.link_latency={other_node=0.001}",))):
        config = config_of(
            log, "training.steps=4", "training.epochs=2", "parallel.plan=row_wise", *overrides
        )
        folder = tmp_path / str(place)

        def body(comm: Comm, config=config, folder=folder) -> dict:
            return Trainer(config, comm, folder).run()

        summaries.append(run_threads(2, body, ranks_per_node=1)[0])
    free, slow = summaries
    assert free["digest"] == slow["digest"]
    assert free["exchanges"]["steps"] == slow["exchanges"]["steps"] == 3
    report = slow["exchanges"]
    lengths = next(e for e in report["collectives"] if e["name"] == "input lengths")
    # a call of each rank is one message to the other
    assert lengths["alone"]["mean"] == pytest.approx(0.001 * lengths["calls"] / 2)
    assert lengths["calls"] > 0
    assert {queue["queue"] for queue in report["queues"]} == {"input", "exchange", "dense"}
    text = "\n".join(exchange_lines(report))
    assert "alone" in text and "pooled" in text and "stop signal" in text
    assert "under way" in "\n".join(exchange_lines(free["exchanges"]))
