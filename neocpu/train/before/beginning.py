"""What does a run begin with, beside its config? Nothing, a trained model, or its own checkpoint.

A run that goes on keeps the values of keys that nobody named as it began with them: defaults may
differ between versions of neocpu, and one follows from the size of the data
(`neocpu.train.config.defaults`).

With `training.init_from` a run starts at step 0 with what another model has learnt. Its config then
notes that model's digest, which enters the digest of the run, and its checkpoints hold all that it
takes to go on without that model: the notes, and the vocabularies by which rows are chosen.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.errors import CheckpointError, ConfigError, DataError
from neocpu.core.types import Elements, JsonObject, Tell, Tree
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.parallel.transport.comm import Comm
from neocpu.train.before.datasets import Splits
from neocpu.train.checkpoint import latest, sound
from neocpu.train.checkpoint.folder import checkpoints
from neocpu.train.config.asynchronous import OFF
from neocpu.train.config.config import Config
from neocpu.train.config.defaults import BATCH_SIZE, as_overrides, value_of, with_key
from neocpu.train.state.identity import HISTORY, hashes_of
from neocpu.train.step.world import World

if TYPE_CHECKING:
    from neocpu.train.checkpoint.reading import CheckpointFile

Vocabularies = dict[str, Elements]


@dataclass(frozen=True)
class Beginning:
    """How a run begins.

    config : with the notes of what it starts from. source : the checkpoint to take over from; None:
    nothing is. vocabularies : by which the rows so far were chosen. resumed : the run goes on, so
    they stay as they are. step, history : of the checkpoint that an online run goes on from, and
    the files that it knew (`online.py`).
    """

    config: Config
    source: Path | None = None
    vocabularies: Vocabularies = field(default_factory=dict)
    resumed: bool = False
    step: int = 0
    history: tuple[JsonObject, ...] = ()

    def choose_rows(self, splits: Splits, tell: Tell) -> None:
        """Let rows be chosen as they were so far; codes that are new get the rows that follow."""
        if not self.vocabularies:
            return
        if self.resumed:
            splits.use_vocabularies(self.vocabularies)
            return
        grown = grow(self.vocabularies, splits.vocabularies)
        for name, codes in grown.items():
            if more := codes.size - self.vocabularies.get(name, codes[:0]).size:
                tell(f"  vocabulary of {name}: {more:,} new codes, {codes.size:,} in all")
        splits.use_vocabularies(grown)

    def take_over(self, world: World, splits: Splits, tell: Tell) -> None:
        """Give the world what the source has learnt. Collective.

        Raises CheckpointError on all ranks where that cannot be.
        """
        if self.source is None:
            return
        from neocpu.train.checkpoint.reading import CheckpointFile
        from neocpu.train.checkpoint.takeover import say, take_over

        with world.comm.agreeing(), CheckpointFile(self.source) as file:
            # noted when the run was planned; the file may have been replaced since
            if file.digest != self.config.training.init_digest:
                raise CheckpointError(f"{self.source}: became another file meanwhile")
            names = splits.description()["dense"]
            say(take_over(file, world, names), file, tell)


def grow(known: Mapping[str, Elements], new: Mapping[str, Elements]) -> Vocabularies:
    """Vocabularies u64[n] with the codes of `new` that are not known yet behind those that are."""
    grown: Vocabularies = {}
    for name in {**known, **new}:
        old = known.get(name, np.empty(0, np.uint64)).astype(np.uint64)
        codes = new.get(name, np.empty(0, np.uint64)).astype(np.uint64)
        # behind: a code keeps its row, which is its place here
        grown[name] = np.concatenate([old, codes[~np.isin(codes, old)]])
    return grown


def begin(
    config: Config, comm: Comm, out: Path, resume: bool, tell: Tell, *, online: bool = False
) -> Beginning:
    """How the run of a folder of results begins; online : it trains on file after file. Collective.

    Raises CheckpointError on all ranks for a source that cannot be used, ConfigError for what is
    not for such a run; as `refuse_other_ranks`; as `begin` of a mirror.
    """
    if comm.size > 1:
        from neocpu.train.before.alike import refuse_other_ranks

        refuse_other_ranks(comm, config)
    key = "checkpoint.parity" if config.checkpoint.parity else ""
    if online and (key := "training.sync" if config.training.sync == OFF else key):
        raise ConfigError(
            f"{config.source}: {key}: it is for `neocpu train`, not for one that goes "
            "over files as they come; leave it out"
        )
    # online the files to open follow from it; else it is loaded, and verified, later
    newest = sound if online else latest
    if config.checkpoint.mirror:
        from neocpu.train.checkpoint.mirror import CheckpointMirror

        CheckpointMirror(config.checkpoint.mirror, out, comm, tell).begin(resume, newest)
    if resume:
        # defaults may have changed since, and one follows from the size of the data
        config = _as_begun(config, out, comm)
    if not (config.training.init_from or online):
        return Beginning(config)
    path = newest(out, comm) if resume else None
    beginning = Beginning(config)
    with comm.agreeing():
        if path is not None:
            beginning = _go_on(config, path)
    if path is not None or not config.training.init_from:
        return beginning
    from neocpu.train.checkpoint.folder import checkpoint_of
    from neocpu.train.checkpoint.reading import CheckpointFile
    from neocpu.train.checkpoint.takeover import check, notes_of
    from neocpu.train.state.identity import with_numbers

    path = checkpoint_of(config.training.init_from, comm).resolve()
    with comm.agreeing(), CheckpointFile(path) as file:
        check(file, config)
        noted = config.training.init_digest
        if noted and noted != file.digest:
            raise CheckpointError(
                f"{path}: has digest {file.digest}, but training.init_digest is {noted}; name "
                "that checkpoint, or leave the key out"
            )
        vocabularies = _vocabularies(file, config)
        config = with_numbers(_with_notes(config, notes_of(file, config)), file.data())
    return Beginning(config, path, vocabularies)


def _go_on(config: Config, path: Path) -> Beginning:
    """The beginning of a run that goes on from its own checkpoint."""
    from neocpu.train.checkpoint.reading import CheckpointFile
    from neocpu.train.state.identity import with_numbers

    with CheckpointFile(path) as file:
        before = file.config()
        vocabularies = file.vocabularies()
        config = with_numbers(config, file.data())
        history = tuple(file.data().get(HISTORY, ()))
        step = file.step
    notes: dict[str, object] = {}
    if before.training.init_digest and not config.training.init_digest:
        notes["training.init_digest"] = before.training.init_digest
    for name in ("sparse", "dense"):
        steps = getattr(before.optimizer, name).steps_before
        if steps and not getattr(config.optimizer, name).steps_before:
            notes[f"optimizer.{name}.steps_before"] = steps
    return Beginning(
        config=_with_notes(config, notes),
        vocabularies=vocabularies,
        resumed=True,
        step=step,
        history=history,
    )


def _with_notes(config: Config, notes: Tree) -> Config:
    """The config with these values of keys, as further overrides."""
    # as overrides, so that a checkpoint's config, loaded again, has them too
    overrides = (*config.overrides, *as_overrides(notes))
    for key, value in notes.items():
        config = with_key(config, key, value)
    return replace(config, overrides=overrides)


def _as_begun(config: Config, out: Path, comm: Comm) -> Config:
    """The config with the values that its newest checkpoint has of keys that nobody named."""
    keys = [*config.chosen, *([BATCH_SIZE] if config.batch_chosen else [])]
    # one rank reads: the others may see an older state of a network folder
    return config.with_chosen(comm.on_first_rank(lambda: _begun_values(out, keys)))


def _begun_values(out: Path, keys: list[str]) -> dict[str, object]:
    """What these keys are in the newest checkpoint that can be read; {} where there is none."""
    if not keys:
        return {}
    from neocpu.train.checkpoint.reading import CheckpointFile

    with suppress(CheckpointError):
        for path in reversed(checkpoints(out)):
            with suppress(CheckpointError), CheckpointFile(path) as file:
                begun = file.config()
                return {key: value_of(begun, key) for key in keys}
    return {}


def _vocabularies(file: "CheckpointFile", config: Config) -> Vocabularies:
    """The vocabularies by which a checkpoint's rows were chosen; {}: by hash.

    Checkpoints of neocpu 0.1.0 do not hold them; then they are those of a dataset that the run
    named, known by their hashes.

    Raises CheckpointError where they are not to be had.
    """
    if config.data.rows_by != "vocabulary":
        return {}
    if vocabularies := file.vocabularies():
        return vocabularies
    hashes = file.data().get("vocabularies", {})
    before = file.config().data
    files = [config.data.vocabulary, before.vocabulary, *before.train]
    files += file.data().get("splits", {}).get("train", {}).get("files", [])
    for path in filter(None, files):
        with suppress(DataError, OSError):
            vocabularies = Dataset(path).vocabularies
            if hashes and hashes == hashes_of(vocabularies):
                return vocabularies
    raise CheckpointError(
        f"{file.path}: does not hold the vocabularies by which its rows were chosen; set "
        "data.vocabulary to the dataset that it was trained with"
    )
