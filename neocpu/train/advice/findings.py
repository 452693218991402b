"""What did a look at a log find? Lines for the screen."""

from collections.abc import Iterator, Sequence

from neocpu.core.errors import listed
from neocpu.train.advice.columns import LogColumn, by_role
from neocpu.train.advice.labels import label_numbers, rating_threshold
from neocpu.train.advice.look import Log
from neocpu.train.advice.outcomes import warning
from neocpu.train.advice.probe import Probe

FAR = 20  # from 0, of the numbers of a label
SHOWN = 12  # columns of one role on the screen
TITLES = {"dense": "numbers", "category": "categories", "list": "lists", "time": "times"}


def findings(
    log: Log,
    columns: Sequence[LogColumn],
    tables: Sequence[LogColumn],
    split: Sequence[float],
    probe: Probe,
) -> Iterator[str]:
    """Lines about a log and what its columns were taken for.

    tables : the columns that have tables. split : shares of the rows.
    """
    roles = by_role(columns)
    (label,) = roles["label"]
    yield f"{log.rows:,} rows{'' if log.whole else ', about'}, read as {log.kind}"
    yield f"label: {label.name}{f', {label.why}' if label.why else ''}"
    liked = liked_from(log, label)
    if liked is not None:
        yield f"  to learn who likes it rather than the number: --threshold {liked:g}"
    for role, title in TITLES.items():
        names = [column.name for column in roles.get(role, [])]
        if names:
            yield f"{title}: {listed(names, SHOWN)}"
    numbers = [column.name for column in roles.get("dense", [])]
    twice = [column.source for column in tables if column.source in numbers]
    if twice:
        yield f"numbers that are categories as well: {listed(twice, SHOWN)}"
    for column in columns:
        if column.unreadable:
            yield f"{column.name}: {column.unreadable:,} texts are no numbers and count as missing"
    for column in roles.get("left out", []):
        yield f"left out: {column.name}, {column.why}"
    if line := _far(log, label):
        yield line
    if log.kind == "table":
        yield from _careful(log, columns, label, probe)
    if split and (line := _sorted(log, label, split[-1])):
        yield line
    if split:
        shares = ", ".join(f"{100 * share:g} %" for share in split)
        yield f"train, valid, test: the first, next and last rows, {shares}"


def liked_from(log: Log, label: LogColumn) -> float | None:
    """From which rating on a label of ratings is a click, if it were one; None: it is no rating."""
    return rating_threshold(log.frame[label.name]) if label.kind == "number" else None


def _far(log: Log, label: LogColumn) -> str:
    """A line about a label of numbers that a model is long in reaching; "" for any other."""
    if label.kind != "number":
        return ""
    numbers = label_numbers(log.frame[label.name], label).to_numpy()
    mean, deviation = float(numbers.mean()), float(numbers.std())
    # a model begins near 0, and each step moves it by about the learning rate
    if max(abs(mean), deviation) <= FAR:
        return ""
    return (
        f"careful: {label.name} is {mean:.4g} ± {deviation:.4g}, and a model begins at 0: it "
        "learns more of numbers near 0, so subtract a mean and divide by a deviation beforehand"
    )


def _careful(
    log: Log, columns: Sequence[LogColumn], label: LogColumn, probe: Probe
) -> Iterator[str]:
    """Lines about columns that may be known only after the label is."""
    single = [each for each in columns if each.role in ("dense", "category") and not each.width]
    for column in single:
        if line := warning(probe, log.frame[column.name], label.name):
            yield line


def _sorted(log: Log, label: LogColumn, share: float) -> str:
    """A line about a log whose first and last rows have other labels; "" for any other."""
    if label.kind != "click" or not log.whole:
        return ""
    clicks = label_numbers(log.frame[label.name], label)
    last = round(log.rows * share)
    first_rate = float(clicks.head(log.rows - last).mean() or 0.0)  # type: ignore[arg-type]
    last_rate = float(clicks.tail(last).mean() or 0.0)  # type: ignore[arg-type]
    deviation = (first_rate * (1 - first_rate) / max(last, 1)) ** 0.5
    # rates drift in any log; six deviations are no chance
    if abs(first_rate - last_rate) <= max(0.5 * first_rate, 6 * deviation):
        return ""
    return (
        f"careful: {100 * first_rate:.1f} % clicks in the first rows, {100 * last_rate:.1f} % in "
        "the last tenth: the log may be sorted by something; put it in the order of time"
    )
