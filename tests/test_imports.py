"""Do models of facebookresearch/dlrm and TorchRec come in as they are?"""

import warnings
from pathlib import Path

import numpy as np
import pytest
from export_runs import scores, train

from neocpu.cli import run
from neocpu.core.errors import CheckpointError, ConfigError
from neocpu.serve.scoring.inspect import load
from neocpu.serve.state_dicts.names import column_order
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.model.layout import ModelLayout

PLAIN = ("tables.site.format=fp32", "tables.id.format=fp32", "tables.tags.rows=700")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of three steps, all fp32."""
    return train(tmp_path_factory.mktemp("imports"), *PLAIN, "tables.id.rows=900")


def state_dict(checkpoint: Path, program: str) -> dict[str, np.ndarray]:
    """A model of ours as another program would have saved it."""
    model = load(checkpoint)
    dense = dict(model.dense.items())
    tables = [table[:] for table in model.tables.values()]
    if program == "dlrm":
        state = {f"emb_l.{i}.weight": table for i, table in enumerate(tables)}
        parts = {"bottom": "bot_l.{0}", "top": "top_l.{0}"}
        step = 2
    else:
        prefix = "model.sparse_arch.embedding_bag_collection.embedding_bags"
        state = {f"{prefix}.t_cat_{i}.weight": table for i, table in enumerate(tables)}
        parts = {
            "bottom": "model.dense_arch.model._mlp.{0}._linear",
            "top": "model.over_arch.model.0._mlp.{0}._linear",
        }
        step = 1
        layout = model.config.model.layout(2, model.config.tables)
        columns = np.empty_like(dense["top.0.weight"])
        columns[:, column_order(layout)] = dense["top.0.weight"]
        dense["top.0.weight"] = columns
    for name, value in dense.items():
        mlp, layer, part = name.split(".")
        state[f"{parts[mlp].format(step * int(layer))}.{part}"] = value
    if program == "torchrec":
        for part in ("weight", "bias"):
            state[f"model.over_arch.model.1.{part}"] = state.pop(
                f"model.over_arch.model.0._mlp.1._linear.{part}"
            )
    return state


@pytest.mark.parametrize("program", ["dlrm", "torchrec"])
def test_what_comes_in_is_what_went_out(trained: Path, tmp_path: Path, program: str) -> None:
    np.savez(tmp_path / "a.npz", **state_dict(trained, program))
    config = tmp_path / "config.toml"
    with CheckpointFile(trained) as file:
        config.write_text(file.text("config"))
        rows = file.index.rows_of(file.number("tables/site"))
    target = trained.parent / f"{program}.h5"
    sets = [word for override in (*PLAIN, "tables.id.rows=900") for word in ("--set", override)]
    run(["checkpoint", "import", str(tmp_path / "a.npz"), str(config), str(target), *sets])
    run(["checkpoint", "digest", str(target)])
    imported = load(target)
    assert imported.step == 0
    for name, value in load(trained).dense.items():
        assert np.array_equal(imported.dense[name], value)
    assert imported.tables["site"].learnt.size == rows  # others are at their initial values
    assert np.array_equal(scores(target, tmp_path), scores(trained, tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.npz",
        "config.toml",
        "scores.csv",
    ]


@pytest.mark.parametrize("program", ["dlrm", "torchrec"])
def test_what_goes_out_comes_in(trained: Path, tmp_path: Path, program: str) -> None:
    one_feature = ('tables.user.features=["user"]', *PLAIN)
    checkpoint = train(tmp_path, "training.steps=1", *one_feature)
    state = tmp_path / "state.safetensors"
    run(["export", str(checkpoint), str(state), "--names", program])
    with CheckpointFile(checkpoint) as file:
        (tmp_path / "config.toml").write_text(file.text("config"))
    sets = [word for override in one_feature for word in ("--set", override)]
    target = tmp_path / "back.h5"
    run(["checkpoint", "import", str(state), f"{tmp_path}/config.toml", str(target), *sets])
    model = load(checkpoint)
    back = load(target)
    for name, value in model.dense.items():
        assert np.array_equal(back.dense[name], value)
    assert np.array_equal(back.tables["tags"][:], model.tables["tags"][:])
    with pytest.raises(ConfigError, match="several features"):
        run(["export", str(trained), f"{tmp_path}/b.safetensors", "--names", program])


def test_what_does_not_fit(trained: Path, tmp_path: Path) -> None:
    state = state_dict(trained, "dlrm")
    config = tmp_path / "config.toml"
    with CheckpointFile(trained) as file:
        config.write_text(file.text("config"))
    source = tmp_path / "a.npz"
    plain = [word for override in PLAIN for word in ("--set", override)]

    def refused(state: dict[str, np.ndarray], words: str, *sets: str) -> None:
        np.savez(source, **state)
        with pytest.raises((CheckpointError, ConfigError), match=words):
            run(
                [
                    "checkpoint",
                    "import",
                    str(source),
                    str(config),
                    f"{tmp_path}/b.h5",
                    *plain,
                    *sets,
                ]
            )

    refused(state, r"emb_l\.2\.weight has shape \[900, 4\], but table id has 90000 rows")
    refused(state, "gone.*in the config|has 5 tables", "--set", "tables.gone.rows=3")
    refused(state, "would round what is imported", "--set", "tables.user.format=fp16")
    refused(state, r"a layer more than", "--set", "model.top=[1]")
    refused(state, r"top\.0\.weight has shape \[9, 25\], there it is", "--set", "model.top=[9, 1]")
    refused(state | {"v_W_l.0": np.ones(3)}, r"not the state_dict of a DLRM .*v_W_l\.0")
    spoilt = state["emb_l.2.weight"].copy()
    spoilt[7, 1] = np.nan
    refused(
        state | {"emb_l.2.weight": spoilt},
        r"weight of row 7 of tables/\w+ is not finite",
        *("--set", "tables.id.rows=900"),
    )
    source.write_bytes(source.read_bytes()[:200])
    with pytest.raises(CheckpointError, match=r"cannot be read as \.npz"):
        run(["checkpoint", "import", str(source), str(config), f"{tmp_path}/b.h5"])
    with pytest.raises(CheckpointError, match="no such file"):
        run(["checkpoint", "import", f"{tmp_path}/no.pt", str(config), f"{tmp_path}/b.h5"])
    assert not (tmp_path / "b.h5").exists()


def test_columns_of_an_upper_triangle() -> None:
    layout = ModelLayout(1, (2, 2, 2), (2,), (1,))
    # ours: 10 20 21 30 31 32; theirs: 01 02 03 12 13 23
    assert column_order(layout).tolist() == [0, 1, 2, 3, 5, 4, 6, 7]


def test_torchrecs_own_model_predicts_the_same(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torchrec = pytest.importorskip("torchrec", reason="torchrec is not installed")
        from torchrec.models.dlrm import DLRM, DLRMTrain
    tables = [
        torchrec.EmbeddingBagConfig(
            name=f"t_cat_{i}", embedding_dim=4, num_embeddings=rows, feature_names=[f"cat_{i}"]
        )
        for i, rows in enumerate((30, 20, 8))
    ]
    collection = torchrec.EmbeddingBagCollection(tables=tables)
    model = DLRMTrain(DLRM(collection, 2, [6, 4], [5, 1]))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    random = np.random.default_rng(3)
    codes = random.integers(0, 1000, (40, 3))
    dense = random.random((40, 2)).astype(np.float32)
    lines = [
        ",".join(map(str, ["0", *numbers, *row])) for numbers, row in zip(dense.tolist(), codes)
    ]
    (tmp_path / "log.csv").write_text("\n".join(["click,a,b,cat_0,cat_1,cat_2", *lines]) + "\n")
    (tmp_path / "schema.toml").write_text(
        '[label]\ncolumn = "click"\n[[dense]]\ncolumns = ["a", "b"]\nkind = "float"\n'
        'transform = "none"\n[[category]]\ncolumns = ["cat_0", "cat_1", "cat_2"]\nkind = "int"\n'
    )
    (tmp_path / "config.toml").write_text(
        '[data]\nformat = "table"\nschema = "schema.toml"\nrows_by = "code"\n[model]\n'
        "embedding_dim = 4\nbottom = [6, 4]\ntop = [5, 1]\n[tables]\ncat_0.rows = 30\n"
        "cat_1.rows = 20\ncat_2.rows = 8\n[training]\nthreads = 1\n"
    )
    target = tmp_path / "model.h5"
    run(["checkpoint", "import", f"{tmp_path}/model.pt", f"{tmp_path}/config.toml", str(target)])
    run(["predict", str(target), f"{tmp_path}/log.csv", "--out", f"{tmp_path}/scores.csv"])
    actual = np.loadtxt(tmp_path / "scores.csv", delimiter=",", skiprows=1)[:, 1]
    features = torchrec.KeyedJaggedTensor(
        keys=["cat_0", "cat_1", "cat_2"],
        values=torch.from_numpy((codes % [30, 20, 8]).T.reshape(-1)),
        lengths=torch.ones(120, dtype=torch.int64),
    )
    with torch.no_grad():
        logits = model.model(torch.from_numpy(dense), features)
    expected = torch.sigmoid(logits).numpy()[:, 0]
    assert np.abs(actual - expected).max() < 1e-6 and expected.std() > 1e-3
