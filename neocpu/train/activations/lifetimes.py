"""Which arrays of the dense part live from the forward to the backward pass, and who reads them?

A step is a row of operations, whose names `BetweenLayers` is called with:

    bottom 0, bottom 1 ...  vectors  top 0, top 1 ...  heads  loss
    top k inputs, top k weights ...  top 0 inputs  vectors inputs
    top 0 weights  bottom k inputs, bottom k weights ...  vectors weights  update

"vectors" is all that stands between E and the top MLP. When an array is written is known from
watching a step (`Buffer.taken`). Who reads it is known here: exactly for the MLPs, E, and dot
products alone; arrays of other modules are taken to be read by all of their operations, and their
gradients to the end of the step.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from neocpu.train.model.arrays import Buffer
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.model.heads import Objective
from neocpu.train.model.interactions.dot import Dot
from neocpu.train.model.mlp import END, LOSS, BetweenLayers, Mlp

MODULES = "neocpu.train.model"


class Remake(NamedTuple):
    """How an array is computed again: the operation that did it first, the arrays that it reads."""

    operation: str
    sources: tuple[str, ...]
    work: Callable[[], object]


class Lifetimes:
    """The arrays of a model, and who reads them.

    vectors : the memory of E.

    Attributes: buffers, by name, but for those with one number of a sample, which are read after
    the step; remakes, of those that one operation computes again.
    """

    def __init__(self, model: Dlrm, vectors: Buffer) -> None:
        self._model = model
        modules = model.interaction.modules
        others = (model.composition, model.towers, model.first_order, *model.heads)
        alone = len(modules) == 1 and all(module is None for module in others)
        self._dot = modules[0] if alone and isinstance(modules[0], Dot) else None
        buffers = {"E": vectors}
        for mlp in (model.bottom, model.top):
            buffers |= {f"{mlp.name} x{i + 1}": buffer for i, buffer in enumerate(mlp.values)}
            buffers |= {f"{mlp.name} g{i}": buffer for i, buffer in enumerate(mlp.gradients)}
        if self._dot is not None:
            buffers |= {"z": self._dot.y, "dE": self._dot.dx}
        named = {id(buffer) for buffer in buffers.values()}
        buffers |= {name: x for name, x in _walk(model, "", set()) if id(x) not in named}
        self.buffers = {name: buffer for name, buffer in buffers.items() if buffer.columns > 1}
        self.remakes = self._remakes()

    def readers(self, name: str, forward: bool) -> list[str]:
        """Operations that read an array; forward : is it of the forward pass?"""
        for mlp in (self._model.bottom, self._model.top):
            for number in range(mlp.layers + 1):
                if name == f"{mlp.name} x{number}":
                    return self._of_output(mlp, number)
                if name == f"{mlp.name} g{number}":
                    return self._of_gradient(mlp, number)
        if not forward:
            return [END]
        if self._dot is not None:
            exact = {"E": ["vectors", "vectors inputs"], "z": ["top 0", "top 0 weights"]}
            return exact[name]
        heads = ["heads", LOSS] if self._model.heads else []
        return ["vectors", "top 0", *heads, "vectors inputs", "top 0 weights", "vectors weights"]

    def _of_output(self, mlp: Mlp, number: int) -> list[str]:
        """Readers of the input of layer `number`, or of the last layer's output."""
        if number < mlp.layers:
            # an operand, a gate, and an operand again
            return [f"{mlp.name} {number}{work}" for work in ("", " inputs", " weights")]
        if mlp is self._model.top:
            return [LOSS]
        # it has a ReLU, whose gate is applied before anything else
        return ["vectors", f"{mlp.name} {number - 1} {'inputs' if number > 1 else 'weights'}"]

    def _of_gradient(self, mlp: Mlp, number: int) -> list[str]:
        """Readers of the gradient of the input of layer `number`."""
        if number == 0:
            # interactions may hand it on as the gradient of E
            return [END] if self._dot is None else ["vectors inputs"]
        layer = f"{mlp.name} {number - 1}"
        ends_here = mlp is self._model.bottom and number == 1
        return [f"{layer} weights"] if ends_here else [f"{layer} inputs", f"{layer} weights"]

    def _remakes(self) -> dict[str, Remake]:
        remakes = {}
        if self._dot is not None:
            remakes["z"] = Remake("vectors", ("E",), self._dot.again)
        for mlp, below in ((self._model.bottom, ""), (self._model.top, "z")):
            # the last output is the logit, to which others are added, or stands in E too
            for layer in range(mlp.layers - 1):
                source = f"{mlp.name} x{layer}" if layer else below
                if source == "z" and self._dot is None:
                    continue
                sources = (source,) if source in self.buffers else ()
                name = f"{mlp.name} x{layer + 1}"
                remakes[name] = Remake(f"{mlp.name} {layer}", sources, partial(mlp.again, layer))
        return remakes


def _walk(owner: object, name: str, seen: set[int]) -> Iterator[tuple[str, Buffer]]:
    """The buffers that an object has, or that what it has has."""
    if id(owner) in seen or isinstance(owner, Objective | BetweenLayers):
        return
    seen.add(id(owner))
    members: dict[str, object] = {}
    if isinstance(owner, Buffer):
        yield name, owner
    elif isinstance(owner, list | tuple):
        members = {str(number): member for number, member in enumerate(owner)}
    elif type(owner).__module__.startswith(MODULES):
        members = getattr(owner, "__dict__", {})
    for member, value in members.items():
        yield from _walk(value, f"{name} {member.strip('_')}".strip(), seen)
