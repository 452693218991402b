"""Which matrices break products of small floats? Cases of `narrow_gemm`, `narrow_mlp` and
`narrow_interaction`.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from neocpu.core.types import Floats
from neocpu.oracle.cases.draw import Draw, Recipe
from neocpu.oracle.operator import Arrays, Case, Value

NARROW = ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2")


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    recipe = Recipe(seed, dim_multiple)
    for make in (_layers, _gradients, _numbers, _mlps, _interactions):
        yield from make(recipe)


def _gemm(name: str, inputs: Arrays, about: str, **options: Value) -> Case:
    return Case(f"narrow-gemm-{name}", "narrow_gemm", inputs, options, about)


def _layers(recipe: Recipe) -> Iterator[Case]:
    for form in NARROW:
        draw = Draw(recipe.seed, f"narrow-gemm-{form}")
        k = recipe.width(37)
        inputs: Arrays = {"a": draw.floats((5, k)), "b": draw.floats((7, k))}
        inputs["bias"] = draw.floats(7)
        about = f"24-bit numbers to {form}, biases of 24 bits, a tail of every tile"
        yield _gemm(form, inputs, about, format=form)
        yield _gemm(f"{form}-out", inputs, f"the same, written in {form}", format=form, output=form)
    draw = Draw(recipe.seed, "narrow-gemm-tiles")
    k = recipe.width(72)
    exact: Arrays = {"a": draw.dyadic((33, k), 3, -1), "b": draw.dyadic((18, k), 3, -1)}
    exact["bias"] = draw.dyadic(18, 6, -2)
    about = "whole multiples of 1/2 around tiles of 16 and 32: no sum may round"
    for form in NARROW:
        yield _gemm(f"tiles-{form}", exact, about, format=form, relu=True)
    draw = Draw(recipe.seed, "narrow-gemm-long")
    k = recipe.tail(2048)
    long: Arrays = {"a": np.abs(draw.floats((2, k))), "b": np.abs(draw.floats((3, k)))}
    about = "long sums of positive numbers: an accumulator of few bits stands still"
    for form in NARROW:
        yield _gemm(f"long-{form}", long, about, format=form)


def _gradients(recipe: Recipe) -> Iterator[Case]:
    draw = Draw(recipe.seed, "narrow-gemm-gradients")
    n = recipe.width(21)
    shapes = {"input_gradient": ((6, n), (n, 11)), "weight_gradient": ((n, 6), (n, 11))}
    for product, (a, b) in shapes.items():
        inputs: Arrays = {"a": draw.floats(a, -20, -12), "b": draw.floats(b)}
        about = f"{product} of small gradients: another axis is contracted"
        for form in NARROW[:2]:
            name = f"{product.replace('_', '-')}-{form}"
            yield _gemm(name, inputs, about, product=product, format=form)


def _ties(form: str) -> Floats:
    """Numbers halfway between two of a format, their neighbours in fp32, and numbers that another
    rounding on the way makes halfway.
    """
    bits = {"bf16": 8, "fp16": 11, "fp8_e4m3": 4, "fp8_e5m2": 3}[form]
    step = 2.0 ** (1 - bits)
    ties = 1 + step * (np.arange(8) % 2 ** (bits - 1)) + step / 2
    beside = np.array([ties, ties * (1 - 2.0**-20), ties * (1 + 2.0**-20)])
    return beside.astype(np.float32).reshape(-1)


def _numbers(recipe: Recipe) -> Iterator[Case]:
    for form in NARROW:
        ties = _ties(form)
        k = recipe.width(ties.size)
        a = np.zeros((k, k), np.float32)
        a[np.arange(ties.size), np.arange(ties.size)] = ties
        one = np.zeros((recipe.narrow, k), np.float32)
        one[0] = 1
        one[1:] = -2
        about = "one number a row, halfway or an ulp beside: ties to even, one rounding"
        yield _gemm(f"ties-{form}", {"a": a, "b": one}, about, format=form)
    draw = Draw(recipe.seed, "narrow-gemm-specials")
    k = recipe.width(16)
    a = draw.floats((6, k))
    a[0, 3] = np.inf
    a[1, 2:4] = [np.inf, -np.inf]
    a[2, 5] = np.nan
    # a NaN whose payload is all ones, and one whose payload is in the lower half of its bits
    a[3, 0] = np.uint32(0x7FFFFFFF).view(np.float32)
    a[4, 0] = np.uint32(0x7F800001).view(np.float32)
    a[5] = -0.0
    b = np.abs(draw.floats((4, k))) + 1
    about = "infinities, of both signs in one sum; NaNs of two payloads; sums of zeros"
    for form in NARROW[:2]:
        yield _gemm(f"specials-{form}", {"a": a, "b": b}, about, format=form)
    small = {"bf16": -128, "fp16": -16, "fp8_e4m3": -8, "fp8_e5m2": -16}
    for form, exponent in small.items():
        draw = Draw(recipe.seed, f"narrow-gemm-subnormal-{form}")
        inputs: Arrays = {"a": draw.floats((4, k), exponent, exponent + 3)}
        inputs["b"] = draw.floats((4, k), 1, 4)
        about = f"numbers below {form}'s normal range: none is flushed to 0"
        yield _gemm(f"subnormal-{form}", inputs, about, format=form)
    draw = Draw(recipe.seed, "narrow-gemm-cancel")
    left = draw.floats((4, 2 * k), -2, 2)
    left[:, k:] = -left[:, :k]
    right = draw.floats((4, 2 * k), 0, 10)
    right[:, k:] = right[:, :k]
    right[:, -1] = 2.0**-6
    about = "sums whose terms cancel but for one: the bound is that of the terms"
    yield _gemm("cancel", {"a": left, "b": right}, about)


def _mlps(recipe: Recipe) -> Iterator[Case]:
    for form in NARROW[:3]:
        draw = Draw(recipe.seed, f"narrow-mlp-{form}")
        widths = [recipe.width(13), recipe.width(18), recipe.width(9), 1]
        inputs: Arrays = {"x": draw.floats((6, widths[0]))}
        for number, (k, n) in enumerate(pairwise(widths), 1):
            inputs[f"w{number}"] = draw.floats((n, k), -4, 0)
            inputs[f"b{number}"] = draw.floats(n, -4, 0)
        about = f"three layers in {form}: outputs of hidden ones are rounded, the logit is not"
        yield Case(f"narrow-mlp-{form}", "narrow_mlp", inputs, {"format": form}, about)
    draw = Draw(recipe.seed, "narrow-mlp-exact")
    k = recipe.width(8)
    exact: Arrays = {"x": draw.dyadic((5, k), 2, 0)}
    for number, n in ((1, k), (2, 3)):
        exact[f"w{number}"] = draw.dyadic((n, k), 1, 0)
        exact[f"b{number}"] = draw.dyadic(n, 3, 0)
    about = "small whole numbers through two layers: nothing may round"
    yield Case("narrow-mlp-exact", "narrow_mlp", exact, {}, about)


def _interactions(recipe: Recipe) -> Iterator[Case]:
    for form in NARROW:
        draw = Draw(recipe.seed, f"narrow-interaction-{form}")
        inputs: Arrays = {"e": draw.floats((4, 9, recipe.width(16)))}
        about = f"nine vectors of {form} numbers: the first one, then 36 products"
        name = f"narrow-interaction-{form}"
        yield Case(name, "narrow_interaction", inputs, {"format": form}, about)
    draw = Draw(recipe.seed, "narrow-interaction-exact")
    inputs = {"e": draw.dyadic((3, 5, recipe.width(20)), 4, -2)}
    about = "whole multiples of 1/4, products of vectors with themselves too, written in bf16"
    options: dict[str, Value] = {"diagonal": True, "output": "bf16"}
    yield Case("narrow-interaction-diagonal", "narrow_interaction", inputs, options, about)
