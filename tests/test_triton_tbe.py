"""Does the adapter ask TorchRec's Triton TBE rightly? A CPU class of its interface answers.

The class itself needs a GPU. The stand-in here has its constructor, its flat `weight` and
`momentum` and its variable batches, over neocpu's module, so that every answer is right.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
pytest.importorskip("fbgemm_gpu", reason="fbgemm_gpu is not installed (extra `peers`)")
pytestmark = pytest.mark.filterwarnings("ignore")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import oracle_from_triton_tbe as adapter  # noqa: E402

from neocpu.peers.fbgemm import SplitTableBatchedEmbeddingBagsCodegen  # noqa: E402
from neocpu.peers.fbgemm.names import SparseType  # noqa: E402
from tests.oracle_cases import all_cases  # noqa: E402


class TritonLike(torch.nn.Module):
    """The interface of TritonTableBatchedEmbeddingBags."""

    def __init__(
        self,
        embedding_specs: list[tuple[int, int]],
        feature_table_map: list[int],
        weights_precision: Any,
        output_dtype: Any,
        stochastic_rounding: bool,
        learning_rate: float,
        eps: float,
        optimizer: Any,
        device: Any,
    ) -> None:
        super().__init__()
        self.tables = SplitTableBatchedEmbeddingBagsCodegen(
            embedding_specs,
            feature_table_map,
            weights_precision=SparseType.from_dtype(weights_precision),
            output_dtype=SparseType.from_dtype(output_dtype),
            stochastic_rounding=stochastic_rounding,
            learning_rate=learning_rate,
            eps=eps,
            optimizer=optimizer,
        )

    @property
    def weight(self) -> Any:
        return self.tables.weights_host

    @property
    def momentum(self) -> Any:
        return self.tables.momentum1_host

    def forward(self, indices: Any, offsets: Any, weights: Any = None, sizes: Any = None) -> Any:
        return self.tables(indices, offsets, weights, batch_size_per_feature_per_rank=sizes)


def test_the_adapter_asks_what_the_class_can_answer() -> None:
    cases = list(adapter.asked())
    names = {case.name for case in cases}
    assert len(cases) > 40 and {case.op for case in cases} == {
        "lookup",
        "weight_gradient",
        "backward",
    }
    assert any("batch_sizes" in case.inputs for case in cases)
    reasons = {adapter.reason(case) for case in all_cases(["lookup", "backward"])}
    assert {"", "rows are pruned", "pooling is mean", "optimizer is adam"} <= reasons
    assert not any((case.inputs["indices"] == -1).any() for case in cases if case.name in names)


def test_a_right_class_passes_and_a_late_weight_gradient_does_not() -> None:
    cases = [case for case in adapter.asked() if case.inputs["weights"].size < 20_000]
    report = adapter.report(TritonLike, "cpu", cases)
    assert report, str(report)

    class Late(TritonLike):
        """Its gradient of the weights is computed from rows after the update."""

        def forward(self, indices: Any, offsets: Any, weights: Any = None, sizes: Any = None):
            out = super().forward(indices, offsets, weights, sizes)
            if weights is not None:
                weights.register_hook(lambda grad: grad + np.float32(1))
            return out

    late = [case for case in cases if case.op == "weight_gradient"]
    assert not adapter.report(Late, "cpu", late)
