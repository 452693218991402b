"""Do files get to ranks that do not see rank 0's disk, and what they wrote on theirs back?

Each rank is a thread with a folder of its own in place of a disk.
"""

from pathlib import Path

import numpy as np
import pytest

from neocpu.core.errors import DataError, EnvironmentProblem
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.parallel.transport import host_files
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.host_files import apart, collect, deliver, on_every_host
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.state.identity import refuse_different
from tests.small_run import write_log


@pytest.fixture(autouse=True)
def hosts_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces, and no two ranks that share a disk."""
    monkeypatch.setattr(host_files, "PIECE", 1000)
    monkeypatch.setattr(
        host_files,
        "_first_of_hosts",
        lambda comm, wanting: [
            rank
            for rank, byte in enumerate(comm.allgather_bytes(bytes([wanting])))
            if byte != b"\0"
        ],
    )


def test_a_file_is_delivered_to_those_that_lack_it(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(2500)
    (tmp_path / "data.h5").write_bytes(content)

    def body(comm: Comm) -> list[str]:
        disk = tmp_path / f"disk{comm.rank}"
        disk.mkdir()
        if comm.rank != 1:
            deliver(comm, tmp_path / "data.h5", disk / "deep" / "data.h5")
        else:  # has one already
            (disk / "deep").mkdir()
            (disk / "deep" / "data.h5").write_bytes(b"own")
            deliver(comm, disk / "nothing", disk / "deep" / "data.h5")
        assert not apart(comm, disk / "deep" / "data.h5")
        return on_every_host(comm, {"train": [str(tmp_path / "data.h5")]}, disk)["train"]

    everywhere = run_threads(3, body)
    assert everywhere == [[str(tmp_path / "data.h5")]] * 3, "a file that all see was copied"
    found = [(tmp_path / f"disk{rank}" / "deep" / "data.h5").read_bytes() for rank in range(3)]
    assert found == [content, b"own", content]
    assert len(list(tmp_path.rglob("*"))) == 1 + 3 * 3, "partial copies are left"


def test_a_disk_that_cannot_be_written_is_named_on_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "data.h5").write_bytes(b"x")
    (tmp_path / "file").touch()

    def body(comm: Comm) -> str:
        target = tmp_path / ("file" if comm.rank == 1 else "folder") / "data.h5"
        with pytest.raises(EnvironmentProblem) as caught:
            deliver(comm, tmp_path / "data.h5", target)
        return str(caught.value)

    messages = run_threads(2, body)
    assert messages[0] == messages[1]
    assert "file" in messages[0] and "cannot be written" in messages[0]


def test_what_ranks_wrote_is_put_into_the_file_of_rank_0(tmp_path: Path) -> None:
    whole = np.random.default_rng(2).bytes(9000)
    cuts = {0: [(0, 100), (8000, 9000)], 1: [(100, 2600), (5000, 5001)], 2: [(2600, 5000)]}
    cuts[2] += [(5001, 8000)]

    def body(comm: Comm) -> None:
        path = tmp_path / f"disk{comm.rank}.h5"
        with open(path, "wb") as file:
            for first, end in cuts[comm.rank]:
                file.seek(first)
                file.write(whole[first:end])
        extents = {str(number): cut for number, cut in enumerate(cuts[comm.rank])}
        collect(comm, path, extents if comm.rank else {})

    run_threads(3, body)
    assert (tmp_path / "disk0.h5").read_bytes() == whole


@pytest.mark.parametrize("least", [0, 3], ids=["dense values", "only codes"])
def test_hosts_whose_data_differ_are_refused(least: int, tmp_path: Path) -> None:
    def body(comm: Comm) -> str:
        other = comm.rank == 2
        path = tmp_path / f"log{comm.rank}.h5"
        # codes that are 3 higher have the same labels
        write_log(path, 7 if other and not least else None, least=least if other else 0)
        known = {"train": Dataset([path])}
        refuse_different(comm.split(int(comm.rank == 2)), known)
        with pytest.raises(DataError) as caught:
            refuse_different(comm, known)
        return str(caught.value)

    assert all("has other samples than on" in message for message in run_threads(3, body))
