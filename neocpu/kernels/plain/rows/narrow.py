"""How are rows of codes updated by the textbook kernel? Decoded, updated as fp32, encoded."""

from functools import cache

from neocpu.kernels.plain.rows import update
from neocpu.kernels.rows.narrow import CODES


@cache
def fused(rule, limited):
    """The plain kernel of a rule over coded rows; arguments as of `kernels.rows.narrow.fused`."""
    return update.fused(rule, limited, CODES)
