"""Which keys of a config say how a run trains, measures, keeps rows and writes checkpoints?

The sections `optimizer`, `training`, `eval`, `memory`, `checkpoint` and `search`; the records of
other sections live beside their owners (`config.py` names them).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated

from neocpu.core.formats import SCALED
from neocpu.core.records import Limits
from neocpu.core.stages import PIPELINES
from neocpu.parallel.settings import ParallelConfig
from neocpu.tables.specs.directions import DirectionWork, MuonKeys, ShampooKeys
from neocpu.tables.specs.optimizer_groups import BatchScaling, OptimizerGroup, header_of
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.train.config.asynchronous import OFF, ON, AsynchronousKeys

# more than any machine has cores for one rank
MOST_THREADS = 1024
AUTO = "auto"  # a placement, or an interval of checkpoints, that is chosen
# what a run does where a loss or a gradient is not finite
STOP = "stop"
SKIP = "skip"
ROLL_BACK = "roll_back"


@dataclass(frozen=True)
class OptimizerConfig:
    """One rule for all tables, one for everything dense.

    A rule of tables that is no AdaGrad has a learning rate of 0.01 unless one is given.

    groups : tables and dense parameters with rates of their own, by the name of the group.
    scaling : how rates follow from those of a smaller batch. clip_norm : the gradient of all dense
    parameters together is scaled down to this norm where it is longer (0: not); rows of tables have
    rules that clip them (docs/large-batches.md). shampoo : of the dense rule's steps in other
    directions. muon : of matrices. trust_ratio : a step of the dense rule is, for each matrix and
    vector, as long as its parameters times the rate: LAMB of adam.
    """

    sparse: SparseOptimizer = field(default_factory=lambda: SparseOptimizer(learning_rate=0.04))
    dense: SparseOptimizer = field(default_factory=lambda: SparseOptimizer(name="adagrad"))
    groups: Mapping[str, OptimizerGroup] = field(default_factory=dict)
    scaling: BatchScaling = field(default_factory=BatchScaling)
    clip_norm: float = 0.0
    shampoo: ShampooKeys = field(default_factory=ShampooKeys)
    muon: MuonKeys = field(default_factory=MuonKeys)
    trust_ratio: bool = False

    def faults(self, towers: bool) -> Iterator[tuple[str, str]]:
        """(key, what is wrong with it) of the tables in this section; towers : do they run on their
        nodes?
        """
        for key, why in self.scaling.faults(self.dense):
            yield f"scaling.{key}", why
        for key, why in self.shampoo.faults(towers):
            yield f"shampoo.{key}", why
        if self.trust_ratio and self.in_blocks:
            why = "optimizer.shampoo and optimizer.muon say how long steps are; leave one out"
            yield "trust_ratio", why
        for key, why in self.muon.faults(towers, bool(self.shampoo.every)):
            yield f"muon.{key}", why

    @property
    def in_blocks(self) -> bool:
        """Do ranks share the work on blocks of the dense parameters?"""
        return bool(self.shampoo.every or self.muon.steps)

    def directions(self, shapes: Mapping[str, Sequence[int]]) -> DirectionWork | None:
        """What steps in directions of their own cost, where dense parameters of these shapes have
        any.
        """
        if self.muon.steps:
            return self.muon.work(shapes)
        return self.shampoo.work(shapes) if self.shampoo.every else None

    def header(self) -> dict[str, object]:
        """What decides the bits; keys that are not used are left out."""
        header: dict[str, object] = {"sparse": self.sparse.header(), "dense": self.dense.header()}
        if self.groups:
            header["groups"] = header_of(self.groups)
        if self.scaling != BatchScaling():
            header["scaling"] = asdict(self.scaling)
        # left out where it is not set, so that digests of older configs stay
        if self.clip_norm:
            header["clip_norm"] = self.clip_norm
        if self.shampoo.every:
            header["shampoo"] = self.shampoo.header()
        if self.muon.steps:
            header["muon"] = self.muon.header()
        if self.trust_ratio:
            header["trust_ratio"] = True
        return header


@dataclass(frozen=True)
class TrainingConfig:
    """How long to train, and on how much at a time.

    batch_size : samples of all ranks together; a config that does not name it gets one that suits
    the number of its train samples (`defaults.batch_of`; docs/start.md), 2048 where no data are
    read. epochs, steps : passes over the train data and steps (0: no limit); the run ends with
    whichever is reached first. seed : of initial rows and parameters, and of the order of samples.
    leaves : parts of a batch whose
    gradients are summed in a fixed tree, a power of two. threads : threads of each rank (0: its
    share of the cores).
    pipeline : what of a step overlaps; never changes a bit. "off": nothing; "input": lookups of the
    next batch travel during a step; "full": exchanges of the step itself also run while something
    is computed that does not need them (docs/communication.md). bucket_bytes : of dense gradients,
    fewer are not summed while the backward pass goes on, but with the others ("full" only).
    log_every : steps from one line of metrics.jsonl on training to the next (0: 100 steps, or 30
    seconds where they take longer).
    init_from : a checkpoint, or the folder of a run (its best checkpoint, else its last), whose
    weights the run starts with ("": none; docs/next-day.md). init_state : also with its optimizer
    states, where the rule is the same. init_digest : of that checkpoint; a run notes it by itself,
    and refuses another one.
    patience : measurements of the valid split without a better loss after which the run ends
    (0: it never ends for that).
    on_nonfinite : what a run does where a loss or a gradient is not finite, or of 2^63 and more.
    "stop": it ends, and says where; "skip": nothing of that step is written, and it goes on;
    "roll_back": it goes on from its newest checkpoint, with all learning rates times
    `roll_back_rate` (docs/see.md).
    roll_back_rate : what "roll_back" multiplies all learning rates with, above 0 and at most 1.
    sync : do all ranks take each step together ("on"), or do trainers send gradients to parameter
    servers when they have them ("off")? asynchronous : these servers and trainers.
    """

    batch_size: Annotated[int, Limits(least=1, most=2**31 - 1)] = 2048
    epochs: Annotated[int, Limits(least=1)] = 1
    steps: int = 0
    seed: Annotated[int, Limits(most=2**64 - 1)] = 1
    leaves: Annotated[int, Limits(least=1, most=2**20)] = 16
    threads: Annotated[int, Limits(most=MOST_THREADS)] = 0
    pipeline: Annotated[str, Limits(tuple(PIPELINES))] = "full"
    bucket_bytes: int = 1 << 16
    log_every: int = 0
    init_from: str = ""
    init_state: bool = True
    init_digest: str = ""
    patience: int = 0
    on_nonfinite: Annotated[str, Limits((STOP, SKIP, ROLL_BACK))] = STOP
    roll_back_rate: float = 0.5
    sync: Annotated[str, Limits((ON, OFF))] = ON
    asynchronous: AsynchronousKeys = field(default_factory=AsynchronousKeys)

    def start(self) -> dict[str, object]:
        """What the run starts from, as far as it decides the bits; {}: initial values."""
        # the path is no part of it: the same checkpoint may lie elsewhere
        if not self.init_digest:
            return {}
        return {"digest": self.init_digest, "state": self.init_state}


@dataclass(frozen=True)
class EvalConfig:
    """When the valid split is measured, and how.

    every_steps : steps from one measurement to the next (0: at the end only).
    group : feature whose samples of one value are ranked among one another, as "user_id": valid and
        test also get ndcg@k, recall@k, hit@k, mrr and gauc ("": none; docs/use.md).
    at : the k of these metrics.
    baseline : whether a run on a small log says at its end what a linear model reaches on the same
        rows.
    ema : beta of a moving average of the dense parameters, avg = beta*avg + (1 - beta)*parameter
    after each step, from their initial values on (0: none). Rows of tables have none: they are
    used as they are. averaged : whether measurements, predictions and exports use that average.
    """

    every_steps: int = 0
    group: str = ""
    at: tuple[int, ...] = (5, 10)
    baseline: bool = False
    ema: float = 0.0
    averaged: bool = True

    def faults(self) -> Iterator[tuple[str, str]]:
        """(key, what is wrong with it)."""
        if self.ema >= 1:
            yield "ema", f"{self.ema} must be below 1"

    @property
    def uses_average(self) -> bool:
        """Whether parameters are looked at through their moving average."""
        return bool(self.ema) and self.averaged

    def header(self) -> dict[str, object]:
        """What decides the bits of the state."""
        return {"ema": self.ema} if self.ema else {}


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, and what they hold.

    every_steps : steps from one to the next (0: only at the end).
    every_minutes : minutes from one to the next, however many steps they are (0: only by steps);
        "auto": as the time that training waits for one and `mtbf` say (Young 1974, Daly 2006).
        They change no bit, but where rows are narrower than their caches (docs/memory.md), for
        which they are refused.
    mtbf : mean hours between failures of the job, from which the best interval is told at the end
        of a run (0: not known).
    every_files : files from one to the next in `neocpu online` (0: only at the end).
    keep : newest ones that stay.
    keep_every_steps : those after a multiple of so many steps stay too (0: none).
    keep_every_hours : one stays for every so many hours, by the times of the files (0: none).
    keep_best : the one of the best measurement of the valid split stays too, which is written then;
        with `training.patience` it does anyway.
    full_every : of so many checkpoints one is whole, the others hold what changed since (1: all are
        whole; 0: 1 where all tables are in memory, 8 where any is over SSD).
    quantize : round the weights of float32 tables to "int8" or "int4" rows in all checkpoints but
        the last of a run (Check-N-Run). A run that resumes from one has other bits than a run that
        went on.
    mirror : a second place for them, a folder or an address such as s3://backup/runs, in which
        each is copied to a folder of OUT's name while training goes on ("": none). A run that goes
        on takes what OUT has lost from there.
    memory : bytes of a rank that rows may take until they are written while training goes on; a
        checkpoint that needs more is written while training waits.
    parity : rows and states also outlive killed ranks in /dev/shm (or memory.folder), with the
        parity of so many ranks on another one, from which the rows of a rank are rebuilt that is
        lost with its host (0: none; docs/cluster.md).
    parity_every : steps after which they follow; what a kill costs at most.
    """

    every_steps: int = 0
    every_minutes: Annotated[float | str, Limits((AUTO,))] = 0.0
    mtbf: float = 0.0
    every_files: int = 1
    keep: Annotated[int, Limits(least=1)] = 2
    keep_every_steps: int = 0
    keep_every_hours: float = 0.0
    keep_best: bool = False
    full_every: int = 0
    quantize: Annotated[str, Limits(("none", *SCALED))] = "none"
    mirror: str = ""
    memory: int = 128 << 20
    parity: int = 0
    parity_every: Annotated[int, Limits(least=1)] = 1

    def parity_fault(self, moving: Sequence[str], cached: Sequence[str], whole: bool) -> str:
        """Why there can be no parity; "": there can, or there is to be none.

        moving, cached : tables whose rows move in training, and whose rows are in caches. whole :
        has every rank the whole model, and its optimizer's states?
        """
        if not self.parity:
            return ""
        for names, what in ((moving, "move in training"), (cached, "are in caches")):
            if names:
                return f"rows of table {names[0]!r} {what}; leave it out"
        if not whole:
            return (
                "with parallel.towers, a search or optimizer.shampoo not every rank has all that "
                "is to be kept; leave it out"
            )
        return ""

    @property
    def every_seconds(self) -> float:
        """Seconds from one to the next; 0: only by steps, or as their cost says."""
        return 0.0 if isinstance(self.every_minutes, str) else 60.0 * self.every_minutes

    def faults(self, lacking: str) -> Iterator[tuple[str, str]]:
        """(key, why) of what is wrong; lacking : the key that measurements of the valid split need
        ("": none).
        """
        if self.keep_best and lacking:
            yield "keep_best", f"it counts measurements of the valid split; set {lacking} too"
        if self.every_minutes == AUTO and not self.mtbf:
            yield (
                "every_minutes",
                f'"{AUTO}" needs checkpoint.mtbf, the hours from a failure of the job to the next',
            )

    def files_until_full(self, ssd: bool) -> int:
        """`full_every` of a run; ssd : does any table live over SSD?"""
        return self.full_every or (8 if ssd else 1)


COSTS = ("parameters", "flops", "seconds")
PICKS = ("argmax", "sample")


@dataclass(frozen=True)
class SearchConfig:
    """What `neocpu search` may choose, and how it learns to; no other command reads these keys
    (docs/search.md).

    bottom, top : a list of widths for each layer, `[[32, 64, 128], [16]]`; the top's last layer,
        the logit, has none (empty: the widths of the model stay).
    dims, rows : columns and rows to choose from, by tables or shell patterns of their names:
        `{ "C*" = [2, 4, 8] }`. A table's own name wins, else the first pattern that matches.
    split : share of the train samples that weights learn from, the first in the log's order; the
        probabilities of the choices learn from the rest.
    warmup_steps : steps in which only weights learn (0: a fifth of the run).
    every : steps on weights for each step on the probabilities.
    temperature : of the samples at first. decay : what it is multiplied by from time to time.
    decay_steps : after each so many steps (0: a thirtieth of the run).
    learning_rate : of the logits of the choices, under the rule of optimizer.dense.
    cost : what a model costs: its parameters, the flops of a sample, or the seconds of a step that
        the planner expects.
    cost_weight : added to the loss for a model that costs as much as the largest.
    cost_ranks : ranks of parallel.machine that these seconds are asked for.
    pick : which choices are taken in the end: the most probable ones, or a sample.
    supernet : whether the config is that of the largest model, which a search makes and notes.
    """

    bottom: tuple[tuple[int, ...], ...] = ()
    top: tuple[tuple[int, ...], ...] = ()
    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    split: float = 0.8
    warmup_steps: int = 0
    every: Annotated[int, Limits(least=1)] = 1
    temperature: float = 2.0
    decay: float = 0.9
    decay_steps: int = 0
    learning_rate: float = 0.3
    cost: Annotated[str, Limits(COSTS)] = "parameters"
    cost_weight: float = 0.01
    cost_ranks: Annotated[int, Limits(least=1)] = 1
    pick: Annotated[str, Limits(PICKS)] = "argmax"
    supernet: bool = False

    def header(self, parallel: ParallelConfig) -> dict[str, object]:
        """The keys that decide the bits of a search; parallel : of which the planner reads some."""
        header = asdict(self)
        # the planner's answer enters the loss, so what it is asked decides bits
        if self.cost == "seconds":
            header |= {name: getattr(parallel, name) for name in ("machine", "planner", "route")}
        return header
