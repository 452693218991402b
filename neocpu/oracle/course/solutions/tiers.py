"""A cache of rows, which writes back what was changed."""

import numpy as np


def cache(
    rows: np.ndarray, writes: np.ndarray, lines: int, policy: str
) -> tuple[np.ndarray, np.ndarray]:
    """Look rows up through a cache, one after the other.

    rows : int64[n], the row of each access.
    writes : bool[n], whether the access changes the row.
    lines : how many rows the cache holds.
    policy : "lru", the row whose last access is the longest ago leaves; "lfu", the row with the
        fewest accesses since it came leaves, of several the one whose last access is the longest
        ago.
    Returns (hits bool[n], written int64[m]). A row that leaves is written back if it was changed
    since it came. At the end the changed rows that are left are written back, too, by number.
    """
    last: dict[int, int] = {}
    count: dict[int, int] = {}
    changed: set[int] = set()
    hits = []
    written = []
    for now, (row, write) in enumerate(zip(rows.tolist(), writes.tolist())):
        hits.append(row in last)
        if row not in last and len(last) == lines:
            by_age = sorted(last, key=lambda old: last[old])
            leaving = by_age[0] if policy == "lru" else min(by_age, key=lambda old: count[old])
            if leaving in changed:
                written.append(leaving)
                changed.remove(leaving)
            del last[leaving], count[leaving]
        last[row] = now
        count[row] = count.get(row, 0) + 1
        if write:
            changed.add(row)
    written += sorted(changed)
    return np.array(hits, bool), np.array(written, np.int64)
