"""Are tables of every kind composed of physical ones as their formulas say, on any plan?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.core.errors import ConfigError
from neocpu.kernels.rows import row_maps as kernels
from neocpu.kernels.twins.rows import row_maps as reference
from neocpu.tables.specs.specs import MAP_RULES, RowMap
from neocpu.train.config import config as configs


@given(
    rule=st.integers(0, len(MAP_RULES) - 1),
    rows=st.lists(st.integers(-1, 2**62), max_size=20),
    divisor=st.integers(1, 2**40),
    modulus=st.integers(1, 2**40),
    first=st.integers(0, 2**20),
    key=st.integers(0, 2**64 - 1),
)
def test_row_maps_are_those_of_the_twin(rule, rows, divisor, modulus, first, key):
    numbers = np.array(rows, np.int64)
    outs = []
    for module in (kernels, reference):
        out = np.empty_like(numbers)
        module.map_rows(numbers, rule, divisor, modulus, first, np.uint64(key), out)
        weights = np.ones(numbers.size, np.float32)
        module.sign_weights(numbers, np.uint64(key), weights)
        outs.append((out.tolist(), weights.tolist()))
    assert outs[0] == outs[1]


def config_of(tables: str):
    return configs.loads(f"[model]\ninteraction = 'cat'\n[tables]\n{tables}")


def test_quotient_and_remainder_tell_every_row():
    config = config_of('C1 = { rows = 1000, kind = "qr", collisions = 7 }')
    assert [(t.name, t.rows, t.dim) for t in config.tables] == [
        ("C1.quotient", 143, 16),
        ("C1.remainder", 7, 16),
    ]
    pairs = set()
    for row in range(1000):
        digits = [row // m.divisor % m.modulus for m in (t.maps[0] for t in config.tables)]
        pairs.add(tuple(digits))
    assert len(pairs) == 1000


def test_keys_of_kinds_are_inherited_by_tables_of_that_kind_only():
    config = config_of(
        'default = { rows = 100, kind = "qr", collisions = 10, kind_above = 50 }\n'
        'C1 = {}\nC2 = { kind = "full" }\nC3 = { rows = 50 }'
    )
    assert [t.name for t in config.tables] == ["C1.quotient", "C1.remainder", "C2", "C3"]
    assert [t.name for t in config.model_tables] == ["C1", "C2", "C3"]
    with pytest.raises(ConfigError, match="a table of kind full has no such key"):
        config_of("C1 = { rows = 10, collisions = 3 }")
    with pytest.raises(ConfigError, match="collisions"):
        config_of('C1 = { rows = 10, kind = "qr", colisions = 3 }')


def test_configs_without_kinds_have_nothing_to_compose():
    config = config_of("C1.rows = 10")
    assert config.compositions == ()
    assert "kinds" not in config.header()
    assert "maps" not in config.header()["tables"][0]


def test_a_row_map_knows_its_rule():
    assert [RowMap(rule, 5).number for rule in MAP_RULES] == [0, 1, 2, 3]
