"""Which of our parameters is which of another program's DLRM? By the names of its state_dict.

    dlrm       facebookresearch/dlrm: emb_l.0.weight, bot_l.0.weight, top_l.0.weight, …; layers are
               numbered with the ReLUs between them
    torchrec   torchrec.models.dlrm.DLRM: …embedding_bags.TABLE.weight,
               …dense_arch.model._mlp.0._linear.weight, …over_arch.model.0._mlp.0._linear.weight,
               …over_arch.model.1.weight; its dot products come in the order of an upper triangle

Tables follow the order of the config's: TorchRec's have names of their own, `t_cat_0` and so on.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from neocpu.core.errors import CheckpointError
from neocpu.core.types import Ints
from neocpu.train.model.layout import ModelLayout

# of both programs: pattern -> what it matches, "table" or an MLP; groups: its number or name, part
PATTERNS = {
    "dlrm": (
        (re.compile(r"emb_l\.(\d+)\.weight"), "table"),
        (re.compile(r"bot_l\.(\d+)\.(weight|bias)"), "bottom"),
        (re.compile(r"top_l\.(\d+)\.(weight|bias)"), "top"),
    ),
    "torchrec": (
        (re.compile(r"(?:.*\.)?embedding_bags\.([^.]+)\.weight"), "table"),
        (re.compile(r"(?:.*\.)?dense_arch\.model\._mlp\.(\d+)\._linear\.(weight|bias)"), "bottom"),
        (re.compile(r"(?:.*\.)?over_arch\.model\.0\._mlp\.(\d+)\._linear\.(weight|bias)"), "top"),
        (re.compile(r"(?:.*\.)?over_arch\.model\.(1)\.(weight|bias)"), "logit"),
    ),
}
WRAPPER = "module."  # of torch's DistributedDataParallel


@dataclass(frozen=True)
class Names:
    """Where another program's parameters are.

    program : a key of PATTERNS.
    tables : (its name, key) in its order.
    dense : our parameter -> its key.
    """

    program: str
    tables: tuple[tuple[str, str], ...]
    dense: Mapping[str, str]


def names_of(keys: Iterable[str], source: str) -> Names:
    """The parameters of a state_dict with these keys.

    Raises CheckpointError where it is none of a DLRM, or has parameters that ours does not.
    """
    all_keys = list(keys)
    matched = {program: _matched(program, all_keys) for program in PATTERNS}
    program = max(matched, key=lambda name: len(matched[name]))
    entries = matched[program]
    unknown = [key for key in all_keys if key not in entries]
    if not entries or unknown:
        shown = ", ".join(unknown[:3]) or "nothing"
        raise CheckpointError(
            f"{source}: not the state_dict of a DLRM of facebookresearch/dlrm or TorchRec: it has "
            f"{shown}"
        )
    tables = [(name, key) for key, (kind, name, _) in entries.items() if kind == "table"]
    if program == "dlrm":
        # a state_dict may be sorted by text, with 10 before 2
        tables.sort(key=lambda table: int(table[0]))
    dense = {}
    for mlp in ("bottom", "top"):
        numbers = sorted(
            {_layer_order(kind, name) for kind, name, _ in entries.values() if _mlp(kind) == mlp}
        )
        layer = {number: i for i, number in enumerate(numbers)}
        for key, (kind, name, parameter) in entries.items():
            if _mlp(kind) == mlp:
                dense[f"{mlp}.{layer[_layer_order(kind, name)]}.{parameter}"] = key
    return Names(program, tuple(tables), dense)


def _matched(program: str, keys: list[str]) -> dict[str, tuple[str, str, str]]:
    """key -> (kind, number or name, "weight" or "bias") of those that the program's model has."""
    entries = {}
    for key in keys:
        for pattern, kind in PATTERNS[program]:
            if match := pattern.fullmatch(key.removeprefix(WRAPPER)):
                entries[key] = (kind, match[1], match[2] if kind != "table" else "weight")
    return entries


def _mlp(kind: str) -> str:
    """The MLP of a kind of parameter; TorchRec's last layer is a module of its own."""
    return "top" if kind == "logit" else kind


def _layer_order(kind: str, name: str) -> tuple[bool, int]:
    """What layers of an MLP are sorted by."""
    # TorchRec's last layer has the number 1 again, behind all others
    return kind == "logit", int(name)


def column_order(layout: ModelLayout) -> Ints:
    """Which of TorchRec's columns of the first layer after the interaction is each of ours.

    TorchRec takes the pairs (i, j) of vectors with i < j row by row, we take i > j row by row.
    """
    width = layout.first_column
    columns = np.arange(layout.interaction_width, dtype=np.int64)
    if layout.interaction == "dot":
        count = len(layout.vector_widths) + 1
        rank = np.zeros((count, count), np.int64)
        rank[np.triu_indices(count, 1)] = np.arange(columns.size - width)
        i, j = np.tril_indices(count, -1)
        columns[width:] = width + rank[j, i]
    return columns
