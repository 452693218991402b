"""The path by which FBGEMM's names were first published; they live in `neocpu.peers.fbgemm`."""

from typing import Any

from neocpu.peers import fbgemm

__all__ = fbgemm.__all__


def __getattr__(name: str) -> Any:
    return getattr(fbgemm, name)
