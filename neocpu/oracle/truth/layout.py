"""Where does every lookup go when jagged data is permuted, bucketized, padded or selected?

Models in plain Python over lists of bags: slow, and easy to check by eye. FBGEMM's names stand in
the docstrings.
"""

from collections.abc import Callable
from itertools import groupby, islice, pairwise

import numpy as np
from numpy.typing import ArrayLike

from neocpu.core.types import Elements, Ints
from neocpu.oracle.operator import Arrays, Options, Switches


def ints(values: ArrayLike) -> Ints:
    """An int64 array of whole numbers."""
    return np.array(values, np.int64).reshape(-1)


def offsets_of(lengths: Elements) -> Ints:
    """i64[n+1]: 0, then running sums (asynchronous_complete_cumsum)."""
    offsets = [0]
    for length in lengths.reshape(-1).tolist():
        offsets.append(offsets[-1] + length)
    return ints(offsets)


def lengths_to_offsets(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """Model of `lengths_to_offsets`."""
    return {"offsets": offsets_of(inputs["lengths"])}


def offsets_to_lengths(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """Model of `offsets_to_lengths`."""
    ends = inputs["offsets"].tolist()
    return {"lengths": ints([b - a for a, b in pairwise(ends)])}


def offsets_range(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """Place of each lookup in its bag (offsets_range)."""
    ends = inputs["offsets"].tolist()
    return {"range": ints([k for a, b in pairwise(ends) for k in range(b - a)])}


def invert_permute(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """The permutation that undoes one (invert_permute)."""
    permute = inputs["permute"].tolist()
    return {"inverse": ints([permute.index(k) for k in range(len(permute))])}


def expand_into_jagged_permute(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """Where lookups of permuted segments come from (expand_into_jagged_permute)."""
    ends = inputs["offsets"].tolist()
    segments = [range(a, b) for a, b in pairwise(ends)]
    return {"sources": ints([j for k in inputs["permute"].tolist() for j in segments[k]])}


def _bags(lengths: Elements) -> list[list[int]]:
    """Numbers of the lookups of each bag."""
    ends = offsets_of(lengths).tolist()
    return [list(range(a, b)) for a, b in pairwise(ends)]


def _take(inputs: Arrays, name: str, order: list[int]) -> Arrays:
    """An input in another order, if it was given."""
    return {name: inputs[name][ints(order)]} if name in inputs else {}


def permute(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """Keys in another order, or several times (permute_2D_sparse_data)."""
    lengths = inputs["lengths"]
    samples = lengths.shape[1]
    bags = _bags(lengths)
    keys = inputs["permute"]
    if "permutation_inverted" in switches and np.unique(keys).size == keys.size == len(lengths):
        keys = np.argsort(keys, kind="stable")
    order = [j for f in keys.tolist() for bag in bags[f * samples : (f + 1) * samples] for j in bag]
    return {
        "lengths": lengths[keys].astype(np.int64),
        **_take(inputs, "indices", order),
        **_take(inputs, "per_sample_weights", order),
    }


def _bucketized(inputs: Arrays, ranks: int, owner: Callable[[int, int], tuple[int, int]]) -> Arrays:
    """Lookups by (rank, bag); owner(key, row) gives the rank and the row's number there."""
    bags = _bags(inputs["lengths"])
    indices = inputs["indices"].tolist()
    keys = len(inputs.get("block_sizes", inputs.get("boundaries", ())))
    samples = max(len(bags) // max(keys, 1), 1)
    bags_of_rank: list[list[list[int]]] = [[[] for _ in bags] for _ in range(ranks)]
    local_row = [0] * len(indices)
    position = [0] * len(indices)
    destination = [0] * len(indices)
    for b, bag in enumerate(bags):
        for k, j in enumerate(bag):
            rank, local_row[j] = owner(b // samples, indices[j])
            position[j] = k
            bags_of_rank[rank][b].append(j)
    rank_major = [bag for rank_bags in bags_of_rank for bag in rank_bags]
    order = [j for bag in rank_major for j in bag]
    for place, j in enumerate(order):
        destination[j] = place
    return {
        "lengths": ints([len(bag) for bag in rank_major]),
        "indices": ints([local_row[j] for j in order]),
        **_take(inputs, "per_sample_weights", order),
        "positions": ints([position[j] for j in order]),
        "unbucketize": ints(destination),
    }


def block_bucketize(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """Lookups to the rank that owns their row (block_bucketize_sparse_features).

    Rank-major, then keys, then samples. Rank = row // block (of its key), local row = row -
    rank*block; rows beyond the last block go to rank row % W as local row row // W.
    """
    ranks = int(options["ranks"])
    blocks = inputs["block_sizes"].tolist()

    def owner(key: int, row: int) -> tuple[int, int]:
        # FBGEMM spreads rows beyond the last block over all ranks.
        if row >= blocks[key] * ranks or "bucket_by_modulo" in switches:
            local_row, rank = divmod(row, ranks)
        else:
            rank, local_row = divmod(row, blocks[key])
        return rank, row if "bucket_keeps_row" in switches else local_row

    return _bucketized(inputs, ranks, owner)


def bucketize_uneven(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """Lookups to ranks whose blocks differ in size (FBGEMM's block_bucketize_pos).

    Rank r of key f owns rows boundaries[f, r] to boundaries[f, r + 1]; rows beyond the last go to
    rank row % W as local row row // W.
    """
    ranks = int(options["ranks"])
    ends = inputs["boundaries"].tolist()

    def owner(key: int, row: int) -> tuple[int, int]:
        # As beyond even blocks.
        if row >= ends[key][-1]:
            return row % ranks, row // ranks
        rank = next(r for r in range(ranks) if row < ends[key][r + 1])
        return rank, row if "bucket_keeps_row" in switches else row - ends[key][rank]

    return _bucketized(inputs, ranks, owner)


def recat(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """Order that makes blocks by (rank, key) key-major (TorchRec's _get_recat)."""
    features = int(options["features"])
    ranks = int(options["ranks"])
    return {"order": ints([rank * features + f for f in range(features) for rank in range(ranks)])}


def index_select(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """Rows by number (index_select_dim0)."""
    return {"values": np.stack([inputs["values"][k] for k in inputs["select"].tolist()])}


def jagged_to_padded_dense(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """Rows of each bag, cut off or padded to max_length (jagged_to_padded_dense)."""
    values = inputs["values"]
    ends = inputs["offsets"].tolist()
    max_length = int(options["max_length"])
    out = np.full((len(ends) - 1, max_length, values.shape[1]), options["padding"], values.dtype)
    for b, (start, end) in enumerate(pairwise(ends)):
        first = max(end - max_length, start) if "padding_cuts_front" in switches else start
        for k in range(min(end - start, max_length)):
            out[b, k] = values[first + k]
    return {"dense": out}


def padded_dense_to_jagged(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """The inverse: rows of a bag beyond max_length are 0 (dense_to_jagged)."""
    dense = inputs["dense"]
    ends = inputs["offsets"].tolist()
    out = np.zeros((ends[-1], dense.shape[2]), dense.dtype)
    for b, (start, end) in enumerate(pairwise(ends)):
        for k in range(min(end - start, dense.shape[1])):
            out[start + k] = dense[b, k]
    return {"values": out}


def jagged_index_select(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """Some bags, in some order, with repeats (jagged_index_select)."""
    bags = _bags(inputs["lengths"])
    selected = inputs["select"].tolist()
    order = [j for b in selected for j in bags[b]]
    return {
        "values": inputs["values"][ints(order)],
        "lengths": ints([len(bags[b]) for b in selected]),
    }


def unique(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """Unique rows ascending, the place of each lookup's row, and counts (jagged_unique_indices)."""
    indices = inputs["indices"].tolist()
    unique_rows = sorted(set(indices))
    place = {row: k for k, row in enumerate(unique_rows)}
    count = [0] * len(unique_rows)
    for row in indices:
        count[place[row]] += 1
    return {
        "unique": ints(unique_rows),
        "inverse": ints([place[row] for row in indices]),
        "counts": ints(count),
    }


def jagged_unique(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """`unique` of each table by itself, and the rows as bags (jagged_unique_indices).

    Features of a table stand side by side; their bags share its rows evenly, the first ones taking
    what is left over.
    """
    features = inputs["feature_table"].tolist()
    ends = inputs["offsets"].tolist()
    samples = (len(ends) - 1) // max(len(features), 1)
    rows: list[int] = []
    inverse: list[int] = []
    lengths: list[int] = []
    for _, same in groupby(range(len(features)), key=lambda f: features[f]):
        bags = len(list(same)) * samples
        lookups = inputs["indices"][ends[len(lengths)] : ends[len(lengths) + bags]].tolist()
        of_table = sorted(set(lookups))
        place = {row: len(rows) + k for k, row in enumerate(of_table)}
        inverse += [place[row] for row in lookups]
        rows += of_table
        lengths += [len(of_table[k::bags]) for k in range(bags)]
    return {"unique": ints(rows), "inverse": ints(inverse), "lengths": ints(lengths)}


def reorder_batched(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """Batches, each table-major, as one (reorder_batched_ad_lengths and _indices)."""
    counts = [b - a for a, b in pairwise(inputs["batch_offsets"].tolist())]
    bags = iter(_bags(inputs["lengths"]))
    once = bool(options["broadcast"])
    sizes = [1 if once else count for count in counts]
    tables = inputs["lengths"].size // max(sum(sizes), 1)
    batches = [[list(islice(bags, size)) for _ in range(tables)] for size in sizes]
    moved = [
        bag
        for table in range(tables)
        for batch, count in zip(batches, counts)
        for bag in (batch[table] * count if once else batch[table])
    ]
    order = [j for bag in moved for j in bag]
    return {"lengths": ints([len(bag) for bag in moved]), **_take(inputs, "indices", order)}


def linear_index(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """First element of each lookup's row, and its number among all rows (linearize_index)."""
    rows = inputs["rows"].tolist()
    dims = inputs["dims"].tolist()
    ends = inputs["offsets"].tolist()
    features = inputs["feature_table"].tolist()
    samples = (len(ends) - 1) // max(len(features), 1)
    elements = []
    global_rows = []
    for bag, (start, end) in enumerate(pairwise(ends)):
        t = features[bag // samples]
        first_element = sum(r * d for r, d in zip(rows[:t], dims))
        first_row = sum(rows[:t])
        for row in inputs["indices"][start:end].tolist():
            offset = row * dims[t]
            if "row_offset_32bit" in switches:
                # Two's complement of 32 bits.
                offset = (offset + 2**31) % 2**32 - 2**31
            elements.append(-1 if row < 0 else first_element + offset)
            global_rows.append(-1 if row < 0 else first_row + row)
    return {"element": ints(elements), "row": ints(global_rows)}


def bounds_check(inputs: Arrays, options: Options, switches: Switches) -> Arrays:
    """Row numbers, -1 for those out of range; their count by table (bounds_check_indices)."""
    rows = inputs["rows"].tolist()
    ends = inputs["offsets"].tolist()
    features = inputs["feature_table"].tolist()
    samples = (len(ends) - 1) // max(len(features), 1)
    count = [0] * len(rows)
    checked = inputs["indices"].tolist()
    for bag, (start, end) in enumerate(pairwise(ends)):
        t = features[bag // samples]
        for j in range(start, end):
            # -1 is a pruned row, and inside.
            if -1 <= checked[j] < rows[t]:
                continue
            count[t] += 1
            if "out_of_bounds_row_0" in switches:
                checked[j] = 0
            elif "out_of_bounds_wraps" in switches:
                checked[j] %= rows[t]
            elif "out_of_bounds_clamped" in switches:
                checked[j] = min(max(checked[j], 0), rows[t] - 1)
            else:
                checked[j] = -1
    if sum(count) and options["bounds_check"] == "fatal":
        raise ValueError(f"{sum(count)} row numbers are out of range")
    return {"indices": ints(checked), "outside": ints(count)}
