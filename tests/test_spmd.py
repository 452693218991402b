"""Does every body of `tests/spmd_*.py` pass on threads and under real MPI? See `spmd.py`."""

from pathlib import Path

import pytest
from spmd import Outcome, discover, run_under_mpi

from neocpu.errors import EnvironmentProblem
from neocpu.parallel.launch import find_mpiexec
from neocpu.parallel.threads import run_threads

CASES = [(name, ranks) for name, body in discover().items() for ranks in body.ranks]
IDS = [f"{name}-{ranks}" for name, ranks in CASES]


@pytest.mark.parametrize(("name", "ranks"), CASES, ids=IDS)
def test_on_threads(name: str, ranks: int, tmp_path: Path) -> None:
    run_threads(ranks, lambda comm: discover()[name].run(comm, tmp_path), timeout=120)


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Outcomes of all selected bodies by number of ranks; each number is launched when its first
    test asks.
    """
    selected: dict[int, list[str]] = {}
    for item in request.session.items:
        if getattr(item, "originalname", "") == "test_under_mpi" and item.path == Path(__file__):
            params = item.callspec.params  # type: ignore[attr-defined]
            selected.setdefault(params["ranks"], []).append(params["name"])
    known: dict[int, dict[str, Outcome]] = {}

    def outcomes_of(ranks: int) -> dict[str, Outcome]:
        if ranks not in known:
            known[ranks] = run_under_mpi(
                selected[ranks], ranks, tmp_path_factory.mktemp(f"mpi{ranks}")
            )
        return known[ranks]

    return outcomes_of


@pytest.mark.parametrize(("name", "ranks"), CASES, ids=IDS)
def test_under_mpi(name: str, ranks: int, outcomes) -> None:
    try:
        find_mpiexec()
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))
    outcome = outcomes(ranks)[name]
    if outcome.state == "skipped":
        pytest.skip(outcome.text)
    assert outcome.state == "ok", outcome.text
