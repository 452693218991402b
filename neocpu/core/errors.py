"""What can go wrong? Errors whose messages a user can act on.

Every error that a user can cause (a bad file, a bad key, a disk that is full) is a `NeocpuError`:
its message names the thing and says what to do, and the command line prints it without a traceback.
Anything else is a bug and keeps its traceback.
"""

import errno
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

# errors of the system that are no bugs, and what helps
REMEDIES = {
    errno.EMFILE: "raise the limit of open files of this process (`ulimit -n`)",
    errno.ENFILE: "this host has too many open files; end other programs",
    errno.ENOSPC: "make room on that disk",
    errno.EROFS: "nothing can be written there; mount it for writing, or choose another folder",
    errno.EIO: "the disk fails; look at the system's log, and use another one",
    errno.EDQUOT: "make room: the quota on that disk is used up",
    errno.EFBIG: "raise the limit of a file's size (`ulimit -f`), or use another file system",
}


def listed(names: Sequence[str], most: int) -> str:
    """Names for a message, the first ones where they are many: "C1, C2 and 24 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class NeocpuError(Exception):
    """Base of all errors with a message meant for users."""

    exit_status = 1


@contextmanager
def told_as(
    kind: type[Exception], path: object, fault: str = "cannot be written"
) -> Iterator[None]:
    """A block whose errors of the system are told as one for users: PATH: FAULT: the reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"{path}: {fault}: {error.strerror or error}") from error


class ConfigError(NeocpuError):
    """A config key or command-line option is unknown, misspelt or has an impossible value."""

    exit_status = 2


class DataError(NeocpuError):
    """A click log or dataset is malformed, truncated or of another kind than expected."""


class IndexRangeError(DataError):
    """A lookup points outside its table, or offsets are malformed; raised before any exchange."""


class PlanError(NeocpuError):
    """A sharding plan misses a table, overlaps, or does not fit."""


class CheckpointError(NeocpuError):
    """A checkpoint is missing, truncated, foreign, or belongs to another run."""


class TrainingError(NeocpuError):
    """Training cannot go on: a loss that is not finite, memory or disk that is too small.

    Attribute: least, bytes that memory.activations has to be at least, if that is why.
    """

    least = 0


class OracleError(NeocpuError):
    """A suite, an answer or a question to the oracle is damaged, foreign, unknown or misshapen."""


class StorageError(NeocpuError):
    """A file of rows (the SSD tier) is missing, foreign, damaged or in use, or its disk is full."""


class EnvironmentProblem(NeocpuError):
    """The machine lacks something: an MPI, a thread-safe threading layer, a writable folder."""


class RpcError(NeocpuError):
    """A call of another rank's function failed, or could not be made."""


class Stopped(BaseException):
    """A signal asked for the end. No `except Exception` goes on after it, as a search over
    estimators would with the next one: it is a KeyboardInterrupt for Ctrl-C, and for other signals
    a SystemExit with the status that shells give them, 128 + number.

    said : the message. hint : what a command line says besides, where its options mend it.
    """

    def __new__(cls, number: int, said: str, hint: str = "") -> Self:
        """An object of the kind that the signal asks for."""
        kind = _Interrupt if number == signal.SIGINT else _Ended
        return super().__new__(kind, number, said, hint)  # type: ignore[return-value]

    def __init__(self, number: int, said: str, hint: str = "") -> None:
        self.said = said
        self.hint = hint
        self.exit_status = 128 + number

    def __str__(self) -> str:
        return self.said


class _Interrupt(Stopped, KeyboardInterrupt):
    """Of Ctrl-C."""


class _Ended(Stopped, SystemExit):
    """Of another signal."""

    def __init__(self, number: int, said: str, hint: str = "") -> None:
        super().__init__(number, said, hint)
        self.code = self.exit_status
