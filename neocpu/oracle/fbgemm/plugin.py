"""The first path of the pytest plugin, which lives in `neocpu.peers.fbgemm.plugin`."""

from neocpu.peers.fbgemm.plugin import *  # noqa: F403
