"""Where do FBGEMM's and TorchRec's own answers surprise? Each claim is tried in a few lines.

    python examples/peer_differences.py

Needs torch and fbgemm_gpu (CPU); the last two claims need TorchRec. Prints for each claim what was
observed, and whether that confirms it. docs/peer-differences.md discusses the numbers.
"""

import warnings
from collections.abc import Callable
from typing import Any

import _needs  # noqa: F401, what to install

warnings.simplefilter("ignore")

import torch  # noqa: E402
from fbgemm_gpu import split_embedding_configs as configs  # noqa: E402
from fbgemm_gpu import split_table_batched_embeddings_ops_training as training  # noqa: E402
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (  # noqa: E402
    BoundsCheckMode,
    ComputeDevice,
    EmbeddingLocation,
    PoolingMode,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (  # noqa: E402
    CounterBasedRegularizationDefinition,
    CounterWeightDecayMode,
    WeightDecayMode,
)

# What was observed, and whether it confirms the claim.
Observation = tuple[str, bool]
OPS = torch.ops.fbgemm
TYPES = configs.SparseType
KINDS = configs.EmbOptimType
# All claims, in order.
CLAIMS: list[tuple[str, Callable[[], Observation]]] = []


def claim(text: str) -> Callable[[Callable[[], Observation]], Callable[[], Observation]]:
    """Register a function that tries the claim `text`."""

    def add(function: Callable[[], Observation]) -> Callable[[], Observation]:
        CLAIMS.append((text, function))
        return function

    return add


def table(
    rows: int = 8, features: list[int] | None = None, value: float = 1.0, **options: Any
) -> Any:
    """An FBGEMM module with one table of 4 columns, filled with one number."""
    specs = [(rows, 4, EmbeddingLocation.HOST, ComputeDevice.CPU)]
    module = training.SplitTableBatchedEmbeddingBagsCodegen(
        specs, feature_table_map=features, **options
    )
    module.split_embedding_weights()[0].fill_(value)
    return module


def step(
    module: Any, indices: list[int], offsets: list[int], weights: Any = None, grad: float = 1.0
) -> torch.Tensor:
    """Look up and train once; returns the pooled output."""
    out = module(torch.tensor(indices), torch.tensor(offsets), weights)
    out.backward(torch.full_like(out, grad))
    return out.detach()


def first(module: Any, row: int = 0) -> float:
    """The first number of a row."""
    return float(module.split_embedding_weights()[0][row, 0])


@claim("weight decay is ignored on fp32 tables of one feature, and obeyed on shared ones")
def weight_decay() -> Observation:
    options = {
        "optimizer": KINDS.EXACT_ROWWISE_ADAGRAD,
        "learning_rate": 0.1,
        "weight_decay": 0.5,
        "weight_decay_mode": WeightDecayMode.DECOUPLE,
    }
    alone = table(**options)
    plain = table(**{**options, "weight_decay": 0.0})
    shared = table(features=[0, 0], **options)
    step(alone, [0], [0, 1])
    step(plain, [0], [0, 1])
    step(shared, [0], [0, 1, 1])
    seen = (
        f"row 0 after one step: alone {first(alone):.4f}, without decay {first(plain):.4f}, "
        f"shared {first(shared):.4f}"
    )
    return seen, first(alone) == first(plain) and first(shared) < first(plain) - 0.01


@claim("max_norm is ignored on the CPU")
def max_norm() -> Observation:
    module = table(
        value=10.0, max_norm=1.0, learning_rate=0.0, optimizer=KINDS.EXACT_ROWWISE_ADAGRAD
    )
    step(module, [0], [0, 1])
    norm = float(module.split_embedding_weights()[0][0].norm())
    return f"max_norm 1, norm of the row after its update {norm:.1f}", norm > 1.5


@claim("stochastic rounding is ignored on the CPU: small steps on fp16 rows are lost")
def stochastic_rounding() -> Observation:
    options = {
        "weights_precision": TYPES.FP16,
        "stochastic_rounding": True,
        "learning_rate": 2.0**-13,
    }
    module = table(rows=1000, **options)
    rows = list(range(1000))
    for _ in range(8):
        step(module, rows, list(range(1001)))
    moved = int((module.split_embedding_weights()[0] != 1).sum())
    return f"8 steps of a fourth of an ulp each on 4000 elements: {moved} moved", moved == 0


def weighted_mean(output: Any) -> tuple[float, float]:
    """(pooled output, change of the row) of a MEAN bag of two rows of ones, weights 1 and 3.

    SGD with learning rate 1, gradient 1.
    """
    module = table(pooling_mode=PoolingMode.MEAN, learning_rate=1.0, output_dtype=output)
    out = step(module, [0, 0], [0, 2], torch.tensor([1.0, 3.0]))
    return float(out[0, 0]), 1 - first(module)


@claim("weighted MEAN divides by the bag's length in the lookup, but not in its gradient")
def weighted_mean_gradient() -> Observation:
    out, change = weighted_mean(TYPES.FP32)
    text = f"weights 1 and 3, rows of ones: result {out}, gradient of the row {change}"
    return f"{text} (half of 4 would be 2)", (out, change) == (2, 4)


@claim("weighted MEAN with fp16 output does not divide at all")
def weighted_mean_output() -> Observation:
    fp16 = weighted_mean(TYPES.FP16)[0]
    fp32 = weighted_mean(TYPES.FP32)[0]
    return f"fp32 output {fp32}, fp16 output {fp16}", fp16 == 2 * fp32


@claim("counter regularisation with its default half-life -1: weight decay makes rows grow")
def counter_decay() -> Observation:
    module = table(
        optimizer=KINDS.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.1,
        weight_decay=0.5,
        weight_decay_mode=WeightDecayMode.COUNTER,
        counter_based_regularization=CounterBasedRegularizationDefinition(
            counter_weight_decay_mode=CounterWeightDecayMode.DECOUPLE
        ),
    )
    step(module, [0], [0, 1], grad=1e-20)
    value = first(module)
    return f"a row of ones, gradient (nearly) 0, after one step: {value:.4f}", value > 1


@claim("NFP8 becomes MX4 on the way to an integer and back, and MX4 an error")
def enums() -> Observation:
    nfp8 = TYPES.from_int(TYPES.NFP8.as_int())
    try:
        mx4 = str(TYPES.from_int(TYPES.MX4.as_int()))
    except ValueError as error:
        mx4 = f"ValueError({error})"
    return (
        f"from_int(NFP8.as_int()) is {nfp8}; from_int(MX4.as_int()) is {mx4}",
        nfp8 is not TYPES.NFP8,
    )


def int8(row: list[float]) -> list[float]:
    """A row, written as 8-bit codes and read back."""
    codes = OPS.FloatToFused8BitRowwiseQuantized(torch.tensor([row]))
    return OPS.Fused8BitRowwiseQuantizedToFloat(codes)[0].tolist()


@claim("a NaN vanishes in int8 rows")
def nan_vanishes() -> Observation:
    back = int8([1.0, float("nan"), 2.0, 3.0])
    text = ", ".join(f"{x:.3g}" for x in back)
    return f"1, nan, 2, 3 read back: {text}", not any(x != x for x in back)


@claim("int8 rows of a small range lose most of it (eps 1e-8 beside the range)")
def int8_eps() -> Observation:
    back = int8([0.0, 1e-9, 2e-9, 3e-9])
    error = (3e-9 - max(back)) / 3e-9
    return f"largest of 0 … 3e-9 read back: {max(back):.2g}, {error:.0%} too small", error > 0.5


@claim("int8 rows: the last D mod 8 columns are read by another formula than the others")
def int8_tail() -> Observation:
    scale, bias = torch.tensor([1 - 2.0**-17, 2.0**-60])
    row = torch.cat(
        [torch.full((9,), 255, dtype=torch.uint8), torch.stack([scale, bias]).view(torch.uint8)]
    )
    back = OPS.Fused8BitRowwiseQuantizedToFloat(row[None])[0]
    return (
        f"nine equal codes: columns 0 to 7 {float(back[0]):.9g}, column 8 {float(back[8]):.9g}",
        bool(back[0] != back[8]),
    )


@claim("int4 rows whose smallest number fp16 cannot hold become NaN or infinite")
def int4_range() -> Observation:
    x = torch.tensor([[-1e5] + [0.0] * 7])
    back = OPS.FusedNBitRowwiseQuantizedSBHalfToFloat(
        OPS.FloatToFusedNBitRowwiseQuantizedSBHalf(x, 4), 4
    )
    count = int((~back.isfinite()).sum())
    return f"a row of -1e5 and seven 0 read back: {count} of 8 are not finite", count > 0


@claim("a NaN can become -0 in FloatToBfloat16Quantized")
def bf16_nan() -> Observation:
    x = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    back = float(OPS.Bfloat16QuantizedToFloat(OPS.FloatToBfloat16Quantized(x)))
    return f"NaN 0x7fffffff reads back as {back}", back == 0


@claim("-1, a pruned row to the bounds check, is refused by the training lookup")
def minus_one() -> Observation:
    rows = torch.tensor([8])
    indices = torch.tensor([0, -1])
    offsets = torch.tensor([0, 2])
    warning = torch.zeros(1, dtype=torch.int64)
    OPS.bounds_check_indices(rows, indices, offsets, BoundsCheckMode.FATAL.value, warning)
    try:
        step(table(), [0, -1], [0, 2])
    except RuntimeError as error:
        return (
            f"FATAL check passes {indices.tolist()}; lookup: {str(error).splitlines()[0][:60]}",
            True,
        )
    return "both take it", False


@claim("-1 becomes a large row of the last rank's table in block_bucketize_sparse_features")
def minus_one_bucketized() -> Observation:
    lengths = torch.tensor([1])
    indices = torch.tensor([-1])
    bucketized = OPS.block_bucketize_sparse_features(
        lengths, indices, False, False, torch.tensor([5]), 2
    )
    rank = int(bucketized[0].nonzero()[0, 0])
    return f"10 rows on 2 ranks: -1 goes to rank {rank} as row {int(bucketized[1])}", int(
        bucketized[1]
    ) > 10


@claim("an index out of range is rewritten to 0 in the caller's tensor, and trains row 0")
def rewritten() -> Observation:
    module = table(learning_rate=0.5, bounds_check_mode=BoundsCheckMode.IGNORE)
    indices = torch.tensor([3, 99])
    module(indices, torch.tensor([0, 2])).sum().backward()
    value = first(module)
    text = f"[3, 99] is {indices.tolist()} afterwards; row 0 went from 1 to {value}"
    return text, bool(indices[1] == 0) and value < 1


@claim("an index out of range trains another row when its table is cut by rows")
def sharded_outside() -> Observation:
    lengths = torch.tensor([1])
    indices = torch.tensor([37])
    bucketized = OPS.block_bucketize_sparse_features(
        lengths, indices, False, False, torch.tensor([5]), 2
    )
    rank = int(bucketized[0].nonzero()[0, 0])
    row = int(bucketized[1])
    seen = (
        f"10 rows, 2 ranks: 37 goes to rank {rank} as {row}; clamped there to row 0, which is "
        f"row {5 * rank} of the table"
    )
    return seen + "; uncut: row 0", rank == 1 and row >= 5


@claim("`iter` counts forward passes, evaluation included")
def iterations() -> Observation:
    module = table(optimizer=KINDS.EXACT_ROWWISE_ADAGRAD)
    module.eval()
    with torch.no_grad():
        for _ in range(3):
            module(torch.tensor([0]), torch.tensor([0, 1]))
    return f"after three evaluations and no update: {int(module.iter)}", int(module.iter) == 3


@claim(
    "rows of a shared table whose features are not neighbours in feature_table_map are updated "
    "twice"
)
def apart() -> Observation:
    sums_of_squares = []
    for order in ([0, 0, 1], [0, 1, 0]):
        specs = [(8, 4, EmbeddingLocation.HOST, ComputeDevice.CPU)] * 2
        options = {"optimizer": KINDS.EXACT_ADAGRAD, "feature_table_map": order}
        module = training.SplitTableBatchedEmbeddingBagsCodegen(specs, **options)
        step(module, [0, 0, 0], [0, 1, 2, 3])
        sums_of_squares.append(float(module.split_optimizer_states()[0][0][0, 0]))
    neighbours, separate = sums_of_squares
    text = f"sum of squares {neighbours} as neighbours, {separate} apart"
    return f"two lookups of row 0, gradients of ones: {text}", neighbours != separate


@claim("Adam, LAMB and others are refused on the CPU, and so are bf16 rows and odd dimensions")
def refused() -> Observation:
    requests = {
        "ADAM": {"optimizer": KINDS.ADAM},
        "LAMB": {"optimizer": KINDS.LAMB},
        "LARS_SGD": {"optimizer": KINDS.LARS_SGD},
        "bf16 rows": {"weights_precision": TYPES.BF16},
    }
    refused_names = []
    for name, options in requests.items():
        try:
            step(table(**options), [0], [0, 1])
        except (AssertionError, RuntimeError):
            refused_names.append(name)
    try:
        training.SplitTableBatchedEmbeddingBagsCodegen(
            [(8, 5, EmbeddingLocation.HOST, ComputeDevice.CPU)]
        )
    except AssertionError:
        refused_names.append("5 columns")
    return f"refused: {', '.join(refused_names)}", len(refused_names) == len(requests) + 1


@claim(
    "TorchRec's row-wise shards divide a weighted MEAN by the sum of the weights, others by the "
    "length"
)
def torchrec_mean() -> Observation:
    weighted = _divisor(torch.tensor([1.0, 3.0]))
    plain = _divisor(None)
    return (
        f"bag of two, weights 1 and 3: weighted {weighted:.7g}, unweighted {plain:.7g}",
        weighted > 3 > plain,
    )


@claim("TorchRec's row-wise shards add 1e-6 to the divisor of MEAN")
def torchrec_epsilon() -> Observation:
    divisor = _divisor(None)
    return f"divisor of a bag of two: {divisor:.7g}", divisor != 2


def _divisor(weights: Any) -> float:
    """The divisor of a MEAN bag of two lookups on TorchRec's row-wise shards."""
    from torchrec.distributed import embeddingbag as bags

    divisor = bags._create_mean_pooling_divisor(
        lengths=torch.tensor([2]),
        keys=["f"],
        offsets=torch.tensor([0, 2]),
        stride=1,
        stride_per_key=[1],
        dim_per_key=torch.tensor([1]),
        pooling_type_to_rs_features={"SUM": [], "MEAN": ["f"]},
        embedding_names=["f"],
        embedding_dims=[1],
        variable_batch_per_feature=False,
        kjt_inverse_order=torch.tensor([0]),
        kjt_key_indices={"f": 0},
        kt_key_ordering=torch.tensor([0]),
        weights=weights,
    )
    return float(divisor)


def main() -> int:
    """Try all claims and print the results; 1 if one was not confirmed."""
    import fbgemm_gpu

    print(f"fbgemm_gpu {fbgemm_gpu.__version__}, torch {torch.__version__}\n")
    unconfirmed = 0
    for number, (text, function) in enumerate(CLAIMS, 1):
        try:
            seen, confirmed = function()
        except Exception as error:
            seen = f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
            confirmed = False
        unconfirmed += not confirmed
        print(
            f"{number:2}  {'confirmed    ' if confirmed else 'NOT CONFIRMED'}  "
            f"{text}\n{'':19}{seen}"
        )
    print(f"\n{len(CLAIMS) - unconfirmed} of {len(CLAIMS)} confirmed")
    return int(unconfirmed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
