"""What does each input of the first layers mean? So that a column finds its like in another model.

The first layer of the bottom MLP has a column for each dense feature. That of the top MLP has one
for each number of the interaction: those of the bottom MLP's output, then a column for each pair of
vectors ("dot"), or the columns of each key's pooled vector ("cat"). Another set of tables moves
these columns; by their names they are found again.
"""

from collections.abc import Hashable, Sequence

from neocpu.tables.specs.specs import bags
from neocpu.train.config.config import Config

BOTTOM = "bottom.0.weight"
TOP = "top.0.weight"
Names = list[Hashable]
NAMED = {"dot", "cat", "deepfm", "wide_deep"}  # interactions whose columns are known by the keys


def bottom_inputs(count: int, names: Sequence[str] | None) -> Names:
    """Names of the columns of `BOTTOM`; numbers where the dense features' names are not known."""
    return list(names) if names is not None and len(names) == count else list(range(count))


def top_inputs(config: Config) -> Names:
    """Names of the columns of `TOP`.

    The vectors of towers have no names of their own, nor have those that interactions other than
    "dot" and "cat" give: with them, a column is known by the whole model.
    """
    model = config.model
    tables = config.model_tables
    keys = bags(tables)
    names: Names = [("bottom", column) for column in range(model.bottom[-1])]
    if model.towers or not set(model.interactions) <= NAMED or len(model.interactions) > 1:
        layout = config.layout(1)
        header = model.header()
        parts = {key: header.get(key) for key in ("interaction", "cross", "dhen", "wide", "tower")}
        # equal models have equal columns; of others nothing is known
        whole = repr((sorted(model.towers.items()), parts, [key.key for key in keys]))
        rest = layout.interaction_width - len(names)
        return [*names, *((whole, column) for column in range(rest))]
    weights = config.layout(1).wide
    keys = tuple(key for position, key in enumerate(keys) if position not in weights)
    if model.interaction != "dot":
        for key in keys:
            dim = tables[key.table].dim
            names += [(key.key, column) for column in range(dim)]
        return names
    vectors = ["", *(key.key for key in keys)]  # "": the bottom MLP's output
    for i in range(len(vectors)):
        # a pair is the same in either order, and tables may have been reordered
        names += [frozenset((vectors[i], vectors[j])) for j in range(i)]
        if model.diagonal:
            names.append(frozenset((vectors[i],)))
    return names


def like_columns(before: Names, now: Names) -> tuple[list[int], list[int]]:
    """Columns of the new model that the older one has too, and where it has them."""
    column_of = {name: column for column, name in enumerate(before)}
    shared = [column for column, name in enumerate(now) if name in column_of]
    return shared, [column_of[now[column]] for column in shared]
