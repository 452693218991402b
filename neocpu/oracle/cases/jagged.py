"""Which jagged rows break products, softmax and elementwise arithmetic?"""

from collections.abc import Iterator

import numpy as np

from neocpu.core.types import Floats
from neocpu.oracle.cases.draw import Draw, Recipe
from neocpu.oracle.operator import Arrays, Case, Value
from neocpu.oracle.ops.jagged import OPERATORS

BY_NAME = {op.name: op for op in OPERATORS}
RAGGED = np.array([0, 3, 3, 4, 40, 73, 73])  # bags of 0, 1, 33 and more rows; the last is empty


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    for make in (_products, _heads, _softmax, _elementwise):
        yield from make(seed, Recipe(seed, dim_multiple).narrow)


def _with_backward(
    seed: int, op: str, name: str, inputs: Arrays, about: str, exact: bool = False, **options: Value
) -> Iterator[Case]:
    """A case of an operator, and one of its backward with the same operands.

    exact : dyadic gradients, as the operands are then: sums are exact in any order.
    """
    yield Case(name, op, inputs, options, about)
    out = BY_NAME[op].run(inputs, options, "reference")["out"]
    draw = Draw(seed, f"{name}-backward")
    gradient = draw.dyadic(out.shape) if exact else draw.floats(out.shape)
    backward = {"grad_output": gradient, **inputs}
    yield Case(f"{name}-backward", f"{op}_backward", backward, options, f"gradients; {about}")


def _numbers(draw: Draw, shape: tuple[int, ...], exact: bool) -> Floats:
    return draw.dyadic(shape) if exact else draw.floats(shape)


def _products(seed: int, multiple: int) -> Iterator[Case]:
    for op, second in (("jagged_dense_bmm", "dense"), ("jagged_jagged_bmm", "other")):
        for name, width, columns, exact, longest, about in (
            ("", 2, 1, False, 0, "bags of 0 to 36 rows, the last one empty"),
            ("-square", 2, 2, True, 0, "as many columns as rows; dyadic: exact in any order"),
            ("-cut", 1, 2, True, 20, "bags longer than max_length: rows beyond it count as 0"),
        ):
            case_name = f"{op.replace('_', '-')}{name}"
            draw = Draw(seed, case_name)
            first = width * multiple
            last = columns * multiple
            shape = (RAGGED.size - 1, first, last) if second == "dense" else (73, last)
            inputs = {
                "values": _numbers(draw, (73, first), exact),
                second: _numbers(draw, shape, exact),
                "offsets": RAGGED,
            }
            options: dict[str, Value] = {"max_length": longest} if longest else {}
            yield from _with_backward(seed, op, case_name, inputs, about, exact, **options)
    draw = Draw(seed, "jagged-bmm-specials")
    special = draw.floats((4, multiple))
    special[0, 0] = np.inf
    special[2, 0] = np.nan
    inputs = {"values": special, "other": draw.floats((4, multiple)), "offsets": RAGGED[:4]}
    inputs["offsets"] = np.array([0, 2, 3, 4])
    about = "infinity and NaN stay in their bags"
    yield from _with_backward(seed, "jagged_jagged_bmm", "jagged-bmm-specials", inputs, about)


def _heads(seed: int, multiple: int) -> Iterator[Case]:
    for name, heads, length, exact, about in (
        ("", 1, 36, False, "one head, vectors as long as the longest bag"),
        ("-heads", 3, 33, True, "three heads, bags longer than the vectors"),
    ):
        draw = Draw(seed, f"vec-jagged-mul{name}")
        inputs = {
            "vectors": _numbers(draw, (heads * (RAGGED.size - 1), length), exact),
            "values": _numbers(draw, (73, heads * 2 * multiple), exact),
            "offsets": RAGGED,
        }
        op = "dense_vec_jagged_mul"
        yield from _with_backward(seed, op, f"vec-jagged-mul{name}", inputs, about, exact)


def _softmax(seed: int, multiple: int) -> Iterator[Case]:
    draw = Draw(seed, "jagged-softmax")
    ordinary = draw.floats((73, multiple))
    large = draw.floats((73, multiple)) * np.float32(50)
    far = ordinary + np.float32(1000)
    low = ordinary - np.float32(1000)
    low[40, 0] = -np.inf
    wrong = ordinary.copy()
    wrong[10, -1] = np.nan
    for name, values, about in (
        ("jagged-softmax", ordinary, "bags of 0 to 36 rows; a bag of one row is 1"),
        ("jagged-softmax-large", large, "numbers up to 200: without subtraction they overflow"),
        ("jagged-softmax-far", far, "all numbers near 1000: only differences count"),
        ("jagged-softmax-low", low, "all near -1000, and -infinity: without subtraction 0/0"),
        ("jagged-softmax-nan", wrong, "a NaN spoils its column of its bag only"),
    ):
        inputs = {"values": values, "offsets": RAGGED}
        yield Case(name, "jagged_softmax", inputs, {}, about)
    softmax = BY_NAME["jagged_softmax"]
    for name, values in (("", ordinary), ("-large", large)):
        inputs = {"values": values, "offsets": RAGGED}
        backward = {
            "grad_output": Draw(seed, f"softmax-backward{name}").floats((73, multiple)),
            "output": softmax.run(inputs, {}, "reference")["out"],
            "offsets": RAGGED,
        }
        about = "gradient from the softmax itself; the gradient of a bag adds up to 0"
        name = f"jagged-softmax{name}-backward"
        yield Case(name, "jagged_softmax_backward", backward, {}, about)


def _elementwise(seed: int, multiple: int) -> Iterator[Case]:
    for operation in ("add", "add_jagged", "mul"):
        for name, length, about in (
            ("", 36, "a dense array as long as the longest bag"),
            ("-short", 5, "bags longer than the dense array"),
        ):
            case_name = f"jagged-{operation.replace('_', '-')}{name}"
            draw = Draw(seed, case_name)
            inputs = {
                "values": draw.floats((73, multiple)),
                "dense": draw.floats((RAGGED.size - 1, length, multiple)),
                "offsets": RAGGED,
            }
            op = "jagged_dense_elementwise"
            yield from _with_backward(seed, op, case_name, inputs, about, operation=operation)
