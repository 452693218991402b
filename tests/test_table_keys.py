"""Do defaults and patterns below [tables] make the tables that one would write by hand?"""

import pytest

from neocpu.core.errors import ConfigError
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config

BY_HAND = """
C1 = { rows = 10, dim = 8, pooling = "mean" }
C2 = { rows = 10, dim = 8, pooling = "mean" }
"""


def config_of(tables: str, *overrides: str) -> Config:
    text = f"[model]\ninteraction = 'cat'\n[tables]\n{tables}"  # which takes any dims
    return configs.loads(text, overrides=overrides)


def by_hand(rows: dict[str, int]) -> str:
    return "\n".join(f"C{i}.rows = {rows.get(f'C{i}', 1000)}" for i in range(1, 27))


def test_default_holds_for_all_and_makes_none() -> None:
    text = 'default = { rows = 10, dim = 8, pooling = "mean" }\nC1 = {}\nC2 = {}'
    assert config_of(text).header() == config_of(BY_HAND).header()
    with pytest.raises(ConfigError, match="at least one table is needed"):
        config_of("default.rows = 10")
    with pytest.raises(ConfigError, match=r"did you mean tables\.default\.rows"):
        config_of("default.row = 10\nC1 = {}")
    with pytest.raises(ConfigError, match="features belong to one table"):
        config_of("default.features = ['C1']\nC1.rows = 3")
    with pytest.raises(ConfigError, match=r"or tables\.default\.rows for all"):
        config_of("C1.dim = 3")


def test_a_pattern_is_a_table_for_each_feature_of_the_log() -> None:
    rows = {"C3": 50, "C20": 7}
    patterns = 'C20.rows = 7\n"*".rows = 1000\nC3.rows = 50'
    assert config_of(patterns).header() == config_of(by_hand(rows)).header()
    tables = config_of('"C?" = { rows = 9, dim = 4 }\n"C*".rows = 5\n"*1".dim = 8').tables
    assert [(table.name, table.rows, table.dim) for table in tables] == [
        (f"C{i}", 9 if i < 10 else 5, 4 if i < 10 else 8 if i % 10 == 1 else 16)
        for i in range(1, 27)
    ]
    assert config_of('"C*".rows = 5', 'tables."C*".rows=6').tables[25].rows == 6
    with pytest.raises(ConfigError, match=r"tables\.D\*: matches no feature .*; they are C1, C2"):
        config_of('"D*".rows = 5\nE1 = { rows = 3, features = ["C1"] }')
    with pytest.raises(ConfigError, match="did you mean device_id"):
        config_of('"devise_id*".rows = 5', "data.format=avazu")
    names = [table.name for table in config_of('"*".rows = 5', "data.format=avazu").tables]
    assert names[:4] == ["hour", "weekday", "C1", "banner_pos"] and len(names) == 23


def test_features_of_named_tables_get_no_table_of_their_own() -> None:
    tables = config_of('"*".rows = 5\nbig = { rows = 9, features = ["C2", "C1"] }').tables
    assert [table.name for table in tables[:3]] == ["big", "C3", "C4"] and len(tables) == 25
    (odd,) = config_of('"a*b" = { rows = 3, features = ["C1"] }').tables
    assert odd.name == "a*b"


def test_inherited_rounding_leaves_exact_formats_alone() -> None:
    text = 'default = { rows = 5, format = "fp16", rounding = "stochastic" }\nC1 = {}\n'
    first, second = config_of(f'{text}C2.format = "fp32"').tables
    assert (first.rounding, second.rounding) == ("stochastic", "nearest")
    with pytest.raises(ConfigError, match="has no effect on fp32"):
        config_of(f'{text}C2 = {{ format = "fp32", rounding = "stochastic" }}')
