"""Are negatives items that their users never chose, and drawn as often as they should be?"""

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.core.errors import ConfigError, DataError
from neocpu.ingest.synthetic.negatives import POPULARITY, UNIFORM, WAYS, draw_negatives
from neocpu.train.advice.negatives import Columns, add_negatives
from neocpu.train.advice.write import Wishes, write_config
from tests.jobs import invoke

CHOICES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=20)


def arrays(choices):
    users, items = zip(*choices)
    # numbered without gaps, as the callers do
    return np.array(users), np.unique(items, return_inverse=True)[1]


@given(CHOICES, st.integers(1, 4), st.sampled_from(WAYS), st.integers(0, 3))
def test_no_negative_was_chosen_or_is_there_twice(choices, per, way, seed):
    users, items = arrays(choices)
    beside, drawn = draw_negatives(users, items, per, way, seed)
    chosen = set(zip(users.tolist(), items.tolist()))
    pairs = list(zip(beside.tolist(), drawn.tolist()))
    assert len(pairs) == len(set(pairs))
    assert not {(int(users[row]), item) for row, item in pairs} & chosen
    # as many as asked for, or all that the user left
    left = {user: items.max() + 1 - sum(u == user for u, _ in chosen) for user in users.tolist()}
    count = Counter(beside.tolist())
    assert [count[row] for row in range(users.size)] == [min(per, left[u]) for u in users.tolist()]
    assert (np.diff(beside) >= 0).all()


def test_draws_depend_on_the_seed_alone_and_follow_their_weights():
    items = np.repeat([0, 1, 2], [1, 16, 81])
    items = np.concatenate([items, [3]])
    users = np.zeros(items.size, np.int64)
    # one user chose 0 to 3; 4,000 others chose item 3 only, and may get 0, 1 or 2
    users = np.concatenate([users, 1 + np.arange(4_000)])
    items = np.concatenate([items, np.full(4_000, 3)])
    for way, shares in ((UNIFORM, [1, 1, 1]), (POPULARITY, [1, 8, 27])):
        beside, drawn = draw_negatives(users, items, 1, way, 1)
        assert beside.min() == 99
        measured = np.bincount(drawn, minlength=3) / drawn.size
        np.testing.assert_allclose(measured, np.array(shares) / sum(shares), atol=0.025)
        again = draw_negatives(users, items, 1, way, 1)[1]
        np.testing.assert_array_equal(drawn, again)
        assert (drawn != draw_negatives(users, items, 1, way, 2)[1]).any()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Plays without a label: genre follows from the song, time from the play."""
    songs = [7, 8, 9, 7, 11, 8, 12, 7]
    frame = pl.DataFrame(
        {
            "who": ["ann", "ann", "bob", "bob", "cid", "cid", "cid", "dan"],
            "time": [f"2024-05-01 13:{n:02}" for n in range(8)],
            "song": songs,
            "genre": [["pop", "jazz"][song % 2] for song in songs],
        }
    )
    frame.write_csv(tmp_path / "plays.csv")
    return tmp_path / "plays.csv"


def negatives(*arguments: object) -> str:
    return invoke("data", "negatives", *arguments).output


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_log_of_choices_gets_a_label(log: Path, form: str) -> None:
    out = log.with_name(f"labelled.{form}")
    said = negatives(log, "--user", "who", "--item", "song", "--per", 2, "--out", out)
    assert "8 choices, 16 negatives, column label" in said
    assert "of the item: song, genre;" in said
    read = pl.read_csv if form == "csv" else pl.read_parquet
    labelled = read(out).with_columns(pl.col("song").cast(pl.Int64))
    assert labelled["label"].to_list() == [1, 0, 0] * 8
    plays = pl.read_csv(log)
    assert labelled[::3].drop("label").rows() == plays.rows()
    chosen = set(plays.select("who", "song").rows())
    for row in range(24):
        play = labelled.row(row - row % 3, named=True)
        negative = labelled.row(row, named=True)
        assert (negative["who"], negative["time"]) == (play["who"], play["time"])
        assert negative["genre"] == ["pop", "jazz"][negative["song"] % 2]
        assert row % 3 == 0 or (negative["who"], negative["song"]) not in chosen
    # the labelled log trains
    write_config([out], log.with_name("my.toml"), Wishes())


def test_a_log_in_the_folder_that_is_read_stays(log: Path) -> None:
    with pytest.raises(DataError, match="is read by the same command"):
        add_negatives([log.parent], log, Columns("who", "song"))


def test_init_names_the_command(log: Path) -> None:
    with pytest.raises(ConfigError, match="neocpu data negatives LOG"):
        write_config([log], log.with_name("my.toml"), Wishes())
    frame = pl.read_csv(log).with_columns(click=1)
    frame.write_csv(log)
    assert (
        "neocpu data negatives LOG" in write_config([log], log.with_name("my.toml"), Wishes()).text
    )
    frame.with_columns(click=pl.Series([0, 1] * 4)).write_csv(log)
    keys = ("--user", "who", "--item", "song", "--label", "click", "--out", log.with_name("x.csv"))
    with pytest.raises(ConfigError, match="labelled already"):
        negatives(log, *keys)
    with pytest.raises(ConfigError, match="no column 'item'; it has who"):
        negatives(log, "--user", "who", "--item", "item", "--out", log.with_name("x.csv"))
