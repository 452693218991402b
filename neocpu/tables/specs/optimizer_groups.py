"""Which tables and dense parameters learn at rates of their own? Those of `[optimizer.groups]`; and
all where the batch is larger than that of the given rates (`[optimizer.scaling]`).

    [optimizer.groups.rare]
    tables = ["C3", "C1*"]        names or shell patterns of tables
    dense = ["top.*"]             names or shell patterns of dense parameters
    learning_rate = 0.1           times that of their section

A group changes numbers of `optimizer.sparse` and `optimizer.dense`, never their rules, so it needs
no kernel of its own: hyper-parameters are arguments of the kernels (`docs/arithmetic.md` §5).

By CowClip's rule (Zheng et al. 2022, arXiv 2204.06240; code bytedance/LargeBatchCTR), for s = batch
size / base batch size:

    learning rate of tables     as it is
    weight decay of tables      times s
    learning rate of the rest   times sqrt(s), after a warm-up of one epoch

What follows is noted in checkpoints like any key that was chosen for a run.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, NamedTuple

from neocpu.core.errors import ConfigError
from neocpu.core.records import Limits, changed
from neocpu.tables.specs.optimizers import SparseOptimizer

AS_SECTION = -1  # of warmup_steps


@dataclass(frozen=True)
class OptimizerGroup:
    """Tables and dense parameters with a learning rate, a weight decay and a warm-up of their own.

    tables : names of tables, or shell patterns of them ("C1*").
    dense : of dense parameters ("top.*", "bottom.0.weight").
    learning_rate : factor on the rate of `optimizer.sparse` or `optimizer.dense`, its
        `end_learning_rate` included.
    weight_decay : factor on their weight decay.
    warmup_steps : in which the rate grows from 0, in place of those of the section (-1: as the
        section says; 0: none).
    """

    tables: tuple[str, ...] = ()
    dense: tuple[str, ...] = ()
    learning_rate: float = 1.0
    weight_decay: float = 1.0
    warmup_steps: Annotated[int, Limits(least=AS_SECTION)] = AS_SECTION

    def optimizer(self, section: SparseOptimizer) -> SparseOptimizer:
        """The section's optimizer with the numbers of this group."""
        schedule = section.schedule
        end = schedule.end_learning_rate * self.learning_rate
        warmup = schedule.warmup_steps if self.warmup_steps == AS_SECTION else self.warmup_steps
        return replace(
            section,
            learning_rate=section.learning_rate * self.learning_rate,
            weight_decay=section.weight_decay * self.weight_decay,
            schedule=replace(schedule, warmup_steps=warmup, end_learning_rate=end),
        )


Groups = Mapping[str, OptimizerGroup]


class ParameterRun(NamedTuple):
    """Dense parameters [first, end) of the flat array, and their optimizer."""

    first: int
    end: int
    optimizer: SparseOptimizer


def group_names(
    aliases: Mapping[str, Sequence[str]], patterns: Mapping[str, Sequence[str]], kind: str
) -> dict[str, str]:
    """The group of each name that is in one.

    aliases : what each name goes by.
    patterns : of each group.
    kind : of what they are names, the key that has them.

    Raises ConfigError for a pattern that matches nothing, and a name that two groups match.
    """
    group_of: dict[str, str] = {}
    for group, group_patterns in patterns.items():
        key = f"optimizer.groups.{group}.{kind}"
        for pattern in group_patterns:
            matches = [
                name
                for name, spellings in aliases.items()
                if any(fnmatchcase(spelling, pattern) for spelling in spellings)
            ]
            if not matches:
                raise ConfigError(f"{key}: nothing matches {pattern!r} of {', '.join(aliases)}")
            for name in matches:
                if group_of.setdefault(name, group) != group:
                    raise ConfigError(f"{key}: {name} is in group {group_of[name]} already")
    return group_of


def table_optimizers(
    aliases: Mapping[str, Sequence[str]], section: SparseOptimizer, groups: Groups
) -> dict[str, SparseOptimizer]:
    """The optimizer of every table; aliases : what each goes by.

    Raises ConfigError as `group_names`, and for a group without anything in it.
    """
    for key, group in groups.items():
        if not (group.tables or group.dense):
            raise ConfigError(f"optimizer.groups.{key}: name its tables, or dense parameters")
    tables = {key: group.tables for key, group in groups.items()}
    group_of = group_names(aliases, tables, "tables")
    optimizers = {key: group.optimizer(section) for key, group in groups.items()}
    return {name: optimizers.get(group_of.get(name, ""), section) for name in aliases}


def dense_runs(
    sizes: Mapping[str, int], section: SparseOptimizer, groups: Groups
) -> tuple[ParameterRun, ...]:
    """Runs of dense parameters with one optimizer; sizes : of the parameters in their order.

    Raises ConfigError as `group_names`.
    """
    dense = {key: group.dense for key, group in groups.items()}
    group_of = group_names({name: (name,) for name in sizes}, dense, "dense")
    optimizers = {key: group.optimizer(section) for key, group in groups.items()}
    runs: list[ParameterRun] = []
    first = 0
    for name, size in sizes.items():
        optimizer = optimizers.get(group_of.get(name, ""), section)
        # as few runs as possible: each is a call of the kernel at every step
        if runs and runs[-1].optimizer == optimizer:
            runs[-1] = runs[-1]._replace(end=first + size)
        else:
            runs.append(ParameterRun(first, first + size, optimizer))
        first += size
    return tuple(runs)


def header_of(groups: Groups) -> dict[str, object]:
    """What decides the bits: keys that are at their defaults are left out."""
    return {name: changed(group) for name, group in groups.items()}


NO_SCALING = "none"
SCALING_RULES = (NO_SCALING, "cowclip")
MOST_EPOCHS = 10**6
SECTION = "optimizer.scaling."
WARMUP = "optimizer.dense.schedule.warmup_steps"


@dataclass(frozen=True)
class BatchScaling:
    """How rates follow from those of a base batch.

    rule : "none": they are as they are given; "cowclip": weight decay of tables times s, learning
        rate of dense parameters times sqrt(s), s = training.batch_size / base_batch_size.
    base_batch_size : for which learning rates and weight decay are given.
    warmup_epochs : epochs in which the rate of dense parameters grows from 0, also parts of one.
    """

    rule: Annotated[str, Limits(SCALING_RULES)] = NO_SCALING
    base_batch_size: int = 0
    warmup_epochs: float = 1.0

    def faults(self, dense: SparseOptimizer) -> Iterator[tuple[str, str]]:
        """(key, what is wrong with it) of values that do not go together."""
        if self.rule == NO_SCALING:
            if self.base_batch_size:
                yield "rule", "it is not set, so base_batch_size is void; choose cowclip"
            return
        if not self.base_batch_size:
            yield "base_batch_size", f"the rule {self.rule} needs the batch of the given rates"
        if self.warmup_epochs > MOST_EPOCHS:
            yield "warmup_epochs", f"{self.warmup_epochs:g} is too large; at most {MOST_EPOCHS:,}"
        if self.warmup_epochs and dense.schedule.warmup_steps:
            why = f"{WARMUP} is set too; leave it out, or set warmup_epochs = 0"
            yield "warmup_epochs", why

    def derived(
        self,
        sparse: SparseOptimizer,
        dense: SparseOptimizer,
        batch_size: int,
        samples: int,
    ) -> dict[str, float | str]:
        """Values by key for a run over so many train samples; {} where the rule is none.

        They are in place of the given ones, and the rule is none then.
        """
        if self.rule == NO_SCALING:
            return {}
        s = batch_size / self.base_batch_size
        values: dict[str, float | str] = {
            # what follows is noted in checkpoints: a run that resumes must not scale once more
            f"{SECTION}rule": NO_SCALING,
            f"{SECTION}base_batch_size": 0,
            "optimizer.sparse.weight_decay": sparse.weight_decay * s,
            "optimizer.dense.learning_rate": dense.learning_rate * math.sqrt(s),
        }
        if dense.schedule.end_learning_rate:
            end = dense.schedule.end_learning_rate * math.sqrt(s)
            values["optimizer.dense.schedule.end_learning_rate"] = end
        if self.warmup_epochs:
            values[WARMUP] = round(self.warmup_epochs * -(-samples // batch_size))
        return values


def scaling_text(batch_size: int, values: Mapping[str, object]) -> str:
    """What was derived for a batch size, for people."""
    rates = sorted((key, value) for key, value in values.items() if not key.startswith(SECTION))
    shown = ", ".join(f"{key} = {value:.6g}" for key, value in rates)
    return f"rates for batches of {batch_size:,}: {shown}"
