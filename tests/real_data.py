"""Where are the real click logs that some tests use? In NEOCPU_TEST_DATA, else in `shared/data`
beside the checkout.
"""

import os
from pathlib import Path

import pytest

FOLDER = Path(
    os.environ.get("NEOCPU_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
)


def real_data(name: str) -> Path:
    """Path of a real log; skips the test, saying why, where it is absent."""
    if not (FOLDER / name).exists():
        pytest.skip(f"{name} is not in {FOLDER}; set NEOCPU_TEST_DATA to the folder that has it")
    return FOLDER / name
