"""Do wires write the bytes of FBGEMM's quantised communication, and read them alike?

Needs the `peers` extra (torch and fbgemm-gpu-cpu); skipped elsewhere. Where ours differ on purpose
(blocks with numbers that are not finite, the division by the scale), the test says so.
"""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the peers extra: torch and fbgemm-gpu-cpu")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("fbgemm_gpu", reason="needs the peers extra: torch and fbgemm-gpu-cpu")
    from fbgemm_gpu.quantize_comm import QuantizedCommCodec
    from fbgemm_gpu.split_embedding_configs import SparseType

from neocpu.parallel.exchange.wire_formats import WireSpec  # noqa: E402
from neocpu.parallel.exchange.wires import Wire, reversed_jobs  # noqa: E402

ROWS = 200
WIDTH = 96
BLOCK = 32
SPECIAL = np.array([65504, 65519.99, 65520, 1e6, 3.39e38, 3.4e38, np.inf, 1e-45, 6e-8], np.float32)


def numbers(special: bool) -> np.ndarray:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((ROWS, WIDTH)) * 2.0 ** rng.integers(-12, 12, (ROWS, 1))
    x = x.astype(np.float32)
    if special:
        x[rng.random(x.shape) < 0.1] = 0.0
        chosen = rng.random(x.shape) < 0.2
        x[chosen] = rng.choice(SPECIAL, int(chosen.sum())) * rng.choice([-1, 1], int(chosen.sum()))
        x[rng.random(x.shape) < 0.02] = np.nan
    return x


def travel(wire: Wire, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(bytes u8[rows, n], numbers) that arrive."""
    size = wire.bytes(x.shape[1])
    jobs = np.array([[0, x.shape[1], 0, size, len(x), x.shape[1]]], np.int64)
    codes = np.empty((len(x), size), np.uint8)
    arrived = np.empty_like(x)
    wire.encode(x, codes, jobs)
    wire.decode(codes, arrived, reversed_jobs(jobs))
    return codes, arrived


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_numbers_are_clamped_and_rounded_to_nearest_even(name: str) -> None:
    x = numbers(special=True)
    codec = QuantizedCommCodec(SparseType.from_dtype(getattr(torch, WORDS[name])))
    encoded = codec.encode(torch.from_numpy(x))
    codes, arrived = travel(Wire(WireSpec(name)), x)
    nan = np.isnan(x)
    expected = encoded.view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(codes.view(np.uint16)[~nan], expected[~nan])
    np.testing.assert_array_equal(arrived, codec.decode(encoded).numpy())


WORDS = {"fp16": "float16", "bf16": "bfloat16"}


def test_fbgemm_divides_by_the_loss_scale_in_fp16_and_we_in_fp32() -> None:
    """Its codec divides the fp16 codes before it widens them, so subnormals are rounded again."""
    x = np.full((1, 1), 3 * 2.0**-27, np.float32)
    codec = QuantizedCommCodec(SparseType.FP16, loss_scale=1024.0)
    theirs = codec.decode(codec.encode(torch.from_numpy(x))).numpy()
    _, ours = travel(Wire(WireSpec("fp16", scale=1024.0)), x)
    assert ours == x
    assert theirs != x
    normal = numbers(special=False)
    _, ours = travel(Wire(WireSpec("fp16", scale=4.0)), normal)
    codec = QuantizedCommCodec(SparseType.FP16, loss_scale=4.0)
    theirs = codec.decode(codec.encode(torch.from_numpy(normal))).numpy()
    far = np.abs(normal) > 1e-3
    np.testing.assert_array_equal(ours[far], theirs[far])


def test_int8_blocks() -> None:
    x = numbers(special=False)
    codec = QuantizedCommCodec(SparseType.INT8)
    context = codec.create_context()
    assert context.row_dim == BLOCK == WireSpec().block
    encoded = codec.encode(torch.from_numpy(x), context)
    codes, arrived = travel(Wire(WireSpec("int8")), x)
    assert codes.size == codec.calc_quantized_size(x.size, context)
    np.testing.assert_array_equal(codes.reshape(-1), encoded.numpy())
    decoded = codec.decode(encoded, context).numpy()
    np.testing.assert_array_equal(arrived.reshape(-1), decoded)


def test_int4_blocks() -> None:
    x = numbers(special=False)
    blocks = torch.from_numpy(x.reshape(-1, BLOCK))
    encoded = torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(blocks, 4)
    codes, arrived = travel(Wire(WireSpec("int4")), x)
    np.testing.assert_array_equal(codes.reshape(encoded.shape), encoded.numpy())
    decoded = torch.ops.fbgemm.FusedNBitRowwiseQuantizedSBHalfToFloat(encoded, 4)
    np.testing.assert_array_equal(arrived.reshape(-1, BLOCK), decoded.numpy())


@pytest.mark.parametrize("backward", [False, True])
def test_fp8_blocks(backward: bool) -> None:
    """Rows of fp8 have no operator on CPUs; their codes do, and the scale is one division."""
    x = numbers(special=False).reshape(-1, BLOCK)
    bits, bias, limit = (5, 31, 0.875) if backward else (4, 15, 0.9375)
    largest = np.abs(x).max(1, keepdims=True)
    scale = np.float32(limit) / (np.float32(1e-20) + largest)
    expected = torch.ops.fbgemm.FloatToHFP8Quantized(torch.from_numpy(x * scale), bits, bias, limit)
    codes, arrived = travel(Wire(WireSpec("fp8"), backward), x)
    np.testing.assert_array_equal(codes[:, :BLOCK], expected.numpy())
    np.testing.assert_array_equal(codes[:, BLOCK:].view(np.float32), scale * [[1, 0]])
    decoded = torch.ops.fbgemm.HFP8QuantizedToFloat(expected, bits, bias).numpy()
    np.testing.assert_array_equal(arrived, decoded / scale)


def test_a_number_that_is_not_finite_spoils_its_block() -> None:
    """FBGEMM's int8 lets a NaN vanish; here a run that diverges is told by its loss."""
    x = numbers(special=False)
    x[3, 40] = np.nan
    x[5, 70] = np.inf
    for wire in (Wire(WireSpec("int8")), Wire(WireSpec("int4")), Wire(WireSpec("fp8"))):
        _, arrived = travel(wire, x)
        spoiled = np.zeros(x.shape, bool)
        spoiled[3, 32:64] = True
        spoiled[5, 64:96] = True
        np.testing.assert_array_equal(np.isnan(arrived), spoiled)
    codec = QuantizedCommCodec(SparseType.INT8)
    context = codec.create_context()
    theirs = codec.decode(codec.encode(torch.from_numpy(x), context), context)
    assert not np.isnan(theirs.numpy().reshape(x.shape)[3]).all()


def test_fp8_rows_by_fbgemms_names() -> None:
    """FBGEMM has these operators on GPUs only; their bytes are those of the oracle's `quantize`."""
    from neocpu.oracle.ops import OPERATORS as ORACLE
    from neocpu.peers.fbgemm import OPERATORS

    x = numbers(special=False)[:, :30]
    for forward, form in ((True, "fp8_row_forward"), (False, "fp8_row_backward")):
        codes = OPERATORS["FloatToFP8RowwiseQuantized"].function(torch.from_numpy(x), forward)
        expected = ORACLE["quantize"].run({"x": x}, {"format": form}, "reference")["codes"]
        np.testing.assert_array_equal(codes.numpy(), expected)
        read = OPERATORS["FP8RowwiseQuantizedToFloat"].function(codes, forward)
        options = {"format": form, "columns": 32}
        numbers_of_codes = ORACLE["dequantize"].run({"codes": expected}, options, "reference")
        np.testing.assert_array_equal(read.numpy(), numbers_of_codes["out"])
        half = OPERATORS["FP8RowwiseQuantizedToFloat"].function(codes, forward, 1)
        assert torch.equal(half, read.half())
