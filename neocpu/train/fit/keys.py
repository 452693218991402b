"""What may be said of a fit? Its method, loss, hidden units, penalty and columns."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from neocpu.core.errors import ConfigError

FILE = "fit.h5"  # in the folder of a fit
LOSS_NAMES = ("logistic", "squares", "squared_hinge", "softmax")
METHODS = ("dance", "lbfgs")
ACTIVATION_NAMES = ("tanh", "relu")
PAIRS = ("multi", "full")
CHOSEN = "auto"
PENALTIES = (1.0, 4.0, 16.0, 64.0)  # that "auto" chooses among, of linear models
FIRST = 256  # samples of the first sample
MOST_BITS = 30  # of hashed columns: their numbers are int32


@dataclass(frozen=True)
class FitKeys:
    """How a model is fitted.

    method : "dance" or "lbfgs". loss : one of `LOSS_NAMES`; "": logistic for clicks, else squares.
    hidden : hidden units of each layer; (): a linear model. activation : of these, one of
        `ACTIVATION_NAMES`.
    l2 : penalty on each weight against the *sum* of losses, scikit-learn's 1/C; "auto": the one of
        `penalties` that predicts the last tenth of the train samples best.
    intercepts : are these penalised too?
    hashed : is every feature hashed, and not only its crosses? bits : 2^bits hashed columns.
    cross : pairs of features whose pairs of values have columns. quadratic : all pairs.
    tolerance : the gradient's length at the end, against that at the beginning (0: DANCE's own
        limit). pairs : of L-BFGS, on the overlap of samples ("multi") or all of one ("full").
    start : samples of the first sample; 0: `FIRST`, or all where columns (weights, of a model with
        hidden layers) are more than samples.
    patience : steps on all samples after which a fit ends, if the loss of the valid samples fell in
        none of them, and its best weights are kept (0: it goes on).
    most : steps, at most. seed : of the order of samples and of initial weights. leaves : of the
        samples, a power of two.
    """

    method: str = "dance"
    loss: str = ""
    l2: float | str = 1.0
    intercepts: bool = False
    hashed: bool = False
    bits: int = 20
    cross: tuple[tuple[str, str], ...] = ()
    quadratic: bool = False
    tolerance: float = 1e-5
    pairs: str = "multi"
    start: int = 0
    most: int = 1000
    seed: int = 1
    leaves: int = 16
    hidden: tuple[int, ...] = ()
    activation: str = "tanh"
    patience: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"method {self.method!r}: choose one of {', '.join(METHODS)}")
        if self.pairs not in PAIRS:
            raise ConfigError(f"pairs {self.pairs!r}: choose one of {', '.join(PAIRS)}")
        if self.loss not in ("", *LOSS_NAMES):
            raise ConfigError(f"loss {self.loss!r}: choose one of {', '.join(LOSS_NAMES)}")
        if isinstance(self.l2, str) and self.l2 != CHOSEN:
            raise ConfigError(f"l2 {self.l2!r}: a number above 0, or {CHOSEN}")
        if not isinstance(self.l2, str) and not 0 < self.l2 < float("inf"):
            raise ConfigError(
                f"l2 {self.l2}: it must be above 0: samples are as large as the penalty lets them "
                "tell, and without one a separable log has no solution"
            )
        units = self.hidden
        if not isinstance(units, Sequence) or not all(type(n) is int and n > 0 for n in units):
            raise ConfigError(
                f"hidden {units!r}: the units of each hidden layer, whole numbers above 0, as 32,16"
            )
        object.__setattr__(self, "hidden", tuple(units))  # of a list too
        if self.activation not in ACTIVATION_NAMES:
            raise ConfigError(
                f"activation {self.activation!r}: choose one of {', '.join(ACTIVATION_NAMES)}"
            )
        if not 0 <= self.tolerance < 1:
            raise ConfigError(f"tolerance {self.tolerance}: from 0 to below 1")
        if not 1 <= self.bits <= MOST_BITS:
            raise ConfigError(f"bits {self.bits}: from 1 to {MOST_BITS}")
        if self.leaves < 1 or self.leaves & (self.leaves - 1):
            raise ConfigError(f"leaves {self.leaves}: a power of two")
        if type(self.patience) is not int or self.patience < 0:
            raise ConfigError(f"patience {self.patience}: steps, a whole number from 0 on")
        if self.start < 0 or self.most < 1:
            raise ConfigError("the first sample has a sample at least, and a fit one step")

    @property
    def penalties(self) -> tuple[float, ...]:
        """Those that "auto" chooses among; hidden layers want stronger ones."""
        return tuple(4.0 * penalty for penalty in PENALTIES) if self.hidden else PENALTIES

    def first(self, samples: int, weights: int) -> int:
        """Samples of the first sample, for so many weights."""
        return min(self.start or (samples if weights > samples else FIRST), samples)

    def with_l2(self, penalty: float) -> "FitKeys":
        """The same with another penalty."""
        return replace(self, l2=penalty)

    def header(self) -> dict[str, object]:
        """The keys that decide the bits."""
        header = asdict(self)
        del header["most"]
        if not self.hidden:
            # nothing that a linear model has
            del header["hidden"], header["activation"]
        if not self.patience:
            del header["patience"]
        return header
