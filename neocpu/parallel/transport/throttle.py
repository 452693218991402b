"""How long would this exchange take on a slower network? Links of a set speed, in front of the real
ones.

Each rank has one link to the other ranks of its node and one to other nodes. A link carries both
directions at once (full duplex) and is shared by all queues of the rank, one call after the other
in the order in which they start:

    done = max(now, link free) + max over directions of (messages x latency + bytes / bandwidth)

A call that uses both links is done when both are. It is never over before that, and never before
its data have really arrived; a rank that waits sleeps meanwhile, so that its core is free. Each
rank counts from its own start of a call: a peer that starts later is not waited for a second time.
No bit depends on any of this.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import ConfigError

# Classes of links, by the place of the receiver.
LINKS = ("same_rank", "same_node", "other_node")
# Links whose speed can be set: what a rank sends itself never leaves its memory.
SLOWED = LINKS[1:]
# Bytes a second of the slowest link, and seconds of the longest latency, that make sense.
LEAST_BANDWIDTH = 1e3
MOST_LATENCY = 10.0

# One number for all links, or one for each class.
LinkNumbers = float | Mapping[str, float]


class LinkSpeed(NamedTuple):
    """A link's speed: bytes a second of each direction (0: no limit), seconds for each message."""

    bandwidth: float
    latency: float


class LinkTime(NamedTuple):
    """When a call is over on this rank's links, and how many seconds it takes them by itself."""

    done: float
    alone: float


def link_speeds(bandwidth: LinkNumbers, latency: LinkNumbers) -> dict[str, LinkSpeed]:
    """The speeds of links that are slowed down, by class; empty where none is.

    bandwidth, latency : `parallel.link_bandwidth` and `parallel.link_latency` of a config.

    Raises ConfigError: an unknown class of links, or a number that makes no sense.
    """
    bandwidths = _by_class("parallel.link_bandwidth", bandwidth)
    latencies = _by_class("parallel.link_latency", latency)
    for link, value in bandwidths.items():
        if value and value < LEAST_BANDWIDTH:
            raise ConfigError(
                f"parallel.link_bandwidth: {value:g} bytes a second for {link} are too few; "
                f"allowed: {LEAST_BANDWIDTH:g} or more, or 0 for no limit"
            )
    for link, value in latencies.items():
        if value > MOST_LATENCY:
            raise ConfigError(
                f"parallel.link_latency: {value:g} seconds for {link} are too many; it is the time "
                f"of one message, at most {MOST_LATENCY:g}"
            )
    speeds = {link: LinkSpeed(bandwidths[link], latencies[link]) for link in SLOWED}
    return {link: speed for link, speed in speeds.items() if any(speed)}


def _by_class(key: str, numbers: LinkNumbers) -> dict[str, float]:
    """The number of each class of links."""
    if not isinstance(numbers, Mapping):
        return dict.fromkeys(SLOWED, numbers)
    for link in numbers:
        if link not in SLOWED:
            raise ConfigError(f"{key}: {link!r} is no class of links; write {' or '.join(SLOWED)}")
    return {link: numbers.get(link, 0.0) for link in SLOWED}


class Throttle:
    """The links of one rank, and until when they are busy.

    speeds : of the links that are slowed down. clock : that tells the time in seconds.
    """

    def __init__(
        self, speeds: Mapping[str, LinkSpeed], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.clock = clock
        self._speeds = [(LINKS.index(link), speed) for link, speed in speeds.items()]
        self._free = dict.fromkeys(speeds, 0.0)

    def start(
        self, links: NDArray[np.int64], sends: NDArray[np.int64], recvs: NDArray[np.int64]
    ) -> LinkTime:
        """A call starts: i64[ranks] bytes to and from each rank, whose link class is `links`."""
        now = self.clock()
        done = now
        longest = 0.0
        for number, speed in self._speeds:
            peers = links == number
            # a link is full duplex: its two directions do not wait for each other
            seconds = max(_seconds(speed, sends[peers]), _seconds(speed, recvs[peers]))
            if seconds:
                link = LINKS[number]
                # calls of all queues share the link, one after the other
                self._free[link] = max(now, self._free[link]) + seconds
                done = max(done, self._free[link])
                longest = max(longest, seconds)
        return LinkTime(done, longest)


def _seconds(speed: LinkSpeed, sizes: NDArray[np.int64]) -> float:
    """Time of messages of these bytes in one direction; those without bytes are not sent."""
    total = int(sizes.sum())
    if not total:
        return 0.0
    messages = int(np.count_nonzero(sizes))
    return messages * speed.latency + (total / speed.bandwidth if speed.bandwidth else 0.0)
