"""Does everything on docs/use.md run as it stands?"""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from neocpu.cli import cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "use.md"


@pytest.fixture
def threads_stay() -> Iterator[None]:
    """Commands set thread counts for their own process; this one is shared."""
    from neocpu.kernels.compile.threads import use_threads

    yield
    use_threads(1 << 10)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads_stay: None) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 10
    for language, text in blocks:
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), names)
            continue
        for line in text.splitlines():
            program, *arguments = shlex.split(line, comments=True)
            assert program == "neocpu"
            done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
            assert done.exit_code == 0, done.output
    scores = pl.read_parquet("scores.parquet")
    assert scores.columns == ["row", "label", "C1", "prediction"]
    np.testing.assert_array_equal(scores["prediction"].to_numpy(), names["scores"])
    np.testing.assert_array_equal(np.load("scores.npy"), names["scores"])
    assert {"results.csv", "trial-0001", "trial-0002"} <= set(os.listdir("sweeps/rate"))
