"""What would a software cache do, if a dictionary were one? Each set a dictionary of ways; a policy
is a sort.

Shares nothing with `neocpu.kernels.twins`, but for the set of a row: it keeps the whole history,
looks at every way, and says what it does in lists.
"""

from dataclasses import dataclass, field

import numpy as np

NEVER = 10**18


def murmur(number: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        number = (number ^ number >> 33) * factor % 2**64
    return number ^ number >> 33


@dataclass
class Row:
    number: int
    born: int
    used: int = 0
    again: bool = False
    next_use: int = NEVER
    locks: int = 0
    dirty: bool = False


@dataclass
class Model:
    sets: int
    policy: str
    now: int = 0
    ways: dict = field(default_factory=dict)  # set -> way -> Row
    counts: dict = field(default_factory=dict)  # row -> lookups, of all rows ever looked up
    hand: dict = field(default_factory=dict)  # set -> (born, way) of the last victim
    stats: list = field(default_factory=lambda: [0] * 6)

    def find(self, number):
        s = murmur(number) % self.sets
        ways = [way for way, row in self.ways.setdefault(s, {}).items() if row.number == number]
        return s, ways[0] if ways else None

    def prefetch(self, batch, ahead):
        """batch: {row: lookups}; ahead: {row: batches until it is used again}. Returns (lines,
        evictions, fills).
        """
        self.now += 1
        lines = {}
        missed = []
        evictions = {}
        fills = {}
        use = {number: self.now + ahead[number] if ahead.get(number) else NEVER for number in batch}
        for number, count in sorted(batch.items()):
            self.counts[number] = self.counts.get(number, 0) + count
            s, way = self.find(number)
            if way is None:
                missed.append(number)
            else:
                row = self.ways[s][way]
                row.used = self.now
                row.again = True
                row.next_use = use[number]
                row.locks = row.locks + 1
                lines[number] = 32 * s + way
        first = {
            "lfu": lambda n: -self.counts[n],
            "lookahead": lambda n: use[n],
            "bagpipe": lambda n: use[n],
        }.get(self.policy, lambda n: 0)
        for number in sorted(missed, key=lambda n: (first(n), n)):
            s, _ = self.find(number)
            ways = self.ways[s]
            empty = [way for way in range(32) if way not in ways]
            way = empty[0] if empty else getattr(self, self.policy)(s, number, use[number])
            lines[number] = -1
            if way is not None:
                if way in ways:
                    evictions[32 * s + way] = (ways[way].number, ways[way].dirty)
                ways[way] = Row(number, self.now, self.now, batch[number] > 1, use[number], 1)
                lines[number] = fills[number] = 32 * s + way
        outside = [number for number in missed if lines[number] < 0]
        news = (
            1,
            sum(batch.values()),
            len(batch),
            len(missed),
            len(outside),
            sum(batch[number] for number in outside),
        )
        self.stats = [a + b for a, b in zip(self.stats, news)]
        return lines, evictions, fills

    def free(self, s):
        return [way for way in range(32) if self.ways[s][way].locks == 0]

    def lru(self, s, number, use):
        return min(self.free(s), key=lambda way: (self.ways[s][way].used, way), default=None)

    def lfu(self, s, number, use):
        count = {way: self.counts[self.ways[s][way].number] for way in self.free(s)}
        way = min(count, key=lambda way: (count[way], way), default=None)
        return None if way is None or count[way] > self.counts[number] else way

    def sieve(self, s, number, use):
        queue = sorted((self.ways[s][way].born, way) for way in self.free(s))
        hand = self.hand.get(s, (0, 0))
        queue = [place for place in queue if place > hand] + [
            place for place in queue if place <= hand
        ]
        for place in queue * 2:
            row = self.ways[s][place[1]]
            if not row.again:
                self.hand[s] = place
                return place[1]
            row.again = False
        return None

    def lookahead(self, s, number, use):
        def known(way):
            return self.ways[s][way].next_use if self.now < self.ways[s][way].next_use else NEVER

        way = min(
            self.free(s), key=lambda way: (-known(way), self.ways[s][way].used, way), default=None
        )
        return None if way is None or known(way) < use else way

    scratchpipe = lru
    bagpipe = lookahead

    def cachedembedding(self, s, number, use):
        return max(self.free(s), key=lambda way: self.ways[s][way].number, default=None)

    def expire(self, lines):
        gone = []
        rows = self.rows()
        for line in lines:
            row = rows.get(line)
            if row and not row.locks and not self.now < row.next_use < NEVER:
                gone.append((line, row.number, bool(row.dirty)))
                del self.ways[line // 32][line % 32]
        return gone

    def rows(self):
        return {32 * s + way: row for s, ways in self.ways.items() for way, row in ways.items()}

    def release(self, lines, changed):
        rows = self.rows()
        for line in lines:
            if line >= 0:
                rows[line].locks -= 1
                rows[line].dirty |= changed

    def expect(self, numbers, ahead):
        for number in numbers:
            s, way = self.find(number)
            if way is not None:
                row = self.ways[s][way]
                if row.next_use <= self.now or row.next_use > self.now + ahead:
                    row.next_use = self.now + ahead

    def flush(self):
        dirty = {line: row.number for line, row in sorted(self.rows().items()) if row.dirty}
        for row in self.rows().values():
            row.dirty = False
        return dirty

    def invalidate(self):
        self.ways = {}
        self.hand = {}


def batch_of(rng: np.random.Generator, rows: np.ndarray, lookups: int) -> dict:
    """Some lookups of some rows: {row: lookups}."""
    ids, counts = np.unique(rng.choice(rows, lookups), return_counts=True)
    return dict(zip(ids.tolist(), counts.tolist()))
