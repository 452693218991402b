"""How do batches that each are table-major become one that is? FBGEMM's reorder_batched operators."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from neocpu.embedding import layouts
from neocpu.peers.fbgemm.moves import ints, rows, runs, segments
from neocpu.peers.fbgemm.operators import Refused, operator

ADS = "Tensor reordered_cat_ad_offsets, Tensor batch_offsets, SymInt num_ads_in_batch, "


@operator(
    "(Tensor cat_ad_lengths, Tensor batch_offsets, SymInt num_ads_in_batch, bool "
    "broadcast_lengths=False, "
    "SymInt max_batch_size=0) -> Tensor"
)
def reorder_batched_ad_lengths(
    cat_ad_lengths: Tensor,
    batch_offsets: Tensor,
    num_ads_in_batch: int,
    broadcast_lengths: bool = False,
    max_batch_size: int = 0,
) -> Tensor:
    """Lengths by (table, sample); with max_batch_size every table has that many samples, the last
    ones 0.
    """
    ends = ints(batch_offsets)
    each = ends.size - 1 if broadcast_lengths else num_ads_in_batch
    if (
        each == 0
        or cat_ad_lengths.numel() % each
        or (max_batch_size and max_batch_size < num_ads_in_batch)
    ):
        raise Refused(f"{cat_ad_lengths.numel()} lengths are no whole batches of {each}")
    tables = cat_ad_lengths.numel() // each
    found = rows(
        cat_ad_lengths.reshape(-1), layouts.reordered_bags(ends, tables, broadcast_lengths)
    )
    if max_batch_size <= 0:
        return found
    return torch.nn.functional.pad(
        found.view(tables, -1), (0, max_batch_size - int(ends[-1]))
    ).reshape(-1)


def _reordered(
    offsets: Tensor,
    values: Tensor,
    to: Tensor,
    batch_offsets: Tensor,
    samples: int,
    broadcast: bool,
    count: int,
) -> Tensor:
    """Rows of bags by (table, sample); `samples` to a table in the offsets `to`; `count` rows in
    all.
    """
    ends = ints(batch_offsets)
    source = ints(offsets)
    target = ints(to)
    tables = (target.size - 1) // max(samples, 1)
    bags = layouts.reordered_bags(ends, tables, broadcast)
    places = (np.arange(tables)[:, None] * samples + np.arange(int(ends[-1]))).reshape(-1)
    lengths = np.diff(source)[bags]
    # a table's bags of one batch lie together: only where each batch begins is told by `to`
    begins = np.isin(places % samples, ends[:-1]) if samples else np.zeros(0, bool)
    group = np.cumsum(begins) - 1
    before = layouts.exclusive_cumsum(lengths)
    at = target[places][begins][group] + before - before[begins][group]
    moved = segments(values, source[bags], lengths)
    if len(moved) == count and (at == before).all():
        return moved
    out = torch.empty((count, *values.shape[1:]), dtype=values.dtype)
    out[torch.from_numpy(runs(at, lengths))] = moved
    return out


@operator(
    "(Tensor cat_ad_offsets, Tensor cat_ad_indices, "
    + ADS
    + "bool broadcast_indices=False, SymInt num_indices_after_broadcast=-1) -> Tensor"
)
def reorder_batched_ad_indices(
    cat_ad_offsets: Tensor,
    cat_ad_indices: Tensor,
    reordered_cat_ad_offsets: Tensor,
    batch_offsets: Tensor,
    num_ads_in_batch: int,
    broadcast_indices: bool = False,
    num_indices_after_broadcast: int = -1,
) -> Tensor:
    """Indices by (table, sample)."""
    if broadcast_indices and num_indices_after_broadcast < 0:
        raise Refused("broadcast_indices needs num_indices_after_broadcast")
    count = num_indices_after_broadcast if broadcast_indices else cat_ad_indices.shape[0]
    to = (reordered_cat_ad_offsets, batch_offsets, num_ads_in_batch, broadcast_indices, count)
    return _reordered(cat_ad_offsets, cat_ad_indices, *to)


@operator(
    "(Tensor cat_ad_offsets, Tensor[] cat_ad_indices, "
    + ADS
    + (
        "bool broadcast_indices, SymInt total_num_indices, bool pinned_memory=False, SymInt "
        "max_batch_size=0) -> Tensor"
    )
)
def cat_reorder_batched_ad_indices(
    cat_ad_offsets: Tensor,
    cat_ad_indices: Sequence[Tensor],
    reordered_cat_ad_offsets: Tensor,
    batch_offsets: Tensor,
    num_ads_in_batch: int,
    broadcast_indices: bool,
    total_num_indices: int,
    pinned_memory: bool = False,
    max_batch_size: int = 0,
) -> Tensor:
    """As `reorder_batched_ad_indices`, of one tensor for each batch."""
    samples = max_batch_size if max_batch_size > 0 else num_ads_in_batch
    to = (reordered_cat_ad_offsets, batch_offsets, samples, broadcast_indices, total_num_indices)
    return _reordered(cat_ad_offsets, torch.cat(list(cat_ad_indices)), *to)


@operator(
    "(Tensor cat_sequence_embeddings_offsets, Tensor cat_sequence_embeddings, "
    "Tensor reordered_cat_sequence_embeddings_offsets, Tensor batch_offsets, SymInt "
    "num_items_in_batch) -> Tensor"
)
def reorder_batched_sequence_embeddings(
    cat_sequence_embeddings_offsets: Tensor,
    cat_sequence_embeddings: Tensor,
    reordered_cat_sequence_embeddings_offsets: Tensor,
    batch_offsets: Tensor,
    num_items_in_batch: int,
) -> Tensor:
    """As `reorder_batched_ad_indices`, of rows [n, D]."""
    values = cat_sequence_embeddings
    to = reordered_cat_sequence_embeddings_offsets
    shape = (to, batch_offsets, num_items_in_batch, False, values.shape[0])
    return _reordered(cat_sequence_embeddings_offsets, values, *shape)
