"""What do the keys of a config say about interactions, beside their names? Records without the
interactions themselves, so that reading a config imports none of them.
"""

from dataclasses import dataclass, field
from typing import Annotated

from neocpu.core.records import Limits

MOST_LAYERS = 1024
MODULES = ("dot", "cross", "attention", "linear")
ENSEMBLES = ("sum", "concat")


@dataclass(frozen=True)
class CrossShape:
    """Cross layers of the interaction "dcnv2".

    layers : how many. rank : of their matrices (0: full ones); MLPerf's DLRMv2 has 3 of rank 512.
    """

    layers: Annotated[int, Limits(least=1, most=MOST_LAYERS)] = 3
    rank: int = 0


@dataclass(frozen=True)
class DhenShape:
    """Layers of the interaction "dhen".

    layers : how many. modules : of each layer: dot (products of all pairs), cross (a cross layer),
    attention (one head among the vectors), linear (a matrix over all vectors). tokens : vectors
    that each module gives (0: as many as the layer gets). ensemble : "sum" adds the modules'
    vectors; "concat" sets them side by side, so a layer gives `tokens` of each module. rank : of
    the cross layers' matrices (0: full ones). residual, norm : does a layer add its input, and is
    each of its vectors normalised?
    """

    layers: Annotated[int, Limits(least=1, most=MOST_LAYERS)] = 2
    modules: Annotated[tuple[str, ...], Limits(MODULES)] = ("dot", "linear")
    tokens: Annotated[int, Limits(most=2**16)] = 0
    ensemble: Annotated[str, Limits(ENSEMBLES)] = "sum"
    rank: int = 0
    residual: bool = True
    norm: bool = True


@dataclass(frozen=True)
class InteractionOptions:
    """What the keys of a config say about interactions, beside their names."""

    diagonal: bool = False
    cross: CrossShape = field(default_factory=CrossShape)
    dhen: DhenShape = field(default_factory=DhenShape)
