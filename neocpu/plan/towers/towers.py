"""Which features form a tower? Those whose learned vectors are alike, or those that differ.

The tower partitioner of DMT (arXiv 2403.00877; its steps are remembered from the paper, not
checked):

    E_i(b)  pooled vector of feature i for sample b, of a briefly trained model without towers
    I_ij    mean over b of |cos(E_i(b), E_j(b))|                           `similarity`
    D_ij    1 - I_ij: like features are near ("coherent"); I_ij: they are far ("diverse")
    x_i     points of the plane, min sum_{i<j} (|x_i - x_j| - D_ij)^2      `embed`
    F_t     k-means with |F_t| <= ceil(R F / T)                            `cluster`

The embedding goes down the gradient with a line search, so its stress never rises. Neither step
finds the best answer for sure; both start from several places.
"""

import math
from collections.abc import Sequence

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.core.types import Doubles, Floats, Ints

DISTANCES = ("coherent", "diverse")
STARTS = 8  # starting points of embedding and clustering; the best result counts


def similarity(vectors: Sequence[Floats]) -> Doubles:
    """I f64[F, F] of features' vectors f32[b, D] each; a vector of zeros is like none.

    Raises ConfigError where the vectors have several widths.
    """
    widths = sorted({block.shape[1] for block in vectors})
    if len(widths) > 1:
        raise ConfigError(
            f"tables have dims {widths}; vectors of one width are needed to compare features"
        )
    stacked = np.stack([block.astype(np.float64) for block in vectors], axis=1)
    norms = np.linalg.norm(stacked, axis=2, keepdims=True)
    units = stacked / np.where(norms > 0, norms, 1)
    return np.abs(units @ units.transpose(0, 2, 1)).mean(axis=0)


def distances(likeness: Doubles, kind: str) -> Doubles:
    """D f64[F, F] from I; kind : one of DISTANCES."""
    distance = 1 - likeness if kind == "coherent" else likeness.copy()
    # a feature is in its own place, also where unlike ones are near
    np.fill_diagonal(distance, 0)
    return distance


def stress(points: Doubles, distance: Doubles) -> float:
    """Sum over pairs of (|x_i - x_j| - D_ij)^2 for points f64[F, 2]."""
    lengths = np.linalg.norm(points[:, None] - points[None], axis=2)
    return float(np.triu((lengths - distance) ** 2, 1).sum())


def embed(distance: Doubles, seed: int = 0, steps: int = 500) -> tuple[Doubles, list[float]]:
    """Points f64[F, 2] whose distances are about D, and the stress after every step.

    The best of several starts; the stress never rises from step to step.
    """
    random = np.random.default_rng(seed)
    scale = float(distance.mean()) or 1.0
    runs = [
        _descend(random.normal(0, scale, (len(distance), 2)), distance, steps)
        for _ in range(STARTS)
    ]
    return min(runs, key=lambda run: run[1][-1])


def _descend(points: Doubles, distance: Doubles, steps: int) -> tuple[Doubles, list[float]]:
    """Gradient steps from some points; each is halved until the stress falls enough."""
    history = [stress(points, distance)]
    size = 0.1
    for _ in range(steps):
        offset = points[:, None] - points[None]
        lengths = np.linalg.norm(offset, axis=2)
        # points in one place have no direction to part in, and get no slope
        ratio = (lengths - distance) / np.where(lengths > 0, lengths, 1)
        gradient = 2 * (ratio[:, :, None] * offset).sum(axis=1)
        slope = float((gradient**2).sum())
        # the last step's size was halved until it fitted; the next may be longer again
        size *= 4
        while size > 1e-12:
            candidate = points - size * gradient
            value = stress(candidate, distance)
            if value <= history[-1] - 1e-4 * size * slope:  # Armijo
                break
            size /= 2
        else:
            break
        points = candidate
        history.append(value)
        if history[-2] - value <= 1e-10 * history[0]:
            break
    return points, history


def cluster(points: Doubles, clusters: int, capacity: int, seed: int = 0) -> Ints:
    """Cluster of each point, i64[F]: k-means in which no cluster is empty or above `capacity`.

    The best of several starts.
    """
    random = np.random.default_rng(seed)
    best = np.empty(0, np.int64)
    least = math.inf
    for _ in range(STARTS):
        centres = _spread_centres(points, clusters, random)
        cost = math.inf
        while True:
            labels = _assign(points, centres, capacity)
            centres = np.stack([points[labels == c].mean(axis=0) for c in range(clusters)])
            new_cost = float(((points - centres[labels]) ** 2).sum())
            # by cost, since labels of equal cost may change for ever
            if new_cost >= cost * (1 - 1e-9):
                break
            cost = new_cost
        if new_cost < least:
            least = new_cost
            best = labels
    return best


def _spread_centres(points: Doubles, clusters: int, random: np.random.Generator) -> Doubles:
    """Points drawn as centres, far ones more probably (k-means++)."""
    chosen = [int(random.integers(len(points)))]
    while len(chosen) < clusters:
        square = ((points[:, None] - points[chosen][None]) ** 2).sum(axis=2).min(axis=1)
        # rounding may leave a centre a little way from itself
        square[chosen] = 0
        weights = square if square.sum() > 0 else _absent(len(points), chosen)
        chosen.append(int(random.choice(len(points), p=weights / weights.sum())))
    return points[chosen]


def _absent(count: int, chosen: Sequence[int]) -> Doubles:
    weights = np.ones(count)
    weights[list(chosen)] = 0
    return weights


def _assign(points: Doubles, centres: Doubles, capacity: int) -> Ints:
    """Near centres for all points, none empty or above `capacity`.

    Nearest pairs first; then single moves and swaps of two points, as long as one helps.
    """
    square = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
    count, clusters = square.shape
    labels = np.full(count, -1, np.int64)
    sizes = np.zeros(clusters, np.int64)
    for pair in np.argsort(square, axis=None, kind="stable").tolist():
        point, centre = divmod(pair, clusters)
        free = (labels < 0).sum()
        empty = (sizes == 0).sum()
        # the last free points are for centres without any
        if labels[point] < 0 and sizes[centre] < capacity and (not sizes[centre] or free > empty):
            labels[point] = centre
            sizes[centre] += 1
    while _improve(square, labels, sizes, capacity):
        pass
    return labels


def _improve(square: Doubles, labels: Ints, sizes: Ints, capacity: int) -> bool:
    """Make the move or the swap that helps most, in place; is there one?"""
    everyone = np.arange(len(labels))
    current = square[everyone, labels]
    moves = square - current[:, None]
    moves[:, sizes >= capacity] = np.inf
    # the last point of a cluster may not leave it
    moves[sizes[labels] == 1] = np.inf
    moves[everyone, labels] = np.inf
    other_centre = square[:, labels]  # [i, j]: point i at the centre of j
    swaps = other_centre + other_centre.T - current[:, None] - current[None]
    move = int(moves.argmin())
    swap = int(swaps.argmin())
    gain = min(moves.flat[move], swaps.flat[swap])
    if gain >= -1e-12:
        return False
    if moves.flat[move] <= swaps.flat[swap]:
        point, centre = divmod(move, square.shape[1])
        sizes[labels[point]] -= 1
        sizes[centre] += 1
        labels[point] = centre
    else:
        i, j = divmod(swap, len(labels))
        labels[i], labels[j] = labels[j], labels[i]
    return True


def partition(
    likeness: Doubles, towers: int, kind: str = "coherent", ratio: float = 1.0, seed: int = 0
) -> list[list[int]]:
    """Features of each tower, ascending; towers by their first feature.

    likeness : I f64[F, F]. kind : one of DISTANCES. ratio : R >= 1; no tower has more than
    ceil(R F / T) features.

    Raises ConfigError: more towers than features, or a ratio below 1.
    """
    features = len(likeness)
    if not 1 <= towers <= features:
        raise ConfigError(f"{features} features do not make {towers} towers")
    if not 1 <= ratio < math.inf:
        raise ConfigError(f"ratio {ratio}: towers of at most R F / T features need a ratio R >= 1")
    points, _ = embed(distances(likeness, kind), seed)
    labels = cluster(points, towers, math.ceil(ratio * features / towers), seed)
    groups = [np.flatnonzero(labels == tower).tolist() for tower in range(towers)]
    return sorted(groups)
