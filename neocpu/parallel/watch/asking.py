"""How does a rank hear of ranks on other hosts when messages do not come? It asks them by TCP.

Beside MPI, so that it works while MPI waits, and so that a host that cannot be reached is known as
one. Every rank listens; who knows the job's token gets an answer on all ranks of that host.
"""

import fcntl
import hmac
import json
import math
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import NamedTuple

from neocpu.parallel.watch.rank_page import RankState, from_answer

SECONDS = 3.0  # for all addresses of a host
EACH = 1.0  # for one address
MOST = 1 << 22  # bytes of an answer
_SIOCGIFADDR = 0x8915

Address = tuple[str, int]


class Host(NamedTuple):
    """Another host: where its ranks listen, and which they are."""

    addresses: Sequence[Address]
    ranks: frozenset[int]


class Listener:
    """Answers whoever knows the token.

    states : what is known of this host's ranks now. Attribute: port.
    """

    def __init__(self, token: str, states: Callable[[], Sequence[RankState]]) -> None:
        self._token = token.encode()
        self._states = states
        self._socket = socket.create_server(("", 0), backlog=64)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, name="watch answers", daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        with suppress(OSError):
            # wakes the thread that waits for a connection
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(EACH)
                token = connection.recv(len(self._token), socket.MSG_WAITALL)
                # other programs may look at open ports
                if hmac.compare_digest(token, self._token):
                    answer = json.dumps([asdict(state) for state in self._states()])
                    connection.sendall(answer.encode())


class Questions:
    """Asks other hosts, in threads of its own: who does not answer holds nobody up.

    Attributes: heard, the newest answer on each rank, and when it came; complete, when the newest
    round began in which every host has answered or had its time.
    """

    def __init__(self, hosts: Sequence[Host], token: str) -> None:
        self._hosts = hosts
        self._token = token
        self._round: threading.Thread | None = None
        self.heard: dict[int, tuple[float, RankState]] = {}
        self.complete = math.inf if not hosts else 0.0

    def ask(self) -> None:
        """Begin a round, unless one is under way."""
        if self._hosts and (self._round is None or not self._round.is_alive()):
            self._round = threading.Thread(target=self._ask_all, name="watch asks", daemon=True)
            self._round.start()

    def current(self) -> list[RankState]:
        """What was heard since the newest complete round began."""
        return self._since(self.complete)

    def last(self) -> list[RankState]:
        """What was heard last of each rank, however long ago."""
        return self._since(0.0)

    def _since(self, moment: float) -> list[RankState]:
        now = time.monotonic()
        return [
            replace(state, silent=state.silent + now - when)
            for when, state in list(self.heard.values())
            if when >= moment
        ]

    def _ask_all(self) -> None:
        begun = time.monotonic()
        threads = [
            threading.Thread(target=self._ask_host, args=(host,), name="watch asks", daemon=True)
            for host in self._hosts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(begun + SECONDS - time.monotonic(), 0.0))
        self.complete = begun

    def _ask_host(self, host: Host) -> None:
        end = time.monotonic() + SECONDS
        for address in host.addresses:
            if time.monotonic() > end:
                return
            states = _answer(address, self._token)
            # an address inside a host, as a bridge's of containers, may be the same on all of them
            if states and all(state.rank in host.ranks for state in states):
                now = time.monotonic()
                self.heard |= {state.rank: (now, state) for state in states}
                return


def _answer(address: Address, token: str) -> list[RankState]:
    """What is said at one address; nothing where nobody answers."""
    data = b""
    try:
        with socket.create_connection(address, EACH) as connection:
            connection.sendall(token.encode())
            while len(data) < MOST and (more := connection.recv(1 << 16)):
                data += more
        states = [from_answer(facts) for facts in json.loads(data)]
    except (OSError, ValueError, TypeError):
        return []
    return [state for state in states if state is not None]


def own_addresses() -> list[str]:
    """Addresses under which other hosts may reach this one."""
    names: list[str] = []
    if sys.platform == "linux":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, interface in socket.if_nameindex():
                request = struct.pack("256s", interface.encode()[:15])
                with suppress(OSError):  # one without an address
                    reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                    names.append(socket.inet_ntoa(reply[20:24]))
    with suppress(OSError):
        names += [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)]
    return [name for name in dict.fromkeys(names) if not name.startswith("127.")]
