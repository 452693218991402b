"""Where does every lookup go when jagged data is permuted, bucketized, padded or selected?
Whole-number models, list by list.

Plain Python over bags, the slowest and plainest way to say it. FBGEMM's names stand in the
docstrings.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.oracle.operator import Arrays, Value

Ints = NDArray[np.int64]
Model = dict[str, NDArray[Any]]


def ints(values: Any) -> Ints:
    """An int64 array of whole numbers."""
    return np.array(values, np.int64).reshape(-1)


def offsets_of(lengths: NDArray[Any]) -> Ints:
    """i64[n+1]: 0, then running sums (asynchronous_complete_cumsum)."""
    total = 0
    found = [0]
    for n in lengths.reshape(-1).tolist():
        total += n
        found.append(total)
    return ints(found)


def lengths_to_offsets(inputs: Arrays, o: dict[str, Value], switches: frozenset[str]) -> Model:
    """Model of `lengths_to_offsets`."""
    return {"offsets": offsets_of(inputs["lengths"])}


def offsets_to_lengths(inputs: Arrays, o: dict[str, Value], switches: frozenset[str]) -> Model:
    """Model of `offsets_to_lengths`."""
    ends = inputs["offsets"].tolist()
    return {"lengths": ints([b - a for a, b in pairwise(ends)])}


def _bags(lengths: NDArray[Any]) -> list[list[int]]:
    ends = offsets_of(lengths).tolist()
    return [list(range(a, b)) for a, b in pairwise(ends)]


def _take(inputs: Arrays, name: str, order: list[int]) -> Model:
    return {name: inputs[name][ints(order)]} if name in inputs else {}


def permute(inputs: Arrays, o: dict[str, Value], switches: frozenset[str]) -> Model:
    """Keys in another order, or several times (permute_2D_sparse_data)."""
    lengths = inputs["lengths"]
    samples = lengths.shape[1]
    bags = _bags(lengths)
    order = [
        j
        for f in inputs["permute"].tolist()
        for bag in bags[f * samples : (f + 1) * samples]
        for j in bag
    ]
    return {
        "lengths": lengths[inputs["permute"]].astype(np.int64),
        **_take(inputs, "indices", order),
        **_take(inputs, "per_sample_weights", order),
    }


def _dealt(inputs: Arrays, ranks: int, owner: Callable[[int, int], tuple[int, int]]) -> Model:
    """Lookups by (rank, bag); owner(key, row) gives the rank and the row's number there."""
    bags = _bags(inputs["lengths"])
    indices = inputs["indices"].tolist()
    samples = max(
        len(bags) // max(len(inputs.get("block_sizes", inputs.get("boundaries", ()))), 1), 1
    )
    parts: list[list[list[int]]] = [[[] for _ in bags] for _ in range(ranks)]
    local = [0] * len(indices)
    position = [0] * len(indices)
    where = [0] * len(indices)
    for b, bag in enumerate(bags):
        for k, j in enumerate(bag):
            rank, local[j] = owner(b // samples, indices[j])
            position[j] = k
            parts[rank][b].append(j)
    order = [j for rank_ in parts for bag in rank_ for j in bag]
    for place, j in enumerate(order):
        where[j] = place
    return {
        "lengths": ints([len(bag) for rank_ in parts for bag in rank_]),
        "indices": ints([local[j] for j in order]),
        **_take(inputs, "per_sample_weights", order),
        "positions": ints([position[j] for j in order]),
        "unbucketize": ints(where),
    }


def block_bucketize(inputs: Arrays, o: dict[str, Value], switches: frozenset[str]) -> Model:
    """Lookups to the rank that owns their row: rank-major, then keys, then samples
    (block_bucketize_sparse_features).

    Rank = row // block (of its key), local row = row - rank*block; rows beyond the last block go to
    row % W, as row // W.
    """
    ranks = int(o["ranks"])
    blocks = inputs["block_sizes"].tolist()

    def owner(key: int, row: int) -> tuple[int, int]:
        rank, local = (
            divmod(row, blocks[key]) if row < blocks[key] * ranks else (row % ranks, row // ranks)
        )
        if "bucket_by_modulo" in switches:
            rank = row % ranks
            local = row // ranks
        return rank, row if "bucket_keeps_row" in switches else local

    return _dealt(inputs, ranks, owner)


def bucketize_uneven(inputs: Arrays, o: dict[str, Value], switches: frozenset[str]) -> Model:
    """Lookups to ranks with blocks of their own sizes (block_bucketize_sparse_features with
    block_bucketize_pos).

    Rank r of key f owns rows boundaries[f, r] to boundaries[f, r + 1]; rows beyond the last go to
    row % W, as row // W.
    """
    ranks = int(o["ranks"])
    ends = inputs["boundaries"].tolist()

    def owner(key: int, row: int) -> tuple[int, int]:
        if row >= ends[key][-1]:
            return row % ranks, row // ranks
        rank = next(r for r in range(ranks) if row < ends[key][r + 1])
        return rank, row if "bucket_keeps_row" in switches else row - ends[key][rank]

    return _dealt(inputs, ranks, owner)


def recat(inputs: Arrays, o: dict[str, Value], switches: frozenset[str]) -> Model:
    """Order that makes blocks by (rank, key) key-major (TorchRec's _get_recat)."""
    features = int(o["features"])
    ranks = int(o["ranks"])
    return {"order": ints([rank * features + f for f in range(features) for rank in range(ranks)])}


def index_select(inputs: Arrays, o: dict[str, Value], switches: frozenset[str]) -> Model:
    """Rows by number (index_select_dim0)."""
    return {"values": np.stack([inputs["values"][k] for k in inputs["select"].tolist()])}


def jagged_to_padded_dense(inputs: Arrays, o: dict[str, Value], switches: frozenset[str]) -> Model:
    """Rows of each bag, cut off or padded to max_length (jagged_to_padded_dense)."""
    values = inputs["values"]
    ends = inputs["offsets"].tolist()
    most = int(o["max_length"])
    out = np.full((len(ends) - 1, most, values.shape[1]), o["padding"], values.dtype)
    for b, (lo, hi) in enumerate(pairwise(ends)):
        for k, j in enumerate(range(lo, min(hi, lo + most))):
            out[b, k] = (
                values[max(hi - most, lo) + k] if "padding_cuts_front" in switches else values[j]
            )
    return {"dense": out}


def padded_dense_to_jagged(inputs: Arrays, o: dict[str, Value], switches: frozenset[str]) -> Model:
    """The other way; what a bag has beyond max_length is 0 (dense_to_jagged)."""
    dense = inputs["dense"]
    ends = inputs["offsets"].tolist()
    out = np.zeros((ends[-1], dense.shape[2]), dense.dtype)
    for b, (lo, hi) in enumerate(pairwise(ends)):
        for k in range(min(hi - lo, dense.shape[1])):
            out[lo + k] = dense[b, k]
    return {"values": out}


def jagged_index_select(inputs: Arrays, o: dict[str, Value], switches: frozenset[str]) -> Model:
    """Some bags, in some order, with repeats (jagged_index_select)."""
    bags = _bags(inputs["lengths"])
    selected = inputs["select"].tolist()
    order = [j for b in selected for j in bags[b]]
    return {
        "values": inputs["values"][ints(order)],
        "lengths": ints([len(bags[b]) for b in selected]),
    }


def unique(inputs: Arrays, o: dict[str, Value], switches: frozenset[str]) -> Model:
    """Different values ascending, where each lookup finds its own, and how often each occurs
    (jagged_unique_indices).
    """
    found = sorted(set(inputs["indices"].tolist()))
    place = {row: k for k, row in enumerate(found)}
    count = [0] * len(found)
    for row in inputs["indices"].tolist():
        count[place[row]] += 1
    return {
        "unique": ints(found),
        "inverse": ints([place[r] for r in inputs["indices"].tolist()]),
        "counts": ints(count),
    }


def linear_index(inputs: Arrays, o: dict[str, Value], switches: frozenset[str]) -> Model:
    """Where each lookup's row begins in flat memory, and its number among all rows
    (linearize_index).
    """
    rows = inputs["rows"].tolist()
    dims = inputs["dims"].tolist()
    ends = inputs["offsets"].tolist()
    features = inputs["feature_table"].tolist()
    samples = (len(ends) - 1) // max(len(features), 1)
    element = []
    row = []
    for bag, (lo, hi) in enumerate(pairwise(ends)):
        t = features[bag // samples]
        for at in inputs["indices"][lo:hi].tolist():
            step = at * dims[t]
            if "row_offset_32bit" in switches:
                step = (step + 2**31) % 2**32 - 2**31
            element.append(-1 if at < 0 else sum(r * d for r, d in zip(rows[:t], dims)) + step)
            row.append(-1 if at < 0 else sum(rows[:t]) + at)
    return {"element": ints(element), "row": ints(row)}


def bounds_check(inputs: Arrays, o: dict[str, Value], switches: frozenset[str]) -> Model:
    """Row numbers with -1 for those out of range, and how many those are, by table
    (bounds_check_indices).
    """
    rows = inputs["rows"].tolist()
    ends = inputs["offsets"].tolist()
    features = inputs["feature_table"].tolist()
    samples = (len(ends) - 1) // max(len(features), 1)
    count = [0] * len(rows)
    checked = inputs["indices"].tolist()
    for bag, (lo, hi) in enumerate(pairwise(ends)):
        t = features[bag // samples]
        for j in range(lo, hi):
            if not -1 <= checked[j] < rows[t]:
                count[t] += 1
                wrapped = checked[j] % rows[t]
                checked[j] = (
                    0
                    if "out_of_bounds_row_0" in switches
                    else wrapped
                    if "out_of_bounds_wraps" in switches
                    else -1
                )
    if sum(count) and o["bounds_check"] == "fatal":
        raise ValueError(f"{sum(count)} row numbers are out of range")
    return {"indices": ints(checked), "outside": ints(count)}
