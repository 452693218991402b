"""Do texts as labels become classes, sorted, kept, predicted by name, and refused by name?"""

import shutil

import h5py
import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from test_fit import digests_on_ranks, run, stopped_after_step_3

import neocpu
from neocpu.cli.evaluate import evaluate
from neocpu.cli.fit import fit as fit_command
from neocpu.cli.predict import predict
from neocpu.core.errors import CheckpointError, ConfigError, DataError
from neocpu.ingest.dataset.convert import convert
from neocpu.ingest.dataset.convert_options import ConvertOptions
from neocpu.ingest.formats.table import table_schema
from neocpu.parallel.transport.threads import run_threads
from neocpu.serve.scoring.fits import FitScorer
from neocpu.train.fit.fitted import load
from neocpu.train.fit.keys import METHODS, FitKeys

NAMES = ('"quoted", a comma', "setosa", "éa")  # sorted
ROWS = 240


def irises(names=NAMES, seed=5):
    """Rows of two numbers, a shop and a class, which the numbers tell now and then."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(names), ROWS)
    centres = rng.normal(0, 1.5, (len(names), 2))
    x = np.round(rng.normal(size=(ROWS, 2)) + centres[drawn], 3)
    columns = {"class": np.array(names)[drawn], "x": x[:, 0], "z": x[:, 1]}
    return pl.DataFrame({**columns, "shop": rng.choice(list("abc"), ROWS)})


def numbered(frame, names=NAMES):
    """The same rows with the numbers of their classes."""
    numbers = {name: number for number, name in enumerate(sorted(names))}
    return frame.with_columns(pl.col("class").replace_strict(numbers))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A log of classes, `iris.csv`, and a fit of it."""
    folder = tmp_path_factory.mktemp("classes")
    irises().write_csv(folder / "iris.csv")
    neocpu.fit(folder / "iris.csv", out=folder / "fit", label="class")
    return folder


def test_classes_are_sorted_and_their_numbers_are_what_is_fitted(folder, tmp_path):
    model = neocpu.load(folder / "fit")
    assert model.classes == NAMES
    assert model.fitted.keys.loss == "softmax"
    keys = {"out": tmp_path / "numbers", "label": "class", "loss": "softmax"}
    of_numbers = neocpu.fit(numbered(irises()), **keys)
    assert of_numbers.classes == (0.0, 1.0, 2.0)
    assert of_numbers.fitted.weights.tobytes() == model.fitted.weights.tobytes()
    named = model.predict(irises())
    assert named.dtype.kind == "U"
    numbers = of_numbers.predict(irises())
    assert named.tolist() == [NAMES[int(number)] for number in numbers]
    measured = model.evaluate(folder / "iris.csv")
    assert measured == model.evaluate(irises()) == of_numbers.evaluate(numbered(irises()))
    assert measured["accuracy"] == pytest.approx(np.mean(named == irises()["class"].to_numpy()))
    assert measured["accuracy"] > 0.6
    # files of numbers are as they were; older versions are told that those of texts are newer
    for path, version in ((folder / "fit", 3), (tmp_path / "numbers", 1)):
        with h5py.File(path / "fit.h5") as file:
            assert file.attrs["version"] == version


def test_the_command_writes_the_texts(folder, tmp_path):
    expected = neocpu.load(folder / "fit").predict(irises()).tolist()
    frame = irises().with_columns(pl.col("x").cast(pl.String)).drop("class")
    frame[7, "x"] = "wide"
    frame.write_csv(tmp_path / "new.csv")
    known = [*expected[:7], None, *expected[8:]]
    words = [str(folder / "fit"), str(tmp_path / "new.csv"), "--set", "data.on_error=skip", "--out"]
    for name, more in (("p.csv", []), ("k.csv", ["--with", "shop"]), ("p.parquet", [])):
        CliRunner().invoke(predict, [*words, str(tmp_path / name), *more], catch_exceptions=False)
        read = pl.read_parquet if name == "p.parquet" else pl.read_csv
        assert read(tmp_path / name)["prediction"].to_list() == known
    CliRunner().invoke(predict, [*words, str(tmp_path / "p.npy")], catch_exceptions=False)
    assert np.load(tmp_path / "p.npy").tolist() == [each or "" for each in known]


@pytest.mark.parametrize("method", METHODS)
def test_any_ranks_threads_and_stops_give_the_same_bits(method, tmp_path):
    irises().write_csv(tmp_path / "log.csv")
    keys = FitKeys(loss="softmax", method=method, start=20)
    (digest,) = digests_on_ranks(tmp_path / "log.csv", keys, tmp_path)
    stopped_after_step_3(tmp_path / "log.csv", keys)
    assert load(tmp_path / "out").fitted.labels.classes == NAMES
    assert run(tmp_path / "log.csv", keys, resume=True)["digest"] == digest


def test_two_classes_are_0_and_1_where_none_says_yes(tmp_path):
    sides = irises(("right", "left"))
    model = neocpu.fit(sides, out=tmp_path / "sides", label="class")
    assert (model.classes, model.fitted.keys.loss) == (("left", "right"), "logistic")
    right = sides["class"].to_numpy() == "right"
    probabilities = model.predict(sides)
    assert probabilities.dtype == np.float32
    assert np.mean((probabilities > 0.5) == right) > 0.7
    hinge = neocpu.fit(sides, out=tmp_path / "hinge", label="class", loss="squared_hinge")
    assert np.mean((hinge.predict(sides) > 0) == right) > 0.7
    # what says yes is a click whatever stands first
    answers = irises(("yes", "zero"))
    clicked = neocpu.fit(answers, out=tmp_path / "yes", label="class")
    assert clicked.classes == (0.0, 1.0)
    assert np.mean((clicked.predict(answers) > 0.5) == (answers["class"] == "yes").to_numpy()) > 0.7
    softmax = neocpu.fit(answers, out=tmp_path / "softmax", label="class", loss="softmax")
    assert {*softmax.predict(answers)} == {"yes", "zero"}


def test_an_unknown_label_is_refused_by_name(folder, tmp_path):
    other = irises().with_columns(pl.col("class").replace("setosa", "rosa"))
    other.write_csv(tmp_path / "other.csv")
    model = neocpu.load(folder / "fit")
    line = 2 + other["class"].to_list().index("rosa")
    known = '"quoted", a comma, setosa, éa'
    for data, where in ((tmp_path / "other.csv", f"line {line}"), (other, f"row {line - 2}")):
        with pytest.raises(DataError, match=f"{where}, column class: 'rosa' is none of the .* éa"):
            model.evaluate(data)
    # labels are not looked at
    assert model.predict(other).tolist() == model.predict(irises()).tolist()
    # a converted file whose classes have other numbers
    schema = model.values.schema.tree
    label = {"column": "class", "kind": "class"}
    options = ConvertOptions(schema={**schema, "label": label})
    convert([tmp_path / "other.csv"], tmp_path / "other.h5", "table", options)
    with pytest.raises(DataError, match=r"its labels are .*, rosa, éa, but those of the fit are"):
        model.evaluate(tmp_path / "other.h5")
    convert([folder / "iris.csv"], tmp_path / "same.h5", "table", options)
    assert model.evaluate(tmp_path / "same.h5") == model.evaluate(folder / "iris.csv")
    problem = CliRunner().invoke(evaluate, [str(folder / "fit"), str(tmp_path / "other.csv")])
    assert f"'rosa' is none of the classes {known}" in str(problem.exception)


def test_a_class_of_the_test_part_only_is_told_before_the_fit(tmp_path):
    rows = irises().sort(pl.col("class") == "setosa")
    last = irises(("rosa",)).head(4)
    pl.concat([rows, last]).write_csv(tmp_path / "log.csv")

    def body(comm):
        with pytest.raises(DataError) as raised:
            run(tmp_path / "log.csv", FitKeys(), comm, split="0.8, 0.1, 0.1")
        return str(raised.value)

    for text in run_threads(2, body):
        assert "log.csv" in text
        assert 'a label is rosa, but those of the train data are "quoted", a comma, setosa' in text
    assert not (tmp_path / "out" / "fit.h5").exists()


@pytest.mark.parametrize(
    ("names", "keys", "problem"),
    [
        (NAMES, {"loss": "logistic"}, "takes two; fit softmax to classes, squares to numbers"),
        (NAMES, {"loss": "squares"}, "the label 'class' has 3 texts"),
        ([f"n{i}" for i in range(1001)], {}, "its texts are more than 1,000, too many for classes"),
        (("one",), {}, "all labels are the same"),
    ],
)
def test_labels_that_are_no_classes_are_refused(names, keys, problem, tmp_path):
    frame = irises(names)
    if len(names) > ROWS:
        frame = pl.DataFrame({"class": names * 2, "x": np.arange(2.0 * len(names)) % 7})
    with pytest.raises((DataError, ConfigError), match=problem):
        neocpu.fit(frame, out=tmp_path / "fit", label="class", **keys)


def test_a_config_says_what_classes_there_are(folder, tmp_path):
    words = [str(folder / "iris.csv"), "--label", "class", "--out"]
    keys = ["--set", 'data.schema.label={column="class", kind="class", classes=["a", "b"]}']
    result = CliRunner().invoke(fit_command, [*words, str(tmp_path / "a"), *keys])
    assert "is none of the classes a, b" in str(result.exception)
    order = '["setosa", "éa", "\\"quoted\\", a comma", "rosa"]'
    keys = ["--set", f'data.schema.label={{column="class", kind="class", classes={order}}}']
    result = CliRunner().invoke(fit_command, [*words, str(tmp_path / "b"), *keys])
    assert 'classes: setosa, éa, "quoted", a comma\n' in result.output
    assert neocpu.load(tmp_path / "b").classes == ("setosa", "éa", '"quoted", a comma')


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        ({"kind": "class", "positive": ["a"]}, "with positive the label is a click, so kind"),
        ({"classes": ["a"]}, 'classes goes with kind = "class"'),
        ({"kind": "class", "classes": ["a", "a"]}, "classes must name texts, each once"),
        ({"kind": "class", "classes": []}, "classes must name texts, each once"),
        ({"kind": "class", "classes": [""]}, "classes must name texts, each once"),
        ({"kind": "class", "classes": [1]}, "classes must be a list of texts"),
    ],
)
def test_schemas_whose_classes_are_none_are_refused(label, problem):
    tree = {"label": {"column": "y", **label}, "dense": [{"columns": ["x"]}]}
    with pytest.raises(ConfigError, match=problem):
        table_schema(tree)


def test_labels_that_are_empty_or_no_utf8_are_told(tmp_path):
    options = ConvertOptions(
        schema={"label": {"column": "y", "kind": "class"}, "dense": [{"columns": ["x"]}]}
    )
    for text, problem in (
        (b"y,x\na,1\n,2\n", "is empty, but a label is needed"),
        (b"y,x\n,1\n,2\n", "all fields of this label are empty"),
        (b"y,x\na,1\n\xff,2\n", "is no UTF-8; name the encoding"),
    ):
        (tmp_path / "log.csv").write_bytes(text)
        with pytest.raises(DataError, match=problem):
            convert([tmp_path / "log.csv"], tmp_path / "log.h5", "table", options)


def test_a_fit_of_classes_ranks_nothing(folder):
    model = FitScorer(folder / "fit")
    with pytest.raises(DataError, match="its predictions are classes, and none is the best"):
        model.evaluate(irises(), group="shop")
    with_group = FitScorer(folder / "fit", ["eval.group='shop'"])
    assert with_group.evaluate(irises()) == model.evaluate(irises())
    with pytest.raises(DataError, match="its predictions are classes, and none is the best"):
        model.recommend(irises().head(2), irises().head(3), user="shop", item="z")


def test_a_damaged_file_of_classes_is_refused(folder, tmp_path):
    shutil.copytree(folder / "fit", tmp_path / "fit")
    content = (tmp_path / "fit" / "fit.h5").read_bytes()
    (tmp_path / "fit" / "fit.h5").write_bytes(content.replace(b'"setosa"', b"1234567."))
    with pytest.raises(CheckpointError):
        load(tmp_path / "fit")
