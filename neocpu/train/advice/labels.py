"""Which column of a log is the label, and is it a click or a number?"""

import polars as pl

from neocpu.core.errors import ConfigError

LABELS = (
    *("label", "click", "clicked", "is_click", "is_clicked", "target", "y", "converted"),
    *("conversion", "is_attributed", "purchase", "purchased", "rating", "response"),
)
# the texts of a label of clicks: no, yes
CLICKS = (
    *({"0", "1"}, {"-1", "1"}, {"0.0", "1.0"}, {"-1.0", "1.0"}),
    *({"false", "true"}, {"False", "True"}, {"FALSE", "TRUE"}),
)

POSITIVES = (
    "A log of choices alone (views, purchases) gets rows for what was not chosen by `neocpu data "
    "negatives LOG --user COLUMN --item COLUMN --out LABELLED.csv`"
)


def guess_label(frame: pl.DataFrame) -> str:
    """The column that is most likely the label. Raises ConfigError where none looks like one.

    By its name, or as the only column whose values are 0 and 1.
    """
    by_name = {name.lower(): name for name in reversed(frame.columns)}
    for name in LABELS:
        if name in by_name:
            return by_name[name]
    binary = [name for name in frame.columns if _is_click(frame[name])]
    if len(binary) == 1 or (binary and binary[0] == frame.columns[0]):
        return binary[0]
    clicks = f"{len(binary)} columns hold 0 and 1 only" if binary else "none holds 0 and 1 only"
    raise ConfigError(
        f"which column is the label? No name says it, and {clicks}; name it with --label COLUMN "
        f"(from Python label=); the log has {', '.join(map(repr, frame.columns[:60]))}. {POSITIVES}"
    )


def _is_click(values: pl.Series) -> bool:
    """Are all values 0 or 1, or other words for them, and both there?"""
    if values.null_count() or values.dtype.is_nested():
        return False
    return _texts(values) in CLICKS


def _texts(values: pl.Series) -> set[str]:
    """The first distinct values, as texts."""
    return {*map(str, values.unique().head(3).to_list())}


def label_kind(values: pl.Series) -> tuple[str, str]:
    """The kind of a label, "click" or "number", and why. Raises ConfigError for other values."""
    if _is_click(values):
        low, high = sorted(_texts(values))
        return "click", f"its values are {low} and {high}"
    numbers = values.cast(pl.Float64, strict=False)
    if numbers.null_count() > values.null_count() or values.null_count():
        raise ConfigError(
            f"the label {values.name!r} has values that are no numbers, or empty fields; choose "
            "another column with --label COLUMN"
        )
    if values.n_unique() == 1:
        return "number", f"it is {values[0]} in all rows, so there is nothing to learn. {POSITIVES}"
    return "number", "its values are numbers other than 0 and 1"
