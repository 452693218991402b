"""Is a signal to stop heeded from a run's first moment to its last, on several MPI ranks?"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from promise_cases import FAMILIES, MAIN, write_data

from neocpu.core.errors import Stopped
from neocpu.parallel.transport.launch import mpiexec_command
from neocpu.train.before import datasets
from neocpu.train.config import config as configs
from neocpu.train.run.trainer import Trainer
from tests.jobs import ran


@pytest.mark.usefixtures("mpiexec")
def test_signals_are_held_from_the_first_moment_to_the_last(tmp_path: Path) -> None:
    write_data(tmp_path)
    (tmp_path / "small.toml").write_text(FAMILIES[MAIN].toml(tmp_path))
    root = Path(__file__).resolve().parent.parent
    command, environment = mpiexec_command(2, ["-m", "tests.signal_main", str(tmp_path)])
    assert command[3] == sys.executable
    done = ran(
        command,
        cwd=root,
        env=environment | {"OMP_WAIT_POLICY": "PASSIVE"},
        stdin=subprocess.DEVNULL,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "every life ended as it should" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_conversion_within_a_run_heeds_signals(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path)
    (tmp_path / "small.toml").write_text(FAMILIES[MAIN].toml(tmp_path))

    ended: list[bool] = []

    def convert(*_: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(2.0)
        ended.append(True)

    monkeypatch.setattr(datasets, "ensure", convert)
    with pytest.raises(Stopped, match=f"stopped by signal {number:d}; what was not") as caught:
        Trainer(configs.load(tmp_path / "small.toml"), None, tmp_path / "run").run()
    assert caught.value.exit_status == 128 + number
    assert not ended, "it was heeded after the conversion only"
