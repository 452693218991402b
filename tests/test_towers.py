"""Are tower modules linear layers with right gradients, the same bits anywhere, and optional?"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from dense_runs import check_gradients, check_halves, cuts_of, example, run
from tower_runs import DENSE as RUN_DENSE
from tower_runs import settings, train

from neocpu.core.errors import ConfigError
from neocpu.kernels.twins.dense import model as twin
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.specs.specs import bags
from neocpu.train.config import config
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.model.layout import ModelLayout
from neocpu.train.model.options import TowerModule
from neocpu.train.model.tower_layout import tower_layouts
from neocpu.train.step.world import build

B = 24
DENSE = 5
DIMS = {"dot": (4, 4, 4, 4), "cat": (4, 4, 4, 4), "mixed": (2, 6, 3, 4)}
TOWERS = {"late": ["k3", "k1"], "early": ["k0", "k2"]}
KEYS = ["k0", "k1", "k2", "k3"]


def model_of(kind: str, joint: int, feature: int, seed: int = 3) -> Dlrm:
    dims = DIMS[kind]
    layouts = tower_layouts(TOWERS, TowerModule(joint, feature, 4), KEYS, dims)
    interaction = "cat" if kind == "cat" else "dot"
    return Dlrm(ModelLayout(DENSE, dims, (7, 4), (6, 1), interaction, towers=layouts), seed)


@pytest.mark.parametrize(
    ("kind", "joint", "feature"), [("dot", 2, 1), ("cat", 1, 2), ("mixed", 3, 0), ("dot", 0, 2)]
)
def test_gradients_match_finite_differences(kind: str, joint: int, feature: int) -> None:
    model = model_of(kind, joint, feature)
    layout = model.layout
    towers = {tower.name: list(tower.keys) for tower in layout.towers}

    def formula(wide: dict, x: np.ndarray, pooled: np.ndarray) -> np.ndarray:
        vectors = np.split(pooled, np.cumsum(layout.dims)[:-1], axis=1)
        return twin.logits(wide, x, vectors, layout.interaction, False, towers, 4)

    check_gradients(model, B, DENSE, formula)


def test_halves_of_a_batch_give_the_bits_of_the_whole() -> None:
    check_halves(model_of("dot", 2, 1), B, DENSE)


def test_identity_modules_are_no_towers() -> None:
    """c = 0, p = 1, W2 = I, no bias, keys in order: what interacts is E, bit for bit."""
    layouts = tower_layouts({"a": KEYS[:1], "b": KEYS[1:]}, TowerModule(0, 1, 4), KEYS, DIMS["dot"])
    layout = ModelLayout(DENSE, DIMS["dot"], (7, 4), (6, 1))
    flat = Dlrm(layout, seed=3)
    model = Dlrm(replace(layout, towers=layouts), seed=3)
    for name in ("a", "b"):
        model.parameters[f"towers.{name}.feature.weight"][:] = np.eye(4)
        model.parameters[f"towers.{name}.feature.bias"][:] = 0
    x, pooled, labels = example(flat, B, DENSE)
    cuts = cuts_of(B)
    plain = run(flat, x, pooled, labels, cuts, B)
    identity = run(model, x, pooled, labels, cuts, B)
    assert identity[0].tobytes() == plain[0].tobytes()
    assert identity[1].tobytes() == plain[1].tobytes()
    assert identity[2][: flat.flat.size].tobytes() == plain[2].tobytes()


TOML = """
[model]
embedding_dim = 4
bottom = [4]
top = [1]
[tables.C1]
rows = 9
[tables.C2]
rows = 9
features = ["C2", "C3"]
"""
SETS = ('model.towers.user=["C3", "C1"]', 'model.towers.item=["C2"]')


def test_config_names_towers_in_the_digest_only_where_there_are_any() -> None:
    plain = config.loads(TOML)
    assert not {"tower", "towers"} & set(plain.header()["model"])
    towers = config.loads(TOML, "x", SETS)
    assert towers.header()["model"]["towers"] == [["user", ["C3", "C1"]], ["item", ["C2"]]]
    layout = towers.model.layout(3, towers.tables)
    assert [tower.keys for tower in layout.towers] == [(2, 0), (1,)]
    assert layout.vector_widths == (4, 4) and layout.interaction_width == 4 + 3
    assert [name for name, _ in layout.tensors()][-4:-2] == [
        "towers.user.joint.weight",
        "towers.user.joint.bias",
    ]
    other_order = config.loads(TOML, "x", SETS[::-1])
    assert other_order.header() != towers.header()
    wider = replace(towers, model=replace(towers.model, tower=TowerModule(2, 1)))
    assert wider.model.layout(3, wider.tables).vector_widths == (4,) * (2 + 2 + 2 + 1)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (SETS[:1], "C2 in no tower; every feature belongs to one"),
        ((*SETS, 'model.towers.more=["C1"]'), "'C1' is already in tower 'user'"),
        ((SETS[0], 'model.towers.item=["C9"]'), "no table looks up 'C9'; the features are C1, C2"),
        ((*SETS, "model.towers.none=[]"), "model.towers.none: a tower needs at least one feature"),
        ((*SETS, "model.towers=3"), "model.towers: expected a table of keys, got 3"),
        ((*SETS, "model.towers.user=3"), "model.towers.user: expected a list, got 3"),
        ((*SETS, "model.tower.joint_vectors=0"), "joint_vectors and feature_vectors are both 0"),
        ((*SETS, "model.tower.width=8"), "set model.tower.width = 0, which takes it"),
        ((*SETS, "model.tower.size=8"), "model.tower.size: no such key"),
        (
            (*SETS, "tables.C2.dim=8", "model.tower.feature_vectors=1"),
            "those of model.towers.user have dims [4, 8]",
        ),
    ],
)
def test_towers_that_do_not_fit_are_refused_in_words(sets: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        config.loads(TOML, "x", sets)
    assert message in str(error.value)


def test_one_digest_on_any_ranks_and_plan() -> None:
    options = settings()
    keys = [key.key for key in bags(options.tables)]
    assert keys == ["u0", "i0", "i1", "u1"]

    def trained(comm: Comm, schemes: list[str]) -> str:
        plan = place(options.tables, schemes, comm.size, min(2, comm.size))
        return train(build(options, comm, plan, RUN_DENSE, huge=False))

    expected = trained(SingleComm(), ["table_wise"] * 3)
    for ranks, schemes in (
        (2, ["row_wise", "data_parallel", "table_wise"]),
        (5, ["table_row_wise", "column_wise", "row_wise"]),
    ):
        assert set(run_threads(ranks, partial(trained, schemes=schemes), ranks_per_node=2)) == {
            expected
        }
