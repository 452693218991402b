"""Is there one digest for any ranks, plan, threads, route and interruption, and without AVX-512? A
pairwise cover.

`python -m tests.promise` runs the full product; docs/promise.md records its result. Here, all cases
of several ranks share one `mpiexec`, and those of one rank run in this process. A day of the whole
suite runs an eighth of the cover, some of it on every number of ranks.
"""

import platform
from collections.abc import Iterator
from dataclasses import fields
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from promise import Launch, committed, disagreements, outcomes, run, run_drawn, schedule
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
from promise_draws import KEPT, VALUES, choices_of
from promise_main import main

from neocpu.kernels.compile.threads import use_threads
from neocpu.parallel.transport.comm import SingleComm
from neocpu.tables.kinds import key_records
from neocpu.tables.specs.optimizers import SparseOptimizer
from tests.workers import dealt, is_drawn

DAYS = 8  # in which every case of the first family comes round, and every other family
# configs that train well enough for all their ways to reach an end
DRAWN = (1, 201, 1006, 1007, 1008, 1011, 1012, 1013, 1014, 1016, 1028, 1054)
SECONDS = 600.0  # until the first case ends and for each one, kernels to be compiled included


@pytest.fixture(scope="module")
def launches() -> list[Launch]:
    """What is to be run, in order: of the cover of the first family the cases that the day deals to
    each number of ranks, and of the others the families that it draws.
    """
    cases = chosen("pairwise")["host"]
    drawn = {case.name for case in cases if case.family != MAIN and is_drawn(case.family, DAYS)}
    for ranks in RANKS:
        drawn |= dealt((c.name for c in cases if c.family == MAIN and c.ranks == ranks), DAYS)
    return schedule({"host": [case for case in cases if case.name in drawn]})


@pytest.fixture(scope="module")
def records(
    launches: list[Launch], tmp_path_factory: pytest.TempPathFactory, mpiexec: Path
) -> Iterator[list[dict[str, Any]]]:
    """What every case reached."""
    folder = tmp_path_factory.mktemp("promise")
    write_data(folder)
    reached = []
    for launch in launches:
        if launch.ranks > 1:
            reached += run(launch, folder, SECONDS)
        else:
            launch.write(folder)
            main(folder, launch.name, SingleComm())
            reached += outcomes(launch, folder)
    yield reached
    use_threads(1 << 10)


@pytest.mark.parametrize("ranks", RANKS)
def test_one_digest_for_all_ways_of_running(
    ranks: int, launches: list[Launch], records: list[dict[str, Any]]
) -> None:
    cases = [case for launch in launches for case in launch.cases if case.ranks == ranks]
    reached = [record for record in records if record["ranks"] == ranks]
    assert cases and len(reached) == len(cases)
    assert not disagreements(reached, committed())


def test_metrics_are_the_same_on_all_ranks(records: list[dict[str, Any]]) -> None:
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


@pytest.mark.usefixtures("mpiexec")
def test_one_digest_with_plain_kernels(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.long(period=44)) for seed in DRAWN]
)
@pytest.mark.usefixtures("mpiexec")
def test_a_drawn_config_has_one_digest(seed: int) -> None:
    lines: list[str] = []
    records = run_drawn([seed], 2, lines.append)
    assert not [line for line in lines if line.startswith(("DIFFERS: ", "FAILED: "))]
    assert len(records) > 1


@pytest.mark.long(period=44)
@pytest.mark.usefixtures("mpiexec")
def test_ways_as_threads_have_that_digest_and_are_run_once(tmp_path: Path) -> None:
    lines: list[str] = []
    processes = run_drawn([201], 2, lines.append)
    threads = run_drawn([201], 5, lines.append, folder=tmp_path, threads=True)
    assert {record["ranks"] for record in threads} == {1, 2, 3}
    assert {record["digest"] for record in (*processes, *threads)} == {threads[0]["digest"]}
    assert run_drawn([201], 5, lines.append, folder=tmp_path, threads=True) == threads
    assert not [line for line in lines if line.startswith(("DIFFERS: ", "FAILED: "))]


@pytest.mark.long(period=44)
def test_ways_as_threads_are_not_stopped_where_that_rounds_rows() -> None:
    lines: list[str] = []
    records = run_drawn([4060], 6, lines.append, threads=True)
    assert {record["how"] for record in records} == {"whole"}
    assert not [line for line in lines if line.startswith(("DIFFERS: ", "FAILED: "))]


def test_all_keys_of_a_config_are_drawn_or_kept() -> None:
    records = {*VALUES, *key_records().values()}
    for record in records:
        prefix = "optimizer.sparse." * (record is SparseOptimizer)
        left = {one.name for one in fields(record)} - {*choices_of(record, prefix), *KEPT[record]}
        assert not left, f"{record.__name__}: draw {left}, or keep them"


def test_a_wrong_digest_and_wrong_metrics_are_noticed() -> None:
    expected = dict.fromkeys(FAMILIES, "right")
    record = vars(Case("adam", 2, "mixed", 1)) | {"digest": "right", "metrics": "a", "cpu": "host"}
    assert not disagreements([record, record], expected)
    assert (
        "digest wrong, not right"
        in disagreements([record, record | {"digest": "wrong"}], expected)[0]
    )
    assert "other metrics" in disagreements([record, record | {"metrics": "b"}], expected)[0]
