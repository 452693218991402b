"""What does a model cost, and what does a mixture of models cost on average?

A cost is a sum of products of sizes, each a number for every choice of one decision:

    parameters of a layer   in * out + out        those of a table   rows * dim
    flops of a layer        2 * in * out          of a bag of l rows  (l - 1) * dim additions

Decisions are drawn independently and no product has one twice, so the cost that is expected under
probabilities is the same sum of expected sizes, exactly. The seconds of a step are no such sum: the
planner is asked for each choice of a decision beside the largest of all others, and what they save
is added up.

`search.cost` of a config names these formulas, or the planner.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Doubles
from neocpu.parallel.sharding.plan import AUTO
from neocpu.parallel.transport.comm import Comm
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import StepSeconds
from neocpu.plan.search.planners import planner_of
from neocpu.train.before.plans import planning_machine, workload
from neocpu.train.before.scenario import dense_work
from neocpu.train.config.config import Config
from neocpu.train.model.layout import ModelLayout
from neocpu.train.search.draws import in_order, one_hot
from neocpu.train.search.space import Choice, Decision, Space, TableChoice, plain_config

# of decisions, by name: f64[choices]
Mixtures = Mapping[str, Doubles]


class Size(NamedTuple):
    """A number for each choice of a decision."""

    decision: Decision
    values: tuple[float, ...]

    @classmethod
    def of(cls, decision: Decision, scale: float = 1.0) -> "Size":
        """The choices themselves, times a number."""
        return cls(decision, tuple(scale * choice for choice in decision.choices))

    @classmethod
    def constant(cls, value: float) -> "Size":
        """A number that nothing decides."""
        return cls(Decision("", (0,)), (value,))

    def expected(self, mixtures: Mixtures) -> float:
        """The mean under a mixture of the decision, if it is one."""
        if not self.decision.open:
            return self.values[0]
        return in_order(mixtures[self.decision.name] * np.array(self.values))


@dataclass(frozen=True)
class ModelCost:
    """What models of a space cost: `products` of sizes, summed; unit : of the sum."""

    products: tuple[tuple[Size, ...], ...]
    unit: str

    def expected(self, mixtures: Mixtures) -> float:
        """The mean cost under mixtures of all decisions, drawn independently."""
        # decisions are drawn independently, so the mean of a product is the product of means
        return in_order(_product(sizes, mixtures) for sizes in self.products)

    def gradients(self, mixtures: Mixtures) -> dict[str, Doubles]:
        """Gradient f64[choices] of the mean cost by each decision's mixture."""
        gradients = {name: np.zeros(len(m)) for name, m in mixtures.items()}
        for sizes in self.products:
            for size in sizes:
                if size.decision.open:
                    # a mean is linear in each mixture, so what the others make is the slope
                    rest = _product([other for other in sizes if other is not size], mixtures)
                    gradients[size.decision.name] += rest * np.array(size.values)
        return gradients

    def of(self, choice: Choice, space: Space) -> float:
        """The cost of one model."""
        return self.expected(hard(choice, space))


def hard(choice: Choice, space: Space) -> dict[str, Doubles]:
    """Mixtures that take one choice of each decision."""
    return {
        decision.name: one_hot(len(decision.choices), decision.choices.index(choice[decision.name]))
        for decision in space.decisions
    }


def _product(sizes: "tuple[Size, ...] | list[Size]", mixtures: Mixtures) -> float:
    product = 1.0
    for size in sizes:
        product *= size.expected(mixtures)
    return product


@dataclass(frozen=True)
class CostInputs:
    """What a cost is made of beside the space.

    config : that the space was made of. dense_features : inputs of the bottom MLP. pooling : mean
    lookups of a sample, by table. distinct : distinct codes that a step looks up, by table.
    """

    config: Config
    dense_features: int
    pooling: Mapping[str, float] = field(default_factory=dict)
    distinct: Mapping[str, float] = field(default_factory=dict)


def parameters(space: Space, cost_inputs: CostInputs) -> ModelCost:
    """Weights, biases and rows."""
    products: list[tuple[Size, ...]] = []
    for inputs, outputs in _layers(space, cost_inputs):
        products += [(size, outputs) for size in inputs]
        products.append((outputs,))
    products += [(Size.of(table.rows), Size.of(table.dim)) for table in space.tables]
    if space.projected:
        products += [(_projection(table),) for table in space.tables]
    products.append((Size.constant(float(_between(_largest(space, cost_inputs)))),))
    return ModelCost(tuple(products), "parameters")


def flops(space: Space, cost_inputs: CostInputs) -> ModelCost:
    """Floating-point operations of the forward pass of a sample: 2 for each weight of a layer or an
    interaction and each column of a pair of dot products, 1 for each addition of a bag.
    """
    products: list[tuple[Size, ...]] = []
    for inputs, outputs in _layers(space, cost_inputs):
        products += [(Size.constant(2.0), size, outputs) for size in inputs]
    for table in space.tables:
        name = table.spec.name
        features = len(table.spec.features)
        # a bag of n rows takes n - 1 additions; one lookup a bag where nothing is known
        additions = max(cost_inputs.pooling.get(name, float(features)) - features, 0.0)
        products.append((Size.of(table.dim, additions),))
        if space.projected:
            products.append((Size.constant(2.0 * features), _projection(table)))
    largest = _largest(space, cost_inputs)
    products.append((Size.constant(2.0 * _between(largest)),))
    if vectors := largest.dot_vectors:
        pairs = vectors * (vectors - 1) // 2 + (vectors if largest.diagonal else 0)
        products.append((Size.constant(2.0 * pairs * largest.first_column),))
    return ModelCost(tuple(products), "flops")


def seconds(space: Space, ask: Callable[[Choice], float]) -> ModelCost:
    """Seconds of a step; ask : the planner's answer for one model."""
    # the planner is asked once for each choice, not for each model: savings are taken to add up
    base = ask(space.largest)
    products: list[tuple[Size, ...]] = [(Size.constant(base),)]
    for decision in space.decisions:
        saved = [
            ask({**space.largest, decision.name: choice}) - base for choice in decision.choices[:-1]
        ]
        products.append((Size(decision, (*saved, 0.0)),))
    return ModelCost(tuple(products), "seconds")


def _layers(space: Space, cost_inputs: CostInputs) -> list[tuple[list[Size], Size]]:
    """(inputs, outputs) of each layer; inputs that stand side by side are added."""
    bottom = [Size.constant(float(cost_inputs.dense_features)), *map(Size.of, space.bottom)]
    top = [*map(Size.of, space.top), Size.constant(1.0)]
    if not space.projected:
        into_top = [bottom[-1]]
        into_top += [Size.of(table.dim, len(table.spec.features)) for table in space.tables]
    else:  # which nothing decides
        into_top = [Size.constant(float(_largest(space, cost_inputs).interaction_width))]
    layers = [([inputs], outputs) for inputs, outputs in pairwise(bottom)]
    layers.append((into_top, top[0]))
    return layers + [([inputs], outputs) for inputs, outputs in pairwise(top)]


def _projection(table: TableChoice) -> Size:
    """Weights of the projection of narrow rows: [most columns, columns]."""
    most = table.dim.largest
    return Size(
        table.dim,
        tuple(float(most * columns * (columns < most)) for columns in table.dim.choices),
    )


def _largest(space: Space, cost_inputs: CostInputs) -> ModelLayout:
    """The layout of the largest model."""
    return plain_config(cost_inputs.config, space, space.largest).layout(cost_inputs.dense_features)


def _between(layout: ModelLayout) -> int:
    """Parameters of what is neither the bottom MLP nor the top MLP."""
    return sum(
        math.prod(shape)
        for name, shape in layout.tensors()
        if not name.startswith(("bottom.", "top."))
    )


PRECISION = "fp32"


def cost_of(name: str, space: Space, inputs: CostInputs, comm: Comm) -> ModelCost:
    """The cost of a name in `config.search.COSTS`; rank 0 asks the planner. Collective."""
    if name == "parameters":
        return parameters(space, inputs)
    if name == "flops":
        return flops(space, inputs)
    answers: dict[str, float] = {}

    def ask(choice: Choice) -> float:
        key = json.dumps(choice)
        if key not in answers:
            answers[key] = step_seconds(plain_config(inputs.config, space, choice), inputs)
        return answers[key]

    def all_answers() -> dict[str, float]:
        seconds(space, ask)
        return answers

    # planning takes a while, and all ranks need equal numbers
    answers = comm.on_first_rank(all_answers)
    return seconds(space, ask)


def step_seconds(config: Config, inputs: CostInputs) -> float:
    """Seconds that the planner expects of a step of one model on search.cost_ranks ranks of
    parallel.machine, under the best plan and without limits of memory. Nothing that a run may
    choose as it likes (its plan, ranks or memories) has an effect.
    """
    machine = planning_machine(config)
    ranks = config.search.cost_ranks
    layout = Layout(ranks, min(machine.ranks_per_node, ranks), config.parallel.route)
    work = replace(
        workload(config, inputs.pooling, _distinct(config, inputs)),
        dense=dense_work(config, inputs.dense_features, PRECISION),
        # no bit of the model depends on it, so the search should not either
        unique_rows="off",
    )
    model = StepSeconds(machine, config.tables, work, layout)
    propose = planner_of(config.parallel.planner)
    return propose(config.tables, AUTO, layout, model, work, None).seconds


def _distinct(config: Config, inputs: CostInputs) -> Mapping[str, float]:
    """Distinct rows of a step: no more than a table has."""
    rows = {table.name: table.rows for table in config.tables}
    return {name: min(distinct, rows[name]) for name, distinct in inputs.distinct.items()}
