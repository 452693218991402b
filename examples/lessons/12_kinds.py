"""
12. Kinds: a fiftieth of the memory
===================================

A table has a row for each value of a feature, and most values are hardly ever seen. Rows can share
memory: by a hash, which throws some of them together, or by digits of their number (quotient and
remainder), which keeps every row apart from every other. What does that cost?
"""

from lesson import COLORS, np, plt, show

from neocpu.tables.embedding.mapped_rows import physical_rows
from neocpu.tables.specs.specs import bags
from neocpu.train.config import config as configs
from neocpu.train.model.composition import Compositions

ROWS, D = 10_000, 8
KINDS = {
    "hash": 'kind = "hash"',
    "two hashes, added": 'kind = "hash", hashes = 2',
    "quotient + remainder": 'kind = "qr", operation = "add"',
    "quotient * remainder": 'kind = "qr", operation = "mult"',
}


def config_of(keys, factor):
    """A model with one table, of which 1 / factor is kept."""
    table = f"C = {{ rows = {ROWS}, {keys}, compression = {factor} }}"
    return configs.loads(f"[model]\nembedding_dim = {D}\ninteraction = 'cat'\n[tables]\n{table}")


def places_of(config):
    """For each lookup of the kind: the physical table, and the row that stands for row i."""
    for key in bags(config.tables):
        places = np.empty(ROWS, np.int64)
        physical_rows(key.row_map, np.arange(ROWS), places)
        yield key.table, places


# %%
# What becomes of 10,000 rows in a tenth of the memory? Physical tables, which are ordinary ones,
# and for each row its places in them. How many rows have places that no other has?

apart = {}
for name, keys in KINDS.items():
    config = config_of(keys, 10)
    shapes = [f"{table.name} {table.rows} x {table.dim}" for table in config.tables]
    places = np.stack([rows for _, rows in places_of(config)])
    _, counts = np.unique(places, axis=1, return_counts=True)
    apart[name] = int((counts == 1).sum())
    print(f"{name:22}{', '.join(shapes):45}{apart[name]:>7,} rows apart")

# %%
# What can they learn? Each row should become a vector drawn at random, and the k-th most frequent
# row is drawn with odds 1/k, as in logs. The kind's own operation makes the vectors, its adjoint
# the gradients of the physical rows, which move by the mean of their gradients in a batch.

rng = np.random.default_rng(5)
odds = 1 / np.arange(1, ROWS + 1)
odds /= odds.sum()
targets = rng.standard_normal((ROWS, D), np.float32)
number_of = rng.permutation(ROWS)  # the k-th most frequent has any number


def error_of(keys, factor, steps=300, rate=0.3):
    """Mean squared error over lookups, where a table of zeros has 1; and the factor in fact."""
    config = config_of(keys, factor)
    tables = [rng.uniform(-0.3, 0.3, (t.rows, t.dim)).astype(np.float32) for t in config.tables]
    for table, spec in zip(tables, config.tables):
        table += np.float32(spec.initial.mean)
    lookups = list(places_of(config))
    model = Compositions(0, config.layout(1).composition, {})

    def vectors(rows):
        return model.forward(np.hstack([tables[table][places[rows]] for table, places in lookups]))

    for _ in range(steps):
        rows = number_of[rng.choice(ROWS, 256, p=odds)]
        outer = model.backward(vectors(rows) - targets[rows])
        for (table, places), gradient in zip(lookups, np.split(outer, len(lookups), axis=1)):
            counts = np.bincount(places[rows], minlength=len(tables[table]))[places[rows], None]
            np.add.at(tables[table], places[rows], -rate * gradient / counts)
    squares = ((vectors(number_of) - targets[number_of]) ** 2).mean(axis=1)
    return ROWS * D / sum(table.size for table in tables), float((squares * odds).sum())


errors = {
    name: [error_of(keys, factor) for factor in (2, 5, 10, 20, 50)] for name, keys in KINDS.items()
}

# %%
# Rows that meet in a hash share one vector for ever. In a product of digits each keeps something of
# its own, and the error grows the slowest. Two added hashes tell nearly all rows apart, but each
# row is disturbed twice: they win while there is much memory. So it is for random vectors; on a
# real log, compare several seeds.

figure, axes = plt.subplots()
for (name, points), color in zip(errors.items(), COLORS):
    axes.plot(*zip(*points), "o-", color=color, label=name)
axes.set(xscale="log", xlabel="times less memory", ylabel="error, of a table of zeros = 1")
axes.legend()
show("12_kinds")

# %%
# **Read on.** ``docs/kinds.md``; each kind is a file of ``neocpu/tables/kinds/``, such as
# ``neocpu/tables/kinds/qr.py``; operations are in ``neocpu/train/model/operations/``. Twins
# ``neocpu/kernels/twins/rows/row_maps.py`` and ``neocpu/kernels/twins/dense/composition.py``,
# kernels ``neocpu/kernels/rows/row_maps.py`` and ``neocpu/kernels/dense/composition.py``;
# ``tests/test_kind_conformance.py`` is what every kind has to pass.
#
# **Exercise.** Try ``partitions = 3`` (without ``compression``), and ``signed = true``: which part
# of this program must know of signs? Then leave ``number_of`` out, so that frequent rows have low
# numbers, as with a vocabulary: which kinds gain?
