"""How are all benchmarks run? Each in its own process; `--write` writes docs/benchmarks.md."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import cache, roofline
from benchmarks.harness import table, verdict

# All benchmarks, in the order of the page.
NAMES = (
    "roofline",
    "ladder",
    "lookup",
    "pooling",
    "backward",
    "scale",
    "cache",
    "codecs",
    "wires",
    "gemm",
    "dlrm_step",
    "ranks",
    "startup",
    "convert",
    "ssd",
    "tiers",
)
# File and caption of the picture that a benchmark draws.
PICTURES = {
    "roofline": ("roofline.svg", "Our kernels under the machine's roof"),
    "cache": ("cache-misses.svg", "Rows missed, by policy and size of the cache"),
}
# The page that `--write` writes.
PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"

# The first part of the page.
INTRODUCTION = """# Benchmarks

How fast is neocpu, compared with others and with the machine's limits? This page was written by
`python -m benchmarks.all --write` on the machine below; run it on yours (`pip install -e
".[peers]"` brings the rivals). Ours is **bold**, a machine's limit in *italics*.

**How times are taken** ([benchmarks/harness.py](../benchmarks/harness.py)). All contenders of a
table run in turn on the same inputs (A B C, A B C, …), times are medians, ratios are taken inside a
turn (median, least, greatest). Every contender is measured on one thread and on all cores and its
best counts; "thread against thread" is the ratio of both on one. Compilation and first touch are
not timed. Before timing, all contenders must agree on the answer to fp32 rounding. Machines differ:
quote ratios, not milliseconds.

**What ours does more.** Its answers do not depend on ranks, plan or threads: pooled rows and merged
gradients are *exact* sums rounded once, every product element is one ordered chain of fused
multiply-adds. The rivals and the C limits add in fp32 in any order.

**The limits** are plain C compiled for the machine ([benchmarks/limits.c](../benchmarks/limits.c)):
fixed width, no checks, no exactness.
"""


def summary(records: list[dict[str, Any]]) -> str:
    """Table of every aim and what was measured."""
    lines = ["| what | against | aim | measured |", "|---|---|---|---|"]
    for record in records:
        for row in record["rows"]:
            if "target" in row:
                ratio = row["ratio"]
                outcome = verdict(row).split()[-1]
                interval = f"({ratio['min']:.2f} to {ratio['max']:.2f})"
                measured = f"{ratio['median']:.2f}x {interval}, {outcome.lower()}"
                lines.append(
                    f"| {record['case']} | {row['name']} | {row['target']:g}x | {measured} |"
                )
    return "\n".join(lines)


def page(results: dict[str, dict[str, Any]]) -> str:
    """The whole of docs/benchmarks.md."""
    first = next(iter(results.values()))
    machine = first["machine"]
    load = max(max(r["machine"]["load_before"], 0) for r in results.values())
    facts = [
        (
            f"* machine: {machine['processor']}, {machine['cores']} cores; transparent huge pages: "
            f"{machine['huge_pages']}"
        ),
        f"* versions: {', '.join(f'{k} {v}' for k, v in first['versions'].items())}",
        f"* load average before a benchmark, at most: {load:.1f}",
    ]
    parts = [
        INTRODUCTION,
        "\n".join(facts),
        "\n## Aims\n",
        summary([r for result in results.values() for r in result["records"]]),
    ]
    for name, result in results.items():
        parts.append(f"\n## `python -m benchmarks.{name}`\n")
        if result["machine"].get("stolen", 0) > 0.01:
            parts.append(
                f"The host kept {result['machine']['stolen']:.0%} of the cores' time for others.\n"
            )
        if name in PICTURES:
            file, caption = PICTURES[name]
            parts.append(f"![{caption}]({file})\n")
        parts += [table(record) for record in result["records"]]
    return "\n".join(parts).rstrip() + "\n"


def main() -> None:
    """Run the benchmarks; print the aims or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"only these of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="small shapes: does everything run?")
    parser.add_argument("--rounds", type=int, help="timed rounds of every benchmark")
    parser.add_argument("--no-rivals", action="store_true", help="time ours and the limits only")
    parser.add_argument(
        "--json",
        type=Path,
        help="write all records to this file; names given: others in it are kept",
    )
    parser.add_argument(
        "--write", action="store_true", help=f"write {PAGE.name} (refused with --quick)"
    )
    options = parser.parse_args()
    if options.write and options.quick:
        parser.error("--quick measures nothing worth writing down")
    results: dict[str, Any] = {}
    if options.json and options.json.exists():
        results = json.loads(options.json.read_text())
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or NAMES:
            file = Path(folder) / f"{name}.json"
            command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(file)]
            command += ["--quick"] * options.quick + ["--no-rivals"] * options.no_rivals
            command += ["--rounds", str(options.rounds)] if options.rounds else []
            print(f"## {name}", flush=True)
            subprocess.run(command, check=True)
            results[name] = json.loads(file.read_text())
    results = {name: results[name] for name in NAMES if name in results}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.write:
        PAGE.write_text(page(results))
        for name, module in (("roofline", roofline), ("cache", cache)):
            # from the page, whose figures are rounded: `benchmarks.pictures` draws the same
            if name in results and (drawn := module.picture(module.recorded())):
                PAGE.with_name(PICTURES[name][0]).write_text(drawn)
            elif name in results:
                print(f"{PICTURES[name][0]} was not drawn: no C compiler; the old one stays")
    else:
        print(summary([r for result in results.values() for r in result["records"]]))


if __name__ == "__main__":
    main()
