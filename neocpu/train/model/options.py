"""What do the keys of a config say about the parts of a model? Records without the parts
themselves, so that reading a config imports none of them.
"""

from dataclasses import dataclass, field
from typing import Annotated

from neocpu.core.records import Limits

MOST_LAYERS = 1024
MODULES = ("dot", "cross", "attention", "linear")
ENSEMBLES = ("sum", "concat")
LOSSES = ("bce", "mse")


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


@dataclass(frozen=True)
class AttentionKeys:
    """How a history is weighted. model.attention.NAME, with the name of the history's feature.

    target : the feature of the candidate, whose vector is compared with every row of the history.
    hidden : widths of the layers between the comparison and the score.
    normalise : none: scores are the weights of rows; softmax: those of a sample add up to 1.
    """

    target: str = ""
    hidden: tuple[int, ...] = (16,)
    normalise: str = "none"


@dataclass(frozen=True)
class TowerModule:
    """Shape of the tower modules.

    joint_vectors : c, vectors made of all keys of a tower together. feature_vectors : p, vectors
    made of each key (its tower's keys then need one dim). width : D' of these vectors (0: that of
    the bottom MLP's output).
    """

    joint_vectors: int = 1
    feature_vectors: int = 0
    width: int = 0


@dataclass(frozen=True)
class HeadConfig:
    """A further label that the model learns, with a top MLP of its own.

    label : its name among the labels of the table. loss : bce or mse. weight : of its loss beside
    that of the first label, which weighs 1. top : widths of its layers' outputs, the last 1 (empty:
    those of `model.top`).
    """

    label: str = ""
    loss: Annotated[str, Limits(LOSSES)] = "bce"
    weight: float = 1.0
    top: tuple[int, ...] = ()
