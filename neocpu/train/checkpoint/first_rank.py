"""How does rank 0 work for all ranks on a checkpoint? Its result, and its error, is everyone's."""

from collections.abc import Callable
from pathlib import Path

from neocpu.core.errors import CheckpointError
from neocpu.parallel.transport.comm import Comm


def failed(path: Path, error: OSError) -> CheckpointError:
    """The error that a checkpoint could not be written."""
    why = error.strerror or str(error)
    return CheckpointError(
        f"{path} could not be written: {why}; older checkpoints are intact. Make room and go on "
        "with --resume"
    )


def on_first_rank(comm: Comm, path: Path, work: Callable[[], bytes | None]) -> bytes:
    """Do something on rank 0; what it returns, and its error, is that of all ranks."""

    def explained() -> bytes:
        try:
            return work() or b""
        except OSError as error:
            raise failed(path, error) from error

    return comm.on_first_rank(explained)
