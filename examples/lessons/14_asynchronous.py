"""
14. Without waiting: what an old gradient does
==============================================

Before Neo, trainers fetched parameters from servers, computed a gradient and sent it, and waited
for nobody. By then others had moved the parameters: it was the gradient of a place some updates
back. In Neo's training all wait for each other. What does that buy?
"""

from functools import partial
from heapq import heappop, heappush
from types import SimpleNamespace

from lesson import COLORS, np, plt, show

from neocpu.parallel.rpc.futures import Future
from neocpu.train.asynchronous.clock import StalenessClock

# %%
# A small log: 8 features, a click or none, and least squares. Around the best parameters the loss
# is a bowl; its steepest direction has the curvature 1.

BATCH, BATCHES = 256, 800
rng = np.random.default_rng(14)
X = rng.standard_normal((BATCH * BATCHES, 8))
X /= np.sqrt(np.linalg.eigvalsh(X.T @ X / len(X))[-1])
clicks = (rng.random(len(X)) < 1 / (1 + np.exp(-X @ np.linspace(1.5, -1, 8)))) - 0.5
H, best = X.T @ X / len(X), np.linalg.lstsq(X, clicks)[0]


def loss(w):
    """Above the least that there is."""
    return 0.5 * (w - best) @ H @ (w - best)


def gradient(w, first, batches=1):
    """Of some batches in a row."""
    x, y = (array[BATCH * first : BATCH * (first + batches)] for array in (X, clicks))
    return x.T @ (x @ w - y) / len(x)


def train(rate, age=0, batches=1):
    """Losses after each update, from a gradient so many updates old, of so many batches."""
    path = [np.zeros(8)]
    for first in range(0, BATCHES - batches + 1, batches):
        if loss(path[-1]) < 30:  # or it is hopeless
            path.append(path[-1] - rate * gradient(path[max(-1 - age, -len(path))], first, batches))
    return [loss(w) for w in path]


# %%
# **Old gradients.** W workers take batches in turn: whoever sends a gradient read the parameters
# W - 1 updates before. **Synchronous.** The same W batches make one update, here W times as long.

AGES, RATES = (0, 1, 4, 16, 64), (0.02, 0.2)
losses = {(age, rate): train(rate, age) for age in AGES for rate in RATES}
waited = train(65 * RATES[0], batches=65)
for (age, rate), curve in losses.items():
    print(f"rate {rate:4}, {age:2} updates old: loss {curve[-1]:.1e}")

# %%
# **The largest rate.** How long may a step be before the distance to the best grows? Here 300 rates
# are tried at once. Theory says 2 sin(π / (4 age + 2)): about π/2 over the number of workers.


def largest_rate(age):
    """With which the distance still shrinks from one turn around the best to later ones."""
    rates, turn = np.geomspace(0.01, 3, 300), 4 * age + 2
    path = [np.ones_like(rates)] * (age + 1)
    for _ in range(100 * (age + 1)):
        path.append(path[-1] - rates * path[-1 - age])
    before, after = (np.abs(path[-k * turn :][:turn]).max(axis=0) for k in (5, 1))
    return float(rates[after < before].max())


tried = {age: largest_rate(age) for age in AGES}

# %%
# **The real clock.** ``training.asynchronous.staleness`` bounds how many *steps* a worker may be
# ahead of the slowest. How many *updates* old does that let gradients be? Here are eight workers,
# the first half as fast. With 0, servers wait for all gradients of a step. Two runs with other
# times of each step end apart, but for 0.


def served(bound, seed):
    """Parameters, ages of gradients, and time at the end. seed : of how long each step takes."""
    seconds = np.random.default_rng(seed).exponential([2, *[1] * 7], (BATCHES // 8, 8))
    future = partial(Future, SimpleNamespace(tell=lambda: None), "other workers")
    clock = StalenessClock(8, bound, BATCHES // 8, 0, future)
    calls = {worker: (1, clock.begin(worker, 1, False)) for worker in range(8)}
    now, w, updates, under_way, sent, ages = 0.0, np.zeros(8), 0, [], {}, []
    while calls or under_way:
        for worker, (step, call) in list(calls.items()):
            if call.done() and calls.pop(worker) and call.wait():
                end = now + seconds[step - 1, worker]
                values = gradient(w, (step - 1) * 8 + worker)
                heappush(under_way, (end, worker, step, updates, values))
        if under_way:
            now, worker, step, read, sent[worker] = heappop(under_way)
            ages.append(updates - read)
            if bound != 0 or len(sent) == 8:
                w = w - 0.2 / 8 * sum(sent[worker] for worker in sorted(sent))
                updates, sent = updates + 1, {}
            calls[worker] = (step + 1, clock.begin(worker, step + 1, False))
    return w, ages, now


oldest, apart = {}, {}
for bound in (0, 1, 4, -1):
    (w, ages, end), (other, *_) = (served(bound, seed) for seed in (1, 2))
    oldest[bound], apart[bound] = max(ages), float(np.abs(w - other).max())
    print(f"staleness {bound:2}: {end:.0f} s, {oldest[bound]} old, {apart[bound]:.0e} apart")

# %%
# Left: at a rate of 0.02 gradients of age 16 do no harm, those of age 64 make the loss swing; at
# 0.2 an age of 16 is too much. 65 workers that wait go as far for each sample, at a rate of 1.3,
# and come down steadily. Right: W workers that do not wait need a rate about W times smaller. So W
# of their updates together go no further than one of workers that wait.

figure, (left, right) = plt.subplots(1, 2)
for age, color in zip(AGES, (COLORS[0], COLORS[2], COLORS[4], COLORS[1], COLORS[3])):
    for rate, style in zip(RATES, ("-", ":")):
        left.semilogy(losses[age, rate], style, color=color, label=f"{age} old" * (style == "-"))
left.semilogy(65 * np.arange(len(waited)), waited, "k.-", ms=3, label="65 that wait")
left.set(xlabel="batches", ylabel="loss, above the least", title="rate 0.02, and 0.2 (dotted)")
workers = 1 + np.array(AGES)
right.loglog(workers, [tried[age] for age in AGES], "o", color=COLORS[3], label="nobody waits")
right.loglog(workers, 2 * np.sin(np.pi / (4 * workers - 2)), color=COLORS[3], lw=1)
right.loglog(workers, [tried[0]] * len(AGES), "k.-", label="all wait")
right.set(xlabel="workers", title="largest rate of an update")
left.legend(fontsize=8)
right.legend()
show("14_asynchronous")

# %%
# **What Neo chose.** All wait for each other. Then an update does not depend on timing: a run can
# be repeated, so a bug can be found, and more workers are only a larger batch. The price is the
# time for which the fast wait for the slow (316 s here, and 165 s without a bound), which is why it
# matters so much there that work is spread evenly. Not waiting is no mistake as such: with few
# workers and a small rate little is lost. On 32,000 samples of a real log, two and four ranks lost
# nothing beyond the noise of seeds, or next to it (``docs/rpc.md``).
#
# **Read on.** The clock ``neocpu/train/asynchronous/clock.py``, the servers
# ``neocpu/train/asynchronous/server.py``, what they do with gradients of rows
# ``neocpu/kernels/twins/rows/update.py`` and ``neocpu/kernels/rows/update.py``, tests
# ``tests/test_asynchronous.py``; a real log is trained both ways in ``docs/rpc.md``.
#
# **Exercise.** Make the first worker of ``served`` ten times as slow. Why does it end hardly sooner
# with a staleness of -1 than with 0? Let workers that are free take the batches of others, as a
# queue of batches would, and look at time and ages again.
