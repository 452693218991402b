"""Which arithmetic may a right fp32 kernel have? One drawn at random, as docs/semantics.md §1 says.

Sums in any order; multiplications and divisions of one product in any order; fused or not;
quotients and roots that are one of the two neighbours; subnormal numbers kept; sums, or whole
updates, in fp64.
"""

from typing import Any

import numpy as np

from neocpu.kernels.twins.numbers.fma import fma

F = np.float32
Array = np.ndarray[Any, Any]
ORDERS = (
    "sequential",
    "backward",
    "atomics",
    "by size",
    "pairwise",
    "tree",
    "blocks",
    "lanes",
    "kahan",
    "fp64",
)


def faithful(exact: Array, rng: np.random.Generator) -> Array:
    """Either fp32 neighbour of an fp64 number, each one half of the time."""
    nearest = exact.astype(F)
    away = np.where(exact > nearest, F(np.inf), F(-np.inf)).astype(F)
    other = np.nextafter(nearest, away)
    use_other = (rng.random(np.shape(exact)) < 0.5) & (nearest != exact) & np.isfinite(nearest)
    use_other &= np.isfinite(other)
    return np.where(use_other, other, nearest).astype(F)


class Arithmetic:
    """The operations of one kernel; `wide`: optimizer rules in fp64, rounded when stored."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.order = str(rng.choice(ORDERS))
        self.fused = bool(rng.random() < 0.5)
        self.division = str(rng.choice(["ieee", "reciprocal", "sloppy", "sloppy reciprocal"]))
        self.sloppy_roots = bool(rng.random() < 0.5)
        self.wide = bool(rng.random() < 0.15)
        self.lanes = int(rng.choice([2, 4, 8, 32]))

    def choose(self, *ways: Any) -> Any:
        """One of some right ways to do something."""
        return ways[int(self.rng.integers(len(ways)))]

    def number(self, value: float) -> Any:
        """A hyper-parameter: fp32, in fp64 arithmetic perhaps as it is."""
        if self.wide:
            return np.float64(self.choose(value, F(value)))
        return F(value)

    def real(self, x: Array) -> Array:
        """An array that the arithmetic goes on with."""
        return np.asarray(x, np.float64 if self.wide else F)

    def divide(self, x: Array, y: Array) -> Array:
        """x / y: rounded correctly or not, or times a reciprocal."""
        if self.wide or np.asarray(x).dtype == np.float64:
            return np.divide(x, y)
        if self.division == "ieee":
            return np.divide(x, y, dtype=F)
        # the reciprocal of a power of two is exact on every machine
        power = np.abs(np.frexp(np.asarray(y, np.float64))[0]) == 0.5
        if self.division == "sloppy":
            quotient = faithful(np.divide(x, y, dtype=np.float64), self.rng)
            return np.where(power, np.divide(x, y, dtype=F), quotient)
        reciprocal = np.divide(F(1), y, dtype=F)
        if self.division == "sloppy reciprocal":
            sloppy = faithful(np.divide(1.0, y, dtype=np.float64), self.rng)
            reciprocal = np.where(power, reciprocal, sloppy)
        return np.multiply(x, reciprocal, dtype=F)

    def root(self, x: Array) -> Array:
        """Square root, one of its two neighbours."""
        if self.wide or not self.sloppy_roots:
            return np.sqrt(x)
        return faithful(np.sqrt(np.asarray(x, np.float64)), self.rng)

    def multiply_add(self, x: Array, y: Array, z: Array) -> Array:
        """x*y + z, fused or not."""
        if self.wide or not self.fused:
            return x * y + z
        return fma(x, y, z)

    def product(self, *factors: Array, over: tuple[Array, ...] = ()) -> Array:
        """A product over a product, whatever is multiplied or divided first."""
        parts = [(factor, False) for factor in factors] + [(divisor, True) for divisor in over]
        while len(parts) > 1:
            first, second = self.rng.choice(len(parts), 2, replace=False).tolist()
            (x, x_below), (y, y_below) = parts[first], parts[second]
            if x_below == y_below:
                joined = (x * y, x_below)
            else:
                joined = (self.divide(y, x) if x_below else self.divide(x, y), False)
            parts = [part for k, part in enumerate(parts) if k not in (first, second)]
            parts.append(joined)
        return parts[0][0]

    def sums(self, terms: Array, factors: Array | None = None) -> Array:
        """Sums over the first axis of f32[n, width], each row times its factors if given."""
        n = len(terms)
        width = terms.shape[1]
        if n == 0 or width == 0:
            return np.zeros(width, F)
        if self.order == "fp64":
            wide = terms.astype(np.float64)
            total = wide.sum(0) if factors is None else (wide * factors).sum(0)
            return (total + 0.0).astype(F)
        place = self._places(n, terms)
        terms = terms[place]
        factors = None if factors is None else np.broadcast_to(factors[place], terms.shape)
        if self.order == "kahan":
            total = self._kahan(terms if factors is None else terms * factors)
            if np.isfinite(total).all():
                return total
        if self.order in ("pairwise", "tree"):
            return self._tree(terms if factors is None else terms * factors)
        if self.order == "lanes":
            return self._tree(self._chains(terms, factors, self.lanes))
        if self.order == "blocks":
            edges = range(0, n, self.lanes)
            blocks = [
                self._chains(
                    terms[a : a + self.lanes],
                    None if factors is None else factors[a : a + self.lanes],
                    1,
                )[0]
                for a in edges
            ]
            return self._chains(np.stack(blocks), None, 1)[0]
        return self._chains(terms, factors, 1)[0]

    def _places(self, n: int, terms: Array) -> Array:
        """In which order terms are taken."""
        if self.order == "backward":
            return np.arange(n)[::-1]
        if self.order == "atomics":
            return self.rng.permutation(n)
        if self.order == "by size":
            return np.argsort(np.abs(terms[:, 0]), kind="stable")
        return np.arange(n)

    def _chains(self, terms: Array, factors: Array | None, lanes: int) -> Array:
        """Term k is added to sum k % lanes, one after the other: f32[lanes, width]."""
        total = np.zeros((lanes, terms.shape[1]), F)
        for start in range(0, len(terms), lanes):
            rows = terms[start : start + lanes]
            part = total[: len(rows)]
            if factors is None:
                part += rows
            else:
                part[...] = self.multiply_add(rows, factors[start : start + lanes], part)
        return total

    def _tree(self, terms: Array) -> Array:
        """Neighbours first (pairwise), or each half with the other (as warps do)."""
        while len(terms) > 1:
            half = (len(terms) + 1) // 2
            if self.order == "pairwise":
                pairs = terms[0::2].copy()
                pairs[: len(terms) // 2] += terms[1::2]
            else:
                pairs = terms[:half].copy()
                pairs[: len(terms) - half] += terms[half:]
            terms = pairs
        return terms[0]

    def _kahan(self, terms: Array) -> Array:
        """Compensated summation."""
        total = np.zeros(terms.shape[1], F)
        lost = np.zeros(terms.shape[1], F)
        for row in terms:
            corrected = row - lost
            new = total + corrected
            lost = (new - total) - corrected
            total = new
        return total

    def square_sum(self, x: Array) -> Array:
        """Sum of squares over the last axis of [U, D], as a row scalar [U]."""
        if self.wide:
            return np.square(x).sum(-1)
        return self.sums(np.ascontiguousarray(x.T), np.ascontiguousarray(x.T))

    def down(self, w: Array, keep: Array, step: Array) -> Array:
        """keep*w - step, fused or not."""
        return self.multiply_add(w, keep, -step)
