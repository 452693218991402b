"""Is the other rank still there? The system says so of a process of this host; another rank has to
answer now and then.

A rank that is asked and says nothing for `patience` seconds counts as lost: its process was
stopped or killed, its host is off, or code that never lets Python's lock go keeps its threads from
reading. A function that takes long does not: the answer to "are you there" comes from another
thread.
"""

import json
import os
import socket
import time
from pathlib import Path

from neocpu.core.cores import host_key
from neocpu.parallel.rpc.failures import PeerLost
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.watch.rank_page import process_fields

ASK = 1.0  # seconds of silence after which a rank is asked whether it is there
START_TIME = 19  # of a process, among the fields of its `stat`


class _PeerRank:
    """A rank: where it runs, when it was heard last, why it is lost ("" while it is not)."""

    def __init__(self, host: str, key: str, process: int, started: str) -> None:
        self.host = host
        self.key = key
        self.process = process
        self.started = started
        self.heard = time.monotonic()
        self.asked = False
        self.lost = ""
        self.said = ""


class Liveness:
    """All ranks of a comm, as this one knows them. Collective.

    patience : seconds of silence after which a rank that was asked is lost.
    """

    def __init__(self, comm: Comm, patience: float) -> None:
        self._patience = patience
        own = process_fields(Path("/proc/self"))
        started = own[START_TIME] if len(own) > START_TIME else ""
        facts = json.dumps([socket.gethostname(), host_key(), os.getpid(), started]).encode()
        self._members = [_PeerRank(*json.loads(data)) for data in comm.allgather_bytes(facts)]
        self._own = self._members[comm.rank]

    def name(self, rank: int) -> str:
        """A rank and its host, for messages."""
        return f"rank {rank} on {self._members[rank].host}"

    def heard(self, rank: int) -> None:
        """Something came from a rank."""
        member = self._members[rank]
        member.heard = time.monotonic()
        member.asked = False

    def lose(self, rank: int, reason: str, said: str = "") -> None:
        """A rank is lost; the first reason stays. said : its own words, if it left."""
        member = self._members[rank]
        if not member.lost:
            member.said = said
            member.lost = reason

    def lost(self, rank: int) -> str:
        """Why a rank is lost; "" while it is not."""
        return self._members[rank].lost

    def error(self, rank: int, doing: str = "") -> PeerLost:
        """The error of a call of a rank that is lost. doing : what the caller waited for."""
        during = f" while {doing} was awaited" if doing else ""
        error = PeerLost(f"{self.name(rank)} {self._members[rank].lost}{during}")
        error.rank = rank
        error.said = self._members[rank].said
        return error

    def check(self, rank: int) -> bool:
        """Look whether a rank that somebody waits for is there; should it be asked now?"""
        member = self._members[rank]
        if member.lost:
            return False
        if member.key == self._own.key and self._is_gone(member):
            self.lose(rank, f"is lost: its process {member.process} has ended")
            return False
        silent = time.monotonic() - member.heard
        if member.asked and silent > self._patience:
            self.lose(rank, f"is lost: it has said nothing for {silent:.0f} s")
            return False
        if member.asked or silent < min(ASK, self._patience / 2):
            return False
        member.asked = True
        return True

    def _is_gone(self, member: _PeerRank) -> bool:
        if member.process == self._own.process or not self._own.started:
            return False
        fields = process_fields(Path(f"/proc/{member.process}"))
        # a number of a process is used again: the time of its start tells two apart
        return not fields or fields[0] in "ZX" or fields[START_TIME] != member.started
