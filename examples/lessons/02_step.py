"""
2. One DLRM step in twins
=========================

A whole training step in NumPy, with the twins that define it: pool the bags, pass the dense
features through the bottom layer, take dot products of all pairs of vectors, score, and go back
through each of them (Neo's model; Naumov et al., 2019). Then ask finite differences.
"""

from lesson import COLORS, np, plt, show

from neocpu.kernels.operands import Bags, Entries, Lines
from neocpu.kernels.twins.dense import gemm, interaction, loss
from neocpu.kernels.twins.dense.model import logits, mean_loss
from neocpu.kernels.twins.rows import lookup

F32 = np.float32

# %%
# 64 samples of 3 dense features and two bags of two lookups each, in tables of 50 rows by D = 4.

B, D = 64, 4
rng = np.random.default_rng(7)
dense = rng.standard_normal((B, 3)).astype(F32)
rows = rng.integers(0, 50, 2 * B * 2)
labels = (rng.random(B) < 0.3).astype(F32)
weights = {
    "tables": (rng.standard_normal(2 * 50 * D) / 4).astype(F32),
    "bottom": (rng.standard_normal((D, 3)) / 2).astype(F32),
    "top": (rng.standard_normal((1, D + 3)) / 2).astype(F32),
}
bags = Bags(np.arange(0, rows.size + 1, 2), rows, np.empty(0, F32))
two = np.arange(2)
entries = Entries(two * 50 * D, np.full(2, D), np.full(2, D), np.arange(3) * B)
lines = Lines(place=D + two * D, pitch=np.full(2, 3 * D))


# %%
# Forward and backward. ``e`` has three vectors of each sample: the bottom layer's, two pooled ones.


def step(weights):
    """Mean loss, and the gradient of each weight."""
    e = np.zeros((B, 3 * D), F32)
    lookup.pooled_rows(weights["tables"], entries, bags, False, lines, e.reshape(-1))
    x = np.empty((B, D), F32)
    gemm.layer(dense, weights["bottom"], np.zeros(D, F32), True, x)
    e[:, :D] = x
    features = np.empty((B, D + 3), F32)
    interaction.dot_forward(e, D, False, features)
    logit = np.empty((B, 1), F32)
    gemm.layer(features, weights["top"], np.zeros(1, F32), False, logit)
    prediction, gradient, losses = np.empty((3, B), F32)
    loss.bce(logit[:, 0], labels, B, prediction, gradient, losses)

    out = {name: np.zeros_like(array) for name, array in weights.items()}
    leaves = np.arange(0, B + 1, B // 4)
    g = gradient[:, None]
    gemm.weight_gradient(g, features, leaves, out["top"], np.empty(1, F32))
    g_features = np.empty_like(features)
    gemm.input_gradient(g, weights["top"], np.empty((0, 0), F32), g_features)
    g_e = np.empty_like(e)
    interaction.dot_backward(e, g_features, D, False, g_e)
    g_x = np.where(x > 0, g_e[:, :D], F32(0))
    gemm.weight_gradient(g_x, dense, leaves, out["bottom"], np.empty(D, F32))
    for k in two:  # a row's gradient is the sum over the bags that it is in
        lookups = rows[2 * B * k : 2 * B * (k + 1)]
        table = out["tables"].reshape(2, 50, D)[k]
        np.add.at(table, lookups, np.repeat(g_e[:, D * (k + 1) : D * (k + 2)], 2, axis=0))
    return losses.mean(), out


# %%
# A second opinion in fp64, with nothing in common: does it slope as the gradient says?


def plain_loss(weights):
    """Mean loss by the plain formula."""
    tables = weights["tables"].astype(float).reshape(2, 50, D)
    pooled = [tables[k][rows.reshape(2, B, 2)[k]].sum(axis=1) for k in two]
    names = {"bottom.0": "bottom", "top.0": "top"}
    model = {f"{key}.weight": weights[name].astype(float) for key, name in names.items()}
    model |= {f"{key}.bias": np.zeros(len(weights[name])) for key, name in names.items()}
    return mean_loss(logits(model, dense.astype(float), pooled, "dot", False), labels, "bce")


mean, gradients = step(weights)
slopes = {name: np.zeros(array.size) for name, array in weights.items()}
for name, array in weights.items():
    for i in range(array.size):
        for sign in (1, -1):
            moved = array.astype(float)
            moved.flat[i] += sign * 1e-5
            slopes[name][i] += sign * plain_loss(weights | {name: moved}) / 2e-5
difference = max(np.abs(slopes[name] - gradients[name].ravel()).max() for name in weights)
print(f"loss {mean:.6f}, in fp64 {plain_loss(weights):.6f}; gradients differ by {difference:.1e}")

# %%
# Every weight is a dot; on the diagonal both agree.

figure, axes = plt.subplots()
for name, color in zip(weights, COLORS):
    axes.plot(slopes[name], gradients[name].ravel(), "o", ms=4, color=color, label=name, alpha=0.7)
axes.axline((0, 0), slope=1, color=COLORS[5], lw=1, zorder=0)
axes.set(xlabel="slope of the loss, finite difference in fp64", ylabel="gradient of the twins")
axes.legend()
show("02_step")

# %%
# **Read on.** Twins ``neocpu/kernels/twins/rows/lookup.py``,
# ``neocpu/kernels/twins/dense/gemm.py``, ``neocpu/kernels/twins/dense/interaction.py``,
# ``neocpu/kernels/twins/dense/loss.py``; plain ``neocpu/kernels/plain/dense/gemm.py``; kernels
# ``neocpu/kernels/dense/gemm.py`` and ``neocpu/kernels/dense/interaction.py``; the step that trains
# ``neocpu/train/step/step.py``; tests ``tests/test_torch.py`` (the same step in torch) and
# ``tests/test_model.py``.
#
# **Exercise.** Subtract 0.5 times the gradients from the weights and take a second step: does the
# loss fall? Then leave out the ReLU's ``np.where`` and see which dots leave the diagonal.
