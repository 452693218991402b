"""How is a choice made so that its probabilities can learn? By Gumbel-softmax samples.

    m_k = softmax_k((theta_k + G_k) / tau)         G_k = -ln(-ln u_k), u_k uniform

Standard differentiable search (Jang et al. 2017; FBNet, Wu et al. 2019), our reading of DNAS for
ads CTR (arXiv 2110.14812). The noise is a function of (seed, decision, draw), so every rank has
the same, under any plan. All is fp64 in a written order (`docs/search.md`): sums go from the first
choice to the last.
"""

from collections.abc import Iterable

import numpy as np

from neocpu.core.types import Doubles, Floats
from neocpu.kernels.twins.numbers import elementary
from neocpu.kernels.twins.numbers.philox import SEARCH, tensor_key, words_at


def gumbel(seed: int, decision: str, choices: int, draw: int) -> Doubles:
    """Noise f64[choices] of one draw of a decision."""
    key = tensor_key(seed, SEARCH, decision)
    words = words_at(key, np.zeros(1, np.int64), np.arange(choices, dtype=np.int64), draw)[0]
    # in the middle of each step: neither 0 nor 1, whose logarithms would be infinite
    uniform = (words.astype(np.float64) + 0.5) * 2.0**-32
    return -elementary.log(-elementary.log(uniform))


def softmax(logits: Doubles) -> Doubles:
    """Probabilities f64[k]; the largest logit is taken off all."""
    # so that no power overflows
    powers = elementary.exp(logits - logits.max())
    return powers / in_order(powers)


def sample(theta: Floats, noise: Doubles, temperature: float) -> Doubles:
    """m f64[k], which is one choice alone as the temperature goes to 0."""
    return softmax((theta.astype(np.float64) + noise) / temperature)


def theta_gradient(m: Doubles, gradient: Doubles, temperature: float) -> Doubles:
    """Gradient of theta from that of m: m_k (g_k - sum_j m_j g_j) / tau."""
    mean = in_order(m * gradient)
    return m * (gradient - mean) / temperature


def one_hot(choices: int, index: int) -> Doubles:
    """m f64[choices] that takes one choice."""
    m = np.zeros(choices)
    m[index] = 1.0
    return m


def in_order(numbers: Iterable[float]) -> float:
    """Sum from the first to the last, each addition rounded."""
    total = 0.0
    for number in numbers:
        total += float(number)
    return total
