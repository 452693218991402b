"""Which permutations, selections and exchanges of embeddings break kernels?"""

from collections.abc import Iterator

import numpy as np

from neocpu.oracle.cases.draw import Draw, Recipe
from neocpu.oracle.operator import Arrays, Case, Value
from neocpu.oracle.ops.moves import OPERATORS
from neocpu.oracle.truth import moves
from neocpu.parallel.exchange.wire_formats import WIRE_FORMATS

ROUNDED = ("regroup-duplicates", "keyed-select")  # gradients of 24 bits
BY_NAME = {op.name: op for op in OPERATORS}


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    for make in (_pooled, _regrouped, _selected, _keyed):
        yield from make(seed, Recipe(seed, dim_multiple).narrow)
    yield from _exchanged(seed, Recipe(seed, dim_multiple))
    yield from _reduced(seed, Recipe(seed, dim_multiple))


def _both(
    seed: int, name: str, op: str, values: Arrays, geometry: Arrays, about: str, **options: Value
) -> Iterator[Case]:
    """A case of an operator, and one of its backward on the same geometry.

    Gradients are mostly dyadic, so that sums of duplicates are exact in any order.
    """
    inputs = {**values, **geometry}
    yield Case(name, op, inputs, options, about)
    complete = BY_NAME[op].complete(options)
    source = getattr(moves, op)(inputs, complete, frozenset()).source
    draw = Draw(seed, f"{name}-backward")
    gradient = draw.floats(source.shape) if name in ROUNDED else draw.dyadic(source.shape)
    about = f"gradient; {about}"
    backward = {"grad_output": gradient, **geometry}
    yield Case(f"{name}-backward", f"{op}_backward", backward, options, about)


def _pooled(seed: int, multiple: int) -> Iterator[Case]:
    draw = Draw(seed, "permute-pooled")
    dims = multiple * np.array([1, 2, 3, 1, 8])
    pooled = {"pooled": draw.floats((5, int(dims.sum())))}
    for name, order, about in (
        ("permute-pooled", [3, 0, 4, 1, 2], "features of different widths; no order is its own"),
        ("permute-pooled-duplicates", [4, 1, 4, 0, 4], "one feature three times, others not"),
        ("permute-pooled-identity", [0, 1, 2, 3, 4], "nothing moves"),
    ):
        geometry = {"dims": dims, "permute": np.array(order)}
        yield from _both(seed, name, "permute_pooled", pooled, geometry, about)
    geometry = {"dims": dims, "permute": np.array([2, 1, 0, 4, 3])}
    empty = {"pooled": np.zeros((0, int(dims.sum())), np.float32)}
    yield from _both(seed, "permute-pooled-empty", "permute_pooled", empty, geometry, "B = 0")


def _regrouped(seed: int, multiple: int) -> Iterator[Case]:
    draw = Draw(seed, "regroup")
    samples = 6
    for name, widths, out_widths, blocks, about in (
        (
            "regroup",
            [3, 4],
            [4, 3],
            [[1, 0, 0, 0, 3, 0], [0, 0, 0, 3, 1, 0], [0, 1, 1, 0, 2, 0], [1, 1, 3, 2, 1, 0]],
            "two tensors into two others, columns of both in each",
        ),
        (
            "regroup-duplicates",
            [3, 4],
            [4, 9],
            [
                [1, 0, 0, 0, 3, 3],
                [0, 0, 0, 3, 1, 0],
                [0, 1, 1, 0, 2, 0],
                [1, 1, 0, 2, 3, -5],
                [1, 1, 3, 5, 1, 0],
                [1, 1, 0, 6, 3, -6],
            ],
            "columns that go to several tensors, and twice to one: gradients add up",
        ),
    ):
        values = {"values": draw.floats(samples * multiple * sum(widths))}
        scale = np.array([1, 1, multiple, multiple, multiple, 1])
        geometry = {
            "widths": np.array(widths) * multiple,
            "out_widths": np.array(out_widths) * multiple,
            "samples": np.array([samples]),
            "permutes": (np.array(blocks) * scale).astype(np.int32),
        }
        yield from _both(seed, name, "permute_multi_embedding", values, geometry, about)


def _selected(seed: int, multiple: int) -> Iterator[Case]:
    draw = Draw(seed, "group-select")
    rows = np.array([6, 1, 40])
    dims = multiple * np.array([2, 1, 8])
    values = {"values": draw.floats(int((rows * dims).sum()))}
    picks = [draw.whole(7, 0, 6), np.zeros(3, np.int64), draw.whole(200, 0, 5) + 35]
    for name, counts, about in (
        ("group-select", [7, 3, 200], "matrices of different shapes; rows selected up to 60 times"),
        ("group-select-empty", [7, 0, 33], "of one matrix nothing is selected"),
    ):
        select = np.concatenate([pick[:count] for pick, count in zip(picks, counts)])
        geometry = {"rows": rows, "dims": dims, "select": select, "counts": np.array(counts)}
        yield from _both(seed, name, "group_index_select", values, geometry, about)
    tall = np.array([300, 270])
    narrow = multiple * np.array([1, 2])
    many = {"values": draw.floats(int((tall * narrow).sum()))}
    geometry = {"rows": tall, "dims": narrow, "counts": np.array([4, 3])}
    geometry["select"] = np.array([299, 43, 256, 255, 256, 0, 269])
    about = "matrices of more than 256 rows, and of the rows beyond: numbers of more than 8 bits"
    yield from _both(seed, "group-select-tall", "group_index_select", many, geometry, about)
    geometry = {"rows": rows, "dims": dims, "counts": np.array([3, 3, 3])}
    geometry["select"] = np.array([5, 0, 5, 0, 0, 0, 39, 1, 39])
    about = "output sample-major: the first row of every matrix, then the second"
    yield from _both(
        seed,
        "group-select-interleaved",
        "group_index_select",
        values,
        geometry,
        about,
        interleaved=True,
    )


def _keyed(seed: int, multiple: int) -> Iterator[Case]:
    draw = Draw(seed, "keyed-select")
    lengths = np.array([[1, 2, 0, 5], [3, 0, 0, 40], [0, 7, 1, 2]])
    values = {"values": draw.floats(int(lengths.sum()))}
    for name, select, about in (
        ("keyed-select", [3, 0, 3, 2, 1], "samples in another order, one twice; bags of 0 to 40"),
        ("keyed-select-one", [1] * 33, "one sample, 33 times: gradients of 33 copies add up"),
        ("keyed-select-none", [], "no sample"),
    ):
        geometry = {"lengths": lengths, "select": np.array(select, np.int64)}
        yield from _both(seed, name, "keyed_jagged_index_select", values, geometry, about)


def _exchanged(seed: int, recipe: Recipe) -> Iterator[Case]:
    """Six ranks on two nodes, of four and of two; a wire of every format, both ways."""
    widths = np.array(recipe.widths(4, 36, 12, 64, 4), np.int64)
    geometry: Arrays = {
        "dims": widths,
        "owner": np.array([1, 0, 4, 1, 3]),
        "cuts": np.array([0, 2, 5, 5, 7, 8, 11]),
        "nodes": np.array([0, 0, 1, 0, 1, 0]),
    }
    for name, form in WIRE_FORMATS.items():
        for backward in (False, True):
            kind = f"alltoall-{name}{'-backward' if backward else ''}"
            draw = Draw(seed, kind)
            values = draw.floats((11, int(widths.sum())), -9, 6)
            values[1, :4] = [0.0, -0.0, 2.0**-130, 1e-9]  # a block of small numbers
            values[6, -4:] = 1.5  # one whose range is 0
            options: dict[str, Value] = {"rank": 1, "format": name, "backward": backward}
            if form.blocks:
                options["block"] = 16
            about = f"{name}: keys that are no whole blocks, ranks without samples or keys"
            yield Case(kind, "alltoall", {"values": values, **geometry}, options, about)
    draw = Draw(seed, "alltoall-scaled")
    values = draw.floats((11, int(widths.sum())), -30, -20)
    for name in ("fp16", "int8", "fp8"):
        scaled: dict[str, Value] = {"rank": 1, "format": name, "scale": 65536.0, "backward": True}
        about = f"{name}: small gradients, 65,536 times as large on their way"
        inputs = {"values": values, **geometry}
        yield Case(f"alltoall-scaled-{name}", "alltoall", inputs, scaled, about)
    for rank, about in (
        (0, "place 0 of its node: sends on what its node has for both nodes' first ranks"),
        (3, "place 2, which the other node lacks"),
        (2, "two ranks serve four"),
    ):
        for backward in (False, True):
            levels: dict[str, Value] = {"rank": rank, "two_level": True, "format": "bf16"}
            levels["backward"] = backward
            kind = f"alltoall-two-level-{rank}{'-backward' if backward else ''}"
            inputs = {"values": draw.floats((11, int(widths.sum()))), **geometry}
            yield Case(kind, "alltoall", inputs, levels, f"two levels; {about}")
    values = draw.floats((11, int(widths.sum())))
    values[2, 0], values[3, 5], values[4, -1] = np.nan, np.inf, 3e38
    for name in ("fp16", "int8", "int4", "fp8"):
        special: dict[str, Value] = {"rank": 1, "format": name}
        about = f"{name}: what is not finite, or as large as can be, in the middle of others"
        inputs = {"values": values, **geometry}
        yield Case(f"alltoall-specials-{name}", "alltoall", inputs, special, about)


def _reduced(seed: int, recipe: Recipe) -> Iterator[Case]:
    """Partial sums of one to five ranks, in every format."""
    widths = np.array(recipe.widths(4, 36), np.int64)
    for name in WIRE_FORMATS:
        draw = Draw(seed, f"reduce-scatter-{name}")
        inputs: Arrays = {
            "partials": draw.floats((5, 7, int(widths.sum()))),
            "dims": widths,
            "cuts": np.array([0, 1, 4, 4, 6, 7]),
        }
        options: dict[str, Value] = {"rank": 1, "format": name}
        about = f"{name}: five ranks, whose tree is one of eight"
        yield Case(f"reduce-scatter-{name}", "reduce_scatter", inputs, options, about)
        if name in ("fp16", "bf16"):
            rounded: dict[str, Value] = {**options, "round_sums": True, "scale": 0.5}
            about = f"{name}: every sum is rounded, too"
            yield Case(f"reduce-scatter-{name}-sums", "reduce_scatter", inputs, rounded, about)
    draw = Draw(seed, "reduce-scatter-alone")
    alone: Arrays = {
        "partials": draw.floats((1, 3, int(widths.sum()))),
        "dims": widths,
        "cuts": np.array([0, 3]),
    }
    about = "one rank: nothing travels, and is rounded all the same"
    yield Case("reduce-scatter-alone", "reduce_scatter", alone, {"format": "int8"}, about)
