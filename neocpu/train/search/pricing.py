"""Which cost does `search.cost` of a config name? The formulas of `cost.py`, or the planner's."""

import json
from collections.abc import Mapping
from dataclasses import replace

from neocpu.parallel.sharding.plan import AUTO
from neocpu.parallel.transport.comm import Comm
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import StepSeconds
from neocpu.plan.search.planners import planner_of
from neocpu.train.before.plans import planning_machine, workload
from neocpu.train.before.scenario import dense_work
from neocpu.train.config.config import Config
from neocpu.train.search.cost import CostInputs, ModelCost, flops, parameters, seconds
from neocpu.train.search.space import Choice, Space, plain_config

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

    def all_answers() -> bytes:
        seconds(space, ask)
        return json.dumps(answers).encode()

    # planning takes a while, and all ranks need equal numbers
    answers = json.loads(comm.on_first_rank(all_answers))
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
