"""Does FBGEMM's CPU version, where it has a rule, take a row where our rule takes it? Counters and
CowClip in every mode.

(Its weight decay of plain row-wise AdaGrad, its max-norm and its Adam family do not exist on a CPU,
or are ignored there.)
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from test_rule_formulas import ours

from neocpu.tables.specs.optimizers import COUNTER, RATE_MODES, SparseOptimizer

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
pytest.importorskip("fbgemm_gpu", reason="fbgemm-gpu-cpu is not installed (extra `peers`)")
pytestmark = pytest.mark.filterwarnings("ignore")

# FBGEMM wants multiples of four columns
COWCLIP = "exact_rowwise_adagrad_with_cowclip"
WIDTH = 8
DECAYS = {"none": 0, "l2": 1, "decoupled": 2, "adagradw": 3}


@dataclass(frozen=True)
class Signed(SparseOptimizer):
    """With the sign that FBGEMM gives the frequency of a negative half-life."""

    def numbers(self, step):
        return super().numbers(step) | {"counter_frequency": self.counter_halflife}


def theirs(optimizer, w, gradients):
    """The row after FBGEMM's updates; another row is looked up at the steps between."""
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as tbe
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation

    o = optimizer
    shared = {"counter_weight_decay_mode": tbe.CounterWeightDecayMode(DECAYS[o.weight_decay_mode])}
    shared["counter_halflife"] = o.counter_halflife
    if o.name == COUNTER:
        counter = tbe.CounterBasedRegularizationDefinition(
            **shared,
            adjustment_iter=o.adjustment_iter,
            adjustment_ub=o.adjustment_ub,
            learning_rate_mode=tbe.LearningRateMode(RATE_MODES[o.learning_rate_mode]),
            tail_id_threshold=tbe.TailIdThreshold(
                o.tail_id_threshold, o.tail_id_threshold_is_ratio
            ),
            max_counter_update_freq=-1,
        )
        more = {
            "weight_decay_mode": tbe.WeightDecayMode.COUNTER,
            "counter_based_regularization": counter,
        }
    else:
        bounds = {
            "weight_norm_coefficient": o.weight_norm_coefficient,
            "lower_bound": o.lower_bound,
        }
        clip = tbe.CowClipDefinition(**shared, **bounds)
        more = {"weight_decay_mode": tbe.WeightDecayMode.COWCLIP, "cowclip_regularization": clip}
    module = tbe.SplitTableBatchedEmbeddingBagsCodegen(
        [(2, WIDTH, EmbeddingLocation.HOST, tbe.ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=o.learning_rate,
        eps=o.eps,
        weight_decay=o.weight_decay,
        **more,
    )
    module.split_embedding_weights()[0].copy_(torch.tensor(np.tile(w, (2, 1))))
    module.max_counter[0] = o.max_counter
    for step in range(1, max(gradients) + 1):
        out = module(torch.tensor([int(step not in gradients)]), torch.tensor([0, 1]))
        out.backward(torch.tensor(gradients.get(step, w)[None]))
    return module.split_embedding_weights()[0][0].numpy()


def settings():
    for mode, halflife, after, rate in product(DECAYS, (-2, -1, 3), (-1, 5), RATE_MODES):
        yield Signed(
            COUNTER,
            0.1,
            weight_decay=0.3,
            weight_decay_mode=mode,
            counter_halflife=halflife,
            adjustment_iter=after,
            learning_rate_mode=rate,
            max_counter=4.0,
            adjustment_ub=0.6,
            tail_id_threshold=0.3,
            tail_id_threshold_is_ratio=rate != "counter_sgd",
        )
    for mode, halflife in product(("none", "l2", "decoupled"), (-1, 0, 3)):
        yield Signed(
            COWCLIP,
            0.1,
            weight_decay=0.3,
            weight_decay_mode=mode,
            counter_halflife=halflife,
            weight_norm_coefficient=0.1,
            lower_bound=0.01,
        )


@pytest.mark.parametrize("name", [COUNTER, COWCLIP])
def test_rules_with_counters(name):
    rng = np.random.default_rng(4)
    w = rng.standard_normal(WIDTH).astype(np.float32)
    gradients = {t: rng.standard_normal(WIDTH).astype(np.float32) for t in (1, 2, 5, 6, 11)}
    for optimizer in settings():
        if optimizer.name == name:
            np.testing.assert_allclose(
                ours(optimizer, w, gradients),
                theirs(optimizer, w, gradients),
                rtol=3e-6,
                atol=3e-6,
                err_msg=f"{optimizer}",
            )
