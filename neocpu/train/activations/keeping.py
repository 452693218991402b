"""Does a run keep its activations to a budget? What does so is loaded where one is."""

from collections.abc import Callable
from pathlib import Path

from neocpu.train.config.config import Config
from neocpu.train.step.world import World

# keeps the activations of a world's steps; folder : of files
Keep = Callable[[Config, World, Path], object]


def keep_if_asked(config: Config, world: World, folder: Path) -> None:
    """`budget.keep_within`, if the config has a budget. Collective."""
    if config.memory.activations:
        from neocpu.train.activations.budget import keep_within  # and files of rows with it

        keep_within(config, world, folder)
