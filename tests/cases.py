"""Which numbers and lookups break sums? Generators that several tests share; hypothesis draws the
seed and the kind.
"""

import numpy as np

FILLS = ("normal", "wild", "subnormal", "cancel", "ties", "huge", "special", "zeros", "powers")


def _ties(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Halfway cases of fp32, decided (or not) by bits far below."""
    return rng.choice(
        np.float32(
            [
                1,
                -1,
                3,
                2**-24,
                -(2**-24),
                2**-23,
                2**-25,
                2**-100,
                -(2**-100),
                2**-149,
                -(2**-149),
                0,
            ]
        ),
        shape,
    )


def floats(rng: np.random.Generator, shape: int | tuple[int, ...], fill: str) -> np.ndarray:
    """fp32 numbers of a kind."""
    shape = (shape,) if isinstance(shape, int) else shape
    x = rng.standard_normal(shape, dtype=np.float32)
    if fill == "wild":
        return np.ldexp(x, rng.integers(-149, 126, shape)).astype(np.float32)
    if fill == "subnormal":
        return np.ldexp(x, rng.integers(-149, -120, shape)).astype(np.float32)
    # large numbers that come in pairs of either sign, small ones that are left
    if fill == "cancel":
        large = rng.choice(
            np.ldexp(np.float32(1.37), np.array([-100, -20, 0, 24, 60, 100])).astype(np.float32),
            shape,
        )
        return np.where(rng.random(shape) < 0.7, large * rng.choice(np.float32([-1, 1]), shape), x)
    if fill == "ties":
        return _ties(rng, shape)
    if fill == "huge":
        return rng.choice(
            np.float32([3.4028235e38, -3.4028235e38, 1.7e38, -1.7e38, 2**103, -(2**103), 1.0]),
            shape,
        )
    if fill == "special":
        return np.where(
            rng.random(shape) < 0.1,
            rng.choice(np.float32([np.inf, -np.inf, np.nan, -0.0]), shape),
            x,
        )
    if fill == "zeros":
        return rng.choice(np.float32([0.0, -0.0, 1.0, -1.0]), shape, p=[0.4, 0.4, 0.1, 0.1])
    if fill == "powers":
        return (np.ldexp(1.0, rng.integers(-149, 128, shape)) * rng.choice([-1, 1], shape)).astype(
            np.float32
        )
    return x


def assert_same(answer: np.ndarray, expected: np.ndarray) -> None:
    """Equal bits; a NaN equals any NaN (they are given their one form where they are hashed)."""
    nan = np.isnan(answer)
    np.testing.assert_array_equal(nan, np.isnan(expected))
    if np.where(nan, 0, answer).tobytes() != np.where(nan, 0, expected).tobytes():
        where = np.argwhere(
            (answer.view(np.uint8) != expected.view(np.uint8)).reshape(*answer.shape, -1).any(-1)
            & ~nan
        )[:3]
        raise AssertionError(
            "\n".join(f"{tuple(i)}: {answer[tuple(i)]!r} {expected[tuple(i)]!r}" for i in where)
        )


def bag_offsets(rng: np.random.Generator, bags: int, longest: int) -> np.ndarray:
    """Offsets i64[bags + 1] of bags of random lengths, many of them empty or of one lookup."""
    lengths = rng.integers(0, longest + 1, bags) * (rng.random(bags) < 0.8)
    lengths[rng.random(bags) < 0.2] = min(1, longest)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def lookups(
    rng: np.random.Generator, offsets: np.ndarray, heights: np.ndarray, samples: int
) -> np.ndarray:
    """Rows i64[n]: a third of the keys look at few rows only, some lookups are -1."""
    key = np.repeat(np.arange(offsets.size - 1) // max(samples, 1), np.diff(offsets))
    few = np.where(rng.random(heights.size) < 0.3, np.minimum(heights, 2), heights)
    rows = (rng.random(key.size) * few[key]).astype(np.int64)
    return np.where(rng.random(key.size) < 0.1, -1, rows)


def matrix(rng: np.random.Generator, shape: tuple[int, ...], fill: str) -> np.ndarray:
    """Numbers of a fill: "normal", "wild", "integers" or "special", all f32."""
    # magnitudes from subnormals to overflow, so that chains cancel, underflow and overflow
    if fill == "wild":
        return (rng.standard_normal(shape) * 2.0 ** rng.integers(-75, 64, shape)).astype(np.float32)
    if fill == "integers":
        return rng.integers(-3, 4, shape).astype(np.float32)
    values = rng.standard_normal(shape, dtype=np.float32)
    if fill == "special" and values.size:
        values.flat[rng.integers(0, values.size, 3)] = rng.choice(
            np.float32([np.inf, -np.inf, np.nan, -0.0]), 3
        )
    return values
