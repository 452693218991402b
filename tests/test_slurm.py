"""Do the scripts of examples/slurm work as their users run them? On a Slurm of two nodes, and, for
machines that have none, with a stand-in for it.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import soak_slurm
from promise_cases import FAMILIES, MAIN, write_data

from neocpu.core.errors import CheckpointError
from neocpu.parallel.transport.launch import find_mpiexec, mpiexec_command
from neocpu.train.checkpoint.reading import CheckpointFile
from tests import slurm_room
from tests.jobs import ran, started
from tests.slurm_room import Slurm
from tests.workers import today

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "examples" / "slurm"
TRIES = 3  # Slurm's PMI now and then cuts a line of MPICH's in two, and ranks do not meet
# srun starts two ranks; it and scontrol, which has no answer the first time, note what they were
# asked
SRUN = """#!/bin/bash
for name in ${{!SLURM_@}}; do unset "$name"; done
echo "$@" >> {folder}/started
while [[ $1 == --* ]]; do
    [[ $1 != --task-epilog=* ]] || epilog=${{1#*=}}
    shift
done
trap 'kill -USR1 "$run"' USR1
{mpiexec} -n 2 "$@" &
run=$!
while kill -0 "$run" 2>/dev/null; do wait "$run"; done
wait "$run"
status=$?
"$epilog"
exit "$status"
"""
SCONTROL = """#!/bin/bash
[ -e {folder}/away ] || {{ touch {folder}/away; exit 1; }}
echo "$@" >> {folder}/requeued
"""
NEOCPU = """#!/bin/bash
exec {python} -m neocpu "$@"
"""


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_bash(script: Path) -> None:
    done = ran(["bash", "-n", str(script)])
    assert done.returncode == 0, done.stderr


def stand_in(folder: Path) -> dict[str, str]:
    """The environment of a task of a job array, with the stand-ins in front of PATH."""
    programs = folder / "bin"
    programs.mkdir()
    facts = {"mpiexec": find_mpiexec(), "folder": folder, "python": sys.executable}
    none = "#!/bin/bash\n"
    texts = {"srun": SRUN, "scontrol": SCONTROL, "neocpu": NEOCPU, "sleep": none}
    for name, text in texts.items():
        (programs / name).write_text(text.format(**facts))
        (programs / name).chmod(0o755)
    _, environment = mpiexec_command(2, [])
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    return environment | {
        "PATH": f"{programs}{os.pathsep}{environment['PATH']}",
        "SLURM_JOB_ID": "8",
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_SUBMIT_DIR": str(SCRIPTS),
        "SLURM_TMPDIR": str(folder),
        "SLURM_CPUS_PER_TASK": "2",
        "NUMBA_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def endless(folder: Path) -> Path:
    """The config of a run that writes a checkpoint every five steps and does not end by itself."""
    write_data(folder)
    config = folder / "small.toml"
    text = FAMILIES[MAIN].toml(folder).replace("epochs = 2", "epochs = 100000")
    config.write_text(text.replace("steps = 5", "steps = 200000") + "[checkpoint]\nevery_steps=5\n")
    return config


@pytest.mark.usefixtures("mpiexec")
def test_a_job_that_nears_its_limit_goes_back_into_the_queue(tmp_path: Path) -> None:
    """Slurm's early warning, the requeue, and the next life of the job, which goes on."""
    config = endless(tmp_path)
    environment = stand_in(tmp_path)
    command = ["bash", str(SCRIPTS / "array.sh"), str(config), str(tmp_path / "runs")]
    job = started(command, env=environment, stderr=subprocess.STDOUT)
    folder = tmp_path / "runs" / "1" / "checkpoints"
    deadline = time.monotonic() + 200
    try:
        while not list(folder.glob("step-*.h5")):
            assert job.poll() is None, job.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(job.pid, signal.SIGUSR1)
        said, _ = job.communicate(timeout=120)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == 0, said
    assert (tmp_path / "requeued").read_text() == "requeue 7_1\n"
    assert f"stopped by signal {int(signal.SIGUSR1)} after step" in said
    assert "--cpus-per-task=2 neocpu train" in (tmp_path / "started").read_text()
    last = max(folder.glob("step-*.h5"))
    with CheckpointFile(last) as file:
        step = file.step
        assert file.config().optimizer.sparse.learning_rate == 0.02
    # the next life; this time the run reaches its end, and the job with it
    config.write_text(config.read_text().replace("steps = 200000", f"steps = {step + 2}"))
    left = tmp_path / "neocpu-rows-8"
    left.mkdir()
    done = ran(command, env=environment | {"SLURM_RESTART_COUNT": "1"}, timeout=200)
    assert done.returncode == 0, done.stderr
    assert f"resuming from {last.name}" in done.stdout
    assert (tmp_path / "requeued").read_text() == "requeue 7_1\n"
    assert not left.exists() and not [*folder.parent.glob(".tidy*")]


@pytest.mark.parametrize(
    ("signals", "status"),
    [((signal.SIGUSR1,), 0), ((signal.SIGUSR1, signal.SIGTERM), 137)],
    ids=["warned", "cancelled"],
)
def test_a_warned_job_goes_back_though_a_rank_was_slow_to_end(
    signals: tuple[signal.Signals, ...], status: int, tmp_path: Path
) -> None:
    """srun kills it for that, and has the status of the kill. A job that is cancelled stays so."""
    environment = stand_in(tmp_path)
    runs = tmp_path / "runs"
    last = signals[-1].name
    lines = ("#!/bin/bash", "trap '' USR1", f"trap 'exit 137' {last}", f"touch {runs}")
    srun = "\n".join((*lines, "while :; do /bin/sleep 0.1; done"))
    (tmp_path / "bin" / "srun").write_text(srun)
    del environment["SLURM_ARRAY_JOB_ID"]
    command = ["bash", str(SCRIPTS / "train.sh"), "config", str(tmp_path / "out")]
    job = started(command, env=environment)
    try:
        when(runs.exists)
        for number in signals:
            os.kill(job.pid, number)
        said, _ = job.communicate(timeout=120)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == status, said
    assert (tmp_path / "requeued").exists() == (status == 0)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """A cluster of two nodes."""
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(slurm_room.cluster())
        except OSError as error:
            pytest.skip(str(error))
        yield cluster


def digest(text: str) -> str:
    """The line of a text that a run ends with."""
    return next(line for line in text.splitlines() if line.startswith("digest "))


def when(condition: Callable[[], object], seconds: float = 200.0) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def submitted(slurm: Slurm, folder: Path, *words: str, script: str = "train.sh") -> str:
    """The number of a job that trains `endless` into FOLDER/out; words : options of sbatch."""
    small = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", f"--output={folder}/job.log"]
    run = [str(SCRIPTS / script), str(endless(folder)), str(folder / "out")]
    return slurm.tell("sbatch", "--parsable", *small, *words, *run, folder=SCRIPTS)


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "out" / "checkpoints").glob("step-*.h5"))


def goes_on(slurm: Slurm, folder: Path, job: str) -> None:
    """The job has another life, in which it resumes from the last checkpoint of the one before."""
    slurm.wait(job, "PENDING")
    last = checkpoints(folder)[-1]
    # Slurm waits two minutes before it starts a job again
    slurm.tell("scontrol", "update", f"JobId={job}", "StartTime=now")
    said = folder / "job.log"
    when(lambda: f"resuming from {last.name}" in said.read_text())
    when(lambda: checkpoints(folder)[-1].name > last.name)


def test_srun_on_two_nodes_gives_the_digest_of_the_readme(slurm: Slurm, tmp_path: Path) -> None:
    train = ["neocpu", "train", "data/models/tiny.toml", "--out", str(tmp_path / "out")]
    for _ in range(TRIES):
        done = slurm.run("srun", "--kill-on-bad-exit=1", "-N2", "-n4", *train)
        if "internal_Init_thread" not in done.stderr:
            break
    else:
        pytest.skip("Slurm's PMI did not bring MPICH's ranks together")
    assert done.returncode == 0, done.stderr
    assert digest(done.stdout) == digest((ROOT / "README.md").read_text())


@pytest.mark.long
@pytest.mark.parametrize("warned", ["--batch", "--full", ""], ids=["script", "both", "ranks"])
def test_a_warned_job_goes_back_into_the_queue_and_goes_on(
    warned: str, slurm: Slurm, tmp_path: Path
) -> None:
    """Slurm's warning before the time limit, by `--signal=B:USR1@120` and without the B."""
    job = submitted(slurm, tmp_path)
    when(lambda: checkpoints(tmp_path))
    slurm.tell("scancel", *warned.split(), "--signal=USR1", job)
    goes_on(slurm, tmp_path, job)
    slurm.tell("scancel", job)
    assert slurm.wait(job, "CANCELLED", "FAILED") == "CANCELLED"


@pytest.mark.long
def test_a_job_is_warned_of_its_limit_and_goes_on_after_it(slurm: Slurm, tmp_path: Path) -> None:
    # limits are of minutes, and Slurm warns up to a minute early
    job = submitted(slurm, tmp_path, "--time=3", "--signal=B:USR1@60")
    when(lambda: checkpoints(tmp_path))
    goes_on(slurm, tmp_path, job)
    assert (
        f"stopped by signal {int(signal.SIGUSR1)} after step" in (tmp_path / "job.log").read_text()
    )
    slurm.tell("scancel", job)
    slurm.wait(job, "CANCELLED")


@pytest.mark.long
def test_a_cancelled_job_leaves_a_checkpoint(slurm: Slurm, tmp_path: Path) -> None:
    job = submitted(slurm, tmp_path, f"--export=ALL,SLURM_TMPDIR={tmp_path}")
    when(lambda: checkpoints(tmp_path))
    rows = tmp_path / f"neocpu-rows-{job}"  # as if the ranks had kept some there
    rows.mkdir()
    slurm.tell("scancel", job)
    slurm.wait(job, "CANCELLED")
    when(lambda: not rows.exists())
    said = tmp_path / "job.log"
    when(lambda: f"stopped by signal {int(signal.SIGTERM)} after step" in said.read_text())
    (step,) = re.findall(r"after step (\d+)", said.read_text())
    assert checkpoints(tmp_path)[-1].name == f"step-{int(step):08}.h5"


@pytest.mark.long
def test_a_job_whose_node_goes_down_goes_on_on_others(slurm: Slurm, tmp_path: Path) -> None:
    job = submitted(slurm, tmp_path)
    when(lambda: checkpoints(tmp_path))
    slurm.tell("scontrol", "update", "NodeName=two", "State=down", "Reason=test")
    slurm.wait(job, "PENDING")
    slurm.tell("scontrol", "update", "NodeName=two", "State=resume")
    goes_on(slurm, tmp_path, job)
    slurm.tell("scancel", job)
    slurm.wait(job, "CANCELLED")


@pytest.mark.long
def test_a_killed_rank_ends_the_job(slurm: Slurm, tmp_path: Path) -> None:
    job = submitted(slurm, tmp_path)
    when(lambda: checkpoints(tmp_path))
    os.kill(slurm.ranks(job)[1], signal.SIGKILL)
    slurm.wait(job, "FAILED", seconds=30)
    when(lambda: not slurm.ranks(job), 30)


@pytest.mark.long
def test_an_array_trains_each_rate_in_a_folder_of_its_own(slurm: Slurm, tmp_path: Path) -> None:
    array = submitted(slurm, tmp_path, "--array=0-1", "--nodes=1", script="array.sh")
    rates = dict[str, float]()

    def both() -> bool:
        for path in (tmp_path / "out").glob("*/checkpoints/step-*.h5"):
            # an old one may be removed meanwhile
            with suppress(CheckpointError), CheckpointFile(path) as file:
                rates[path.parts[-3]] = file.config().optimizer.sparse.learning_rate
        return len(rates) == 2

    when(both)
    assert rates == {"0": 0.01, "1": 0.02}
    slurm.tell("scancel", "--signal=USR1", "--batch", f"{array}_1")
    slurm.wait(f"{array}_1", "PENDING")
    assert slurm.state(f"{array}_0") == "RUNNING"
    slurm.tell("scancel", array)


@pytest.mark.long
def test_mpiexec_in_a_job_starts_ranks_on_its_nodes(slurm: Slurm, tmp_path: Path) -> None:
    run = f"neocpu train data/models/tiny.toml --out {tmp_path / 'out'}"
    job = ["--wait", "-N2", "-n4", f"--output={tmp_path}/job.log", "--wrap"]
    slurm.tell("sbatch", *job, f"{find_mpiexec()} -n 4 {run}")
    assert digest((tmp_path / "job.log").read_text()) == digest((ROOT / "README.md").read_text())


@pytest.mark.long
def test_a_script_that_asks_for_more_than_nodes_have_waits_and_test_only_says_so(
    slurm: Slurm,
) -> None:
    run = [str(SCRIPTS / "train.sh"), "config", "out"]
    assert "not available" in slurm.run("sbatch", "--test-only", *run).stderr
    assert slurm.run("sbatch", "--test-only", "--cpus-per-task=1", *run).returncode == 0
    job = slurm.tell("sbatch", "--parsable", *run)
    when(lambda: slurm.tell("squeue", "--noheader", "--format=%r", "-j", job) == "PartitionConfig")
    slurm.tell("scancel", job)


def test_a_rank_of_each_node_may_tell_the_soak_of_its_end() -> None:
    gone = "neocpu: error: rank {} on {} (process 4) has ended, last seen in apply of step 65\n"
    first, second = gone.format(0, "one"), gone.format(2, "two")
    assert soak_slurm.said_once(f"{first}srun: error\n{second}") == f"{first}srun: error\n"
    other = "neocpu: error: another\n"
    assert soak_slurm.said_once(first + other) == first + other


@pytest.mark.long
def test_a_job_ends_well_through_some_faults(slurm: Slurm) -> None:
    """On a cluster of its own, of which daemons are killed; there is Slurm where `slurm` is."""
    few = ["--hours", "0.05", "--faults", "3", "--ranks", "2", "--steps", "60", "--seed", today()]
    assert soak_slurm.main(few) == 0


@pytest.mark.long
def test_a_cluster_ends_with_the_process_that_asked_for_it(slurm: Slurm) -> None:
    code = (
        "import os; from tests import slurm_room\n"
        "with slurm_room.cluster() as slurm:\n"
        "    slurm.tell('sbatch', '-N2', '-o', '/dev/null', '--wrap', 'srun sleep 1000')\n"
        "    print(slurm.folder, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = ran([sys.executable, "-c", code], cwd=ROOT)
    folder = Path(done.stdout.strip())
    assert folder.name, done.stderr
    when(lambda: not folder.exists(), 30)
    assert not list(slurm_room.members(str(folder / "slurm.conf")))
