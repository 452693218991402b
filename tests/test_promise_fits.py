"""Has a fit one digest on ranks of `mpiexec`, stopped, killed or whole? `python -m
tests.promise_fits` asks more.
"""

from pathlib import Path

import pytest
from promise_fits import FITS, cases, committed, launch


@pytest.mark.usefixtures("mpiexec")
def test_one_digest_for_all_ways_of_a_fit(tmp_path: Path) -> None:
    ranks = (1, 3)
    seen = dict(launch("host", tmp_path / "fits", ranks))
    assert list(seen) == cases(ranks)
    assert {case: committed()[case.fit] for case in seen} == seen
    assert {case.how for case in seen} == {"whole", "stopped", "killed"}


def test_every_fit_has_a_digest() -> None:
    assert committed().keys() == FITS.keys()
    assert len(set(committed().values())) == len(FITS)
