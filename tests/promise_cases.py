"""Which runs must end with the same bits? A small adversarial job, and every way of running it; see
`promise.py`.

A case says how one run is done: ranks, plan, threads, route, memory, and whether it is interrupted.
A family says what is learnt (model, tables, optimizers): all cases of a family must reach one
digest.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import BagColumn, FeatureColumn
from neocpu.kernels.twins.numbers.philox import splitmix64
from neocpu.parallel.settings import ALLTOALL_NAMES
from neocpu.parallel.sharding.schemes import SCHEMES

if TYPE_CHECKING:
    from promise_draws import Drawn

RANKS = (1, 2, 3, 4, 8)
THREADS = (1, 2)
ROUTES = ("direct", "reduce_scatter", "two_level")
RANKS_PER_NODE = 2  # so that three ranks are a whole node and half a node
HOW = ("whole", "stopped", "elsewhere")
PIPELINES = ("off", "input", "full")
STEPS = 5  # of 4 in an epoch, the fourth a partial batch
MIXED = {
    "one*": "data_parallel",
    "few*": "column_wise",
    "wide*": "grid_shard",
    "heavy*": "row_wise",
    "mean*": "table_row_wise",
    "single*": "table_wise",
    "large*": "table_column_wise",
}
PLANS: dict[str, str | dict[str, str]] = {
    **{name: name for name in SCHEMES},
    "mixed": MIXED,
    "auto": "auto",
}
# who chooses under "auto", by threads of a rank
PLANNERS = {1: "greedy", 2: "search"}
# with so many threads, "mixed" is read from a plan file that was edited
EDITED_WITH_THREADS = 2
_LEVELS = (
    '{ "one*" = "ddr", "few*" = "hbm_over_ddr", "wide*" = "ddr_over_ssd", "*" = '
    '"hbm_over_ddr_over_ssd" }'
)
# where tables live; caches hold a fifth of a table's rows, or 32
MEMORIES: dict[str, tuple[str, ...]] = {
    "whole": (),
    "cached": ("memory.placement=hbm_over_ddr", "memory.policy=lfu", "memory.prefetch=0"),
    "levels": (f"memory.placement={_LEVELS}", "memory.policy=bagpipe", "memory.prefetch=2"),
}
# what travels once, by ranks, plan and threads
GROUPS = '[["a", "b", "d"], "c", "w"]'
ONCE: tuple[tuple[str, ...], ...] = (
    (),
    ("parallel.unique_rows=auto",),
    (f"data.deduplicate={GROUPS}",),
    ('data.deduplicate=["w", "c"]', "parallel.unique_rows=on"),
)
# options that take turns over the combinations of the others, so that pairs of them occur too
TURNS = ("pipeline", "once", "alltoall", "replica_groups")
# plans that keep each table on one node
ON_ONE_NODE = ("table_wise", "table_row_wise", "table_column_wise")
# plans where a route has something to carry
PARTIAL_WORDS = ("row_wise", "table_row_wise", "grid_shard", "mixed")
# What the code generator is told to compile for, FMA always among it; "host" is all that this
# machine has. "plain": the textbook kernels, for this machine.
CPUS: dict[str, dict[str, str]] = {
    "host": {},
    "x86-64-v3": {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""},  # AVX2, no AVX-512
    "x86-64-v2+fma": {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": "+avx,+fma"},  # no AVX2
    "plain": {"NEOCPU_KERNELS": "plain"},
}
ROWS = 203  # no multiple of a batch
# of each feature, codes in the vocabulary of the first day; the second day has twice as many
WORDS = {"a": 3, "b": 15, "c": 30, "d": 20, "w": 12}
MORE_LABELS = ("second", "weight")  # numbers from 0 to 1.5, that drawn configs ask for
DOMAINS = {"a": 7, "b": 64, "c": 90, "d": 60, "w": 30}  # codes of a feature
# a run over two files (`Family.day`): its steps, and where it stops: in a file, between the files
ONLINE_STEPS = 7
ONLINE_STOPS = (1, 4, 5, 6)

_TABLES = """
one = {{ rows = 1, features = ["a"] }}
few = {{ rows = 3, dim = {d1}, features = ["a", "b"], pooling = "mean"{few} }}
wide = {{ rows = 97, dim = {d2}, features = ["c"], pooling = "mean"{wide} }}
heavy = {{ rows = 41, features = ["w"], weighted = true{heavy} }}
mean-heavy = {{ rows = 6, dim = {d1}, features = ["w"], weighted = true, pooling = "mean"{mean} }}
single = {{ rows = 5, features = ["d"]{single} }}
large = {{ rows = 5000, dim = {d2}, features = ["b", "d"]{large} }}
"""
# further keys of some tables
_NARROW = {"large": ', format = "fp16", rounding = "stochastic"', "wide": ', format = "fp8_e4m3"'}
_KINDS = {
    "few": ', kind = "md", own_dim = 3',
    "wide": ', kind = "cafe", compression = 2, threshold = 3, every = 2',
    "heavy": ', kind = "qr", collisions = 7',
    "mean": ', kind = "hash", hash_rows = 4, hashes = 2, signed = true',
    "large": ', kind = "unified", shared_rows = 700, chunks = 4, table = "large"',
}
# tables whose rows come one by one
_ROWS = {
    "wide": ', kind = "tt", rank = 3',
    "single": ', kind = "hash", hash_rows = 3, hashes = 2, signed = true',
}
_HISTORY = """
history = { rows = 40, features = ["c"], pooling = "none" }
"""
_ATTENTION = """
[model.attention."c@history"]
target = "a@one"
hidden = [5]
"""
# rates by group, a clip by the norm, an average of the parameters
_EXTRAS = """
[optimizer.groups.slow]
tables = ["few*", "one"]
dense = ["bottom.*"]
learning_rate = 0.5
warmup_steps = 3
[eval]
ema = 0.75
"""

_CONFIG = """
[data]
train = "{train}"
test = "{test}"
{data}
[model]
embedding_dim = {dim}
bottom = [9, {dim}]
top = [11, 1]
interaction = {interaction}
diagonal = {diagonal}
loss = "{loss}"
[optimizer]
sparse = {sparse}
dense = {dense}
[training]
batch_size = {batch}
epochs = 2
steps = {steps}
seed = 20221
leaves = {leaves}
[parallel]
ranks_per_node = {ranks_per_node}
[wires]
{wires}
{more}
[tables]
"""


@dataclass(frozen=True)
class Family:
    """What is learnt: everything that decides the bits but the data, which all families share."""

    sparse: str
    dense: str
    interaction: str | tuple[str, ...] = "cat"
    diagonal: bool = False
    loss: str = "bce"
    dims: tuple[int, int, int] = (12, 20, 5)  # of most tables, and of some where dims may differ
    batch: int = 61
    leaves: int = 16
    narrow: bool = False  # are two tables kept in few bits?
    kinds: bool = False  # are tables composed of others?
    rows: bool = False  # are rows of a table made at home, and those of another not pooled?
    more: str = ""  # further sections
    wires: str = ""  # keys of the section [wires]
    # "next": it starts from a model of the first day; "online": both days, file after file
    day: str = ""
    bound: bool = False  # do ranks, plan and memory decide bits, as rows are narrower in caches?

    @property
    def in_blocks(self) -> bool:
        """Does each rank update all dense parameters, in blocks?"""
        return "optimizer.shampoo" in self.more or "optimizer.muon" in self.more

    @property
    def composed(self) -> bool:
        """Are vectors of some tables made of others'?"""
        return self.kinds or self.rows

    def toml(self, folder: Path, day: int = 2) -> str:
        """The config file of a run over the data in `folder`; with days, of that day."""
        dim, d1, d2 = self.dims
        head = _CONFIG.format(
            train=folder / (f"day-{day}.h5" if self.day else "train.h5"),
            test=folder / "test.h5",
            data='rows_by = "vocabulary"' if self.day else "",
            dim=dim,
            interaction=json.dumps(self.interaction),
            diagonal=str(self.diagonal).lower(),
            loss=self.loss,
            sparse=self.sparse,
            dense=self.dense,
            batch=self.batch,
            steps=STEPS,
            leaves=self.leaves,
            ranks_per_node=RANKS_PER_NODE,
            wires=self.wires,
            more=self.more,
        )
        keys = dict.fromkeys(("few", "wide", "heavy", "mean", "single", "large"), "")
        keys |= _NARROW if self.narrow else {}
        keys |= _KINDS if self.kinds else {}
        keys |= _ROWS if self.rows else {}
        tables = _TABLES.format(d1=d1, d2=d2, **keys)
        if self.rows:
            tables += _HISTORY
        if not self.day:
            return head + tables
        for name, words in DAY_TABLES.items():
            rows = words * day + 1 - (name in TOO_SMALL and self.day == "online")
            tables = re.sub(rf"(?m)^{name} = {{ rows = \d+", f"{name} = {{ rows = {rows}", tables)
        return head + tables


# of tables whose rows grow with the vocabulary, the words of a day
DAY_TABLES = {
    "one": WORDS["a"],
    "few": WORDS["b"],
    "wide": WORDS["c"],
    "heavy": WORDS["w"],
    "mean-heavy": WORDS["w"],
    "single": WORDS["d"],
}
TOO_SMALL = ("single", "heavy")  # an online run leaves the last code without a row
MAIN = "rowwise_adagrad"
FAMILIES = {
    MAIN: Family(
        (
            '{ name = "exact_rowwise_adagrad", learning_rate = 0.05, weight_decay = 0.001, '
            'weight_decay_mode = "l2" }'
        ),
        '{ name = "adagrad", learning_rate = 0.03 }',
        interaction="dot",
        dims=(20, 20, 20),  # five column blocks of four, for two, three, four and eight ranks
    ),
    "adam": Family(
        '{ name = "adam", learning_rate = 0.01, weight_decay = 0.01, weight_decay_mode = '
        '"decoupled", '
        "schedule = { warmup_steps = 3, decay_start = 3, decay_steps = 5 } }",
        '{ name = "adam", learning_rate = 0.01 }',
        leaves=4,
        loss="mse",
    ),
    "adagrad": Family(
        '{ name = "exact_adagrad", learning_rate = 0.05, initial_accumulator_value = 0.1 }',
        '{ name = "sgd", learning_rate = 0.001 }',
        interaction="dot",
        diagonal=True,
        dims=(12, 12, 12),
        leaves=8,
    ),
    "sgd": Family(
        '{ name = "exact_sgd", learning_rate = 0.1 }',
        '{ name = "sgd", learning_rate = 0.1 }',
        dims=(13, 1, 6),
        batch=58,
        leaves=2,
    ),
}
FAMILIES["narrow"] = replace(FAMILIES[MAIN], narrow=True)
FAMILIES["wires"] = replace(
    FAMILIES[MAIN],
    wires='forward = "fp16"\nbackward = "bf16"\ndense = "bf16"\nbackward_scale = 1024.0',
)
# blocks of four columns, at which all plans cut
FAMILIES["blocks"] = replace(
    FAMILIES["adam"],
    sparse='{ name = "ftrl", learning_rate = 0.1, beta = 0.5, lambda1 = 1e-4, lambda2 = 0.01 }',
    dims=(20, 20, 20),
    wires='forward = "int8"\nbackward = "fp8"\nblock = 4',
)
FAMILIES["kinds"] = replace(
    FAMILIES[MAIN],
    sparse=(
        '{ name = "adam_with_cowclip", learning_rate = 0.01, weight_norm_coefficient = 1.0, '
        "lower_bound = 1e-5 }"
    ),
    dense='{ name = "adam", learning_rate = 0.01 }\nclip_norm = 0.01',
    interaction=("dcnv2", "dot"),
    kinds=True,
    more=_EXTRAS,
)
FAMILIES["rows"] = replace(FAMILIES[MAIN], interaction=("dhen", "cat"), rows=True, more=_ATTENTION)
FAMILIES["shampoo"] = replace(
    FAMILIES["wires"],
    dense='{ name = "adam", learning_rate = 0.01 }',
    more="""
[optimizer.shampoo]
every = 2
spread = 1
max_preconditioner_dim = 5
""",
)
# scales of fp8 follow from the largest numbers of all ranks, rounding from their samples
_PRECISION = """
[model.precision]
format = "fp8"
rounding = "stochastic"
amax_history_len = 2
"""
FAMILIES["precision"] = replace(FAMILIES[MAIN], more=_PRECISION)
# matrices are dealt out to ranks; the first step overflows and is left out
_MUON = """
[optimizer.muon]
steps = 2
rate = 0.5
scale = "rms"
[model.precision]
format = "fp16"
init_scale = 268435456.0
backoff_factor = 0.000244140625
growth_interval = 2
"""
FAMILIES["muon"] = replace(FAMILIES["shampoo"], more=_MUON)
FAMILIES["lamb"] = replace(
    FAMILIES["shampoo"],
    dense='{ name = "adam", learning_rate = 0.01 }\ntrust_ratio = true',
    more='[model.precision]\nformat = "bf16"\nrounding = "stochastic"\nweights = "none"' + _EXTRAS,
)
FAMILIES["next day"] = replace(FAMILIES["adam"], day="next")
FAMILIES["online"] = replace(FAMILIES["narrow"], day="online")
DRAWN = "drawn "  # and a seed: the name of a family of `promise_draws.py`


def family_of(name: str) -> "Family | Drawn":
    """The family of this name."""
    if not name.startswith(DRAWN):
        return FAMILIES[name]
    from promise_draws import drawn

    return drawn(int(name.removeprefix(DRAWN)))


@dataclass(frozen=True)
class Case:
    """One run. how: "whole"; "stopped" by a signal and resumed; "elsewhere": resumed from another
    plan and rank count; "killed" and resumed (of drawn families only).

    ways : of a drawn family: overrides in place of what other values mean.
    """

    family: str
    ranks: int
    plan: str
    threads: int
    route: str = "direct"
    how: str = "whole"
    memory: str = "whole"
    ways: tuple[str, ...] = ()

    @property
    def learnt(self) -> "Family | Drawn":
        """The family."""
        return family_of(self.family)

    @property
    def sets(self) -> list[str]:
        """Overrides that say how it is run: its `ways`, else what its other values mean."""
        if self.ways:
            return list(self.ways)
        return [
            f"parallel.route={self.route}",
            f"parallel.machine={self.machine}",
            f"training.pipeline={self.pipeline}",
            "training.bucket_bytes=0",
            f"parallel.alltoall={self.alltoall}",
            f"parallel.towers={str(self.towers).lower()}",
            f"parallel.replica_groups={self.replica_groups}",
            f"parallel.planner={PLANNERS[self.threads]}",
            *MEMORIES[self.memory],
            *self.once,
        ]

    @property
    def stop(self) -> int:
        """Steps before the interruption."""
        turn = (self.ranks + list(PLANS).index(self.plan)) % (STEPS - 1)
        return ONLINE_STOPS[turn] if self.learnt.day == "online" else 1 + turn

    @property
    def machine(self) -> str:
        """The machine on which every other case reckons its traffic."""
        return ("", "zionex")[(self.ranks + list(PLANS).index(self.plan)) % 2]

    @property
    def pipeline(self) -> str:
        """What overlaps in its steps."""
        turn = self.ranks + list(PLANS).index(self.plan) + list(MEMORIES).index(self.memory)
        return PIPELINES[(turn + HOW.index(self.how) + self.threads) % len(PIPELINES)]

    @property
    def once(self) -> tuple[str, ...]:
        """What travels once: equal rows, repeated bags of groups of features; or nothing."""
        number = self.ranks + list(PLANS).index(self.plan) + self.threads
        options = ONCE[number % len(ONCE)]
        if self.learnt.rows:  # lookups of tables that do not pool are no bags
            return tuple(option for option in options if "deduplicate" not in option)
        return options

    @property
    def alltoall(self) -> str:
        """How its exchanges travel."""
        number = list(PLANS).index(self.plan) + HOW.index(self.how) + ROUTES.index(self.route)
        return ALLTOALL_NAMES[number % len(ALLTOALL_NAMES)]

    @property
    def towers(self) -> bool:
        """Does each node look up its own tables for all samples? Where no table is on two nodes."""
        even = self.ranks > RANKS_PER_NODE and self.ranks % RANKS_PER_NODE == 0
        apart = not (self.learnt.composed or self.learnt.in_blocks)
        fit = even and self.plan in ON_ONE_NODE and apart
        return fit and HOW.index(self.how) < self.threads

    @property
    def replica_groups(self) -> int:
        """Groups of ranks with a copy of every table each: two wherever the others allow it."""
        edited = self.plan == "mixed" and self.threads == EDITED_WITH_THREADS
        fit = self.ranks % 2 == 0 and not (edited or self.towers or self.learnt.rows)
        return 2 if fit and (HOW.index(self.how) + ROUTES.index(self.route)) % 2 else 1

    @property
    def name(self) -> str:
        """For people."""
        if self.ways:
            way = f"{self.ranks} rank(s), {self.plan}, {self.threads} thread(s), {self.how}"
            return f"{self.family}: {way}, {' '.join(self.ways)}"
        way = (
            f"{self.ranks} rank(s), {self.plan}, {self.route}, {self.threads} thread(s), memory "
            f"{self.memory}, pipeline {self.pipeline}, {self.alltoall}, {self.how}"
        )
        return f"{self.family}: {way}"


def other_plan(plan: str) -> str:
    """The plan under which a run begins that is to be resumed elsewhere as `plan`."""
    names = list(PLANS)
    return names[(names.index(plan) + 3) % len(names)]


def chosen(scope: str, ranks: Sequence[int] = RANKS) -> dict[str, list[Case]]:
    """The cases of a scope ("full", "pairwise" or "quick") by CPU, a name in `CPUS`."""
    small_ranks = [count for count in ranks if count < 8] or list(ranks)
    if scope == "quick":
        return {
            "host": [
                Case(MAIN, count, plan, 2, how="stopped")
                for count in ranks
                for plan in ("mixed", "auto")
            ]
        }
    if scope == "pairwise":
        other_families = [
            Case(
                name,
                count,
                "mixed",
                2,
                how="elsewhere",
                memory="levels" if family.day else "whole",
            )
            for name, family in FAMILIES.items()
            if name != MAIN
            for count in small_ranks[-1 if family.wires or family.composed else -2 :]
        ]
        return {
            "host": pairwise(product(ranks, memories=MEMORIES)) + other_families,
            "x86-64-v3": [Case(MAIN, 1, "table_wise", 2)],
            "plain": [Case(MAIN, 2, "mixed", 1), Case(MAIN, 2, "column_wise", 1, memory="cached")],
        }
    other_families = [
        case
        for name, family in FAMILIES.items()
        if name != MAIN
        for case in pairwise(product(ranks, name, MEMORIES if family.day else ("whole",)))
    ]
    fewer = pairwise(product(ranks)) + [
        Case(name, small_ranks[-1], "mixed", 2) for name in FAMILIES if name != MAIN
    ]
    other_families += [
        case for case in pairwise(product(ranks, memories=MEMORIES)) if case.memory != "whole"
    ]
    return {"host": product(ranks) + other_families} | {cpu: fewer for cpu in CPUS if cpu != "host"}


def product(
    ranks: Iterable[int] = RANKS, family: str = MAIN, memories: Iterable[str] = ("whole",)
) -> list[Case]:
    """Every combination; routes only where something travels in partial words."""
    return [
        Case(family, count, plan, threads, route, how, memory)
        for count in ranks
        for plan in PLANS
        for route in (ROUTES if plan in PARTIAL_WORDS and count > 1 else ROUTES[:1])
        for threads in THREADS
        for how in HOW
        for memory in memories
    ]


def pairwise(cases: Sequence[Case]) -> list[Case]:
    """A few cases of one family in which every pair of values occurs that occurs in any of them;
    greedy, no chance.
    """

    def values(case: Case) -> list[tuple[str, object]]:
        axes = [(name, value) for name, value in vars(case).items() if name != "family"]
        return axes + [(name, getattr(case, name)) for name in TURNS]

    pairs = {case: set(combinations(values(case), 2)) for case in cases}
    todo = set().union(*pairs.values())
    used: Counter[tuple[str, object]] = Counter()
    cover = []
    while todo:
        best = max(
            cases,
            key=lambda case: (len(pairs[case] & todo), -sum(used[value] for value in values(case))),
        )
        cover.append(best)
        todo -= pairs[best]
        used.update(values(best))
    return sorted(cover, key=cases.index)


def _words(name: int, count: int) -> np.ndarray:
    """uint64[count] of noise."""
    return np.array([splitmix64(name << 32 | i) for i in range(count)], np.uint64)


def _below(name: int, count: int, bound: int) -> np.ndarray:
    """int64[count] in [0, bound)."""
    return ((_words(name, count) >> np.uint64(33)) % np.uint64(bound)).astype(np.int64)


def _weights(name: int, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and weights of bags whose exact sums need several words: from 2^-60 up, and pairs of
    2^40 that cancel.
    """
    total = int(lengths.sum())
    codes = _below(name, total, 30).astype(np.uint32)
    sign = np.where(_below(name + 1, total, 2) == 0, 1.0, -1.0)
    weights = np.ldexp(
        sign * (1 + _below(name + 2, total, 1 << 20) / 2.0**20), _below(name + 3, total, 62) - 60
    )
    ends = np.cumsum(lengths)
    # same row, opposite weights, far apart in the bag
    for bag in np.flatnonzero(lengths >= 4)[::2]:
        first = ends[bag] - lengths[bag]
        last = ends[bag] - 1
        codes[last] = codes[first]
        weights[first] = 2.0**40
        weights[last] = -(2.0**40)
    return codes, weights.astype(np.float32)


def write_data(folder: Path) -> None:
    """train.h5 and test.h5: multi-hot, empty, weighted and fixed bags, dense numbers of many
    magnitudes. day-1.h5 and day-2.h5: the same, with vocabularies of which one grows.
    """
    write_file(folder / "train.h5", 100, ROWS)
    write_file(folder / "test.h5", 200, 50)
    for day in (1, 2):
        write_file(folder / f"day-{day}.h5", 200 + 100 * day, ROWS, day)


def _vocabulary(name: str, day: int) -> np.ndarray:
    """Codes that a feature may have on a day, in another order than on others."""
    codes = np.argsort(_words(900 + ord(name), DOMAINS[name]))[: day * WORDS[name]]
    return codes[::-1].astype(np.uint64 if name == "b" else np.uint32)


def write_file(path: Path, at: int, rows: int, day: int = 0, poisoned: bool = False) -> None:
    """One file of samples; with a day, its features have vocabularies; poisoned: it has a NaN."""
    features = [
        FeatureColumn("a"),
        FeatureColumn("b", "uint64", hotness=0),
        FeatureColumn("c", hotness=3),
        FeatureColumn("d", hotness=0),
        FeatureColumn("w", hotness=0, weighted=True),
    ]
    dense = (_below(at, 5 * rows, 4001) - 2000).reshape(rows, 5) * np.ldexp(
        1.0, [-10, -30, -11, -4, -60]
    )
    if poisoned:
        dense[rows // 2, 1] = np.nan
    lengths = [_below(at + 1 + i, rows, bound) for i, bound in enumerate((6, 4, 9))]
    lengths[1][_below(at + 4, rows, 2) == 0] = 0
    codes, weights = _weights(at + 5, lengths[2])
    names = [f"x{i}" for i in range(5)]
    with DatasetWriter(path, names, features, labels=["y", *MORE_LABELS]) as writer:
        writer.append(
            _below(at + 10, rows, 2),
            dense,
            {
                "a": _below(at + 11, rows, 7),
                "b": BagColumn(
                    _words(at + 12, int(lengths[0].sum())) >> np.uint64(58 if day else 50),
                    lengths[0].astype(np.int32),
                ),
                "c": _below(at + 13, 3 * rows, 90).reshape(rows, 3),
                "d": BagColumn(
                    _below(at + 14, int(lengths[1].sum()), 60), lengths[1].astype(np.int32)
                ),
                "w": BagColumn(codes, lengths[2].astype(np.int32), weights),
            },
            more_labels={
                name: _below(at + 15 + i, rows, 4) / 2 for i, name in enumerate(MORE_LABELS)
            },
        )
        if day:
            writer.vocabularies = {name: _vocabulary(name, day) for name in WORDS}
