"""Do all ranks run the same neocpu by the same config? Each host reads its own files of both.

Ranks that differ in a learning rate would train to a digest of no run, and those that differ in a
size would take each other's messages for something else.
"""

import hashlib
import json
import socket

from neocpu import __version__
from neocpu.core.errors import ConfigError, EnvironmentProblem
from neocpu.parallel.transport.comm import Comm
from neocpu.train.before.kernel_markers import sources
from neocpu.train.config.config import Config
from neocpu.train.config.keys import flat


def refuse_other_ranks(comm: Comm, config: Config) -> None:
    """Raise on all ranks where one is not as rank 0: EnvironmentProblem for another neocpu,
    ConfigError for another config. Collective.
    """
    if comm.size == 1:
        return
    written = json.dumps([config.text, config.overrides]).encode()
    ranks = comm.allgather(
        (socket.gethostname(), __version__, sources(), hashlib.sha256(written).hexdigest())
    )
    first_host, first_version, first_sources, first_text = ranks[0]
    for host, version, code, _ in ranks:
        if code != first_sources:
            raise EnvironmentProblem(
                f"the neocpu on {host} ({version}) has other source files than that on {first_host}"
                f" ({first_version}); install the same on all hosts"
            )
    if all(text == first_text for *_, text in ranks):
        return
    # only then, as keys are many
    configs = comm.allgather(flat(config))
    for (host, *_), keys in zip(ranks, configs):
        for key in sorted({**configs[0], **keys}):
            if keys.get(key) != configs[0].get(key):
                raise ConfigError(
                    f"{config.source}: {key} is {json.dumps(keys.get(key))} on {host} and "
                    f"{json.dumps(configs[0].get(key))} on {first_host}; copy the file from there"
                )
