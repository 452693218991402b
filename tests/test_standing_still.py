"""Is it said in time, and in words, why a job of ranks stands still or has ended, and does it go on
by itself?
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from promise_cases import FAMILIES, MAIN, write_data

from neocpu.core.errors import ConfigError
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.hosts import HostRanks, listed_hosts
from neocpu.parallel.transport.launch import mpiexec_command
from neocpu.parallel.transport.timeline import Pulse
from neocpu.parallel.watch import host_pool, supervisor
from neocpu.parallel.watch.host_pool import HostPool
from neocpu.parallel.watch.rank_page import RankPage, RankState, page_path
from neocpu.parallel.watch.supervisor import Ending, Stops, Talk, supervise
from neocpu.parallel.watch.watchdog import STATUS, Stillness, Watchdog
from neocpu.parallel.watch.words import Member, describe
from neocpu.serve.report import details
from neocpu.train.config import config as configs
from neocpu.train.run import survival
from neocpu.train.run.folder import restarts_of
from neocpu.train.run.survival import Survivor
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.results import RANKS

ROOT = Path(__file__).resolve().parent.parent


def run_job(
    tmp_path: Path, deed: str, capfd: pytest.CaptureFixture[str]
) -> tuple[Ending, str, dict[int, int]]:
    """(how it ended, what was printed, processes by rank) of a job of two ranks."""
    record = tmp_path / RANKS
    command, environment = mpiexec_command(2, ["-m", "tests.standing_main", deed, str(record)])
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    with Stops() as stops:
        ending = supervise(command, environment, record, stops)
    printed = capfd.readouterr()
    facts = json.loads(record.read_text()) if record.exists() else {"ranks": []}
    processes = {rank["rank"]: rank["process"] for rank in facts["ranks"]}
    # no orphan is left
    end = time.monotonic() + 5.0
    while any(Path(f"/proc/{number}").exists() for number in processes.values()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return ending, printed.out + printed.err, processes


@pytest.mark.usefixtures("mpiexec")
@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("stopped", "is stopped, last seen "),
        pytest.param("endless", "is in lookup of step 5 for", marks=pytest.mark.long),
        pytest.param("waiting", "is in writing a checkpoint of step 5 for", marks=pytest.mark.long),
    ],
)
def test_a_job_that_stands_still_says_why_and_ends(
    tmp_path: Path, deed: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    ending, text, processes = run_job(tmp_path, deed, capfd)
    warning, error = text.splitlines()
    for line in (warning, error):
        assert "waiting for allgatherv 'stop signal' of step 5" in line
        assert f"(process {processes[1]}) {words}" in line
    assert warning.startswith("neocpu: warning: the run has stood still for 1 s")
    assert "ended (parallel.timeout = 2); the newest checkpoint is step-00000004.h5" in error
    assert ending.stalled and ending.status


@pytest.mark.usefixtures("mpiexec")
def test_a_rank_that_was_stopped_goes_on_and_work_that_takes_long_is_no_standing_still(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ending, text, _ = run_job(tmp_path, "woken", capfd)
    warning, end = text.splitlines()
    assert "is stopped" in warning and "parallel.timeout" not in warning
    assert end.startswith("neocpu: the run goes on; it had stood still for")
    assert ending == Ending(first=ending.first)
    ending, text, _ = run_job(tmp_path, "busy", capfd)
    assert not text and not ending.status


def test_what_ranks_print_is_written_as_far_as_it_can_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say = [sys.executable, "-c", "print('digest \xfc\u0416')"]
    with open(tmp_path / "latin", "w", encoding="latin-1") as latin, open("/dev/full", "w") as full:
        for out, told in ((latin, ""), (full, "stdout cannot be written (No space left")):
            monkeypatch.setattr(sys, "stdout", out)
            supervise(say, dict(os.environ), tmp_path / RANKS, Stops())
            assert (told in capsys.readouterr().err) if told else not capsys.readouterr().err
            monkeypatch.undo()
            with contextlib.suppress(OSError):
                out.close()
    assert (tmp_path / "latin").read_bytes() == b"digest \xfc\\u0416\n"


@pytest.mark.usefixtures("mpiexec")
def test_the_rank_that_was_killed_is_named_and_one_that_failed_speaks_for_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, text, processes = run_job(tmp_path, "killed", capfd)
    assert (ending.signal, ending.rank, ending.process) == (9, 1, processes[1])
    assert ending.status == 137 and not text
    told: list[str] = []
    survivor = Survivor(tmp_path, lambda resume: ending, "neocpu train x --resume", told.append)
    assert survivor.run(False, 0) == ending.status
    assert len(told) == 1
    assert f"rank 1 on {ending.host} (process {processes[1]}) was killed by SIGKILL" in told[0]
    assert "of step " in told[0] and told[0].endswith("start again with: neocpu train x --resume")
    token = json.loads((tmp_path / RANKS).read_text())["token"]
    assert not page_path(token).exists()
    assert "if nobody did" in survivor._reason(ending)
    kills = iter((1, 2))
    monkeypatch.setattr(supervisor, "memory_kills", lambda: next(kills))
    monkeypatch.setattr(survival, "memory_limit", lambda files: 400 << 20)
    ending, text, _ = run_job(tmp_path, "early", capfd)
    assert ending.signal == 9 and not text
    reason = Survivor(tmp_path, lambda resume: ending, "", told.append)._reason(ending)
    assert "by SIGKILL" in reason and "all 400.0 MiB that this job or container may" in reason
    monkeypatch.undo()
    ending, text, _ = run_job(tmp_path, "failing", capfd)
    assert text == "neocpu: error: a file is damaged\n"
    assert not ending.signal and not survivor._reason(ending)


@pytest.mark.usefixtures("mpiexec")
def test_a_job_ends_with_its_supervisor(tmp_path: Path) -> None:
    record = tmp_path / RANKS
    code = (
        "import sys; from pathlib import Path;"
        "from neocpu.parallel.watch.supervisor import Stops, supervise;"
        "from neocpu.parallel.transport.launch import mpiexec_command;"
        f"supervise(*mpiexec_command(2, ['-m', 'tests.standing_main', 'stopped', {str(record)!r}]),"
        f"Path({str(record)!r}), Stops())"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    job = subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=ROOT)
    while not record.exists():
        assert job.poll() is None
        time.sleep(0.05)
    ranks = [rank["process"] for rank in json.loads(record.read_text())["ranks"]]
    job.send_signal(signal.SIGKILL)
    job.wait()
    end = time.monotonic() + 5.0
    while any(Path(f"/proc/{number}").exists() for number in ranks):
        assert time.monotonic() < end
        time.sleep(0.05)


# ---- what launchers say ----

HYDRA = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 4711 RUNNING AT node3
=   EXIT CODE: 11
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""
INTEL = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 2 PID 4711 RUNNING AT node3
=   KILLED BY SIGNAL: 9 (Killed)
===================================================================================
"""
OPEN_MPI = """\
--------------------------------------------------------------------------
prterun noticed that process rank 2 with PID 4711 on node node3 exited on
signal 9 (Killed).
--------------------------------------------------------------------------
"""
LOST = (
    "[mpiexec@node0] control_cb (pmiserv_cb.c:280): assert (!closed) failed\n"
    "[mpiexec@node0] main (mpiexec.c:270): process manager error waiting for completion\n"
)
# of MPICH 5.0.2, while it starts ranks on a host whose link has just gone away
UNREACHED = (
    "[proxy:0@host1] HYDU_sock_connect (sock.c:140): unable to connect from "
    '"host1" to "login" (No route to host)\n'
    "[mpiexec@login] ui_cmd_cb (pmiserv_pmci.c:51): Launch proxy failed.\n"
)
OURS = "step 5, train: loss 0.5\n\na table\n=====\n" + 70 * "-" + "\nof ours\n" + 70 * "-" + "\n"


@pytest.mark.parametrize(
    ("said", "number", "rank"), [(HYDRA, 11, None), (INTEL, 9, 2), (OPEN_MPI, 9, 2)]
)
def test_launchers_are_understood_and_what_ranks_print_is_not_touched(
    said: str, number: int, rank: int | None
) -> None:
    ending = Ending(status=1)
    talk = Talk(ending)
    lines = (OURS + said + OURS).splitlines(keepends=True)
    shown = "".join(part for line in lines for part in talk.ranks_lines(line))
    assert shown + "".join(talk.rest()) == OURS + OURS
    ending.read()
    assert (ending.status, ending.signal, ending.rank) == (128 + number, number, rank)
    assert (ending.process, ending.host) == (4711, "node3")
    assert ending.explained


def test_a_lost_host_and_an_unknown_failure() -> None:
    ending = Ending(status=255)
    talk = Talk(ending)
    assert not [part for line in LOST.splitlines(True) for part in talk.ranks_lines(line)]
    ending.read()
    assert ending.lost and ending.explained
    ending = Ending(status=255)
    talk = Talk(ending)
    assert not [part for line in UNREACHED.splitlines(True) for part in talk.ranks_lines(line)]
    ending.read()
    assert (ending.lost, ending.host) == (True, "host1")
    ending = Ending(status=255)
    said = LOST + "[mpiexec@node0] APPLICATION TIMED OUT, TIMEOUT = 30s\n"
    assert not [part for line in said.splitlines(True) for part in Talk(ending).ranks_lines(line)]
    ending.read()
    survivor = Survivor(Path("none"), lambda go_on: ending, "again", print)
    assert survivor._reason(ending).startswith("mpiexec ended it after 30 s, as MPIEXEC_TIMEOUT")
    ending = Ending(status=1)
    Talk(ending).ranks_lines("[proxy:0:0@x] no such file: python\n")
    ending.read()
    assert not ending.explained  # so it is shown


# ---- restarts ----


def test_one_line_says_that_all_hosts_stand_still(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = "neocpu: error: the run has stood still for 20 s, waiting for step 5"
    lines = f"{said}; host a\nstep 5\n{said}; host b\n"
    command = ["sh", "-c", f"printf '{lines}' >&2; exit 124"]
    ending = supervise(command, dict(os.environ), tmp_path / RANKS, Stops())
    assert (ending.stalled, ending.status) == (True, 124)
    assert capfd.readouterr().err == f"{said}; host a\nstep 5\n"


def test_a_run_goes_on_as_often_as_it_may_and_notes_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = [None, Path("step-00000010.h5"), Path("step-00000010.h5"), None, None]
    monkeypatch.setattr(survival, "_newest", lambda out: checkpoints.pop(0))
    slept: list[float] = []
    monkeypatch.setattr(Stops, "wait", lambda self, seconds: slept.append(seconds))
    endings = [Ending(9, signal=9, process=1, host="a"), Ending(1, stalled=True), Ending(0)]
    resumed: list[bool] = []

    def start(resume: bool) -> Ending:
        resumed.append(resume)
        return endings[len(resumed) - 1]

    told: list[str] = []
    assert Survivor(tmp_path, start, "again", told.append).run(False, 5) == 0
    assert resumed == [False, True, True]
    assert slept == [1.0, 2.0]  # a newer checkpoint, and none
    notes = restarts_of(tmp_path)
    assert [note["checkpoint"] for note in notes] == ["step-00000010.h5"] * 2
    assert "SIGKILL" in str(notes[0]["reason"]) and "stood still" in str(notes[1]["reason"])
    assert "restart 1 of 5" in told[0] and "restart 2 of 5" in told[1]


@pytest.mark.parametrize(
    ("ending", "status", "lines"),
    [
        (Ending(1, talk=["Abort(1) on node 0: application called MPI_Abort"]), 1, 0),
        (Ending(143, signal=15, process=1, host="a", stopped=1, said=True), 143, 0),
        (Ending(0, stopped=1), 0, 0),
        (Ending(9, signal=9, process=1, host="a", stopped=1), 9, 1),
        (Ending(9, signal=9, process=1, host="a", stopped=2, said=True), 9, 0),
        (Ending(7, signal=7, process=1, host="a"), 7, 1),
        (Ending(139, signal=11, process=1, host="a"), 139, 1),
        (Ending(9, stalled=True), STATUS, 1),
    ],
)
def test_only_what_nobody_has_to_mend_is_started_again(
    tmp_path: Path, ending: Ending, status: int, lines: int
) -> None:
    told: list[str] = []
    lives = 9 if ending.stopped or not lines else 0
    assert Survivor(tmp_path, lambda resume: ending, "again", told.append).run(False, lives) == (
        status
    )
    assert len(told) == lines and not restarts_of(tmp_path)
    assert not lines or ("df /dev/shm" in told[0]) == (ending.signal in FULL)


FULL = (signal.SIGBUS, signal.SIGSEGV)  # by which ranks end that have no room in /dev/shm
UNMET = (
    "Abort(136463759): Fatal error in internal_Init_thread: Other MPI error, error stack:",
    "It looks like MPI_INIT failed for some reason; your parallel process is",
)


@pytest.mark.parametrize("line", UNMET)
def test_ranks_that_mpi_could_not_start_are_not_called_killed(
    line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # the launcher has killed those that still waited for the one that failed
    bad = "=   RANK 0 PID 7 RUNNING AT a\n=   KILLED BY SIGNAL: 9 (Killed)\n"
    command = ["sh", "-c", f"printf '{line}\n{bad}' >&2; exit 9"]
    told: list[str] = []

    def start(resume: bool) -> Ending:
        return supervise(command, dict(os.environ), tmp_path / RANKS, Stops())

    assert Survivor(tmp_path, start, "again", told.append).run(False, 0) == 9
    assert capfd.readouterr().err == f"{line}\n"
    assert "error: the MPI library could not start the ranks, and says why above" in told[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGXCPU])
def test_a_limit_of_cpu_time_is_thought_of(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survival.resource, "getrlimit", lambda which: (60, 60))
    told: list[str] = []
    ending = Ending(128 + number, signal=number, process=1, host="a")
    assert Survivor(tmp_path, lambda resume: ending, "again", told.append).run(False, 0)
    assert "limit of CPU time" in told[0] and "`ulimit -t`)" in told[0]


def test_a_signal_between_two_lives_ends_the_run_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survival, "FIRST_PAUSE", 60.0)
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        if len(told) == 1:  # it goes on in a minute
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()

    killed = Ending(9, signal=9, process=1, host="a")
    before = signal.getsignal(signal.SIGTERM)
    begun = time.monotonic()
    assert Survivor(tmp_path, lambda resume: killed, "again", tell).run(False, 9) == 143
    assert time.monotonic() - begun < 30
    assert signal.getsignal(signal.SIGTERM) == before
    assert told[1] == "neocpu: stopped by signal 15; no checkpoint; start again with: again"
    assert not restarts_of(tmp_path)


def test_ranks_that_die_of_a_signal_before_they_can_speak_are_spoken_for(tmp_path: Path) -> None:
    told: list[str] = []
    survivor = Survivor(tmp_path, lambda resume: ending, "again", told.append)
    ending = Ending(255, stopped=1)
    survivor.stops.number = signal.SIGUSR1
    assert survivor.run(False, 2) == 138
    assert told == ["neocpu: stopped by signal 10; no checkpoint; start again with: again"]


@pytest.mark.parametrize(
    ("number", "passed_on"),
    [
        (signal.SIGTERM, signal.SIGTERM),
        # which MPICH's mpiexec does not pass on
        (signal.SIGUSR2, signal.SIGUSR1),
    ],
)
def test_a_signal_reaches_a_launcher_that_has_just_been_started(
    tmp_path: Path, number: int, passed_on: int
) -> None:
    with Stops() as stops:
        signal.raise_signal(number)
        ending = supervise(["sleep", "60"], dict(os.environ), tmp_path / RANKS, stops)
    assert (ending.status, ending.stopped) == (128 + passed_on, 1) and ending.wanted


@pytest.mark.usefixtures("mpiexec")
def test_a_run_goes_on_by_itself_to_the_same_digest(tmp_path: Path) -> None:
    write_data(tmp_path)
    job = tmp_path / "job.toml"
    job.write_text(FAMILIES[MAIN].toml(tmp_path))
    keys = ["training.steps=60", "training.epochs=1000", "checkpoint.every_steps=3"]
    expected = Trainer(configs.load(job, keys), None, tmp_path / "whole").run()["digest"]
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "neocpu", "train", str(job), "--ranks", "2"]
    command += ["--restarts", "3", "--out", str(out)]
    command += [word for key in keys for word in ("--set", key)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not [*out.glob("checkpoints/step-*.h5")]:
        assert run.poll() is None
        time.sleep(0.02)
    ranks = json.loads((out / RANKS).read_text())["ranks"]
    os.kill(ranks[1]["process"], signal.SIGKILL)
    _, errors = run.communicate(timeout=900)
    assert run.returncode == 0, errors
    summary = json.loads((out / "run.json").read_text())
    assert summary["digest"] == expected
    assert [each["reason"] for each in summary["restarts"]] == [
        each["reason"] for each in restarts_of(out)
    ]
    assert f"process {ranks[1]['process']}) was killed by SIGKILL" in errors


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a shell script for each host, which is what happens when it is asked."""

    def command(ranks: int, words: object, hosts: list[HostRanks]) -> tuple[list[str], object]:
        assert ranks == 1
        return ["sh", str(tmp_path / hosts[0].name)], os.environ

    monkeypatch.setattr(host_pool, "mpiexec_command", command)
    monkeypatch.setattr(host_pool, "ANSWER", 0.5)
    for name in "abc":
        (tmp_path / name).write_text("exit 0")
    return tmp_path


def test_hosts_that_do_not_answer_are_left_out_until_they_do(answers: Path) -> None:
    pool = HostPool(listed_hosts("a:2,b:2,c:2"), 4, least=3)
    pool.look()
    assert pool.placed() == [("a", 2), ("b", 2)] and not pool.losses()
    (answers / "a").write_text(
        "echo '[proxy:0@a] HYDU_sock_connect (/hydra/sock.c:140): no route to host' >&2; exit 255"
    )
    pool.look()
    assert pool.placed() == [("b", 2), ("c", 2)], "a host that had no rank stands in"
    assert pool.losses() == ("a is left out (no process can be started there: no route to host)")
    assert not pool.shortage()
    (answers / "b").write_text("sleep 60")
    begun = time.monotonic()
    pool.look()
    assert time.monotonic() - begun < 30
    assert pool.shortage().endswith("2 ranks are left and the job needs 3")
    assert pool.left_out["b"].startswith("no answer within")
    (answers / "a").write_text("exit 0")
    pool.look()
    assert pool.placed() == [("a", 2), ("c", 2)]
    shares = HostPool(listed_hosts("a,b,c"), 5)
    shares.look()
    assert shares.placed() == [("a", 2), ("c", 1)], "ranks of a lost host go nowhere else"
    assert not HostPool().placed() and not HostPool(least=2).shortage()


def test_a_lost_host_and_a_rank_killed_on_another_host_are_told_apart(answers: Path) -> None:
    pool = HostPool(listed_hosts("a:2,b:2"), 4)
    survivor = Survivor(answers, lambda resume: Ending(), "again", print, pool)
    killed = survivor._reason(Ending(255, lost=True))
    assert "was killed on one of a, b, which all answer" in killed
    (answers / "b").write_text("exit 1")
    assert survivor._reason(Ending(255, lost=True)) == (
        "host b is lost (no process can be started there: 1)"
    )


@pytest.mark.parametrize("ending", [Ending(255, lost=True), Ending(1, talk=["[proxy] what?"])])
def test_a_run_goes_on_without_a_host_as_long_as_enough_are_left(
    answers: Path, monkeypatch: pytest.MonkeyPatch, ending: Ending
) -> None:
    monkeypatch.setattr(survival, "FIRST_PAUSE", 0.0)
    told: list[str] = []
    lives: list[list[HostRanks]] = []

    def start(resume: bool) -> Ending:
        lives.append(pool.placed())
        (answers / "cb"[len(lives) - 1]).write_text("exit 1")
        return ending

    out = answers / "out"
    out.mkdir()
    pool = HostPool(listed_hosts("a:2,b:2,c:2"), None, least=3)
    assert Survivor(out, start, "again", told.append, pool).run(False, 5) == ending.status
    assert lives == [[("a", 2), ("b", 2), ("c", 2)], [("a", 2), ("b", 2)]]
    (note,) = restarts_of(out)
    assert note["ranks"] == 4 and list(note["left_out"]) == ["c"]
    assert "c is left out" in told[1]
    (row,) = details._restarts({"restarts": [note]}).rows
    assert row[1:4] == ["step 0", "4", f"c: {note['left_out']['c']}"]
    assert told[-1].startswith(
        "neocpu: error: b is left out (no process can be started there: 1); "
    )
    assert (
        "2 ranks are left and the job needs 3; no checkpoint; start again with: again" in told[-1]
    )


def test_checkpoints_come_by_minutes_and_change_no_bit(tmp_path: Path) -> None:
    write_data(tmp_path)
    job = tmp_path / "job.toml"
    job.write_text(FAMILIES[MAIN].toml(tmp_path))
    keys = ["training.steps=4", "training.epochs=9", "checkpoint.every_steps=0"]
    digests = []
    for name, minutes in (("end", "0"), ("often", "1e-9")):
        config = configs.load(job, [*keys, f"checkpoint.every_minutes={minutes}"])
        digests.append(Trainer(config, None, tmp_path / name).run()["digest"])
    assert digests[0] == digests[1]
    names = [
        sorted(path.stem for path in tmp_path.glob(f"{name}/checkpoints/*.h5"))
        for name in ("end", "often")
    ]
    assert names == [["step-00000004"], ["step-00000003", "step-00000004"]]
    narrow = ["memory.placement=hbm_over_ddr", "memory.cache_format=fp32", "memory.hbm=100_000"]
    narrow += ["model.embedding_format=int8", "checkpoint.every_minutes=5"]
    with pytest.raises(ConfigError, match="bits would depend on the clock"):
        configs.load(job, narrow)


# ---- pieces ----


def test_seconds_in_which_the_watch_itself_slept_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pulse = Pulse()
    pulse.begin_step(3, lengthy=False)
    still = Stillness(pulse, period=1.0)
    still.look()
    now += 60.0  # the process was stopped
    assert still.look() == 2.0
    now += 1.0
    assert still.look() == 3.0
    pulse.wait = (("input", "alltoallv", "rows"), 1.0)
    now += 1.0
    assert still.look() == 0.0 and still.longest == 3.0


def test_hosts_that_do_not_answer_and_messages_that_do_not_arrive() -> None:
    members = [Member(rank, f"node{rank // 2}", f"{rank // 2}", 10 + rank) for rank in range(4)]
    states = {
        rank: RankState(rank, f"node{rank // 2}", 10 + rank, step=7, wait="alltoallv 'rows'")
        for rank in range(4)
    }
    text = describe(members, states, {}, 31.4, 1.0)
    assert text == (
        "the run has stood still for 31 s, waiting for alltoallv 'rows' of step 7: "
        "all ranks are there, but their messages do not arrive"
    )
    heard = {2: (time.monotonic() - 40.0, states.pop(2))}
    del states[3]
    text = describe(members, states, heard, 31.4, 1.0)
    assert text.endswith(
        "host node1 (ranks 2, 3) does not answer; 40 s ago its rank 2 was waiting for alltoallv "
        "'rows' of step 7"
    )


def test_who_is_late_with_an_answer_moved_before() -> None:
    """A host misses a question, or a watch its turn, while it compiles on a busy machine."""
    watch = Watchdog(SingleComm(), warn_after=600.0, timeout=0.0)
    try:
        waits = RankState(0, still=143.0, wait="barrier")
        works = RankState(1, doing="preparing the first step")
        watch._still.seconds = 143.0
        for late, standing in (
            (replace(works, silent=9.0), None),
            (replace(works, silent=20.0), 143.0),
            (replace(works, silent=9.0, still=30.0), 143.0),
            (replace(works, silent=9.0, process_state="stopped"), 143.0),
        ):
            assert watch._standing({0: waits, 1: late}, 12.0) == standing
            now = time.monotonic()
            watch._questions.complete = now
            watch._questions.heard = {1: (now - late.silent, replace(late, silent=0.0))}
            assert watch._standing({0: waits}, 12.0) == standing
            watch._questions.heard = {}
        assert watch._standing({0: waits}, 12.0) == 143.0
    finally:
        watch.stop()


def test_a_rank_is_known_before_its_watch_looks_first() -> None:
    watch = Watchdog(SingleComm(), warn_after=600.0, timeout=0.0)
    try:
        assert watch._page.read(0) is not None
    finally:
        watch.stop()


def test_a_rank_reads_what_another_wrote(tmp_path: Path) -> None:
    page = RankPage("test" + os.urandom(6).hex())
    try:
        assert page.read(3) is None
        state = RankState(3, "node", os.getpid(), step=5, doing="top")
        page.write(state)
        assert page.read(3) == state and page.read(2) is None
    finally:
        page.remove()
    assert not page.path.exists()


def test_pages_of_jobs_that_were_killed_go_with_the_next_job() -> None:
    running, killed = RankPage("test-running"), RankPage("test-killed")
    page = page_path("test-killed")
    page.with_suffix(".ended").touch()
    minutes_ago = time.time() - 120
    os.utime(page, (minutes_ago, minutes_ago))
    RankPage("test-next").remove()
    try:
        assert page_path("test-running").exists()
        assert not page.exists() and not page.with_suffix(".ended").exists()
    finally:
        running.remove()
        killed.remove()
