"""Which features change together, so that samples that agree in one agree in all? As the config
names them (`data.deduplicate`).
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from neocpu.core.errors import ConfigError
from neocpu.tables.specs.specs import TableSpecs, bags

Groups = tuple[tuple[int, ...], ...]


def key_groups(tables: TableSpecs, patterns: Sequence[Sequence[str]]) -> Groups:
    """Keys of each group, numbered as in `specs.bags(tables)`.

    patterns : for each group, shell patterns of its features.

    Raises ConfigError for a pattern that matches no feature, a feature in two groups, a table some
    of whose features are in a group that others are not in, and groups beside a table without
    pooling.
    """
    if patterns and any(table.pooling == "none" for table in tables):
        raise ConfigError(
            'data.deduplicate: lookups of tables with pooling "none" do not travel as bags; leave '
            "data.deduplicate out"
        )
    keys = bags(tables)
    features = list(dict.fromkeys(key.feature for key in keys))
    group_of: dict[str, int] = {}
    for number, names in enumerate(patterns):
        for pattern in names:
            matches = [name for name in features if fnmatchcase(name, pattern)]
            if not matches:
                raise ConfigError(
                    f"data.deduplicate: no feature matches {pattern!r}; the features are "
                    f"{', '.join(features)}"
                )
            for name in matches:
                if group_of.setdefault(name, number) != number:
                    raise ConfigError(
                        f"data.deduplicate: feature {name!r} is in two groups; it changes with one"
                    )
    for table in tables:
        # a table is looked up with the bags of one group: its features cannot differ in it
        groups = {group_of.get(name, -1) for name in table.features}
        if len(groups) > 1:
            parts = ", ".join(
                f"{name!r} in {'no group' if name not in group_of else _group_text(group_of[name])}"
                for name in table.features
            )
            raise ConfigError(
                f"data.deduplicate: table {table.name!r} is looked up by features of different "
                f"groups ({parts}); put all features of a table in one group, or in none"
            )
    return tuple(
        tuple(k for k, key in enumerate(keys) if group_of.get(key.feature) == number)
        for number in range(len(patterns))
    )


def _group_text(number: int) -> str:
    return f"group {number + 1}"
