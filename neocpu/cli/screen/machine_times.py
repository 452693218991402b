"""How long would a run's traffic take on another machine? As lines of a table."""

from typing import Any


def machine_lines(machine: dict[str, Any]) -> list[str]:
    """How long that traffic takes on the machine of `parallel.machine`, and here, as a table."""
    links = ("same_rank", "same_node", "other_node")
    titles = "".join(f"{link.replace('_', ' '):>16}" for link in links)
    name = f"on {machine['name']}, {machine['nodes']} x {machine['ranks_per_node']}"
    lines = [f"{name:28}{titles}{'all of it':>16}{'waited here':>16}"]
    for collective, times in machine["collectives"].items():
        seconds = [*(times[link]["seconds"] for link in links), times["seconds"]]
        columns = "".join(f"{duration(value):>16}" for value in [*seconds, times["waited_seconds"]])
        lines.append(f"{collective:28}{columns}")
    return lines


def duration(seconds: float | None) -> str:
    """Seconds as text; None: there is no such link."""
    if seconds is None:
        return "no such link"
    return f"{1e3 * seconds:,.3f} ms" if seconds < 1 else f"{seconds:,.2f} s"
