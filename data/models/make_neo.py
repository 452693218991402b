"""Where do the presets of Neo's models A, I, A1 and A3 come from? This script writes them.

`python data/models/make_neo.py` writes neo-a, neo-i, neo-a1 and neo-a3.toml into its own folder.

A record per model holds what is known or remembered about it; `tables` and `layers` choose the
rest. Parameters and MFLOPS of A, F and I are from public notes on the paper, those of A1 from a
report on its first version; all other numbers are remembered, unverified.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

# Where the presets are.
FOLDER = Path(__file__).resolve().parent
# Layers of the bottom MLP.
BOTTOM = 3


@dataclass(frozen=True)
class Model:
    """What is known about a model.

    known, remembered: which numbers are public, and which remembered. dims: repeated over the
    tables, with the remembered least, largest and mean dim. first: width of the first top layer,
    chosen so that the FLOPs come near the paper's; 0: as all others.
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
        name="neo-a",
        version="A (A2 of the first version)",
        known="793 billion parameters, 638 MFLOPS a sample",
        remembered=(
            "thousands of tables, dims from 4 to 384 with mean 93, 15 lookups a bag, "
            "20 layers of mean width 3,375"
        ),
        parameters=793_000_000_000,
        mflops=638,
        tables=1000,
        dims=(4, 16, 32, 52, 64, 64, 128, 384),
        pooling=15,
        layers=20,
        width=3375,
        first=896,
    ),
    Model(
        name="neo-i",
        version="I",
        known="332 billion parameters, 60 MFLOPS a sample",
        remembered=(
            "hundreds of tables, all of dim 92, 70 lookups a bag, 43 layers of mean width 682"
        ),
        parameters=332_000_000_000,
        mflops=60,
        tables=150,
        dims=(92,),
        pooling=70,
        layers=43,
        width=682,
    ),
    Model(
        name="neo-a1",
        version="A1 (of the first version)",
        known="95 billion parameters (the least of its models)",
        remembered=(
            "89 MFLOPS a sample, hundreds of tables, dims from 4 to 192 with mean 68, "
            "27 lookups a bag, 26 layers of mean width 914"
        ),
        parameters=95_000_000_000,
        mflops=89,
        tables=200,
        dims=(4, 32, 60, 64, 64, 64, 64, 192),
        pooling=27,
        layers=26,
        width=914,
    ),
    Model(
        name="neo-a3",
        version="A3 (of the first version)",
        known="nothing",
        remembered=(
            "845 billion parameters, 784 MFLOPS a sample, thousands of tables, dims from 4 to "
            "960 with mean 231, 17 lookups a bag, 26 layers of mean width 3,210"
        ),
        parameters=845_000_000_000,
        mflops=784,
        tables=1000,
        dims=(4, 64, 96, 128, 128, 192, 276, 960),
        pooling=17,
        layers=26,
        width=3210,
        first=512,
    ),
)


def tables(model: Model) -> list[tuple[int, int]]:
    """(rows, dim) of every table; the n-th has 1/n of the rows of the first.

    Together they have the model's parameters, except for a fraction of a row.
    """
    dims = [model.dims[n % len(model.dims)] for n in range(model.tables)]
    first_rows = model.parameters / sum(dim / (n + 1) for n, dim in enumerate(dims))
    rows = [round(first_rows / (n + 1)) for n in range(model.tables)]
    rows[-1] += round((model.parameters - sum(r * d for r, d in zip(rows, dims))) / dims[-1])
    return list(zip(rows, dims))


def layers(model: Model) -> tuple[list[int], list[int]]:
    """Widths of the bottom and the top MLP.

    All are equal except those of the first top layer, of the last bottom layer where the
    interaction is dot products, and of the logit.
    """
    dot = len(set(model.dims)) == 1
    other_widths = [*([model.dims[0]] if dot else []), *([model.first] if model.first else []), 1]
    width = round(
        (model.width * model.layers - sum(other_widths)) / (model.layers - len(other_widths))
    )
    bottom = [width] * (BOTTOM - dot) + [model.dims[0]] * dot
    top = [model.first or width] + [width] * (model.layers - BOTTOM - 2) + [1]
    return bottom, top


def mflops(model: Model) -> float:
    """MFLOPs of a forward pass of the MLPs, for 13 dense features."""
    bottom, top = layers(model)
    interaction_width = bottom[-1] + sum(dim for _, dim in tables(model))
    if len(set(model.dims)) == 1:
        interaction_width = bottom[-1] + model.tables * (model.tables + 1) // 2
    sizes = [[13, *bottom], [interaction_width, *top]]
    return sum(2 * a * b for mlp in sizes for a, b in pairwise(mlp)) / 1e6


def text(model: Model) -> str:
    """The preset as TOML."""
    bottom, top = layers(model)
    dot = len(set(model.dims)) == 1
    lines = [
        f"# The size of Neo's model {model.version}.",
        f"# From public notes on the paper: {model.known}.",
        f"# Remembered from it, unverified: {model.remembered}.",
        (
            f"# Chosen here: {model.tables:,} tables, the n-th with 1/n of the rows of the first, "
            "over the 26 categories of a"
        ),
        (
            f"# Criteo-shaped log; the widths below, {mflops(model):.0f} MFLOP a sample forward; "
            "the interaction; fp16 with"
        ),
        "# row-wise AdaGrad, as for model F.",
        "# Written by make_neo.py.",
        "#",
        f"#   neocpu plan {model.name} --capacity",
        (
            f"#   neocpu data generate criteo --rows 20000 --hotness geometric:{model.pooling} "
            "train.h5"
        ),
        f"#   neocpu train {model.name} --set data.train=train.h5",
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
    for model in MODELS:
        (FOLDER / f"{model.name}.toml").write_text(text(model))
