"""Do the examples still run, and do they show what they promise?"""

import sys
from pathlib import Path

import numpy as np
import pytest

from neocpu import load
from neocpu.parallel.transport.comm import SingleComm
from neocpu.train.config import config as configs
from neocpu.train.run.trainer import Trainer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import beyond_memory
import histories_of_ratings
import overlap_a_step


def test_beyond_memory_ends_with_one_digest_for_each_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    beyond_memory.main(steps=6, large_steps=1, large_batch=32, counts=(2,))
    told = capsys.readouterr().out
    digests = [line.split()[1] for line in told.splitlines() if line.startswith("    digest")]
    assert len(digests) == 4 and len(set(digests[:3])) == 1
    assert "more than memory.hbm allows" in told and "12,000,000,000,000 parameters" in told
    assert told.endswith("No bit depends on where a row lives.\n")


def test_overlap_a_step_ends_with_one_digest_and_a_picture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "overlap.svg"
    overlap_a_step.main(2, 4, 64, threads=True, keep=tmp_path, picture=picture)
    told = capsys.readouterr().out
    assert told.count("    digest ") == 3 and "pipeline full:" in told
    assert "wait: pooled output" in told and "network: dense" in told
    assert told.endswith("overlap decides when, never what.\n")
    assert "pipeline off, rank 0" in picture.read_text()
    for kind in overlap_a_step.KINDS:
        assert (tmp_path / f"{kind}.json").exists()


def test_histories_of_ratings_are_what_was_liked_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ratings = tmp_path / "ratings.dat"
    lines = [
        f"{rng.integers(9)}::{rng.integers(40)}::{rng.integers(1, 6)}::{time}\n"
        for time in rng.permutation(300)
    ]
    ratings.write_text("".join(lines))
    log = tmp_path / "clicks.csv"
    histories_of_ratings.main(ratings, log)
    before: dict[str, list[str]] = {}
    for sample, rating in zip(
        log.read_text().splitlines()[1:],
        sorted((line.strip().split("::") for line in lines), key=lambda fields: int(fields[3])),
        strict=True,
    ):
        user, movie, stars, _ = rating
        liked = before.setdefault(user, [])
        click = int(int(stars) >= 4)
        assert sample.split(",") == [str(click), user, movie, "|".join(liked)]
        liked += [movie] * click
    sets = [f'data.train="{log}"', "training.steps=2"]
    run = configs.load("din", sets)
    Trainer(run, SingleComm(), tmp_path / "run").run()
    table = load(tmp_path / "run").tables["movie"]
    movies = [int(line.split("::")[1]) for line in lines]
    assert (table.rows_of(movies, "history") == table.rows_of(movies, "movie")).all()
    assert table.rows_of(movies).max() > 1
