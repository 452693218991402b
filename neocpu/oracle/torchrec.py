"""The path by which TorchRec's names were first published; they live in `neocpu.peers.torchrec`."""

from neocpu.peers.torchrec import EmbeddingBagCollection

__all__ = ["EmbeddingBagCollection"]
