"""What does TorchRec's planner answer? Its plan for a task, as one of ours. It needs torchrec."""

from collections.abc import Mapping
from typing import Any

from benchmarks.planner_tasks import PlannerTask
from neocpu.core.errors import PlanError
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.sharding.schemes import COLUMN_STEP, Shard
from neocpu.plan.machines.machine import Machine

# TorchRec counts bandwidths in bytes per millisecond.
MILLISECOND = 1e-3


def torchrec_plan(task: PlannerTask, machine: Machine, capacity: int) -> Plan:
    """The plan of `EmbeddingShardingPlanner` with its default proposers and cost model.

    It gets the machine's bandwidths, all of `capacity` for tables, and row-wise AdaGrad.

    Raises PlanError where it finds none, or one that our ranks cannot hold.
    """
    import torch
    from torch import nn
    from torchrec.distributed.model_parallel import get_default_sharders
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
    from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

    configs = [
        EmbeddingBagConfig(
            name=table.name,
            embedding_dim=table.dim,
            num_embeddings=table.rows,
            feature_names=list(table.features),
        )
        for table in task.tables
    ]
    model = nn.Module()
    model.tables = EmbeddingBagCollection(device=torch.device("meta"), tables=configs)
    apply_optimizer_in_backward(RowWiseAdagrad, model.parameters(), {"lr": 0.01})
    spec = task.spec if isinstance(task.spec, Mapping) else {}
    allowed = {name: choice.split(", ") for name, choice in spec.items()}
    constraints = {
        table.name: ParameterConstraints(
            pooling_factors=[task.work.pooling[table.name]] * len(table.features),
            min_partition=COLUMN_STEP * 8,
            compute_kernels=["fused", "dense"],
            sharding_types=allowed.get(table.name),
        )
        for table in task.tables
    }
    topology = Topology(
        world_size=task.ranks,
        local_world_size=task.per_node,
        compute_device="cuda",
        hbm_cap=capacity,
        hbm_mem_bw=machine.hbm.bandwidth_bytes_per_s * MILLISECOND,
        intra_host_bw=machine.inside_node.bandwidth_bytes_per_s * MILLISECOND,
        inter_host_bw=machine.between_nodes.bandwidth_bytes_per_s * MILLISECOND,
    )
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=task.work.batch // task.ranks,
        constraints=constraints,
        storage_reservation=FixedPercentageStorageReservation(percentage=0.0),
        stats=[],
        debug=False,
    )
    try:
        answer = planner.plan(model, get_default_sharders())
    except PlannerError as error:
        raise PlanError(str(error)) from error
    return converted(task, next(iter(answer.plan.values())))


def converted(task: PlannerTask, module_plan: Any) -> Plan:
    """Our plan of the parameter shardings of one module, by table name."""
    shards: list[Shard] = []
    schemes: list[str] = []
    for number, table in enumerate(task.tables):
        sharding = module_plan[table.name]
        scheme = str(getattr(sharding.sharding_type, "value", sharding.sharding_type))
        schemes.append(scheme)
        if scheme == "data_parallel":
            shards += [
                Shard(number, (0, table.rows), (0, table.dim), rank) for rank in range(task.ranks)
            ]
            continue
        for part in sharding.sharding_spec.shards:
            first_row, first_column = part.shard_offsets
            rows, columns = part.shard_sizes
            if rows and columns:
                shards.append(
                    Shard(
                        number,
                        (first_row, first_row + rows),
                        (first_column, first_column + columns),
                        part.placement.rank(),
                    )
                )
    return Plan(
        tables=task.tables,
        schemes=tuple(schemes),
        shards=tuple(sorted(shards)),
        ranks=task.ranks,
        ranks_per_node=task.per_node,
    ).check()
