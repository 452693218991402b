"""Which configs does nobody think of? Drawn ones, key by key, and ways of running them that must
change no bit.

A config is drawn from the records that its keys are read by: choices and flags as they are there,
numbers from `VALUES`. What the config's own checks refuse is drawn again, so nothing here repeats
them. `python -m tests.promise --drawn 0-40` runs some ways of each (`promise.py`), `soak.py` trains
such configs through faults.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import get_type_hints

from promise_cases import (
    DAY_TABLES,
    DRAWN,
    GROUPS,
    ON_ONE_NODE,
    PLANS,
    RANKS_PER_NODE,
    THREADS,
    TOO_SMALL,
    Case,
    Family,
)

from neocpu.core.errors import NeocpuError
from neocpu.core.formats import CACHES, SCALED, TRAINED
from neocpu.core.policies import EVICTIONS, POLICIES, SYSTEMS
from neocpu.core.records import limits_at, limits_of, toml_key, toml_text
from neocpu.core.rules import RULES
from neocpu.core.stages import PIPELINES
from neocpu.parallel.exchange.wire_formats import UNIQUE_ROWS, WiresConfig
from neocpu.parallel.settings import ALLTOALL_NAMES, ROUTE_NAMES, SHARED_WINDOWS
from neocpu.tables.kinds import FULL, KIND_NAMES, key_records
from neocpu.tables.kinds.cafe import CafeKeys
from neocpu.tables.kinds.hash import HashKeys
from neocpu.tables.kinds.md import MdKeys
from neocpu.tables.kinds.qr import QrKeys
from neocpu.tables.kinds.tt import TtKeys
from neocpu.tables.kinds.unified import UnifiedKeys
from neocpu.tables.specs.directions import MuonKeys, ShampooKeys
from neocpu.tables.specs.optimizers import DENSE_NAMES, GENERAL, Schedule, SparseOptimizer
from neocpu.tables.specs.specs import TableKeys, bags
from neocpu.tables.tiers.placement import PLACEMENTS
from neocpu.train.config import config as configs
from neocpu.train.config.defaults import as_overrides
from neocpu.train.model.interactions.chain import INTERACTIONS, WITH_FIRST_ORDER
from neocpu.train.model.options import CrossShape, DhenShape, TowerModule
from neocpu.train.model.precision.keys import DYNAMIC, PRECISIONS, PrecisionKeys
from neocpu.train.model.settings import ModelConfig

Values = Mapping[str, tuple[object, ...]]
Keys = dict[str, object]
DENSE_FEATURES = 5  # of the data of `promise_cases.py`
RANKS = (1, 2, 3, 4)
HOW_OFTEN = (*["whole"] * 5, *["stopped"] * 3, *["elsewhere"] * 2, "killed")
UNCUT = ("table_wise", "row_wise", "table_row_wise")  # plans for rows with one scale
MIRROR = "MIRROR"  # the second place for checkpoints, which who starts a run names
EVEN = 4000  # seeds from here on have rules in turn, and every fourth one precision, or days
SIBLINGS = 4  # successive ones that have a rule and formats in common, and so their kernels
LATE = 8000  # seeds from here on have groups of keys that came later, too
TRIES = 30  # drawings of a group of keys, until the config takes them
# Numbers of keys that have no choices. What is missing here and has none keeps its default.
VALUES: dict[type, Values] = {
    SparseOptimizer: {
        "learning_rate": (0.003, 0.05),
        "eps": (1e-8, 1e-4),
        "beta1": (0.5, 0.9),
        "beta2": (0.9, 0.999),
        "weight_decay": (0.01,),
        "initial_accumulator_value": (0.1,),
        "momentum": (0.0, 0.5),
        "eta": (0.1,),
        "max_norm": (0.5,),
        "max_gradient": (0.01,),
        "ar_alpha": (0.1,),
        "min_shrinkage": (0.5,),
        "counter_halflife": (-1, 2, 100),
        "adjustment_iter": (-1, 2),
        "adjustment_ub": (0.5, 2.0),
        "learning_rate_mode": ("equal", "tail_id_lr_increase", "tail_id_lr_decrease"),
        "max_counter": (4.0,),
        "tail_id_threshold": (0.5, 2.0),
        "weight_norm_coefficient": (0.5, 1.0),
        "lower_bound": (1e-5, 0.1),
        "beta": (0.5,),
        "lambda1": (1e-4,),
        "lambda2": (0.01,),
    },
    Schedule: {
        "warmup_steps": (3,),
        "decay_start": (2,),
        "decay_steps": (3,),
        "decay_power": (1, 3),
        "end_learning_rate": (0.001,),
    },
    PrecisionKeys: {
        "loss_scale": (DYNAMIC, 64.0),
        "init_scale": (2.0**30,),
        "growth_factor": (4.0,),
        "backoff_factor": (0.25,),
        "growth_interval": (1, 2),
        "amax_history_len": (1, 3),
        "margin": (1,),
    },
    ShampooKeys: {
        "every": (1, 2, 3),
        "start": (1, 3),
        "spread": (1, 2),
        "max_preconditioner_dim": (9, 13),  # smaller blocks are hundreds, each with a root
        "merge_dims": (13,),
        "sides": (1,),
        "beta2": (0.9,),
        "epsilon": (1e-6,),
        "momentum": (0.5,),
        "roots": ("newton",),  # those of LAPACK are outside the promise
        "ranks_per_group": (1, 2),
    },
    MuonKeys: {
        "steps": (1, 5),
        "momentum": (0.0, 0.8),
        "rate": (0.5, 3.0),
        "ranks_per_group": (1, 2),
    },
    HashKeys: {
        "hash_rows": (2, 7),
        "compression": (2.0, 5.0),
        "hashes": (2, 3),
        "hash": ("mod", "salted"),
    },
    QrKeys: {
        "collisions": (3, 7),
        "compression": (2.0,),
        "partitions": (2, 3),
        "scheme": ("radix", "crt"),
        "operation": ("concat", "add", "mult"),
        "combine": ("bags", "rows"),
    },
    CafeKeys: {
        "compression": (2.0, 4.0),
        "hash_share": (0.3, 0.7),
        "threshold": (3.0,),
        "decay": (0.5,),
        "slots": (2,),
        "every": (1, 2),
    },
    MdKeys: {"alpha": (0.0, 0.3), "own_dim": (1, 3), "full_rows": (0, 20), "compression": (1.5,)},
    TtKeys: {"rank": (1, 3), "cache_rows": (3,), "compression": (2.0,)},
    UnifiedKeys: {
        "shared_rows": (50, 300),
        "shared_tables": (2,),
        "chunks": (2, 4),
        "compression": (2.0,),
    },
    TableKeys: {"rows": (1, 3, 41, 97, 5000), "dim": (1, 4, 6, 12, 13)},
    TowerModule: {"joint_vectors": (0, 2), "feature_vectors": (0, 1), "width": (6,)},
    ModelConfig: {"bottom": ([9], [3, 7]), "top": ([1], [11, 1], [8, 5, 1])},
    CrossShape: {"layers": (1, 2), "rank": (2,)},
    DhenShape: {
        "layers": (1, 2),
        "modules": (["dot"], ["cross", "linear"], ["attention", "dot"]),
        "tokens": (2, 3),
        "rank": (2,),
    },
    WiresConfig: {
        "block": (1, 4, 32),
        "forward_scale": (64.0, 3.0),
        "backward_scale": (1024.0,),
        "dense_scale": (0.25,),
    },
}
# keys that are drawn elsewhere, or keep their defaults
KEPT: Mapping[type, tuple[str, ...]] = defaultdict(tuple) | {
    SparseOptimizer: ("name", "schedule", "steps_before"),
    QrKeys: ("radices",),
    MdKeys: ("budget", "blocks", "block_dims", "queries"),
    TtKeys: ("row_factors", "dim_factors"),
    UnifiedKeys: ("table",),
    TableKeys: ("features", "kind", "kind_above"),
    ModelConfig: (
        "embedding_dim",
        "attention",
        "tower",
        "towers",
        "cross",
        "dhen",
        "wide",
        "heads",
        "precision",
    ),
}
# groups that came later, by dotted keys
LATER: Sequence[Values] = (
    {"data.valid": ("test.h5",), "eval.every_steps": (1, 2), "training.patience": (0, 1, 2)},
    {"eval.averaged": (False,)},
    {"eval.group": ("a",)},
    {"data.sample_weight": ("weight",)},
    {"data.label": ("second",), "model.loss": ("mse",)},
    {
        "model.heads.more.label": ("second",),
        "model.heads.more.loss": ("mse",),
        "model.heads.more.weight": (0.5, 1.0),
        "model.heads.more.top": ([1], [5, 1]),
    },
    {
        "optimizer.scaling.rule": ("cowclip",),
        "optimizer.scaling.base_batch_size": (16, 120),
        "optimizer.scaling.warmup_epochs": (0.0, 0.6),
    },
)
# and of tables, by their kind
LATER_OF_KIND: Mapping[str, Values] = defaultdict(dict) | {
    "qr": {"radices": ([72, 71],)},
    "tt": {
        "row_factors": ([17, 17, 18],),
        "dim_factors": ([2, 3, 2], [1, 4, 1]),
        "cache_rows": (3,),
    },
    "unified": {"table": ("pool",)},
}
# the tables of `promise_cases.py`, whose plans and placements go by these names: their features
TABLES = {
    "one": ["a"],
    "few": ["a", "b"],
    "wide": ["c"],
    "heavy": ["w"],
    "mean-heavy": ["w"],
    "single": ["d"],
    "large": ["b", "d"],
}
WEIGHTED = ("heavy", "mean-heavy")


@dataclass(frozen=True)
class Drawn:
    """A drawn config, with the attributes of a `Family` of the promise.

    seed : that it is drawn from. keys : by dotted names, without those of the data.
    bound : rows are rounded when they leave a cache, so bits depend on ranks, plan and memory,
        which are drawn once for all ways.
    """

    seed: int
    keys: Mapping[str, object] = field(hash=False)
    day: str = ""
    bound: bool = False

    @property
    def rows(self) -> bool:
        """Do rows of some table travel one by one?"""
        return "tables.history.rows" in self.keys

    @property
    def composed(self) -> bool:
        """Are vectors of some tables made of others'?"""
        return self.rows or any(
            key.endswith(".kind") and kind != FULL for key, kind in self.keys.items()
        )

    def toml(self, folder: Path, day: int = 2) -> str:
        """The config file of a run over the data in `folder`; with days, of that day."""
        keys = dict(self.keys)
        keys["data.train"] = str(folder / (f"day-{day}.h5" if self.day else "train.h5"))
        for name in {"data.test", "data.valid"} & {*keys}:
            keys[name] = str(folder / "test.h5")
        if self.day:
            keys["data.rows_by"] = "vocabulary"
            for name, words in DAY_TABLES.items():
                rows = words * day + 1 - (name in TOO_SMALL and self.day == "online")
                keys[f"tables.{name}.rows"] = rows
            keys["tables.large.rows"] = 5000
        return text_of(keys)


def text_of(keys: Mapping[str, object]) -> str:
    """Keys by dotted names as TOML."""
    lines = (
        f"{'.'.join(map(toml_key, key.split('.')))} = {toml_text(value)}\n"
        for key, value in keys.items()
    )
    return "".join(lines)


def refusal(keys: Mapping[str, object]) -> str:
    """Why a config does not take these keys; "": it does."""
    try:
        config = configs.loads(text_of(keys))
        config.layout(DENSE_FEATURES)
        config.dense_runs(DENSE_FEATURES)
    except NeocpuError as error:
        return str(error)
    return ""


def choices_of(record: type, prefix: str = "") -> dict[str, tuple[object, ...]]:
    """What the keys of a record may be drawn from, by their names; those that keep their defaults
    are missing.

    prefix : of the keys in a config, by which some of their limits are known.
    """
    limits = limits_of(record)
    hints = get_type_hints(record)
    choices = {}
    for name in (one.name for one in fields(record)):
        known = limits_at(prefix + name, limits[name], configs.LIMITS).choices
        flags = (False, True) if hints[name] is bool else ()
        if values := VALUES.get(record, {}).get(name) or known or flags:
            choices[name] = values
    return choices


def some_keys(chance: random.Random, record: type, prefix: str, share: float) -> Keys:
    """A share of the keys of a record, with drawn values."""
    return {
        prefix + name: chance.choice(values)
        for name, values in choices_of(record, prefix).items()
        if chance.random() < share
    }


class Drawing:
    """Draws one config: a base that is sound, and groups of keys that it takes."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.keys: Keys = {
            "data.train": "train.h5",
            "data.test": "test.h5",
            "model.embedding_dim": 12,
            "model.bottom": [9, 12],
            "model.top": [11, 1],
            "model.interaction": "cat",
            "training.epochs": 2,
            "training.steps": 5,
            "training.on_nonfinite": "skip",  # some rates are too high
            "parallel.ranks_per_node": 2,
            "tables.one.features": ["a"],
            "tables.one.rows": 1,
        }
        self.turn = seed - EVEN
        self.rules = configs.TABLE_RULES
        self.formats: tuple[str, ...] = ("fp32", *TRAINED)
        if self.turn >= 0:
            family, _ = divmod(self.turn, SIBLINGS)
            self.rules = (self.rules[family % len(self.rules)],)
            self.formats = tuple(random.Random(f"formats of {family}").sample(self.formats, 3))
        # tables that live in one shared table must have the same keys
        self.shared = some_keys(self.chance, UnifiedKeys, "", 0.5)

    def add(self, draw: Callable[[], Keys], tries: int = TRIES) -> None:
        """Add a group of keys, drawn until the config takes it; none where it never does."""
        for _ in range(tries):
            keys = self.keys | draw()
            if not refusal(keys):
                self.keys = keys
                return

    def drawn(self) -> Drawn:
        """The config."""
        chance = self.chance
        day = chance.choice(("", "", "", "", "next", "online"))
        if self.turn >= 0:
            day = ("", "online", "", day)[self.turn % SIBLINGS]
        bound = not day and chance.random() < 0.2
        kinds = day != "next" and chance.random() < 0.5
        self.add(self._training)
        if bound:
            self.add(self._caches)
        for name, features in TABLES.items():
            self.add(lambda name=name, features=features: self._table(name, features, kinds, bound))
        self.add(self._model)
        if not day and chance.random() < 0.25:
            self.add(self._history)
        self.add(lambda: self._optimizer("sparse"))
        self.add(lambda: self._optimizer("dense"))
        if chance.random() < 0.4:
            self.add(lambda: some_keys(chance, WiresConfig, "wires.", 0.5))
        if chance.random() < 0.3:
            self.add(self._groups)
        # the last to be drawn, so that seeds keep the other keys that they had before it was
        if chance.random() < 0.25:
            self.add(lambda: some_keys(chance, ShampooKeys, "optimizer.shampoo.", 0.6))
        elif chance.random() < 0.2:
            self.add(lambda: some_keys(chance, MuonKeys, "optimizer.muon.", 0.6))
        if bound and chance.random() < 0.4:
            self.add(lambda: system_keys(chance.choice(SYSTEMS)))
        if chance.random() < 0.25 or (self.turn >= 0 and self.turn % SIBLINGS == 0):
            self.add(self._precision)
        if chance.random() < 0.2:
            self.add(lambda: {"optimizer.trust_ratio": True})
        if self.seed >= LATE:
            self._add_later(day)
        return Drawn(self.seed, self.keys, day, bound)

    def _precision(self) -> Keys:
        narrow = {"model.precision.format": self.chance.choice(PRECISIONS[1:])}
        return some_keys(self.chance, PrecisionKeys, "model.precision.", 0.3) | narrow

    def _add_later(self, day: str) -> None:
        chance = self.chance
        if day:
            self.keys["data.rows_by"] = "vocabulary"
        later = [*LATER, {"training.init_state": (False,)}] if day == "next" else LATER
        for group in later:
            if chance.random() < 0.3:
                self.add(lambda group=group: self._one_of_each(group))
        if "optimizer.groups.slow.tables" in self.keys:
            self.add(lambda: {"optimizer.groups.slow.weight_decay": chance.choice((0.5, 2.0))})
        if chance.random() < 0.3:
            self.add(self._towers)
        for name in TABLES:
            kind = self.keys.get(f"tables.{name}.kind", FULL)
            keys = {"kind_above": (3, 41)} | LATER_OF_KIND[kind] if kind != FULL else {}
            self._add_alone(f"tables.{name}.", keys)
        if "model.precision.format" in self.keys:
            self._add_alone("model.precision.", choices_of(PrecisionKeys))

    def _add_alone(self, prefix: str, choices: Values) -> None:
        """Add a share of keys, each where the config takes it."""
        for name, values in choices.items():
            if self.chance.random() < 0.5:
                self.add(lambda group={prefix + name: values}: self._one_of_each(group), 3)

    def _one_of_each(self, group: Values) -> Keys:
        return {key: self.chance.choice(values) for key, values in group.items()}

    def _towers(self) -> Keys:
        """Two towers of all features that are no weights of a linear term."""
        names = [bag.key for bag in bags(configs.loads(text_of(self.keys)).model_tables)]
        self.chance.shuffle(names)
        cut = self.chance.randint(1, len(names) - 1)
        towers = {"model.towers.left": names[:cut], "model.towers.right": names[cut:]}
        return towers | some_keys(self.chance, TowerModule, "model.tower.", 0.5)

    def _training(self) -> Keys:
        chance = self.chance
        return {
            "training.batch_size": chance.choice((33, 58, 61)),
            "training.leaves": chance.choice((1, 4, 8, 16)),
            "training.seed": chance.randrange(1 << 30),
            "data.shuffle": chance.random() < 0.8,
            "data.shuffle_run": chance.choice((1, 1, 5)),
            "eval.ema": chance.choice((0.0, 0.0, 0.75)),
            "checkpoint.every_steps": chance.choice((2, 3, 5)),
            "eval.every_steps": chance.choice((0, 2)),
        }

    def _caches(self) -> Keys:
        """Caches wider than rows."""
        chance = self.chance
        return {
            "memory.placement": chance.choice([n for n, p in PLACEMENTS.items() if p.caches]),
            "memory.cache_format": chance.choice(tuple(CACHES)),
            "memory.policy": chance.choice(EVICTIONS),
            "memory.prefetch": chance.randrange(3),
            "memory.lookahead": chance.choice((1, 8)),
        }

    def _table(self, name: str, features: list[str], kinds: bool, bound: bool) -> Keys:
        chance = self.chance
        prefix = f"tables.{name}."
        keys = some_keys(chance, TableKeys, prefix, 0.5)
        narrow = SCALED if bound else ()
        # most tables in formats that need no cache
        forms = narrow if narrow and chance.random() < 0.6 else self.formats
        keys |= {
            prefix + "rows": chance.choice(VALUES[TableKeys]["rows"]),
            prefix + "features": features,
            prefix + "pooling": chance.choice(("sum", "mean")),
            prefix + "weighted": name in WEIGHTED,
            prefix + "format": chance.choice(forms),
        }
        kind = chance.choice(KIND_NAMES) if kinds and chance.random() < 0.6 else FULL
        keys[prefix + "kind"] = kind
        if kind == "unified":
            keys |= {prefix + key: value for key, value in self.shared.items()}
        elif kind != FULL:
            keys |= some_keys(chance, key_records()[kind], prefix, 0.5)
        return keys

    def _model(self) -> Keys:
        chance = self.chance
        keys = some_keys(chance, ModelConfig, "model.", 0.5)
        dim = chance.choice((4, 6, 12, 20))
        bottom = keys.get("model.bottom", [9])
        assert isinstance(bottom, list)
        keys |= {
            "model.embedding_dim": dim,
            "model.bottom": [*bottom, dim],
            **some_keys(chance, CrossShape, "model.cross.", 0.5),
            **some_keys(chance, DhenShape, "model.dhen.", 0.5),
        }
        # most interactions want vectors of one width
        if chance.random() < 0.7:
            keys |= {
                key: dim for key in self.keys if key.startswith("tables.") and key.endswith(".dim")
            }
        chains = (["dcnv2", "dot"], ["dhen", "cat"])
        keys["model.interaction"] = chance.choice((*INTERACTIONS, *chains))
        if keys["model.interaction"] in WITH_FIRST_ORDER:
            keys |= {
                "tables.linear.features": ["c"],
                "tables.linear.rows": 100,
                "tables.linear.dim": 1,
                "model.wide": ["linear"],
            }
        for key in ("model.embedding_format", "model.embedding_rounding"):
            keys.pop(key, None)  # tables name their own
        return keys

    def _history(self) -> Keys:
        chance = self.chance
        return {
            "tables.history.rows": 40,
            "tables.history.features": ["c"],
            "tables.history.pooling": "none",
            "model.attention.c@history.target": "a@one",
            "model.attention.c@history.hidden": [chance.choice((1, 5))],
            "model.attention.c@history.normalise": chance.choice(("none", "softmax")),
        }

    def _optimizer(self, section: str) -> Keys:
        """A rule with keys that it reads, and often a schedule."""
        chance = self.chance
        prefix = f"optimizer.{section}."
        names = self.rules if section == "sparse" else tuple(DENSE_NAMES)
        name = chance.choice(names)
        options = RULES[DENSE_NAMES.get(name, name)].options
        drawn = some_keys(chance, SparseOptimizer, prefix, 0.5)
        names_of_all = [one.name for one in fields(SparseOptimizer)]
        general = names_of_all[: names_of_all.index("momentum")]
        read = (*general, *options, *(GENERAL if section == "sparse" else ()))
        keys = {key: value for key, value in drawn.items() if key.removeprefix(prefix) in read}
        keys[prefix + "name"] = name
        if chance.random() < 0.3:
            keys |= some_keys(chance, Schedule, prefix + "schedule.", 0.5)
        return keys

    def _groups(self) -> Keys:
        chance = self.chance
        return {
            "optimizer.groups.slow.tables": ["few*", "one*"],
            "optimizer.groups.slow.dense": ["bottom.*"],
            "optimizer.groups.slow.learning_rate": 0.5,
            "optimizer.groups.slow.warmup_steps": chance.choice((-1, 3)),
            "optimizer.clip_norm": chance.choice((0.0, 0.01)),
        }


@cache
def drawn(seed: int) -> Drawn:
    """The config of a seed, the same in every process."""
    return Drawing(seed).drawn()


def takes(family: Family | Drawn, override: str) -> bool:
    """Does the config of a family take it?"""
    if family.day == "online":
        return False
    try:
        configs.loads(family.toml(Path()), overrides=[override])
    except NeocpuError:
        return False
    return True


def ways(chance: random.Random, family: Family | Drawn) -> Iterator[str]:
    """Overrides that change no bit of a family; if it is bound, those that move no row."""
    yield f"training.pipeline={chance.choice(tuple(PIPELINES))}"
    yield f"training.bucket_bytes={chance.choice((0, 1 << 16))}"
    yield f"parallel.route={chance.choice(ROUTE_NAMES)}"
    yield f"parallel.alltoall={chance.choice(ALLTOALL_NAMES)}"
    yield f"parallel.shared_windows={chance.choice(SHARED_WINDOWS)}"
    yield f"parallel.unique_rows={chance.choice(UNIQUE_ROWS)}"
    yield f"parallel.machine={chance.choice(('', 'zionex'))}"
    yield f"data.read_ahead={chance.choice((0, 2))}"
    readers = chance.choice((0, 0, 1, 2))
    yield f"readers.count={readers}"
    yield f"checkpoint.full_every={chance.choice((0, 1, 3))}"
    yield f"checkpoint.memory={chance.choice((0, 128 << 20))}"
    yield f"checkpoint.mirror={chance.choice(('', '', MIRROR))}"
    yield f"checkpoint.keep={chance.choice((1, 2, 4))}"
    yield f"checkpoint.keep_every_steps={chance.choice((0, 2))}"
    yield f"training.log_every={chance.choice((0, 1))}"
    if family.bound:
        return
    if family.day == "online":
        yield f"checkpoint.every_files={chance.choice((0, 1, 2))}"
    elif takes(family, "checkpoint.keep_best=true"):
        yield f"checkpoint.keep_best={chance.choice(('false', 'true'))}"
    parity = chance.choice((0, 0, 1, 2)) if takes(family, "checkpoint.parity=1") else 0
    yield f"checkpoint.parity={parity}"
    yield f"checkpoint.parity_every={chance.choice((1, 1, 3))}"
    # enough for all of them, in places that they share
    held = chance.choice((0, 1 << 24)) if takes(family, "memory.activations=1") else 0
    yield f"memory.activations={held}"
    if held and chance.random() < 0.5:
        yield "memory.activations_in=ssd"
    yield f"parallel.planner={chance.choice(('greedy', 'search'))}"
    yield f"memory.policy={chance.choice(EVICTIONS)}"
    yield f"memory.prefetch={chance.randrange(3)}"
    yield f"memory.lookahead={chance.choice((1, 8))}"
    warm = not readers and chance.random() < 0.5  # it counts the rows of the whole log
    yield f"memory.warm={str(warm).lower()}"
    yield f"memory.placement={'hbm' if parity else chance.choice((*PLACEMENTS, 'auto'))}"
    if not family.composed and chance.random() < 0.5:
        groups = chance.choice((GROUPS, '["w", "c"]'))
        yield f"data.deduplicate={groups}"
    if not (parity or readers) and chance.random() < 0.4:
        system = chance.choice(SYSTEMS)
        if takes(family, f"memory.policy={system}"):
            yield from as_overrides(system_keys(system))


def system_keys(system: str) -> Keys:
    """The policy of a published system, and the keys that belong to it."""
    keys = {f"memory.{key}": value for key, value in POLICIES[system].keys.items()}
    return {"memory.policy": system, **keys}


def drawn_cases(seed: int, count: int, counts: Sequence[int] = RANKS) -> list[Case]:
    """So many ways of running a drawn config, the first one undisturbed, on one rank.

    counts : of ranks, that are drawn from.
    """
    chance = random.Random(f"ways of {seed}")
    family = drawn(seed)
    ranks = chance.choice(counts)
    plan = chance.choice(UNCUT)
    cases = []
    for number in range(count):
        how = "whole"
        if not family.bound:
            ranks = chance.choice(counts) if number else 1
            plan = chance.choice(tuple(PLANS))
        if number:
            how = chance.choice(("whole", "killed") if family.bound else HOW_OFTEN)
        overrides = list(ways(chance, family))
        whole = "checkpoint.parity=0" in overrides
        if ranks == 4 and plan in ON_ONE_NODE and not family.composed and whole:
            overrides.append(f"parallel.towers={chance.choice(('false', 'true'))}")
        elif ranks % 2 == 0 and plan != "mixed" and whole and not (family.rows or family.bound):
            # a group is a rank or whole nodes
            groups = [g for g in (1, 2, ranks) if ranks in (g, g * RANKS_PER_NODE) or g == 1]
            overrides.append(f"parallel.replica_groups={chance.choice(groups)}")
        elif plan == "auto" and how == "whole" and number % 2 and not family.bound:
            # all rows on the last rank, and none on the others
            overrides.append(f'parallel.pins={{ "*" = "{ranks - 1}" }}')
        threads = chance.choice(THREADS)
        name = f"{DRAWN}{seed}"
        case = Case(name, ranks, plan, threads, how=how, ways=tuple(overrides))
        cases.append(case)
    return cases
