"""Is there one digest for any ranks, plan, threads, route and interruption, and without AVX-512? A
pairwise cover.

`python -m tests.promise` runs the full product; docs/promise.md records its result. Here, all cases
of a rank count share one `mpiexec`, and the cases of one rank run in this process.
"""

import platform
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from promise import Launch, committed, disagreements, outcomes, run, schedule
from promise_cases import (
    FAMILIES,
    MAIN,
    MEMORIES,
    RANKS,
    TURNS,
    Case,
    chosen,
    pairwise,
    product,
    write_data,
)
from promise_main import main

from neocpu.core.errors import EnvironmentProblem
from neocpu.kernels.compile.threads import use_threads
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.launch import find_mpiexec
from tests.workers import is_drawn

DAYS = 6  # in which every family comes round
SECONDS = 600.0  # for a launch, kernels to be compiled included


@pytest.fixture(scope="module")
def launches() -> dict[str, Launch]:
    """What is to be run, by name, in order: the whole cover of the first family, and of the others
    those that the day draws.
    """
    cases = {
        cpu: [case for case in cpu_cases if case.family == MAIN or is_drawn(case.family, DAYS)]
        for cpu, cpu_cases in chosen("pairwise").items()
    }
    return {launch.name: launch for launch in schedule(cases)}


@pytest.fixture(scope="module")
def reached(launches: dict[str, Launch], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A function from the name of a launch to what its cases reached; launches that it goes on from
    run first.
    """
    folder = tmp_path_factory.mktemp("promise")
    write_data(folder)
    known: dict[str, list[dict[str, Any]]] = {}

    def run_until(name: str) -> list[dict[str, Any]]:
        for launch in launches.values():
            if launch.name not in known:
                if launch.name == "host-1":
                    launch.write(folder)
                    main(folder, launch.name, SingleComm())
                    known[launch.name] = outcomes(launch, folder)
                else:
                    known[launch.name] = run(launch, folder, SECONDS)
            if launch.name == name:
                break
        return known[name]

    yield run_until
    use_threads(1 << 10)


@pytest.mark.parametrize(
    "name", [f"host-{ranks}" for ranks in sorted(RANKS, key=lambda ranks: (ranks == 1, ranks))]
)
def test_one_digest_for_all_ways_of_running(
    name: str, launches: dict[str, Launch], reached: Any
) -> None:
    _needs_mpi()
    records = reached(name)
    assert len(records) == len(launches[name].cases)
    assert not disagreements(records, committed())


def test_metrics_are_the_same_on_all_ranks(reached: Any) -> None:
    _needs_mpi()
    records = [record for ranks in RANKS for record in reached(f"host-{ranks}")]
    assert not disagreements(records, committed())


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="instruction sets of x86-64"
)
def test_one_digest_without_avx512(tmp_path: Path) -> None:
    (launch,) = [launch for launch in schedule(chosen("pairwise")) if launch.cpu == "x86-64-v3"]
    write_data(tmp_path)
    records = run(launch, tmp_path, SECONDS)
    assert [record["lanes"] for record in records] == [8]
    assert not disagreements(records, committed())


def test_one_digest_with_plain_kernels(tmp_path: Path) -> None:
    _needs_mpi()
    (launch,) = [launch for launch in schedule(chosen("pairwise")) if launch.cpu == "plain"]
    write_data(tmp_path)
    records = run(launch, tmp_path, SECONDS)
    assert len(records) == len(launch.cases)
    assert not disagreements(records, committed())


def test_pairs_are_covered() -> None:
    cases = product(memories=MEMORIES)
    few = pairwise(cases)
    assert len(few) < len(cases) / 8
    axes = ("ranks", "plan", "threads", "route", "how", "memory", *TURNS)
    for one, two in combinations(axes, 2):
        assert {(getattr(c, one), getattr(c, two)) for c in few} == {
            (getattr(c, one), getattr(c, two)) for c in cases
        }
    for one, two in combinations((*TURNS, "route"), 2):
        together = {(getattr(c, one), getattr(c, two)) for c in few if c.ranks > 1}
        kinds = [{getattr(c, name) for c in cases} for name in (one, two)]
        assert len(together) == len(kinds[0]) * len(kinds[1])


def test_a_wrong_digest_and_wrong_metrics_are_noticed() -> None:
    expected = dict.fromkeys(FAMILIES, "right")
    record = vars(Case("adam", 2, "mixed", 1)) | {"digest": "right", "metrics": "a", "cpu": "host"}
    assert not disagreements([record, record], expected)
    assert (
        "digest wrong, not right"
        in disagreements([record, record | {"digest": "wrong"}], expected)[0]
    )
    assert "other metrics" in disagreements([record, record | {"metrics": "b"}], expected)[0]


def _needs_mpi() -> None:
    try:
        find_mpiexec()
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))
