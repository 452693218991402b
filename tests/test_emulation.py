"""Do many ranks on few cores learn what one does? A part of examples/emulate_128_ranks.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import emulate_128_ranks

# Two nodes; on two cores, where ranks then sleep while they wait, eight ranks on each.
RANKS = 16


@pytest.mark.usefixtures("mpiexec")
def test_nodes_of_eight_ranks_reach_the_digest_of_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    emulate_128_ranks.main(ranks=RANKS, steps=2, tables=64)
    printed = capsys.readouterr().out
    assert printed.endswith(
        f"{RANKS} ranks, {RANKS // 8} nodes of up to 8: the same digest as one rank.\n"
    )
    assert "on zionex, 16 x 8" in printed and f"{RANKS} rank(s)" in printed
