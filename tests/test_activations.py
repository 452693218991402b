"""Do steps keep their activations within a budget, with the bits of steps that have no budget?"""

import itertools
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neocpu.cli.together.command import names_of
from neocpu.core.errors import ConfigError, StorageError, TrainingError
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.plan.activations import choose as choosing
from neocpu.plan.activations.choose import (
    ALONE,
    FORWARD_FIRST,
    NESTED,
    ORDERS,
    choose,
    interleave,
    least,
    order_of,
)
from neocpu.plan.activations.graph import Activation, StepGraph, StepOperation, merged
from neocpu.plan.activations.schedule import (
    REMAKE,
    STALL,
    SWAP,
    ActivationSchedule,
    Speed,
    simulate,
)
from neocpu.tables.storage.device import Device
from neocpu.train.activations import budget, shared
from neocpu.train.activations.away import InFile, InMemory
from neocpu.train.run.together import train_together
from neocpu.train.run.trainer import Trainer
from tests.small_run import config_of
from tests.workers import covered

LAYERS = ("training.epochs=2", "model.bottom=[16,8,4]", "model.top=[12,7,5,1]")


# ---- schedules ----


def toy(chance: random.Random) -> StepGraph:
    """A chain of a few layers, forward and backward."""
    layers = chance.randint(3, 5)
    seconds = [float(chance.choice((1, 2, 5))) for _ in range(layers)]
    operations = [
        *(StepOperation(f"forward {i}", seconds[i]) for i in range(layers)),
        *(StepOperation(f"backward {i}", 2 * seconds[i]) for i in reversed(range(layers))),
    ]
    activations = []
    for i in range(layers):
        uses = {i + 1, 2 * layers - 2 - i, 2 * layers - 1 - i}
        activations.append(
            Activation(
                name=f"x{i}",
                bytes=chance.choice((64, 128, 320, 640)),
                first=i,
                uses=tuple(sorted(uses)),
                moves=chance.random() < 0.9,
                remake=seconds[i] if chance.random() < 0.8 else None,
                sources=(f"x{i - 1}",) if i else (),
            )
        )
    return StepGraph(tuple(operations), tuple(activations))


def ways(activation: Activation) -> list[str | None]:
    """What can become of an activation."""
    moves = (SWAP, STALL) if activation.moves else ()
    return [None, *moves, *((REMAKE,) if activation.remake is not None else ())]


def assert_places_do_not_overlap(schedule: ActivationSchedule) -> None:
    for at in range(len(schedule.graph.operations)):
        taken = sorted(
            (schedule.places[number], activation.bytes)
            for number, activation in enumerate(schedule.graph.activations)
            if schedule.has_memory(number, at)
        )
        for (first, size), (after, _) in itertools.pairwise(taken):
            assert first + size <= after
        assert not taken or sum(taken[-1]) <= schedule.size


def test_the_greedy_choice_is_within_a_tenth_of_all_choices():
    for seed in range(25):
        chance = random.Random(seed)
        graph = toy(chance)
        speed = Speed(chance.choice((20.0, 60.0, 200.0)), chance.choice((20.0, 60.0, 200.0)))
        most, fewest = simulate(graph, {}, speed).size, least(graph, speed).size
        size = fewest + int((most - fewest) * chance.choice((0, 0.3, 0.6)))
        schedule = choose(graph, size, speed)
        assert_places_do_not_overlap(schedule)
        assert schedule.peak <= schedule.size <= size
        names = [activation.name for activation in graph.activations]
        all_choices = itertools.product(*map(ways, graph.activations))
        schedules = (
            simulate(graph, {name: way for name, way in zip(names, choice) if way}, speed)
            for choice in all_choices
        )
        best = min(x.overhead for x in schedules if x.size <= size)
        assert schedule.overhead <= 1.1 * best + 1e-9, seed


def test_a_schedule_by_hand():
    """x leaves while b and c run, a second each way, and y is computed again."""
    operations = tuple(StepOperation(name, 1.0) for name in "abcdef")
    x = Activation("x", 640, 0, (5,))
    y = Activation("y", 64, 1, (2, 4), remake=0.5, sources=("x",))
    graph = StepGraph(operations, (x, y))
    kept = simulate(graph, {}, Speed(640.0, 640.0))
    assert (kept.live, kept.overhead) == ((640, 704, 704, 704, 704, 640), 0)
    swapped = simulate(graph, {"x": SWAP}, Speed(640.0, 640.0))
    # out during b, back during e
    assert swapped.live == (640, 704, 64, 64, 704, 640)
    assert (swapped.stalled, swapped.moved) == (0, 640)
    stalled = simulate(graph, {"x": STALL}, Speed(640.0, 640.0))
    assert (stalled.live, stalled.stalled) == ((640, 64, 64, 64, 64, 640), 2)
    # 4 s to come back leave no operation to be away in: it is waited for
    slow = simulate(graph, {"x": SWAP}, Speed(640.0, 160.0))
    assert (slow.live, slow.stalled) == (stalled.live, 5)
    again = simulate(graph, {"y": REMAKE}, Speed(640.0, 640.0))
    assert (again.live, again.remade) == ((640, 704, 704, 640, 704, 640), 0.5)
    # what y is computed from must be there by then
    both = simulate(graph, {"x": STALL, "y": REMAKE}, Speed(640.0, 640.0))
    assert both.live == (640, 64, 64, 0, 704, 640)


def test_a_budget_that_cannot_be_kept_is_refused():
    graph = toy(random.Random(1))
    fewest = least(graph, Speed(1.0, 1.0)).size
    with pytest.raises(TrainingError, match=r"memory\.activations: .* even with all away"):
        choose(graph, fewest - 1, Speed(1.0, 1.0))


def test_a_deep_model_is_planned_within_so_many_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    simulated = choosing.simulate

    def counted(*arguments: Any) -> Any:
        looks.append(arguments[1])
        return simulated(*arguments)

    monkeypatch.setattr(choosing, "simulate", counted)
    monkeypatch.setattr(choosing, "LOOKS", 300)
    depth = 24
    seconds = [StepOperation(f"{k}", 1e-3) for k in range(2 * depth)]
    chain = [Activation(f"x{k}", 1 << 20, k, (k + 1, 2 * depth - 1 - k)) for k in range(depth)]
    schedule = choosing.choose(StepGraph(tuple(seconds), tuple(chain)), 12 << 20, Speed(1e9, 1e9))
    assert schedule.size <= 12 << 20
    # two for each array that leaves, and those that make it better
    assert len(looks) <= 300 + 2 * depth + 1


# ---- runs ----


def all_away(graph: StepGraph, size: int, speed: Speed) -> ActivationSchedule:
    """All that can be computed again is, and all else that can leaves."""
    choices = {x.name: REMAKE if x.remake else STALL for x in graph.activations if x.moves}
    return simulate(graph, choices, speed)


def fewest_bytes(graph: StepGraph, size: int, speed: Speed) -> ActivationSchedule:
    """The choice at the smallest budget."""
    return choose(graph, least(graph, speed).size, speed)


@pytest.mark.parametrize(
    ("chosen", "ranks", "keys"),
    [
        (all_away, 1, ()),
        (all_away, 2, ("memory.activations_in=ssd", "training.pipeline=off")),
        (fewest_bytes, 1, ("memory.activations_in=ssd", 'model.interaction=["dcnv2","dot"]')),
        (all_away, 2, ("model.interaction=cat", "tables.one.kind=qr", "tables.one.collisions=4")),
        (all_away, 1, ('model.towers={a=["one"],b=["many"]}', "training.on_nonfinite=skip")),
    ],
)
def test_a_budget_changes_no_bit(log, tmp_path, monkeypatch, chosen, ranks, keys):
    """What is freed is filled with NaN: a read of it would show."""
    config = config_of(log, *LAYERS, *keys)
    digest = Trainer(config, None, tmp_path / "whole").run()["digest"]
    monkeypatch.setattr(budget, "choose", chosen)
    config = config_of(log, *LAYERS, *keys, "memory.activations=1")
    worlds = {}

    def run(comm):
        keep = partial(budget.keep_within, spoil=True)
        trainer = Trainer(config, comm, tmp_path / "budget", keep=keep)
        summary = trainer.run()
        worlds[comm.rank] = trainer.world
        return summary

    summary = run_threads(ranks, run)[0]
    assert summary["digest"] == digest
    peaks = []
    for world in worlds.values():
        block = world.step.activations.block
        # the simulator's peak, to the byte
        assert block.counts.peak == block.schedule.peak <= block.schedule.size
        assert block.counts.live == 0
        assert block.counts.moved and (chosen is not all_away or block.counts.remade)
        peaks.append(block.counts.peak)
    assert summary["activations"]["peak"] == max(peaks)


def test_a_run_within_its_budget_says_what_it_took(log, tmp_path):
    whole = config_of(log, *LAYERS, "memory.activations=1_000_000")
    size = Trainer(whole, None, tmp_path / "a").run()["activations"]["block"]
    tight = config_of(log, *LAYERS, f"memory.activations={size * 4 // 5}")
    held = Trainer(tight, None, tmp_path / "b").run()["activations"]
    assert held["peak"] <= held["block"] <= held["budget"] == size * 4 // 5
    assert held["moved"] or held["remade"]
    little = config_of(log, *LAYERS, "memory.activations=1000")
    with pytest.raises(TrainingError, match=r"more than the 1\.00 kB that there are"):
        Trainer(little, None, tmp_path / "c").run()


def test_the_least_that_is_told_is_enough_for_all_ranks(log, tmp_path):
    """Of 16 leaves rank 0 of 3 has five, the last one six."""

    def train(size):
        config = config_of(log, *LAYERS, f"memory.activations={size}")
        run_threads(3, lambda comm: Trainer(config, comm, tmp_path / "run").run())

    with pytest.raises(TrainingError, match="even with all away") as refused:
        train(1000)
    number = re.findall(r"needs ([\d.]+) kB", str(refused.value))[0]
    # two digits are shown
    train(round(float(number) * 1000) + 5)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("tables.one.kind=tt", 'tables of pooling "none"'),
        ("model.precision.format=bf16", "model.precision rounds copies"),
        ("search.supernet=true", "a search, and towers on their nodes"),
        ("parallel.towers=true", "a search, and towers on their nodes"),
    ],
)
def test_models_without_a_plan_are_refused(log, key, words):
    keys = ('model.towers={a=["one"],b=["many"]}',) if "towers" in key else ()
    with pytest.raises(ConfigError, match=f"memory.activations: {words}"):
        config_of(log, *keys, key, "memory.activations=1000")


# ---- several models ----


def at_least(order: str) -> Callable[..., tuple[str, ActivationSchedule]]:
    """The choice at the smallest budget of an order."""

    def choice(graphs, forward, size, speed, orders=ORDERS):
        operations = [len(graph.operations) for graph in graphs]
        graph = merged(graphs, order_of(order, operations, forward))
        return interleave(graphs, forward, least(graph, speed).size, speed, (order,))

    return choice


@pytest.mark.parametrize("order", covered(ORDERS, always=ORDERS[2:]))
def test_models_that_train_together_learn_what_each_learns_alone(log, tmp_path, monkeypatch, order):
    """Of another shape, batch size and number of steps, so one goes on when the other has ended."""
    second = ("training.epochs=3", "training.batch_size=50", "model.interaction=cat")
    configs = [config_of(log, *LAYERS), config_of(log, *second)]
    alone = [
        Trainer(config, None, tmp_path / f"alone{i}").run()["digest"]
        for i, config in enumerate(configs)
    ]
    folders = [tmp_path / "a", tmp_path / "b"]
    monkeypatch.setattr(shared, "interleave", at_least(order))
    summaries = run_threads(2, lambda comm: train_together(configs, comm, folders, spoil=True))
    for of_rank in summaries:
        assert [summary["digest"] for summary in of_rank] == alone
    assert (tmp_path / "b" / "run.json").exists()


def test_orders_of_two_models():
    """Passes of three and two operations, two and one of them forward."""
    orders = {name: "".join(map(str, order_of(name, (3, 2), (2, 1)))) for name in ORDERS}
    assert orders == {ALONE: "00011", FORWARD_FIRST: "00101", NESTED: "00110"}


def test_the_order_of_least_delay_is_taken():
    """One model's array is idle for a second; it takes 4 s to leave, and as long to come back."""
    x = Activation("x", 640, 0, (2,))
    y = Activation("y", 640, 0, (1,))
    short = StepGraph(tuple(StepOperation(name, 1.0) for name in "abc"), (x,))
    long = StepGraph(tuple(StepOperation(name, 5.0) for name in "de"), (y,))
    speed = Speed(160.0, 160.0)
    name, schedule = interleave((short, long), (2, 1), 640, speed)
    assert (name, schedule.overhead) == (ALONE, 0)
    # a b d e c: x is away while y has its memory, and both copies are waited for
    nested = interleave((short, long), (2, 1), 640, speed, (NESTED,))[1]
    assert (nested.choices, nested.peak, nested.stalled) == ({"0: x": STALL}, 640, 8)


def test_models_that_cannot_share_are_refused(log, tmp_path):
    one = config_of(log, "memory.activations=1000")
    for other, words in (
        (config_of(log, "memory.activations=2000"), "memory.activations: 1000 in .* share one"),
        (config_of(log, "training.threads=3"), "training.threads: 0 in .*, but 3 in .* share one"),
        (config_of(log, 'memory.activations_in="ssd"'), "activations_in: 'ddr' in .* share one"),
        (config_of(log, "training.on_nonfinite=roll_back"), "cannot go back"),
        (config_of(log, "tables.one.kind=tt"), 'tables of pooling "none"'),
        (config_of(log, 'training.sync="off"'), "training.sync: models that train together"),
    ):
        with pytest.raises(ConfigError, match=words):
            train_together([one, other], SingleComm(), [tmp_path / "a", tmp_path / "b"])
    with pytest.raises(TrainingError, match="even with all away"):
        train_together([one, one], SingleComm(), [tmp_path / "a", tmp_path / "b"])


def test_names_of_models_that_train_together():
    assert names_of([Path("x/a.toml"), Path("b.toml")]) == ["a", "b"]
    with pytest.raises(ConfigError, match="two configs are called a"):
        names_of([Path("x/a.toml"), Path("a.toml")])
    with pytest.raises(ConfigError, match="two configs or more"):
        names_of([Path("a.toml")])


# ---- places ----


def test_copies_come_back_as_they_were(tmp_path):
    arrays = [np.random.default_rng(i).random((i, 5), np.float32) for i in (3, 1, 7)]
    sizes = {number: array.nbytes for number, array in enumerate(arrays)}
    for away in (InMemory(sizes, Device()), InFile(sizes, Device(), tmp_path)):
        for number, array in enumerate(arrays):
            away.write(number, array)
        for number, array in enumerate(arrays):
            back = np.zeros_like(array)
            away.read(number, back)
            assert back.tobytes() == array.tobytes()
        away.close()
    assert not [*tmp_path.iterdir()]


def test_a_folder_without_room_is_refused(tmp_path):
    with pytest.raises(StorageError, match="No space left"):
        InFile({0: 1 << 60}, Device(), tmp_path)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StorageError, match="activations cannot be kept there"):
        InFile({0: 1}, Device(), file)
