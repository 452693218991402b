"""Which values of keys that nobody named did a run begin with? Those in its newest checkpoint.

Defaults may differ between versions of neocpu, and one follows from the size of the data; a run
that goes on keeps what it began with (`neocpu.defaults`).
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from neocpu.config import Config
from neocpu.defaults import BATCH_SIZE, value_of
from neocpu.errors import CheckpointError
from neocpu.parallel.comm import Comm
from neocpu.training.checkpoint.folder import checkpoints
from neocpu.training.checkpoint.reading import CheckpointFile


def as_begun(config: Config, out: Path, comm: Comm) -> Config:
    """The config of the run that has its checkpoints in `out`, to go on. Collective."""
    keys = [*config.chosen, *([BATCH_SIZE] if config.batch_chosen else [])]
    values: dict[str, Any] = {}
    if comm.rank == 0 and keys:
        with suppress(CheckpointError):
            for path in reversed(checkpoints(out)):
                values = _values(path, keys)
                if values:
                    break
    values = json.loads(comm.allgather_bytes(json.dumps(values).encode())[0])
    return config.with_chosen(values)


def _values(path: Path, keys: list[str]) -> dict[str, Any]:
    """What these keys are in a checkpoint; {} where it cannot be read."""
    with suppress(CheckpointError), CheckpointFile(path) as file:
        begun = file.config()
        return {key: value_of(begun, key) for key in keys}
    return {}
