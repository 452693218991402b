"""How are the checkpoints of a run written, and which of them stay?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOM = 128 << 20  # bytes of rows that a rank keeps in memory until they are written


@dataclass(frozen=True)
class SavingPolicy:
    """How the checkpoints of a run are written, and which stay; so do those that they are based on.

    keep : so many of the newest ones stay, 1 at least. keep_every_steps : those after a multiple of
        so many steps, for ever (0: none). keep_every_hours : one for every so many hours, by the
        times of the files (0: none).
    full_every : of so many checkpoints one is whole, or more where changes take more than the
        whole.
    quantize : round the weights of float32 tables to this row format in all files but the last one
        of a run; "": in none.
    room : bytes of a rank that rows may take until they are written.
    background : may training go on meanwhile?
    """

    keep: int = 2
    keep_every_steps: int = 0
    keep_every_hours: float = 0.0
    full_every: int = 1
    quantize: str = ""
    room: int = ROOM
    background: bool = False

    def kept(self, paths: Sequence[Path]) -> set[Path]:
        """Those of these checkpoints, oldest first, that stay. Raises OSError."""
        kept = set(paths[-self.keep :])
        if self.keep_every_steps:
            kept |= {path for path in paths if step_of(path) % self.keep_every_steps == 0}
        due = -math.inf
        for path in paths if self.keep_every_hours else ():
            # those that stayed are the oldest when this is asked again, and so stay again
            if (time := path.stat().st_mtime) >= due:
                kept.add(path)
                due = time + 3600.0 * self.keep_every_hours
        return kept


def step_of(path: Path) -> int:
    """The step after which a checkpoint was written, by its name."""
    return int(path.stem.partition("-")[2])
