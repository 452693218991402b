"""Are ranks refused that do not run what rank 0 runs?"""

import itertools
from pathlib import Path

import pytest

from neocpu.core.errors import NeocpuError
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.before import alike
from neocpu.train.config import config
from tests.small_run import CONFIG

LOG = Path("log.h5")  # nobody opens it


def refusals(text: str) -> list[str]:
    """What three ranks are told; text : of the config that the last of them reads."""

    def body(comm: Comm) -> str:
        own = config.loads(text if comm.rank == 2 else CONFIG, "m.toml", [f'data.train="{LOG}"'])
        try:
            alike.refuse_other_ranks(comm, own)
        except NeocpuError as error:
            return str(error)
        return ""

    return run_threads(3, body)


def test_another_config_is_refused_on_all_ranks_by_the_key_that_differs() -> None:
    assert refusals(CONFIG) == [""] * 3
    assert refusals(f"# a remark\n{CONFIG}") == [""] * 3
    other = refusals(CONFIG.replace("[training]\n", "[training]\nseed = 77\n"))
    assert len(set(other)) == 1
    assert "training.seed is 77 on " in other[0] and "copy the file from there" in other[0]


def test_another_neocpu_is_refused_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(alike, "sources", lambda: next(numbers))
    other = refusals(CONFIG)
    assert len(set(other)) == 1 and "install the same on all hosts" in other[0]
