"""What do steps take under `memory.activations`, and two models that share memory?

One model, a DLRM over the log that comes with neocpu, in batches of 4,096: without a budget, with
all activations in one block, and with less and less of it, copies at the speed of memory and at 1
GB/s. Then two models, one after the other and together. Runs take turns, the figures are medians
over rounds; steps are those after the first. `--picture` draws the bytes that have memory in a
step.

    python -m benchmarks.activations [--rounds 3] [--picture docs/activations.svg]
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from neocpu.core import svg
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.launch import prepare_threads
from neocpu.train.activations.block import Activations
from neocpu.train.activations.keeping import keep_if_asked
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.run.together import train_together
from neocpu.train.run.trainer import Trainer
from neocpu.train.step.world import World

SHAPES = {
    "dot": ("model.bottom=[512, 256, 8]", "model.top=[512, 256, 1]"),
    "cat": ("model.bottom=[256, 8]", "model.top=[512, 1]", "model.interaction=cat"),
}
COMMON = ("training.batch_size=4096", "training.epochs=4")
SHARES = (0.85, 0.7)
SLOW = "memory.ddr_bandwidth=1e9"
MIB = 1 << 20
WIDTH, HEIGHT = 760, 360
LEFT, TOP, BOTTOM = 70, 90, 50

History = list[tuple[float, int]]


class Run:
    """One run at a time, in a folder of its own; history : of its last whole step, as `Counts`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self.history: History = []
        self.all_bytes = 0

    def out(self) -> Path:
        """A new folder."""
        self._number += 1
        return self._folder / str(self._number)

    def train(self, config: Config) -> Mapping[str, float]:
        """Milliseconds of a step, and what activations took."""
        kept: list[Activations] = []

        def keep(config: Config, world: World, folder: Path) -> None:
            keep_if_asked(config, world, folder)
            if isinstance(world.step.activations, Activations):
                kept.append(world.step.activations)
                kept[0].block.counts.history = []

        summary = Trainer(config, None, self.out(), keep=keep).run()
        if kept:
            self.history = last_step(kept[0].block.counts.history or [])
            self.all_bytes = sum(x.bytes for x in kept[0].block.schedule.graph.activations)
        return figures(summary)


def figures(summary: Mapping[str, object]) -> dict[str, float]:
    """Of a run's summary."""
    steps = int(str(summary["steps"]))
    held = summary.get("activations")
    numbers: dict[str, float] = {"ms": 1e3 * float(str(summary["seconds"])) / (steps - 1)}
    if isinstance(held, Mapping):
        numbers |= {
            "block": held["block"] / MIB,
            "moved": held["moved"] / MIB / steps,
            "remade": held["remade"] / steps,
            "stall": 1e3 * held["stall_seconds"] / steps,
        }
    return numbers


def last_step(history: History) -> History:
    """The changes of the last step of a whole batch."""
    ends = [-1, *(i for i, (_, live) in enumerate(history) if live == 0)]
    steps = [history[begin + 1 : end + 1] for begin, end in pairwise(ends)]
    most = max(live for _, live in history)
    return [step for step in steps if max(live for _, live in step) == most][-1]


def config_of(shape: str, *more: str) -> Config:
    """A model of this benchmark."""
    return configs.load("tiny", (*COMMON, *SHAPES[shape], *more))


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each figure."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def one_model(run: Run, rounds: int) -> dict[str, History]:
    """Print what steps take under budgets; the histories of some."""
    run.train(config_of("dot", "memory.activations=1_000_000_000"))
    block = int(run.train(config_of("dot", "memory.activations=1_000_000_000"))["block"] * MIB)
    print(
        f"all arrays of their own: {run.all_bytes / MIB:.1f} MiB; one block: {block / MIB:.1f} MiB"
    )
    budgets = {"one block": block, **{f"{share:.0%}": int(share * block) for share in SHARES}}
    settings: dict[str, tuple[str, ...]] = {"no budget": ()}
    for name, size in budgets.items():
        settings[name] = (f"memory.activations={size}",)
        settings[f"{name}, 1 GB/s"] = (f"memory.activations={size}", SLOW)
    rows: dict[str, list[Mapping[str, float]]] = {name: [] for name in settings}
    histories: dict[str, History] = {}
    for _ in range(rounds):
        for name, keys in settings.items():
            rows[name].append(run.train(config_of("dot", *keys)))
            if keys:
                histories[name] = run.history
    show(rows)
    return histories


def two_models(run: Run, rounds: int) -> None:
    """Print what two models take, one after the other and together."""
    shapes = [*SHAPES]
    whole = "memory.activations=1_000_000_000"
    rows: dict[str, list[Mapping[str, float]]] = {}
    for _ in range(rounds):
        for name in shapes:
            rows.setdefault(f"{name} alone", []).append(run.train(config_of(name, whole)))
        size = max(int(rows[f"{name} alone"][0]["block"] * MIB) for name in shapes)
        for share in (1.0, SHARES[-1]):
            keys = (f"memory.activations={int(share * size)}",)
            together = [config_of(name, *keys) for name in shapes]
            summaries = train_together(together, SingleComm(), [run.out() for _ in shapes])
            # a step of each model, in a round of both
            both = figures(summaries[0])
            both["ms"] = max(figures(summary)["ms"] for summary in summaries)
            rows.setdefault(f"both together, {share:.0%} of the larger", []).append(both)
    show(rows)


def show(rows: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """A table of medians."""
    print(f"{'':34}{'ms/step':>9}{'block':>9}{'moved':>9}{'remade':>8}{'stall ms':>10}")
    for name, measured in rows.items():
        numbers = medians(measured)
        cells = [numbers.get(key) for key in ("ms", "block", "moved", "remade", "stall")]
        texts = ["" if cell is None else f"{cell:.1f}" for cell in cells]
        print(f"{name:34}{texts[0]:>9}{texts[1]:>9}{texts[2]:>9}{texts[3]:>8}{texts[4]:>10}")


def picture(histories: Mapping[str, History]) -> str:
    """Bytes that have memory over the time of a step, budget by budget."""
    names = [name for name in histories if "GB/s" not in name]
    longest = max(histories[name][-1][0] - histories[name][0][0] for name in names)
    most = max(live for name in names for _, live in histories[name]) / MIB
    ticks = svg.ticks(most)
    across = (WIDTH - LEFT - 20) / longest
    up = (HEIGHT - TOP - BOTTOM) / ticks[-1]
    base = HEIGHT - BOTTOM
    body = svg.headings("Activations in memory", "MiB over a step, by memory.activations")
    for tick in ticks:
        y = base - up * tick
        body += [
            svg.line(LEFT, y, WIDTH - 20, y),
            svg.text(LEFT - 8, y + 4, f"{tick:g}", anchor="end"),
        ]
    for tick in svg.ticks(1e3 * longest):
        if tick <= 1e3 * longest:
            x = LEFT + across * tick / 1e3
            body.append(svg.text(x, base + 18, f"{tick:g}", anchor="middle"))
    body.append(svg.text(WIDTH - 20, base + 36, "ms", anchor="end"))
    colours = (svg.PALE, svg.SKY, svg.ORANGE, svg.RED)
    for number, (name, colour) in enumerate(zip(names, colours)):
        history = histories[name]
        points: list[tuple[float, float]] = [(LEFT, base)]
        for when, live in history:
            x = LEFT + across * (when - history[0][0])
            points += [(x, points[-1][1]), (x, base - up * live / MIB)]
        body.append(svg.polyline(points, colour))
        body.append(svg.text(LEFT + 140 * number, 78, name, colour=colour, bold=True))
    words = (
        "Lines of the bytes of arrays that have memory, which rise in the forward pass and fall."
    )
    return svg.document(WIDTH, HEIGHT, "Activations in memory over a step", words, body)


def main() -> None:
    """Measure both, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    prepare_threads(SingleComm(), None)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        histories = one_model(run, options.rounds)
        two_models(run, options.rounds)
    if options.picture:
        options.picture.write_text(picture(histories), encoding="utf-8")


if __name__ == "__main__":
    main()
