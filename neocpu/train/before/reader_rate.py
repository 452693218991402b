"""How many readers does a run need? As many as keep up with its steps: both are measured."""

import itertools
import math
import time
from collections.abc import Iterator
from typing import NamedTuple

from neocpu.core.units import count_text
from neocpu.ingest.code_map import CodeMap
from neocpu.ingest.dataset.convert import schema_of
from neocpu.ingest.formats.fields import Parsed
from neocpu.ingest.formats.files.folders import all_files
from neocpu.ingest.formats.files.kinds import kind_of
from neocpu.ingest.formats.sources import open_source
from neocpu.train.before.conversions import convert_options
from neocpu.train.config.config import Config

BLOCKS = 4  # of the first log that are read: some megabytes


class ReaderRate(NamedTuple):
    """How fast one reader is on this machine: samples a second, over so many rows."""

    samples_per_second: float
    rows: int


def reader_rate(config: Config) -> ReaderRate:
    """Parse the beginning of the train data, and map its codes to rows, as a reader does.

    Raises DataError and ConfigError for data that cannot be read.
    """
    code_map = CodeMap(config.tables, "hash", config.training.seed)
    for parsed in _beginning(config):  # compiles, and brings the log into memory
        code_map.kjt(parsed.features, len(parsed.dense))
    rows = 0
    started = time.perf_counter()
    for parsed in _beginning(config):
        code_map.kjt(parsed.features, len(parsed.dense))
        rows += len(parsed.dense)
    return ReaderRate(rows / (time.perf_counter() - started), rows)


def _beginning(config: Config) -> Iterator[Parsed]:
    """The first rows of the train data."""
    schema = schema_of(config.data.format, convert_options(config, "train"))
    source = open_source(all_files(config.data.train)[0], schema)
    for block in itertools.islice(source.blocks, BLOCKS):
        yield from map(source.parser.parse_fields, block.parts)


def readers_line(config: Config, step_seconds: float) -> str:
    """What is said of the readers of a run whose steps take so long (0: not known)."""
    if kind_of(all_files(config.data.train)[0]) == "hdf5":
        return "readers: the train data are converted, and nothing is left to parse"
    rate = reader_rate(config)
    text = (
        f"readers: one parses about {count_text(rate.samples_per_second)} samples/s here "
        f"({rate.rows:,} rows measured, on a core of its own)"
    )
    if not step_seconds or not rate.samples_per_second:
        return f"{text}; how many a run needs follows from its steps: `neocpu plan --machine`"
    samples = config.training.batch_size / step_seconds
    # twice the work where blocks of shuffled samples begin inside those of a file
    needed = math.ceil(samples * (2 if config.data.shuffle else 1) / rate.samples_per_second)
    shuffled = ", shuffled, of which each is parsed about twice" * config.data.shuffle
    verdict = "1 reader keeps up" if needed == 1 else f"{needed:,} readers keep up"
    return f"{text}; steps take {count_text(samples)} samples/s{shuffled}: {verdict}"
