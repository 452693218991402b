"""How do table-major batches become one table-major batch? By the reorder_batched operators."""

import numpy as np
import torch
from torch import Tensor

from neocpu.peers.fbgemm.context import Tensors
from neocpu.peers.fbgemm.operators.moves import ints, rows, runs, segments
from neocpu.peers.fbgemm.operators.registry import Refused, operator
from neocpu.tables.embedding import layouts

# The part of a schema that several operators share.
ADS = "Tensor reordered_cat_ad_offsets, Tensor batch_offsets, SymInt num_ads_in_batch, "


@operator(
    "(Tensor cat_ad_lengths, Tensor batch_offsets, SymInt num_ads_in_batch, "
    "bool broadcast_lengths=False, SymInt max_batch_size=0) -> Tensor"
)
def reorder_batched_ad_lengths(
    cat_ad_lengths: Tensor,
    batch_offsets: Tensor,
    num_ads_in_batch: int,
    broadcast_lengths: bool = False,
    max_batch_size: int = 0,
) -> Tensor:
    """Lengths by (table, sample).

    max_batch_size : samples of every table in the result, padded with lengths 0; 0: no padding.
    """
    batch_ends = ints(batch_offsets)
    batch_length = batch_ends.size - 1 if broadcast_lengths else num_ads_in_batch
    if (
        batch_length == 0
        or cat_ad_lengths.numel() % batch_length
        or (max_batch_size and max_batch_size < num_ads_in_batch)
    ):
        raise Refused(f"{cat_ad_lengths.numel()} lengths are no whole batches of {batch_length}")
    tables = cat_ad_lengths.numel() // batch_length
    lengths = rows(
        cat_ad_lengths.reshape(-1), layouts.reordered_bags(batch_ends, tables, broadcast_lengths)
    )
    if max_batch_size <= 0:
        return lengths
    return torch.nn.functional.pad(
        lengths.view(tables, -1), (0, max_batch_size - int(batch_ends[-1]))
    ).reshape(-1)


def _reordered(
    offsets: Tensor,
    values: Tensor,
    reordered_offsets: Tensor,
    batch_offsets: Tensor,
    samples: int,
    broadcast: bool,
    count: int,
) -> Tensor:
    """Rows [count, …] of the bags by (table, sample).

    reordered_offsets : those of the result. samples : bags of a table in them.
    """
    batch_ends = ints(batch_offsets)
    bag_starts = ints(offsets)
    reordered_starts = ints(reordered_offsets)
    # The caller's offsets have `samples` bags of every table, padding included.
    tables = (reordered_starts.size - 1) // max(samples, 1)
    bags = layouts.reordered_bags(batch_ends, tables, broadcast)
    # Bags of a table lie `samples` apart, more than the batches have where they are padded.
    bag_places = (np.arange(tables)[:, None] * samples + np.arange(int(batch_ends[-1]))).reshape(-1)
    lengths = np.diff(bag_starts)[bags]
    # As in FBGEMM, only the offset of a batch's first bag in each table is read.
    first_of_batch = (
        np.isin(bag_places % samples, batch_ends[:-1]) if samples else np.zeros(0, bool)
    )
    batch_of_bag = np.cumsum(first_of_batch) - 1
    moved_starts = layouts.exclusive_cumsum(lengths)
    row_places = (
        reordered_starts[bag_places][first_of_batch][batch_of_bag]
        + moved_starts
        - moved_starts[first_of_batch][batch_of_bag]
    )
    moved = segments(values, bag_starts[bags], lengths)
    # Mostly the rows already stand where the caller's offsets want them.
    if len(moved) == count and (row_places == moved_starts).all():
        return moved
    # Gaps between the caller's offsets stay 0.
    out = torch.zeros((count, *values.shape[1:]), dtype=values.dtype)
    out[torch.from_numpy(runs(row_places, lengths))] = moved
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
    layout = (reordered_cat_ad_offsets, batch_offsets, num_ads_in_batch, broadcast_indices, count)
    return _reordered(cat_ad_offsets, cat_ad_indices, *layout)


@operator(
    "(Tensor cat_ad_offsets, Tensor[] cat_ad_indices, "
    + ADS
    + "bool broadcast_indices, SymInt total_num_indices, bool pinned_memory=False, "
    + "SymInt max_batch_size=0) -> Tensor"
)
def cat_reorder_batched_ad_indices(
    cat_ad_offsets: Tensor,
    cat_ad_indices: Tensors,
    reordered_cat_ad_offsets: Tensor,
    batch_offsets: Tensor,
    num_ads_in_batch: int,
    broadcast_indices: bool,
    total_num_indices: int,
    pinned_memory: bool = False,
    max_batch_size: int = 0,
) -> Tensor:
    """As `reorder_batched_ad_indices`, with one tensor for each batch."""
    samples = max_batch_size if max_batch_size > 0 else num_ads_in_batch
    layout = (
        reordered_cat_ad_offsets,
        batch_offsets,
        samples,
        broadcast_indices,
        total_num_indices,
    )
    return _reordered(cat_ad_offsets, torch.cat(list(cat_ad_indices)), *layout)


@operator(
    "(Tensor cat_sequence_embeddings_offsets, Tensor cat_sequence_embeddings, "
    "Tensor reordered_cat_sequence_embeddings_offsets, Tensor batch_offsets, "
    "SymInt num_items_in_batch) -> Tensor"
)
def reorder_batched_sequence_embeddings(
    cat_sequence_embeddings_offsets: Tensor,
    cat_sequence_embeddings: Tensor,
    reordered_cat_sequence_embeddings_offsets: Tensor,
    batch_offsets: Tensor,
    num_items_in_batch: int,
) -> Tensor:
    """As `reorder_batched_ad_indices`, for rows [n, D]."""
    values = cat_sequence_embeddings
    reordered_offsets = reordered_cat_sequence_embeddings_offsets
    layout = (reordered_offsets, batch_offsets, num_items_in_batch, False, values.shape[0])
    return _reordered(cat_sequence_embeddings_offsets, values, *layout)
