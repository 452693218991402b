"""Do our layout operators, lookups and bounds give FBGEMM's CPU answers, number for number?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.peers import arrays as operators
from neocpu.tables.embedding import bounds, layouts

pytest.importorskip("torch", reason="a peer: pip install -e '.[peers]'")
pytest.importorskip("fbgemm_gpu", reason="a peer: pip install -e '.[peers]'")
pytestmark = pytest.mark.filterwarnings("ignore")

import torch  # noqa: E402

T = torch.from_numpy
FBGEMM = torch.ops.fbgemm


def batch(seed: int, features: int, samples: int, weighted: bool = True):
    """Random generator, lengths [F, B], indices, weights."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, (features, samples))
    n = int(lengths.sum())
    return (
        rng,
        lengths,
        rng.integers(0, 40, n),
        rng.standard_normal(n).astype(np.float32) if weighted else None,
    )


def assert_same(actual, expected) -> None:
    """Equal numbers; None equals None."""
    for result, expected_result in zip(actual, expected, strict=True):
        assert (result is None) == (expected_result is None)
        if result is not None:
            np.testing.assert_array_equal(result, expected_result.numpy().reshape(result.shape))


SHAPES = given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 5))


@SHAPES
def test_permutes(seed: int, features: int, samples: int) -> None:
    rng, lengths, indices, weights = batch(seed, features, samples)
    order = rng.integers(0, features, rng.integers(1, 6)).astype(np.int32)
    expected = FBGEMM.permute_2D_sparse_data(T(order), T(lengths), T(indices), T(weights), None)
    assert_same(layouts.permute_2d(order, lengths, indices, weights), expected)
    bags = rng.integers(0, lengths.size, rng.integers(1, 9)).astype(np.int32)
    expected = FBGEMM.permute_1D_sparse_data(
        T(bags), T(lengths.reshape(-1)), T(indices), T(weights), None
    )
    assert_same(layouts.permute_1d(bags, lengths, indices, weights), expected)


@given(
    st.integers(0, 2**32),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)
def test_block_bucketize(
    seed: int, features: int, samples: int, ranks: int, uneven: bool, narrow: bool
) -> None:
    rng, lengths, indices, weights = batch(seed, features, samples)
    dtype = np.int32 if narrow else np.int64
    indices = indices.astype(dtype)
    lengths = lengths.reshape(-1).astype(dtype)
    if not uneven:
        indices[rng.random(indices.size) < 0.1] = -1
    block = rng.integers(1, 9, features).astype(dtype)
    bucket_offsets = (
        [np.append(0, np.cumsum(rng.integers(1, 9, ranks))).astype(dtype) for _ in range(features)]
        if uneven
        else None
    )
    blocks = (
        None
        if uneven or rng.random() < 0.5
        else (ranks * rng.integers(1, 4, features)).astype(dtype)
    )
    keep = bool(rng.random() < 0.3)
    actual = layouts.block_bucketize(
        lengths, indices, block, ranks, weights, None, blocks, bucket_offsets, keep
    )
    expected = FBGEMM.block_bucketize_sparse_features(
        T(lengths),
        T(indices),
        bucketize_pos=True,
        sequence=True,
        block_sizes=T(block),
        my_size=ranks,
        weights=T(weights),
        total_num_blocks=None if blocks is None else T(blocks),
        keep_orig_idx=keep,
        block_bucketize_pos=None if bucket_offsets is None else [T(e) for e in bucket_offsets],
    )
    # FBGEMM stores indices in the dtype of its input.
    bucketized_indices = actual.indices.astype(dtype)
    assert_same(
        (
            actual.lengths,
            bucketized_indices,
            actual.weights,
            actual.positions,
            actual.unbucketize_permute,
        ),
        expected,
    )


@SHAPES
def test_cyclic_bucketize_is_a_block_of_nothing(seed: int, features: int, ranks: int) -> None:
    _, lengths, indices, weights = batch(seed, features, 3)
    expected = FBGEMM.bucketize_sparse_features(
        T(lengths.reshape(-1)), T(indices), True, ranks, T(weights)
    )
    actual = layouts.block_bucketize(lengths, indices, np.zeros(features), ranks, weights)
    assert_same((actual.lengths, actual.indices, actual.weights, actual.positions), expected)


@SHAPES
def test_sums_ranges_and_permutes(seed: int, features: int, samples: int) -> None:
    rng, lengths, indices, _ = batch(seed, features, samples)
    flat = T(lengths.reshape(-1))
    for name in ("complete", "exclusive", "inclusive"):
        actual = getattr(layouts, f"{name}_cumsum")(lengths)
        np.testing.assert_array_equal(
            actual, getattr(FBGEMM, f"asynchronous_{name}_cumsum")(flat).numpy()
        )
    offsets = layouts.complete_cumsum(lengths)
    actual = layouts.offsets_range(offsets[:-1], indices.size)
    np.testing.assert_array_equal(
        actual, FBGEMM.offsets_range(T(offsets[:-1].copy()), indices.size).numpy()
    )
    order = rng.permutation(lengths.size)
    np.testing.assert_array_equal(
        layouts.invert_permute(order), FBGEMM.invert_permute(T(order)).numpy()
    )
    target = layouts.complete_cumsum(lengths.reshape(-1)[order])
    expected = FBGEMM.expand_into_jagged_permute(T(order), T(offsets), T(target), indices.size)
    np.testing.assert_array_equal(
        layouts.expand_into_jagged_permute(order, offsets, target), expected.numpy()
    )


@SHAPES
def test_padding_and_selection(seed: int, bags: int, width: int) -> None:
    rng, lengths, _, _ = batch(seed, 1, bags)
    offsets = layouts.complete_cumsum(lengths)
    values = rng.standard_normal((int(offsets[-1]), width)).astype(np.float32)
    for max_length in (1, 3, 6):
        expected = FBGEMM.jagged_to_padded_dense(T(values), [T(offsets)], [max_length], 2.5)
        actual = layouts.jagged_to_padded_dense(values, offsets, max_length, 2.5)
        assert_same([actual], [expected])
        actual = layouts.jagged_to_padded_dense(np.arange(len(values)), offsets, max_length, -1)
        expected = FBGEMM.jagged_1d_to_dense(torch.arange(len(values)), T(offsets), max_length, -1)
        assert_same([actual], [expected])
        dense = rng.standard_normal((bags, max_length, width)).astype(np.float32)
        if max_length >= lengths.max():
            assert_same(
                [layouts.dense_to_jagged(dense, offsets)],
                [FBGEMM.dense_to_jagged(T(dense), [T(offsets)])[0]],
            )
    selected_bags = rng.integers(0, bags, 5)
    if len(values):
        assert_same(
            layouts.jagged_index_select(values, lengths, selected_bags),
            FBGEMM.jagged_index_select(T(values), T(lengths.reshape(-1)), T(selected_bags)),
        )
        rows = rng.integers(0, len(values), 7)
        assert_same(
            [layouts.index_select(values, rows)], [FBGEMM.index_select_dim0(T(values), T(rows))]
        )
    sums = FBGEMM.segment_sum_csr(1, T(offsets), T(values[:, 0].copy())).numpy()
    np.testing.assert_allclose(
        layouts.segment_sum(values[:, :1], offsets)[:, 0], sums, rtol=1e-6, atol=1e-6
    )


@given(st.integers(0, 2**32), st.integers(0, 3))
def test_bounds_check(seed: int, broken: int) -> None:
    rng, lengths, indices, _ = batch(seed, 3, 4, False)
    rows = np.array([41, 7, 30])
    offsets = layouts.complete_cumsum(lengths)
    indices[rng.random(indices.size) < 0.2] = -1
    offsets[rng.integers(0, offsets.size, broken)] = rng.integers(-3, indices.size + 4, broken)
    actual = bounds.bounds_check(rows, np.arange(3), indices, offsets, "warning")
    expected = T(indices.copy())
    expected_offsets = T(offsets.copy())
    FBGEMM.bounds_check_indices(
        T(rows), expected, expected_offsets, 2, torch.zeros(1, dtype=torch.int64)
    )
    np.testing.assert_array_equal(actual.offsets, expected_offsets.numpy())
    if not broken:
        np.testing.assert_array_equal(actual.indices, expected.numpy())


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("alignment", [1, 16])
def test_inference_tables(bits: int, alignment: int) -> None:
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
        IntNBitTableBatchedEmbeddingBagsCodegen,
    )

    rng = np.random.default_rng(bits)
    rows = [20, 9]
    dims = [20, 64]
    tbe = IntNBitTableBatchedEmbeddingBagsCodegen(
        [
            ("", r, d, getattr(SparseType, f"INT{bits}"), EmbeddingLocation.HOST)
            for r, d in zip(rows, dims)
        ],
        pooling_mode=PoolingMode.SUM,
        device="cpu",
        output_dtype=SparseType.FP32,
        row_alignment=alignment,
    )
    tbe.initialize_weights()
    size = sum(r * operators.row_elements(f"nbit{bits}", d, alignment) for r, d in zip(rows, dims))
    codes = rng.integers(0, 256, size, dtype=np.uint8)
    start = 0
    for (weights, _), r in zip(tbe.split_embedding_weights(split_scale_shifts=False), rows):
        table_codes = codes[start : start + weights.numel()].reshape(r, -1)
        table_codes[:, :4] = rng.standard_normal((r, 2)).astype("<f2").view(np.uint8)
        weights.copy_(T(table_codes))
        start += table_codes.size
    lengths = rng.integers(0, 5, 8)
    offsets = layouts.complete_cumsum(lengths)
    indices = np.concatenate([rng.integers(0, rows[b // 4], n) for b, n in enumerate(lengths)])
    actual = operators.lookup(
        codes,
        rows,
        dims,
        [0, 1],
        indices,
        offsets,
        weights_format=f"nbit{bits}",
        row_alignment=alignment,
    )
    expected = tbe(T(indices).int(), T(offsets).int()).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)
