"""What does a rank note while it computes, so that it can go the way back? A node for each
operation on variables whose gradients are wanted, and for each message that has such variables.

Sums have one order. Every node has a path: the number of the call in the function that made it, the
number in that call of the call that that made, and so on down to the operation itself. Sorted,
paths are the order in which a program would run that calls all functions itself, whatever ran first
here. Gradients that meet are added in it, from left to right, in their own dtype. So the bits of
gradients depend neither on where functions run nor on which message came first.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from neocpu.core.errors import RpcError
from neocpu.core.types import Elements

Path: TypeAlias = tuple[int, ...]
# where a sum meets a gradient: the path of the node that it comes from, and which input of that
Key: TypeAlias = tuple[Path, int]


class Summable(Protocol):
    """A gradient that is no array; `operations.BagGradient` is one."""

    def plus(self, other: "Summable") -> "Summable":
        """The sum with the next one."""


Gradient: TypeAlias = "Elements | Summable | None"


class Variable:
    """An array whose gradient is wanted, or that was computed from such arrays.

    array : its numbers. needs : is its gradient wanted?
    node, output : which output of which node it is; a parameter is none.
    """

    def __init__(
        self,
        array: Elements,
        needs: bool = True,
        node: "TapeNode | None" = None,
        output: int = 0,
    ) -> None:
        self.array = array
        self.needs = needs
        self.node = node
        self.output = output


def as_variable(value: "Variable | Elements") -> Variable:
    """A variable, or an array as one without a gradient."""
    return value if isinstance(value, Variable) else Variable(np.asarray(value), needs=False)


class TapeNode:
    """What made some variables, and how their gradients become those of its inputs.

    path : as above. context : number of the pass that it belongs to. back : from the gradients of
    its outputs to those of its inputs.
    """

    def __init__(
        self,
        path: Path,
        context: object,
        inputs: Sequence[Variable],
        back: Callable[[list[Gradient]], Sequence[Gradient]],
        outputs: int = 1,
    ) -> None:
        self.path = path
        self.context = context
        self.inputs = list(inputs)
        self.back = back
        self.outputs = outputs
        self.awaited = 0  # gradients that have still to come
        self.came: list[tuple[int, Key, Gradient]] = []

    def sums(self) -> list[Gradient]:
        """The gradient of each output, of what came."""
        return [
            ordered_sum([(key, value) for output, key, value in self.came if output == number])
            for number in range(self.outputs)
        ]


def ordered_sum(terms: Sequence[tuple[Key, Gradient]]) -> Gradient:
    """Sum of gradients in the order of their keys, from left to right; None where none is."""
    total: Gradient = None
    for _, term in sorted(terms, key=lambda pair: pair[0]):
        if total is None or term is None:
            total = term if total is None else total
        elif isinstance(total, np.ndarray) and isinstance(term, np.ndarray):
            total = np.add(total, term)
        elif not isinstance(total, np.ndarray) and not isinstance(term, np.ndarray):
            total = total.plus(term)
    return total


class TapeFrame:
    """A function that runs within a pass. context : of the pass; path : of the call."""

    def __init__(self, context: object, path: Path) -> None:
        self.context = context
        self.path = path
        self._numbers = itertools.count()

    def next_path(self) -> Path:
        """The path of the next thing that this function does."""
        return (*self.path, next(self._numbers))


_own = threading.local()


def _frames() -> list[TapeFrame | None]:
    """What this thread has entered, the last one at the end."""
    if not hasattr(_own, "frames"):
        _own.frames = []
    return _own.frames


def current_frame() -> TapeFrame | None:
    """The function within a pass that this thread runs, if it does."""
    frames = _frames()
    return frames[-1] if frames else None


@contextmanager
def entered(frame: TapeFrame | None) -> Iterator[None]:
    """This thread runs such a function in the block; None: one outside of any pass."""
    frames = _frames()
    frames.append(frame)
    try:
        yield
    finally:
        # not always the last: blocks of two contexts may overlap
        del frames[len(frames) - 1 - frames[::-1].index(frame)]


class GradientRule(NamedTuple):
    """An operation that is no secret to the tape.

    forward : of arrays, to (its output, what `backward` needs of it).
    backward : of that and the output's gradient, to the gradients of the inputs, in their order;
        None where there is none.
    """

    name: str
    forward: Callable[..., tuple[Elements, object]]
    backward: Callable[[object, Elements], Sequence[Gradient]]


def apply(rule: GradientRule, *inputs: Variable | Elements) -> Variable:
    """The output of an operation; noted within a pass, if the gradient of an input is wanted.

    Raises RpcError for an input that was computed within another pass.
    """
    variables = [as_variable(value) for value in inputs]
    output, saved = rule.forward(*(variable.array for variable in variables))
    frame = current_frame()
    if frame is None or not any(variable.needs for variable in variables):
        return Variable(output, needs=False)
    check_pass(frame, variables, rule.name)
    back = _back(rule, saved, variables)
    node = TapeNode(frame.next_path(), frame.context, variables, back)
    return Variable(output, node=node)


def _back(
    rule: GradientRule, saved: object, inputs: Sequence[Variable]
) -> Callable[[list[Gradient]], Sequence[Gradient]]:
    def back(gradients: list[Gradient]) -> Sequence[Gradient]:
        (gradient,) = gradients
        assert gradient is None or isinstance(gradient, np.ndarray)
        if gradient is None:
            return ()
        parts = rule.backward(saved, gradient)
        if len(parts) != len(inputs):
            raise RpcError(f"{rule.name!r} gives {len(parts)} gradients of {len(inputs)} inputs")
        for part, variable in zip(parts, inputs):
            _check_gradient(rule.name, part, variable.array)
        return parts

    return back


def _check_gradient(name: str, gradient: Gradient, array: Elements) -> None:
    """Raise RpcError for a gradient that is not of its input: it would be added to others."""
    if isinstance(gradient, np.ndarray) and (gradient.shape, gradient.dtype) != (
        array.shape,
        array.dtype,
    ):
        raise RpcError(
            f"{name!r} gives a gradient {gradient.dtype} {gradient.shape} for an input "
            f"{array.dtype} {array.shape}"
        )


def check_pass(frame: TapeFrame, variables: Sequence[Variable], what: str) -> None:
    """Raise RpcError where a variable was computed within another pass than a frame's."""
    for variable in variables:
        if variable.node is not None and variable.node.context != frame.context:
            raise RpcError(
                f"{what!r} takes a variable of another pass; take its array, which is a constant"
            )


class LocalPass:
    """A pass, as far as it is on this rank: what was noted, and the gradients of parameters.

    over : has the rank that began it forgotten it?
    """

    def __init__(self, over: bool = False) -> None:
        self.over = over
        self.lock = threading.Lock()
        self.sent: dict[Path, TapeNode] = {}
        self.received: dict[Path, TapeNode] = {}
        self.touched: set[int] = set()  # ranks that were called
        self.terms: dict[Variable, list[tuple[Key, Gradient]]] = {}
        self.counted = False
        self._nodes: list[TapeNode] = []
        self._ready: list[TapeNode] = []

    def count(self, roots: Sequence[TapeNode]) -> None:
        """Count the gradients that each node waits for, once: one from each node that reads it, if
        that is on the way back from the roots or from any message that was sent (FAST mode).
        """
        if self.counted:
            return
        self.counted = True
        todo = [*roots, *self.sent.values()]
        for node in todo:
            node.awaited += 1
        seen = set(map(id, todo))
        self._nodes = todo
        for node in todo:
            for below in (variable.node for variable in node.inputs):
                if below is None:
                    continue
                below.awaited += 1
                if id(below) not in seen:
                    seen.add(id(below))
                    todo.append(below)

    def deliver(self, node: TapeNode, output: int, key: Key, gradient: Gradient) -> None:
        """A gradient of an output of a node came."""
        node.came.append((output, key, gradient))

    def arrived(self, node: TapeNode) -> None:
        """One of those that a node waits for has delivered."""
        node.awaited -= 1
        if node.awaited == 0:
            self._ready.append(node)

    def drain(self) -> None:
        """Go back from all nodes for which nothing is awaited."""
        while self._ready:
            node = self._ready.pop()
            gradients = node.back(node.sums())
            # None of them: the node has no gradient, so its inputs have none of it
            for number, variable in enumerate(node.inputs):
                gradient = gradients[number] if gradients else None
                self._pass_on(variable, (node.path, number), gradient)

    def _pass_on(self, variable: Variable, key: Key, gradient: Gradient) -> None:
        if variable.node is not None:
            if gradient is not None:
                self.deliver(variable.node, variable.output, key, gradient)
            self.arrived(variable.node)
        elif variable.needs and gradient is not None:
            self.terms.setdefault(variable, []).append((key, gradient))

    def starved(self) -> list[str]:
        """Paths of nodes that some gradients reached, and others never will."""
        return [str(node.path) for node in self._nodes if node.came and node.awaited]
