"""How are rows of codes updated by the textbook kernel? Decoded, updated as fp32, encoded."""

from functools import cache

from neocpu.kernels.narrow import CODES
from neocpu.kernels.plain import update


@cache
def fused(rule, limited):
    """The plain kernel of a rule over coded rows; arguments as of `kernels.narrow.fused`."""
    return update.fused(rule, limited, CODES)
