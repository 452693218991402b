"""Which trainer runs a config? Parameter servers are loaded where there are some."""

from neocpu.train.config.asynchronous import OFF
from neocpu.train.config.config import Config
from neocpu.train.run.trainer import Trainer


def trainer_of(config: Config) -> type[Trainer]:
    """What trains as the config says."""
    if config.training.sync != OFF:
        return Trainer
    from neocpu.train.run.asynchronous import AsynchronousTrainer

    return AsynchronousTrainer
