"""How good could a plan be at all? The exact answer for small cases, by mixed-integer programming.

    minimise    sum over phases p of m[p]
    where       m[p] >= load of rank r in phase p / crowding            for all r, p
                m[p] >= mean load of phase p                            for all p
                x[c] in {0, 1}, one candidate c for each table
                y[i, r] in {0, 1}, each item i of candidate c on x[c] ranks
                bytes of rank r in memory k <= its limit                for all r, k

A candidate on a node has one y for each node. Calls that only some plans make are left out. The
solver is HiGHS, through SciPy. Its time grows exponentially: a few tables on a few ranks take
seconds.
"""

from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.work import Floats
from neocpu.plan.search.cuts import ALL, RANK
from neocpu.plan.search.drafts import spread
from neocpu.plan.search.options import Options


def fewest_seconds(options: Options, layout: Layout, limits: Floats, gap: float = 1e-6) -> float:
    """Seconds of the best plan of these candidates, beside what is fixed.

    limits : f64[ranks, memories]. gap : relative, at which the solver may stop. Infinite where
    nothing fits. Raises RuntimeError where the solver gave up.
    """
    program = _Program(options, layout, limits)
    matrix, low, high = program.constraints()
    result = milp(
        program.objective(),
        constraints=LinearConstraint(matrix, low, high),
        integrality=program.integrality(),
        bounds=Bounds(0.0, np.where(program.integrality() > 0, 1.0, np.inf)),
        options={"mip_rel_gap": gap},
    )
    # 2: infeasible, in the words of scipy.optimize.milp
    if result.status == 2:
        return float("inf")
    if result.status != 0:
        raise RuntimeError(f"HiGHS gave up: {result.message}")
    return float(result.fun) * program.scale


class _Program:
    """The program's columns: m of the phases, then one binary for each place of each item.

    Columns of a candidate without items of its own, or on a node, hold all its rectangles.
    """

    def __init__(self, options: Options, layout: Layout, limits: Floats) -> None:
        self.phases = options.piece_seconds.shape[1]
        self.crowding = options.crowding
        self.limits = limits
        self.tables = options.start.size - 1
        self.ranks = layout.ranks
        # seconds of about 1, whatever the model's unit
        heads = options.start[:-1]
        least = np.minimum.reduceat(options.seconds.sum(axis=1), heads)
        self.scale = max(float(least.sum()) / layout.ranks, 1e-300)
        self.loads: list[Floats] = []
        self.sizes: list[Floats] = []
        # (group, column) pairs: of each group as many columns are 1 as its candidate is chosen
        self.groups: list[tuple[int, list[int]]] = []
        self.table_of: list[int] = []
        for candidate in range(options.table.size):
            self._add(options, candidate, layout)

    def _column(self, load: Floats, size: Floats) -> int:
        """A binary that puts loads f64[ranks, phases] and bytes f64[ranks, memories] on ranks."""
        self.loads.append(load / self.scale)
        self.sizes.append(size)
        return len(self.loads) - 1

    def _add(self, options: Options, candidate: int, layout: Layout) -> None:
        """The columns of a candidate."""

        def placed(pieces: Any, ranks: Any) -> int:
            load = np.zeros((self.ranks, self.phases))
            size = np.zeros(self.limits.shape)
            np.add.at(load, ranks, options.piece_seconds[pieces])
            np.add.at(size, ranks, options.piece_bytes[pieces])
            return self._column(load, size)

        home = int(options.home[candidate])
        if home == RANK:
            for piece in options.repeated(candidate).tolist():
                columns = [placed([piece], [rank]) for rank in range(self.ranks)]
                self.groups.append((candidate, columns))
        elif home == ALL:
            part = spread(options, candidate, 0, layout)
            self.groups.append((candidate, [placed(part.pieces, part.ranks)]))
        else:
            nodes = range(int(options.first_node[candidate]), int(options.last_node[candidate]))
            parts = [spread(options, candidate, node, layout) for node in nodes]
            columns = [placed(part.pieces, part.ranks) for part in parts]
            self.groups.append((candidate, columns))
        self.table_of.append(int(options.table[candidate]))

    @property
    def _size(self) -> int:
        return self.phases + len(self.loads) + len(self.table_of)

    def objective(self) -> Floats:
        """The sum of m."""
        return np.concatenate([np.ones(self.phases), np.zeros(self._size - self.phases)])

    def integrality(self) -> Floats:
        """1 for binaries, 0 for m."""
        return 1.0 - self.objective()

    def constraints(self) -> tuple[Floats, Floats, Floats]:
        """(matrix, least, most) of all rows."""
        binaries = self.phases
        chosen = binaries + len(self.loads)
        rows: list[Floats] = []
        low: list[float] = []
        high: list[float] = []

        def add(row: Floats, least: float, most: float) -> None:
            rows.append(row)
            low.append(least)
            high.append(most)

        loads = np.stack(self.loads)
        sizes = np.stack(self.sizes)
        for rank in range(self.ranks):
            for phase in range(self.phases):
                row = np.zeros(self._size)
                row[phase] = 1.0
                row[binaries:chosen] = -loads[:, rank, phase] / self.crowding
                add(row, 0.0, np.inf)
            for memory in np.flatnonzero(np.isfinite(self.limits[rank])).tolist():
                row = np.zeros(self._size)
                row[binaries:chosen] = sizes[:, rank, memory] / self.limits[rank, memory]
                add(row, -np.inf, 1.0)
        for phase in range(self.phases):
            row = np.zeros(self._size)
            row[phase] = 1.0
            row[binaries:chosen] = -loads[:, :, phase].mean(axis=1)
            add(row, 0.0, np.inf)
        for candidate, columns in self.groups:
            row = np.zeros(self._size)
            row[[binaries + column for column in columns]] = 1.0
            row[chosen + candidate] = -1.0
            add(row, 0.0, 0.0)
        for table in range(self.tables):
            row = np.zeros(self._size)
            row[chosen:] = np.array(self.table_of) == table
            add(row, 1.0, 1.0)
        return np.stack(rows), np.array(low), np.array(high)
