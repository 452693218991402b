"""How does a run read its train data where they are? Every rank counts rows of some of the files.

With `readers.count` raw train data are not converted: readers parse them, and the ranks know of
each file how many rows its blocks have, so that samples have the order of the converted data.
"""

import io
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from neocpu.core.errors import ConfigError, DataError
from neocpu.core.types import Tell
from neocpu.ingest.copy_cache import FOLDER
from neocpu.ingest.dataset.convert import schema_of
from neocpu.ingest.dataset.fitting import fit
from neocpu.ingest.dataset.raw import FileIndex, RawDataset, RawLog, index_of
from neocpu.ingest.formats.files.folders import all_files
from neocpu.ingest.formats.files.kinds import kind_of
from neocpu.ingest.formats.files.unpacked import unpacked
from neocpu.ingest.formats.schema import Schema
from neocpu.ingest.formats.sources import frames_of
from neocpu.ingest.readers.coming import Coming, ComingDataset, Folder, Stdin
from neocpu.parallel.transport.abort import ended_by_signals
from neocpu.parallel.transport.comm import Comm
from neocpu.train.before.conversions import convert_options, copy_folders
from neocpu.train.config.config import Config
from neocpu.train.state.identity import fingerprint

STDIN = "-"


def open_raw_train(
    config: Config, comm: Comm, sources: Sequence[str], labels: Sequence[str], out: Path, tell: Tell
) -> tuple[Config, RawDataset | None]:
    """The train data of a run with readers, not converted; None where they are converted already.
    And the config, with the numbers that its schema takes from them. Collective.

    labels : that are read besides the first. out : where pieces of stdin lie for a while.

    Raises DataError and ConfigError on all ranks.
    """
    # a pipe is one where rank 0 is
    streamed = bool(comm.largest(int(is_stream(config))))
    if streamed:
        _refuse_stream(config, comm)
    coming: Coming | None = None

    def looked() -> list[str]:
        nonlocal coming
        # the first file, or whoever writes into a pipe, may never come
        with ended_by_signals(signal.SIGUSR1, signal.SIGUSR2):
            coming = _coming(config, sources, out) if streamed else None
            return _raw_files(sources, coming)

    # one rank looks: others may see another state of a folder
    paths = _agreed(comm, looked)
    if not paths:
        return config, None
    numbers = comm.on_first_rank(lambda: _fitted(config, paths))
    if numbers is not None:
        config = replace(config, data=replace(config.data, schema=numbers))
    kept = config.data.shuffle and not streamed and copy_folders(comm, out).cache
    if kept:  # where the cache is not seen by all, who shuffles is refused below
        raw = paths
        paths = _agreed(comm, lambda: _in_any_order(config, raw, tell))
    counting = ranks_that_see(comm, paths)
    if len(counting) < comm.size:
        _tell_of_blind(config, comm.size - len(counting), tell)
    tell(f"train: counting the rows of {len(paths):,} raw files, which readers will parse")
    schema = schema_of(config.data.format, convert_options(config, "train"))
    if kept:
        schema = replace(schema, encoding="")  # all files are UTF-8 by now
    files = _counted(comm, paths, counting, schema, config.data.on_error)
    dataset: RawDataset | None = None
    with comm.agreeing():
        on_error = config.data.on_error
        log = RawLog(files, schema, on_error, config.data.label, tuple(labels), streamed)
        dataset = ComingDataset(log, coming) if streamed else RawDataset(log)
        _refuse_order(config, dataset)
    if len(counting) < comm.size and dataset is not None:
        seen = comm.on_first_rank(lambda: fingerprint(dataset))
        dataset.fingerprint = "" if comm.rank in counting else seen
    for index in (index for index in files if index.skipped):
        faults = f"{index.skipped:,} malformed lines of {index.path} are skipped, the first: "
        tell(f"train: {faults}{index.faults[0]}")
    return config, dataset


def _counted(
    comm: Comm, paths: Sequence[Path], counting: Sequence[int], schema: Schema, on_error: str
) -> tuple[FileIndex, ...]:
    """The counts of all files, of which each of the ranks `counting` counts some. Collective."""
    counted: list[FileIndex] = []
    with comm.agreeing():
        if comm.rank in counting:
            share = paths[counting.index(comm.rank) :: len(counting)]
            counted = [index_of(path, schema, on_error) for path in share]
    return _of_all(comm, counted, counting, len(paths))


def _tell_of_blind(config: Config, ranks: int, tell: Tell) -> None:
    """Say that so many ranks do not see the files. Raises ConfigError where they have to."""
    if config.data.split:
        raise ConfigError(
            f"{config.source}: data.split has parts that every rank reads, but {ranks} ranks are "
            "on hosts without the raw files"
        )
    tell(f"train: {ranks} ranks are on hosts without the raw files; no reader starts there")


def is_stream(config: Config) -> bool:
    """Do the train data still come: from a folder that is followed, a pipe, or stdin?"""
    paths = [Path(path) for path in config.data.train]
    return config.readers.follow or any(path.name == STDIN or path.is_fifo() for path in paths)


def _coming(config: Config, sources: Sequence[str], out: Path) -> Coming:
    """Where files come from."""
    path = Path(sources[0])
    if path.name == STDIN or path.is_fifo():
        schema = schema_of(config.data.format, convert_options(config, "train"))
        # it is closed with what reads it
        stream = io.FileIO(0 if path.name == STDIN else path)
        return Stdin(stream, out / "stdin", schema)
    return Folder(path, config.readers.end, config.readers.idle)


def _raw_files(sources: Sequence[str], coming: Coming | None) -> list[str]:
    """The files of logs that are all raw; [] where all are converted. Raises DataError.

    coming : where files come from; the first is there then.
    """
    if coming is not None:
        return [str(coming.first())]
    paths = all_files(sources)
    raw = [kind_of(path) != "hdf5" for path in paths]
    if any(raw) and not all(raw):
        raise DataError(
            f"{paths[raw.index(True)]} is raw and {paths[raw.index(False)]} is converted; readers "
            "take one or the other"
        )
    return [str(path) for path in paths if any(raw)]


def _fitted(config: Config, paths: Sequence[Path]) -> dict[str, object] | None:
    """The tree of a schema with its numbers, where it takes some from the data; else None.

    Raises ConfigError for what only a conversion can do.
    """
    schema = schema_of(config.data.format, convert_options(config, "train"))
    _refuse(config, schema)
    if not schema.unfitted:
        return None
    tree = fit(schema, paths).tree
    return None if tree is None else dict(tree)


def _agreed(comm: Comm, names: Callable[[], list[str]]) -> list[Path]:
    """The files that rank 0 names. Collective."""
    return [Path(name) for name in comm.on_first_rank(names)]


def _in_any_order(config: Config, paths: Sequence[Path], tell: Tell) -> list[str]:
    """Names of files whose lines can be read in any order: texts are unpacked for it."""
    schema = schema_of(config.data.format, convert_options(config, "train"))
    names = []
    for path in paths:
        text = path if frames_of(path, schema) is not None else unpacked(path, schema.encoding)
        if text != path:
            tell(f"train: {path} is shuffled, so it is unpacked, and read as {text}")
        names.append(str(text))
    return names


def ranks_that_see(comm: Comm, paths: Sequence[Path]) -> list[int]:
    """The ranks on whose hosts all files are. Collective."""
    flags = comm.allgather_bytes(bytes([all(path.exists() for path in paths)]))
    return [rank for rank, flag in enumerate(flags) if any(flag)]


def _of_all(
    comm: Comm, counted: Sequence[FileIndex], counting: Sequence[int], files: int
) -> tuple[FileIndex, ...]:
    """The counts of all files, of which each of the ranks `counting` has every so many-th."""
    of_ranks = comm.allgather([asdict(index) for index in counted])
    by_rank = [[FileIndex(**index) for index in of_ranks[rank]] for rank in counting]
    return tuple(
        by_rank[number % len(counting)][number // len(counting)] for number in range(files)
    )


def _refuse_stream(config: Config, comm: Comm) -> None:
    """Raise ConfigError for what cannot be done with files that still come."""
    training = config.training
    schema = schema_of(config.data.format, convert_options(config, "train"))
    why = ""
    if len(config.data.train) > 1:
        why = "data.train names several logs; name one folder, or - for stdin"
    elif comm.size > 1 and Path(config.data.train[0]).name == STDIN:
        why = "MPI's launcher hands stdin on faster than ranks read it; make a pipe with mkfifo, "
        why += "write into it, and name it in data.train"
    elif config.data.shuffle:
        why = "data.shuffle needs all samples; set it to false"
    elif config.data.split:
        why = "data.split needs all samples; name files in data.valid and data.test"
    elif schema.unfitted:
        why = "standard transforms and buckets take numbers from all of it; write them as fitted"
    elif config.batch_chosen:
        why = "the batch size would follow from the number of samples; set training.batch_size"
    elif training.epochs != 1 or not training.steps:
        why = "nobody knows how long its one pass is; set training.epochs = 1, and training.steps "
        why += "to the most that the run shall take"
    if why:
        raise ConfigError(f"{config.source}: the train data still come, but {why}")


def _refuse(config: Config, schema: Schema) -> None:
    """Raise ConfigError for what only a conversion can do."""
    why = ""
    if config.data.rows_by == "vocabulary" and not config.data.vocabulary:
        why = 'data.rows_by = "vocabulary" counts codes; name a data set in data.vocabulary'
    if config.memory.warm:
        why = "memory.warm counts codes; leave it out"
    if schema.session:
        why = f"data.schema.session = {schema.session!r} moves rows; leave it out"
    if why:
        raise ConfigError(
            f"{config.source}: readers.count reads raw logs as they are, but {why}, or convert the "
            "log first: `neocpu data convert`"
        )


def _refuse_order(config: Config, dataset: RawDataset) -> None:
    """Raise ConfigError for a file read from its start whose samples would be shuffled."""
    if config.data.shuffle and (path := dataset.sequential) is not None:
        raise ConfigError(
            f"{config.source}: data.shuffle: samples of {path} cannot be read in another order "
            "than its own, as it is of a kind without an index, or compressed and ranks share no "
            f"{FOLDER} to unpack it in; set data.shuffle = false, write Parquet, or convert it "
            "first: `neocpu data convert`"
        )
