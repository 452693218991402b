"""Wrong answers to the units of the course, written as students write them.

Unit -> (what is wrong, the words that have to be said). A text with a `def` is a whole function,
else it is `old -> new`, an edit of the solution.
"""

EDIT = " -> "

MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "dlrm": (
        (
            (
                "np.subtract.at(table, looked_up[:, t], rate * g_vectors[t + 1]) -> "
                "table[looked_up[:, t]] = table[looked_up[:, t]] - rate * g_vectors[t + 1]"
            ),
            "only the last one trains it",
        ),
        ("(h > 0) -> (h >= 0)", "the ReLU is missing in the backward pass"),
        ("- y) / len(y) -> - y) / 1", "not of their mean"),
        ("np.maximum(x @ bottom.T, 0) -> (x @ bottom.T) * 1", "missing in the forward pass"),
        ("np.subtract.at( -> np.add.at(table, [], 0) if t < 99 else (", "tables are not trained"),
        ("losses.append( -> losses.insert(0, ", "losses, step 0: yours is"),
        ("return np.array(losses) -> return np.array(losses) + 1e-5", "losses, step 0: yours is"),
    ),
    "bags": (
        (
            """
def pool(table, offsets, rows, weights, mean):
    out = np.zeros((len(offsets) - 1, table.shape[1]), np.float32)
    for b in range(len(offsets) - 1):
        n = offsets[b + 1] - offsets[b]
        for k in range(n - 1):
            out[b] += weights[offsets[b] + k] * table[rows[offsets[b] + k]]
        if mean and n:
            out[b] /= n
    return out
""",
            "the last lookup of every bag is left out",
        ),
        (
            """
def pool(table, offsets, rows, weights, mean):
    out = np.zeros((len(offsets) - 1, table.shape[1]), np.float32)
    for b, (lo, hi) in enumerate(zip(offsets[:-1], offsets[1:])):
        out[b] = table[rows[lo:hi]].sum(axis=0)
        if mean and hi > lo:
            out[b] /= hi - lo
    return out
""",
            "per-sample weights are not applied",
        ),
        (
            """
def pool(table, offsets, rows, weights, mean):
    out = np.zeros((len(offsets) - 1, table.shape[1]), np.float32)
    for b, (lo, hi) in enumerate(zip(offsets[:-1], offsets[1:])):
        out[b] = (weights[: hi - lo, None] * table[rows[lo:hi]]).sum(axis=0)
        if mean and hi > lo:
            out[b] /= hi - lo
    return out
""",
            "indexed by the place in the bag",
        ),
        ("if mean and end > begin -> if False", "are not divided by their length"),
        ("range(len(out)) -> range(len(offsets) - 2)", "the last bag is left out"),
        (
            """
def pool(table, offsets, rows, weights, mean):
    return np.array([table[rows[a:b]].sum(axis=0) for a, b in zip(offsets, offsets[1:])], float)
""",
            "out has elements of float64, expected float32",
        ),
    ),
    "order": (
        (
            """
def exact_sum(terms):
    total = np.float32(0)
    for term in terms:
        total = total + term
    return total
""",
            "added one by one in fp32",
        ),
        (
            """
def exact_sum(terms):
    total = np.float32(0)
    for term in sorted(terms, key=abs):
        total = total + term
    return total
""",
            "by magnitude",
        ),
        (
            """
from fractions import Fraction

def exact_sum(terms):
    return np.float32(float(sum(Fraction(term) for term in terms.tolist())))
""",
            "rounded twice",
        ),
        ("kept % 2) -> True)", "away from zero"),
        ("return np.float32( -> return (", "sum has elements of float64"),
    ),
    "backward": (
        ("np.mean(g * g) -> np.sum(g * g)", "the sum of squares over the columns"),
        (
            "np.sqrt(sums[row]) + np.float32(eps) -> np.sqrt(sums[row] + eps)",
            "inside the square root",
        ),
        (
            "gradient[bag[lookups]].sum( -> gradient[bag[lookups]].mean(",
            "averaged instead of added",
        ),
        ("table[row] -= -> table[row] +=", "the step goes uphill"),
        (
            """
def backward(table, sums, offsets, rows, gradient, rate, eps):
    table, sums = table.copy(), sums.copy()
    bag = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    for row, b in zip(rows, bag):
        sums[row] += (gradient[b] ** 2).mean()
        table[row] -= np.float32(rate) * gradient[b] / (np.sqrt(sums[row]) + np.float32(eps))
    return table, sums
""",
            "gets n optimizer steps instead of one",
        ),
        (
            """
def backward(table, sums, offsets, rows, gradient, rate, eps):
    table, sums = table.copy(), sums.copy()
    for b in range(len(offsets) - 1):
        for row in set(rows[offsets[b] : offsets[b + 1]]):
            sums[row] += np.mean(gradient[b] ** 2)
            table[row] -= rate * gradient[b] / (np.sqrt(sums[row]) + eps)
    return table, sums
""",
            "and a row that occurs several times in a bag counts once",
        ),
        (
            """
def backward(table, sums, offsets, rows, gradient, rate, eps):
    table, sums = table.copy(), sums.copy()
    bag = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    g = np.zeros_like(table)
    g[rows] = gradient[bag]
    for row in set(rows.tolist()):
        sums[row] += (g[row] ** 2).mean()
        table[row] -= np.float32(rate) * g[row] / (np.sqrt(sums[row]) + np.float32(eps))
    return table, sums
""",
            "only the last one counts",
        ),
    ),
    "narrow": (
        ("np.rint( -> np.trunc(", "cut off instead of rounded"),
        ("np.float32(255) -> np.float32(256)", "scale, row 0"),
        (
            """
def quantize(x):
    low, high = x.min(), x.max()
    scale = (high - low) / np.float32(255)
    codes = np.rint((x - low) / (scale if scale else 1)).astype(np.uint8)
    return codes, np.full(len(x), scale), np.full(len(x), low)
""",
            "bias, row 0: yours is -1000.0",
        ),
        (
            "random.astype(np.uint32) -> (random & 15).astype(np.uint32) * 4096",
            "4 random bits only",
        ),
        ("random.astype(np.uint32) -> np.uint32(0x8000)", "rounded to nearest"),
        (
            (
                "((bits + random.astype(np.uint32)) >> np.uint32(16)) -> "
                "((bits >> np.uint32(16)) + (random > 32767))"
            ),
            "codes, row 0, column 0",
        ),
        ("random.astype(np.uint32) -> random[:, :1].astype(np.uint32)", "serves a whole row"),
        ("(bits + random.astype(np.uint32)) -> bits", "whatever the random ones say"),
    ),
    "ranks": (
        (
            """
def bucketize(lengths, rows, block, ranks):
    bags = np.split(rows, np.cumsum(lengths)[:-1])
    counts = [[int((b // block == r).sum()) for b in bags] for r in range(ranks)]
    sent = [row for r in range(ranks) for b in bags for row in b if row // block == r]
    return np.array(counts).reshape(-1), np.array(sent, int)
""",
            "not counted from the block's first row",
        ),
        ("rows // block -> rows % ranks", "dealt out one by one"),
        (
            "rows // block -> (rows + block - 1) // block - (rows > 0)",
            "the last of the block before",
        ),
        ("np.concatenate(dealt_lengths) -> np.array(dealt_lengths).T.ravel()", "bag after bag"),
        (
            "bag[owner == r], minlength=len(lengths)) -> bag[owner == r])",
            "lengths: yours is",
        ),
        (
            """
def needs(rectangles, rows, home, ranks, columns):
    return np.array([[any(a <= row < b and rank == r for a, b, _, _, rank in rectangles)
                      for r in range(ranks)] for row in rows], bool).reshape(-1, ranks)
""",
            "every rank that has a copy gets the lookup",
        ),
        (
            """
def needs(rectangles, rows, home, ranks, columns):
    out = np.zeros((len(rows), ranks), bool)
    for k, row in enumerate(rows):
        holders = [r for a, b, _, _, r in rectangles if a <= row < b]
        out[k, [home] if home in holders else holders] = True
    return out
""",
            "has some columns of the row itself asks nobody else",
        ),
    ),
    "trees": (
        (
            """
def aligned_nodes(lo, hi):
    return np.array([(leaf, 1) for leaf in range(lo, hi)]).reshape(-1, 2).astype(int)
""",
            "every leaf is a node of its own",
        ),
        (
            """
def aligned_nodes(lo, hi):
    nodes = []
    while lo < hi:
        size = 1 << ((hi - lo).bit_length() - 1)
        nodes.append((lo, size))
        lo += size
    return np.array(nodes, int).reshape(-1, 2)
""",
            "not at multiples of their size",
        ),
        (
            "return total(0, leaves) -> return sum(sums[1:], start=sums[0])",
            "in the order of their arrival",
        ),
        (
            (
                "return total(0, leaves) -> "
                "return sum((nodes[k] for k in sorted(nodes)), start=np.zeros(3, np.float32))"
            ),
            "from left to right",
        ),
        (
            (
                "for start, size, row in zip(starts, sizes, sums)} -> "
                "for start, size, row in zip(starts, sizes, sums.astype(float))}"
            ),
            "sum has elements of float64",
        ),
    ),
    "planner": (
        (
            """
def place(seconds, sizes, ranks, room):
    return np.array([table % ranks for table in range(len(seconds))])
""",
            "dealt out in turn",
        ),
        ("np.where(free >= sizes[table], load, np.inf) -> load.copy()", "whether a rank has room"),
        ('np.argsort(-seconds, kind="stable") -> range(len(seconds))', "in which they come"),
        ('np.argsort(-seconds, kind="stable") -> np.argsort(sizes)[::-1]', "takes"),
        (
            """
def place(seconds, sizes, ranks, room):
    return np.zeros(len(seconds), int)
""",
            "all tables are on one rank",
        ),
        ("return owner -> return owner + 1", "there are the ranks 0 to 1"),
        ("return owner -> return owner[:-1]", "owner has the shape [3], expected [4]"),
    ),
    "tiers": (
        (
            """
from collections import OrderedDict

def cache(rows, writes, lines, policy):
    there, changed, hits, written = OrderedDict(), set(), [], []
    count = {}
    for row, write in zip(rows.tolist(), writes.tolist()):
        hits.append(row in there)
        if row not in there:
            if len(there) == lines:
                old = min(there, key=count.get) if policy == "lfu" else next(iter(there))
                del there[old], count[old]
                if old in changed:
                    written.append(old)
                    changed.remove(old)
            there[row] = True
            count[row] = 0
        count[row] += 1
        changed |= {row} if write else set()
    return np.array(hits, bool), np.array(written + sorted(changed), int)
""",
            "(FIFO)",
        ),
        ("len(last) == lines -> len(last) > lines", "no known mistake explains it"),
        ("min(by_age, key=lambda old: count -> min(last, key=lambda old: count", "came first"),
        ("written += sorted(changed) -> pass", "left at the end are lost"),
        ("if leaving in changed: -> if changed.add(leaving) is None:", "changed or not"),
        (
            'if policy == "lru" else min(by_age, key=lambda old: count[old]) -> if True else 0',
            "lfu is done as lru",
        ),
        ("del last[leaving], count[leaving] -> last.pop(leaving)", "counts go on"),
        (
            "np.array(hits, bool) -> np.array(hits, int)",
            "hits has elements of int64, expected bool",
        ),
    ),
    "run": (
        (
            """
def hit_ratio(tiers, tier):
    ratios = [1 - r["unique_misses"] / r["unique"] for r in tiers
              if r["tier"] == tier and "unique" in r]
    return sum(ratios) / len(ratios)
""",
            "the ratios of tables are averaged",
        ),
        (
            """
def time_shares(events, rank):
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    seconds = dict.fromkeys(["compute", "waiting", "steps", *names.values()], 0)
    for e in events:
        if e["ph"] == "X" and e["pid"] == rank:
            seconds[names[e["tid"]]] += e["dur"]
    return np.array([seconds["compute"], seconds["waiting"]]) / seconds["steps"]
""",
            "the tracks of all ranks have the numbers of one rank's",
        ),
        ('/ seconds["steps"] -> / (seconds["waiting"] + seconds["compute"])', "not of the steps"),
        ("return 1 - sum( -> return 0 + sum(", "the share of misses"),
        ('if record["tier"] == tier and -> if', "of all tiers are added"),
        ('+= event["dur"] -> += event["dur"] / 1e6 if event["pid"] else 0', "shares, share 0"),
    ),
}
