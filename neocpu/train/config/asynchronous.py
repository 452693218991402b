"""Which ranks serve a run without common steps, and how far apart may its trainers be? Its keys."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated

from neocpu.core.records import Limits, changed

ON = "on"
OFF = "off"  # the value of `training.sync` for parameter servers
ANY = -1  # the staleness without a bound


@dataclass(frozen=True)
class AsynchronousKeys:
    """A run on parameter servers, with `training.sync = "off"` (docs/rpc.md).

    servers : ranks, the last ones, that hold tables and dense parameters and train nothing (0: all
        ranks serve and train).
    threads : of each rank that trains. They share a copy of the dense parameters, take no locks
        (Hogwild), and read samples of their own.
    staleness : steps that a thread may be ahead of the slowest (-1: any). 0: all threads take each
        step together, servers merge their gradients exactly, and the digest is that of
        synchronous training.
    elastic_every : steps after which a thread's rank and the centre move towards each other; the
        dense half is then trained on each rank by itself (EASGD; 0: servers train it).
    elastic_rate : share of their distance that both move.
    """

    servers: int = 0
    threads: Annotated[int, Limits(least=1, most=64)] = 1
    staleness: Annotated[int, Limits(least=ANY)] = 4
    elastic_every: int = 0
    elastic_rate: float = 0.5

    def repeats(self, ranks: int) -> bool:
        """Does a run on so many ranks give the same digest whenever it is repeated?"""
        return self.staleness == 0 or self.threads * (ranks - self.servers) == 1


# what such a run cannot have beside it, but at its default or one of the values named here
ALLOWED: Mapping[str, tuple[object, ...]] = {
    "model.precision.format": ("fp32",),
    "parallel.plan": ("auto", "table_wise"),
    "parallel.replica_groups": (1,),
    "training.on_nonfinite": ("stop",),
    "wires.forward": ("fp32",),
    "wires.backward": ("fp32",),
    "wires.dense": ("fp32",),
}
COMMON_STEPS = "it needs all ranks in each step"
REFUSED = {
    "model.towers": COMMON_STEPS,
    "model.precision.format": "threads would need one scale of the gradient in each step",
    "optimizer.shampoo.every": COMMON_STEPS,
    "optimizer.muon.steps": COMMON_STEPS,
    "optimizer.trust_ratio": COMMON_STEPS,
    "optimizer.clip_norm": COMMON_STEPS,
    "readers.count": COMMON_STEPS,
    "memory.activations": "threads keep what their steps need",
    "parallel.replica_groups": COMMON_STEPS,
    "parallel.pins": COMMON_STEPS,
    "checkpoint.parity": COMMON_STEPS,
    "parallel.plan": 'servers hold whole tables; leave it out, or "table_wise"',
    "checkpoint.every_minutes": "threads meet after numbers of steps; set every_steps instead",
    "training.on_nonfinite": 'one thread cannot leave out a step of all; only "stop" is there',
    "data.deduplicate": "each thread sends the bags of its own samples",
    "wires.forward": "calls carry numbers as they are",
    "wires.backward": "calls carry numbers as they are",
    "wires.dense": "calls carry numbers as they are",
}


def asynchronous_faults(
    sections: Mapping[str, object], meets: Sequence[str], cached: bool
) -> Iterator[tuple[str, str]]:
    """(key, why) of what asynchronous training cannot do.

    sections : of the config, by name. meets : tables whose rows move in training, or whose lookups
    are not pooled. cached : are there tables in caches?
    """
    keys: AsynchronousKeys = attrgetter("asynchronous")(sections["training"])
    name = "training.asynchronous"
    if attrgetter("sync")(sections["training"]) == ON:
        for key, value in changed(keys).items():
            why = f'{value} has no effect while training.sync is "{ON}"; set that to "{OFF}" too'
            yield f"{name}.{key}", why
        return
    if not 0 < keys.elastic_rate <= 1:
        yield f"{name}.elastic_rate", f"{keys.elastic_rate} must be above 0, and 1 at most"
    if keys.elastic_every and keys.staleness == 0:
        why = "with a staleness of 0 all threads train one model; leave one of both out"
        yield f"{name}.elastic_every", why
    refused = {key: why for key, why in REFUSED.items() if _is_set(sections, key)}
    if meets:
        refused[f"tables.{meets[0]}"] = (
            "rows that move in training, and lookups that are not pooled (of histories, tensor "
            'trains and qr with combine = "rows"), need common steps'
        )
    if cached:
        refused["memory.placement"] = 'servers keep their rows in memory, "hbm"'
    for key, why in refused.items():
        yield key, f'{why}; or leave training.sync at "{ON}"'


def _is_set(sections: Mapping[str, object], key: str) -> bool:
    """Has a key a value that such a run cannot have?"""
    section, _, rest = key.partition(".")
    value = attrgetter(rest)(sections[section])
    return value not in ALLOWED[key] if key in ALLOWED else bool(value)
