"""What does each stage of a step cost each rank? The planner's seconds, put on the schedule.

Lookups, updates, prefetches, bytes of exchanges, the dense part and its exchange are those of
`cost.seconds.StepSeconds`: where ranks have equal loads and nothing overlaps, a simulated step
takes what the planner says. This file splits them into stages and adds what a planner need not
know, because no plan changes it: readers, and copies from the host.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neocpu.plan.cost.seconds import CALLS, INPUT_CALLS, StepSeconds
from neocpu.plan.cost.work import Floats
from neocpu.plan.machines.machine import Machine
from neocpu.plan.simulation.collectives import MEASURED, Network, Price
from neocpu.plan.simulation.engine import Work


@dataclass(frozen=True)
class StageOptions:
    """How a step's costs are put on stages.

    algorithm : of exchanges, one of `collectives.ALGORITHMS`. sums : of dense gradients, likewise;
    "": as algorithm. bottom_layers : how many of the dense layers are the bottom MLP's.
    dense_features : numbers of a sample besides its lookups.
    readers : samples a second that arrive for a rank; 0: as many as it takes.
    """

    algorithm: str = MEASURED
    sums: str = ""
    bottom_layers: int = 1
    dense_features: int = 13
    readers: float = 0.0


def stage_works(model: StepSeconds, loads: Floats, options: StageOptions) -> dict[str, Work]:
    """Work of every stage of `core.stages.STEP` and `DIRECTIONS`.

    loads : f64[ranks, phases] of `cost.seconds.loads_of(model, ...)`.
    """
    ranks = model.layout.ranks
    fixed = dict(model.fixed)
    latency = fixed.pop("latency", 0.0) - model.copies_latency
    forward = fixed.pop("dense_forward", 0.0)
    backward = fixed.pop("dense_backward", 0.0)
    # what stands on stages of its own is taken out; what remains is done at the end of the step
    sums = fixed.pop("dense_exchange", 0.0)
    gathered = fixed.pop("directions_exchange", 0.0)
    # calls are in their phases here (`_by_phase`)
    fixed.pop("calls", None)
    by_phase = _by_phase(model, loads)
    shares = _shares(model, options.bottom_layers)

    def alike(seconds: float) -> Work:
        return Work(np.full(ranks, seconds))

    exchanges = _Exchanges(model, options)
    return {
        "read": alike(_read_seconds(model, options)),
        "copy": alike(copy_seconds(model, options)),
        "input": exchanges.alltoall(by_phase["input"], latency * INPUT_CALLS / CALLS, INPUT_CALLS),
        "index": alike(0.0),  # part of prefetching
        "prefetch": Work(by_phase["prefetch"]),
        "lookup": Work(by_phase["lookup"]),
        "output": exchanges.alltoall(by_phase["output"], latency / CALLS, 1),
        "bottom_forward": alike(forward * shares.bottom_time),
        "top_forward": alike(forward * (1 - shares.bottom_time)),
        "upper_backward": alike(backward * shares.upper_time),
        "lower_backward": alike(backward * shares.first_time / 2),
        "gradient": exchanges.alltoall(by_phase["gradient"], latency / CALLS, 1),
        # with the weight gradients of the top MLP's first layer
        "bottom_backward": alike(backward * (shares.bottom_time + shares.first_time / 2)),
        "upper_sums": exchanges.allreduce(sums, shares.upper_size),
        "lower_sums": exchanges.allreduce(sums, 1 - shares.upper_size),
        "merge": alike(0.0),  # merging and applying are part of the update
        "update": Work(by_phase["update"]),
        "replicas": exchanges.between_copies(by_phase["replicas"]),
        "apply": alike(0.0),
        # whatever else is the same for all plans is done at the end of a step
        "upper_update": alike(sum(fixed.values()) * shares.upper_size),
        "lower_update": alike(sum(fixed.values()) * (1 - shares.upper_size)),
        "upper_directions": exchanges.gather(gathered, shares.upper_size),
        "lower_directions": exchanges.gather(gathered, 1 - shares.upper_size),
        "upper_step": alike(0.0),  # part of the update
        "lower_step": alike(0.0),
    }


def _by_phase(model: StepSeconds, loads: Floats) -> dict[str, Floats]:
    """Seconds of each rank in each phase, f64[ranks]: loads, and calls where they were measured.

    Ranks that share cores are slowed down by each other, the more so the more of them work.
    """
    if model.crowding > 1:
        loads = np.maximum(loads / model.crowding, loads.mean(axis=0))
    calls = model.occasional_seconds * loads.any(axis=0)
    for column, phase in enumerate(model.phases):
        calls[column] += model.call_seconds.get(phase, 0.0)
    return dict(zip(model.phases, (loads + calls).T))


class _Exchanges:
    """Work of exchanges, as the machine's curves or an algorithm have it.

    What a measured exchange takes of the links is what its bytes would at their peaks, sent in
    pairs or along rings: a machine that achieves a quarter of a peak leaves room beside it.
    """

    def __init__(self, model: StepSeconds, options: StageOptions) -> None:
        self.model = model
        self.algorithm = options.algorithm
        self.sums = options.sums or options.algorithm
        self.network = Network(model.machine, model.layout)
        self.everybody = Network(model.machine, model.layout.everybody)

    def alltoall(self, seconds: Floats, latency: float, calls: int) -> Work:
        """The exchange that the planner reckons at `seconds` f64[ranks] and a latency."""
        byte_seconds = self.model.links.byte_seconds["all"]
        # the planner's seconds are bytes times a price, so the price gives the bytes back
        size = seconds / byte_seconds if byte_seconds else seconds * 0.0
        if self.algorithm == MEASURED or not calls or self.model.layout.ranks == 1:
            return _work(seconds + latency, size, self.network.price("alltoall", "pairwise"))
        # of several calls each has its part
        each = float(size.max()) / calls
        price = self.network.price("alltoall", self.algorithm, each)
        return _work(calls * price.latency + size * price.byte_seconds, size, price)

    def between_copies(self, seconds: Floats) -> Work:
        """The exchange of sums of rows that have several copies: on all ranks, or in all groups."""
        layout = self.model.layout
        if layout.replica_groups == 1:
            return self.alltoall(seconds, 0.0, 0)
        byte_seconds = self.model.links.between_copies[1]
        size = seconds / byte_seconds if byte_seconds else seconds * 0.0
        price = Network(self.model.machine, layout.copies).price("alltoall", "pairwise")
        return _work(seconds + self.model.copies_latency, size, price)

    def allreduce(self, seconds: float, share: float) -> Work:
        """The sum of a share of the dense gradients; seconds : the planner's for all of them."""
        ranks = self.model.layout.ranks
        work = self.model.work
        size = np.full(ranks, share * work.wires.number_bytes("dense") * work.dense.parameters)
        if self.sums == MEASURED or self.everybody.ranks == 1:
            price = self.everybody.price("allreduce", "ring")
            return _work(np.full(ranks, seconds * share), size, price)
        price = self.everybody.price("allreduce", self.sums, float(size.max()))
        return _work(price.latency + size * price.byte_seconds, size, price)

    def gather(self, seconds: float, share: float) -> Work:
        """A share of the directions of dense parameters; seconds : the planner's for all."""
        work = self.model.work.dense.directions
        sent = 0.0 if work is None else share * work.gathered_bytes
        ranks = self.model.layout.ranks
        price = self.everybody.price("allreduce", "ring")
        return _work(np.full(ranks, seconds * share), np.full(ranks, sent), price)


def _work(seconds: Floats, size: Floats, price: Price) -> Work:
    """The work of an exchange of `size` f64[ranks] bytes that keeps links busy as `price` says."""
    longest = float(seconds.max())
    if not longest:
        return Work(seconds)
    # the fullest rank decides both how long the exchange takes and what its link carries
    largest = float(size.max())
    uses = {link: min(1.0, largest * busy / longest) for link, busy in price.uses.items()}
    return Work(seconds, uses)


class _Shares(NamedTuple):
    """Parts of the dense layers' seconds: of the bottom MLP, of the top MLP's first layer, and of
    its other layers (upper); and the part of all parameters that upper layers have.
    """

    bottom_time: float = 0.0
    first_time: float = 1.0
    upper_time: float = 0.0
    upper_size: float = 0.0


def _shares(model: StepSeconds, bottom_layers: int) -> _Shares:
    dense = model.work.dense
    if not dense.layers:
        return _Shares()
    # the rank with most samples, as the planner reckons it
    samples = -(-model.work.batch // model.layout.ranks)
    seconds = [
        model.machine.product_seconds(samples, outputs, inputs, dense.precision)
        for inputs, outputs in dense.layers
    ]
    sizes = [(inputs + 1) * outputs for inputs, outputs in dense.layers]
    upper_size = sum(sizes[bottom_layers + 1 :]) / sum(sizes)
    total = sum(seconds)
    if not 0 < total < np.inf:
        return _Shares(upper_size=upper_size)
    bottom = sum(seconds[:bottom_layers]) / total
    upper = sum(seconds[bottom_layers + 1 :]) / total
    return _Shares(bottom, 1 - bottom - upper, upper, upper_size)


def copy_bytes(model: StepSeconds, options: StageOptions) -> float:
    """Bytes of a rank's inputs of a step: dense features, a label, lengths, indices."""
    arrays = model.arrays
    index_bytes = np.array([8.0 + 4.0 * table.weighted for table in model.tables])
    sparse = float((index_bytes * arrays.lookups + 4.0 * arrays.bags).sum())
    return (sparse + 4.0 * (options.dense_features + 1) * model.work.batch) / model.layout.ranks


def copy_seconds(model: StepSeconds, options: StageOptions) -> float:
    """Seconds to bring a rank's inputs from the host; 0 where ranks are the host."""
    machine: Machine = model.machine
    if not machine.host_device.bandwidth_bytes_per_s:
        return 0.0
    size = copy_bytes(model, options)
    return machine.transfer_seconds("copy", "host_device", machine.ranks_per_node, size)


def _read_seconds(model: StepSeconds, options: StageOptions) -> float:
    """Seconds until a rank's samples have arrived from the readers."""
    samples = model.work.batch / model.layout.ranks
    return samples / options.readers if options.readers else 0.0
