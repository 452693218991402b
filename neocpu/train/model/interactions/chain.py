"""How do several interactions follow one another? The vectors of one are the input of the next.

    model.interaction = ["dcnv2", "dot"]      x -> cross layers -> dot products -> top MLP

Shapes are checked when the layout is made, before anything starts.
"""

from collections.abc import Callable, Sequence
from importlib import import_module

from neocpu.core.errors import ConfigError
from neocpu.core.types import Floats, FloatsByName
from neocpu.train.model.arrays import NodeGradient, Shapes
from neocpu.train.model.interactions.base import Interaction, InteractionLayout, Widths
from neocpu.train.model.options import InteractionOptions
from neocpu.train.model.precision.operands import EXACT, Precision

# name -> layout of (widths of the vectors that come, options, prefix of its tensors' names)
Make = Callable[[Widths, InteractionOptions, str], InteractionLayout]
LAYOUTS: dict[str, Make] = {
    "dot": lambda widths, options, prefix: _layout("dot", "DotLayout")(widths, options.diagonal),
    "cat": lambda widths, options, prefix: _layout("cat", "CatLayout")(widths),
    "dcnv2": lambda widths, options, prefix: _layout("cross", "CrossLayout")(
        widths, options.cross, prefix
    ),
    "fm": lambda widths, options, prefix: _layout("fm", "FmLayout")(widths),
    "deepfm": lambda widths, options, prefix: _layout("deepfm", "DeepFmLayout")(widths),
    "wide_deep": lambda widths, options, prefix: _layout("wide_deep", "WideDeepLayout")(widths),
    "dhen": lambda widths, options, prefix: _layout("dhen", "DhenLayout")(
        widths, options.dhen, prefix
    ),
}
INTERACTIONS = tuple(LAYOUTS)
WITH_FIRST_ORDER = ("deepfm", "wide_deep")  # a linear term belongs to these (`first_order.py`)


def _layout(file: str, name: str) -> Callable[..., InteractionLayout]:
    """A class of a file of this folder, imported where a model has such an interaction."""
    return getattr(import_module(f"neocpu.train.model.interactions.{file}"), name)


def chain_layouts(
    names: Sequence[str], widths: Widths, options: InteractionOptions
) -> tuple[InteractionLayout, ...]:
    """Layouts of interactions behind one another.

    widths : of the vectors that the first one gets.

    Raises ConfigError: no name, an unknown one, vectors that do not fit.
    """
    if not names:
        raise ConfigError("model.interaction: an empty list; 'cat' leaves the vectors as they are")
    layouts: list[InteractionLayout] = []
    for position, name in enumerate(names):
        if name not in LAYOUTS:
            raise ConfigError(
                f"model.interaction: {name!r} is unknown; choose from {', '.join(INTERACTIONS)}"
            )
        # numbered, since one kind may stand there twice
        layout = LAYOUTS[name](widths, options, f"interaction.{position}")
        layouts.append(layout)
        widths = layout.widths
    return tuple(layouts)


def chain_tensors(layouts: Sequence[InteractionLayout]) -> Shapes:
    """(name, shape) of the parameters of all."""
    return tuple(tensor for layout in layouts for tensor in layout.tensors())


class Chain(Interaction):
    """Interactions behind one another, as one.

    layouts, parameters, precision : of all of them. between : called after each one's work.
    """

    def __init__(
        self,
        layouts: Sequence[InteractionLayout],
        parameters: FloatsByName,
        between: Callable[[], None],
        precision: Precision = EXACT,
    ) -> None:
        self.modules = [layout.build(parameters, precision) for layout in layouts]
        self._between = between

    def forward(self, x: Floats) -> Floats:
        """What the last one gives; the logit has what all of them add, the first one's first."""
        logit: Floats | None = None
        for module in self.modules:
            x = module.forward(x)
            if module.logit is not None:
                # a sum makes a new array: that of a part is its own buffer
                logit = module.logit if logit is None else logit + module.logit
            self._between()
        self.logit = logit
        return x

    def backward(self, dy: Floats, dlogit: Floats) -> Floats:
        """dx of the first one."""
        for module in reversed(self.modules):
            dy = module.backward(dy, dlogit)
            self._between()
        return dy

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Of the parameters of all."""
        for module in self.modules:
            module.weight_gradients(nodes)
