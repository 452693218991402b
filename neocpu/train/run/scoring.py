"""How is a checkpoint's model applied to data? On any number of ranks, whatever wrote it."""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from neocpu.core.presets import log_path
from neocpu.core.types import Tell, Tree
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.loader import Loader
from neocpu.parallel.sharding.plan import AUTO, Plan, is_plan_file
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.environment import check_kernels
from neocpu.tables.embedding.memory_plan import MemoryPlan
from neocpu.train import checkpoint as checkpoints
from neocpu.train.before.alike import refuse_other_ranks
from neocpu.train.before.datasets import SPLITS, Splits, open_paths
from neocpu.train.before.plans import make_plan, memory_plan
from neocpu.train.before.warmup import warm_up
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config.config import Config
from neocpu.train.step.world import World, build
from neocpu.train.watch.results import silent

TRAIN, _, SPLIT = SPLITS


def restore(
    path: Path,
    comm: Comm,
    data: Sequence[str] | Dataset,
    *,
    overrides: Sequence[str] = (),
    need_labels: bool = True,
    tell: Tell = silent,
) -> tuple[World, Loader]:
    """The world of a checkpoint, and a loader of `data` in file order. Collective.

    data : raw logs, which are converted, or paths of datasets; or one that is open. overrides : of
    keys of the config. need_labels : refuse data without labels.
    """
    check_kernels()
    with CheckpointFile(path) as file:
        config = file.config(overrides)
        vocabularies = file.vocabularies()
    refuse_other_ranks(comm, config)
    if not _names_plan(overrides):
        config = without_plan_file(config)
    if isinstance(data, Dataset):
        splits = Splits(config, comm, {SPLIT: data})
    else:
        sources = {SPLIT: tuple(map(log_path, data))}
        splits = open_paths(config, comm, Path(path).parent, tell, sources)
    # rows are those of training: codes that it did not see stay unknown
    if vocabularies and not config.data.vocabulary:
        splits.use_vocabularies(vocabularies)
    world = restore_world(
        path,
        comm,
        config,
        splits.dense_features,
        pooling=splits.pooling_factors(),
        data=splits.description(),
        warm=lambda plan, memory: warm_up(config, plan, comm, tell, memory.placements),
        warn=tell,
    )
    return world, splits.loader(SPLIT, labelled=need_labels)


def train_data(path: Path, config: Config, comm: Comm, tell: Tell = silent) -> Dataset:
    """The train split of a checkpoint's config, which must still be there. Collective."""
    sources = {TRAIN: config.data.train}
    return open_paths(config, comm, Path(path).parent, tell, sources).datasets[TRAIN]


def restore_world(
    path: Path,
    comm: Comm,
    config: Config,
    dense_features: int,
    *,
    pooling: Mapping[str, float],
    data: Tree | None = None,
    warm: Callable[[Plan, MemoryPlan], object] | None = None,
    warn: Tell = silent,
) -> World:
    """The objects of a run in the state of a checkpoint. Collective.

    config : of the checkpoint, maybe with overrides. pooling : mean lookups per sample of each
    table, for the plan (1 where a table is missing). data : as for `checkpoint.load`. warm : called
    before anything is built, to compile kernels; None: each is compiled when it is first used.
    warn : is given a line where a number of the checkpoint is not finite.
    """
    plan = make_plan(config, comm, pooling)
    memory = memory_plan(config, plan, pooling)
    if warm is not None:
        # which kernels are needed follows from schemes and placements
        warm(plan, memory)
    if not (memory.plain or config.memory.folder):
        memory = replace(memory, folder=_temporary_folder())
    world = build(config, comm, plan, dense_features, memory=memory)
    checkpoints.load(path, world, data, warn=warn)
    return world


def without_plan_file(config: Config) -> Config:
    """A config that plans for its own ranks: a plan's file, groups and pins were for those of the
    run, and the file may be gone.
    """
    plan = AUTO if is_plan_file(config.parallel.plan) else config.parallel.plan
    parallel = replace(config.parallel, plan=plan, pins={}, replica_groups=1)
    return replace(config, parallel=parallel)


def _names_plan(overrides: Sequence[str]) -> bool:
    """Does one of the overrides set `parallel.plan`, groups or pins?"""
    keys = [override.partition("=")[0].strip() for override in overrides]
    named = ("parallel.plan", "parallel.replica_groups")
    return any(key in named or key.startswith("parallel.pins") for key in keys)


def _temporary_folder() -> Path:
    """A folder for SSD files that goes when this process ends."""
    folder = tempfile.mkdtemp(prefix="neocpu-rows-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
