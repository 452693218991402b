"""Is a config read as written, checked whole, and does an error name place, key, value and what is
allowed?
"""

import json
from itertools import groupby
from pathlib import Path

import pytest

from neocpu.core.errors import ConfigError
from neocpu.core.rules import RULES
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.config import config as configs
from neocpu.train.config.keys import flat
from tests import recorded

ROOT = Path(__file__).resolve().parent.parent
SMALL = (
    "[tables]\nC1.rows = 10\nC2 = { rows = 20, features = ['a', 'b'], pooling = 'mean', "
    "weighted = true }\n"
)


def test_defaults_and_tables() -> None:
    config = configs.loads(SMALL)
    assert config.tables == (
        TableSpec("C1", 10, 16, ("C1",)),
        TableSpec("C2", 20, 16, ("a", "b"), "mean", True),
    )
    assert (
        config.training.leaves == 16 and config.data.train == () and config.parallel.plan == "auto"
    )


@pytest.mark.parametrize(
    "path", sorted((ROOT / "data" / "models").glob("*.toml")), ids=lambda p: p.name
)
def test_presets_are_valid(path: Path) -> None:
    settings = configs.load(path)
    assert len(settings.tables) >= 2
    values = (f"{key} {value}".replace(str(ROOT), "") for key, value in flat(settings).items())
    sections = groupby(values, lambda value: value.partition(".")[0])
    recorded.check(f"keys of {path.name}", [("\n".join(lines), []) for _, lines in sections])


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.updates])
def test_every_rule_can_be_asked_for_with_its_keys(name: str) -> None:
    keys = {"counter_halflife": 3, "adjustment_iter": 5, "learning_rate_mode": "counter_sgd"}
    keys |= {"tail_id_threshold_is_ratio": "true"}
    sets = [
        f"optimizer.sparse.{key}={keys.get(key, 0.5)}"
        for key in (*RULES[name].options, "max_norm", "max_gradient")
    ]
    sparse = configs.loads(
        SMALL, "x.toml", [f"optimizer.sparse.name={name}", *sets]
    ).optimizer.sparse
    assert sparse.rule is RULES[name] and sparse.max_norm == 0.5


def test_tables_have_formats() -> None:
    sets = [
        "model.embedding_format=bf16",
        "model.embedding_rounding=stochastic",
        "tables.C2.format=fp8_e4m3",
    ]
    config = configs.loads(SMALL, "x.toml", [*sets, "tables.C2.rounding=nearest"])
    assert [(t.format, t.rounding) for t in config.tables] == [
        ("bf16", "stochastic"),
        ("fp8_e4m3", "nearest"),
    ]
    assert (
        config.header()["tables"][0]["format"] == "bf16"
        and "embedding_format" not in config.header()["model"]
    )
    config = configs.loads(SMALL, "x.toml", [*sets, "tables.C2.format=bf16_split"])
    assert (config.tables[1].format, config.tables[1].rounding) == ("bf16_split", "nearest")
    plain = configs.loads(SMALL, "x.toml").header()["tables"]
    # digests of fp32 models are what they were
    assert not {"format", "rounding"} & {*plain[0], *plain[1]}


def test_overrides_are_toml_else_text() -> None:
    config = configs.loads(
        SMALL,
        "x.toml",
        [
            "training.steps=12",
            "data.train=[\"a.h5\", 'b.h5']",
            "data.test=/some/file.tsv.gz",
            "data.valid=",
            "data.shuffle = false",
            "parallel.plan={ 'C*' = 'row_wise' }",
            "tables.C1.rows=77",
            "optimizer.sparse.schedule.warmup_steps=5",
            "optimizer.dense.learning_rate=1",
            'tables."odd name".rows=3',
        ],
    )
    assert config.training.steps == 12
    assert config.data.train == ("a.h5", "b.h5") and config.data.test == ("/some/file.tsv.gz",)
    assert config.data.valid == ()
    assert config.data.shuffle is False
    assert config.parallel.plan == {"C*": "row_wise"}
    assert [t.rows for t in config.tables] == [77, 20, 3] and config.tables[2].name == "odd name"
    assert config.optimizer.sparse.schedule.warmup_steps == 5
    assert config.optimizer.dense.learning_rate == 1.0 and isinstance(
        config.optimizer.dense.learning_rate, float
    )
    assert configs.loads(config.text, "again", config.overrides).header() == config.header()


def test_whole_floats_are_whole_numbers() -> None:
    whole = configs.loads(SMALL, "x.toml", ["training.steps=2e3", "model.bottom=[8.0, 16]"])
    assert (repr(whole.training.steps), repr(whole.model.bottom)) == ("2000", "(8, 16)")
    written = configs.loads(SMALL, "x.toml", ["training.steps=2000", "model.bottom=[8, 16]"])
    assert repr(whole.header()) == repr(written.header())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "training.step=1",
            "--set training.step=1: training.step: no such key; did you mean training.steps?",
        ),
        ("trainin.steps=1", "--set trainin.steps=1: trainin: no such key; did you mean training?"),
        ("tables.C1.row=1", "tables.C1.row: no such key; did you mean tables.C1.rows?"),
        ("optimizer.sparse.etta=1", "no such key; did you mean optimizer.sparse.eta?"),
        ("optimizer.sparse.eta=1", "it has no effect on exact_rowwise_adagrad; it is of lars_sgd"),
        ("optimizer.dense.max_norm=1", "optimizer.dense.max_norm: it has no effect on adagrad"),
        (
            "optimizer.sparse.weight_decay_mode=adagradw",
            "is of exact_rowwise_adagrad_with_counter only",
        ),
        ("optimizer.sparse.name=none", "is not allowed"),
        ("optimizer.sparse.counter_halflife=-3", "-3 is too small; allowed: -2 to"),
        ("training.steps=ten", "training.steps: expected a whole number, got 'ten'"),
        ("training.steps=-1", "training.steps: -1 is too small; allowed: 0 to"),
        ("training.batch_size=0", "0 is too small; allowed: 1 to"),
        ("training.seed=1.5", "expected a whole number, got 1.5"),
        ("data.shuffle=1", "expected true or false, got 1"),
        ("model.bottom=8", "model.bottom: expected a list, got 8"),
        ("model.bottom=[4, 0, 16]", "model.bottom[1]: 0 is too small"),
        ("model.loss=bcd", "'bcd' is not allowed; did you mean 'bce'? Choose one of bce, mse"),
        (
            "optimizer.sparse.name=adamw",
            f"one of {', '.join(name for name in RULES if name != 'none')}",
        ),
        ("optimizer.dense.name=exact_sgd", "one of sgd, adagrad, adam"),
        ("optimizer.sparse.learning_rate=-0.1", "-0.1 must be a finite number, at least 0"),
        ("optimizer.sparse.eps=nan", "must be a finite number"),
        (f"optimizer.sparse.eps={'9' * 400}", "must be a finite number"),
        ("optimizer.dense.beta1=1.0", "optimizer.dense.beta1: 1.0 must be below 1"),
        ("optimizer.dense.weight_decay=0.1", 'weight_decay_mode: "none" makes weight_decay void'),
        (
            "training.leaves=12",
            "--set training.leaves=12: training.leaves: 12 is not a power of two",
        ),
        ("parallel.plan=rowwise", "'rowwise' is no scheme; did you mean 'row_wise'?"),
        ("parallel.plan={D1 = 'row_wise'}", "no table matches 'D1'"),
        ("parallel.plan=3", "expected a name in quotes, or a table"),
        ("model.embedding_dim=4", "the last size is 16"),
        ("model.top=[4, 2]", "it must be 1"),
        ("tables.C1.pooling=max", "choose one of sum, mean"),
        ('tables.C1.features=["x", "x"]', "names a feature twice"),
        ("tables.C1=5", "tables.C1: expected a table of keys, got 5"),
        ("tables.C1.rows.x=5", "--set tables.C1.rows.x=5: tables.C1.rows is a single value"),
        (
            f"tables.C1.rows={2**63 - 20}",
            "together they have 9,223,372,036,854,775,808 rows; row numbers of all tables must",
        ),
        ("data.format=table", "needs the path of a SCHEMA.toml"),
        ("data.min_count=4", 'it has no effect while data.rows_by is "hash"'),
        ("noequals", "write it as key=value"),
        ("=3", "write it as key=value"),
        ("a b=3", "write it as key=value"),
    ],
)
def test_errors_say_what_and_where(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configs.loads(SMALL, "x.toml", [override])
    assert message in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tables]\n", "x.toml: tables: at least one table is needed"),
        ("[tables.C1]\ndim = 3\n", "x.toml: tables.C1: its number of rows is missing"),
        ("[tables]\n'a/b'.rows = 3\n", "may not be empty"),
        (SMALL + "[modell]\n", "x.toml: modell: no such key; did you mean model?"),
        (SMALL + "[model\n", "x.toml: not valid TOML:"),
        ("training = 3\n" + SMALL, "x.toml: training: expected a table of keys, got 3"),
    ],
)
def test_errors_in_the_file_name_the_file(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configs.loads(text, "x.toml")
    assert message in str(caught.value), str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot read the config: No such file"):
        configs.load(tmp_path / "gone.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        configs.load(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("log.csv", b"click,a\n1,2\n", "is a log, not a config; try `neocpu init "),
        ("log.txt", b"1\t2\t3\n", "is a log, not a config"),
        ("log", b"\x1f\x8b\x08", "is a log, not a config"),
        ("log.parquet", b"PAR1\x15", "is a log, not a config"),
        ("train.h5", b"\x89HDF\r\n\x1a\n", "is converted data or a checkpoint, not a config"),
        ("config.txt", b"[tables]\n", "at least one table is needed"),
        ("config.toml", b"a, b\n", "not valid TOML"),
    ],
)
def test_data_instead_of_a_config(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        configs.load(tmp_path / name)


def test_header_holds_what_decides_the_bits_and_nothing_else() -> None:
    config = configs.loads(SMALL)
    header = config.header()
    assert json.loads(json.dumps(header)) == header
    free = [
        "training.steps=9",
        "training.epochs=4",
        "training.threads=2",
        "data.train=x",
        "data.valid=y",
        "data.read_ahead=7",
        "parallel.plan=row_wise",
        "parallel.route=two_level",
        "parallel.ranks_per_node=2",
        "parallel.memory=9",
        "parallel.machine=zionex",
        "memory.check=false",
        "eval.every_steps=3",
        "checkpoint.every_steps=3",
        "checkpoint.keep=9",
    ]
    for override in free:
        assert configs.loads(SMALL, "x", [override]).header() == header, override
    bound = [
        "training.seed=2",
        "training.batch_size=64",
        "training.leaves=8",
        "data.shuffle=false",
        "model.diagonal=true",
        "model.top=[8, 1]",
        "tables.C1.rows=11",
        "tables.C2.pooling=sum",
        "optimizer.sparse.learning_rate=0.5",
        "optimizer.dense.name=adam",
        "optimizer.sparse.schedule.decay_steps=4",
        "data.rows_by=vocabulary",
    ]
    for override in bound:
        assert configs.loads(SMALL, "x", [override]).header() != header, override


def test_texts_with_nul_and_more_threads_than_cores_are_refused() -> None:
    for override, message in (
        ('data.train="a\\u0000b"', r"data\.train: 'a\\x00b' contains a NUL character"),
        ('data.valid=["x", "a\\u0000b"]', r"data\.valid\[1\]: .* contains a NUL character"),
        ('tables."a\\u0000b".rows=3', "may not be empty, '.' or contain '/' or NUL"),
        ("training.threads=100000", "100000 is too large; allowed: 0 to 1024"),
    ):
        with pytest.raises(ConfigError, match=message):
            configs.loads(SMALL, "x", [override])
    with pytest.raises(ConfigError, match="cannot read the config: embedded null byte"):
        configs.load("a\0b.toml")


def test_route_names_are_those_of_the_registry() -> None:
    from neocpu.parallel.exchange.routes import ROUTES
    from neocpu.parallel.settings import ROUTE_NAMES

    assert set(ROUTE_NAMES) == set(ROUTES)


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5000, "a." * 3000 + "b = 1", "seed = " + "9" * 5000]
)
def test_toml_without_measure_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"x\.toml: not valid TOML: "):
        configs.loads(text, "x.toml")
    with pytest.raises(ConfigError):
        configs.loads(SMALL, "x.toml", ["training.steps=" + "{a=" * 2000])
