"""What must each lesson find anew? The look of its pictures, which the gallery resets."""

import sys
from typing import Any


def forget_lesson(gallery_conf: dict[str, Any], name: str) -> None:
    """Let the next lesson import `lesson`, and so set its look, once more."""
    sys.modules.pop("lesson", None)
