"""Does examples/balance_a_plan.py find a better plan, and train both to one digest?"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import balance_a_plan

MACHINE = Path(__file__).resolve().parent.parent / "data" / "machines" / "dgx-a100.toml"


@pytest.mark.usefixtures("mpiexec")
def test_a_better_plan_is_found_and_changes_no_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = balance_a_plan.compare(tmp_path, steps=2, machine=str(MACHINE))
    # four of 26 tables make most of the work, and one rank of two has them all
    assert before.predicted > 1.1 * after.predicted
    assert before.digest == after.digest
    assert min(before.measured, after.measured) > 0
    printed = capsys.readouterr().out
    assert "max/mean" in printed and "one digest" in printed
    for name in ("before", "after"):
        assert (tmp_path / f"{name}.svg").read_text().rstrip().endswith("</svg>")
