"""How are all benchmarks run? Each in its own process; `--write` writes the page of this machine's
maker.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from benchmarks import cache, roofline
from benchmarks.charts import DOCS
from benchmarks.harness import processor, table, verdict

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
    "roofline": ("roofline", "Our kernels under the machine's roof"),
    "cache": ("cache-misses.svg", "Rows missed, by policy and size of the cache"),
}
# The pages of docs/benchmarks.md, by maker of the processor.
MAKERS = {"AMD": "benchmarks-amd.md", "Intel": "benchmarks-intel.md"}
# Columns of a thread against a thread.
RIVALS = (
    "FBGEMM CPU TBE",
    "FBGEMM CPU inference TBE",
    "torch embedding_bag",
    "C, plain fp32 sums",
    "C, fp64 sums",
)


def page_of(name: str) -> Path:
    """The page of a processor, by its name; others than those of `MAKERS` have one in common."""
    pages = (page for maker, page in MAKERS.items() if maker in name)
    return DOCS / next(pages, "benchmarks-others.md")


def drawn(page: Path) -> dict[str, str]:
    """File of docs/ -> picture, of the figures that a page holds; empty without its limits."""
    text = page.read_text()
    return {
        picture_file(name, page): module.picture(module.recorded(page.name))
        for name, module in (("roofline", roofline), ("cache", cache))
        if f"## `python -m benchmarks.{name}`" in text
    }


def picture_file(name: str, page: Path) -> str:
    """File of the picture that a benchmark draws; misses are counted, so they are of any maker."""
    file = PICTURES[name][0]
    return file if name == "cache" else page.name.replace("benchmarks", file).replace(".md", ".svg")


def alone(records: list[dict[str, Any]]) -> str:
    """Table of the cases in which one thread of ours was measured against one of others."""
    lines = ["| case | " + " | ".join(RIVALS) + " |", "|---" * (1 + len(RIVALS)) + "|"]
    for record in records:
        ratios = {
            row["name"]: f"{row['ratio_alone']['median']:.2f}x"
            for row in record["rows"]
            if row["name"] in RIVALS and "ratio_alone" in row
        }
        if ratios:
            cells = " | ".join(ratios.get(name, "") for name in RIVALS)
            lines.append(f"| {record['case']} | {cells} |")
    return "\n".join(lines)


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


def page(results: dict[str, dict[str, Any]], file: Path) -> str:
    """The whole of a maker's page, `file`."""
    first = next(iter(results.values()))
    machine = first["machine"]
    load = max(max(r["machine"]["load_before"], 0) for r in results.values())
    dates = sorted({r["machine"]["date"] for r in results.values()})
    records = [r for result in results.values() for r in result["records"]]
    maker = {page: name for name, page in MAKERS.items()}.get(file.name, "other makers")
    missing = [f"`benchmarks.{name}`" for name in NAMES if name not in results]
    facts = [
        f"* measured on {' and '.join(dates)} by `python -m benchmarks.all --write`",
        (
            f"* machine: {machine['processor']}, {machine['cores']} cores; transparent huge pages: "
            f"{machine['huge_pages']}"
        ),
        f"* versions: {', '.join(f'{k} {v}' for k, v in first['versions'].items())}",
        f"* load average before a benchmark, at most: {load:.1f}",
    ]
    if missing:
        facts.append(f"* not measured here: {', '.join(missing)}")
    parts = [
        f"# Benchmarks on processors of {maker}\n",
        "How times are taken: [benchmarks](benchmarks.md).\n",
        "\n".join(textwrap.fill(fact, 100, subsequent_indent="  ") for fact in facts),
        "\n## Aims\n",
        summary(records),
        "\n## A thread against a thread\n",
        "So many times as fast as others is one thread of ours (median of the ratios).\n",
        alone(records),
    ]
    for name, result in results.items():
        parts.append(f"\n## `python -m benchmarks.{name}`\n")
        if result["machine"].get("stolen", 0) > 0.01:
            parts.append(
                f"The host kept {result['machine']['stolen']:.0%} of the cores' time for others.\n"
            )
        if name in PICTURES:
            parts.append(f"![{PICTURES[name][1]}]({picture_file(name, file)})\n")
        parts += [table(record) for record in result["records"]]
    return "\n".join(parts).rstrip() + "\n"


def main() -> None:
    """Run the benchmarks; print the aims or write the page."""
    maker_page = page_of(processor())
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
        "--write",
        action="store_true",
        help=f"write docs/{maker_page.name} (refused with --quick)",
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
        maker_page.write_text(page(results, maker_page))
        # from the page, whose figures are rounded: `benchmarks.pictures` draws the same
        for picture, text in drawn(maker_page).items():
            if text:
                DOCS.joinpath(picture).write_text(text)
            else:
                print(f"{picture} was not drawn: no C compiler; the old one stays")
    else:
        print(summary([r for result in results.values() for r in result["records"]]))


if __name__ == "__main__":
    main()
