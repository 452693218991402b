"""How do pooled embeddings change their order? By permute_pooled_embs and by regrouping tensors."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from neocpu.core.types import Ints
from neocpu.peers.fbgemm.context import Tensors
from neocpu.peers.fbgemm.operators.exact_sums import copied
from neocpu.peers.fbgemm.operators.moves import ints, runs
from neocpu.peers.fbgemm.operators.registry import Refused, operator
from neocpu.tables.embedding.row_sums import segment_starts

# The part of a schema that several operators share.
PERMUTE = (
    "(Tensor pooled_embs, Tensor offset_dim_list, Tensor permute_list, "
    "Tensor inv_offset_dim_list, Tensor inv_permute_list) -> Tensor"
)
# FBGEMM's names of one operator, `permute_pooled_embs` first.
PERMUTATIONS = tuple(
    f"permute_{duplicate}pooled_embs{gradient}{split}"
    for duplicate in ("", "duplicate_")
    for gradient in ("", "_auto_grad")
    for split in ("", "_split")
)
Names = Sequence[Sequence[str]]
Widths = Sequence[Sequence[int]]


@operator(PERMUTE)
def permute_pooled_embs(
    pooled_embs: Tensor,
    offset_dim_list: Tensor,
    permute_list: Tensor,
    inv_offset_dim_list: Tensor,
    inv_permute_list: Tensor,
) -> Tensor:
    """Columns [B, ΣD] of features in the order `permute_list`, which may omit and repeat some.

    offset_dim_list : first column of each feature, and the end of the last. The inverse lists,
    which FBGEMM's backward reads, are not needed here.
    """
    first = ints(offset_dim_list)
    permute = ints(permute_list)
    if pooled_embs.dim() != 2:
        raise Refused(f"pooled_embs has {pooled_embs.dim()} dimensions instead of 2")
    samples, width = pooled_embs.shape
    if first.size < 1 or (np.diff(first) < 0).any() or first[0] < 0 or first[-1] > width:
        raise Refused(f"offset_dim_list must ascend from 0 to at most {width}, the columns")
    if permute.size and not 0 <= permute.min() <= permute.max() < first.size - 1:
        raise Refused(f"permute_list must be numbers of the {first.size - 1} features")
    columns = runs(first[permute], np.diff(first)[permute])
    # Element by element: features of several widths have no rows in common.
    source = np.arange(samples)[:, None] * width + columns
    return copied(pooled_embs, source, (samples, columns.size))


for _name in PERMUTATIONS[1:]:
    operator(PERMUTE, _name)(permute_pooled_embs)


def _blocks(permutes: Tensor) -> list[list[int]]:
    """Rows of six numbers: from tensor, to tensor, from column, to column, columns, next."""
    return ints(permutes).reshape(-1, 6).tolist()


def _sources(
    blocks: list[list[int]], in_widths: Ints, out_widths: Ints, samples: int
) -> list[Ints]:
    """Of each output, i64[samples, width]: elements of the inputs one after the other, or -1."""
    first = segment_starts(in_widths) * samples
    sample = np.arange(samples)[:, None]
    # -1 is a column that no block fills: it stays 0.
    sources = [np.full((samples, width), -1) for width in out_widths.tolist()]
    for from_tensor, to_tensor, from_column, to_column, length, _ in blocks:
        if from_column + length > in_widths[from_tensor]:
            raise Refused(f"permutes reads beyond the columns of tensor {from_tensor}")
        if to_column + length > out_widths[to_tensor]:
            raise Refused(f"permutes writes beyond the columns of output {to_tensor}")
        columns = first[from_tensor] + sample * in_widths[from_tensor] + from_column
        sources[to_tensor][:, to_column : to_column + length] = columns + np.arange(length)
    return sources


@operator(
    "(Tensor[] pooled_embs, Tensor permutes, Tensor in_shapes, Tensor out_shapes, "
    "SymInt[] out_lengths) -> Tensor[]"
)
def permute_multi_embedding(
    pooled_embs: Tensors,
    permutes: Tensor,
    in_shapes: Tensor,
    out_shapes: Tensor,
    out_lengths: Sequence[int],
) -> list[Tensor]:
    """Columns of tensors [B, …] in other tensors [B, out_lengths[g]], as `permutes` says.

    permutes : int[P, 6]; from tensor, to tensor, from column, to column, columns, and a link to the
    next block of the same columns, which is not needed here. Columns that no block fills are 0.
    """
    samples = pooled_embs[0].shape[0] if pooled_embs else 0
    in_widths = np.array([tensor.shape[1] for tensor in pooled_embs], np.int64)
    out_widths = np.array([int(width) for width in out_lengths], np.int64)
    sources = _sources(_blocks(permutes), in_widths, out_widths, samples)
    flat = torch.cat([tensor.reshape(-1) for tensor in pooled_embs])
    return [copied(flat, source, source.shape) for source in sources]


@operator(
    "(Tensor[] pooled_embs, Tensor permutes, Tensor in_shapes, Tensor out_shapes, "
    "SymInt[] out_lengths, bool reverse=False) -> Tensor[]"
)
def permute_multi_embedding_function(
    pooled_embs: Tensors,
    permutes: Tensor,
    in_shapes: Tensor,
    out_shapes: Tensor,
    out_lengths: Sequence[int],
    reverse: bool = False,
) -> list[Tensor]:
    """`permute_multi_embedding`; reverse : its gradients, where copies of a column add up."""
    if not reverse:
        return permute_multi_embedding(pooled_embs, permutes, in_shapes, out_shapes, out_lengths)
    samples = pooled_embs[0].shape[0]
    # A backward runs without; here the forward is differentiated once more.
    with torch.enable_grad():
        leaves = [
            pooled_embs[0].new_zeros(samples, int(width), requires_grad=True)
            for width in out_lengths
        ]
        widths = [tensor.shape[1] for tensor in pooled_embs]
        # The gradient of the same copies, where those of one column add up exactly.
        outputs = permute_multi_embedding(leaves, permutes, out_shapes, in_shapes, widths)
        return list(torch.autograd.grad(outputs, leaves, list(pooled_embs)))


def _regrouping(
    keys: Names, lengths: Widths, groups: Names
) -> tuple[list[list[int]], list[int], list[int]]:
    """(blocks, columns of the inputs, columns of the outputs) that put keys into groups."""
    place: dict[str, tuple[int, int, int]] = {}
    for tensor, (names, widths) in enumerate(zip(keys, lengths, strict=True)):
        for name, first, width in zip(names, segment_starts(np.array(widths)).tolist(), widths):
            # Of a key that several tensors have the first one counts.
            place.setdefault(name, (tensor, first, int(width)))
    blocks = []
    out_widths = []
    for group, names in enumerate(groups):
        column = 0
        for name in names:
            if name not in place:
                raise Refused(f"groups name the key {name!r}, which no tensor has")
            tensor, first, width = place[name]
            blocks.append([tensor, group, first, column, width, 0])
            column += width
        out_widths.append(column)
    _link_duplicates(blocks)
    return blocks, [sum(widths) for widths in lengths], out_widths


def _link_duplicates(blocks: list[list[int]]) -> None:
    """Write FBGEMM's links: of equal columns the first block names the next, others its negative.

    The last of a chain names -P.
    """
    chains: dict[tuple[int, int], list[int]] = {}
    for number, block in enumerate(blocks):
        chains.setdefault((block[0], block[2]), []).append(number)
    for chain in chains.values():
        if len(chain) > 1:
            for number, following in zip(chain, [*chain[1:], len(blocks)]):
                blocks[number][5] = following if number == chain[0] else -following


@operator("(Tensor[] pooled_embs, str[][] keys, int[][] lengths, str[][] groups) -> Tensor[]")
def regroup_keyed_tensor(
    pooled_embs: Tensors, keys: Names, lengths: Widths, groups: Names
) -> list[Tensor]:
    """One tensor [B, …] per group, of the columns of its keys.

    keys, lengths : names and widths of the columns of each tensor.
    """
    blocks, _, out_widths = _regrouping(keys, lengths, groups)
    empty = torch.empty(0)
    return permute_multi_embedding(
        pooled_embs, torch.tensor(blocks, dtype=torch.int32), empty, empty, out_widths
    )


@operator(
    "(Tensor embs, str[][] keys, int[][] lengths, str[][] groups) "
    "-> (Tensor, Tensor, Tensor, int[])"
)
def kt_regroup_arguments(
    embs: Tensor, keys: Names, lengths: Widths, groups: Names
) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """(permutes int32[P, 6], in_shapes, out_shapes, out_lengths) of `permute_multi_embedding`."""
    blocks, in_widths, out_widths = _regrouping(keys, lengths, groups)
    return (
        torch.tensor(blocks, dtype=torch.int32).reshape(-1, 6),
        torch.tensor(in_widths, dtype=torch.int32),
        torch.tensor(out_widths, dtype=torch.int32),
        out_widths,
    )
