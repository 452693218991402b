"""How does a linear model help a deep one? They add their logits (Wide & Deep, arXiv 1606.07792,
equation 3).

    logit = first order + top MLP(x_0, x_1, ... side by side)

The deep part is "cat". The wide part is the first order of `first_order.py`: a weight for each
dense feature and, from tables of dim 1 (`model.wide`), one for each category. Crossed features are
features of the log as any other.
"""

from dataclasses import dataclass

from neocpu.train.model.interactions.cat import CatLayout


@dataclass(frozen=True)
class WideDeepLayout(CatLayout):
    """y = x; the first order stands beside it."""
