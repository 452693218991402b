"""The path by which the pytest plugin was first published; it lives in `neocpu.peers.fbgemm.plugin`."""

from neocpu.peers.fbgemm.plugin import *  # noqa: F403
