"""Which ids of a table matter most? The plain twin of `kernels/rows/sketch.py`."""

import numpy as np

EMPTY = -1


def map_hot_rows(rows, limit, sketch, hash_rows, hot, shared):
    """Rows of the table of hot ids, and of the shared one.

    See `kernels.rows.sketch.map_hot_rows`.
    """
    ids, _, hot_rows = _entries(sketch)
    places = dict(zip(ids.reshape(-1).tolist(), hot_rows.reshape(-1).tolist()))
    for i, row in enumerate(rows.tolist()):
        if not 0 <= row < limit:
            hot[i] = EMPTY
            shared[i] = min(row, limit)
            continue
        hot[i] = places.get(row, EMPTY)
        shared[i] = EMPTY if hot[i] >= 0 else row % hash_rows


def importances(rows, offsets, weights, gradient, mean, out):
    """How much each lookup moves its row; see `kernels.rows.sketch.importances`."""
    columns = slice(gradient.column, gradient.column + gradient.width)
    norms = np.sqrt(_square_sums(gradient.values[:, columns].astype(np.float64) ** 2))
    lengths = np.diff(offsets)
    if mean:
        norms = norms / np.maximum(lengths, 1)
    values = np.repeat(norms, lengths)
    if weights.size:
        values = values * np.abs(weights.astype(np.float64))
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
    out[:] = np.where((rows >= 0) & np.isfinite(rounded), rounded, 0)


def _square_sums(squares):
    """Sums of squares f64[b, D] of each line: eight sums of every eighth, then a tree, the rest."""
    lines, columns = squares.shape
    whole = columns - columns % 8
    eights = squares[:, :whole].reshape(lines, -1, 8)
    sums = np.zeros((lines, 8))
    for i in range(eights.shape[1]):
        sums += eights[:, i]
    while sums.shape[1] > 1:
        sums = sums[:, ::2] + sums[:, 1::2]
    total = sums[:, 0]
    for c in range(whole, columns):
        total = total + squares[:, c]
    return total


def batch_means(seen, means):
    """Mean importance of the lookups of each batch; see `kernels.rows.sketch.batch_means`."""
    lookups = 0
    for batch in range(means.size):
        _, numbers = _batch(seen, batch)
        total = np.add.accumulate(np.append(0.0, numbers))[-1]
        means[batch] = total / numbers.size if total > 0 else 0.0
        lookups += numbers.size
    return lookups


def observe(seen, means, parts, sketch):
    """Insert lookups into the sketch; see `kernels.rows.sketch.observe`."""
    ids, scores, hot_rows = _entries(sketch)
    for batch, mean in enumerate(means.tolist()):
        rows, numbers = _batch(seen, batch)
        steps = (numbers / mean if mean > 0 else numbers * 0).astype(np.float32)
        for row, step in zip(rows.tolist(), steps):
            bucket = row % len(ids)
            _insert(ids[bucket], scores[bucket], hot_rows[bucket], row, step)


def _entries(sketch):
    """Ids, scores and hot rows of all entries: [buckets, k] each."""
    k = sketch.ids.shape[1] // 2
    return sketch.ids[:, :k], sketch.scores[:, 2 * k : 3 * k], sketch.hot_rows[:, 3 * k :]


def _batch(seen, batch):
    """Rows and importances (fp64) of the lookups of a batch, in the order of their runs."""
    runs = seen.starts[seen.batches[batch] : seen.batches[batch + 1]].tolist()
    places = np.concatenate([np.arange(0), *(np.arange(first, last) for first, last in runs)])
    places = places[seen.rows[places] >= 0]
    return seen.rows[places], seen.importance[places].astype(np.float64)


def _insert(ids, scores, hot_rows, row, score):
    """Add to the score of an id of one bucket, and keep the bucket sorted."""
    entries = list(zip(ids.tolist(), scores.copy(), hot_rows.tolist()))
    for place, (entry, old, hot_row) in enumerate(entries):
        last = place == len(entries) - 1 and hot_row == EMPTY
        if entry in (row, EMPTY) or last:
            entries[place] = row, np.float32(old + score), hot_row
            break
    # stable: of equal scores, the one that was there first stays in front
    entries.sort(key=lambda entry: -entry[1])
    ids[:] = [entry[0] for entry in entries]
    scores[:] = [entry[1] for entry in entries]
    hot_rows[:] = [entry[2] for entry in entries]
