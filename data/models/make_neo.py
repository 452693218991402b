"""The presets of Neo's other models: `python data/models/make_neo.py` writes neo-a, neo-i, neo-a1,
neo-a3.toml beside itself.

One record per model holds all that is known or remembered of it; what nobody knows is chosen by
`tables` and `layers`. Parameters of A, F and I and MFLOPS of theirs are from public notes on the
paper; those of A1 from a report on its first version; all other numbers are remembered, unverified.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
BOTTOM = 3  # layers


@dataclass(frozen=True)
class Model:
    """known, remembered: where the numbers are from. dims: repeated over the tables, with the
    least, largest and mean dim that are remembered. first: width of the first top layer (0: like
    all others), so that the FLOPs come near the paper's.
    """

    name: str
    version: str
    known: str
    remembered: str
    parameters: int
    mflops: int
    tables: int
    dims: tuple[int, ...]
    pooling: int
    layers: int
    width: int
    first: int = 0


MODELS = (
    Model(
        "neo-a",
        "A, of the ISCA version (A2 of the first version is the same)",
        "793 billion parameters, 638 MFLOPS a sample",
        (
            "thousands of tables, dims from 4 to 384 with mean 93, 15 lookups a bag, 20 layers of "
            "mean width 3,375"
        ),
        793_000_000_000,
        638,
        1000,
        (4, 16, 32, 52, 64, 64, 128, 384),
        15,
        20,
        3375,
        896,
    ),
    Model(
        "neo-i",
        "I, of the ISCA version",
        "332 billion parameters, 60 MFLOPS a sample",
        "hundreds of tables, all of dim 92, 70 lookups a bag, 43 layers of mean width 682",
        332_000_000_000,
        60,
        150,
        (92,),
        70,
        43,
        682,
    ),
    Model(
        "neo-a1",
        "A1, of the first version",
        "95 billion parameters (the least of its models)",
        "89 MFLOPS a sample, hundreds of tables, dims from 4 to 192 with mean 68, 27 lookups a "
        "bag, "
        "26 layers of mean width 914",
        95_000_000_000,
        89,
        200,
        (4, 32, 60, 64, 64, 64, 64, 192),
        27,
        26,
        914,
    ),
    Model(
        "neo-a3",
        "A3, of the first version",
        "nothing",
        "845 billion parameters, 784 MFLOPS a sample, thousands of tables, dims from 4 to 960 "
        "with mean 231, 17 lookups a bag, "
        "26 layers of mean width 3,210",
        845_000_000_000,
        784,
        1000,
        (4, 64, 96, 128, 128, 192, 276, 960),
        17,
        26,
        3210,
        512,
    ),
)


def tables(model: Model) -> list[tuple[int, int]]:
    """(rows, dim) of every table: the n-th has 1/n of the rows of the first, all have the model's
    parameters, but for a row.
    """
    dims = [model.dims[n % len(model.dims)] for n in range(model.tables)]
    unit = model.parameters / sum(dim / (n + 1) for n, dim in enumerate(dims))
    rows = [round(unit / (n + 1)) for n in range(model.tables)]
    rows[-1] += round((model.parameters - sum(r * d for r, d in zip(rows, dims))) / dims[-1])
    return list(zip(rows, dims))


def layers(model: Model) -> tuple[list[int], list[int]]:
    """Widths of bottom and top: all alike but the first of the top, the last of the bottom (dot
    products), and the logit.
    """
    dot = len(set(model.dims)) == 1
    special = [*([model.dims[0]] if dot else []), *([model.first] if model.first else []), 1]
    width = round((model.width * model.layers - sum(special)) / (model.layers - len(special)))
    bottom = [width] * (BOTTOM - dot) + [model.dims[0]] * dot
    top = [model.first or width] + [width] * (model.layers - BOTTOM - 2) + [1]
    return bottom, top


def mflops(model: Model) -> float:
    """Of a forward pass of the MLPs, for 13 dense features."""
    bottom, top = layers(model)
    wide = bottom[-1] + sum(dim for _, dim in tables(model))
    if len(set(model.dims)) == 1:
        wide = bottom[-1] + model.tables * (model.tables + 1) // 2
    sizes = [[13, *bottom], [wide, *top]]
    return sum(2 * a * b for part in sizes for a, b in pairwise(part)) / 1e6


def text(model: Model) -> str:
    """The whole file."""
    bottom, top = layers(model)
    dot = len(set(model.dims)) == 1
    lines = [
        f"# The size of the paper's model {model.version}.",
        f"# From public notes on the paper: {model.known}.",
        f"# Remembered from it, unverified: {model.remembered}.",
        (
            f"# Chosen here: {model.tables:,} tables, the n-th with 1/n of the rows of the first, "
            "over the 26 categories of a"
        ),
        (
            f"# Criteo-shaped log; the widths below, {mflops(model):.0f} MFLOP a sample forward; "
            "the "
            "interaction; fp16 with"
        ),
        "# row-wise AdaGrad, as for model F.",
        "# Written by make_neo.py.",
        "#",
        f"#   neocpu plan data/models/{model.name}.toml --capacity",
        (
            f"#   neocpu data generate criteo --rows 20000 --hotness geometric:{model.pooling} "
            "train.h5"
        ),
        f"#   neocpu train data/models/{model.name}.toml --set data.train=train.h5",
        "",
        "[data]",
        'format = "criteo"',
        "shuffle = false",
        "",
        "[model]",
        'embedding_format = "fp16"',
        f"bottom = {bottom}",
        f"top = {top}",
        f'interaction = "{"dot" if dot else "cat"}"',
        'loss = "bce"',
        "",
        "[memory]",
        'placement = "auto"',
        "hbm = 1_000_000_000",
        "ddr = 4_000_000_000",
        "",
        "[tables]",
        *(
            f'T{n} = {{ rows = {rows:_}, dim = {dim}, features = ["C{(n - 1) % 26 + 1}"] }}'
            for n, (rows, dim) in enumerate(tables(model), 1)
        ),
        "",
        "[optimizer.sparse]",
        'name = "exact_rowwise_adagrad"',
        "learning_rate = 0.02",
        "eps = 1e-8",
        "",
        "[optimizer.dense]",
        'name = "sgd"',
        "learning_rate = 0.02",
        "",
        "[training]",
        "batch_size = 512",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for one in MODELS:
        (FOLDER / f"{one.name}.toml").write_text(text(one))
