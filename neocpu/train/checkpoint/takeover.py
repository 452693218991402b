"""What does a run take over from a trained model, with other data, rates, tables or formats?

Tables and dense parameters go by name. A row keeps its number: by hash that asks for the same seed
and number of rows, by vocabulary for a vocabulary that begins with the old one, so that a table may
grow. Rows that were never trained, and whatever is new, start as in any new run. Optimizer states
come along where the rule is the same; another format rounds the weights to nearest.

A run that goes on (`checkpoint.load`) is another thing: there nothing may differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.errors import CheckpointError
from neocpu.core.types import Floats, Tell
from neocpu.tables.embedding.dense_optimizer import AVERAGE
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import RowMap, TableSpec
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.config.config import Config
from neocpu.train.state.blocks import Blocks
from neocpu.train.state.dense_inputs import BOTTOM, TOP, bottom_inputs, like_columns, top_inputs
from neocpu.train.state.initial import in_format, initial_rows
from neocpu.train.state.state import dense_fields

if TYPE_CHECKING:
    from neocpu.train.step.world import World

Columns = tuple[list[int], list[int]]
# rules whose states do not depend on the number of the step
UNCOUNTED = (
    "exact_sgd",
    "momentum_sgd",
    "lars_sgd",
    "exact_adagrad",
    "ftrl",
    "exact_rowwise_adagrad",
)


@dataclass
class Account:
    """What was taken over and what was not, for people.

    tables, dense : names that were. fresh : what starts as in a new run, and why. left : tables of
    the older model that are in it no more.
    """

    tables: list[str] = field(default_factory=list)
    dense: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def same_rule(before: SparseOptimizer, now: SparseOptimizer) -> bool:
    """Whether states of one optimizer mean the same to the other."""
    return before.rule is now.rule


def notes_of(file: CheckpointFile, config: Config) -> dict[str, object]:
    """What the config of a run notes of the checkpoint that it starts from: values by key."""
    notes: dict[str, object] = {"training.init_digest": file.digest}
    before = file.config().optimizer
    for name in ("sparse", "dense"):
        old = getattr(before, name)
        new = getattr(config.optimizer, name)
        counted = new.rule.name not in UNCOUNTED
        # bias corrections and counters go on from there; schedules begin anew
        if config.training.init_state and counted and same_rule(old, new):
            notes[f"optimizer.{name}.steps_before"] = file.step + old.steps_before
    return notes


def check(file: CheckpointFile, config: Config) -> None:
    """Raise CheckpointError where rows of the checkpoint would mean other values in this config."""
    before = file.config()
    old_by = before.data.rows_by
    new_by = config.data.rows_by
    if old_by != new_by:
        raise CheckpointError(
            f"{file.path}: its rows were chosen by {old_by}, and data.rows_by is now {new_by!r}: "
            f"every value would meet the row of another; set data.rows_by = {old_by!r}"
        )
    # the seed is the hash's
    if new_by == "hash" and before.training.seed != config.training.seed:
        raise CheckpointError(
            f"{file.path}: was trained with training.seed = {before.training.seed}, which decides "
            f"the row of every value; it is now {config.training.seed}. Set it back"
        )
    _refuse_moved_rows(file, before, config)
    old_tables = {spec.name: spec for spec in before.model_tables}
    for spec in config.model_tables:
        old = old_tables.get(spec.name)
        if old is None or _stranger(old, spec):
            continue
        # codes of a vocabulary keep their rows as it grows; a hash is modulo the rows
        if new_by != "vocabulary" and old.rows != spec.rows:
            raise CheckpointError(
                f"{file.path}: table {spec.name} has {old.rows} rows there and {spec.rows} here; "
                f"rows are chosen by {new_by}, so with another number of rows every value would "
                f"meet the row of another. Set tables.{spec.name}.rows = {old.rows}, or give the "
                f"table another name (with features = {list(spec.features)}) to let it start "
                'afresh; tables whose rows come from a vocabulary (data.rows_by = "vocabulary") '
                "can grow"
            )
        if old.rows > spec.rows:
            raise CheckpointError(
                f"{file.path}: table {spec.name} has {old.rows} rows there and only {spec.rows} "
                f"here; set tables.{spec.name}.rows = {old.rows} or more"
            )


def _refuse_moved_rows(file: CheckpointFile, before: Config, now: Config) -> None:
    """Raise CheckpointError for a table whose rows had moved: where they are is not taken over."""
    moved = {each.table for each in before.compositions if each.dynamic is not None}
    for composition in now.compositions:
        if composition.dynamic is not None and composition.table in moved:
            name = composition.table
            raise CheckpointError(
                f"{file.path}: the rows of table {name} moved as it was trained, and which of them "
                "each value has then is known to that run only: go on with it (--resume), or give "
                f"the table another name (with its features) to let it start afresh"
            )


def _stranger(before: TableSpec, now: TableSpec) -> str:
    """Why a table is another one in spite of its name; "": it is not."""
    if before.dim != now.dim:
        return f"its rows had {before.dim} columns and have {now.dim}"
    if not set(before.features) & set(now.features):
        return f"it was of {', '.join(before.features)} and is of {', '.join(now.features)}"
    old_maps = _maps(before)
    for key, row_map in _maps(now).items():
        # a part of a kind has the name and shape of before, but its rows stand for others
        if key in old_maps and not row_map.keeps_rows_of(old_maps[key]):
            return f"rows of {key[0]} have other places in it now, by the keys of its kind"
    return ""


def _maps(spec: TableSpec) -> dict[tuple[str, int], RowMap]:
    """(feature, number among those of the feature) -> row map, of a part of a table of a kind."""
    maps: dict[tuple[str, int], RowMap] = {}
    for feature, row_map in zip(spec.features, spec.maps):
        # a feature may look one part up in several ways
        number = sum(name == feature for name, _ in maps)
        maps[feature, number] = row_map
    return maps


def take_over(file: CheckpointFile, world: "World", dense_names: list[str] | None) -> Account:
    """Give a world that was just built what the checkpoint has for it, on this rank's share.

    dense_names : of the dense features at hand (None: not known).

    Raises CheckpointError for a broken block, and where nothing at all is taken over.
    """
    account = Account()
    before = file.config()
    _dense(file, before, world, dense_names, account)
    world.model.settle(0, world.model.flat.size, 0)
    # from the weights that were taken over, not from the initial ones
    world.dense.restart_average()
    _tables(file, before, world, account)
    if not (account.tables or account.dense):
        raise CheckpointError(
            f"{file.path}: nothing of it fits this config: {'; '.join(account.fresh)}"
        )
    return account


# ---- dense parameters ----


def _dense(
    file: CheckpointFile, before: Config, world: "World", names: list[str] | None, account: Account
) -> None:
    """Dense parameters and, where the rule is the same, their optimizer's state."""
    config = world.config
    rules = before.optimizer.dense, config.optimizer.dense
    with_state = config.training.init_state and same_rule(*rules)
    _say_states(account, "dense parameters", rules, config.training.init_state)
    if world.dense.factors:
        # gathered in other steps, of blocks that the layers at hand perhaps do not have
        account.fresh.append("factors of optimizer.shampoo")
    if world.model.precision.state:
        account.fresh.append("scales of model.precision")
    old_names = file.data().get("dense")
    present = {tensor.name: number for number, tensor in enumerate(file.tensors)}
    for name, fields in dense_fields(world).items():
        number = present.get(f"dense/{name}")
        if number is None:
            account.fresh.append(f"{name}, which is new")
            continue
        stored = _whole(file, number)
        old = stored["value"]
        new = fields["value"]
        columns: Columns | None = None
        if name == BOTTOM:
            columns = like_columns(
                bottom_inputs(old.shape[1], old_names), bottom_inputs(new.shape[1], names)
            )
        elif name == TOP:
            columns = like_columns(top_inputs(before), top_inputs(config))
        elif old.shape != new.shape:
            account.fresh.append(f"{name}, which had shape {old.shape} and has {new.shape}")
            continue
        if old.shape[0] != new.shape[0]:
            account.fresh.append(f"{name}, which had {old.shape[0]} outputs and has {len(new)}")
            continue
        _copy(fields, stored, columns, with_state)
        account.dense.append(name)
        if columns is not None and len(columns[0]) < new.shape[1]:
            count = new.shape[1] - len(columns[0])
            account.fresh.append(f"{count} of {new.shape[1]} columns of {name}")


def _whole(file: CheckpointFile, number: int) -> dict[str, Floats]:
    """All fields of a dense parameter, verified."""
    parts = [blocks.values for blocks in file.blocks(number)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _copy(
    fields: Mapping[str, Floats],
    stored: Mapping[str, Floats],
    columns: Columns | None,
    with_state: bool,
) -> None:
    """Copy "value" and, where asked for, the states of the rule.

    columns : that both have, here and there (None: all).
    """
    for name, values in fields.items():
        if name == AVERAGE or (name != "value" and not (with_state and name in stored)):
            continue
        if columns is None or values.ndim == 1:
            values[:] = stored[name]
        else:
            to, source = columns
            values[:, to] = stored[name][:, source]


# ---- tables ----


def _tables(file: CheckpointFile, before: Config, world: "World", account: Account) -> None:
    """This rank's shards of the tables, and what there is to say of all tables."""
    config = world.config
    optimizer = config.optimizer.sparse
    rules = before.optimizer.sparse, optimizer
    with_state = config.training.init_state and same_rule(*rules)
    _say_states(account, "tables", rules, config.training.init_state)
    old_tables = {spec.name: spec for spec in before.tables}
    for spec in config.tables:
        old = old_tables.get(spec.name)
        if old is None:
            account.fresh.append(f"table {spec.name}, which is new")
        elif why := _stranger(old, spec):
            account.fresh.append(f"table {spec.name}: {why}")
        else:
            account.tables.append(_described(old, spec))
    names = [spec.name for spec in config.tables]
    account.left = [name for name in old_tables if name not in names]
    for i, shard in enumerate(world.plan.local(world.comm.rank)):
        spec = config.tables[shard.table]
        old = old_tables.get(spec.name)
        if old is None or _stranger(old, spec):
            continue
        number = file.number(f"tables/{spec.name}")
        first, end = shard.rows
        for blocks in file.blocks(number, first, min(end, old.rows)):
            inside = slice(*np.searchsorted(blocks.rows, (first, end)))
            rows = blocks.rows[inside]
            values = initial_rows(spec, optimizer, config.training.seed, rows)
            # fields that are not taken over keep their initial values
            values |= _converted(blocks, inside, old, spec, with_state)
            cols = slice(*shard.cols)
            own = {name: x[:, cols] if x.ndim == 2 else x for name, x in values.items()}
            world.embedding.tbe.load_rows(i, rows - first, own)


def _converted(
    blocks: Blocks, inside: slice, before: TableSpec, now: TableSpec, with_state: bool
) -> dict[str, Floats]:
    """The fields of some rows that are taken over, in the table's format."""
    stored = {name: value[inside] for name, value in blocks.values.items()}
    scales = ("weight_scale", "weight_bias")
    if before.format == now.format:
        taken = {name: stored[name] for name in ("weight", *scales) if name in stored}
    else:
        # codes would be another number in another format; the scales of before are of no use
        taken = in_format(now, np.ascontiguousarray(stored["weight"]))
    if with_state:
        states = (name for name in stored if name not in ("weight", *scales))
        taken |= {name: stored[name] for name in states}
    return taken


def _described(before: TableSpec, now: TableSpec) -> str:
    """A table that is taken over, and what is different with it."""
    changes = []
    if before.rows != now.rows:
        changes.append(f"{before.rows:,} rows became {now.rows:,}")
    if before.format != now.format:
        changes.append(f"{before.format} became {now.format}")
    if new := [name for name in now.features if name not in before.features]:
        changes.append(f"also of {', '.join(new)} now")
    return f"{now.name} ({', '.join(changes)})" if changes else now.name


def _say_states(
    account: Account, what: str, rules: tuple[SparseOptimizer, SparseOptimizer], init_state: bool
) -> None:
    """Note whether optimizer states start afresh."""
    before, now = rules
    states = f"optimizer states of {what}"
    if not init_state and now.rule.element_state + now.rule.row_state:
        account.fresh.append(f"{states} (training.init_state is false)")
    elif not same_rule(before, now):
        account.fresh.append(f"{states} ({before.name} became {now.name})")


def say(account: Account, file: CheckpointFile, tell: Tell) -> None:
    """Tell in a few lines what was taken over and what was not."""
    tell(
        f"starting from {file.path}, step {file.step} (digest {file.digest[:12]}…): "
        f"{len(account.tables)} tables, {len(account.dense)} dense parameters"
    )
    changed = [name for name in account.tables if "(" in name]
    for title, names in (
        ("changed", changed),
        ("starting afresh", account.fresh),
        ("left behind: table", account.left),
    ):
        if names:
            more = f"; and {len(names) - 12} more" if len(names) > 12 else ""
            tell(f"  {title}: {'; '.join(names[:12])}{more}")
