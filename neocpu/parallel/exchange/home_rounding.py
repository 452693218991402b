"""What does a wire do to vectors that do not travel? It rounds them all the same.

So a pooled vector and its gradient are the same numbers under every plan (`docs/arithmetic.md`
§13): at the sample's home the columns of replicated tables, of row-split ones, whose exact words
travel, and all columns where one rank holds everything.
"""

import numpy as np

from neocpu.core.types import Floats
from neocpu.parallel.exchange.exchange import Exchange
from neocpu.parallel.exchange.wires import Rounding
from neocpu.parallel.sharding.entries import key_columns
from neocpu.parallel.transport.buffers import Buffers


class HomeRounding:
    """The columns that are rounded at home. exchange : of all keys."""

    def __init__(self, exchange: Exchange) -> None:
        env = exchange.env
        copies = exchange.my_entries.copies
        homes = copies.home
        widths = copies.width
        if exchange.alone:
            columns = key_columns(env.plan.tables, env.first_column)
            homes = columns[:-1]
            widths = np.diff(columns)
        self._gradients: Rounding | None = None
        self._pooled: Rounding | None = None
        self._buffers = Buffers()
        wires = env.wire_set
        if wires.backward is not None:
            self._gradients = Rounding(wires.backward, homes, widths, exchange.columns)
        if wires.forward is not None:
            if not exchange.alone:
                # sums of row-split tables travel as exact words, their gradients as codes
                groups = exchange.all_keys.output.group_columns
                homes = np.concatenate([homes, groups.home])
                widths = np.concatenate([widths, groups.width])
            self._pooled = Rounding(wires.forward, homes, widths, exchange.columns)

    def pooled(self, E: Floats) -> None:
        """Round pooled vectors in place."""
        if self._pooled is not None:
            self._pooled(E, E)

    def gradient(self, gradient: Floats) -> Floats:
        """The gradient of columns that do not travel, as the wire leaves it; others undefined."""
        if self._gradients is None:
            return gradient
        rounded = self._buffers.matrix("gradient", gradient.shape[0], gradient.shape[1], np.float32)
        self._gradients(gradient, rounded)
        return rounded
