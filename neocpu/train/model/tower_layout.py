"""Which keys does a tower module compress, into how many vectors, and with which parameters?

A tower is a group of keys. Its module (DMT, arXiv 2403.00877; the shape of the DLRM module is
remembered from the paper, not checked) maps the pooled vectors of the group to a few vectors of
one width D', which take part in the interaction in their place:

    x [sum of D]  the pooled vectors of the tower's F_t keys, side by side
    joint         reshape(W1 x + b1)              c vectors   W1 [c*D', sum of D]
    feature       W2 E_f + b2 for each key f      p each      W2 [p*D', D], shared by the keys

Nothing is compiled to answer that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neocpu.core.errors import ConfigError
from neocpu.train.model.arrays import Shapes
from neocpu.train.model.options import TowerModule


@dataclass(frozen=True)
class TowerLayout:
    """One tower: its name, the positions of its keys, and the columns of each key's vector."""

    name: str
    keys: tuple[int, ...]
    dims: tuple[int, ...]
    module: TowerModule

    def __post_init__(self) -> None:
        if self.module.feature_vectors and len(set(self.dims)) > 1:
            raise ConfigError(
                f"model.tower.feature_vectors: one matrix serves all keys of a tower, but those of "
                f"model.towers.{self.name} have dims {sorted(set(self.dims))}; give their tables "
                "one dim or set model.tower.feature_vectors = 0"
            )

    @property
    def inputs(self) -> int:
        """Columns of its keys' pooled vectors, side by side."""
        return sum(self.dims)

    @property
    def vectors(self) -> int:
        """Vectors that it gives: c + p F_t."""
        return self.module.joint_vectors + self.module.feature_vectors * len(self.keys)

    @property
    def columns(self) -> int:
        """Columns that it gives."""
        return self.vectors * self.module.width

    @property
    def joint_columns(self) -> int:
        """Columns of its joint vectors, which come first."""
        return self.module.joint_vectors * self.module.width

    def tensors(self) -> Shapes:
        """(name, shape) of its parameters."""
        tensors: list[tuple[str, tuple[int, ...]]] = []
        parts = (
            ("joint", self.joint_columns, self.inputs),
            # all keys of the tower share it, so their dims are one
            ("feature", self.module.feature_vectors * self.module.width, self.dims[0]),
        )
        for layer, outputs, inputs in parts:
            if outputs:
                tensors.append((f"towers.{self.name}.{layer}.weight", (outputs, inputs)))
                tensors.append((f"towers.{self.name}.{layer}.bias", (outputs,)))
        return tuple(tensors)


def tower_layouts(
    towers: Mapping[str, Sequence[str]],
    module: TowerModule,
    keys: Sequence[str],
    dims: Sequence[int],
) -> tuple[TowerLayout, ...]:
    """The towers of a model, in the order of the config.

    towers : name -> keys. module : of all of them, its width not 0. keys, dims : of the batch.

    Raises ConfigError: a key that is unknown or not in exactly one tower, an empty tower, a module
    without outputs, a name that cannot be part of a parameter's name.
    """
    if not towers:
        return ()
    if not module.joint_vectors + module.feature_vectors:
        raise ConfigError(
            "model.tower: joint_vectors and feature_vectors are both 0; set one of them"
        )
    position = {key: i for i, key in enumerate(keys)}
    tower_of: dict[str, str] = {}
    layouts = []
    for name, members in towers.items():
        # parameters are groups of an HDF5 file by their names
        if not name or "/" in name or "\0" in name or name in (".", ".."):
            raise ConfigError(
                f"model.towers: {name!r} is no tower's name; it may not be empty, '.' or contain "
                "'/' or NUL"
            )
        if not members:
            raise ConfigError(f"model.towers.{name}: a tower needs at least one feature")
        for key in members:
            if key not in position:
                raise ConfigError(
                    f"model.towers.{name}: no table looks up {key!r}; the features are "
                    f"{', '.join(keys)}"
                )
            if key in tower_of:
                raise ConfigError(
                    f"model.towers.{name}: {key!r} is already in tower {tower_of[key]!r}; a "
                    "feature belongs to one tower"
                )
            tower_of[key] = name
        # in the order of the config: the joint matrix has its columns in that order
        positions = tuple(position[key] for key in members)
        layouts.append(TowerLayout(name, positions, tuple(dims[i] for i in positions), module))
    missing_keys = [key for key in keys if key not in tower_of]
    if missing_keys:
        raise ConfigError(
            f"model.towers: {', '.join(missing_keys)} in no tower; every feature belongs to one"
        )
    return tuple(layouts)
