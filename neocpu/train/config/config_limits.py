"""What may the keys of a config be? Their choices, and the limits of whole numbers."""

from neocpu.core.formats import SCALED, TRAINED
from neocpu.core.policies import POLICIES
from neocpu.core.rules import RULES
from neocpu.ingest.formats.schema import TRANSFORMS
from neocpu.ingest.settings import FORMATS, ON_ERROR, ROWS_BY
from neocpu.parallel.exchange.message_sizes import UNIQUE_ROWS
from neocpu.parallel.exchange.wire_formats import WIRE_FORMATS
from neocpu.parallel.settings import ALLTOALL_NAMES, ROUTE_NAMES
from neocpu.plan.search.planners import PLANNERS
from neocpu.tables.kinds import KIND_NAMES
from neocpu.tables.specs.batch_scaling import SCALING_RULES
from neocpu.tables.specs.optimizer_groups import AS_SECTION
from neocpu.tables.specs.optimizers import DENSE_NAMES, RATE_MODES, WEIGHT_DECAY_MODES
from neocpu.tables.specs.specs import POOLING, ROUNDINGS
from neocpu.train.config.settings import PIPELINES
from neocpu.train.model.interactions.dhen import ENSEMBLES, MODULES
from neocpu.train.model.layout import INTERACTIONS, LOSSES
from neocpu.train.model.search_settings import COSTS, PICKS

# what a text may be; keys of tables stand under `tables.*`
CHOICES: dict[str, tuple[str, ...]] = {
    "data.format": FORMATS,
    "data.rows_by": ROWS_BY,
    "data.dense_transform": TRANSFORMS,
    "data.on_error": ON_ERROR,
    "model.interaction": INTERACTIONS,
    "model.loss": LOSSES,
    "model.heads.*.loss": LOSSES,
    "model.dhen.modules": MODULES,
    "model.dhen.ensemble": ENSEMBLES,
    "model.embedding_format": TRAINED,
    "model.embedding_rounding": ROUNDINGS,
    "tables.*.pooling": POOLING,
    "tables.*.format": TRAINED,
    "tables.*.rounding": ROUNDINGS,
    "tables.*.kind": KIND_NAMES,
    "optimizer.sparse.name": tuple(name for name, rule in RULES.items() if rule.updates),
    "optimizer.dense.name": tuple(DENSE_NAMES),
    "optimizer.sparse.weight_decay_mode": WEIGHT_DECAY_MODES,
    "optimizer.dense.weight_decay_mode": WEIGHT_DECAY_MODES,
    "optimizer.sparse.learning_rate_mode": tuple(RATE_MODES),
    "optimizer.scaling.rule": SCALING_RULES,
    "training.pipeline": PIPELINES,
    "parallel.route": ROUTE_NAMES,
    "parallel.unique_rows": UNIQUE_ROWS,
    "parallel.alltoall": ALLTOALL_NAMES,
    "parallel.shared_windows": ("auto", "on", "off"),
    "parallel.planner": tuple(PLANNERS),
    "memory.policy": tuple(POLICIES),
    "search.cost": COSTS,
    "search.pick": PICKS,
    "checkpoint.quantize": ("none", *SCALED),
    "wires.forward": tuple(WIRE_FORMATS),
    "wires.backward": tuple(WIRE_FORMATS),
    "wires.dense": tuple(name for name, form in WIRE_FORMATS.items() if not form.blocks),
}
# limits of whole numbers; all others are at least 0
LEAST = {
    "model.embedding_dim": 1,
    "tables.*.rows": 1,
    "tables.*.dim": 1,
    "data.shuffle_run": 1,
    "training.batch_size": 1,
    "training.epochs": 1,
    "training.leaves": 1,
    "checkpoint.keep": 1,
    "wires.block": 1,
    "search.every": 1,
    "search.cost_ranks": 1,
    "model.cross.layers": 1,
    "model.dhen.layers": 1,
    "optimizer.sparse.counter_halflife": -2,
    "optimizer.sparse.adjustment_iter": -1,
    "optimizer.groups.*.warmup_steps": AS_SECTION,
}
MOST = {
    "training.seed": 2**64 - 1,
    "training.batch_size": 2**31 - 1,
    "training.leaves": 2**20,
    "training.threads": 1024,  # more than any machine has cores for one rank
    "model.embedding_dim": 2**31 - 1,
    "tables.*.dim": 2**31 - 1,
    "model.cross.layers": 1024,
    "model.dhen.layers": 1024,
    "model.dhen.tokens": 2**16,
}
