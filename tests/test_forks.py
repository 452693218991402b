"""Is a fork told that cannot compute, and let alone where it can?"""

import sys
from pathlib import Path

import pytest

from tests.jobs import ran

KEYS = '{"batch_size": 32, "embedding_dim": 4, "model__bottom": [4], "model__top": (1,)}'
SCRIPT = f"""
import multiprocessing
import sys
import numpy as np
import neocpu

rows = {{"a": np.arange(200) / 200, "b": np.arange(200) % 5}}
y = np.arange(200) % 2


def child(work):
    def told():
        try:
            print("it gave", type(work()).__name__, flush=True)
        except neocpu.core.errors.EnvironmentProblem as error:
            print(error, flush=True)

    process = multiprocessing.get_context("fork").Process(target=told)
    process.start()
    process.join(60)
    print("ended with", process.exitcode, flush=True)
    process.kill()


fit = lambda: neocpu.DLRM(**{KEYS}).fit(rows, y)
child(fit)
model = fit()
model.predict(rows)
child(fit)
child(lambda: model.predict(rows))
child(lambda: neocpu.load(model.out_).predict(str(model.out_ / "train.parquet")))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_fork_behind_work_is_told_to_spawn(tmp_path: Path) -> None:
    done = ran([sys.executable, "-W", "ignore", "-c", SCRIPT], cwd=tmp_path, timeout=300)
    said = done.stdout.splitlines()
    assert said[1::2] == ["ended with 0"] * 4, done.stdout + done.stderr
    assert said[0] == "it gave DLRM"
    for line, what in zip(said[2::2], ("polars", "polars", "kernels")):
        assert line.startswith(f"this process was forked from one that had used {what}"), line
        assert 'multiprocessing.get_context("spawn")' in line
