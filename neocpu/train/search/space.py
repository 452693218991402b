"""Which models may a search choose from? Its decisions, and the largest model, which holds all.

A decision is a number of the model with several choices. In the supernet they are

    bottom.0, top.0   widths of a layer    one layer of the largest width, units masked
    C3.dim            columns of a table   one table of the most columns, columns masked; where
                                           the model needs vectors of one width, the others are 0,
                                           and the found model has a projection (kind "md")
    C3.rows           rows of a table      a table for each number of rows, their vectors mixed
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from neocpu.core.errors import ConfigError
from neocpu.core.records import toml_key
from neocpu.tables.specs.specs import TableKeys, TableSpec
from neocpu.train.config.asynchronous import OFF
from neocpu.train.config.config import Config, loads
from neocpu.train.config.defaults import as_overrides

# the table kind of rows that are projected, and its key for their columns
NARROW = "md"
NARROW_COLUMNS = "own_dim"
MOST_TEMPERATURE = 1e6
# of decisions, by name
Choice = Mapping[str, int]


class Decision(NamedTuple):
    """A number of the model that may be chosen: `choices`, ascending; one of them is no choice."""

    name: str
    choices: tuple[int, ...]

    @property
    def open(self) -> bool:
        """Whether there is anything to choose."""
        return len(self.choices) > 1

    @property
    def largest(self) -> int:
        """The last of the choices."""
        return self.choices[-1]


class TableChoice(NamedTuple):
    """A table whose columns and rows are decisions; spec : as the config has it."""

    spec: TableSpec
    dim: Decision
    rows: Decision

    @property
    def parts(self) -> tuple[TableSpec, ...]:
        """The tables that stand for it in the supernet, one for each number of rows; the largest
        has its name, which patterns of the config know.
        """
        name = self.spec.name
        return tuple(
            replace(
                self.spec,
                name=name if rows == self.rows.largest else f"{name}.{rows}",
                rows=rows,
                # narrower choices are masks over the widest rows
                dim=self.dim.largest,
            )
            for rows in self.rows.choices
        )


@dataclass(frozen=True)
class Space:
    """All decisions of a model: bottom MLP, top MLP without its logit, and tables.

    projected : whether vectors of fewer columns than the most are projected to these.
    """

    bottom: tuple[Decision, ...]
    top: tuple[Decision, ...]
    tables: tuple[TableChoice, ...]
    projected: bool

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Those with more than one choice, in the order of the model."""
        of_tables = [decision for table in self.tables for decision in (table.dim, table.rows)]
        return tuple(
            decision for decision in (*self.bottom, *self.top, *of_tables) if decision.open
        )

    @property
    def largest(self) -> Choice:
        """The choice of the most everywhere."""
        return {decision.name: decision.largest for decision in self.decisions}

    @property
    def models(self) -> int:
        """How many models there are."""
        count = 1
        for decision in self.decisions:
            count *= len(decision.choices)
        return count

    def keys(self, choice: Choice) -> dict[str, object]:
        """The keys of a config that make a choice: dotted name -> value."""
        keys: dict[str, object] = {}
        for name, layers in (("bottom", self.bottom), ("top", self.top)):
            # a layer of one choice is no decision, and has no entry
            widths = [choice.get(layer.name, layer.largest) for layer in layers]
            keys[f"model.{name}"] = [*widths, *([1] if name == "top" else [])]
        for table in self.tables:
            prefix = f"tables.{toml_key(table.spec.name)}"
            if table.rows.open:
                keys[f"{prefix}.rows"] = choice[table.rows.name]
            if table.dim.open and not self.projected:
                keys[f"{prefix}.dim"] = choice[table.dim.name]
            # interactions want one width: a narrower table of the found model is projected to it
            elif table.dim.open and choice[table.dim.name] < table.dim.largest:
                keys[f"{prefix}.kind"] = NARROW
                # else small tables would stay full
                keys[f"{prefix}.kind_above"] = 0
                keys[f"{prefix}.{NARROW_COLUMNS}"] = choice[table.dim.name]
        return keys


def plain_config(config: Config, space: Space, choice: Choice) -> Config:
    """The config of one of the models; `config` is the one that the space was made of."""
    overrides = as_overrides({**config.chosen, **space.keys(choice)})
    return loads(config.text, config.source, (*config.overrides, *overrides), config.folder)


def supernet_config(config: Config, space: Space, **search: int) -> Config:
    """The config of the largest model, which has a table for each number of rows; checkpoints of a
    search hold it. search : further keys of `[search]` that it notes.
    """
    # each number of rows hashes values to other rows, so each is a table of its own
    specs = (spec for table in space.tables for spec in table.parts)
    values = {
        **config.chosen,
        **space.keys(space.largest),
        "tables": {spec.name: _table_keys(spec) for spec in specs},
        "search.supernet": True,
        **{f"search.{key}": value for key, value in search.items()},
    }
    overrides = (*config.overrides, *as_overrides(values))
    return loads(config.text, config.source, overrides, config.folder)


def _table_keys(table: TableSpec) -> dict[str, object]:
    """The keys of a config that make a table."""
    names = [key.name for key in fields(TableKeys)]
    keys = {name: value for name, value in vars(table).items() if name in names}
    if table.row_format.exact:
        del keys["rounding"]
    return keys


def space_of(config: Config) -> Space:
    """The decisions that `[search]` of a config makes.

    Raises ConfigError for what does not fit the model, and for models that no search knows.
    """
    search = config.search
    _refuse(config)
    space = Space(
        bottom=_layers(config, "bottom", search.bottom, config.model.bottom),
        top=_layers(config, "top", search.top, config.model.top[:-1]),
        tables=_tables(config),
        # vectors side by side may have any widths; products of pairs may not
        projected=config.model.interactions != ("cat",) or config.layout(1).has_first_order,
    )
    if not space.decisions:
        raise _wrong(config, "search", "there is nothing to choose; name search.top = [[32, 64]]")
    names = [spec.name for table in space.tables for spec in table.parts]
    # parts are called TABLE.ROWS, which may be a table of the config already
    if len(set(names)) < len(names):
        raise _wrong(config, "search.rows", "a table is called as a part of another would be")
    if space.projected:
        _check_vectors(config, space)
    return space


def _refuse(config: Config) -> None:
    """Raise ConfigError for keys that a search does not go with."""
    search = config.search
    if not 0 < search.split < 1:
        raise _wrong(config, "search.split", f"{search.split} must be between 0 and 1")
    for key in ("temperature", "decay"):
        if not getattr(search, key):
            raise _wrong(config, f"search.{key}", "it must be above 0")
    if search.temperature > MOST_TEMPERATURE:
        why = f"{search.temperature:g} is too large; at most {MOST_TEMPERATURE:g}"
        raise _wrong(config, "search.temperature", why)
    if search.decay > 1:
        raise _wrong(config, "search.decay", f"{search.decay:g} must be at most 1")
    if config.model.towers:
        raise _wrong(config, "model.towers", "a model with towers cannot be searched yet")
    if config.model.heads:
        raise _wrong(config, "model.heads", "a model of several heads cannot be searched yet")
    if config.compositions:
        raise _wrong(config, "tables", "tables of other kinds than full cannot be searched yet")
    if config.optimizer.clip_norm:
        raise _wrong(config, "optimizer.clip_norm", "a search does not know it; leave it out")
    if config.training.sync == OFF:
        raise _wrong(config, "training.sync", "a search takes its steps on all ranks together")
    if config.optimizer.trust_ratio:
        raise _wrong(config, "optimizer.trust_ratio", "a search does not know it; leave it out")
    if config.model.precision.header():
        raise _wrong(config, "model.precision.format", "a search does not know it; leave it out")
    if config.optimizer.in_blocks:
        key = "muon.steps" if config.optimizer.muon.steps else "shampoo.every"
        raise _wrong(config, f"optimizer.{key}", "a search does not know it; leave it out")
    if config.training.init_from:
        raise _wrong(config, "training.init_from", "a search starts with initial values")


def _check_vectors(config: Config, space: Space) -> None:
    """Raise ConfigError where an interaction would get vectors of other widths than it is for."""
    searched = any(table.dim.open for table in space.tables)
    if searched and config.layout(1).has_first_order:
        raise _wrong(config, "search.dims", "a model with first-order terms has one width of rows")
    names = ", ".join(config.model.interactions)
    if space.bottom[-1].open:
        raise _wrong(
            config,
            "search.bottom",
            f"interactions {names} need vectors of one width; give the last layer one width, or "
            "set model.interaction = 'cat'",
        )
    for table in space.tables:
        if table.dim.largest != table.spec.dim:
            raise _wrong(
                config,
                "search.dims",
                f"interactions {names} need vectors of one width, which narrower rows are "
                f"projected to: the most for table {table.spec.name!r} must be {table.spec.dim}",
            )


def _wrong(config: Config, key: str, why: str) -> ConfigError:
    return ConfigError(f"{config.source}: {key}: {why}")


def _layers(
    config: Config, name: str, choices: Sequence[Sequence[int]], widths: Sequence[int]
) -> tuple[Decision, ...]:
    """A decision for each layer of an MLP."""
    choices = choices or [(width,) for width in widths]
    if len(choices) != len(widths):
        but = " before the logit" if name == "top" else ""
        raise _wrong(
            config,
            f"search.{name}",
            f"{len(choices)} lists of widths, but model.{name} has {len(widths)} layers{but}; give "
            "one list for each, of one width where it is to stay",
        )
    return tuple(
        Decision(f"{name}.{layer}", _ascending(config, f"search.{name}", numbers))
        for layer, numbers in enumerate(choices)
    )


def _tables(config: Config) -> tuple[TableChoice, ...]:
    """Decisions on the columns and rows of each table."""
    names = [table.name for table in config.tables]
    choices: dict[str, list[tuple[int, ...]]] = {}
    for key in ("dims", "rows"):
        by_pattern: Mapping[str, tuple[int, ...]] = getattr(config.search, key)
        for pattern in by_pattern:
            if not any(pattern == name or fnmatchcase(name, pattern) for name in names):
                raise _wrong(config, f"search.{key}", f"no table matches {pattern!r}")
        choices[key] = [_first_match(name, by_pattern) for name in names]
    return tuple(
        TableChoice(
            table,
            Decision(f"{table.name}.dim", _ascending(config, "search.dims", dims or (table.dim,))),
            Decision(
                f"{table.name}.rows", _ascending(config, "search.rows", rows or (table.rows,))
            ),
        )
        for table, dims, rows in zip(config.tables, choices["dims"], choices["rows"])
    )


def _first_match(name: str, by_pattern: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """What a table gets: by its own name, else by the first pattern that matches it."""
    if name in by_pattern:
        return by_pattern[name]
    return next(
        (numbers for pattern, numbers in by_pattern.items() if fnmatchcase(name, pattern)), ()
    )


def _ascending(config: Config, key: str, numbers: Sequence[int]) -> tuple[int, ...]:
    """Choices in ascending order. Raises ConfigError where one is there twice, or none is."""
    if not numbers or len(set(numbers)) < len(numbers):
        raise _wrong(config, key, f"{list(numbers)} must be different numbers, at least one")
    # masks count from the smallest choice up
    return tuple(sorted(numbers))
