"""Do inference tables give neocpu's bits, FBGEMM's bytes, and its numbers within its error?"""

import contextlib
import io
import itertools
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")

from neocpu.core.errors import ConfigError, IndexRangeError  # noqa: E402
from neocpu.oracle import OPERATORS  # noqa: E402
from neocpu.peers.fbgemm import (  # noqa: E402
    EmbeddingLocation,
    IntNBitTableBatchedEmbeddingBagsCodegen,
)

pytestmark = pytest.mark.filterwarnings("ignore")

FORMATS = ("fp32", "fp16", "int8", "int4", "int2")
# The oracle's name of each format.
ORACLE = {"int8": "nbit8", "int4": "nbit4", "int2": "nbit2"}
ROWS = (9, 5)
HOST = EmbeddingLocation.HOST


def specs(form: str, dims: tuple[int, ...] = (8, 16), location: Any = HOST) -> list[Any]:
    """Two tables of a format."""
    return [("a", ROWS[0], dims[0], form, location), ("b", ROWS[1], dims[1], form, location)]


def fill(module: Any, form: str, seed: int = 0) -> list[Any]:
    """Random rows of reasonable numbers; the bytes (codes, scale and bias) of each table."""
    rng = np.random.default_rng(seed)
    tables = []
    module.initialize_weights()
    for codes, header in module.split_embedding_weights():
        if form in ("fp32", "fp16"):
            dtype = np.dtype({"fp32": np.float32, "fp16": np.float16}[form])
            columns = codes.shape[1] // dtype.itemsize
            values = rng.standard_normal((codes.shape[0], columns)).astype(dtype).view(np.uint8)
        else:
            values = rng.integers(0, 256, codes.shape, dtype=np.uint8)
        scales = rng.uniform(-1, 1, (codes.shape[0], 2)).astype(np.float16).view(np.uint8)
        tables.append(
            (torch.from_numpy(values), None if header is None else torch.from_numpy(scales))
        )
    module.assign_embedding_weights(tables)
    return tables


def batch(seed: int, features: tuple[int, ...] = (1, 0, 0), samples: int = 4) -> Any:
    """(indices, offsets, weights) of features: empty bags, pruned rows."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, len(features) * samples)
    heights = np.repeat([ROWS[t] for t in features], samples)
    indices = [rng.integers(0, height, n) for height, n in zip(heights, lengths)]
    rows = np.concatenate([*indices, np.empty(0, np.int64)]).astype(np.int32)
    rows[rng.random(rows.size) < 0.1] = -1
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    weights = rng.standard_normal(rows.size).astype(np.float32)
    return torch.from_numpy(rows), torch.from_numpy(offsets), torch.from_numpy(weights)


def question(module: Any, form: str, features: tuple[int, ...], call: Any, weighted: bool) -> Any:
    """The oracle's inputs of a call."""
    dtype = {"fp32": np.dtype("<f4"), "fp16": np.dtype([("fp16", "<u2")])}.get(
        form, np.dtype([(ORACLE.get(form, form), "|u1")])
    )
    tables = module.split_embedding_weights(split_scale_shifts=False)
    weights = np.concatenate([rows.numpy().reshape(-1) for rows, _ in tables]).view(dtype)
    indices, offsets, factors = call
    inputs = {
        "weights": weights,
        "rows": np.array(ROWS),
        "dims": np.array([spec[2] for spec in module.embedding_specs]),
        "feature_table": np.array(features),
        "indices": indices.numpy(),
        "offsets": offsets.numpy(),
    }
    return {**inputs, "per_sample_weights": factors.numpy()} if weighted else inputs


@pytest.mark.parametrize("form", FORMATS)
def test_lookups_are_canonical(form: str) -> None:
    for pooling, weighted, alignment in itertools.product(
        ("sum", "mean", "none"), (False, True), (1, 16)
    ):
        if pooling == "none" and weighted:
            continue
        features = (1, 0, 0)
        module = IntNBitTableBatchedEmbeddingBagsCodegen(
            specs(form, (8, 8) if pooling == "none" else (8, 16)),
            list(features),
            pooling_mode=pooling,
            output_dtype="fp32",
            row_alignment=alignment,
        )
        fill(module, form)
        call = batch(alignment)
        answer = module(call[0], call[1], call[2] if weighted else None)
        options = {
            "pooling": pooling,
            "weights_format": ORACLE.get(form, form),
            "row_alignment": alignment,
        }
        inputs = question(module, form, features, call, weighted)
        canonical = OPERATORS["lookup"].run(inputs, options, "reference")["out"]
        assert answer.numpy().tobytes() == canonical.tobytes(), (pooling, weighted, alignment)


def test_fp8_rows_are_decoded_by_their_exponent() -> None:
    module = IntNBitTableBatchedEmbeddingBagsCodegen(
        specs("fp8"), output_dtype="fp32", fp8_exponent_bits=5, fp8_exponent_bias=11
    )
    module.fill_random_weights()
    codes = module.split_embedding_weights()[1][0].numpy().astype(np.int64)
    exponent = (codes >> 2) & 31
    mantissa = codes & 3
    magnitude = np.where(exponent > 0, (4 + mantissa) * 2.0 ** (exponent - 13), mantissa * 2.0**-12)
    numbers = np.where(codes & 128, -magnitude, magnitude)
    out = module(torch.tensor([3, -1, 2, 2]).int(), torch.tensor([0, 2, 4]).int())
    assert (out[0, 8:].numpy() == 2 * numbers[2]).all()


def test_narrow_outputs_and_mixed_formats() -> None:
    tables = [("a", 9, 8, "int8", HOST), ("b", 5, 16, "fp16", HOST), ("c", 5, 4, "int4", HOST)]
    answers = {}
    for output in ("fp32", "fp16", "bf16"):
        module = IntNBitTableBatchedEmbeddingBagsCodegen(
            tables, output_dtype=output, cacheline_alignment=False
        )
        torch.manual_seed(0)
        module.fill_random_weights()
        for _, header in module.split_embedding_weights()[::2]:
            header.copy_(torch.tensor([1.0, -2.0]).half().view(torch.uint8))
        answers[output] = module(torch.arange(3).int(), torch.arange(4).int())
    assert answers["fp16"].equal(answers["fp32"].half())
    assert answers["bf16"].equal(answers["fp32"].bfloat16())


def fbgemms(name: str = "inference") -> Any:
    """A module of FBGEMM's; skips the test where it is not installed."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return pytest.importorskip(
            f"fbgemm_gpu.split_table_batched_embeddings_ops_{name}",
            reason="fbgemm_gpu is not installed (extra `peers`)",
        )


@pytest.mark.parametrize("form", FORMATS)
def test_fbgemm_has_the_same_bytes_and_agrees_within_what_fp32_sums_may_err(form: str) -> None:
    inference = fbgemms()
    from fbgemm_gpu.split_embedding_configs import SparseType as FbgemmSparseType

    features = (0, 1, 1)
    for pooling, weighted in (("sum", False), ("sum", True), ("mean", False)):
        options = {"feature_table_map": list(features), "row_alignment": 16, "device": "cpu"}
        kind = FbgemmSparseType(form)
        fbgemm_module = inference.IntNBitTableBatchedEmbeddingBagsCodegen(
            [(*spec[:3], kind, inference.EmbeddingLocation.HOST) for spec in specs(form)],
            pooling_mode=inference.PoolingMode[pooling.upper()],
            output_dtype=FbgemmSparseType.FP32,
            **options,
        )
        module = IntNBitTableBatchedEmbeddingBagsCodegen(
            specs(form), pooling_mode=pooling, output_dtype="fp32", **options
        )
        tables = fill(module, form)
        fbgemm_module.initialize_weights()
        fbgemm_module.assign_embedding_weights(tables)
        assert module.weights_host.equal(fbgemm_module.weights_host)
        for a, b in zip(
            module.split_embedding_weights_with_scale_bias(2),
            fbgemm_module.split_embedding_weights_with_scale_bias(2),
        ):
            assert all(x is y is None or x.equal(y) for x, y in zip(a, b))
        expected = fbgemm_module.state_dict()
        actual = module.state_dict()
        assert list(actual) == list(expected)
        assert all(actual[k].equal(v) and actual[k].dtype == v.dtype for k, v in expected.items())
        call = batch(7, features)
        arguments = (call[0], call[1], call[2] if weighted else None)
        options = {
            "pooling": pooling,
            "weights_format": ORACLE.get(form, form),
            "row_alignment": 16,
        }
        inputs = question(module, form, features, call, weighted)
        truth = OPERATORS["lookup"].truth(inputs, options)["out"]
        for answer in (module(*arguments), fbgemm_module(*arguments)):
            error = np.abs(answer.numpy().astype(np.float64) - truth.reference)
            assert (error <= truth.bound).all()


def test_pruned_tables_by_array_and_by_hash() -> None:
    """Index 0 of table a is pruned; both features of table a go by its mapping."""
    mapping = torch.tensor([-1, 2, 0, 1])
    answers = []
    for by_array in (True, False):
        module = IntNBitTableBatchedEmbeddingBagsCodegen(
            specs("fp32"),
            [0, 0, 1],
            [mapping, None],
            output_dtype="fp32",
            use_array_for_index_remapping=by_array,
        )
        fill(module, "fp32")
        answers.append(module(torch.tensor([1, 0, 3, 4]).int(), torch.tensor([0, 2, 3, 4]).int()))
    rows = module.split_embedding_weights()[0][0].reshape(-1).view(torch.float32).view(9, 8)
    assert answers[0].equal(answers[1])
    assert answers[0][0, :8].equal(rows[2]) and answers[0][0, 8:16].equal(rows[1])
    with pytest.raises(IndexRangeError, match="4 rows"):
        module.bounds_check_mode_int = 0
        module(torch.tensor([1, 4, 3, 4]).int(), torch.tensor([0, 2, 3, 4]).int())


def test_indices_out_of_range_are_repaired_or_refused() -> None:
    for mode, repaired in (("warning", 0), ("fatal", None), ("none", None)):
        module = IntNBitTableBatchedEmbeddingBagsCodegen(specs("int8"), bounds_check_mode=mode)
        module.fill_random_weights()
        indices = torch.tensor([9, 1])
        if repaired is None:
            with pytest.raises(IndexRangeError):
                module(indices, torch.tensor([0, 1, 2]))
        else:
            module(indices, torch.tensor([0, 1, 2]))
            assert indices[0] == repaired


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_sequences_come_as_they_are_stored(form: str) -> None:
    module = IntNBitTableBatchedEmbeddingBagsCodegen(
        specs(form, (8, 8)), pooling_mode="none", output_dtype=form, row_alignment=16
    )
    fill(module, form)
    out = module(torch.tensor([8, -1, 4]), torch.tensor([0, 2, 3]))
    codes = np.frombuffer(bytes(out.untyped_storage()), np.uint8).reshape(3, -1)
    size = codes.shape[1]
    tables = [rows.numpy() for rows, _ in module.split_embedding_weights(False)]
    assert (codes[0] == tables[0][8, :size]).all() and (codes[2] == tables[1][4, :size]).all()
    assert not codes[1].any()


def test_compiled_lookups_rows_in_place_and_copies() -> None:
    torch._dynamo.reset()
    module = IntNBitTableBatchedEmbeddingBagsCodegen(specs("int4"))
    fill(module, "int4")
    indices = torch.tensor([1, 12, 3])
    offsets = torch.tensor([0, 2, 3])
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    copied = pickle.loads(pickle.dumps(module))
    expected = copied(indices.clone(), offsets)
    assert compiled(indices, offsets).equal(expected) and indices.tolist() == [1, 0, 3]
    assert copied.handle != module.handle
    module.embedding_inplace_update([1], [[3]], [torch.zeros(1, 12, dtype=torch.uint8)])
    assert not compiled(indices, offsets)[0, 8:].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reverse_qparam": True}, "begin with fp16 scale"),
        ({"output_dtype": "int8"}, "without pooling"),
        ({"pooling_mode": "none"}, "same dimension"),
        ({"feature_table_map": [0, 0]}, "needs a feature"),
        ({"device": "cuda"}, "on the CPU"),
    ],
)
def test_refusals_name_the_argument(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        IntNBitTableBatchedEmbeddingBagsCodegen(specs("int4"), **options)
    with pytest.raises(ConfigError, match="HOST"):
        IntNBitTableBatchedEmbeddingBagsCodegen(specs("int4", location=EmbeddingLocation.DEVICE))
    with pytest.raises(ConfigError, match="whole bytes"):
        IntNBitTableBatchedEmbeddingBagsCodegen(specs("int4", (7, 8)))
    with pytest.raises(ConfigError, match="not initialized"):
        IntNBitTableBatchedEmbeddingBagsCodegen(specs("int4")).split_embedding_weights()
