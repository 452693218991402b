"""What do features learn before there are towers? A brief run of the flat model tells.

The probe of the tower partitioner (`plan/towers/towers.py`): the config's model without towers, in
one process, trained for some steps; then the pooled vectors of some samples.
"""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from neocpu.core.types import Floats, Tell
from neocpu.parallel.transport.comm import SingleComm
from neocpu.tables.specs.specs import bags
from neocpu.train.before.datasets import open_splits
from neocpu.train.before.plans import make_plan, memory_plan
from neocpu.train.before.warmup import warm_up
from neocpu.train.config.config import Config
from neocpu.train.step.schedule import BatchSchedule
from neocpu.train.step.world import World, build

SAMPLES = 4096  # whose vectors are compared


def flat(config: Config) -> Config:
    """The config without towers, in memory and in this process."""
    return replace(
        config,
        model=replace(config.model, towers={}),
        optimizer=replace(config.optimizer, groups={}),  # of parameters that are perhaps not there
        parallel=replace(config.parallel, plan="table_wise", towers=False),
        memory=replace(config.memory, placement="hbm"),
        training=replace(config.training, epochs=max(config.training.epochs, 1), steps=0),
    )


def learned_vectors(config: Config, steps: int, folder: Path, tell: Tell) -> dict[str, Floats]:
    """Key -> its pooled vectors f32[b, D] of the first samples after so many steps of training.

    steps : at most those of one pass over the train data. folder : for converted copies of logs.
    tell : is given lines about what is converted and compiled.

    Raises DataError and ConfigError as a run does.
    """
    probe = flat(config)
    comm = SingleComm()
    splits = open_splits(probe, comm, folder, tell)
    probe = splits.config
    pooling = splits.pooling_factors()
    plan = make_plan(probe, comm, pooling)
    memory = memory_plan(probe, plan, pooling, folder)
    warm_up(probe, plan, comm, tell, memory.placements)
    world = build(probe, comm, plan, splits.dense_features, memory=memory)
    schedule = BatchSchedule(splits.loader("train"), 1, steps)
    for step, batch in enumerate(schedule.batches(0), 1):
        world.step(batch, step)
    return pooled_vectors(world, schedule)


def pooled_vectors(world: World, schedule: BatchSchedule) -> dict[str, Floats]:
    """Key -> its pooled vectors f32[b, D] of the first samples of a schedule; one process."""
    first_column = world.model.first_column
    batches = -(-SAMPLES // schedule.loader.batch_size)
    blocks = []
    for batch in islice(schedule.batches(0), batches):
        E = np.zeros((batch.labels.size, world.embedding.columns), np.float32)
        lookups = world.embedding.forward(batch.sparse, batch.samples).finish(E)
        if world.model.composition is not None:
            # it belongs to the next batch soon
            E = world.model.composition.forward(E, lookups).copy()
        blocks.append(E[:, first_column:])
    pooled = np.concatenate(blocks)
    ends = np.cumsum(world.model.layout.dims)[:-1]
    keys = [key.key for key in bags(world.config.model_tables)]
    return dict(zip(keys, np.split(pooled, ends, axis=1)))
