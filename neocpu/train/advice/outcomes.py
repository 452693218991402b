"""Which columns give the label away, by their names and by their values?"""

import polars as pl

from neocpu.train.advice.names import names_outcome
from neocpu.train.advice.probe import Probe, auc_alone

TELLS = 0.98  # AUC of a column alone from which it is told
HINTS = 0.75  # the same of one whose name says that it is an outcome


def outcome_reason(probe: Probe, values: pl.Series, label: str) -> str:
    """Why a column is an outcome that is known only when the label is; "" if it is none.

    A purchase beside a click is one by its name; beside a label that is no such thing (churn), or
    whose name does not say what it is (target), orders may be those of the past.
    """
    if not names_outcome(values.name):
        return ""
    if names_outcome(label):
        return f"an outcome as {label} is, known only afterwards"
    auc = _auc(probe, values)
    if auc < HINTS:
        return ""
    return f"an outcome by its name, and it tells {label} (AUC {auc:.2f} on rows held out)"


def _auc(probe: Probe, values: pl.Series) -> float:
    """The AUC of a column alone; 0.5 where there are no clicks to tell, or too few."""
    if not probe.clicks or not probe.serves or values.dtype.is_nested():
        return 0.5
    return auc_alone(probe, values)


def gives_away(frame: pl.DataFrame, name: str, label: str) -> bool:
    """Does every value that occurs repeatedly go with one of several values of the label?"""
    if frame[label].n_unique() == 1:
        return False
    pair = frame.select(pl.col(name).cast(pl.String), pl.col(label).alias("__label")).drop_nulls()
    groups = pair.group_by(name).agg(
        pl.len().alias("__rows"), pl.col("__label").n_unique().alias("__labels")
    )
    # one or two rows agree with their label by chance
    repeated = groups.filter(pl.col("__rows") > 2)
    pure = repeated.filter(pl.col("__labels") == 1)
    covered = int(repeated["__rows"].sum())
    return 1 < repeated.height == pure.height and covered > 0.5 * pair.height


def warning(probe: Probe, values: pl.Series, label: str) -> str:
    """A line about a column that alone tells nearly all of the label; "" for any other."""
    auc = _auc(probe, values)
    if auc < TELLS:
        return ""
    return (
        f"careful: {values.name} alone tells {label} (AUC {auc:.3f} on rows held out); if it is "
        f"known only afterwards, leave it out: --leave-out {values.name}"
    )
