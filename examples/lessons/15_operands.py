"""
15. Small operands: what a matrix product may forget
====================================================

Accelerators multiply numbers of 16 or 8 bits many times as fast as fp32, and add the products in
fp32. So operands are rounded before every product of the MLPs. What can a training lose by it?
"""

from lesson import np, plt, show

from neocpu.core.codecs import LAYOUTS, ROUNDINGS
from neocpu.kernels.dense.operands import round_operand
from neocpu.kernels.operands import OperandFormat
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.model.layout import ModelLayout
from neocpu.train.model.precision.keys import PrecisionKeys


def rounded(x, form, rounding="nearest"):
    """The numbers of a small float, as fp32 numbers."""
    numbers = np.empty(x.shape, np.float32)
    operand = OperandFormat(LAYOUTS[form], np.float32(1), np.float32(np.inf))
    round_operand(x.astype(np.float32), operand, ROUNDINGS[rounding], numbers, False)
    return numbers


# %%
# **Roundings.** Sums of products of positive numbers, as behind a ReLU, more and more of them.
# To nearest, half of the errors are up and half are down: they cancel. Bits that are cut off always
# make a number smaller, so the error stays, however many products are added: from some 64 on fp8 to
# nearest is closer than bf16 cut off.

LENGTHS = [4**k for k in range(1, 8)]
OPERANDS = (("fp16", "nearest"), ("bf16", "nearest"), ("fp8_e4m3", "nearest"), ("bf16", "truncate"))
rng = np.random.default_rng(15)
pairs = rng.random((2, 64, LENGTHS[-1]), np.float32)
exact = np.cumsum(np.prod(pairs, axis=0, dtype=np.float64), axis=1)
errors = {}
for operand in OPERANDS:
    products = np.prod([rounded(x, *operand) for x in pairs], axis=0, dtype=np.float64)
    errors[operand] = (np.cumsum(products, axis=1) / exact - 1)[:, np.array(LENGTHS) - 1]
    print(f"{' '.join(operand):16} {errors[operand][:, -1].mean():+.5f} in the mean of long sums")

# %%
# **Weights.** 300 short steps. Master weights are fp32, and rounded anew for every product.
# Split-SGD keeps the same 32 bits in two halves, and products read the upper one, which is the
# number with its lower bits cut off. Where only bf16 numbers are kept, an update of less than half
# a unit in the last place is lost, unless it is rounded by chance.

x = rng.standard_normal((256, 8), np.float32)
targets = np.tanh(x @ rng.standard_normal((8, 6), np.float32)).sum(axis=1)


def train(*keys, **scaling):
    """Losses and loss scales of all steps."""
    numbers = PrecisionKeys(*keys, **scaling)
    model = Dlrm(ModelLayout(8, (), (32, 16), (16, 1), "cat", loss="mse", precision=numbers))
    optimizer = DenseOptimizer(SparseOptimizer("sgd", learning_rate=0.002), model.flat)
    optimizer.settle = model.settle
    E, losses, scales = np.empty((len(x), 16), np.float32), [], []
    for step in range(1, 301):
        model.precision.begin(step, 0, len(x))
        scales.append(float(model.precision.loss_scale))
        model.forward_bottom(x, E)
        model.forward_top(E)
        losses.append(float(model.loss_gradient(targets, len(x))[1].mean()))
        model.backward()
        gradient = model.weight_gradient_node(np.array([0, len(x)]), np.empty_like(model.flat))
        if np.isfinite(gradient).all():
            optimizer.step(gradient, step)
            model.precision.end(model.precision.peaks[None])
        else:
            model.precision.overflowed()
    return losses, scales


runs = {
    "fp32": train(),
    "bf16, master weights": train("bf16"),
    "bf16, split": train("bf16", "nearest", "split"),
    "bf16 only": train("bf16", "nearest", "none"),
    "bf16 only, stochastic": train("bf16", "stochastic", "none"),
    "fp16, dynamic loss scale": train("fp16", init_scale=2.0**30, growth_interval=40),
    "fp8, delayed scales": train("fp8"),
}
for name, (losses, _) in runs.items():
    print(f"{name:24} loss {losses[0]:.3f} -> {losses[-1]:.3f}")

# %%
# **Scales.** Gradients of rare clicks, in a mean over 65,536 samples. The smallest number of fp16
# is 2^-24; that of e5m2, which has as many exponents in 8 bits, is 2^-16. If the loss is multiplied
# by S first, so are all gradients: too small an S loses numbers, with too large a one they
# overflow. bf16 has the exponents of fp32, and needs none.
#
# The right S is found by trying: after an overflow the step is left out and S is halved, after 40
# good steps it is doubled. Each tensor of fp8 has a scale of its own, from its largest numbers in
# the steps before.

chance = 1 / (1 + np.exp(rng.normal(6, 2, (1, 1 << 16))))
g = (chance - (rng.random(chance.shape) < chance)) / chance.size
SCALES, spoilt = 2.0 ** np.arange(0, 45, 2), {}
for form in ("bf16", "fp16", "fp8_e5m2"):
    scaled = [rounded(g * scale, form) for scale in SCALES]
    spoilt[form] = [float(((x == 0) | np.isinf(x)).mean()) for x in scaled]
    print(f"{form:8} spoils {spoilt[form][0]:.0%} of a gradient, {min(spoilt[form]):.0%} if scaled")
print("log2 of the dynamic scale:", *np.log2(runs["fp16, dynamic loss scale"][1][::75]))

# %%
# Left: error of sums. Middle: only the run that loses updates differs. Right: where scales fit.

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 4))
for operand, each in errors.items():
    left.loglog(LENGTHS, np.sqrt((each**2).mean(axis=0)), ".-", label=" ".join(operand))
left.set(xlabel="products in a sum", ylabel="relative error")
for name, style in zip(runs, ("k-", "-", ":", "-", "--")):
    middle.semilogy(runs[name][0], style, label=name, lw=1.2)
middle.set(xlabel="steps", ylabel="loss")
for name, shares in spoilt.items():
    right.plot(np.log2(SCALES), shares, ".-", label=name)
right.set(xlabel="log2 of the loss scale", ylabel="share of a gradient that is spoilt")
for axes in (left, middle, right):
    axes.legend(fontsize=8)
show("15_operands")

# %%
# **Read on.** Twin ``neocpu/kernels/twins/dense/operands.py``, kernel
# ``neocpu/kernels/dense/operands.py``, who knows step and scales
# ``neocpu/train/model/precision/operands.py``, tests ``tests/test_precision.py``; what it costs on
# a real log is in ``docs/precision.md``.
#
# **Exercise.** How long must steps be for weights of bf16 alone to follow? Try ten times the rate.
# Then make the targets a thousand times as large in the middle of the run with fp8: in how many
# steps do its scales fit again?
