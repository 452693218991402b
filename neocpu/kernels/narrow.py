"""How are rows of 8- or 16-bit floats updated? As `update.py` updates fp32 rows, with a decoder before and an encoder after.

    codes of a row ──decode, exactly──► fp32 ──merge, phases of the rule──► fp32 ──round──► codes
                                                                                 nearest even │ stochastically │ not at all:
    split-SGD keeps the lower halves of its fp32 weights in `low`: nothing is rounded           split in two halves

Only looked-up rows are decoded. Small floats are described by the five words of a layout (`reference.codecs.layout`), so one
kernel per width of codes serves all of them. Sources: Kalamkar et al. 2020 (bf16, split-SGD); FBGEMM's fp16 training tables.
"""

from functools import cache

import numpy as np
from numba import prange

from neocpu.kernels import rules
from neocpu.kernels._jit import inlined, parallel_kernel
from neocpu.kernels.codecs import FBGEMM, draw_words, largest_of, words_of
from neocpu.kernels.pooling import pool_bag, task_bags, task_count
from neocpu.kernels.simd_codes import nearest_code, number_of_code, random_code, truncated_code, with_noise
from neocpu.kernels.simd_rows import bare, view
from neocpu.kernels.update import find_shard, square_sum, widest


@inlined
def read_line(codes, low, at, words, line):
    """line = the numbers of the codes from `at` on; with halves `low` of their own, the fp32 numbers of both."""
    upper = view(codes, at, line.size)
    if low.size:
        lower, bits = view(low, at, line.size), line.view(np.uint32)
        for c in range(line.size):
            bits[c] = np.uint32(upper[c]) << np.uint32(16) | np.uint32(lower[c])
    else:
        for c in range(line.size):
            line[c] = number_of_code(np.uint32(upper[c]), words)


@inlined
def write_line(line, codes, low, at, words, top, rounding, key, row, column0, step, drawn):
    """Codes from `at` on = line, rounded; `drawn`: scratch u32 for a random word per column and up to six more."""
    upper = view(codes, at, line.size)
    if low.size:
        lower, bits = view(low, at, line.size), line.view(np.uint32)
        for c in range(line.size):
            upper[c], lower[c] = bits[c] >> np.uint32(16), bits[c]
    elif rounding == 0:
        for c in range(line.size):
            upper[c] = nearest_code(line[c], words)
    else:
        before = column0 % 4
        draw_words(key, row, column0 - before, step, view(drawn, 0, (before + line.size + 3) // 4 * 4))
        word = view(drawn, before, line.size)
        if rounding == FBGEMM:
            for c in range(line.size):
                upper[c] = truncated_code(with_noise(line[c], word[c]), top, words)
        else:
            for c in range(line.size):
                upper[c] = random_code(line[c], word[c], top, words)


def _fuse(prepare, direct, rule, finish, squares, directs, finishes, states):
    """`update.fused_update` of coded rows; arguments as in `update._fuse`."""

    @parallel_kernel
    def fused_update(
        codes, low, state0, state1, row_state, base, width, full_width, row_base, shards, first, unique, starts, place, weights,
        gradient, hyper, layout, rounding, key, row0, column0, step,
    ):  # fmt: skip
        blocks = (widest(width, shards) + 63) // 64
        tasks, words = task_count(starts), words_of(layout)
        top = largest_of(words)
        for task in prange(tasks):
            sums, floats, i, h = np.empty(128), np.zeros(2 + 194 * blocks, np.float32), 0, -1
            random = np.empty(64 * blocks + 8, np.uint32)
            acc, scalars, parts, drawn = bare(sums), view(floats, 0, 2), view(floats, 2, 2 * blocks), bare(random)
            line, row_gradient = view(floats, 2 + 2 * blocks, 64 * blocks), view(floats, 2 + 66 * blocks, 64 * blocks)
            row_weight = view(floats, 2 + 130 * blocks, 64 * blocks)
            source, index, scale = bare(gradient), bare(place), bare(weights)
            lo, hi = task_bags(starts, task, tasks)
            for u in range(lo, hi):
                i = find_shard(first, i, u)
                if shards[i] != h:
                    h = shards[i]
                    line[:] = np.float32(0.0)
                d, columns, g = width[h], np.float32(full_width[h]), view(row_gradient, 0, width[h])
                pool_bag(source, index, scale, starts[u], starts[u + 1], 0, 1, d, g, acc)
                at, row, w = base[h] + unique[u] * d, (row_base[h] + unique[u]) * states, view(row_weight, 0, d)
                read_line(codes, low, at, words, w)
                e0, e1 = view(state0, at if state0.size else 0, d), view(state1, at if state1.size else 0, d)
                r = view(row_state, row if row_state.size else 0, states)
                prepare(w, g, e0, e1, hyper)
                if directs:
                    scalars[0] = square_sum(g, d, line, parts)
                    direct(w, g, e0, e1, r, scalars, columns, hyper)
                if squares > 0:
                    scalars[0] = square_sum(g, d, line, parts)
                if squares > 1:
                    scalars[1] = square_sum(w, d, line, parts)
                rule(w, g, e0, e1, r, scalars, columns, hyper)
                if finishes:
                    scalars[0] = square_sum(w, d, line, parts)
                    finish(w, g, e0, e1, r, scalars, columns, hyper)
                number = np.uint64(row0[h] + unique[u])
                write_line(w, codes, low, at, words, top, rounding, key[h], number, column0[h], np.uint64(step), drawn)
            sums[0], floats[0], random[0] = (
                0.0,
                np.float32(0.0),
                np.uint32(0),
            )  # what the views look at lives until here

    return fused_update


@cache
def fused(name, row_scalars, row_states, limited):
    """The fused kernel of a rule over coded rows; arguments as of `update.fused`.

    `fused(…)(codes, low, state0, …, gradient, hyper, layout, rounding, key, row0, column0, step)`: as `update.fused`, but codes
    u16[:] or u8[:] for the table; low u16[:], the lower halves of fp32 weights of which codes are the upper ones, or u16[0];
    layout i64[5] of the small float; rounding i64: 0 nearest even, 1 stochastic, 4 FBGEMM's fp16 trick (`codecs.py`); key
    u64[H], row0, column0 i64[H]: of the random words of a shard (docs/arithmetic.md §9); step i64. States are fp32.
    Source: docs/arithmetic.md §3 to §5; docs/formats.md. Order: as `update.fused`.
    """
    direct = getattr(rules, f"{name}_direct", rules.nothing)
    prepare, finish = (
        getattr(rules, f"{name}_prepare", rules.regularise),
        rules.limit_norm if limited else rules.nothing,
    )
    directs = direct is not rules.nothing
    return _fuse(prepare, direct, getattr(rules, name), finish, row_scalars, directs, limited, row_states)
