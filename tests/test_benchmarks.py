"""Do the benchmarks run, and does their harness compute as it says? No test asserts a time."""

import argparse
import importlib
import json
import sys
import time
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import all as everything
from benchmarks import cache, charts, ladder, lookahead, narrow, pictures
from benchmarks.harness import (
    Contender,
    best,
    cells,
    machine,
    measure,
    ratio,
    shape_text,
    summarise,
    table,
    verdict,
    versions,
)
from benchmarks.roofline import picture
from benchmarks.shapes import KAGGLE, MLPERF, SMALL, Lookup, clicks
from neocpu.train.config.memory import MemoryConfig

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = everything.NAMES
QUICK = argparse.Namespace(
    quick=True,
    rounds=1,
    no_rivals=True,
    json=None,
    case=None,
    layers=False,
    model=None,
    memory=None,
    ranks=[2],
    plan="table_wise",
)


def timed(name: str, side: str, threads: int, *seconds: float) -> Contender:
    return Contender(name, side, lambda i: None, threads, seconds=list(seconds))


def test_contenders_take_turns_after_warm_up() -> None:
    order: list[str] = []
    contenders = [
        Contender(n, "ours", lambda i, n=n: (order.append(n), time.sleep(0.002))) for n in "AB"
    ]
    measure(contenders, rounds=3, warmup=1, pause=0, settle=0, least=0)
    assert "".join(order) == "AABB" * 4  # in each turn one untimed call and one timed
    assert all(len(c.seconds) == 3 for c in contenders)


def test_a_turn_begins_with_untimed_calls_for_a_while() -> None:
    contender = Contender("A", "ours", lambda i: time.sleep(0.002))
    measure([contender], rounds=1, warmup=0, pause=0, settle=0.01, least=0)
    assert contender.calls >= 3 and len(contender.seconds) == 1


def test_short_calls_repeat_within_a_turn_and_preparation_is_not_timed() -> None:
    prepared: list[int] = []
    contender = Contender(
        "A", "ours", lambda i: None, prepare=lambda i: (prepared.append(i), time.sleep(0.001))
    )
    measure([contender], rounds=1, warmup=1, pause=0, settle=0, least=1e-4)
    assert contender.repeat > 1
    assert prepared == list(range(contender.calls))
    assert contender.seconds[0] < 0.001


def test_threads_are_set_before_every_turn() -> None:
    used: list[int] = []
    measure([timed("A", "ours", 3), timed("B", "rival", 1)], 1, 0, 0, 0)
    measure(
        [Contender("A", "ours", lambda i: None, 3, used.append)],
        rounds=2,
        warmup=1,
        pause=0,
        settle=0,
    )
    assert used == [3, 3, 3]


def test_the_best_thread_count_counts_and_ratios_are_taken_inside_a_round() -> None:
    ours = timed("us", "ours", 2, 1.0, 2.0, 4.0)
    slow = timed("them", "rival", 1, 9.0, 9.0, 9.0)
    fast = timed("them", "rival", 2, 2.0, 6.0, 4.0)
    assert best([ours, slow, fast]) == {"us": ours, "them": fast}
    assert ratio(fast, ours) == {"median": 2.0, "min": 1.0, "max": 3.0}
    record = summarise("case", {"B": 1}, [ours, slow, fast], {"them": 1.8})
    assert [("ratio" in row, "target" in row) for row in record["rows"]] == [
        (False, False),
        (False, False),
        (True, True),
    ]
    assert verdict(record["rows"][2]) == "1.8x reached"
    assert "MISSED" in verdict(record["rows"][2] | {"target": 2.5})
    assert verdict(record["rows"][0]) == ""


def test_a_thread_is_compared_with_a_thread() -> None:
    contenders = [
        timed(*row)
        for row in (
            ("us", "ours", 1, 2.0, 3.0),
            ("us", "ours", 2, 1.0, 1.0),
            ("them", "rival", 1, 6.0, 3.0),
            ("them", "rival", 2, 3.0, 3.0),
        )
    ]
    rows = summarise("case", {"B": 1}, contenders)["rows"]
    alone = {"median": 2.0, "min": 1.0, "max": 3.0}
    assert [row.get("ratio_alone") for row in rows] == [None, None, alone, None]
    assert cells(rows[2])[-1] == "2.00x (1.00 to 3.00)"


def test_the_table_is_markdown_with_every_contender() -> None:
    record = summarise("case", {"B": 1}, [timed("us", "ours", 1, 1.0), timed("C", "limit", 1, 0.5)])
    rates = [
        "| rate of each policy of a cache | 1% | 2% |",
        "|---|---|---|",
        "| " + "lru " * 30 + "|",
    ]
    lines = table(record | {"notes": ["A note.", "\n".join(rates)]}).splitlines()
    # a note that is a table keeps its lines, long ones too
    assert lines[-3:] == rates
    rows = [line for line in lines[:-3] if line.startswith("|")]
    assert len({len(row) for row in rows}) == 1 and len(rows) == 4
    assert "**us**" in rows[2] and "*C*" in rows[3] and "0.50x" in rows[3]
    assert "A note." in lines


def test_a_shape_is_printed_in_plain_words() -> None:
    shape = Lookup(3, 5, 4, 16, 50).describe("fp16")
    assert shape_text(shape) == "T 3, B 5, L 4, D 16, E 50, fp16, uniform"


def test_machine_and_versions_are_recorded() -> None:
    assert machine()["cores"] >= 1
    assert versions()["numpy"] != "absent"


def test_the_page_lists_every_aim() -> None:
    record = summarise(
        "a case",
        {"B": 1},
        [timed("us", "ours", 1, 1.0), timed("them", "rival", 1, 2.0)],
        {"them": 1.5},
    )
    page = everything.page(
        {"lookup": {"machine": machine(), "versions": versions(), "records": [record]}},
        everything.page_of("AMD EPYC"),
    )
    assert "| a case | them | 1.5x | 2.00x (2.00 to 2.00), reached |" in page
    assert "benchmarks.lookup" in page


def test_a_page_is_written_from_results_of_this_run_and_of_earlier_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(command: list[str], check: bool) -> None:
        ours = Contender("ours", "ours", print, seconds=[1.0])
        record = summarise(f"case of {command[2]}", {"B": 8}, [ours])
        result = {"machine": machine(), "versions": versions(), "records": [record]}
        Path(command[command.index("--json") + 1]).write_text(json.dumps(result))

    results = tmp_path / "results.json"
    monkeypatch.setattr(everything.subprocess, "run", run)
    monkeypatch.setattr(everything, "DOCS", tmp_path)
    for name in ("lookup", "backward"):
        command = ["all", name, "--json", str(results), "--write"]
        monkeypatch.setattr(sys, "argv", command)
        everything.main()
    page = everything.page_of(everything.processor()).read_text()
    assert "case of benchmarks.lookup" in page
    assert "case of benchmarks.backward" in page


def test_the_roofline_is_a_picture_with_a_dot_for_every_kernel() -> None:
    points = [{"name": f"kernel {i}", "gflops": 3.0**i, "gbytes": 2.0} for i in range(4)]
    limits = [
        {"name": "memory, read", "gflops": 0.0, "gbytes": 20.0},
        {"name": "multiply-add", "gflops": 200.0, "gbytes": 0.0},
    ]
    drawn = ElementTree.fromstring(picture([{"points": points + limits}]))
    space = "{http://www.w3.org/2000/svg}"
    assert len(drawn.findall(f"{space}circle")) == 4
    words = [text.text for text in drawn.findall(f"{space}text")]
    assert {
        "kernel 0",
        "kernel 3",
        "multiply-add: 200 GFLOP/s",
        "memory, read in order: 20 GB/s",
    } <= set(words)
    assert picture([{"points": points}]) == ""  # no C compiler, no roof


def test_the_bound_of_a_kernel_is_set_by_what_takes_longer() -> None:
    # 100 bytes in 2 s; all steps of multiply-adds in 8 s
    machine = (timed("read", "limit", 1, 2.0), timed("fma", "limit", 1, 8.0), 100)
    flops = ladder.STEPS * ladder.MULTIPLY_ADD
    by_memory = ladder.Work(run=lambda module: None, results=(), flops=flops / 8, bytes=400)
    by_arithmetic = ladder.Work(run=lambda module: None, results=(), flops=flops, bytes=100)
    assert ladder.bound(by_memory, machine) == (8.0, "memory")
    assert ladder.bound(by_arithmetic, machine) == (8.0, "multiply-adds")


def test_published_caches_find_no_more_than_belady_and_come_late_without_a_prefetch(tmp_path):
    log = lookahead.by_frequency(cache.zipf(640, columns=3, rows=1000))
    lines = 32 * cache.sets_for(int(log.max()) + 1, 0.5)
    starts = range(0, len(log), lookahead.SAMPLES)
    batches = [np.unique(log[at : at + lookahead.SAMPLES], return_counts=True) for at in starts]
    bound = 1 - cache.belady(lines, batches)
    played = {
        name: lookahead.play(lookahead.settings(name), log, lines, tmp_path)
        for name in ("lru", "bagpipe", "cachedembedding")
    }
    assert played["lru"].hit <= played["bagpipe"].hit <= bound < played["cachedembedding"].hit
    assert not any(one.late for one in played.values()) and played["bagpipe"].peak <= 1
    blind = lookahead.play(MemoryConfig(prefetch=0), log, lines, tmp_path)
    assert blind.late == pytest.approx(1 - blind.hit) and blind.moved == played["lru"].moved


def test_no_policy_misses_less_than_beladys_bound() -> None:
    log = cache.zipf(3000, columns=3, rows=2000)
    batches = cache.cut(log)
    ahead = cache.ahead_of(batches)
    unique_rows = sum(ids.size for ids, _ in batches)
    for sets in (1, 8, 100):
        bound = cache.belady(32 * sets, batches)
        for policy in ("lru", "lookahead"):
            missed = cache.replay(policy, sets, batches, ahead).stats()["unique_misses"]
            assert missed / unique_rows >= bound - 1e-12
    assert cache.belady(10**6, batches) == np.unique(log).size / unique_rows == missed / unique_rows


def test_categories_become_rows_of_tables_that_follow_each_other() -> None:
    rows = cache.number(np.array([["b", "x"], ["a", "x"], ["b", "y"]]))
    assert rows.tolist() == [[1, 2], [0, 2], [1, 3]]


def test_miss_rates_are_drawn_the_same_every_time() -> None:
    pytest.importorskip("matplotlib")
    curves = {"lru": [0.9, 0.5], "Belady's bound": [0.6, 0.2]}
    records = [
        {"log": name, "sizes": [0.01, 0.1], "curves": curves} for name in ("one log", "another")
    ] + [{}]
    drawn = cache.picture(records)
    assert drawn == cache.picture(records) and len(drawn) < 200_000
    assert all(words in drawn for words in ("one log", "another", "lru", "Belady"))
    ElementTree.fromstring(drawn)


def test_pictures_of_the_docs_hold_the_figures_of_their_pages() -> None:
    for name, drawn in pictures.pictures().items():
        assert drawn == (ROOT / "docs" / name).read_text(), (
            "draw it anew: python -m benchmarks.pictures"
        )


def test_names_beside_points_are_apart() -> None:
    rng = np.random.default_rng(4)
    places = {f"name {i}": tuple(rng.uniform(0, 60, 2).tolist()) for i in range(6)}
    drawn = [ElementTree.fromstring(text) for text in charts.named(places, [(30.0, 30.0)])]
    texts = [element for element in drawn if element.tag == "text"]
    assert [text.text for text in texts] == list(places)
    rooms = []
    for text in texts:
        left = float(text.get("x")) - (42 if text.get("text-anchor") == "end" else 0)
        rooms.append((left, left + 42, float(text.get("y"))))
    for a, b in combinations(rooms, 2):
        assert abs(a[2] - b[2]) >= 12 or a[1] <= b[0] or b[1] <= a[0]


@pytest.mark.parametrize(("precision", "size"), [("fp16", 32), ("int8", 4 + 16)])
def test_narrow_rows_have_the_bytes_of_their_format(precision: str, size: int) -> None:
    assert narrow.Tables.draw(Lookup(3, 5, 4, 16, 50), precision).codes.shape == (3, 50, size)


def test_lookups_and_clicks_stay_inside_their_tables() -> None:
    shape = Lookup(3, 5, 4, 16, 50, zipf=1.2)
    for rows in shape.batches(2):
        assert rows.shape == (60,) and rows.min() >= 0 and rows.max() < 50
    assert shape.offsets()[-1] == 60
    whole = clicks(SMALL, 1)[0]
    part = clicks(SMALL, 1, part=(16, 32))[0]
    assert (whole.rows[:, 16:32] == part.rows).all() and (whole.dense[16:32] == part.dense).all()
    assert all((row < limit).all() for row, limit in zip(whole.rows, SMALL.rows, strict=True))
    assert (KAGGLE.interactions, MLPERF.interactions) == (367, 479)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns without pauses and without calls that only let the clock of the processor settle."""
    monkeypatch.setattr(measure, "__defaults__", (1, 0.0, 0.0, 0.0))


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_benchmark_runs_in_seconds_without_rivals(name: str) -> None:
    script = importlib.import_module(f"benchmarks.{name}")
    records = script.benchmark(QUICK)
    assert records
    for record in records:
        assert any(row["side"] in ("ours", "note") for row in record["rows"]), record["case"]
        assert record["case"] in table(json.loads(json.dumps(record)))
