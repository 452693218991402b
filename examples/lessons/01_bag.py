"""
1. A bag is a sum of rows
=========================

A recommendation model turns categories ("this user liked films 3, 7 and 7") into numbers by looking
up rows of a table and adding them. A batch of such *bags* is three arrays: a table, the row numbers
of all lookups, and the offsets where bags begin. Neo fuses the lookups of all tables into one
operator, the table-batched embedding: one kernel instead of one for each table.
"""

from lesson import COLORS, np, plt, show

from neocpu.kernels.operands import Bags, Entries, Lines
from neocpu.kernels.plain.rows import lookup as plain
from neocpu.kernels.rows import lookup as tuned
from neocpu.kernels.twins.rows import lookup as twin

# %%
# A table of 8 rows, 0 to 7, and 4 columns, and three bags: rows 3, 7, 7; nothing; rows 0, 2.
# Kernels read all tables as one flat array. ``Entries`` says where in it this one begins
# (``base``), how many columns it has (``width``), how many elements are from row to row
# (``stride``), and that its bags are 0 up to 3 (``first``); ``Lines``, where a bag's vector is
# written, and how far apart.

table = (np.arange(32, dtype=np.float32) - 16) / 8
bags = Bags(
    offsets=np.array([0, 3, 3, 5]), rows=np.array([3, 7, 7, 0, 2]), weights=np.empty(0, np.float32)
)
entries = Entries(
    base=np.array([0]), width=np.array([4]), stride=np.array([4]), first=np.array([0, 3])
)
lines = Lines(place=np.array([0]), pitch=np.array([4]))

# %%
# The same operator three times: the NumPy twin says what is right, the plain Numba sibling is the
# textbook's loop, the tuned kernel is what training runs. All three give the same bits.

pooled = {}
for name, module in (("twin", twin), ("plain", plain), ("tuned", tuned)):
    out = np.zeros((3, 4), np.float32)
    module.pooled_rows(table, entries, bags, False, lines, out.reshape(-1))
    pooled[name] = out
    print(name, out.tolist())
same_bits = len({out.tobytes() for out in pooled.values()}) == 1
print("the same bits:", same_bits)

# %%
# Each bag is a line through the table; what is read twice counts twice, and an empty bag is zero.

figure, (left, right) = plt.subplots(1, 2, width_ratios=(1.1, 1))
left.imshow(table.reshape(8, 4), cmap="RdBu", vmin=-2.5, vmax=2.5)
left.set(title="table", xlabel="column", ylabel="row", xticks=range(4), yticks=range(8))
for bag, color in ((0, COLORS[1]), (2, COLORS[2])):
    for row in bags.rows[bags.offsets[bag] : bags.offsets[bag + 1]]:
        left.annotate(
            f"bag {bag}",
            (3.5, row),
            (4.6, row),
            color=color,
            va="center",
            arrowprops={"arrowstyle": "->", "color": color},
        )
right.imshow(pooled["tuned"], cmap="RdBu", vmin=-2.5, vmax=2.5)
for (b, c), value in zip([(b, c) for b in range(3) for c in range(4)], pooled["tuned"].flat):
    color = "white" if abs(value) > 1.5 else "black"
    right.text(c, b, f"{value:g}", ha="center", va="center", color=color)
right.set(title="pooled", xlabel="column", ylabel="bag", xticks=range(4), yticks=range(3))
show("01_bag")

# %%
# **Read on.** Twin ``neocpu/kernels/twins/rows/lookup.py``, plain
# ``neocpu/kernels/plain/rows/lookup.py``, kernel ``neocpu/kernels/rows/lookup.py``, test
# ``tests/test_lookup.py``.
#
# **Exercise.** Give the bags weights 1, 1, -1, 2, 0.5 and predict bag 0 before you run it. Then
# replace row 2 by -1, a pruned lookup: which bags change under ``mean=True``, and why?
