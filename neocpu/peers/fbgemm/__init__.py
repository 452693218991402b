"""How does code written for FBGEMM run on neocpu? By classes and operators of the same names.

Signatures are FBGEMM's, the arithmetic is exact. Either import from here instead of fbgemm_gpu,

    from neocpu.peers.fbgemm import SplitTableBatchedEmbeddingBagsCodegen

or leave the imports as they are and call, before anything else,

    neocpu.peers.fbgemm.install()

Needs torch; fbgemm_gpu need not be installed. Nothing here is loaded before it is used.
`docs/fbgemm.md` is the manual, `docs/peer-differences.md` says where FBGEMM's own answers differ.
"""

from importlib import import_module
from typing import Any

# The file that holds each public name.
_HOMES = {
    "BoundsCheckMode": "names",
    "CacheAlgorithm": "names",
    "ComputeDevice": "names",
    "CounterBasedRegularizationDefinition": "names",
    "CounterWeightDecayMode": "names",
    "CowClipDefinition": "names",
    "DenseTableBatchedEmbeddingBagsCodegen": "modules.dense",
    "EmainplaceModeDefinition": "names",
    "EmbOptimType": "names",
    "EnsembleModeDefinition": "names",
    "EmbeddingLocation": "names",
    "GlobalWeightDecayDefinition": "names",
    "GradSumDecay": "names",
    "IntNBitTableBatchedEmbeddingBagsCodegen": "modules.inference",
    "LearningRateMode": "names",
    "OutOfBounds": "operators.bounds",
    "PoolingMode": "names",
    "RecordCacheMetrics": "names",
    "SparseType": "names",
    "SplitTableBatchedEmbeddingBagsCodegen": "modules.split",
    "StepMode": "names",
    "TailIdThreshold": "names",
    "UserEnabledConfigDefinition": "names",
    "WeightDecayMode": "names",
    "install": "installing",
    "uninstall": "installing",
}

__all__ = sorted((*_HOMES, "OPERATORS"))


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"neocpu.peers.fbgemm.{_HOMES[name]}"), name)
    if name == "OPERATORS":
        return import_module("neocpu.peers.fbgemm.operators.registry").load()
    # Tools ask every module for private names, for which torch need not be loaded.
    if not name.startswith("_"):
        operators = import_module("neocpu.peers.fbgemm.operators.registry").load()
        if name in operators:
            return operators[name].function
    raise AttributeError(f"module 'neocpu.peers.fbgemm' has no attribute {name!r}")
