"""
3. fp32 order matters, exact sums do not
========================================

Floating-point addition is not associative: the sum of the same numbers depends on their order, and
so on how rows and samples are spread over ranks and threads. Neo sorts lookups, which fixes the
order on one GPU. Ours is stronger: the *exact* sum, rounded once, has no order at all.
"""

from itertools import permutations

from lesson import COLORS, np, plt, show

from neocpu.kernels.operands import Bags, Entries, Lines
from neocpu.kernels.rows.lookup import pooled_rows
from neocpu.kernels.twins.numbers.exact import exact_sum

# %%
# Four numbers are enough. A sum of 2^24 and 1 lies between two fp32 numbers.

terms = [np.float32(2**24), np.float32(1), np.float32(1), np.float32(-(2**24))]
sums = set()
for order in permutations(terms):
    total = np.float32(0)
    for term in order:
        total += term
    sums.add(float(total))
print("in fp32, by order:", sorted(sums), " exactly:", exact_sum(terms))

# %%
# A bag of 1,000 lookups in a table whose magnitudes differ, added in 400 orders: as fp32 sums, and
# by the kernel that trains.

rng = np.random.default_rng(1)
values = (rng.standard_normal(1000) * 10.0 ** rng.uniform(-3, 3, 1000)).astype(np.float32)
one = np.arange(1)
entries = Entries(base=one, width=one + 1, stride=one + 1, first=np.arange(2))
naive = []
kernel = set()
out = np.zeros(1, np.float32)
for _ in range(400):
    order = rng.permutation(1000)
    naive.append(float(values[order].cumsum(dtype=np.float32)[-1]))
    bags = Bags(np.arange(0, 1001, 1000), order, np.empty(0, np.float32))
    pooled_rows(values, entries, bags, False, Lines(one, one + 1), out)
    kernel.add(float(out[0]))
print(len(set(naive)), "fp32 sums,", len(kernel), "exact sum")

# %%
# The fp32 sums scatter around the exact one.

exact = exact_sum(values)
figure, axes = plt.subplots()
axes.hist([(total - exact) * 1e3 for total in naive], bins=25, color=COLORS[0], label="fp32 sums")
axes.axvline(0, color=COLORS[3], lw=2, label="exact sum, all 400 orders")
axes.set(xlabel="distance from the exact sum, in thousandths", ylabel="orders")
axes.legend()
show("03_order")

# %%
# **Read on.** Twin ``neocpu/kernels/twins/numbers/exact.py``, plain
# ``neocpu/kernels/plain/numbers/exact.py``, kernel ``neocpu/kernels/rows/pooling.py``, test
# ``tests/test_pooling.py``; the norm is ``docs/arithmetic.md``, section 3.
#
# **Exercise.** Write the exact sum yourself, without a look at the twin: unit 3 of the course,
# ``docs/course/03_order.md``, says when it is right, and what is wrong.
