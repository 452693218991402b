"""What must all ranks know of a step so that the numbers of the next one are scaled alike?

forward      which samples of the batch are this rank's, for rounding at random
backward     largest numbers of this rank's tensors ──► all ranks, while gradients are summed
update       scales of the next step (`model/precision/`)
"""

import numpy as np

from neocpu.core.trees import rank_samples
from neocpu.core.types import Floats
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.started import Started, Steps
from neocpu.train.model.precision.operands import Precision
from neocpu.train.step.turn import Turn


class Scales:
    """Begins and ends the steps of a model's precision.

    comm : whose ranks sum the dense gradients, with the order of calls of these sums. leaves : of
    a batch.
    """

    def __init__(self, precision: Precision, comm: Comm, leaves: int) -> None:
        self._precision = precision
        self._comm = comm
        self._leaves = leaves

    def begin(self, turn: Turn) -> None:
        """Before the forward pass; a turn without a step is not training."""
        if not turn.step:
            self._precision.measure()
            return
        comm = self._comm
        first, _ = rank_samples(comm.rank, comm.size, turn.batch.samples, self._leaves)
        self._precision.begin(turn.step, first, turn.batch.samples)

    def send(self, turn: Turn) -> None:
        """After the backward pass. Collective, where scales follow from what tensors held."""
        peaks = self._precision.peaks
        if peaks.size:
            turn.peaks = Started(self._gather(peaks), self._comm.stream)

    def _gather(self, peaks: Floats) -> Steps[Floats]:
        ranks = self._comm.size
        gathered = np.empty(ranks * peaks.size, np.float32)
        counts = np.full(ranks, peaks.size, np.int64)
        yield self._comm.start_allgatherv(peaks, gathered, counts, what="scales")
        return gathered.reshape(ranks, peaks.size)

    def end(self, turn: Turn) -> None:
        """After the last update of the step, or where it was left out. Collective as `send`."""
        peaks = np.empty((1, 0), np.float32) if turn.peaks is None else turn.peaks.wait()
        if not turn.fault:
            self._precision.end(peaks)
