"""Do the examples still run, and do they show what they promise?"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import beyond_memory


def test_beyond_memory_ends_with_one_digest_for_each_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    beyond_memory.main(steps=6, large_steps=1, large_batch=32, counts=(2,))
    told = capsys.readouterr().out
    digests = [line.split()[1] for line in told.splitlines() if line.startswith("    digest")]
    assert len(digests) == 4 and len(set(digests[:3])) == 1
    assert "more than memory.hbm allows" in told and "12,000,000,000,000 parameters" in told
    assert told.endswith("No bit depends on where a row lives.\n")
