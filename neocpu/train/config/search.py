"""Which keys of a config describe a search for a smaller model? The section `search`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated

from neocpu.core.records import Limits
from neocpu.parallel.settings import ParallelConfig

COSTS = ("parameters", "flops", "seconds")
PICKS = ("argmax", "sample")


@dataclass(frozen=True)
class SearchConfig:
    """What `neocpu search` may choose, and how it learns to; no other command reads these keys
    (docs/search.md).

    bottom, top : a list of widths for each layer, `[[32, 64, 128], [16]]`; the top's last layer,
        the logit, has none (empty: the widths of the model stay).
    dims, rows : columns and rows to choose from, by tables or shell patterns of their names:
        `{ "C*" = [2, 4, 8] }`. A table's own name wins, else the first pattern that matches.
    split : share of the train samples that weights learn from, the first in the log's order; the
        probabilities of the choices learn from the rest.
    warmup_steps : steps in which only weights learn (0: a fifth of the run).
    every : steps on weights for each step on the probabilities.
    temperature : of the samples at first. decay : what it is multiplied by from time to time.
    decay_steps : after each so many steps (0: a thirtieth of the run).
    learning_rate : of the logits of the choices, under the rule of optimizer.dense.
    cost : what a model costs: its parameters, the flops of a sample, or the seconds of a step that
        the planner expects.
    cost_weight : added to the loss for a model that costs as much as the largest.
    cost_ranks : ranks of parallel.machine that these seconds are asked for.
    pick : which choices are taken in the end: the most probable ones, or a sample.
    supernet : whether the config is that of the largest model, which a search makes and notes.
    """

    bottom: tuple[tuple[int, ...], ...] = ()
    top: tuple[tuple[int, ...], ...] = ()
    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    split: float = 0.8
    warmup_steps: int = 0
    every: Annotated[int, Limits(least=1)] = 1
    temperature: float = 2.0
    decay: float = 0.9
    decay_steps: int = 0
    learning_rate: float = 0.3
    cost: Annotated[str, Limits(COSTS)] = "parameters"
    cost_weight: float = 0.01
    cost_ranks: Annotated[int, Limits(least=1)] = 1
    pick: Annotated[str, Limits(PICKS)] = "argmax"
    supernet: bool = False

    def header(self, parallel: ParallelConfig) -> dict[str, object]:
        """The keys that decide the bits of a search; parallel : of which the planner reads some."""
        header = asdict(self)
        # the planner's answer enters the loss, so what it is asked decides bits
        if self.cost == "seconds":
            header |= {name: getattr(parallel, name) for name in ("machine", "planner", "route")}
        return header
