"""What decides the bytes of a converted log, beside the log?

A run looks for a converted copy by these options each time it starts, so this file reads no schema
and loads no parser before one is asked for.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from neocpu.core.errors import ConfigError, told_as
from neocpu.core.types import Tree
from neocpu.ingest.dataset_layout import VERSION

TABLES = 2  # how tables are read; another one makes new copies
Progress = Callable[[int, int, int], None]  # bytes read, bytes in all, samples so far
CLUSTER_ROWS = 1 << 20  # of a part of the log that is clustered at a time


@dataclass(frozen=True)
class ConvertOptions:
    """The options of a conversion; with the sources they decide every byte of the dataset.

    header : the first line of a Criteo log is skipped.
    min_count : fit a vocabulary of codes seen at least so often (0: none).
    vocabulary : take it from this dataset instead.
    schema : SCHEMA.toml of kind `table`, or its tree.
    fitted : the dataset whose means, deviations and edges a schema takes instead of fitting them.
    frequencies : keep the counts of frequent codes.
    cluster_by : the feature that names a sample's session ("": none); the samples of one become
        neighbours, in each cluster_rows rows of the log.
    """

    dense_transform: str = "log1p"
    on_error: str = "fail"
    compress: str = "none"
    labelled: bool = True
    header: bool = False
    min_count: int = 0
    vocabulary: Path | None = None
    schema: Path | Tree | None = None
    fitted: Path | None = None
    frequencies: bool = False
    cluster_by: str = ""
    cluster_rows: int = CLUSTER_ROWS

    def key(self) -> str:
        """Text that differs whenever the converted data would."""
        options = asdict(self)
        if not self.frequencies:
            del options["frequencies"]  # copies made before this option existed stay valid
        if not self.cluster_by:
            del options["cluster_by"], options["cluster_rows"]
        del options["fitted"]
        if self.vocabulary is not None:
            content = _bytes_of(self.vocabulary)
            options["vocabulary"] = hashlib.sha256(content).hexdigest()
        if self.schema is not None:
            tree = json.dumps([TABLES, self.schema_tree()], sort_keys=True, default=str)
            options["schema"] = hashlib.sha256(tree.encode()).hexdigest()
        return json.dumps([VERSION, options], sort_keys=True)

    def schema_tree(self) -> Tree:
        """The tree of the schema of kind `table`, with the numbers of `fitted`.

        Raises ConfigError if there is none, or it cannot be read.
        """
        if self.schema is None:
            raise ConfigError("a log of kind table needs its SCHEMA.toml")
        tree = self.schema
        if not isinstance(tree, Mapping):
            from neocpu.ingest.formats.table import read_tree

            tree = read_tree(tree)
        if self.fitted is None:
            return tree
        from neocpu.ingest.dataset.fitting import fitted_tree

        return fitted_tree(tree, self.fitted)

    @property
    def unfitted(self) -> bool:
        """Whether the schema lacks numbers, which a conversion takes from its sources."""
        if self.schema is None:
            return False
        from neocpu.ingest.formats.table import table_schema

        return table_schema(self.schema_tree(), self.dense_transform).unfitted

    def files(self) -> list[Path]:
        """The files that the options name."""
        paths = (self.schema, self.vocabulary, self.fitted)
        return [Path(path) for path in paths if isinstance(path, str | Path)]


def _bytes_of(path: Path) -> bytes:
    """The bytes of a file that an option names."""
    with told_as(ConfigError, path, "cannot be read"):
        return Path(path).read_bytes()
