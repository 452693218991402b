"""What do ranks ask of one another before a step, and how does a run end that was asked to?"""

from neocpu.core.errors import NeocpuError

# what ranks tell each other before a step: nothing (0), or the largest of these
LOG_DUE = 1  # rank 0 wants a line on training
STOP_ASKED = 2  # a listener of rank 0 asks for a good end
SIGNAL = 4  # times the number of a signal


class Stopped(NeocpuError):
    """The run was asked to end (SIGTERM, Ctrl-C); it has written a checkpoint if it took steps."""

    def __init__(self, number: int, step: int) -> None:
        done = f"after step {step}; a checkpoint is written, go on with --resume"
        super().__init__(
            f"stopped by signal {number} "
            + (done if step else "before the first step; nothing is lost, start it again")
        )
        self.exit_status = 128 + number
