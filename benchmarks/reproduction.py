"""Does the simulator give what the paper reports? The reproduction table of docs/zionex.md.

    python -m benchmarks.reproduction            # print it
    python -m benchmarks.reproduction --write    # and put it into docs/zionex.md
    python -m benchmarks.reproduction --quick    # few rows, few ranks: does it run?

One set of efficiencies for all rows, that of the machine file data/machines/zionex.toml, and one
set of choices (the constants below); nothing is fitted to a row. What the paper reports is known to
different degrees, which stand behind each figure:

    notes        public second-hand notes on the paper quote it
    memory       remembered from the paper, unverified: high, medium or low confidence; in brackets
    arithmetic   follows from the model's shape
    input        the machine file has this very figure: agreement says nothing
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from neocpu.core.stages import STEP
from neocpu.parallel.sharding.plan import AUTO
from neocpu.plan.cost.capacity import LADDER, model_bytes
from neocpu.plan.cost.work import Wires
from neocpu.plan.machines.machine_file import load
from neocpu.plan.machines.scaling import scaled
from neocpu.plan.simulation.planners import placed_with
from neocpu.plan.simulation.scenario import Placed, Scenario, Simulated, simulate
from neocpu.plan.simulation.what_if import WhatIf
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.before.scenario import Course, scenario_of
from neocpu.train.config import config as configs

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "zionex.md"
BEGIN = "<!-- python -m benchmarks.reproduction --write -->\n"
END = "<!-- end of the reproduction table -->\n"

# Lookups per bag, remembered from the paper.
POOLING = {"neo-a": 15.0, "neo-a1": 27.0, "neo-a3": 17.0, "neo-f": 20.0, "neo-i": 70.0}
SAMPLES = 512  # of a rank: 64 K on 128 GPUs
# Part of model F's rows that HBM holds: 4.35 of 24.19 TB.
F_SHARE = 0.18
# Bytes that a fault of unified memory moves; the size of a page of the host.
PAGE_BYTES = 4096
NARROW = Wires(forward="fp16", backward="bf16", partial="fp16", dense="fp32")
WIDE = Wires(forward="fp32", backward="fp32", partial="fp32", dense="fp32")
TB = 1e12
# How F's memory is known.
KNOWN = "arithmetic; memory, high"
# How the bandwidths of collectives are known.
INPUT = "input; memory, medium"


@dataclass(frozen=True)
class Case:
    """A model on some ranks.

    form : of its tables. wires : of what travels. planner : who places the tables. samples : of a
    rank. shrunk : tables have as many rows per rank as on 128 ranks. machine : a preset. scheme :
    of all tables.
    """

    model: str
    form: str = "fp16"
    wires: Wires = NARROW
    planner: str = "search"
    samples: int = SAMPLES
    ranks: int = 128
    route: str = "two_level"
    shrunk: bool = True
    machine: str = "zionex"
    scheme: str = AUTO


class Row(NamedTuple):
    """A line of the table.

    expected : None where no figure is known. gain : 0.2 for +20 %, whose difference is in points.
    """

    what: str
    paper: str
    source: str
    expected: float | None
    value: float
    shown: str
    gain: bool = False

    @property
    def figure(self) -> str:
        """The paper's figure, in brackets where it is only remembered."""
        remembered = self.source.startswith(("memory", "input"))
        return f"({self.paper})" if remembered else self.paper

    @property
    def difference(self) -> str:
        """Of ours from the paper's."""
        if self.expected is None:
            return "no figure"
        if self.source.startswith("input"):
            return "input"
        if self.gain:
            return f"{100 * (self.value - self.expected):+.0f} points"
        return f"{self.value / self.expected - 1:+.0%}"


# ---- running cases ----


def scenario(case: Case) -> Scenario:
    """The step of a case."""
    overrides = (
        f"model.embedding_format={case.form}",
        f"parallel.route={case.route}",
    )
    config = configs.load(ROOT / "data" / "models" / f"{case.model}.toml", overrides)
    what_if = WhatIf(
        wires=tuple(vars(case.wires).items()),
        pooling=POOLING[case.model],
        precision="tf32" if case.machine == "zionex" else "fp32",
        samples_per_rank=case.samples,
        cache_share=F_SHARE if case.model == "neo-f" else None,
    )
    step = scenario_of(config, load(case.machine), case.ranks, what_if, Course())
    if case.shrunk and case.machine == "zionex" and case.ranks < 128:
        step = replace(step, tables=shrunk(step.tables, case.ranks / 128))
    return step


def shrunk(tables: tuple[TableSpec, ...], part: float) -> tuple[TableSpec, ...]:
    """The tables with a part of their rows."""
    return tuple(replace(table, rows=max(1, round(table.rows * part))) for table in tables)


@cache
def placed(case: Case) -> Placed:
    """Where the tables of a case are."""
    return placed_with(case.planner, case.scheme)(scenario(case))


@cache
def outcome(case: Case) -> Simulated:
    """A simulated case."""
    return simulate(scenario(case), placed(case))


def rate(case: Case) -> float:
    """Samples a second."""
    return outcome(case).samples_per_s


def asynchronous_rate(case: Case) -> float:
    """Samples a second where nobody waits for dense sums, which are beside the training."""
    shares = outcome(case).breakdown.shares
    waited = sum(share.exposed for share in shares if share.phase == "sums of dense gradients")
    return outcome(case).scenario.work.batch / (outcome(case).step - waited)


def efficiency(case: Case, least: int = 8) -> float:
    """QPS per rank over that on `least` ranks."""
    small = replace(case, ranks=least)
    return rate(case) / case.ranks / (rate(small) / least)


def under_unified_memory(case: Case) -> Simulated:
    """The case where rows come by page faults: within the lookup, a page for each missing row."""
    step = scenario(case)
    stages = tuple(
        stage._replace(queue="compute") if stage.name == "prefetch" else stage for stage in STEP
    )
    table = step.tables[0]
    pages = PAGE_BYTES / table.row_bytes(table.dim, step.work.state_floats)
    slower = replace(step, machine=scaled(step.machine, "ddr.bandwidth", 1 / pages))
    return simulate(slower, placed(case), stages)


def achieved(case: Case, stage: str, size: float) -> float:
    """Bytes a second of a rank in an exchange of `size` bytes, all its tasks in a step together."""
    tasks = [t for t in outcome(case).timeline.tasks if t.batch == 0 and t.name.endswith(stage)]
    return size / sum(float(task.work.seconds.max()) for task in tasks)


# ---- rows ----

A = Case("neo-a")
# the paper is remembered to cut F's few tables by rows
F = Case("neo-f", scheme="row_wise")
I = Case("neo-i")  # noqa: E741
# the platform that the paper's headline is over: about 150 samples of a server
SERVERS = replace(A, machine="cpu-ps", form="fp32", wires=WIDE, samples=150, ranks=16)
# before the optimisations that the paper counts one by one
A_BEFORE = Case("neo-a", form="fp32", wires=WIDE, planner="size")


def speed_rows() -> Iterator[Row]:
    """Samples a second on 128 GPUs, and how it scales."""
    wide_f = replace(F, wires=WIDE)
    free_f = replace(F, scheme=AUTO)
    a1 = replace(A_BEFORE, model="neo-a1")
    a3 = replace(A_BEFORE, model="neo-a3")
    for what, case, paper, source, expected in (
        ("QPS of A, 128 GPUs", A, "1.2 M", "memory, medium", 1.2e6),
        ("QPS of A2 (first version), 128 GPUs", A_BEFORE, "622 K", "memory, low", 622e3),
        ("QPS of F, 128 GPUs", F, "1.7 M", "notes", 1.7e6),
        ("QPS of F with the plan of the search", free_f, "unknown", "", None),
        ("QPS of F1 (first version), 128 GPUs", wide_f, "970 K", "memory, low", 970e3),
        ("QPS of I, 128 GPUs", I, "3.4 M", "memory, medium", 3.4e6),
        ("QPS of A1 (first version), 128 GPUs", a1, "1,047 K", "memory, low", 1047e3),
        ("QPS of A3 (first version), 128 GPUs", a3, "360 K", "memory, low", 360e3),
    ):
        value = rate(case)
        yield Row(what, paper, source, expected, value, _count(value))
    for name, case, expected in (("A", A, 0.5), ("F", F, 0.75), ("I", I, 0.75)):
        value = efficiency(case)
        paper = f"about {expected:.0%}"
        what = f"efficiency of {name}, 8 to 128 GPUs"
        yield Row(what, paper, "memory, medium", expected, value, f"{value:.0%}", gain=True)
    times = rate(A) / asynchronous_rate(SERVERS)
    what = f"A: 128 GPUs over {SERVERS.ranks} servers of cpu-ps, times"
    yield Row(what, "40, servers unknown", "abstract", 40.0, times, f"{times:.0f}")


def gain_rows() -> Iterator[Row]:
    """What each optimisation brings to A on 128 GPUs, one after the other."""
    balanced = replace(A_BEFORE, planner="search")
    tables = replace(balanced, form="fp16")
    wires = replace(tables, wires=NARROW)
    batch = replace(wires, samples=4 * SAMPLES)
    before = A_BEFORE
    for what, case, paper, source, expected in (
        ("balanced sharding", balanced, "+20 %", "memory, low", 0.20),
        ("then FP16 tables", tables, "some", "memory, low", None),
        ("then FP16/BF16 AllToAll", wires, "some", "memory, low", None),
        ("then batch 64 K to 256 K", batch, "some", "memory, low", None),
    ):
        value = rate(case) / rate(before) - 1
        yield _gain(f"A: {what}", paper, source, expected, value)
        before = case
    yield _gain("A: all four", "+87 %", "memory, low", 0.87, rate(batch) / rate(A_BEFORE) - 1)
    flat = replace(F, route="reduce_scatter")
    value = rate(F) / rate(flat) - 1
    yield _gain("F: hierarchical exchange against flat", "unknown", "", None, value)


def machine_rows() -> Iterator[Row]:
    """Bandwidth of collectives, the cache, and memory."""
    machine = load("zionex")
    size = 256e6
    for operation, paper, expected in (("alltoallv", "7", 7e9), ("allreduce", "60", 60e9)):
        value = size / machine.transfer_seconds(operation, "between_nodes", 128, size)
        what = f"{operation} of 256 MB on 128 GPUs, GB/s"
        yield Row(what, f"about {paper}", INPUT, expected, value, f"{value / 1e9:.1f}")
    work = outcome(A).scenario.work
    columns = sum(table.dim for table in outcome(A).scenario.tables)
    pooled = 2.0 * columns * work.batch / outcome(A).scenario.ranks
    value = achieved(A, "output", pooled)
    what = f"the same within a step of A ({pooled / 1e6:.0f} MB), GB/s"
    yield Row(what, "unknown", "", None, value, f"{value / 1e9:.1f}")


def cache_rows(case: Case = F) -> Iterator[Row]:
    """The software cache against unified memory."""
    value = rate(case) / under_unified_memory(case).samples_per_s - 1
    yield _gain("F: software cache against unified memory", "+15 %", "memory, medium", 0.15, value)


def memory_rows() -> Iterator[Row]:
    """F's bytes: weights and state per element, and with the state of rows."""
    tables = configs.load(ROOT / "data" / "models" / "neo-f.toml").tables
    for (form, name, state), expected in zip(LADDER, (96, 48, 24)):
        size = model_bytes(tables, state, form)
        value = (size.numbers + size.per_element) / TB
        rows = f" + {size.per_row / TB:.2f} of rows" if size.per_row else ""
        what = f"F: {form}, {name}, TB"
        yield Row(what, str(expected), KNOWN, float(expected), value, f"{value:g}{rows}")


def _gain(what: str, paper: str, source: str, expected: float | None, value: float) -> Row:
    """A row of gains: 0.2 for +20 %."""
    return Row(what, paper, source, expected, value, f"{value:+.0%}", gain=True)


def _count(value: float) -> str:
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value / 1e3:.0f} K"


def quick_rows() -> Iterator[Row]:
    """Few rows, on 16 ranks: the same code."""
    small = replace(F, ranks=16, samples=64)
    value = rate(small)
    yield Row("QPS of F, 16 GPUs", "unknown", "", None, value, _count(value))
    yield from cache_rows(small)
    yield from memory_rows()


def all_rows() -> Iterator[Row]:
    """The table."""
    yield from speed_rows()
    yield from gain_rows()
    yield from machine_rows()
    yield from cache_rows()
    yield from memory_rows()


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    paper = "paper (in brackets: remembered, unverified)"
    lines = [f"| what | {paper} | how it is known | ours | difference |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.what} | {row.figure} | {row.source} | {row.shown} | {row.difference} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def write(text: str) -> None:
    """Put the table into its place in the docs."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main(arguments: list[str] | None = None) -> list[Row]:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows, few ranks")
    parser.add_argument("--write", action="store_true", help=f"write it into {PAGE.name}")
    options = parser.parse_args(arguments)
    rows = list(quick_rows() if options.quick else all_rows())
    print(table(rows))
    if options.write and not options.quick:
        write(table(rows))
    return rows


if __name__ == "__main__":
    main()
