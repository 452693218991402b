"""Does every body of `tests/spmd_*.py` pass on threads and under real MPI? See `spmd.py`."""

import zlib
from pathlib import Path

import pytest
from spmd import Case, Outcome, discover, run_under_mpi

from neocpu.parallel.transport.threads import run_threads

CASES = [(name, ranks) for name, body in discover().items() for ranks in body.ranks]
IDS = [f"{name}-{ranks}" for name, ranks in CASES]
# Eight processes on two cores take ten times as long as eight threads, so of a body's rank counts
# one is always run under MPI, and the others are a long cover. Those of eight ranks share two days:
# seconds pass before so many have begun. (`test_promise.py` has eight ranks on every day.)
MANY = 8
ALWAYS = set()
UNDER_MPI = []
for name, body in discover().items():
    number = zlib.crc32(name.encode())
    few = [ranks for ranks in body.ranks if ranks < MANY]
    ALWAYS.add((name, few[number % len(few)]))
    many = pytest.mark.long(f"eight ranks {number % 2}")
    for case in ((name, ranks) for ranks in body.ranks):
        mark = many if case[1] == MANY else pytest.mark.long
        UNDER_MPI.append(case if case in ALWAYS else pytest.param(*case, marks=mark))
ON_THREADS = [
    pytest.param(*case, marks=pytest.mark.long) if case[1] == MANY else case for case in CASES
]


@pytest.mark.parametrize(("name", "ranks"), ON_THREADS, ids=IDS)
def test_on_threads(name: str, ranks: int, tmp_path: Path) -> None:
    run_threads(ranks, lambda comm: discover()[name].run(comm, tmp_path), timeout=120)


@pytest.fixture(scope="session")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[Case, Outcome]:
    """Outcomes of all selected cases, run when the first of them asks."""
    selected = [
        (item.callspec.params["name"], item.callspec.params["ranks"])  # type: ignore[attr-defined]
        for item in request.session.items
        if getattr(item, "originalname", "") == "test_under_mpi" and item.path == Path(__file__)
    ]
    return run_under_mpi(selected, tmp_path_factory.mktemp("mpi"))


def test_all_rank_counts_are_always_run() -> None:
    assert {ranks for _, ranks in ALWAYS} >= {2, 3, 4}
    assert len(ALWAYS) == len(discover())


@pytest.mark.usefixtures("mpiexec")
@pytest.mark.parametrize(("name", "ranks"), UNDER_MPI, ids=IDS)
def test_under_mpi(name: str, ranks: int, outcomes: dict[Case, Outcome]) -> None:
    outcome = outcomes[name, ranks]
    if outcome.state == "skipped":
        pytest.skip(outcome.text)
    assert outcome.state == "ok", outcome.text
