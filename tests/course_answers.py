"""Right answers to the units of the course that are written otherwise than the solutions."""

ANSWERS: dict[str, str] = {
    "dlrm": """
def train(dense, rows, labels, tables, bottom, top, rate):
    # all in fp32, the triangle by indices, duplicates added up in an array as large as the table
    tables, bottom, top = tables.copy(), bottom.copy(), top.copy()
    T, R, D = tables.shape
    i, j = np.tril_indices(T + 1, -1)
    out = []
    for x, k, y in zip(dense, rows, labels):
        h = x @ bottom.T
        V = np.stack([np.maximum(h, 0), *[tables[t, k[:, t]] for t in range(T)]], axis=1)
        G = V @ V.transpose(0, 2, 1)
        f = np.hstack([V[:, 0], G[:, i, j]])
        z = f @ top
        out.append(float(np.mean(np.log1p(np.exp(-np.abs(z))) + np.maximum(z, 0) - z * y)))
        gz = ((1 / (1 + np.exp(-z)) - y) / np.float32(len(y))).astype(np.float32)
        gf = gz[:, None] * top
        P = np.zeros_like(G)
        P[:, i, j] = P[:, j, i] = gf[:, D:]
        gV = P @ V
        gV[:, 0] += gf[:, :D]
        for t in range(T):
            g = np.zeros((R, D), np.float32)
            np.add.at(g, k[:, t], gV[:, t + 1])
            tables[t] -= np.float32(rate) * g
        top -= np.float32(rate) * (gz @ f)
        bottom -= np.float32(rate) * (np.where(h > 0, gV[:, 0], 0).T @ x)
    return out
""",
    "bags": """
def pool(table, offsets, rows, weights, mean):
    lengths = np.diff(offsets)
    bag = np.repeat(np.arange(len(lengths)), lengths)
    out = np.zeros((len(lengths), table.shape[1]))
    np.add.at(out, bag, weights[:, None].astype(float) * table[rows])
    if mean:
        out /= np.maximum(lengths, 1)[:, None]
    return out.astype(np.float32)
""",
    "order": """
from fractions import Fraction

def exact_sum(terms):
    exact = sum((Fraction(float(t)) for t in terms), Fraction(0))
    near = np.float32(float(exact))
    around = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    def key(x):
        return abs(Fraction(float(x)) - exact), int(np.float32(x).view(np.uint32)) & 1
    return min(around, key=key)
""",
    "backward": """
def backward(table, sums, offsets, rows, gradient, rate, eps):
    gradients = {}
    for b in range(len(offsets) - 1):
        for row in rows[offsets[b] : offsets[b + 1]]:
            gradients[row] = gradients.get(row, 0) + gradient[b]
    for row, g in gradients.items():
        sums[row] += (g @ g) / len(g)
        table[row] -= (rate / (float(sums[row]) ** 0.5 + eps)) * g
    return table, sums
""",
    "narrow": """
def quantize(x):
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    scale = (high - low) / 255
    codes = np.round((x - low) / np.where(scale == 0, 1, scale))
    return codes.astype("u1"), scale[:, 0], low[:, 0]

def round_to_bf16(x, random):
    bits = x.view(np.uint32)
    up = (bits & 0xFFFF) > random
    return ((bits >> 16) + up).astype(np.uint16)
""",
    "ranks": """
def bucketize(lengths, rows, block, ranks):
    out = [[[] for _ in lengths] for _ in range(ranks)]
    position = 0
    for bag, length in enumerate(lengths):
        for row in rows[position : position + length]:
            out[row // block][bag].append(row % block)
        position += length
    flat = [row for rank in out for bag in rank for row in bag]
    return [len(bag) for rank in out for bag in rank], flat

def needs(rectangles, rows, home, ranks, columns):
    holds = np.zeros((ranks, len(rows)), int)
    for begin, end, first, last, rank in rectangles:
        holds[rank] += np.where((rows >= begin) & (rows < end), last - first, 0)
    needed = holds > 0
    own = holds[home] == columns
    needed[:, own] = False
    needed[home, own] = True
    return needed.T
""",
    "trees": """
def aligned_nodes(lo, hi):
    nodes = []
    while lo < hi:
        size = (lo & -lo) or 1 << hi.bit_length()
        while lo + size > hi:
            size //= 2
        nodes.append([lo, size])
        lo += size
    return np.array(nodes).reshape(-1, 2).astype(int)

def climb(starts, sizes, sums, leaves):
    level = {(int(s), int(n)): x for s, n, x in zip(starts, sizes, sums)}
    size = 1
    while size < leaves:
        for start in range(0, leaves, 2 * size):
            if (start, size) in level:
                level[start, 2 * size] = level[start, size] + level[start + size, size]
        size *= 2
    return level[0, leaves]
""",
    "planner": """
import heapq

def place(seconds, sizes, ranks, room):
    # greedy, then tables move from the slowest rank as long as that helps
    heap = [(0.0, rank) for rank in range(ranks)]
    free, owner = [room] * ranks, [0] * len(seconds)
    for t in sorted(range(len(seconds)), key=lambda t: -seconds[t]):
        passed = []
        while True:
            load, rank = heapq.heappop(heap)
            if free[rank] >= sizes[t]:
                break
            passed.append((load, rank))
        owner[t] = rank
        free[rank] -= sizes[t]
        for entry in [*passed, (load + seconds[t], rank)]:
            heapq.heappush(heap, entry)
    return owner
""",
    "tiers": """
from collections import OrderedDict

def cache(rows, writes, lines, policy):
    there, count, hits, written = OrderedDict(), {}, [], []
    for row, write in zip(rows, writes):
        row = int(row)
        hits.append(row in there)
        if not hits[-1]:
            if len(there) == lines:
                old = next(iter(there)) if policy == "lru" else min(there, key=count.get)
                if there.pop(old):
                    written.append(old)
                del count[old]
            there[row] = False
        there[row] |= bool(write)
        there.move_to_end(row)
        count[row] = count.get(row, 0) + 1
    return hits, written + sorted(row for row in there if there[row])
""",
    "run": """
RUN = "runs/course"

def time_shares(events, rank):
    own = [e for e in events if e["pid"] == rank]
    track = {e["args"]["name"]: e["tid"] for e in own if e["name"] == "thread_name"}
    def time(name):
        return sum(e["dur"] for e in own if e["ph"] == "X" and e["tid"] == track[name])
    return time("compute") / time("steps"), time("waiting") / time("steps")

def hit_ratio(tiers, tier):
    asked = missed = 0
    for t in tiers:
        if t["tier"] == tier:
            asked += t.get("unique", 0)
            missed += t.get("unique_misses", 0)
    return (asked - missed) / asked
""",
}
