"""How do several models train on the same ranks at the same time? Each is a run of its own, with
its folder and its digest; they take turns, and share memory for activations
(`activations/shared.py`).
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from neocpu.core.errors import ConfigError
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.sent import Traffic
from neocpu.train.activations.shared import SharedActivations
from neocpu.train.config.asynchronous import OFF, ON
from neocpu.train.config.config import Config
from neocpu.train.config.memory import unplanned
from neocpu.train.config.settings import ROLL_BACK
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.results import RunReport

MakeReport = Callable[[Path, int], RunReport]
# what the ranks of all models have once
SHARED = (
    "parallel.ranks_per_node",
    "parallel.shared_windows",
    "training.threads",
    "memory.activations_in",
    "memory.folder",
    "memory.ddr_bandwidth",
    "memory.ssd_bandwidth",
    "memory.ssd_iops",
)


def shared_budget(configs: Sequence[Config]) -> int:
    """Bytes that the activations of all models may have, as the configs say it (0: no limit).

    Raises ConfigError for configs that contradict each other, or that cannot share.
    """
    limited = [config for config in configs if config.memory.activations]
    _check_alike("memory.activations", limited)
    for key in SHARED:
        _check_alike(key, configs)
    for config in configs:
        if config.training.sync == OFF:
            raise ConfigError(
                f"{config.source}: training.sync: models that train together take turns at steps "
                f'that all ranks take together; choose "{ON}"'
            )
        # others are at work where they are, and cannot wait until a world is built anew
        if config.training.on_nonfinite == ROLL_BACK:
            raise ConfigError(
                f"{config.source}: training.on_nonfinite: a model that trains with others cannot "
                'go back; choose "stop" or "skip"'
            )
        apart = config.parallel.towers or config.search.supernet
        if why := unplanned(apart, config.tables, config.model.precision):
            raise ConfigError(f"{config.source}: it cannot train together with others: {why}")
    return limited[0].memory.activations if limited else 0


def _check_alike(key: str, configs: Sequence[Config]) -> None:
    """Raise ConfigError where a key has several values."""
    section, name = key.split(".")
    values = {getattr(getattr(config, section), name): config.source for config in configs}
    if len(values) > 1:
        (one, first), (other, second) = [*values.items()][:2]
        raise ConfigError(
            f"{key}: {one!r} in {first}, but {other!r} in {second}; models that train together "
            "share one"
        )


def train_together(
    configs: Sequence[Config],
    comm: Comm,
    folders: Sequence[Path],
    resume: bool = False,
    make_report: MakeReport = RunReport,
    spoil: bool = False,
) -> list[dict[str, object]]:
    """Train several models on the ranks of `comm`; the summary of each. Collective.

    folders : of their results. spoil : as of `ActivationBlock`.

    Raises as `Trainer.run`, and ConfigError as `shared_budget`.
    """
    shared = SharedActivations(len(configs), shared_budget(configs), spoil)
    trainers = [
        Trainer(
            config,
            comm_of(comm) if model else comm,
            folder,
            resume=resume,
            report=make_report(folder, comm.rank),
            keep=shared.keeper(model),
        )
        for model, (config, folder) in enumerate(zip(configs, folders))
    ]
    return shared.rounds.run([trainer.run for trainer in trainers])


def comm_of(comm: Comm) -> Comm:
    """The same ranks for one model more, which counts what it sends itself. Collective."""
    other = comm.split(0, comm.rank)
    other.sent = Traffic()
    # whoever watches over the ranks sees one of them work
    other.sent.pulse = comm.sent.pulse
    comm.poll_with(other)
    return other
