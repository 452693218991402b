"""Are hosts read in the forms that other launchers have, and told to mpiexec in its own words?"""

import os
from pathlib import Path

import click
import pytest

from neocpu.cli.screen.options import Launch
from neocpu.core.errors import ConfigError, EnvironmentProblem
from neocpu.parallel.transport import hosts, launch
from neocpu.parallel.transport.hosts import HostRanks, hosts_of_file, listed_hosts, ranks_of_hosts
from neocpu.parallel.transport.launch import mpiexec_command

FILES = {
    # horovod, deepspeed, Open MPI
    "node01 slots=10\n\n# a comment\nnode13  slots = 5 max_slots=8\n": [
        ("node01", 10),
        ("node13", 5),
    ],
    "\ufeffn1 max-slots=4 Slots=2\n": [("n1", 2)],
    # MPICH, Intel MPI
    "donner:2\nfoo:4 binding=user:0,1 # four\n": [("donner", 2), ("foo", 4)],
    # a line for each rank, as PBS and LSF write them
    "n1\nn1\nn2\nn1\n": [("n1", 3), ("n2", None)],
    "n1:2 user=me\nn2 user=me slots=3\n": [("me@n1", 2), ("me@n2", 3)],
    # Grid Engine
    "n1.site 4 all.q@n1.site UNDEFINED\nn2 1 all.q@n2 <NULL>\n": [("n1.site", 4), ("n2", 1)],
    "me@10.0.0.1:2\r\n10.0.0.2\r\n": [("me@10.0.0.1", 2), ("10.0.0.2", None)],
}


@pytest.mark.parametrize("text", FILES)
def test_host_files_of_other_launchers(text: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(text.encode())
    assert hosts_of_file(path) == FILES[text]


def test_hosts_of_the_command_line() -> None:
    assert listed_hosts("a,b") == [("a", None), ("b", None)]
    assert listed_hosts("a:2, b.c-d:12,a") == [("a", 3), ("b.c-d", 12)]


@pytest.mark.parametrize(
    "text",
    [
        *("", "a,", "a:x", "node[1-4]", "a:0", "-x", "a b", "a=2", "a:2:3", "$(ls)", "a;ls"),
        *(
            "a slots=two",
            "a lots=8",
            "a slots=-1",
            "a:2 slots=4",
            "a user=-x",
            "-x@a",
            "a user=b,c",
        ),
    ],
)
def test_what_names_no_host_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--hosts .*(no host|0 ranks)"):
        listed_hosts(text)
    path = tmp_path / "hosts"
    path.write_text(f"n1\n{text}\n" if text else "# nobody\n")
    with pytest.raises(ConfigError, match=r"--hostfile .*(no host|0 ranks)"):
        hosts_of_file(path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        hosts_of_file(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"empty, as \$PBS_NODEFILE is outside of a job"):
        hosts_of_file(Path(""))


def test_a_node_list_of_slurm_is_told_how_to_become_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="scontrol show hostnames"):
        listed_hosts("node[01-03,07]")
    (tmp_path / "hosts").write_text("node[01-03]:2\n")
    with pytest.raises(ConfigError, match="scontrol show hostnames"):
        hosts_of_file(tmp_path / "hosts")


def test_ranks_are_divided_among_hosts() -> None:
    ab = listed_hosts("a,b")
    assert ranks_of_hosts(ab, None) == [("a", 1), ("b", 1)]
    assert ranks_of_hosts(ab, 5) == [("a", 3), ("b", 2)]
    numbered = listed_hosts("a:2,b:4,c")
    assert ranks_of_hosts(numbered, None) == [("a", 2), ("b", 4), ("c", 1)]
    assert ranks_of_hosts(numbered, 5) == [("a", 2), ("b", 3)]
    with pytest.raises(ConfigError, match=r"too many: the hosts take 7 \(a:2,b:4,c:1\)"):
        ranks_of_hosts(numbered, 8)
    with pytest.raises(ConfigError, match="1 are too few for 2 hosts"):
        ranks_of_hosts(ab, 1)


@pytest.mark.parametrize("version", ["HYDRA build details:", "mpiexec (Open MPI) 5.0.11"])
def test_words_of_each_mpi(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(f"#!/bin/sh\necho '{version}'\n")
    mpiexec.chmod(0o755)
    monkeypatch.setattr(launch, "find_mpiexec", lambda: mpiexec)
    monkeypatch.setattr(os, "environ", {"PATH": "/bin", "OMPI_X": "1", "NEOCPU_A": "2", "f()": ""})
    command, _ = mpiexec_command(5, ["x.py"], [HostRanks("a", 3), HostRanks("b", 2)])
    words = command[1 : command.index("-n")]
    if "Open" in version:
        handed_on = ["-x", "NEOCPU_A", "-x", "PATH"]
        assert words == ["--host", "a:3,b:2", "--bind-to", "none", *handed_on]
    else:
        assert words == ["-hosts", "a:3,b:2"]
    assert command[-3] == "5" and command[-1] == "x.py"
    mpiexec_command(2, [], [HostRanks("localhost", 1), HostRanks("127.0.0.1", 1)])
    mixed = [HostRanks("a", 1), HostRanks("me@localhost", 1)]
    if "Open" in version:
        mpiexec_command(2, [], mixed)
    else:
        with pytest.raises(ConfigError, match="me@localhost is another machine on each"):
            mpiexec_command(2, [], mixed)
    # memory by which MPICH's ranks meet, and Open MPI's need not
    monkeypatch.setattr(launch, "SHARED", str(tmp_path / "none"))
    if "Open" in version:
        assert mpiexec_command(2, ["x.py"])[0][1] == "-n"
    else:
        with pytest.raises(EnvironmentProblem, match="none is missing or cannot be written"):
            mpiexec_command(2, ["x.py"])


def test_who_has_ranks_already_starts_none_on_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    for words in ({"hosts": "a,b"}, {"hostfile": Path("hosts")}):
        with pytest.raises(click.UsageError, match="a launcher has started these already"):
            Launch(**words).starts_ranks  # noqa: B018


def test_a_port_that_is_taken_for_ranks_does_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosts, "usable_memory", lambda: 1 << 30)
    local = [HostRanks("me@localhost", 22)]
    mpiexec_command(21, [], [HostRanks("localhost", 21)])
    mpiexec_command(100, [], [HostRanks("elsewhere", 100)])
    with pytest.raises(ConfigError, match=r"22 ranks .* take 1 GiB .* room for 21; "):
        mpiexec_command(22, [], local)
    with pytest.raises(ConfigError, match="ask for fewer; in --hosts, HOST:8 are eight ranks"):
        mpiexec_command(22, [])
    with pytest.raises(ConfigError, match="5,000 ranks on elsewhere are more than 4,096"):
        mpiexec_command(5000, [], [HostRanks("elsewhere", 5000)])
