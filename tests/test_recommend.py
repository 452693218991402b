"""Are the items that are recommended those that predictions of all pairs put first?"""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import neocpu
from neocpu.cli import cli
from neocpu.core.errors import DataError
from neocpu.parallel.transport.threads import run_threads
from neocpu.serve.scoring.model import Model
from neocpu.serve.scoring.recommend import pairs_of, top
from neocpu.serve.scoring.scorer import LocalScorer
from neocpu.train.config import config
from neocpu.train.run.trainer import Trainer
from tests.jobs import invoke
from tests.test_scoring import SCHEMA, SHOP

USERS = pl.DataFrame(
    {
        "user": ["u3", "u1", "u2", "u1"],
        "shop": ["shop 0", "shop 1", "shop 2", "shop 3"],
        "price": [1.0, 9.0, 5.0, 20.0],
        "code": [0, 0, 0, 0],  # a column of both is the item's
    }
)
ITEMS = pl.DataFrame(
    {
        "item": [7, 5, 6, 9, 8],
        "code": [100, 101, 102, 102, 999],
        "tags": ["new", "red|big", "big", "big", None],
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over a table whose columns users and items have together."""
    folder = tmp_path_factory.mktemp("shop")
    frame = pl.DataFrame(
        {
            "sold": [int(i % 3 == 0) for i in range(60)],
            "price": [0.5 * i for i in range(60)],
            "shop": [f"shop {i % 4}" for i in range(60)],
            "code": [100 + i % 7 for i in range(60)],
            "tags": ["|".join(["new", "red", "big"][: i % 4]) or None for i in range(60)],
        }
    )
    frame.write_csv(folder / "train.csv")
    (folder / "schema.toml").write_text(SCHEMA)
    paths = [f'data.train="{folder}/train.csv"', f'data.schema="{folder}/schema.toml"']
    Trainer(config.loads(SHOP, overrides=paths), None, folder / "run").run()
    USERS.write_csv(folder / "users.csv")
    ITEMS.write_csv(folder / "items.csv")
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return neocpu.load(folder / "run")


def by_predictions(model: Model, k: int, left_out: tuple[tuple[str, int], ...] = ()) -> list:
    """All pairs as rows of one frame, predicted, sorted and cut, user by user."""
    rows = []
    for user in USERS.unique("user", keep="last", maintain_order=True).drop("code").to_dicts():
        pairs = [user | item for item in ITEMS.to_dicts()]
        scores = model.predict(pl.DataFrame(pairs)).tolist()
        ranked = sorted(zip(pairs, scores), key=lambda pair: -pair[1])  # stable
        kept = [(p["item"], s) for p, s in ranked if (p["user"], p["item"]) not in left_out]
        rows += [(user["user"], n, item, s) for n, (item, s) in enumerate(kept[:k], 1)]
    return rows


@pytest.mark.parametrize("k", [1, 3, 99])
def test_the_best_are_those_of_all_predictions(model: Model, folder: Path, k: int) -> None:
    result = model.recommend(USERS, ITEMS, k)
    assert result.columns == ["user", "rank", "item", "prediction"]
    assert result["prediction"].dtype == pl.Float32
    assert result.rows() == by_predictions(model, k)
    # 6 and 9 have the same columns: their predictions are equal, and 6 comes first
    both = result.filter(pl.col("item").is_in([6, 9]))["item"].to_list()
    assert both == [6, 9] * (len(both) // 2) or k == 3
    files = model.recommend(folder / "users.csv", [folder / "items.csv"], k)
    assert files.with_columns(pl.col("item").cast(pl.Int64)).rows() == result.rows()


def test_pairs_of_a_log_are_left_out(model: Model, folder: Path) -> None:
    left_out = (("u1", 5), ("u1", 7), ("u2", 9), ("stranger", 5), ("u2", 1))
    log = pl.DataFrame(left_out, schema=["user", "item"], orient="row")
    result = model.recommend(USERS, ITEMS, 4, log)
    assert result.rows() == by_predictions(model, 4, left_out)
    log.write_csv(folder / "seen.csv")
    assert model.recommend(USERS, ITEMS, 4, folder / "seen.csv").equals(result)
    everything = USERS.select("user").join(ITEMS.select("item"), how="cross")
    assert model.recommend(USERS, ITEMS, 4, everything).height == 0
    assert model.recommend(USERS[:0], ITEMS).height == 0
    assert model.recommend(USERS, ITEMS[:0]).height == 0


def test_a_side_of_which_the_model_reads_nothing_counts(model: Model) -> None:
    everything = USERS.drop("user", "code").head(1).join(ITEMS, how="cross")
    names = USERS.select("user").unique(maintain_order=True)
    result = model.recommend(names, everything, 2, item="item")
    assert result["user"].to_list() == ["u3", "u3", "u1", "u1", "u2", "u2"]
    assert result["item"].to_list() == result["item"].to_list()[:2] * 3
    with pytest.raises(DataError, match="the items have the column 'shop', which names users"):
        model.recommend(USERS, everything, user="shop", item="item")


def test_the_command_writes_the_same_on_any_ranks(model: Model, folder: Path) -> None:
    expected = model.recommend(USERS, ITEMS, 2)
    line = ["predict", folder / "run", folder / "users.csv", "--top-k", 2, "--items"]
    line += [folder / "items.csv", "--group", "user", "--out"]
    for name in ("top.csv", "top.parquet"):
        arguments = [str(each) for each in [*line, folder / name]]
        invoke(*arguments)
    refused = CliRunner().invoke(cli, [*arguments, "--with", "user"])
    assert "--with, --head and --unlabelled do not go with --top-k" in refused.output
    written = pl.read_csv(folder / "top.csv", schema_overrides=dict(expected.schema))
    assert written.equals(expected)
    written = pl.read_parquet(folder / "top.parquet")
    assert written.with_columns(pl.col("item").cast(pl.Int64)).equals(expected)

    def body(comm):
        scorer = LocalScorer(model.path, model.config, model.values, comm)
        return scorer.best_items(pairs_of(scorer.logs.frame, USERS, ITEMS, None, ("", "")), 2)

    assert run_threads(2, body)[0].equals(expected)


def test_what_is_wrong_is_said(model: Model) -> None:
    with pytest.raises(DataError, match="neither users nor items have tags"):
        model.recommend(USERS, ITEMS.drop("tags"))
    with pytest.raises(DataError, match="users have no column 'who'"):
        model.recommend(USERS, ITEMS, user="who")
    with pytest.raises(DataError, match="leave out have no column 'item'"):
        model.recommend(USERS, ITEMS, exclude=USERS)
    with pytest.raises(DataError, match="both named by 'code'"):
        model.recommend(USERS, ITEMS, user="code", item="code")


@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, np.nan]), max_size=12),
    st.integers(1, 14),
    st.sets(st.integers(0, 11)),
)
def test_top_is_a_stable_sort(scores, k, left_out):
    left_out = {place for place in left_out if place < len(scores)}
    keys = [-s if s == s else np.inf for s in scores]
    order = [place for place in np.argsort(keys, kind="stable") if place not in left_out]
    chosen = top(np.float32(scores), k, np.array(sorted(left_out), np.int64))
    assert chosen.tolist() == order[:k]
