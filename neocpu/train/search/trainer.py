"""How does a search go from a config to a smaller one? As a run of training of the supernet.

    step      1 ... warm-up     weights, on split A, with samples of m
    then      every few steps   also theta, on split B (`decide.py`)
    at last   the choices are taken, and written as a plain config (`results.py`)

All that a run can do, a search can: ranks, plans, tiers, checkpoints, `--resume`, signals. Its
measurements of the valid and test splits are those of the model that would be taken now, with the
weights that all models share.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.loader import Batch
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.embedding.memory_plan import MemoryPlan
from neocpu.train.before.beginning import Beginning
from neocpu.train.before.datasets import Splits
from neocpu.train.config.config import Config
from neocpu.train.run.measurements import WINDOW
from neocpu.train.run.recovery import Recovery
from neocpu.train.run.trainer import Trainer
from neocpu.train.search.cost import CostInputs, ModelCost, cost_of, hard
from neocpu.train.search.decide import Deciding, Temper
from neocpu.train.search.draws import gumbel
from neocpu.train.search.results import (
    HISTORY,
    decision_lines,
    decisions_record,
    found_text,
    keep_history,
    write_found,
    write_lines,
)
from neocpu.train.search.space import Space, plain_config, space_of, supernet_config
from neocpu.train.search.supernet import Supernet
from neocpu.train.step.pipeline import Steps
from neocpu.train.step.schedule import BatchSchedule
from neocpu.train.step.world import World, build
from neocpu.train.watch.metrics import Metrics, Window

FOREVER = 1 << 40  # epochs of split B
# where the config does not say
WARM_UP = 5  # of so many steps one is warm-up
COOLINGS = 30  # of a whole run


class SearchTrainer(Trainer):
    """A search; arguments as of `Trainer`.

    Attribute: space, the models it chooses from.

    Raises ConfigError: a section `search` that makes no space (see `space.space_of`).
    """

    def __init__(self, config: Config, comm: Comm | None, out: str | Path, **options: Any) -> None:
        super().__init__(config, comm, out, **options)
        self.space: Space = space_of(config)
        self._plain = config  # that the found config is written from
        self._opened: Splits | None = None  # before the train samples are cut
        self._second: Dataset | None = None  # split B
        self._second_schedule: BatchSchedule | None = None
        self._second_batches: Iterator[Batch] = iter(())
        self._deciding: Deciding | None = None
        self._cost: ModelCost | None = None
        self._theta_window = Window(WINDOW)

    # ---- before the first step ----

    def _open(self, beginning: Beginning) -> Splits:
        """Open the data, and cut the train samples in two."""
        opened = self._opened = super()._open(beginning)
        plain = self._plain = opened.config
        whole = opened.datasets["train"]
        cut = min(max(round(plain.search.split * whole.rows), 1), whole.rows - 1)
        self._second = whole.part(cut, whole.rows)
        first = {**opened.datasets, "train": whole.part(0, cut)}
        steps = self._schedule(Splits(plain, self.comm, first)).total_steps
        warmup_steps = plain.search.warmup_steps or max(steps // WARM_UP, 1)
        decay_steps = plain.search.decay_steps or max(steps // COOLINGS, 1)
        self.config = supernet_config(
            plain, self.space, warmup_steps=warmup_steps, decay_steps=decay_steps
        )
        splits = Splits(self.config, self.comm, first)
        if opened.vocabularies:
            splits.use_vocabularies(opened.vocabularies)
        return splits

    def _build(self, plan: Plan, splits: Splits, huge: bool, memory: MemoryPlan) -> World:
        """As of any run, with the supernet as the model."""
        config = self.config
        dense_features = splits.dense_features
        largest = plain_config(self._plain, self.space, self.space.largest)
        layout = largest.layout(dense_features)
        model = Supernet(self.space, layout, config.training.seed)
        world = build(
            config, self.comm, plan, dense_features, huge=huge, memory=memory, model=model
        )
        self._cost = cost_of(
            config.search.cost, self.space, self._cost_inputs(dense_features), self.comm
        )
        highest = self._cost.of(self.space.largest, self.space)
        self._deciding = Deciding(world, self._cost, config.search.cost_weight / highest)
        assert self._second is not None
        loader = splits.loader_of(self._second, config.data.shuffle, splits.vocabularies or None)
        schedule = self._second_schedule = BatchSchedule(loader, FOREVER, 0)
        self._second_batches = schedule.batches(0)
        self.report.tell(
            f"{self.space.models:,} models of {len(self.space.decisions)} decisions; the largest "
            f"costs {highest:,.6g} {self._cost.unit}"
        )
        return world

    def _cost_inputs(self, dense_features: int) -> CostInputs:
        """What costs are made of. Collective."""
        opened = self._opened
        assert opened is not None
        # only the planner asks for them, and they cost a look at the data
        distinct = opened.distinct_rows() if self.config.search.cost == "seconds" else {}
        return CostInputs(self._plain, dense_features, opened.pooling_factors(), distinct)

    # ---- steps ----

    @property
    def _thetas_taken(self) -> int:
        """Steps on theta until now."""
        search = self.config.search
        return max(self.steps_taken - search.warmup_steps, 0) // search.every

    @property
    def _temperature(self) -> float:
        search = self.config.search
        temper = Temper(search.temperature, search.decay, search.decay_steps)
        return temper.at(max(self.steps_taken - 1, 0))

    def _go_on(self, world: World, recovery: Recovery, schedule: BatchSchedule) -> None:
        super()._go_on(world, recovery, schedule)
        assert self._second_schedule is not None
        # split B goes on where it was, as split A does
        self._second_batches = self._second_schedule.batches(self._thetas_taken)
        self._theta_window = Window(WINDOW)
        if self.comm.rank == 0:
            # steps after the checkpoint are taken again, and would be there twice
            keep_history(self.out, self.steps_taken)

    def _before_step(self, world: World, recovery: Recovery) -> None:
        """Sample the model that the next step trains; its draw is even, those of theta are odd."""
        assert self._deciding is not None
        draw = 2 * self.steps_taken
        self._deciding.model.choose(self._deciding.sampled(draw, self._temperature))

    def _step(self, steps: Steps) -> tuple[int, int]:
        """A step on weights, and one on theta where it is due."""
        before = self._thetas_taken
        taken = super()._step(steps)
        if self._thetas_taken > before:
            assert self._deciding is not None
            batch = next(self._second_batches)
            number = self._thetas_taken
            draw = 2 * self.steps_taken + 1
            outcome = self._deciding.step(batch, number, draw, self._temperature)
            self._theta_window.add(outcome.prediction, outcome.labels, outcome.loss)
        return taken

    def _log_training(self, world: World) -> None:
        super()._log_training(world)
        self._note()

    def _note(self) -> None:
        """A line of the history. Collective."""
        assert self._deciding is not None and self._cost is not None
        loss = self.config.model.loss
        measured = self._theta_window.metrics(loss, self.comm).to_dict()
        probabilities = self._deciding.probabilities()
        line = {
            "step": self.steps_taken,
            "temperature": self._temperature,
            "loss": measured.get("mse" if loss == "mse" else "logloss"),
            "expected_cost": self._cost.expected(probabilities),
            "probabilities": {name: p.tolist() for name, p in probabilities.items()},
        }
        if self.comm.rank == 0:
            try:
                write_lines(self.out / HISTORY, [line])
            except OSError as error:  # which is no reason to end a search
                self.report.tell(f"{HISTORY} cannot be written: {error.strerror}")

    def _measure(self, world: World, splits: Splits, names: tuple[str, ...]) -> dict[str, Metrics]:
        """As of any run; of the model that would be taken now."""
        assert self._deciding is not None
        # `_before_step` samples another model before the next step
        self._deciding.model.choose(hard(self.choice(), self.space))
        return super()._measure(world, splits, names)

    # ---- the choice ----

    def choice(self) -> dict[str, int]:
        """What would be taken now, by `search.pick`."""
        assert self._deciding is not None
        seed = self.config.training.seed
        chosen = {}
        for decision in self.space.decisions:
            scores = self._deciding.model.theta[decision.name].astype("float64")
            if self.config.search.pick == "sample":
                # the largest of these is a sample of softmax(theta); no step has draw 0 of theta
                scores = scores + gumbel(seed, f"{decision.name} taken", scores.size, 0)
            chosen[decision.name] = decision.choices[int(scores.argmax())]
        return chosen

    def _finish(self, world: World, splits: Splits, recovery: Recovery) -> dict[str, object]:
        """Measure, save, take the choices and write what was found."""
        assert self._deciding is not None and self._cost is not None
        self._note()
        summary = super()._finish(world, splits, recovery)
        chosen = self.choice()
        record = decisions_record(self.space, self._cost, self._deciding.probabilities(), chosen)
        if self.comm.rank == 0:
            write_found(self.out, found_text(self._plain, self.space, chosen), record)
        return {**summary, "search": record, "lines": decision_lines(record)}
