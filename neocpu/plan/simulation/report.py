"""What does a simulation say? Step time, QPS, the breakdown, and what limits the step, as lines."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from neocpu.plan.machines.scaling import scaled
from neocpu.plan.simulation.noise import percentiles
from neocpu.plan.simulation.scenario import Simulated, simulate

# What a machine might do better: (quantity, factor, in words); {} is the precision of products.
PARTS = (
    ("nic", 2.0, "twice the bandwidth between nodes"),
    ("between_nodes.latency", 0.5, "half the latency between nodes"),
    ("nvlink", 2.0, "twice the bandwidth inside a node"),
    ("inside_node.latency", 0.5, "half the latency inside a node"),
    ("pcie", 2.0, "twice the bandwidth to the host"),
    ("hbm.bandwidth", 2.0, "twice the HBM bandwidth"),
    ("ddr.bandwidth", 2.0, "twice the DDR bandwidth"),
    ("compute.{}_flops", 2.0, "twice the FLOP rate"),
)


class Gain(NamedTuple):
    """How many times as fast a step is with a better part."""

    part: str
    gain: float


def gains(outcome: Simulated) -> list[Gain]:
    """What each better part of the machine would bring, largest first; the plan stays."""
    scenario = outcome.scenario
    result = []
    for key, factor, words in PARTS:
        quantity = key.format(scenario.work.dense.precision)
        # the plan stays, so the gain is the machine's alone
        machine = scaled(scenario.machine, quantity, factor)
        faster = simulate(replace(scenario, machine=machine), outcome.placed)
        result.append(Gain(words, outcome.step / faster.step))
    return sorted(result, key=lambda gain: -gain.gain)


def report_lines(outcome: Simulated) -> Iterator[str]:
    """Everything, as lines of text."""
    scenario = outcome.scenario
    breakdown = outcome.breakdown
    options = scenario.options
    sums = f", dense sums {options.sums}" if options.sums else ""
    groups = f" in {scenario.groups} replica groups" if scenario.groups > 1 else ""
    nodes = scenario.layout.everybody.nodes
    yield (
        f"{scenario.machine.name}: {scenario.ranks} ranks on {nodes} node(s){groups}, "
        f"{scenario.work.batch:,} samples a step, pipeline {scenario.pipeline}, "
        f"exchanges {options.algorithm}{sums}"
    )
    yield (
        f"plan by {outcome.placed.planner}: imbalance {outcome.imbalance:.2f} (loads of the "
        f"fullest rank / mean), {outcome.placed.memory / 1e9:,.1f} GB on the fullest rank"
    )
    if outcome.placed.bound:
        above = outcome.planned_step / outcome.placed.bound - 1
        yield (
            f"without overlap its step takes {seconds(outcome.planned_step)}, within {above:.1%} "
            "of what any plan could reach"
        )
    yield ""
    yield f"step   {seconds(outcome.step)}"
    yield f"QPS    {outcome.samples_per_s:,.0f} samples/s"
    yield from _noise_lines(outcome)
    if outcome.million:
        costs = ", ".join(f"{value:.3g} {unit}" for unit, value in outcome.million.items())
        yield f"costs  {costs} for a million samples"
    yield ""
    yield f"{'phase':30}{'serialised':>12}{'exposed':>12}{'of the step':>13}{'longest path':>14}"
    for share in breakdown.shares:
        if not share.serialised:
            continue
        yield (
            f"{share.phase:30}{seconds(share.serialised):>12}{seconds(share.exposed):>12}"
            f"{share.exposed / breakdown.step:>12.1%}{seconds(breakdown.path[share.phase]):>15}"
        )
    rest = {"waiting for slower ranks": breakdown.waiting, "nothing under way": breakdown.idle}
    for name, value in rest.items():
        if value > 1e-9 * breakdown.step:
            yield f"{name:42}{seconds(value):>12}{value / breakdown.step:>12.1%}"
    yield f"{'step':42}{seconds(breakdown.step):>12}"
    yield ""
    yield from bound_lines(outcome)


def _noise_lines(outcome: Simulated) -> Iterator[str]:
    """How steps vary, and what faults leave of them, where that was asked."""
    scenario = outcome.scenario
    if scenario.jitter.any:
        each = outcome.step_seconds
        shown = ", ".join(f"{seconds(value)} ({p} %)" for p, value in percentiles(each).items())
        yield f"steps  {shown} of {each.size} steps"
    faults = scenario.faults
    if faults.node:
        nodes = scenario.layout.everybody.nodes
        yield (
            f"faults one every {faults.node / nodes / 3600:.3g} h; with a checkpoint every "
            f"{faults.interval(nodes) / 60:.3g} min {faults.progress(nodes):.1%} of the time is "
            f"progress: {outcome.goodput:,.0f} samples/s"
        )


def bound_lines(outcome: Simulated) -> Iterator[str]:
    """What limits the step: the busiest stream, the longest path, what more would bring."""
    breakdown = outcome.breakdown
    busiest = max(breakdown.busy, key=lambda name: breakdown.busy[name])
    share = breakdown.busy[busiest] / breakdown.step
    yield f"busiest stream: {busiest}, {share:.0%} of the step; no overlap makes the step shorter"
    links = [
        f"{name.replace('_', ' ')} {busy / breakdown.step:.0%}"
        for name, busy in sorted(breakdown.links.items(), key=lambda item: -item[1])
    ]
    if links:
        yield f"links, of what their peaks would carry: {', '.join(links)}"
    longest = max(breakdown.path, key=lambda name: breakdown.path[name])
    of_step = breakdown.path[longest] / breakdown.step
    yield f"longest path: mostly {longest}, {of_step:.0%} of the step"
    useful = [f"{gain.part} {gain.gain:.2f}x" for gain in gains(outcome) if gain.gain > 1.005]
    yield f"what makes it faster: {', '.join(useful) or 'no single part of the machine'}"


def seconds(value: float) -> str:
    """A time in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.2g} us" if value else "0"


def sweep_lines(outcomes: Sequence[Simulated]) -> Iterator[str]:
    """A row for each number of ranks."""
    first = outcomes[0].scenario
    faults = "   progress" if first.faults.node else ""
    units = "".join(f"{f'{unit}/M':>11}" for unit in outcomes[0].million)
    yield f"{first.work.batch // first.ranks:,} samples per rank"
    columns = f"{'ranks':>6}{'step':>12}{'QPS':>14}{'efficiency':>12}{'imbalance':>11}"
    yield f"{columns}{faults}{units}  mostly"
    for outcome, efficiency in zip(outcomes, efficiencies(outcomes)):
        path = outcome.breakdown.path
        progress = outcome.scenario.faults.progress(outcome.scenario.layout.everybody.nodes)
        left = f"{progress:>11.1%}" if faults else ""
        left += "".join(f"{value:>11.3g}" for value in outcome.million.values())
        yield (
            f"{outcome.scenario.ranks:>6}{seconds(outcome.step):>12}"
            f"{outcome.samples_per_s:>14,.0f}{efficiency:>11.0%} {outcome.imbalance:>11.2f}"
            f"{left}  {max(path, key=lambda name: path[name])}"
        )


def efficiencies(outcomes: Sequence[Simulated]) -> list[float]:
    """QPS per rank over that of the first."""
    per_rank = [outcome.samples_per_s / outcome.scenario.ranks for outcome in outcomes]
    return [value / per_rank[0] for value in per_rank]
