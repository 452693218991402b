"""What does a run need to know? One TOML file, checked whole before anything starts.

Records list all keys, their defaults and limits: those of training, memory, checkpoints and a
search in `settings.py`, the others beside their owners (`ingest/settings.py`,
`train/model/settings.py`, `train/model/options.py`, `tables/specs/specs.py`,
`tables/specs/optimizers.py`, `parallel/settings.py`, `parallel/exchange/wire_formats.py`).
Paths in the file are relative to its folder, those of `--set` to the current one (`paths.py`).
`--set key=value` overrides single keys. An error names where the key was written, the key, its
value, and what is allowed. Nothing here needs Numba or MPI.

`Config.header` is what decides the bits: it enters the digest, and none of it may change on resume.
Everything else (ranks, plan, threads, number of steps, paths) may.
"""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

from neocpu.core.errors import ConfigError
from neocpu.core.paths import absolute_paths, place_names, place_paths, refuse_misplaced
from neocpu.core.presets import MODELS, model_path, path_of
from neocpu.core.records import Limits, Reader, apply_override, toml_tree
from neocpu.core.types import Tree
from neocpu.ingest.settings import DataConfig, ReadersConfig, feature_names
from neocpu.parallel.exchange.wire_formats import WiresConfig
from neocpu.parallel.settings import ParallelConfig
from neocpu.parallel.transport.throttle import link_speeds
from neocpu.plan.search.planners import PLANNERS
from neocpu.tables.hdf5.disk import SIGNATURE
from neocpu.tables.kinds import FULL, KIND_NAMES, expand, key_records
from neocpu.tables.specs.compositions import Composition, LogicalTable
from neocpu.tables.specs.feature_groups import key_groups
from neocpu.tables.specs.optimizer_groups import ParameterRun, dense_runs, table_optimizers
from neocpu.tables.specs.optimizers import DENSE_NAMES, RATE_MODES, TABLE_RULES, SparseOptimizer
from neocpu.tables.specs.specs import TableSpec, with_caches
from neocpu.tables.specs.table_keys import ModelDefaults, tables_of
from neocpu.tables.tiers.placement import choose_placements
from neocpu.train.config import defaults
from neocpu.train.config.asynchronous import asynchronous_faults
from neocpu.train.config.memory import MemoryConfig, unplanned
from neocpu.train.config.settings import (
    CheckpointConfig,
    EvalConfig,
    OptimizerConfig,
    SearchConfig,
    TrainingConfig,
)
from neocpu.train.model.layout import ModelLayout
from neocpu.train.model.settings import ModelConfig

PACKED = (b"\x1f\x8b", b"PAR1")  # first bytes of logs that are no text: gzip, Parquet


@dataclass(frozen=True)
class Config:
    """The config of a run; `loads(text, source, overrides, folder)` makes the same one again.

    tables : the physical tables. logical, compositions : the tables that the model sees, and how
        they are composed of the physical ones; () where every table is kept as it is. kinds : the
        tables that the model sees with their kinds and the keys of these.
    folder : of the file, which its relative paths start from ("": the current folder).
    absolute : overrides that make all paths absolute, so that text, overrides and these mean the
        same in any current folder.
    chosen : keys that text and overrides do not name, and what they mean here (`defaults.py`).
    batch_chosen : the batch size is to follow from the data (`for_samples`).
    """

    data: DataConfig
    model: ModelConfig
    tables: tuple[TableSpec, ...]
    optimizer: OptimizerConfig
    training: TrainingConfig
    eval: EvalConfig
    parallel: ParallelConfig
    memory: MemoryConfig
    checkpoint: CheckpointConfig
    wires: WiresConfig = field(default_factory=WiresConfig)
    readers: ReadersConfig = field(default_factory=ReadersConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    logical: tuple[TableSpec, ...] = ()
    compositions: tuple[Composition, ...] = ()
    kinds: tuple[LogicalTable, ...] = ()
    source: str = ""
    text: str = ""
    overrides: tuple[str, ...] = ()
    folder: str = ""
    absolute: tuple[str, ...] = ()
    chosen: Tree = field(default_factory=dict)
    batch_chosen: bool = False

    @property
    def model_tables(self) -> tuple[TableSpec, ...]:
        """The tables that the model sees."""
        return self.logical or self.tables

    def layout(self, dense_features: int) -> ModelLayout:
        """The tensors of the model. Raises ConfigError for sizes that do not fit together."""
        return self.model.layout(dense_features, self.model_tables, self.tables, self.compositions)

    def for_samples(self, samples: int) -> "Config":
        """The config for so many train samples: with a batch size, unless it names its own, and
        the rates that follow from it.
        """
        config = self
        if self.batch_chosen:
            config = self.with_chosen({defaults.BATCH_SIZE: defaults.batch_of(samples)})
        return config.with_chosen(config.scaled_rates(samples))

    def table_optimizers(self) -> dict[str, SparseOptimizer]:
        """The optimizer of every physical table. Raises ConfigError for groups that do not fit."""
        aliases = {table.name: [table.name] for table in self.tables}
        for composition in self.compositions:
            for term in (term for terms in composition.terms for term in terms):
                aliases[term.table].append(composition.table)
        return table_optimizers(aliases, self.optimizer.sparse, self.optimizer.groups)

    def dense_runs(self, dense_features: int) -> tuple[ParameterRun, ...]:
        """Dense parameters by their optimizers. Raises ConfigError for groups that do not fit."""
        sizes = self.layout(dense_features).parameter_sizes()
        return dense_runs(sizes, self.optimizer.dense, self.optimizer.groups)

    def scaled_rates(self, samples: int) -> dict[str, float | str]:
        """Values by key that `optimizer.scaling` derives for so many train samples; {}: none."""
        parts = self.optimizer
        size = self.training.batch_size
        return parts.scaling.derived(parts.sparse, parts.dense, size, samples)

    def with_chosen(self, values: Tree) -> "Config":
        """The config with these values of keys that it does not name."""
        config = self
        for key, value in values.items():
            config = defaults.with_key(config, key, value)
        known = self.batch_chosen and defaults.BATCH_SIZE not in values
        return replace(config, chosen={**self.chosen, **values}, batch_chosen=known)

    def header(self) -> dict[str, object]:
        """The keys that decide the bits, as JSON values: no ranks, plan, threads, steps, paths."""
        header = {
            "data": self.data.deciding(),
            "model": self.model.header(),
            "tables": [table.header() for table in self.tables],
            "optimizer": self.optimizer.header(),
            "training": {
                name: getattr(self.training, name) for name in ("batch_size", "seed", "leaves")
            },
        }
        # when a row is rounded depends on what the caches hold (docs/memory.md)
        if any(table.cache_format for table in self.tables):
            header["memory"] = self.memory.header() | self.data.counted_once()
        if evaluation := self.eval.header():
            header["eval"] = evaluation
        if start := self.training.start():
            header["init"] = start
        if wires := self.wires.header():
            header["wires"] = wires
        if self.search.supernet:
            header["search"] = self.search.header(self.parallel)
        if self.compositions:
            header["kinds"] = [composition.header() for composition in self.compositions]
        return json.loads(json.dumps(header))


# section of the file -> the record of its keys
SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "model": ModelConfig,
    "optimizer": OptimizerConfig,
    "training": TrainingConfig,
    "eval": EvalConfig,
    "parallel": ParallelConfig,
    "memory": MemoryConfig,
    "checkpoint": CheckpointConfig,
    "wires": WiresConfig,
    "readers": ReadersConfig,
    "search": SearchConfig,
}
# what keys may be whose records do not know it: they are shared by two sections, or stand below
# the wing or folder that has the names
LIMITS = {
    "optimizer.sparse.name": Limits(TABLE_RULES),
    "optimizer.sparse.learning_rate_mode": Limits(tuple(RATE_MODES)),
    "optimizer.sparse.counter_halflife": Limits(least=-2),
    "optimizer.sparse.adjustment_iter": Limits(least=-1),
    "optimizer.dense.name": Limits(tuple(DENSE_NAMES)),
    "parallel.planner": Limits(tuple(PLANNERS)),
    "tables.*.kind": Limits(KIND_NAMES),
}


def load(config: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read, override (`key=value` texts) and check a config: a file, or a model by its name.

    Raises ConfigError naming the file or override, the key, and what is allowed.
    """
    path = model_path(config)
    try:
        if path.suffix != ".toml" and (instead := _what_instead(path)):
            raise ConfigError(f"{path} is {instead}")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"{error}"
        if isinstance(error, UnicodeDecodeError):
            why = "it is not UTF-8 text"
        if path.name == str(config) and path_of(MODELS, path.stem):
            why = f"{why}; the model that comes with neocpu is called {path.stem}, without .toml"
        raise ConfigError(f"{path}: cannot read the config: {why}") from error
    return loads(text, str(path), overrides, path.parent)


def _what_instead(path: Path) -> str:
    """What a file of data is that was taken for a config, and what reads it; "" for other files.

    Raises OSError where it cannot be read.
    """
    with open(path, "rb") as file:
        head = file.read(1 << 12)
    if head.startswith(SIGNATURE):
        return (
            "converted data or a checkpoint, not a config; `neocpu data show` or `neocpu "
            "checkpoint show` says what is in it"
        )
    line = head.partition(b"\n")[0]
    columns = b"=" not in line and not line.startswith((b"#", b"["))
    if head.startswith(PACKED) or (columns and any(mark in line for mark in b",\t;|")):
        return f"a log, not a config; try `neocpu init {path}`"
    return ""


def loads(
    text: str,
    source: str = "config",
    overrides: Sequence[str] = (),
    folder: str | Path = "",
    begun: bool = False,
) -> Config:
    """A config from TOML text; `source` is what messages call it.

    folder : that paths in the text are relative to ("": the current one); those of overrides are
    relative to the current folder. begun : text and overrides are of a run that began
    (`defaults.unnamed`).
    """
    try:
        written = toml_tree(text)
    except ValueError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from error
    tree = deepcopy(written)
    placed = place_paths(tree, folder)
    for override in overrides:
        apply_override(written, override)
    # paths of overrides are relative to the current folder, so they come after `place_paths`
    set_by = {apply_override(tree, override): override for override in overrides}
    refuse_misplaced(placed, source, folder, tuple(set_by))
    place_names(tree)
    # before records fill in their defaults: then nobody knows what was named
    chosen = defaults.unnamed(tree, begun)
    defaults.fill(tree, chosen)
    reader = Reader(source, set_by, LIMITS)
    return replace(
        _assemble(reader, tree, begun),
        text=text,
        overrides=tuple(overrides),
        folder=str(folder),
        absolute=absolute_paths(written, tree),
        chosen=chosen,
        batch_chosen=not defaults.names_batch_size(tree),
    )


def _assemble(reader: Reader, tree: Tree, begun: bool) -> Config:
    """The config of a TOML tree, all keys and what they mean together checked."""
    for name in tree:
        if name not in (*SECTIONS, "tables"):
            raise reader.unknown(name, [*SECTIONS, "tables"])
    parts = {name: reader.record(kind, tree.get(name, {}), name) for name, kind in SECTIONS.items()}
    model = parts["model"]
    logical = tables_of(
        reader,
        tree.get("tables", {}),
        # only called for patterns: it may read a schema file
        lambda: feature_names(parts["data"]),
        ModelDefaults(model.embedding_dim, model.embedding_format, model.embedding_rounding),
        key_records,
    )
    try:
        tables, compositions = expand(logical)
    except ConfigError as error:
        raise ConfigError(f"{reader.source}: {error}") from error
    parts["logical"] = tuple(table.spec for table in logical)
    if parts["logical"] == tables and all(table.pooling != "none" for table in tables):
        parts["logical"] = ()
    parts["compositions"] = compositions if parts["logical"] else ()
    parts["kinds"] = logical if any(table.kind != FULL for table in logical) else ()
    rows = sum(table.rows for table in tables)
    if rows >= 2**63:
        raise reader.wrong(
            "tables",
            f"together they have {rows:,} rows; row numbers of all tables must stay below 2^63",
        )
    config = Config(tables=tables, source=reader.source, **parts)
    _check_together(reader, config, begun)
    try:
        placements = choose_placements([table.name for table in tables], config.memory.placement)
        config = replace(config, tables=with_caches(tables, placements, config.memory.cache_format))
    except ConfigError as error:
        raise ConfigError(f"{config.source}: {error}") from error
    moving = [parts.table for parts in config.compositions if parts.dynamic is not None]
    apart = config.parallel.towers or config.search.supernet
    stays = unplanned(apart, tables, config.model.precision)
    for key, why in config.memory.faults(placements, config.data.rows_by, stays):
        raise reader.wrong(f"memory.{key}", why)
    cached = [table.name for table, where in zip(config.tables, placements) if where != "hbm"]
    unpooled = [table.name for table in config.tables if table.pooling == "none"]
    for key, why in asynchronous_faults(parts, [*moving, *unpooled], bool(cached)):
        raise reader.wrong(key, why)
    whole = not (apart or config.optimizer.shampoo.every)
    if why := config.checkpoint.parity_fault(moving, cached, whole):
        raise reader.wrong("checkpoint.parity", why)
    if config.checkpoint.every_minutes and any(table.cache_format for table in config.tables):
        raise reader.wrong(
            "checkpoint.every_minutes",
            "a checkpoint rounds rows that are narrower than their caches, so bits would depend on "
            "the clock; set every_steps instead",
        )
    return config


def _check_together(reader: Reader, config: Config, begun: bool) -> None:
    """Check what depends on several keys; begun : of a run that neocpu 0.1.0 may have begun."""
    data, training = config.data, config.training
    if training.leaves & (training.leaves - 1):
        raise reader.wrong("training.leaves", f"{training.leaves} is not a power of two")
    if fault := data.split_fault():
        raise reader.wrong("data.split", fault)
    lacking = "" if data.valid or (data.split and data.split[1]) else "data.valid"
    lacking = lacking if config.eval.every_steps else "eval.every_steps"
    if training.patience and lacking:
        why = f"it counts measurements of the valid split; set {lacking} too"
        raise reader.wrong("training.patience", why)
    if not 0 < (rate := training.roll_back_rate) <= 1:
        raise reader.wrong("training.roll_back_rate", f"{rate} must be above 0, and 1 at most")
    _check_data(reader, config)
    for name, optimizer in (("sparse", config.optimizer.sparse), ("dense", config.optimizer.dense)):
        # neocpu 0.1.0 accepted values with which nothing is learnt; its runs can be read
        for key, why in optimizer.faults(general=name == "sparse", trains=not begun):
            raise reader.wrong(f"optimizer.{name}.{key}", why)
    for section, faults in (
        ("checkpoint", config.checkpoint.faults(lacking)),
        ("readers", config.readers.faults(data)),
        ("wires", config.wires.faults()),
        ("optimizer", config.optimizer.faults(config.parallel.towers)),
        ("model.precision", config.model.precision_faults(config.compositions)),
        ("eval", config.eval.faults()),
    ):
        for key, why in faults:
            raise reader.wrong(f"{section}.{key}", why)
    try:
        config.table_optimizers()
        config.dense_runs(1)
        config.model.check_wide(config.model_tables)
        if config.compositions and config.parallel.towers:
            raise ConfigError(
                "parallel.towers: nodes run the modules of full tables only, but some tables are "
                'of another kind, or have pooling "none"; leave parallel.towers out'
            )
        key_groups(config.tables, data.deduplicate)
        config.parallel.check_choices(config.tables)
        link_speeds(config.parallel.link_bandwidth, config.parallel.link_latency)
    except ConfigError as error:
        raise ConfigError(f"{config.source}: {error}") from error


def _check_data(reader: Reader, config: Config) -> None:
    """Check what keys of the data say together, and with those of the tables."""
    data = config.data
    if data.format == "table" and not data.schema:
        raise reader.wrong(
            "data.schema",
            'format "table" needs the path of a SCHEMA.toml, or its keys in [data.schema]',
        )
    if isinstance(data.schema, Mapping):
        from neocpu.ingest.formats.table import table_schema

        table_schema(data.schema, data.dense_transform, f"{reader.source}: data.schema")
    if data.rows_by != "vocabulary" and (data.min_count or data.vocabulary):
        key = "data.min_count" if data.min_count else "data.vocabulary"
        raise reader.wrong(
            key,
            f'it has no effect while data.rows_by is "{data.rows_by}"; set data.rows_by = '
            '"vocabulary"',
        )
    by_rank = [table for table in config.tables if any(m.rule == "range" for m in table.maps)]
    if by_rank and data.rows_by == "hash":
        raise reader.wrong(
            "data.rows_by",
            f'"hash", but table {by_rank[0].name!r} is a block of rows in the order of falling '
            'frequency; set data.rows_by = "vocabulary", or "code" where codes are ranks',
        )
