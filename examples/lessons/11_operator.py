"""
One operator end to end: the pooled lookup
==========================================

From the formula to the speed. Bag b of feature k pools the rows of its lookups,

.. code-block:: text

    out[b, k] = fl( Σ  w[j] · W_k[index[j]] ),    j = offsets[b], …, offsets[b+1] - 1,

the exact sum, rounded once. The same function stands in the code three times.
"""

from time import perf_counter

from lesson import COLORS, np, plt, show

from neocpu.kernels.compile.threads import use_threads
from neocpu.kernels.operands import Bags, Entries, Lines
from neocpu.kernels.plain.rows import lookup as plain
from neocpu.kernels.rows import lookup as tuned
from neocpu.kernels.twins.rows import lookup as twin

# %%
# **The work.** 4 tables of 100,000 rows and 64 columns, 512 samples, 20 lookups in each bag: 40,960
# rows of 256 bytes, scattered over 100 MB, and other ones in each call.

T, H, D, B, L = 4, 100_000, 64, 512, 20
rng = np.random.default_rng(1)
table = rng.standard_normal(T * H * D, np.float32)
tables = np.arange(T)
width = np.full(T, D)


def work(samples):
    """Arguments of the kernels for so many samples."""
    rows = rng.integers(0, H, T * samples * L)
    bags = Bags(np.arange(0, rows.size + 1, L), rows, np.empty(0, np.float32))
    entries = Entries(tables * H * D, width, width, np.arange(T + 1) * samples)
    lines = Lines(place=tables * D, pitch=np.full(T, T * D))
    return table, entries, bags, False, lines, np.zeros(samples * T * D, np.float32)


# %%
# **Rung 1, the twin** says what is right: every column of a bag is a sum of Python integers, which
# cannot round, and one rounding. Nobody needs to trust anything but `int`.
#
# **Rung 2, the plain sibling** is the textbook's loop, compiled by Numba: bag by bag, row by row,
# added in fp64, while it watches the exponents; if fp64 may have rounded, that bag is added again
# in integers.
#
# **Rung 3, the tuned kernel** adds a vector of columns at a time, keeps a bag's sums in registers,
# asks the processor's flag whether anything was rounded, and fetches rows before their turn.
#
# Equal bits first, then time; on one thread, the best of several calls.

part = work(8)
answers = []
for module in (twin, plain, tuned):
    module.pooled_rows(*part)
    answers.append(part[-1].tobytes())
same_bits = len(set(answers)) == 1
print("the same bits:", same_bits)


def seconds(module, samples, calls):
    """Least time of a call, as if it had all B samples."""
    times = []
    for _ in range(calls):
        arguments = work(samples)
        start = perf_counter()
        module.pooled_rows(*arguments)
        times.append(perf_counter() - start)
    return min(times) * B / samples


use_threads(1)
rungs = {
    "NumPy twin": seconds(twin, 8, 1),
    "plain Numba": seconds(plain, B, 5),
    "tuned": seconds(tuned, B, 20),
}
times = []
for _ in range(5):
    start = perf_counter()
    table.max()
    times.append(perf_counter() - start)
rungs["bytes, read in order"] = min(times) * T * B * L * D / table.size
for name, time in rungs.items():
    print(f"{name:20} {time * 1e3:9.3f} ms, {time / rungs['tuned']:8.2f} times the tuned kernel")

# %%
# What a call takes, on a logarithmic axis. The last bar is no kernel: NumPy reads as many bytes of
# the table in order.

figure, axes = plt.subplots(figsize=(7.2, 3))
bars = axes.barh(list(rungs), [time * 1e3 for time in rungs.values()], color=[*COLORS[:3], "#bbb"])
axes.bar_label(bars, [f"{time * 1e3:.2f} ms" for time in rungs.values()], padding=4)
axes.set(xscale="log", xlabel="milliseconds, one thread", xlim=(0.1, 1e5))
axes.invert_yaxis()
show("11_operator")

# %%
# **Read on.** Twin ``neocpu/kernels/twins/rows/lookup.py``, plain
# ``neocpu/kernels/plain/rows/lookup.py``, kernel ``neocpu/kernels/rows/lookup.py`` with
# ``neocpu/kernels/rows/pooling.py`` and ``neocpu/kernels/simd/bags.py``, test
# ``tests/test_plain.py`` (all three, to the bit) and ``tests/test_lookup.py``. The ladders of five
# kernels, beside C and the machine's limits: ``benchmarks/ladder.py``, measured in
# ``docs/benchmarks-amd.md``.
#
# **Exercise.** Draw the rows from Criteo's skew (lesson 4) instead: which rung gains most, and why?
# Then multiply one row by 1e30 and time the bags again: what do bags cost that fp64 cannot add?
