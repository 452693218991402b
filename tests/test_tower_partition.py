"""Does the tower partitioner find planted groups, keep towers small, and never raise its stress?"""

import math
import shutil
from itertools import chain, pairwise
from pathlib import Path

import click
import numpy as np
import pytest

from neocpu.cli import cli
from neocpu.core.errors import ConfigError
from neocpu.plan.towers import towers
from neocpu.train.config import config
from tests import recorded

ROOT = Path(__file__).resolve().parent.parent


def planted(groups: list[list[int]], noise: float = 0.05, seed: int = 1) -> np.ndarray:
    """I of features that are like those of their group and unlike others."""
    random = np.random.default_rng(seed)
    features = sum(len(group) for group in groups)
    likeness = np.full((features, features), 0.15)
    for group in groups:
        likeness[np.ix_(group, group)] = 0.85
    jitter = random.uniform(-noise, noise, likeness.shape)
    likeness += (jitter + jitter.T) / 2
    np.fill_diagonal(likeness, 1)
    return likeness


def test_similarity_is_the_mean_absolute_cosine() -> None:
    random = np.random.default_rng(3)
    vectors = [random.standard_normal((7, 4)).astype(np.float32) for _ in range(3)]
    vectors[2] = -2 * vectors[0]
    vectors[1][0] = 0  # like nothing
    expected = np.zeros((3, 3))
    for i, left in enumerate(vectors):
        for j, right in enumerate(vectors):
            for a, b in zip(left.astype(float), right.astype(float)):
                length = math.sqrt(a @ a) * math.sqrt(b @ b)
                expected[i, j] += abs(a @ b) / length / 7 if length else 0
    np.testing.assert_allclose(towers.similarity(vectors), expected, rtol=1e-12)
    with pytest.raises(ConfigError, match=r"dims \[4, 5\]"):
        towers.similarity([vectors[0], np.ones((7, 5), np.float32)])


@pytest.mark.parametrize("seed", range(3))
def test_planted_groups_are_found(seed: int) -> None:
    groups = [[0, 3, 9, 10], [1, 4, 5, 8], [2, 6, 7, 11]]
    likeness = planted(groups, seed=seed)
    assert towers.partition(likeness, 3, "coherent", seed=seed) == groups
    # the same groups, if unlike features are wanted together
    assert towers.partition(1 - likeness, 3, "diverse", seed=seed) == groups


def test_stress_never_rises_and_ends_low() -> None:
    random = np.random.default_rng(5)
    plane = random.uniform(size=(14, 2))
    distance = np.linalg.norm(plane[:, None] - plane[None], axis=2)
    points, history = towers.embed(distance)
    assert all(after <= before for before, after in pairwise(history))
    assert history[-1] == pytest.approx(towers.stress(points, distance))
    assert history[-1] < 1e-4  # distances of a plane can be met
    likeness = towers.similarity(
        [random.standard_normal((30, 4)).astype(np.float32) for _ in range(9)]
    )
    for kind in towers.DISTANCES:
        history = towers.embed(towers.distances(likeness, kind), seed=2)[1]
        assert len(history) > 5
        assert all(after <= before for before, after in pairwise(history))


@pytest.mark.parametrize("ratio", [1.0, 1.3, 4.0])
@pytest.mark.parametrize(("features", "count"), [(26, 4), (26, 8), (7, 7), (5, 1), (9, 2)])
def test_sizes_are_kept(features: int, count: int, ratio: float) -> None:
    random = np.random.default_rng(features + count)
    likeness = random.uniform(size=(features, features))
    likeness = (likeness + likeness.T) / 2
    if features == 9:
        likeness[:] = 1  # all points may fall together
    groups = towers.partition(likeness, count, "coherent", ratio)
    assert len(groups) == count and all(groups)
    assert max(map(len, groups)) <= math.ceil(ratio * features / count)
    assert sorted(chain.from_iterable(groups)) == list(range(features))


@pytest.mark.parametrize("seed", range(5))
def test_better_towers_have_the_sizes_that_are_counted(seed: int) -> None:
    random = np.random.default_rng(seed)
    square = random.uniform(size=(15, 4))
    labels = np.arange(15) % 3  # the last centre has none
    sizes = np.bincount(labels, minlength=4)
    stress = square[np.arange(15), labels].sum()
    steps = 0
    while towers._improve(square, labels, sizes, capacity=6):
        assert sizes.tolist() == np.bincount(labels, minlength=4).tolist()
        assert sizes.max() <= 6
        before, stress = stress, square[np.arange(15), labels].sum()
        assert stress < before
        steps += 1
    assert steps > 3


@pytest.mark.parametrize("kind", towers.DISTANCES)
def test_towers_are_those_that_were_recorded(kind: str) -> None:
    random = np.random.default_rng(4)
    entries: list[recorded.Entry] = []
    for features, count, ratio in ((26, 4, 1.2), (17, 5, 1.5), (40, 3, 2.0)):
        likeness = random.uniform(size=(features, features))
        groups = towers.partition((likeness + likeness.T) / 2, count, kind, ratio)
        entries.append((f"{features} in {count}", [*chain.from_iterable(groups)]))
    recorded.check(f"towers, {kind}", entries)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 features do not make 4 towers"):
        towers.partition(np.eye(3), 4)
    with pytest.raises(ConfigError, match=r"ratio 0\.5"):
        towers.partition(np.eye(3), 2, ratio=0.5)


def test_the_command_writes_a_config_with_towers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.tsv.gz"
    shutil.copy(ROOT / "data" / "tiny-criteo-train.tsv.gz", log)
    source = ROOT / "data" / "models" / "tiny.toml"
    out = tmp_path / "towers.toml"
    words = ["towers", str(source), "--towers", "4", "--steps", "3", "--out", str(out)]
    cli([*words, "--set", f"data.train={log}", "--set", "data.test=[]"], standalone_mode=False)
    settings = config.load(out)
    assert [len(keys) <= 7 for keys in settings.model.towers.values()] == [True] * 4
    assert settings.model.layout(13, settings.tables).vector_widths == (8,) * 4
    assert "[model.towers]" in capsys.readouterr().out
    with pytest.raises(click.UsageError, match="has towers already"):
        words = ["towers", str(out), "--towers", "2", "--out", str(tmp_path / "more.toml")]
        cli(words, standalone_mode=False)
