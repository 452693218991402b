"""What does a linear model reach beside a run that measured none?"""

from neocpu.core.errors import NeocpuError
from neocpu.core.types import JsonObject
from neocpu.parallel.transport.comm import Comm
from neocpu.serve.report.runs import Run
from neocpu.train.checkpoint.folder import checkpoint_of
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.run.verdict import baseline_of
from neocpu.train.watch.results import silent


def with_baseline(run: Run, comm: Comm) -> JsonObject:
    """The summary of a run with a baseline, fitted to its train data, which must still be there.

    Where it cannot be fitted, a problem of the run says why.
    """
    try:
        with CheckpointFile(checkpoint_of(run.folder)) as file:
            config = file.config(())
        return {**run.summary, "baseline": baseline_of(config, comm, run.folder, silent)}
    except NeocpuError as error:
        run.problems.append(f"no baseline: {error}")
        return run.summary
