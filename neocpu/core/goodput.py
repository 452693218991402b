"""How often should a run write a checkpoint, and how much of its time is progress, if it faults?

Faults come one by one, at random, each M seconds in the mean. Every t seconds of progress a
checkpoint takes d more; after a fault the run takes r seconds to start again, from the last
checkpoint. Faults may come at any moment, so the expected time of a segment of progress t is (Daly
2006, "A higher order estimate of the optimum checkpoint interval for restart dumps", eq. 20)

    M e^(r/M) (e^((t + d)/M) - 1)

and the part of all time that is progress is t over that. It is most near sqrt(2 d M) (Young 1974).
"""

import math


def best_interval(save_seconds: float, fault_seconds: float) -> float:
    """Seconds of progress between checkpoints with which a run makes most progress (Daly, eq. 37).

    save_seconds : d, that a checkpoint holds the run up. fault_seconds : M, from fault to fault.
    """
    if save_seconds >= 2 * fault_seconds:
        return fault_seconds
    x = save_seconds / (2 * fault_seconds)
    first_order = math.sqrt(2 * save_seconds * fault_seconds)
    return first_order * (1 + math.sqrt(x) / 3 + x / 9) - save_seconds


def progress(
    interval: float, save_seconds: float, restart_seconds: float, fault_seconds: float
) -> float:
    """The part of all time that is progress, 0 to 1, with a checkpoint every `interval` seconds.

    restart_seconds : r, from a fault until the run goes on. Others : as of `best_interval`.
    """
    segment = (interval + save_seconds) / fault_seconds
    # beyond that a segment hardly ever ends
    if segment + restart_seconds / fault_seconds > 700:
        return 0.0
    expected = fault_seconds * math.exp(restart_seconds / fault_seconds) * math.expm1(segment)
    return interval / expected if expected else 1.0
