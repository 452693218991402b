"""How does what is looked up repeatedly travel once? Row numbers of a message, and bags of samples.

    unique rows    rows i64[n] of a segment -> U unique rows, then n positions among them, packed
                   into words of 64 // bits positions each (bits: of U - 1, at least one)
    distinct bags  samples whose bags of some keys are equal share one; `inverse` says which

A segment of a message is what one rank asks of one shard. It travels as it is where that is
shorter.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.kernels.compile.jit import inlined, kernel

Ints = NDArray[np.int64]
SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads numbers over a hash table


class UniqueScratch(NamedTuple):
    """What `pack_unique_rows` works in.

    slots     : i32, a power of two of them, at least twice the lookups of a segment
    positions : i32, as many as the lookups of a segment
    """

    slots: NDArray[np.int32]
    positions: NDArray[np.int32]


@inlined
def position_bits(distinct):
    """Bits of a position among so many unique rows: at least one."""
    bits = 1
    while (distinct - 1) >> bits > 0:
        bits += 1
    return bits


@inlined
def find_unique(rows, most, scratch, unique):
    """Number of unique rows, in the order of their first occurrence in `unique`, the position of
    each row among them in scratch.positions; -1 as soon as there are more than `most`.
    """
    bits = 1
    while (1 << bits) < 2 * rows.size:
        bits += 1
    slots = scratch.slots[: 1 << bits]
    slots[:] = -1
    mask = slots.size - 1
    shift = np.uint64(64 - bits)
    count = 0
    for j in range(rows.size):
        row = rows[j]
        # Fibonacci hashing: the high bits of the product are those that all bits of the row reach
        slot = np.int64((np.uint64(row) * SPREAD) >> shift)
        while slots[slot] >= 0 and unique[slots[slot]] != row:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            # more unique rows than would make it shorter: the segment travels as it is, so no need
            # to go on
            if count == most:
                return -1
            slots[slot] = count
            unique[count] = row
            count += 1
        scratch.positions[j] = slots[slot]
    return count


@inlined
def write_positions(positions, bits, words):
    """Positions into words, `64 // bits` each, lowest bits first."""
    # whole positions in each word: none crosses two, at the cost of a few bits
    each = 64 // bits
    for at in range((positions.size + each - 1) // each):
        word = np.int64(0)
        for i in range(min(each, positions.size - at * each)):
            word |= np.int64(positions[at * each + i]) << np.int64(i * bits)
        words[at] = word


@kernel
def pack_unique_rows(rows, starts, always, scratch, message, distinct):
    """Segments of a message, each as unique rows and positions, or as it is where that is not
    longer (unless `always`); returns the words of the message.

    Shapes: rows i64[n]; starts i64[S+1], segment s is rows[starts[s] : starts[s+1]]; scratch
    `UniqueScratch`; message i64, n + n // 2 + S words are enough; distinct i32[S], unique rows of
    each segment, -1: it travels as it is.
    Order: unique rows by first occurrence, lookups ascending.
    """
    at = 0
    for s in range(distinct.size):
        segment = rows[starts[s] : starts[s + 1]]
        size = segment.size
        # at least one bit for each position has to fit beside them
        most = size if always else size - (size + 63) // 64 - 1
        count = -1
        if most >= 0:
            count = find_unique(segment, most, scratch, message[at : at + size])
        bits = position_bits(count)
        each = 64 // bits
        words = (size + each - 1) // each
        if count >= 0 and (always or count + words < size):
            write_positions(scratch.positions[:size], bits, message[at + count :])
            at += count + words
            distinct[s] = count
        else:
            for j in range(size):
                message[at + j] = segment[j]
            at += size
            distinct[s] = -1
    return at


@kernel
def unpack_unique_rows(message, distinct, entries, starts, rows):
    """The rows of messages from all ranks, each of some segments, in the order of entries.

    Shapes: message i64[m], rank after rank; distinct i32[W, S] as `pack_unique_rows` gives it, of
    each rank's segments; entries i64[S+1], segment s holds the lookups of entries [entries[s],
    entries[s+1]); starts i64[K, W+1], lookups of entry k from rank r go to rows[starts[k, r] :
    starts[k, r+1]]; rows i64[n].
    Order: none.
    """
    at = 0
    for r in range(distinct.shape[0]):
        for s in range(distinct.shape[1]):
            count = distinct[r, s]
            unique = message[at:]
            bits = position_bits(count)
            each = 64 // bits
            mask = (np.int64(1) << np.int64(bits)) - 1
            j = 0  # the next position of the segment
            for k in range(entries[s], entries[s + 1]):
                for to in range(starts[k, r], starts[k, r + 1]):
                    if count < 0:
                        rows[to] = unique[j]
                    else:
                        word = unique[count + j // each]
                        rows[to] = unique[(word >> np.int64(j % each * bits)) & mask]
                    j += 1
            at += j if count < 0 else count + (j + each - 1) // each


@kernel
def distinct_bags(bags, keys, samples, slots, inverse, first):
    """Which samples have the same bags of all these keys? Returns U, their number.

    Shapes: bags `operands.Bags` of a KJT of `samples` samples; keys i64[K]; slots i32, a power of
    two of them, at least twice the samples; inverse i32[samples], number of each sample's bags;
    first i32[samples], the first U are the first sample of each.
    Source: RecD (Zhao et al., MLSys 2023), the inverse of an IKJT; lengths, rows and weights (their
    bits, -0 and 0 are two) are compared, not only hashes.
    Order: numbers by first occurrence.
    """
    offsets, rows, weights = bags
    # bits, not numbers: -0 and 0 give other products, and NaN is equal to itself
    weight_bits = weights.view(np.int32)
    bits = 1
    while (1 << bits) < 2 * samples:
        bits += 1
    slots[: 1 << bits] = -1
    mask = (1 << bits) - 1
    shift = np.uint64(64 - bits)
    count = 0
    for s in range(samples):
        mixed = np.uint64(0)
        for k in range(keys.size):
            bag = keys[k] * samples + s
            mixed = (mixed ^ np.uint64(offsets[bag + 1] - offsets[bag])) * SPREAD
            for j in range(offsets[bag], offsets[bag + 1]):
                mixed = (mixed ^ (mixed >> np.uint64(29)) ^ np.uint64(rows[j])) * SPREAD
        slot = np.int64(mixed >> shift)
        # compared, not only hashed: a collision would give a sample the bags of another
        while slots[slot] >= 0 and not equal_bags(
            offsets, rows, weight_bits, keys, samples, s, first[slots[slot]]
        ):
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = count
            first[count] = s
            count += 1
        inverse[s] = slots[slot]
    return count


@inlined
def equal_bags(offsets, rows, weight_bits, keys, samples, sample, earlier):
    """Do two samples have the same bags of all these keys?"""
    for k in range(keys.size):
        a = offsets[keys[k] * samples + sample]
        b = offsets[keys[k] * samples + earlier]
        length = offsets[keys[k] * samples + sample + 1] - a
        if offsets[keys[k] * samples + earlier + 1] - b != length:
            return False
        for j in range(length):
            if rows[a + j] != rows[b + j]:
                return False
            if weight_bits.size > 0 and weight_bits[a + j] != weight_bits[b + j]:
                return False
    return True


@kernel
def take_bags(bags, chosen, starts, rows, weights):
    """The lookups of bag chosen[m], from starts[m] on.

    Shapes: bags `operands.Bags`; chosen, starts i64[M]; rows i64[n]; weights f32[n], or f32[0] with
    none.
    Order: none.
    """
    for m in range(chosen.size):
        source = bags.offsets[chosen[m]]
        for j in range(bags.offsets[chosen[m] + 1] - source):
            rows[starts[m] + j] = bags.rows[source + j]
            if weights.size > 0:
                weights[starts[m] + j] = bags.weights[source + j]


@kernel
def expand_columns(distinct, inverse, columns, out):
    """out[s, columns] = distinct[inverse[s], columns].

    Shapes: distinct f32[U, C]; inverse i32[b]; columns i64[J, 2], runs (first, width) of columns;
    out f32[b, C].
    Source: RecD: pooled once per distinct bag. Order: none.
    """
    for s in range(inverse.size):
        source = distinct[inverse[s]]
        target = out[s]
        for j in range(columns.shape[0]):
            for c in range(columns[j, 0], columns[j, 0] + columns[j, 1]):
                target[c] = source[c]
