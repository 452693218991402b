"""Which keys has `[data]` of a config?"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from neocpu.core.records import Limits, Paths
from neocpu.core.types import Tree
from neocpu.ingest.formats.schema import TRANSFORMS

FORMATS = ("criteo", "avazu", "table")
ON_ERROR = ("fail", "skip")
WINDOW = 16  # blocks of an epoch's order that are shuffled together
ROWS_BY = ("hash", "vocabulary", "code")


@dataclass(frozen=True)
class DataConfig:
    """Where the log is and how it becomes samples.

    train, valid, test : paths of raw files, or of converted `.h5` ones. All paths in a config are
    relative to its file, those of `--set` to the current folder.
    format : in which raw files are written; "table" is any log that a `schema` describes.
    split : shares of `train` that are the train, valid and test samples, in the log's order, so
        that a chronological log is tested on its future: `[0.8, 0.1, 0.1]` (empty: no split).
    schema : for format "table": the path of a SCHEMA.toml, or the schema itself, `[data.schema]`
        with the same keys (docs/data.md).
    label : which of a table's labels is trained, by its name ("": the first).
    sample_weight : a label of the table whose value is a sample's weight in the loss, from 0 on
        ("": all weigh 1).
    shuffle : whether train samples come in another order in each epoch (fixed by training.seed).
    header : whether the first line of a raw Criteo log holds column names.
    rows_by : how a category becomes a row: by "hash"; by a "vocabulary", which is that of the
        dataset `vocabulary`, else that of the train data (raw files: codes seen at least
        `min_count` times); or by "code" modulo the table's rows, for codes that are rows already.
    vocabulary : path of a data set whose vocabulary is used ("": the train data's).
    min_count : fewer occurrences of a code, and it has no row of its own.
    dense_transform : of integers: log1p, ln(1 + x) with negative numbers as 0; none.
    on_error : what a malformed line does: it ends the run, or it is skipped and counted.
    read_ahead : batches read ahead on a thread.
    shuffle_run : so many neighbours of the data stay together when samples are shuffled (1: none
        do). With the samples of a session side by side, runs of some sessions keep these in one
        batch.
    deduplicate : groups of features that change together, each a shell pattern or a list of them:
        `[["user_*", "history"], "query"]`. Samples of a rank that agree in a group share its bags,
        which travel once and are pooled once (RecD; docs/communication.md). All features of a table
        are in one group, or in none. It changes no bit.
    """

    train: Paths = ()
    valid: Paths = ()
    test: Paths = ()
    split: tuple[float, ...] = ()
    format: Annotated[str, Limits(FORMATS)] = "criteo"
    schema: str | Mapping[str, Any] = ""
    label: str = ""
    sample_weight: str = ""
    header: bool = False
    shuffle: bool = True
    rows_by: Annotated[str, Limits(ROWS_BY)] = "hash"
    vocabulary: str = ""
    min_count: int = 0
    dense_transform: Annotated[str, Limits(TRANSFORMS)] = "log1p"
    on_error: Annotated[str, Limits(ON_ERROR)] = "fail"
    read_ahead: int = 2
    shuffle_run: Annotated[int, Limits(least=1)] = 1
    deduplicate: tuple[Paths, ...] = ()

    @property
    def schema_source(self) -> Path | Tree | None:
        """Where the schema of a table is, or its tree; None: there is none."""
        if isinstance(self.schema, str):
            return Path(self.schema) if self.schema else None
        return self.schema

    def deciding(self) -> dict[str, object]:
        """The keys that decide the bits."""
        header = asdict(self)
        for name in ("train", "valid", "test", "schema", "vocabulary", "read_ahead", "deduplicate"):
            del header[name]
        if self.shuffle_run == 1:  # as before there was a choice
            del header["shuffle_run"]
        for name in ("label", "sample_weight"):
            if not header[name]:
                del header[name]
        if not self.split:
            del header["split"]
        return header

    def split_fault(self) -> str:
        """What is wrong with `split`; "" if nothing."""
        if not self.split:
            return ""
        if len(self.split) != 3 or abs(sum(self.split) - 1) > 1e-6 or not self.split[0]:
            return "give three shares, of train, valid and test, which sum to 1: [0.8, 0.1, 0.1]"
        if self.valid or self.test:
            return "it makes valid and test parts of data.train; leave data.valid and data.test out"
        return ""

    def counted_once(self) -> dict[str, object]:
        """Features of which caches count the lookups of distinct bags only."""
        return {"deduplicate": self.deduplicate} if self.deduplicate else {}


@dataclass(frozen=True)
class ReadersConfig:
    """Processes of their own that read for the trainers, raw logs as they are; never changes a bit
    (docs/data.md).

    count : of all hosts together (0: none; raw logs are converted first, and every rank reads its
    samples). split : blocks of 4,096 samples that a reader takes at a time, with `data.shuffle` a
    multiple of 16. ahead : splits that are read before trainers have come to them, by all readers
    together (0: two for each reader). slow_after : seconds after which a split that a reader still
    works on is given to another one too.
    follow : train data are a folder whose files may still come (docs/data.md). end : name of the
    file after which none follow. idle : seconds without a new one after which none are waited for
    (0: there is no such limit).
    """

    count: Annotated[int, Limits(most=1024)] = 0
    split: Annotated[int, Limits(least=1)] = 16
    ahead: int = 0
    slow_after: float = 30.0
    follow: bool = False
    end: str = "_END"
    idle: float = 0.0

    @property
    def splits_ahead(self) -> int:
        """Splits that are read ahead at most."""
        return self.ahead or 2 * self.count

    def faults(self, data: DataConfig) -> Iterator[tuple[str, str]]:
        """Keys that do not go with those of the data, and why."""
        if self.count and data.shuffle and self.split % WINDOW:
            why = f"{self.split} blocks, but samples are shuffled in windows of {WINDOW}; give a "
            yield "split", f"{why}multiple of that, or set data.shuffle = false"
        if self.follow and not self.count:
            yield "follow", "files that still come are read by readers: --readers 1, readers.count"


def feature_names(data: DataConfig) -> tuple[str, ...]:
    """Names of the categories of a log of `data.format`, in its order.

    Those of a table are in its schema; () where there is none. Raises ConfigError for a schema that
    is missing or wrong.
    """
    if data.format == "criteo":
        from neocpu.ingest.formats.criteo import criteo_schema

        schema = criteo_schema()
    elif data.format == "avazu":
        from neocpu.ingest.formats.avazu import avazu_schema

        schema = avazu_schema()
    elif data.schema_source is not None:
        from neocpu.ingest.formats.table import table_schema

        schema = table_schema(data.schema_source)
    else:
        return ()
    return tuple(field.name for field in schema.categories)
