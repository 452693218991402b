"""Do the steps of one kernel do what the operations say, forward and back, to the bit?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.kernels.dense import composition as kernels
from neocpu.kernels.twins.dense import composition as reference
from neocpu.train.config import config as configs
from neocpu.train.model.composition import Compositions
from neocpu.train.model.elementwise import backward_steps, forward_steps
from neocpu.train.model.operations import make_operation

TABLES = """
    a.rows = 20
    b.rows = 30
    product = { rows = 60, kind = "qr", features = ["x", "y"] }
    three = { rows = 60, kind = "qr", partitions = 3 }
    sum = { rows = 60, kind = "qr", partitions = 4, operation = "add" }
    side = { rows = 60, kind = "qr", operation = "concat" }
    c.rows = 20
"""


def compositions(tables: str, dim: int) -> Compositions:
    model = f"embedding_dim = {dim}\nbottom = [{dim}]\ninteraction = 'cat'\n"
    config = configs.loads(f"[model]\n{model}[tables]\n{tables}")
    layout = config.layout(1).composition
    assert layout is not None
    return Compositions(dim, layout, {})


def drawn(samples: int, columns: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((samples, columns)).astype(np.float32)


@pytest.mark.parametrize("dim", [4, 16, 36])
def test_steps_are_the_operations(dim: int) -> None:
    model = compositions(TABLES, dim)
    physical = drawn(7, model.columns)
    gradient = drawn(7, dim + model.layout.columns, 2)
    E = model.forward(physical)
    dE = model.backward(gradient)
    assert E[:, :dim].tobytes() == physical[:, :dim].tobytes()
    assert dE[:, :dim].tobytes() == gradient[:, :dim].tobytes()
    for part in model.layout.parts:
        columns = [slice(dim + s.column, dim + s.column + s.width) for s in part.sources]
        own = slice(dim + part.column, dim + part.column + part.dim)
        operation = make_operation(part, {})
        out = np.empty((7, part.dim), np.float32)
        operation.forward([physical[:, c] for c in columns], out)
        assert out.tobytes() == E[:, own].tobytes()
        slopes = [np.empty((7, source.width), np.float32) for source in part.sources]
        operation.backward(gradient[:, own], slopes)
        for slope, c in zip(slopes, columns):
            assert slope.tobytes() == dE[:, c].tobytes()


def test_neighbouring_copies_are_one_step() -> None:
    parts = compositions(TABLES, 4).layout.parts
    # bottom, a and b; x * y; ...; the two halves of `side` and c
    assert [step.width for step in forward_steps(4, parts)] == [12, *[4] * 7, 8]
    assert backward_steps(4, parts)[0].width == 12


@pytest.mark.parametrize(
    "tables",
    [
        "a = { rows = 60, kind = 'hash', hash_rows = 7 }\nb.rows = 3",
        "a = { rows = 60, kind = 'qr', operation = 'concat' }",
    ],
)
def test_what_is_composed_already_is_not_touched(tables: str) -> None:
    model = compositions(tables, 4)
    E = drawn(5, model.columns)
    assert model.forward(E) is E
    assert model.backward(E) is E


@settings(deadline=None, max_examples=25)
@given(data=st.data(), samples=st.integers(0, 4))
def test_the_kernel_is_its_twin(data: st.DataObject, samples: int) -> None:
    columns = 40
    width = data.draw(st.integers(1, columns))
    column = st.integers(0, columns - width)
    step = st.tuples(st.integers(0, 4), column, st.just(width), column, column)
    steps = np.array(data.draw(st.lists(step, max_size=6)), np.uint64).reshape(-1, 5)
    outs = []
    for module in (kernels, reference):
        out = drawn(samples, columns, 3)
        module.compose(steps, drawn(samples, columns), drawn(samples, columns, 2), out)
        outs.append(out.tobytes())
    assert outs[0] == outs[1]
