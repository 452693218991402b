"""Which cases has nobody thought of? Options and shapes drawn at random, beside the fixed ones.

A drawn case is what its seed, number and shape say: so it can be drawn again, and with a smaller
shape. `neocpu.oracle.check_drawn` asks a kernel such cases and shrinks one that fails.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from neocpu.core.formats import INFERENCE
from neocpu.oracle.cases.covers import lookup as lookup_cover
from neocpu.oracle.cases.covers import update as update_cover
from neocpu.oracle.cases.covers.pairwise import Row
from neocpu.oracle.cases.draw import Draw, Recipe, bags, gradient, tables
from neocpu.oracle.operator import Case, Value

FACTORS: dict[str, Mapping[str, Sequence[Value]]] = {
    "lookup": lookup_cover.LOOKUP,
    "weight_gradient": lookup_cover.WEIGHT_GRADIENT,
    "unique_gradient": lookup_cover.UNIQUE_GRADIENT,
    "backward": update_cover.BACKWARD,
}
USUAL_FORMAT = {"weights_format": "fp32"}  # of operators that are not drawn with others
MOST_TABLES = 4
MOST_FEATURES = 5
MOST_SAMPLES = 6
MOST_LOOKUPS = 12  # of a bag
MOST_ROWS = 30
WIDTHS = (1, 1, 2, 3, 5, 8, 9, 17, 33)  # in multiples of columns


class DrawnShape(NamedTuple):
    """Tables and bags of a drawn case."""

    rows: tuple[int, ...]
    dims: tuple[int, ...]
    features: tuple[int, ...]  # table of each
    lengths: tuple[tuple[int, ...], ...]  # by feature, by sample

    def smaller(self, unit: int) -> Iterator["DrawnShape"]:
        """Shapes with less of one thing, the boldest first; columns in multiples of `unit`."""
        for f in range(len(self.features)):
            if len(self.features) > 1:
                yield self._replace(
                    features=self.features[:f] + self.features[f + 1 :],
                    lengths=self.lengths[:f] + self.lengths[f + 1 :],
                )
        samples = max(map(len, self.lengths))
        for half in (slice(samples // 2), slice(samples // 2, None)):
            shorter = tuple(lengths[half] for lengths in self.lengths)
            if all(shorter) and shorter != self.lengths:
                yield self._replace(lengths=shorter)
        yield from self._thinner(unit)

    def _thinner(self, unit: int) -> Iterator["DrawnShape"]:
        """Shapes of shorter bags, fewer rows and fewer columns."""
        lengths = tuple(tuple(n // 2 for n in feature) for feature in self.lengths)
        rows = tuple(max(n // 2, 1) for n in self.rows)
        dims = tuple(max(n // 2 // unit, 1) * unit for n in self.dims)
        thinner = (
            self._replace(lengths=lengths),
            self._replace(rows=rows),
            self._replace(dims=dims),
        )
        yield from (shape for shape in thinner if shape != self)


class Drawn(NamedTuple):
    """What a drawn case is made of."""

    op: str
    recipe: Recipe
    number: int
    row: Row
    shape: DrawnShape

    @property
    def name(self) -> str:
        """Name of the case, from which its numbers come."""
        return f"{self.op.replace('_', '-')}-drawn-{self.recipe.seed}-{self.number}"

    @property
    def options(self) -> dict[str, Value]:
        """Options of the case."""
        if self.op == "backward":
            return update_cover.options_of_update(self.recipe, self.row)
        options = lookup_cover.options_of({**USUAL_FORMAT, **self.row})
        if self.op == "lookup":
            options["output_format"] = self.row["output_format"]
            if options["weights_format"] in INFERENCE:
                options["row_alignment"] = lookup_cover.ALIGNMENT
        return options

    def case(self) -> Case:
        """The case itself."""
        draw = Draw(self.recipe.seed, self.name)
        inputs = tables(draw, self.shape.rows, self.shape.dims, self.shape.features)
        weighted = bool(self.row.get("weighted")) or self.op == "weight_gradient"
        inputs |= bags(draw, inputs, self.shape.lengths, weighted=weighted)
        about = lookup_cover.about(self.row).replace("in pairs", "drawn")
        if self.op == "backward":
            inputs = update_cover.updated_inputs(self.recipe, draw, inputs, self.row)
            return Case(self.name, self.op, inputs, self.options, about)
        row = {**USUAL_FORMAT, **self.row}
        inputs = lookup_cover.with_indices(inputs, row)
        inputs["weights"] = lookup_cover.in_format(draw, inputs, str(row["weights_format"]))
        if self.op != "lookup":
            inputs["grad_output"] = gradient(draw, inputs, str(row["pooling"]))
        return Case(self.name, self.op, inputs, self.options, about)

    def smaller(self) -> Iterator["Drawn"]:
        """The same with a smaller shape, or with one option as it usually is."""
        for shape in self.shape.smaller(self.recipe.dim_multiple):
            yield self._replace(shape=shape)
        for factor, usual in lookup_cover.USUAL.items():
            row = {**self.row, factor: usual}
            if factor in self.row and row != self.row and _fits(self.op, row):
                yield self._replace(row=row)


def drawn_cases(op: str, seed: int, dim_multiple: int) -> Iterator[Drawn]:
    """Cases of an operator of FACTORS, without an end."""
    recipe = Recipe(seed, dim_multiple)
    for number in count():
        draw = Draw(seed, f"drawn/{op}/{number}")
        row = _row(draw, op)
        yield Drawn(op, recipe, number, row, _shape(draw, recipe, row))


def _fits(op: str, row: Row) -> bool:
    return update_cover.fits(row) if op == "backward" else lookup_cover.fits(row)


def _row(draw: Draw, op: str) -> Row:
    """A value of each option, drawn until they go together."""
    factors = FACTORS[op]
    while True:
        row = {name: values[_pick(draw, len(values))] for name, values in factors.items()}
        if _fits(op, row):
            return row


def _pick(draw: Draw, count: int) -> int:
    return int(draw.whole(1, 0, count)[0])


def _shape(draw: Draw, recipe: Recipe, row: Row) -> DrawnShape:
    """Tables, features and bags, about one bag in five empty."""
    size = 1 + _pick(draw, MOST_TABLES)
    dims = [recipe.dim_multiple * WIDTHS[_pick(draw, len(WIDTHS))] for _ in range(size)]
    if row["pooling"] == "none":
        # Rows that are not pooled stand below each other, so they have one width.
        dims = dims[:1] * size
    samples = 1 + _pick(draw, MOST_SAMPLES)
    features = [_pick(draw, size) for _ in range(1 + _pick(draw, MOST_FEATURES))]
    lengths = []
    for _ in features:
        batch = 1 + _pick(draw, MOST_SAMPLES) if row["batches"] == "variable" else samples
        lengths.append(tuple(max(_pick(draw, MOST_LOOKUPS + 4) - 3, 0) for _ in range(batch)))
    return DrawnShape(
        rows=tuple(1 + _pick(draw, MOST_ROWS) for _ in range(size)),
        dims=tuple(dims),
        features=tuple(features),
        lengths=tuple(lengths),
    )
