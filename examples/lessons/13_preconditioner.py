"""
13. A preconditioner: two parameters in a valley
================================================

AdaGrad gives every parameter a rate of its own. That helps where the valley of a loss lies along an
axis. In a valley that lies across the axes no rates of single parameters help: both must move
together. Shampoo keeps what gradients had in common, and steps along the valley.
"""

from lesson import COLORS, np, plt, show

from neocpu.parallel.transport.comm import SingleComm
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer, DenseRule
from neocpu.tables.specs.directions import ShampooKeys
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.train.step.shampoo import Shampoo

# %%
# The loss is half of wᵀ A w. One direction is a hundred times as steep as the other; they are the
# axes, or the two diagonals.

STEPS, START = 60, np.float32([0.4, 2.0])
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 1.9, 3.0)
curve = np.diag(np.float32([1, 0.01]))
turn = np.float32([[1, -1], [1, 1]]) / np.sqrt(np.float32(2))
valleys = {"along an axis": curve, "across the axes": turn @ curve @ turn.T}


def loss(path, A):
    """Of all points of a path, f32[n, 2]."""
    return 0.5 * ((path @ A) * path).sum(axis=-1)


def walk(rule, every, rate, A):
    """Parameters after each step, f32[STEPS + 1, 2]."""
    w = START.copy()
    optimizer = SparseOptimizer(rule, learning_rate=rate)
    steps = DenseOptimizer(optimizer, w)
    if every:
        keys = ShampooKeys(every=every)
        steps = Shampoo(SingleComm(), {"w": w.shape}, keys, DenseRule(optimizer, w))
    path = [w.copy()]
    for step in range(1, STEPS + 1):
        steps.step(A @ w, step)
        path.append(w.copy())
    return np.array(path)


# %%
# Each method has the rate with which it gets lowest.

methods = {"SGD": ("sgd", 0), "AdaGrad": ("adagrad", 0), "Shampoo": ("adagrad", 1)}
paths = {
    (valley, name): min((walk(*method, rate, A) for rate in RATES), key=lambda p: loss(p[-1], A))
    for valley, A in valleys.items()
    for name, method in methods.items()
}
ends = {key: float(loss(path[-1], valleys[key[0]])) for key, path in paths.items()}
for (valley, name), end in ends.items():
    print(f"{name:8} {valley:15} loss {end:.1e}")

# %%
# Along an axis AdaGrad does well; across the axes it is no better than SGD. Shampoo finds the
# same way down in both: for a vector it is AdaGrad in whatever axes the gradients have.

figure, (left, right) = plt.subplots(1, 2)
grid = np.linspace(-2, 2.2, 120, dtype=np.float32)
points = np.stack(np.meshgrid(grid, grid), axis=-1)
A = valleys["across the axes"]
left.contour(grid, grid, loss(points, A), np.geomspace(1e-3, 3, 9), colors=COLORS[5], alpha=0.4)
for name, color in zip(methods, (COLORS[3], COLORS[1], COLORS[0])):
    path = paths["across the axes", name]
    left.plot(*path.T, ".-", color=color, lw=1, ms=3)
    right.semilogy(loss(path, A) + 1e-20, color=color, label=name)
left.set(xlabel="first parameter", ylabel="second parameter", title="across the axes")
right.set(xlabel="steps", ylabel="loss")
right.legend()
show("13_preconditioner")

# %%
# **Read on.** Twin ``neocpu/kernels/twins/dense/shampoo.py``, kernel
# ``neocpu/kernels/dense/shampoo.py``, the work shared by ranks ``neocpu/train/step/shampoo.py``,
# tests ``tests/test_shampoo.py``; what it gives on a real log is in ``docs/optimizers.md``.
#
# **Exercise.** Roots are taken after every step here. How much of the way down is left if they are
# taken after every 20th, as long runs do? And what does ``beta2 = 0.9`` change?
