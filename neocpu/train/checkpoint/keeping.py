"""Which memory do the rows of a run need, if it is to go on without a checkpoint?

Files of `parallel/parity/`, one of each rank; `rescue.py` reads them when the ranks are no more.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

import neocpu
from neocpu.core.errors import ConfigError, TrainingError, told_as
from neocpu.core.targets import nearest_existing
from neocpu.core.types import JsonObject
from neocpu.parallel.parity.keeper import ParityKeeper
from neocpu.parallel.sharding.messages import to_text
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.storage.lasting import no_room
from neocpu.train.config.config import Config
from neocpu.train.state.state import Trained, replicated_fields

RECORD = "parity.json"  # in the folder of results: which files are those of its newest run


def folder_of(config: Config) -> Path:
    """Where the files are."""
    return Path(config.memory.folder or "/dev/shm")


def keeper_of(
    config: Config, comm: Comm, plan: Plan, out: Path, tell: Callable[[str], None]
) -> ParityKeeper:
    """What keeps the rows of this rank where they outlive it.

    Files of an earlier run in the same folder of results are removed. Collective. Raises
    ConfigError on all ranks for a plan file that has tables in caches.
    """
    if any(placement not in ("", "hbm") for placement in plan.placements):
        raise ConfigError(
            f"{config.source}: checkpoint.parity: the plan has tables beyond memory.placement = "
            '"hbm", whose rows are in caches; leave it out, or take another plan'
        )
    record = out / RECORD

    def begin() -> dict[str, str]:
        facts = {"token": secrets.token_hex(8), "key": key_of(out)}
        with told_as(TrainingError, record):
            record.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        return facts

    facts = comm.on_first_rank(begin)
    for path in files_of(config, facts["key"]):
        with suppress(OSError):
            path.unlink()
    comm.barrier()  # before any rank of this host makes its own
    facts |= {
        "header": header_digest(config),
        "plan": to_text(plan),
    }
    keeper = ParityKeeper(
        comm,
        plan,
        config.checkpoint.parity,
        config.optimizer.sparse.state_floats,
        folder_of(config) / f"neocpu-{facts['key']}-{comm.rank}",
        record,
        facts,
    )
    if not keeper.groups:
        tell("checkpoint.parity: one rank has no other for its parity; a lost host costs its rows")
    elif any(len({keeper.hosts[rank] for rank in group}) < len(group) for group in keeper.groups):
        tell(
            "checkpoint.parity: ranks of one host share a parity: rows outlive any one rank, but "
            "not that host"
        )
    return keeper


def key_of(out: Path) -> str:
    """What the files of runs in a folder of results have in their names."""
    return hashlib.sha256(f"{os.getuid()} {out.resolve()}".encode()).hexdigest()[:12]


def check_folder(config: Config, out: Path, size: int) -> None:
    """Raise TrainingError where files of this host, of so many bytes together, have no room."""
    folder = folder_of(config)
    try:
        # it is made with its first file
        free = shutil.disk_usage(nearest_existing(folder)).free
        # those of an earlier run are removed
        free += sum(path.stat().st_size for path in files_of(config, key_of(out)))
    except OSError as error:
        raise no_room(folder, size, error.strerror) from error
    if size > free:
        raise no_room(folder, size, "by the plan")


def files_of(config: Config, key: str) -> list[Path]:
    """The files on this host of runs in one folder of results."""
    return sorted(folder_of(config).glob(f"neocpu-{key}-*"))


def header_digest(config: Config) -> str:
    """SHA-256 of the keys that decide the bits, and of the version, which decides how rows lie."""
    facts = [neocpu.__version__, config.header()]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def note_of(world: Trained, data: Mapping[str, object]) -> bytes:
    """What all ranks have whole, beside the rows: `data` (JSON-able) and the dense parameters."""
    fields = [value for part in replicated_fields(world).values() for value in part.values()]
    return b"".join([json.dumps(data).encode(), b"\n", *(value.tobytes() for value in fields)])


def take_note(world: Trained, note: bytes) -> JsonObject:
    """Set the dense parameters to what `note_of` wrote; its `data`.

    Raises ValueError for another model's.
    """
    text, _, values = note.partition(b"\n")
    numbers = np.frombuffer(values, np.float32)
    at = 0
    for part in replicated_fields(world).values():
        for value in part.values():
            value[...] = numbers[at : at + value.size].reshape(value.shape)
            at += value.size
    if at != numbers.size:
        raise ValueError("dense parameters are of another model")
    return json.loads(text)
