"""What travels once? The twin of `kernels/exchange/distinct.py`: dictionaries and whole
arrays.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def _position_bits(distinct: int) -> int:
    """Bits of a position among so many unique rows: at least one."""
    return max(1, (distinct - 1).bit_length())


def pack_unique_rows(
    rows: Ints,
    starts: Ints,
    always: bool,
    scratch: Any,
    message: Ints,
    distinct: NDArray[np.int32],
) -> int:
    """Segments as unique rows and positions, or as they are; shapes as in the kernel."""
    words = [np.empty(0, np.int64)]
    for s in range(distinct.size):
        segment = rows[starts[s] : starts[s + 1]].tolist()
        number = {row: u for u, row in enumerate(dict.fromkeys(segment))}
        each = 64 // _position_bits(len(number))
        packed = -(-len(segment) // each)
        if not always and len(number) + packed >= len(segment):
            distinct[s] = -1
            words.append(np.array(segment, np.int64))
            continue
        distinct[s] = len(number)
        positions = [number[row] for row in segment]
        bits = _position_bits(len(number))
        whole = [
            sum(p << (i * bits) for i, p in enumerate(positions[first : first + each]))
            for first in range(0, len(positions), each)
        ]
        words.append(np.array(list(number), np.int64))
        words.append(np.array(whole, np.uint64).view(np.int64))
    packed_words = np.concatenate(words)
    message[: packed_words.size] = packed_words
    return packed_words.size


def unpack_unique_rows(
    message: Ints, distinct: NDArray[np.int32], entries: Ints, starts: Ints, rows: Ints
) -> None:
    """The rows of all ranks' messages in the order of entries; shapes as in the kernel."""
    at = 0
    for r, counts in enumerate(distinct.tolist()):
        for s, count in enumerate(counts):
            spans = [
                np.arange(starts[k, r], starts[k, r + 1]) for k in range(entries[s], entries[s + 1])
            ]
            target = np.concatenate([np.empty(0, np.int64), *spans])
            if count < 0:
                rows[target] = message[at : at + target.size]
                at += target.size
                continue
            bits = _position_bits(count)
            each = 64 // bits
            j = np.arange(target.size)
            words = message[at + count + j // each].view(np.uint64)
            positions = (words >> (j % each * bits).astype(np.uint64)) & np.uint64((1 << bits) - 1)
            rows[target] = message[at + positions.astype(np.int64)]
            at += count + -(-target.size // each)


def distinct_bags(
    bags: Any,
    keys: Ints,
    samples: int,
    slots: NDArray[np.int32],
    inverse: NDArray[np.int32],
    first: NDArray[np.int32],
) -> int:
    """Samples with the same bags of all these keys share a number; shapes as in the kernel."""
    numbers: dict[tuple[bytes, ...], int] = {}
    for s in range(samples):
        spans = [slice(*bags.offsets[k * samples + s : k * samples + s + 2]) for k in keys.tolist()]
        content = tuple(bags.rows[span].tobytes() for span in spans)
        content += tuple(bags.weights[span].tobytes() for span in spans if bags.weights.size)
        inverse[s] = numbers.setdefault(content, len(numbers))
    for s in reversed(range(samples)):
        first[inverse[s]] = s
    return len(numbers)


def take_bags(bags: Any, chosen: Ints, starts: Ints, rows: Ints, weights: Floats) -> None:
    """The lookups of bag chosen[m], from starts[m] on; shapes as in the kernel."""
    lengths = np.diff(bags.offsets)[chosen]
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    source = np.repeat(bags.offsets[chosen], lengths) + within
    target = np.repeat(starts, lengths) + within
    rows[target] = bags.rows[source]
    if weights.size:
        weights[target] = bags.weights[source]


def expand_columns(
    distinct: Floats, inverse: NDArray[np.int32], columns: Ints, out: Floats
) -> None:
    """out[s, columns] = distinct[inverse[s], columns]; shapes as in the kernel."""
    for first, width in columns.tolist():
        out[:, first : first + width] = distinct[inverse, first : first + width]
