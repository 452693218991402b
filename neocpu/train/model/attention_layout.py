"""Which histories does a model attend to, by which candidates, with which parameters?

A history is a key whose table has pooling "none": a row for every lookup. For each sample the
vector of another key, the candidate, decides how much every row counts:

    score_l = MLP([h_l, a, h_l - a, h_l * a])    inputs 4 D -> hidden ... -> 1, ReLU between
    vector of the history = sum of score_l h_l   (with softmax: of softmax(score)_l h_l)

Source: Zhou et al. 2018 (DIN), arXiv 1706.06978, whose weights are not normalised; which
combinations of h and a go into the MLP, and ReLU in it, is our reading. Nothing is compiled here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neocpu.core.errors import ConfigError
from neocpu.train.model.arrays import Shapes, mlp_shapes
from neocpu.train.model.options import AttentionKeys

NORMALISE = ("none", "softmax")


@dataclass(frozen=True)
class AttentionLayout:
    """One history.

    name : of its key. column : the first column of the candidate's vector among the vectors of the
    model's keys, which have dim columns both. hidden, normalise : of `AttentionKeys`.
    """

    name: str
    column: int
    dim: int
    hidden: tuple[int, ...]
    normalise: str

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths of the MLP, its inputs first."""
        # h, a, h - a and h * a side by side
        return (4 * self.dim, *self.hidden, 1)

    @property
    def prefix(self) -> str:
        """Before the numbers of its layers, in the names of their parameters."""
        return f"attention.{self.name}"

    def tensors(self) -> Shapes:
        """(name, shape) of its parameters."""
        return mlp_shapes(self.prefix, self.sizes)


@dataclass(frozen=True)
class ModelKey:
    """A key of the model: its name, and first column and number of its columns among the keys'
    vectors; is it pooled by its table?
    """

    name: str
    column: int
    dim: int
    pooled: bool


def attention_layouts(
    attention: Mapping[str, AttentionKeys], keys: Sequence[ModelKey]
) -> dict[str, AttentionLayout]:
    """The histories of a model, by the names of their keys.

    Raises ConfigError for a history or candidate that is no such key, for widths that differ, and
    for a key without pooling that nothing makes a vector of.
    """
    by_name = {key.name: key for key in keys}
    layouts = {
        name: _layout(name, history, by_name, attention) for name, history in attention.items()
    }
    targets = {history.target for history in attention.values()}
    for key in keys:
        # a candidate of pooling "none" is pooled at home, before histories read it
        if not key.pooled and key.name not in attention and key.name not in targets:
            raise ConfigError(
                f'tables: {key.name!r} has pooling "none", but nothing makes a vector of its rows; '
                f'set model.attention.{key.name} = {{ target = "FEATURE" }} with the feature that '
                "decides how much each of them counts, or choose pooling sum or mean"
            )
    return layouts


def _layout(
    name: str,
    settings: AttentionKeys,
    keys: Mapping[str, ModelKey],
    attention: Mapping[str, AttentionKeys],
) -> AttentionLayout:
    candidate = settings.target
    key = f"model.attention.{name}"
    if name not in keys:
        raise ConfigError(f"{key}: no table looks up {name!r}; the features are {_names(keys)}")
    history = keys[name]
    if history.pooled:
        raise ConfigError(
            f'{key}: the rows of {name!r} are pooled by its table; set its pooling to "none"'
        )
    if candidate not in keys:
        raise ConfigError(
            f"{key}.target: no table looks up {candidate!r}; the features are {_names(keys)}"
        )
    # its vector would have to be made before it is read
    if candidate in attention:
        raise ConfigError(
            f"{key}.target: {candidate!r} is a history itself; a candidate is a feature "
            "that is none"
        )
    target = keys[candidate]
    if target.dim != history.dim:
        raise ConfigError(
            f"{key}.target: {candidate!r} has {target.dim} columns and {name!r} has "
            f"{history.dim}, but they are compared number by number; give both one dim"
        )
    if settings.normalise not in NORMALISE:
        raise ConfigError(
            f"{key}.normalise: {settings.normalise!r} is unknown; choose one of "
            f"{', '.join(NORMALISE)}"
        )
    return AttentionLayout(name, target.column, target.dim, settings.hidden, settings.normalise)


def _names(keys: Mapping[str, ModelKey]) -> str:
    return ", ".join(keys)
