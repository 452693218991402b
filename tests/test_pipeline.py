"""Does a step keep its schedule, whatever overlaps, and reach the bits of the serial one?"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from promise_cases import FAMILIES, MAIN, MEMORIES, MIXED, write_data
from small_run import CONFIG

from neocpu.core.errors import IndexRangeError
from neocpu.core.jagged import KJT
from neocpu.core.stages import DIRECTIONS, EXCHANGE, PIPELINES, STEP, check, pipelined
from neocpu.core.trees import rank_samples
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.started import Done, Pause, Started, Stream
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.specs.specs import bags
from neocpu.train.before.warmup import MiniBatch
from neocpu.train.config import config as configs
from neocpu.train.run.trainer import Trainer
from neocpu.train.step.pipeline import Pipeline, ahead
from neocpu.train.step.world import build

# ---- the loop over the schedule, on toys ----

WHOLE = (*STEP, *DIRECTIONS)
DEEP = ahead(prefetch=2, known=3)


@dataclass
class Log:
    """What stages did, as (event, stage, batch); an exchange begins and is waited for."""

    events: list[tuple[str, str, int]] = field(default_factory=list)

    def work(self, name: str, exchange: bool):
        def run(batch: int):
            self.events.append(("begin", name, batch))
            if not exchange:
                return None
            return Waited(self, name, batch)

        return run

    def place(self, event: str, name: str, batch: int) -> int:
        return self.events.index((event, name, batch))


@dataclass
class Waited:
    """An exchange that is over once it was waited for."""

    log: Log
    name: str
    batch: int

    def wait(self) -> None:
        self.log.events.append(("wait", self.name, self.batch))


def run_toys(pipeline: str, early: dict[str, int], batches: int = 6) -> Log:
    log = Log()
    stages = pipelined(pipeline, WHOLE, early)
    work = {stage.name: log.work(stage.name, stage.kind == EXCHANGE) for stage in WHOLE[1:]}
    line = Pipeline(stages, work, iter(range(batches)), {**PIPELINES[pipeline], **early})
    assert [line.step() for _ in range(batches)] == list(range(batches))
    assert line.step() is None
    line.close()
    return log


@pytest.mark.parametrize("early", [{}, DEEP], ids=["plain", "deep"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_stage_begins_when_what_it_needs_is_done(pipeline: str, early: dict[str, int]) -> None:
    batches = 6
    log = run_toys(pipeline, early, batches)
    stages = {stage.name: stage for stage in pipelined(pipeline, WHOLE, early)}
    check(tuple(stages.values()))
    done = {name: "wait" if stage.kind == EXCHANGE else "begin" for name, stage in stages.items()}
    for stage in WHOLE[1:]:
        for batch in range(batches):
            # once, and what it needs before it
            assert log.events.count(("begin", stage.name, batch)) == 1
            begun = log.place("begin", stage.name, batch)
            needs = [(name, batch) for name in stages[stage.name].needs]
            needs += [(name, batch - back) for name, back in stages[stage.name].earlier]
            for name, number in needs:
                if name != "read" and number >= 0:
                    assert log.place(done[name], name, number) < begun


def test_exchanges_start_early_and_are_waited_for_late() -> None:
    serial = run_toys("off", {}).events
    for position, (event, name, batch) in enumerate(serial):
        if event == "wait":
            assert serial[position - 1] == ("begin", name, batch)
    log = run_toys("input", {})
    assert log.place("wait", "output", 2) < log.place("begin", "input", 3)
    assert log.place("begin", "input", 3) < log.place("begin", "top_forward", 2)
    assert log.place("begin", "lower_update", 2) < log.place("wait", "input", 3)
    full = run_toys("full", {})
    for exchange, meanwhile in {
        "output": "bottom_forward",
        "upper_sums": "lower_backward",
        "gradient": "bottom_backward",
        "replicas": "bottom_backward",
        "lower_sums": "update",
        "upper_directions": "lower_update",
    }.items():
        begun = full.place("begin", exchange, 2)
        assert begun < full.place("begin", meanwhile, 2) < full.place("wait", exchange, 2)


def test_tables_in_slow_memory_run_as_far_ahead_as_they_must() -> None:
    for pipeline in PIPELINES:
        log = run_toys(pipeline, DEEP)
        step = [log.place("begin", "lookup", batch) for batch in range(6)]
        assert step[0] < log.place("begin", "index", 4) < step[1]
        assert step[0] < log.place("begin", "prefetch", 3) < step[1]
        assert log.place("begin", "index", 4) < log.place("begin", "prefetch", 3)
        assert step[0] < log.place("begin", "input", 4) < step[1]


def test_lookups_arrive_a_step_before_they_are_known() -> None:
    assert not any(ahead(0, 0).values())
    assert ahead(2, 0) == dict.fromkeys(("read", "copy", "input"), 3) | {"index": 2, "prefetch": 2}
    assert ahead(1, 4) == dict.fromkeys(("read", "copy", "input"), 5) | {"index": 4, "prefetch": 1}


def test_an_error_waits_for_the_step_of_its_batch() -> None:
    def start(batch: int) -> None:
        if batch == 2:
            raise IndexRangeError("batch 2")

    line = Pipeline(pipelined("full"), {"input": start}, iter(range(4)), PIPELINES["full"])
    assert line.step() == 0
    assert line.step() == 1  # here the exchange of batch 2 began
    with pytest.raises(IndexRangeError, match="batch 2"):
        line.step()
    stopped = Pipeline(pipelined("full"), {"input": start}, iter(range(4)), PIPELINES["full"])
    stopped.step()
    stopped.step()
    stopped.close()  # whoever takes up batch 2 will meet its error


def test_exchanges_of_a_stream_come_one_after_the_other() -> None:
    events: list[str] = []

    def steps(name: str, *requests: object) -> Iterator[object]:
        for number, request in enumerate(requests):
            events.append(f"{name}{number}")
            yield request
        return name

    stream = Stream()
    first = Started(steps("a", Done(), Pause(), Done()), stream)
    second = Started(steps("b", Done()), stream)
    stream.poll()
    assert events == ["a0", "a1"] and not first.over  # polling stops at a pause
    assert second.wait() == "b" and first.wait() == "a"
    assert events == ["a0", "a1", "a2", "b0"]

    def bad() -> Iterator[object]:
        yield Done()
        raise IndexRangeError("row")

    failing = Started(bad(), stream)
    last = Started(steps("c", Done()), stream)
    stream.poll()
    assert last.wait() == "c"
    for _ in range(2):
        with pytest.raises(IndexRangeError, match="row"):
            failing.wait()


# ---- runs ----


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipeline")
    write_data(path)
    return path


def digest_of(folder: Path, out: str, ranks: int, *sets: str) -> str:
    """The digest of a run of the promise's job under its mixed plan."""
    text = FAMILIES[MAIN].toml(folder)
    plan = ", ".join(f'"{name}" = "{scheme}"' for name, scheme in MIXED.items())
    settings = configs.loads(text, "job", [f"parallel.plan={{ {plan} }}", *sets])
    path = folder / f"{out}-{ranks}"

    def body(comm: Comm) -> None:
        Trainer(settings, comm, path).run()

    if ranks == 1:
        body(SingleComm())
    else:
        run_threads(ranks, body, ranks_per_node=2)
    return str(json.loads((path / "run.json").read_text())["digest"])


def test_all_kinds_reach_one_digest(folder: Path) -> None:
    digests = {
        digest_of(
            folder,
            f"{kind}-{memory}",
            ranks,
            f"training.pipeline={kind}",
            *sets,
            "training.bucket_bytes=0",
        )
        for kind in PIPELINES
        for ranks, memory, sets in (
            (1, "whole", ()),
            (3, "whole", ("eval.every_steps=2", "parallel.route=two_level")),
            (2, "levels", MEMORIES["levels"]),
        )
    }
    assert len(digests) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_bad_row_of_the_next_batch_is_named_in_its_own_step(ranks: int) -> None:
    settings = configs.loads(CONFIG + 'pipeline = "full"\n')

    def body(comm: Comm) -> tuple[str, bytes]:
        plan = place(settings.tables, ["row_wise"] * 2, comm.size, comm.size)
        world = build(settings, comm, plan, 3)
        good = [samples_of(comm, step, settings) for step in range(3)]
        values = good[2].sparse.values.copy()
        if comm.rank == comm.size - 1:
            values[-1] = 10**6
        bad = replace(good[2], sparse=replace(good[2].sparse, values=values))
        steps = world.step.over(iter([*good[:2], bad]), 1)
        steps.next()
        steps.next()  # meanwhile the bad batch's lookups were refused
        trained = world.model.flat.tobytes()
        world.step.forward(good[0])  # an evaluation in between
        with pytest.raises(IndexRangeError, match="row 1000000 is outside") as caught:
            steps.next()
        assert "table 'many'" in str(caught.value)
        assert world.model.flat.tobytes() == trained  # nothing of its step was done
        world.step(good[2], 3)  # and all queues are free
        return str(caught.value), world.model.flat.tobytes()

    results = [body(SingleComm())] if ranks == 1 else run_threads(ranks, body)
    assert len(set(results)) == 1


def samples_of(comm: Comm, step: int, settings: configs.Config) -> MiniBatch:
    """A rank's samples of a made-up batch of 8."""
    keys = tuple(bag.key for bag in bags(settings.tables))
    first, last = rank_samples(comm.rank, comm.size, 8, settings.training.leaves)
    random = np.random.default_rng([step, comm.rank])
    lengths = np.full((len(keys), last - first), 2, np.int32)
    rows = random.integers(0, 30, lengths.sum())
    dense = random.standard_normal((last - first, 3)).astype(np.float32)
    return MiniBatch(dense, KJT(keys, lengths, rows), np.ones(last - first, np.float32), 8)
