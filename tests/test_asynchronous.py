"""Do clock and centre of asynchronous training keep their rules, and what is refused? Whole runs:
`spmd_asynchronous.py`.
"""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.core.errors import ConfigError, NeocpuError
from neocpu.parallel.rpc.futures import Future
from neocpu.parallel.rpc.progress import Progress
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.asynchronous.clock import StalenessClock
from neocpu.train.asynchronous.roles import RankRoles
from neocpu.train.asynchronous.server import ParameterServer
from neocpu.train.asynchronous.worker import Wiring, Worker
from neocpu.train.config.asynchronous import ANY, AsynchronousKeys
from neocpu.train.run.trainer import Trainer
from neocpu.train.run.trainers import trainer_of
from tests.small_run import config_of, write_log

OFF = 'training.sync="off"'
LOCKSTEP = "training.asynchronous.staleness=0"


def later() -> Future:
    return Future(cast(Progress, SimpleNamespace(tell=lambda: None)), "the others")


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    workers=st.integers(1, 5),
    staleness=st.integers(0, 3),
    order=st.lists(st.integers(0, 4), min_size=1, max_size=80),
    stop=st.integers(0, 60),
)
def test_no_worker_is_further_ahead_than_the_staleness(workers, staleness, order, stop):
    """Workers ask in any order, one when its last step is done; the leads are counted here."""
    last = 6
    clock = StalenessClock(workers, staleness, last, 0, later)
    taken = [0] * workers
    asked: dict[int, Future] = {}
    leads = [0]
    stopped = []
    # in the end everybody goes on for as long as it may
    for turn, worker in enumerate([*order, *(list(range(5)) * (5 * last))]):
        if worker >= workers or worker in stopped:
            continue
        if worker not in asked:
            asked[worker] = clock.begin(worker, taken[worker] + 1, turn == stop)
        if not asked[worker].done():
            continue
        if asked.pop(worker).wait():
            leads.append(taken[worker] - min(taken))
            taken[worker] += 1
        else:
            stopped.append(worker)
    assert max(leads) <= staleness
    # nobody waits for ever, and all end after one step
    assert len(stopped) == workers and len(set(taken)) == 1
    assert taken[0] == clock.begun <= last


def test_a_stop_lets_all_take_the_last_step_that_one_has_begun() -> None:
    clock = StalenessClock(2, ANY, 10, 3, later)
    assert clock.lead == 0
    for worker, step, stop, goes_on in (
        *((0, 4, False, True), (0, 5, False, True), (0, 6, True, False)),
        *((1, 4, False, True), (1, 5, False, True), (1, 6, False, False)),
    ):
        assert clock.begin(worker, step, stop).wait() is goes_on
    assert (clock.begun, clock.lead) == (5, 1)


def test_trainers_and_the_centre_move_towards_each_other_as_the_formulas_say() -> None:
    rng = np.random.default_rng(3)
    centre = rng.standard_normal(11).astype(np.float32)
    roles = RankRoles(3, AsynchronousKeys(servers=2, threads=3, staleness=-1, elastic_rate=0.25))
    config = SimpleNamespace(training=SimpleNamespace(leaves=16))
    servers = [
        ParameterServer(
            cast(
                Any,
                SimpleNamespace(
                    config=config,
                    comm=SimpleNamespace(rank=rank),
                    plan=SimpleNamespace(local=lambda rank: ()),
                    model=SimpleNamespace(flat=centre.copy()),
                ),
            ),
            roles,
            later,
        )
        for rank in roles.servers
    ]
    cuts = roles.cuts(11)
    assert cuts.tolist() == [0, 0, 5, 11]
    expected = centre.astype(np.float64)
    for worker in (0, 2, 1, 1, 0):
        own = rng.standard_normal(11).astype(np.float32)
        moves = [
            server.functions.of("elastic").function(worker, 1, own[lo:hi])
            for server, lo, hi in zip(servers, cuts[1:], cuts[2:])
        ]
        difference = own - expected
        expected += 0.25 * difference
        assert np.allclose(np.concatenate(cast(Any, moves)), 0.25 * difference, atol=1e-6)
    held = [server._world.model.flat for server in servers]
    assert np.allclose(np.concatenate([held[0][:5], held[1][5:]]), expected, atol=1e-6)


@pytest.mark.parametrize(("threads", "nodes"), [(1, 2), (6, 0)])
def test_a_trainer_takes_steps_of_its_own_and_meets_the_centre_now_and_then(threads, nodes):
    rng = np.random.default_rng(4)
    keys = AsynchronousKeys(servers=1, threads=threads, staleness=-1, elastic_every=3)
    flat = rng.standard_normal(11).astype(np.float32)
    expected = flat.astype(np.float64)
    model = SimpleNamespace(flat=flat, layout=SimpleNamespace(views=lambda flat: [flat]))
    steps, moves = [], []

    def stepped(gradient: Any, step: int) -> None:
        flat[:] -= gradient
        steps.append(step)

    def called(rank: int, name: str, *arguments: Any) -> Any:
        assert (rank, name, arguments[:2]) == (3, "elastic", (0, 3))
        np.testing.assert_allclose(arguments[2], expected[2:9], atol=1e-6)
        moves.append(rng.standard_normal(7).astype(np.float32))
        return SimpleNamespace(wait=lambda: moves[-1])

    # 16 leaves of 3 workers are two nodes of the first one; of 18 it has none
    wiring = Wiring(RankRoles(4, keys), 16, (), [(3, slice(2, 9))])
    trainer = Worker(0, wiring, cast(Any, model), cast(Any, SimpleNamespace(step=stepped)))
    assert len(trainer._gradients) == nodes
    for step in range(1, 5):
        trainer._gradients[:] = rng.standard_normal((nodes, 11))
        expected -= trainer._gradients.sum(axis=0)
        trainer._train_dense(cast(Any, SimpleNamespace(rpc_async=called)), step)
        if step == 3:
            expected[2:9] -= moves[0]
        np.testing.assert_allclose(flat, expected, atol=1e-5)
    assert (len(moves), steps) == (1, [1, 2, 3, 4] if nodes else [])


def test_a_run_goes_on_where_it_was_ended_and_measures_in_between(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.h5")
    whole = Trainer(config_of(log, "training.epochs=2"), SingleComm(), tmp_path / "whole").run()
    more = ("training.epochs=2", OFF, LOCKSTEP, "eval.every_steps=2", "checkpoint.every_steps=3")
    for steps, resume in ((4, False), (0, True)):
        config = config_of(log, *more, f'data.valid="{log}"', f"training.steps={steps}")

        def train(comm: Comm, config: Any = config, resume: bool = resume) -> dict[str, Any]:
            return trainer_of(config)(config, comm, tmp_path / "out", resume=resume).run()

        summary = run_threads(2, train, timeout=60)[0]
    assert summary["digest"] == whole["digest"]
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert sum('"valid"' in line for line in lines) == 3


def test_what_fails_on_one_thread_ends_all_with_its_sentence(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.h5", spoil=140)
    config = config_of(log, OFF, "training.asynchronous.threads=2")

    def train(comm: Comm) -> None:
        with pytest.raises(NeocpuError, match=r"^step 1: the loss of sample 58 of epoch 0 is nan"):
            trainer_of(config)(config, comm, tmp_path / "out").run()

    run_threads(2, train, timeout=60)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("worker ")]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('parallel.plan="row_wise"', "servers hold whole tables"),
        ('memory.placement="hbm_over_ddr"', "memory.placement: servers keep their rows in memory"),
        ("optimizer.shampoo.every=5", "optimizer.shampoo.every: it needs all ranks in each step"),
        ("optimizer.clip_norm=1.0", "optimizer.clip_norm: it needs all ranks"),
        ('training.on_nonfinite="skip"', 'only "stop" is there'),
        ('tables.one.kind="cafe"', "tables.one: rows that move in training"),
        ('tables.one.kind="tt"', r"tables\.one.*not pooled"),
        ('wires.forward="fp16"', "wires.forward: calls carry numbers as they are"),
        ("training.asynchronous.elastic_every=4", "all threads train one model"),
        ("training.asynchronous.elastic_rate=0.0", "elastic_rate: 0.0 must be above 0"),
        ('training.sync="on"', 'staleness: 0 has no effect while training.sync is "on"'),
    ],
)
def test_what_needs_common_steps_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(Path("log.h5"), OFF, LOCKSTEP, override)


def test_a_rank_has_to_train(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.h5")
    config = config_of(log, OFF, "training.asynchronous.servers=1")
    with pytest.raises(ConfigError, match=r"servers: 1 of 1 rank\(s\) leave none that trains"):
        trainer_of(config)(config, SingleComm(), tmp_path / "out").run()
