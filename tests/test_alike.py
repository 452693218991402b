"""Are ranks refused that do not run what rank 0 runs?"""

import itertools
from pathlib import Path

import pytest
from test_checkpoint import TABLE_WISE, make

from neocpu.core.errors import EnvironmentProblem, NeocpuError
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.train import checkpoint
from neocpu.train.before import alike
from neocpu.train.before.beginning import begin
from neocpu.train.config import config
from neocpu.train.fit.keys import FitKeys
from neocpu.train.run.fitting import FitRun
from neocpu.train.run.scoring import restore
from tests.small_run import CONFIG, config_of

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


@pytest.mark.parametrize("command", ["train", "eval", "fit"])
def test_another_neocpu_is_refused_on_all_ranks(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(alike, "sources", lambda: next(numbers))
    run = config_of(LOG)
    path = tmp_path / "checkpoints" / "step-00000005.h5"
    if command == "eval":
        checkpoint.save(tmp_path, make(SingleComm(), TABLE_WISE), 5)

    def body(comm: Comm) -> str:
        with pytest.raises(EnvironmentProblem) as caught:
            if command == "train":
                begin(run, comm, tmp_path, False, print)
            elif command == "eval":
                restore(path, comm, [str(LOG)])
            else:
                FitRun(run, FitKeys(), comm, tmp_path).run()
        return str(caught.value)

    (told,) = set(run_threads(3, body))
    assert "install the same on all hosts" in told
