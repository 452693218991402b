"""What is told of one run beside its curves? Where tables lie, what ranks sent, memory, and time.

A summary of another version, or one that was edited, may lack any of it: what is there is shown.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neocpu.core.errors import NeocpuError
from neocpu.core.types import JsonObject
from neocpu.core.units import bytes_text
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.sharding.schemes import SCHEMES
from neocpu.serve.report.runs import Run
from neocpu.train.config.keys import defaults

MOST_RANKS = 128  # of a plan, and of a matrix, that are drawn


@dataclass(frozen=True)
class DrawnShard:
    """A rectangle of a table on a rank: where it begins and how long it is, in %, and its words."""

    start: float
    size: float
    scheme: int
    tip: str


@dataclass(frozen=True)
class PlanBars:
    """For each rank its parts, and the bytes of their weights; left_out : ranks not drawn."""

    ranks: list[tuple[int, str, list[DrawnShard]]]
    schemes: list[tuple[int, str]]
    left_out: int


@dataclass(frozen=True)
class Matrix:
    """Bytes by sender and receiver: rows of (share of the most, words); what a row is."""

    unit: str
    rows: list[list[tuple[float, str]]]
    most: str


@dataclass(frozen=True)
class TextTable:
    """A table of texts."""

    title: str
    note: str
    header: list[str]
    rows: list[list[str]]


def changed_keys(run: Run) -> list[tuple[str, str, str]]:
    """(key, value, default) of the keys that are not at their defaults, tables excepted."""
    default = defaults()
    return [
        (key, show(value), show(default[key]) if key in default else "")
        for key, value in run.keys.items()
        if not key.startswith("tables.") and (key not in default or value != default[key])
    ]


def plan_bars(run: Run) -> PlanBars | None:
    """The plan of a run, as a bar of rectangles for each rank."""
    source = run.summary.get("plan") or run.plan
    if not source:
        return None
    try:
        plan = Plan.from_dict(source)
    except NeocpuError as error:
        run.problems.append(f"its plan cannot be drawn: {error}")
        return None
    sizes: list[list[tuple[int, int, str]]] = [[] for _ in range(plan.ranks)]
    for shard in plan.shards:
        spec = plan.tables[shard.table]
        scheme = plan.schemes[shard.table]
        rows = shard.rows[1] - shard.rows[0]
        cols = shard.cols[1] - shard.cols[0]
        # Narrow formats have fewer than 8 bits a number.
        size = math.ceil(rows * cols * spec.row_format.bits / 8)
        tip = (
            f"{spec.name}, {scheme}: rows {shard.rows[0]:,} to {shard.rows[1]:,}, columns "
            f"{shard.cols[0]} to {shard.cols[1]}, {bytes_text(size)}"
        )
        sizes[shard.rank].append((size, _scheme(scheme), tip))
    totals = [sum(size for size, _, _ in parts) for parts in sizes]
    # one scale for all ranks, so that imbalance shows
    most = max(totals, default=0) or 1
    bars = []
    for rank, parts in enumerate(sizes[:MOST_RANKS]):
        start = 0.0
        drawn = []
        for size, scheme_number, tip in parts:
            share = 100 * size / most
            drawn.append(DrawnShard(start, share, scheme_number, f"rank {rank}, {tip}"))
            start += share
        bars.append((rank, bytes_text(totals[rank]), drawn))
    used = dict.fromkeys(plan.schemes)
    return PlanBars(
        ranks=bars,
        schemes=[(_scheme(name), name) for name in used],
        left_out=max(plan.ranks - MOST_RANKS, 0),
    )


def _scheme(name: str) -> int:
    """The number of a scheme's colour."""
    return list(SCHEMES).index(name) + 1


def matrix(run: Run) -> Matrix | None:
    """Who sent how much to whom; None for a run of one rank."""
    sent = run.summary.get("sent")
    rows = sent.get("bytes") if isinstance(sent, Mapping) else None
    # A picture of one rank says nothing, and that of very many cannot be read.
    if not isinstance(sent, Mapping) or not rows or len(rows) < 2 or len(rows) > MOST_RANKS:
        return None
    most = max(
        # What a rank keeps is no traffic, and would make the rest look small.
        (size for i, row in enumerate(rows) for j, size in enumerate(row) if i != j),
        default=0,
    )
    cells = [
        [
            (
                0.0 if i == j else size / (most or 1),
                f"{sent['unit']} {i} to {j}: {bytes_text(size)}",
            )
            for j, size in enumerate(row)
        ]
        for i, row in enumerate(rows)
    ]
    return Matrix(str(sent["unit"]), cells, bytes_text(most))


def tables(run: Run) -> list[TextTable]:
    """What else the summary tells, each as a table."""
    summary = run.summary
    return [
        table
        for table in (
            _exchanges(summary),
            _traffic(summary),
            _tiers(summary),
            _memory(summary),
            _restarts(summary),
            _rest(summary),
        )
        if table.rows
    ]


def _exchanges(summary: JsonObject) -> TextTable:
    rows = []
    exchanges = summary.get("exchanges") or {}
    for entry in exchanges.get("collectives", ()) if summary.get("ranks", 1) > 1 else ():
        exposed = entry["exposed"]["mean"]
        serial = entry.get("alone" if exchanges.get("set_speed") else "under_way", {})
        whole = serial.get("mean", 0.0)
        hidden = f"{100 * max(1 - exposed / whole, 0):.0f} %" if whole else ""
        rows.append(
            [
                entry["name"],
                entry["queue"],
                bytes_text(round(entry["bytes"])),
                f"{1e3 * whole:.3f} ms",
                f"{1e3 * exposed:.3f} ms",
                hidden,
            ]
        )
    return TextTable(
        "Exchanges of a mean step",
        "under way: from start to end; waited for: a rank did nothing else; hidden: the rest",
        ["exchange", "queue", "sent", "under way", "waited for", "hidden"],
        rows,
    )


def _traffic(summary: JsonObject) -> TextTable:
    links = ("same_rank", "same_node", "other_node")
    rows = [
        [verb, f"{sent['calls']:,}", *(bytes_text(sent[link]["bytes"]) for link in links)]
        for verb, sent in (summary.get("traffic") or {}).items()
        # one rank alone sends nothing
        if summary.get("ranks", 1) > 1
    ]
    header = ["collective", "calls", "same rank", "same node", "other node"]
    return TextTable("Sent by all ranks", "of training and evaluation", header, rows)


def _tiers(summary: JsonObject) -> TextTable:
    rows = []
    for tier in summary.get("tiers") or ():
        hit = ""
        if tier.get("unique"):
            hit = f"{100 * (1 - tier['unique_misses'] / tier['unique']):.1f} %"
        numbers = [f"{tier[name]:,}" if name in tier else "" for name in ("read", "written")]
        size = bytes_text(tier["bytes"])
        rows.append([tier["table"], tier["tier"], f"{tier['rows']:,}", size, hit, *numbers])
    stall = summary.get("stall_seconds", 0.0)
    return TextTable(
        "Memories of cached tables",
        f"hit: unique rows of steps that were there; steps waited {stall:.2f} s for rows",
        ["table", "memory", "rows", "size", "hit", "rows read", "rows written"],
        rows,
    )


def _memory(summary: JsonObject) -> TextTable:
    ranks: Sequence[int] = summary.get("memory_of_ranks") or ()
    rows = [[f"rank {rank}", bytes_text(size)] for rank, size in enumerate(ranks[:MOST_RANKS])]
    return TextTable("Memory", "the most that each rank's process had", ["rank", "peak"], rows)


def _restarts(summary: JsonObject) -> TextTable:
    rows = []
    for each in summary.get("restarts") or ():
        left_out = (each.get("left_out") or {}).items()
        rows.append(
            [
                str(each.get("time")),
                str(each.get("checkpoint") or "step 0"),
                str(each.get("ranks") or "all"),
                "; ".join(f"{name}: {why}" for name, why in left_out),
                str(each.get("reason")),
            ]
        )
    note = "the run went on by itself (--restarts)"
    return TextTable("Restarts", note, ["when", "from", "ranks", "without", "why"], rows)


def _rest(summary: JsonObject) -> TextTable:
    rows = []
    if summary.get("cold_start_seconds") is not None:
        rows.append(["first step done after", f"{summary['cold_start_seconds']:.1f} s"])
    if written := summary.get("checkpoints"):
        rows.append(
            ["checkpoints written", f"{written['written']}, {bytes_text(written['bytes'])}"]
        )
        rows.append(["training waited for them", f"{written['seconds']:.2f} s"])
        if mirror := written.get("mirror"):
            behind = f", {mirror['behind']} are not there" if mirror["behind"] else ""
            copies = f"{mirror['files']}, {bytes_text(mirror['bytes'])}{behind}"
            rows.append([f"copied to {mirror['place']}", copies])
        if best := written.get("best_minutes"):
            failures = f"with a failure every {written['mtbf_hours']:g} h"
            rows.append(["best interval", f"{best:.2g} minutes {failures}"])
    rows += [[name, str(text)] for name, text in (summary.get("versions") or {}).items()]
    return TextTable("Start, checkpoints, versions", "", ["", ""], rows)


def show(value: object) -> str:
    """A value of a key, as TOML would nearly have it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(show(item) for item in value) + "]"
    return str(value)
