"""How are seconds, bytes and rates shown to people? In the largest unit that fits."""

BYTES = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1))
SECONDS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def bytes_text(size: int) -> str:
    """Bytes: 48187500000000 -> '48.19 TB'."""
    name, unit = next(((name, unit) for name, unit in BYTES if size >= unit), ("B", 1))
    return f"{size / unit:.2f} {name}" if unit > 1 else f"{size} B"


def seconds_text(seconds: float) -> str:
    """Seconds with three digits: 0.01234 -> '12.3 ms', 0.0 -> '0'."""
    if not seconds:
        return "0"
    for name, unit in SECONDS:
        # what three digits round up to a unit is written in it
        if abs(seconds) >= 0.9995 * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e9:.2g} ns"


def count_text(number: float) -> str:
    """A number with three digits: 5161234.0 -> '5.16 M', 12.0 -> '12'."""
    for name, unit in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(number) >= unit:
            return f"{number / (1e3 if name == 'k' else unit):.3g} {name}"
    return f"{number:,.3g}" if number < 1000 else f"{number:,.0f}"


def duration_text(seconds: float) -> str:
    """Seconds as a person says them: "25 s", "4 min", "3 h 20 min"."""
    if 0 < seconds < 0.5:
        return "less than a second"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{round(whole / 60)} min"
    hours, rest = divmod(round(whole / 60), 60)
    return f"{hours} h {rest} min"
