"""What do two ranks of TorchRec answer, over gloo, with every table split by rows?

    python peer_row_wise.py IN.npz OUT.npz

Cases are stored as arrays CASE/INPUT and CASE/pooling; each rank looks up its half of the samples.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


def sharded(inputs: dict[str, np.ndarray], weighted: bool) -> Any:
    """The tables of a case, sharded row-wise."""
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, PoolingType
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
    from torchrec.distributed.types import ShardingEnv, ShardingPlan

    pooling = PoolingType.MEAN if str(inputs["pooling"]) == "mean" else PoolingType.SUM
    sizes = list(zip(inputs["rows"].tolist(), inputs["dims"].tolist()))
    feature_table = inputs["feature_table"].tolist()
    tables = [
        EmbeddingBagConfig(
            name=f"t{t}",
            embedding_dim=d,
            num_embeddings=r,
            feature_names=[f"f{f}" for f, table in enumerate(feature_table) if table == t],
            pooling=pooling,
        )
        for t, (r, d) in enumerate(sizes)
    ]
    module = EmbeddingBagCollection(tables=tables, device=torch.device("cpu"), is_weighted=weighted)
    sharder = EmbeddingBagCollectionSharder()
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    plan = construct_module_sharding_plan(
        module, {f"t{t}": row_wise() for t in range(len(tables))}, sharder, RANKS, RANKS, "cpu"
    )
    model = DistributedModelParallel(
        module,
        env,
        torch.device("cpu"),
        ShardingPlan(plan={"": plan}),
        [sharder],
        init_data_parallel=False,
    )
    start = 0
    state = model.state_dict()
    for t, (r, d) in enumerate(sizes):
        weight = torch.from_numpy(inputs["weights"][start : start + r * d].reshape(r, d))
        for shard in state[f"embedding_bags.t{t}.weight"].local_shards():
            first = shard.metadata.shard_offsets[0]
            rows = shard.metadata.shard_sizes[0]
            shard.tensor.detach().copy_(weight[first : first + rows])
        start += r * d
    return model


def half(inputs: dict[str, np.ndarray], rank: int) -> Any:
    """The samples of one rank."""
    from torchrec import KeyedJaggedTensor

    count = inputs["feature_table"].size
    lengths = np.diff(inputs["offsets"]).reshape(count, -1)
    batch = lengths.shape[1] // RANKS
    is_local = np.repeat(
        np.arange(lengths.size) % lengths.shape[1] // batch == rank, lengths.reshape(-1)
    )
    weights = inputs.get("per_sample_weights")
    return KeyedJaggedTensor.from_lengths_sync(
        keys=[f"f{f}" for f in range(count)],
        values=torch.from_numpy(inputs["indices"][is_local]),
        lengths=torch.from_numpy(
            lengths[:, rank * batch : (rank + 1) * batch].reshape(-1).astype(np.int32)
        ),
        weights=None if weights is None else torch.from_numpy(weights[is_local]),
    )


def work(rank: int, cases: str, answers: str, store: str) -> None:
    """One rank: look up all cases; rank 0 writes the outputs of both."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    cases_by_name: dict[str, dict[str, np.ndarray]] = {}
    for key, array in np.load(cases).items():
        cases_by_name.setdefault(key.split("/")[0], {})[key.split("/")[1]] = array
    outputs = {}
    for name, inputs in cases_by_name.items():
        with torch.no_grad():
            out = sharded(inputs, "per_sample_weights" in inputs)(half(inputs, rank)).wait()
        local_output = torch.cat(
            [out[f"f{f}"] for f in range(inputs["feature_table"].size)], 1
        ).contiguous()
        rank_outputs = [torch.empty_like(local_output) for _ in range(RANKS)]
        dist.all_gather(rank_outputs, local_output)
        outputs[name] = torch.cat(rank_outputs).numpy()
    if rank == 0:
        np.savez(answers, **outputs)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(
        work, (sys.argv[1], sys.argv[2], str(Path(sys.argv[2]).with_suffix(".store"))), nprocs=RANKS
    )
