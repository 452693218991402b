"""Do comparison, export, the commands and `neocpu.load` say what is in the file?"""

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from sealed_files import as_older
from test_checkpoint import TABLE_WISE, make

import neocpu
from neocpu.core.errors import CheckpointError, ConfigError
from neocpu.kernels.numbers.philox import uniform_rows
from neocpu.parallel.transport.comm import SingleComm
from neocpu.serve.exports.arrays import export
from neocpu.serve.scoring.inspect import TrainedModel
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.train import checkpoint
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.checkpoint.tools import Difference, first_difference
from neocpu.train.state.initial import initial_rows
from tests.jobs import invoke


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A checkpoint of step 5."""
    checkpoint.save(tmp_path, make(SingleComm(), TABLE_WISE), 5)
    return tmp_path / "checkpoints" / "step-00000005.h5"


def changed(
    folder: Path,
    table: int,
    rows: list[int],
    field: str,
    column: int | None,
    by: float,
    step: int = 5,
) -> Path:
    """The same checkpoint with some rows of a table changed."""
    world = make(SingleComm(), TABLE_WISE)
    tbe = world.embedding.tbe
    state = tbe.state(table)
    at = np.array(rows)
    fresh = tbe.touched(table)[at] == 0
    values = {name: value[at].copy() for name, value in state.items()}
    for name, value in tbe.initial(table, at).items():
        values[name][fresh] = value[fresh]
    if column is None:
        values[field] += np.float32(by)
    else:
        values[field][:, column] += np.float32(by)
    tbe.load_rows(table, at, values)
    checkpoint.save(folder, world, step)
    return folder / "checkpoints" / f"step-{step:08d}.h5"


def test_diff_names_the_first_tensor_row_and_column(written: Path, tmp_path: Path) -> None:
    with CheckpointFile(written) as file:
        learnt = file.rows(file.number("tables/C3"))
    row = int(learnt[40])
    changed_file = changed(tmp_path / "b", 2, [row, row + 1], "weight", 6, 1.0)
    with CheckpointFile(written) as left, CheckpointFile(changed_file) as right:
        difference = first_difference(left, right)
        assert first_difference(left, left) is None
    assert isinstance(difference, Difference)
    assert (difference.tensor, difference.row, difference.field, difference.column) == (
        "tables/C3",
        row,
        "weight",
        6,
    )
    assert difference.values[1] == difference.values[0] + np.float32(1)
    done = invoke("checkpoint", "diff", written, changed_file)
    assert done.return_value == 1 and f"tables/C3 row {row}, weight column 6: " in done.output
    same = invoke("checkpoint", "diff", written, written)
    assert same.return_value == 0 and same.output.startswith("equal: digest ")
    folder = invoke("checkpoint", "diff", written, written.parent.parent)
    assert folder.return_value == 0 and folder.output == same.output


def test_diff_of_a_row_that_only_one_has_learnt(written: Path, tmp_path: Path) -> None:
    with CheckpointFile(written) as file:
        learnt = set(file.rows(file.number("tables/C4")).tolist())
    row = next(r for r in range(500_000, 10**6) if r not in learnt)
    changed_file = changed(tmp_path / "b", 3, [row], "sum", None, 2.0, step=6)
    done = invoke("checkpoint", "diff", written, changed_file)
    assert (
        done.output
        == f"step: 5 | 6\ntables/C4 row {row}, sum: 0.5 (0x3f000000) | 2.5 (0x40200000)\n"
    )


def test_diff_of_a_dense_parameter(written: Path, tmp_path: Path) -> None:
    world = make(SingleComm(), TABLE_WISE)
    world.dense.state["exp_avg"][4 * 13 + 2] = 8.0  # of the first layer's bias
    checkpoint.save(tmp_path / "b", world, 5)
    done = invoke("checkpoint", "diff", written, checkpoint.checkpoints(tmp_path / "b")[0])
    assert re.fullmatch(
        r"dense/\S+ row 2, exp_avg: \S+ \(.*\) \| 8\.0 \(0x41000000\)\n", done.output
    )


def test_diff_says_what_changed_in_the_config(written: Path, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "b", make(SingleComm(), TABLE_WISE, ("training.batch_size=8",)), 5)
    done = invoke("checkpoint", "diff", written, checkpoint.checkpoints(tmp_path / "b")[0])
    assert done.output == "config training.batch_size: 2048 | 8\nall tensors are equal\n"
    checkpoint.save(tmp_path / "c", make(SingleComm(), TABLE_WISE, ("tables.C1.rows=9001",)), 5)
    with pytest.raises(
        CheckpointError, match=r"hold other tensors: tables/C1 with 9000 rows .* 9001 rows"
    ):
        invoke("checkpoint", "diff", written, checkpoint.checkpoints(tmp_path / "c")[0])


def test_digest_and_show(written: Path) -> None:
    with CheckpointFile(written) as file:
        expected = file.digest
        rows = file.rows(file.number("tables/C4")).size
    assert invoke("checkpoint", "digest", written).output == f"digest {expected}\n"
    assert invoke("checkpoint", "digest", written, written).output.count(expected) == 2
    card = invoke("checkpoint", "show", written).output
    for words in (
        "step 5",
        expected,
        f"{rows} of 1,000,000 rows: weight[8], sum",
        "exact_rowwise_adagrad",
        "dense adam",
    ):
        assert words in card
    with as_older(written) as file:
        file["tables/C4/sum"][3] += 1
    with pytest.raises(CheckpointError, match="tables/C4, block"):
        invoke("checkpoint", "digest", written)


def read_safetensors(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """By the format's definition."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    facts = header.pop("__metadata__")
    arrays = {}
    end = 0
    assert size % 8 == 0
    for name, entry in header.items():
        lo, hi = entry["data_offsets"]
        assert lo == end
        end = hi
        data = np.frombuffer(
            raw[8 + size + lo : 8 + size + hi], {"F32": "<f4", "I64": "<i8"}[entry["dtype"]]
        )
        arrays[name] = data.reshape(entry["shape"])
    assert len(raw) == 8 + size + end
    return facts, arrays


@pytest.mark.parametrize("dense", [False, True])
def test_exports_hold_the_same_arrays(written: Path, tmp_path: Path, dense: bool) -> None:
    flags = ["--dense"] * dense
    invoke("checkpoint", "arrays", written, tmp_path / "a.npz", *flags)
    invoke("checkpoint", "arrays", written, tmp_path / "a.safetensors", *flags)
    facts, tensors = read_safetensors(tmp_path / "a.safetensors")
    assert facts["neocpu_step"] == "5"
    with np.load(tmp_path / "a.npz") as arrays, CheckpointFile(written) as file:
        assert set(arrays.files) == set(tensors)
        for name, tensor in tensors.items():
            assert np.array_equal(arrays[name], tensor) and arrays[name].dtype == tensor.dtype
        number = file.number("tables/C1")
        rows = file.rows(number)
        weight = file.field(number, "weight")
        config = file.config()
    assert tensors["dense/bottom.0.weight/exp_avg"].shape == (4, 13)
    if dense:
        whole = initial_rows(
            config.tables[0], config.optimizer.sparse, config.training.seed, np.arange(9000)
        )
        whole["weight"][rows] = weight
        assert np.array_equal(tensors["tables/C1/weight"], whole["weight"])
        assert tensors["tables/C4/sum"].shape == (1_000_000,)
    else:
        assert np.array_equal(tensors["tables/C1/rows"], rows)
        assert np.array_equal(tensors["tables/C1/weight"], weight)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "a.safetensors", "checkpoints"]


def test_the_former_name_of_a_command_says_the_new_one(written: Path, tmp_path: Path) -> None:
    invoke("checkpoint", "arrays", written, tmp_path / "a.npz")
    assert (
        "neocpu checkpoint arrays"
        in invoke("checkpoint", "export", written, tmp_path / "b.npz").stderr
    )
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_safetensors_reads_the_export(written: Path, tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    with CheckpointFile(written) as file:
        export(file, tmp_path / "a.safetensors")
    _, arrays = read_safetensors(tmp_path / "a.safetensors")
    expected = numpy.load_file(tmp_path / "a.safetensors")
    assert all(np.array_equal(arrays[name], expected[name]) for name in arrays)


def test_exports_that_cannot_be(written: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"one of \.npz, \.safetensors"):
        invoke("checkpoint", "arrays", written, tmp_path / "a.onnx")
    with pytest.raises(CheckpointError, match="could not be written"):
        invoke("checkpoint", "arrays", written, tmp_path / "gone" / "a.npz")
    with as_older(written) as file:
        file["tables/C1/weight"][0, 0] += 1
    with pytest.raises(CheckpointError, match="tables/C1, block 0"):
        invoke("checkpoint", "arrays", written, tmp_path / "a.npz")
    assert not zipfile.is_zipfile(tmp_path / "a.npz")


def test_load_gives_learnt_and_untouched_rows(written: Path) -> None:
    model = neocpu.load(written)
    assert isinstance(model, TrainedModel) and model.step == 5 and len(model.digest) == 64
    world = make(SingleComm(), TABLE_WISE)
    table = model.tables["C1"]
    tbe = world.embedding.tbe
    whole = tbe.initial(0, np.arange(9000))
    touched = np.flatnonzero(tbe.touched(0))
    for name, value in tbe.state(0).items():
        whole[name][touched] = value[touched]
    assert np.array_equal(table[:], whole["weight"]) and len(table) == 9000
    assert np.array_equal(table.field("sum", [5, 6]), whole["sum"][5:7]) and table.fields == (
        "weight",
        "sum",
    )
    row = int(table.learnt[3])
    assert np.array_equal(table[row], whole["weight"][row]) and table[row].shape == (8,)
    assert np.array_equal(table[[[row, 1]]], whole["weight"][[[row, 1]]])
    assert table[[]].shape == (0, 8) and table[4:1:-2].shape == (2, 8)
    assert np.array_equal(model.dense["top.0.bias"], world.model.parameters["top.0.bias"])
    assert "9000 rows x 8" in repr(table) and "step 5" in repr(model)
    for wrong in (9000, -1, [0, 9000]):
        with pytest.raises(IndexError, match="has rows 0 to 8999"):
            table[wrong]
    with pytest.raises(IndexError, match="whole numbers"):
        table[[0.5]]


def test_initial_rows_are_those_of_the_tables() -> None:
    optimizer = SparseOptimizer(name="adam")
    world = make(
        SingleComm(), TABLE_WISE, ("optimizer.sparse.name=adam", "training.seed=12"), learnt=False
    )
    rows = np.array([0, 7, 4999, 3], np.int64)
    values = initial_rows(world.plan.tables[2], optimizer, 12, rows, uniform_rows)
    expected = world.embedding.tbe.initial(2, rows)
    assert list(values) == list(expected) == ["weight", "exp_avg", "exp_avg_sq"]
    for name in values:
        assert np.array_equal(values[name], expected[name]) and values[name].dtype == np.float32
