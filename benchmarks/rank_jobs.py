"""What does one rank of the two-rank comparison run? Its steps, when the driver gives it the turn.

ranks.py starts the jobs. They take turns through files:

    go-SIDE-TURN       written by the driver; all ranks sleep until it exists, and take no core
    done-SIDE-TURN     written by rank 0: {"seconds": of one step}
    peak-SIDE-RANK     written by every rank: {"peak": MiB}
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import peak
from benchmarks.shapes import KAGGLE, MLPERF, SMALL, Model, Sample, clicks

# Models by name.
MODELS = {model.name: model for model in (KAGGLE, MLPERF, SMALL)}
# Batches that take turns.
BATCHES = 4


def await_file(path: Path, limit: float = 900.0) -> None:
    """Sleep until `path` exists."""
    end = time.monotonic() + limit
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{path} did not appear within {limit:.0f} s")
        time.sleep(0.005)


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a file atomically."""
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(record))
    partial.rename(path)


def take_turns(
    side: str,
    rank: int,
    step: Callable[[int], Any],
    barrier: Callable[[], Any],
    options: argparse.Namespace,
) -> None:
    """Do `steps` steps each time the driver says go; a barrier ends every step."""
    steps_done = 0
    for turn in range(options.turns):
        await_file(options.folder / f"go-{side}-{turn}")
        barrier()
        start = time.perf_counter()
        for _ in range(options.steps):
            step(steps_done)
            barrier()
            steps_done += 1
        seconds = (time.perf_counter() - start) / options.steps
        write(options.folder / f"peak-{side}-{rank}", {"peak": peak()})
        if rank == 0:
            write(options.folder / f"done-{side}-{turn}", {"seconds": seconds})


def run_ours(model: Model, options: argparse.Namespace) -> None:
    """A rank of neocpu."""
    from benchmarks.ours import NeocpuDlrm, mpi_comm, threads

    comm = mpi_comm()
    threads(max(1, (os.cpu_count() or 1) // comm.size))
    job = NeocpuDlrm(model, clicks(model, BATCHES), comm, options.plan)
    take_turns("neocpu", comm.rank, job.step, comm.barrier, options)


class TorchRecDlrm:
    """A rank of TorchRec's DLRM on gloo, with TorchRec's planner and sharders.

    Fused row-wise AdaGrad on tables, SGD on the MLPs.
    """

    def __init__(self, model: Model, batches: list[Sample], rank: int, ranks: int) -> None:
        import torch
        import torch.distributed as dist
        from torchrec.distributed.model_parallel import (
            DistributedModelParallel,
            get_default_sharders,
        )
        from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
        from torchrec.distributed.types import ShardingEnv
        from torchrec.models.dlrm import DLRM, DLRMTrain
        from torchrec.modules.embedding_configs import EmbeddingBagConfig
        from torchrec.modules.embedding_modules import EmbeddingBagCollection
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
        from torchrec.optim.keyed import KeyedOptimizerWrapper
        from torchrec.optim.optimizers import in_backward_optimizer_filter
        from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
        self._keys = [f"f{t}" for t in range(26)]
        configs = [
            EmbeddingBagConfig(
                name=f"t{t}",
                embedding_dim=model.dim,
                num_embeddings=rows,
                feature_names=[self._keys[t]],
            )
            for t, rows in enumerate(model.rows)
        ]
        tables = EmbeddingBagCollection(device=torch.device("meta"), tables=configs)
        dlrm = DLRMTrain(
            DLRM(tables, 13, list(model.bottom), list(model.top), dense_device=torch.device("cpu"))
        )
        apply_optimizer_in_backward(
            RowWiseAdagrad, dlrm.model.sparse_arch.parameters(), {"lr": 0.01}
        )
        world = dist.GroupMember.WORLD
        sharders = get_default_sharders()
        planner = EmbeddingShardingPlanner(
            topology=Topology(world_size=ranks, compute_device="cpu")
        )
        plan = planner.collective_plan(dlrm, sharders, world)
        environment = ShardingEnv.from_process_group(world)
        self._model = DistributedModelParallel(
            dlrm, env=environment, device=torch.device("cpu"), plan=plan, sharders=sharders
        )
        dense = dict(in_backward_optimizer_filter(self._model.named_parameters()))
        self._optimizer = KeyedOptimizerWrapper(
            dense, lambda parameters: torch.optim.SGD(parameters, lr=0.1)
        )
        self._batches = [self._batch(sample) for sample in batches]

    def _batch(self, sample: Sample) -> Any:
        import torch
        from torchrec.datasets.utils import Batch
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        lengths = torch.ones(sample.rows.size, dtype=torch.int32)
        sparse = KeyedJaggedTensor.from_lengths_sync(
            self._keys, torch.from_numpy(sample.rows).view(-1), lengths
        )
        return Batch(torch.from_numpy(sample.dense), sparse, torch.from_numpy(sample.labels))

    def step(self, i: int) -> None:
        """One training step on batch i."""
        self._optimizer.zero_grad()
        loss, _ = self._model(self._batches[i % len(self._batches)])
        loss.backward()
        self._optimizer.step()


def run_torchrec(model: Model, options: argparse.Namespace) -> None:
    """A rank of TorchRec."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ranks = dist.get_world_size()
    part = (rank * model.samples // ranks, (rank + 1) * model.samples // ranks)
    job = TorchRecDlrm(model, clicks(model, BATCHES, part=part), rank, ranks)
    take_turns("torchrec", rank, job.step, dist.barrier, options)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Parse and run one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=["neocpu", "torchrec"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=list(MODELS), required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--plan", default="table_wise")
    options = parser.parse_args()
    (run_ours if options.side == "neocpu" else run_torchrec)(MODELS[options.model], options)


if __name__ == "__main__":
    main()
