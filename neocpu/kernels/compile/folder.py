"""Where does neocpu keep what it can make again? In one folder of the user's."""

import os
from pathlib import Path


def base_folder() -> Path:
    """NEOCPU_CACHE_DIR, else neocpu in XDG_CACHE_HOME, else ~/.cache/neocpu."""
    return Path(
        os.environ.get("NEOCPU_CACHE_DIR")
        or os.path.join(
            os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "neocpu"
        )
    )
