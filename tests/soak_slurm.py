"""Does training survive what a scheduler and its nodes do to it?

    python -m tests.soak_slurm --hours 1 --ranks 4 --steps 400 [--faults 200] [--record FILE]

The soak (`soak.py`) on a Slurm of two nodes (`slurm_room.py`). A life is one job, submitted with
`examples/slurm/train.sh` as its users do, from there to its end, however often it is put back into
the queue meanwhile; where a fault ends it for good, the next life is the job submitted again. Most
jobs have one to four tasks on one or two nodes; some have one task, which starts ranks of its own
and starts them again (`--restarts`). What is asked of a life is what the soak asks, and:

* what it did each time before it was put back is judged by itself: one sentence at most, and never
  a traceback;
* a job that Slurm calls complete has printed its digest, and nothing is left in the folder of rows.

A job that was put back starts once its steps have ended, not after two minutes; nodes that do not
answer are down after 20 s, not 300. Lives that end as Slurm's PMI does not bring ranks together are
no findings.
"""

import contextlib
import itertools
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import soak
from hosts import Room
from soak_faults import (
    MARK,
    Disk,
    Fault,
    Life,
    Place,
    kill_all,
    kill_one,
    kill_reader,
    stop,
    stop_long,
)

from neocpu.parallel.watch.words import STALLED
from tests.slurm_room import CORES, DAEMONS, NODES, ROOT, Slurm, cluster, start

SCRIPT = ROOT / "examples" / "slurm" / "train.sh"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE")
AWAY = 20  # seconds without an answer, after which a node is down
LOOKS = 0.3  # seconds between two looks at a job
REBOOTED = "-b"  # to slurmd, which says that its node has started anew
QUEUED = 15.0  # seconds in the queue, after which nodes that are down are called up again
TOLD = "15"  # seconds for a command
LAST = 30.0  # seconds for processes to end: Slurm gives them KillWait, 10
MINUTES = 240  # that a job may take
WARNED = 45.0  # seconds in which Slurm warns of a time limit: it looks twice a minute
# Ranks did not meet: Slurm's PMI cut a line, or was suspended as they did
TORN = ("internal_Init_thread", "mpi/pmi2: failed to send temp kvs")
GONE = ") has ended, last seen "  # in the words of a rank beside one that was killed
SPOKEN = ("srun: ", "slurmstepd", "Slurm ")  # how lines of Slurm begin
# Slurm calls a job complete that it has cancelled to put it back, if slurmctld is killed before it
# has saved that
CANCELLED = " CANCELLED AT "
PUT_BACK = f"Slurm{soak.RESTARTED}the queue\n"


class Job(Life):
    """A job of Slurm, from its submission to its end.

    process : sbatch, which has ended. job : its number. log : what it prints. restarts : of its one
    task, which starts ranks; 0: tasks are ranks.
    """

    def __init__(
        self,
        process: "subprocess.Popen[str]",
        mark: str,
        slurm: Slurm,
        job: str,
        log: Path,
        restarts: int,
    ) -> None:
        super().__init__(process, mark, hosts=range(len(NODES)))
        self.slurm = slurm
        self.job = job
        self.log = log
        self.facts = {"JobState": "PENDING"}
        self.cuts: list[int] = []  # bytes of the log whenever the job was put back
        self._restarts = restarts
        self._looked = 0.0
        self._ran = time.monotonic()  # when it was last out of the queue

    @property
    def state(self) -> str:
        """When it was last looked at, such as "RUNNING"."""
        return self.facts["JobState"]

    @property
    def status(self) -> int:
        """Of the script, as shells count; 1 where Slurm ended the job and names none."""
        status, _, number = self.facts["ExitCode"].partition(":")
        count = int(status) or (int(number) and 128 + int(number))
        return count or int(self.state != "COMPLETED")

    def nodes(self) -> list[str]:
        """Those that it runs on; all, where it runs on none."""
        return [name for name in NODES if name in self.facts.get("NodeList", "")] or list(NODES)

    def tell(self, *words: str) -> bool:
        """Did Slurm do as it was told? scancel would try for two minutes where a job just ends."""
        return self.slurm.run("timeout", TOLD, *words).returncode == 0

    def running(self) -> bool:
        """Whether it has not ended; a job that waits to start again does so now."""
        if self.state in ENDED or time.monotonic() < self._looked + LOOKS:
            return self.state not in ENDED
        told = self.slurm.run("scontrol", "--oneliner", "show", "job", self.job)
        self._looked = time.monotonic()
        if told.returncode:  # slurmctld is away
            return True
        self.facts = dict(word.partition("=")[::2] for word in told.stdout.split())
        if self.state not in ENDED and len(self.cuts) < int(self.facts["Restarts"]):
            self.cuts.append(self.log.stat().st_size)
        if self.state != "PENDING":
            self._ran = self._looked
        elif self.facts["Reason"] == "BeginTime" and not self._lingers():
            self.tell("scontrol", "update", f"JobId={self.job}", "StartTime=now")
        elif "held" in self.facts["Reason"].lower():
            self.tell("scontrol", "release", self.job)
        elif self._looked > self._ran + QUEUED:
            for node in NODES:
                self.tell("scontrol", "update", f"NodeName={node}", "State=resume")
        return self.state not in ENDED

    def _lingers(self) -> bool:
        """Whether Slurm still ends what ran before: it would mix that up with what starts."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if path.read_bytes().startswith(f"slurmstepd: [{self.job}.".encode()):
                    return True
        return False

    def wait(self, seconds: float) -> None:
        """Wait for its end, so long at most."""
        end = time.monotonic() + seconds
        while self.running() and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, LOOKS))

    def named(self, word: str) -> list[int]:
        """Its processes with this word in their command."""
        numbers = []
        for number in self.processes():
            with contextlib.suppress(OSError):
                if word.encode() in Path(f"/proc/{number}/cmdline").read_bytes():
                    numbers.append(number)
        return numbers

    def ranks(self) -> list[int]:
        """Those that train; none while they are started again."""
        parents = {number: parent_of(number) for number in self.named("\0train\0")}
        tasks = [number for number, parent in parents.items() if name_of(parent) == "slurmstepd"]
        if not self._restarts:
            return tasks
        own = [*tasks, *(n for n in parents.values() if name_of(n).startswith("hydra_pmi"))]
        # who is beside a rank has the rank's command, and the rank as its parent
        return [number for number, parent in parents.items() if parent in own]

    def pieces(self) -> list[str]:
        """What it printed, each time before it was put back, and at last."""
        data = self.log.read_bytes()
        cuts = [0, *self.cuts, len(data)]
        texts = [data[a:b].decode(errors="replace") for a, b in itertools.pairwise(cuts)]
        return [said_once(text) for text in texts]


def said_once(text: str) -> str:
    """A text in which one node tells that the run stands still, or that a rank has ended: with srun
    a rank of each does, as nobody is there to choose.
    """
    lines: list[str] = []
    told = False
    for line in text.splitlines(keepends=True):
        of_node = line.startswith(soak.ERROR) and (STALLED in line or GONE in line)
        if not (of_node and told):
            lines.append(line)
        told |= of_node
    return "".join(lines)


def parent_of(number: int) -> int:
    """The parent of a process; 0: it is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def name_of(number: int) -> str:
    """The name of a process, as the system shortens it; "": it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{number}/comm").read_text().strip()
    return ""


@dataclass
class Cluster(Place):
    """A place with a cluster. started : its daemons that were started again."""

    slurm: Slurm = field(kw_only=True)
    started: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    _timers: list[threading.Timer] = field(default_factory=list)

    def later(self, seconds: float, do: Callable[[], object]) -> None:
        """Do something in so many seconds, while the life goes on."""
        self._timers.append(threading.Timer(seconds, do))
        self._timers[-1].start()

    def start(self, name: str, *options: str) -> None:
        """Start a daemon, unless it runs, and let it run on."""
        number = self.slurm.daemon(name)
        if number:
            os.kill(number, signal.SIGCONT)
        else:
            command = [*DAEMONS[name], *options]
            self.started.append(start(self.slurm.folder, command, name))

    def resume(self, node: str) -> None:
        """Let a node have jobs again."""
        self.slurm.run("scontrol", "update", f"NodeName={node}", "State=resume")

    def on_node(self, node: str) -> list[int]:
        """Processes of a node, but the first."""
        first = self.slurm.firsts[node]
        numbers = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
        return [n for n in numbers if n != first and host_of(n) == host_of(first) != 0]

    def mend(self) -> None:
        """Wait for all that was to be done later; then all daemons run, and nodes take jobs."""
        for timer in self._timers:
            timer.join()
        self._timers.clear()
        super().mend()
        end = time.monotonic() + LAST
        for name in DAEMONS:
            self.start(name)
        while set(self._states()) - {"idle", "allocated", "mixed", "completing", "planned"}:
            if time.monotonic() > end:
                raise TimeoutError(f"nodes are {self._states()}, {LAST:g} s after they were mended")
            for node in NODES:
                self.resume(node)
            time.sleep(LOOKS)

    def _states(self) -> list[str]:
        told = self.slurm.run("sinfo", "--noheader", "--Node", "--format=%T")
        return told.stdout.split() or ["unknown"]


def host_of(number: int) -> int:
    """The host name's namespace of a process; 0: it is gone."""
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{number}/ns/uts").st_ino
    return 0


def set_down(place: Place, life: Life) -> None:
    """A node is called down by whoever keeps the cluster, for some seconds."""
    _set_node(place, life, "down")


def drain(place: Place, life: Life) -> None:
    """A node is to take no more jobs, for some seconds."""
    _set_node(place, life, "drain")


def _set_node(place: Place, life: Life, state: str) -> None:
    assert isinstance(place, Cluster) and isinstance(life, Job)
    node = place.chance.choice(life.nodes())
    life.tell("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=soak")
    place.later(place.chance.uniform(0.5, 5.0), lambda: place.resume(node))


def lose_node(place: Place, life: Life) -> None:
    """All that runs on a node is gone at once, and its memory; the node is there again later."""
    assert isinstance(place, Cluster) and isinstance(life, Job) and place.room is not None
    node = place.chance.choice(life.nodes())
    life.cut_off = True
    while numbers := place.on_node(node):
        life.signal(numbers, signal.SIGKILL)
    place.room.on_host(NODES.index(node), ["sh", "-c", "rm -f /dev/shm/*"])
    place.later(place.chance.uniform(0.5, 8.0), lambda: place.start(node, REBOOTED))


def kill_daemon(place: Place, life: Life) -> None:
    """SIGKILL to the slurmd of a node, which is started again later."""
    assert isinstance(life, Job)
    _away(place, life, place.chance.choice(life.nodes()), signal.SIGKILL, 8.0)


def stop_daemon(place: Place, life: Life) -> None:
    """SIGSTOP to the slurmd of a node, perhaps for longer than a node may be silent."""
    assert isinstance(life, Job)
    _away(place, life, place.chance.choice(life.nodes()), signal.SIGSTOP, 1.5 * AWAY)


def kill_controller(place: Place, life: Life) -> None:
    """SIGKILL to slurmctld, which is started again later."""
    _away(place, life, "slurmctld", signal.SIGKILL, 8.0)


def stop_controller(place: Place, life: Life) -> None:
    """SIGSTOP to slurmctld, for some seconds."""
    _away(place, life, "slurmctld", signal.SIGSTOP, 8.0)


def _away(place: Place, life: Life, name: str, what: signal.Signals, seconds: float) -> None:
    assert isinstance(place, Cluster)
    if number := place.slurm.daemon(name):
        life.signal([number], what)
        place.later(place.chance.uniform(0.3, seconds), lambda: place.start(name))


def command(*words: str) -> Callable[[Place, Life], None]:
    """A strike by a command of Slurm, whose last word is the job."""

    def strike(place: Place, life: Life) -> None:
        assert isinstance(life, Job)
        life.tell(*words, life.job)

    return strike


def suspend(place: Place, life: Life) -> None:
    """The job's processes are stopped, on all nodes, and go on some seconds later."""
    assert isinstance(place, Cluster) and isinstance(life, Job)
    life.tell("scontrol", "suspend", life.job)
    life.wait(place.chance.uniform(0.5, 5.0))
    life.tell("scontrol", "resume", life.job)
    # Slurm forgets them if the slurmd is started anew meanwhile
    place.later(5.0, lambda: life.signal(list(life.processes()), signal.SIGCONT))


def near_limit(place: Place, life: Life) -> None:
    """The job's time is nearly over: Slurm warns it by itself, after half a minute at most."""
    assert isinstance(life, Job)
    hours, minutes, _ = life.facts.get("RunTime", "0:0:0").split(":")
    _limit(life, 60 * int(hours) + int(minutes) + 2)
    end = time.monotonic() + WARNED
    while life.running() and life.state == "RUNNING" and time.monotonic() < end:
        life.wait(LOOKS)
    _limit(life, MINUTES)


def _limit(life: Job, minutes: int) -> None:
    life.tell("scontrol", "update", f"JobId={life.job}", f"TimeLimit={minutes}")


def kill_named(word: str) -> Callable[[Place, Life], None]:
    """A strike by SIGKILL to those of the job whose command has this word."""

    def strike(place: Place, life: Life) -> None:
        assert isinstance(life, Job)
        life.cut_off = True
        life.signal(life.named(word), signal.SIGKILL)

    return strike


def kill_keeper(place: Place, life: Life) -> None:
    """SIGKILL to the slurmstepd of a rank."""
    assert isinstance(life, Job)
    keepers = {parent_of(number) for number in life.ranks()} - {0}
    keepers = {number for number in keepers if name_of(number) == "slurmstepd"}
    life.signal((keepers and [place.chance.choice(sorted(keepers))]) or [], signal.SIGKILL)


# Slurm ends what is left of a job by SIGTERM, and so does `--restarts`: it asks for a checkpoint
SIGNAL = ("scancel", "--signal=USR1")
BY_SLURM = (
    Fault("node set down", set_down, asks=True, share=2.0),
    Fault("node drained", drain),
    Fault("node lost", lose_node, fatal=True, asks=True, needs="hosts"),
    Fault("slurmd killed", kill_daemon, fatal=True, put_back=True),
    Fault("slurmd stopped", stop_daemon, fatal=True, put_back=True),
    Fault("slurmctld killed", kill_controller, fatal=True, put_back=True),
    Fault("slurmctld stopped", stop_controller, fatal=True, put_back=True),
    Fault("SIGUSR1 to the script", command(*SIGNAL, "--batch"), asks=True, share=1.5),
    Fault("SIGUSR1 to ranks", command(*SIGNAL), asks=True),
    Fault("SIGUSR1 to both", command(*SIGNAL, "--full"), asks=True),
    Fault("requeue", command("scontrol", "requeue"), asks=True, share=1.5),
    Fault("suspend", suspend, share=1.5),
    Fault("time limit near", near_limit, asks=True, share=0.5),
    Fault("SIGSTOP, short", stop),
    Fault("SIGSTOP, long", stop_long, fatal=True, share=0.3, outlived=True),
    Fault("kill a reader", kill_reader, needs="readers"),
    Fault("kill one rank", kill_one, fatal=True, outlived=True),
    Fault("kill the script", kill_named("slurm_script"), fatal=True, asks=True, share=0.5),
    Fault("kill srun", kill_named("srun\0"), fatal=True, asks=True, share=0.5),
    Fault("kill slurmstepd", kill_keeper, fatal=True, asks=True, share=0.5),
    Fault(
        "SIGKILL by scancel", command("scancel", "--signal=KILL"), fatal=True, asks=True, share=0.5
    ),
    Fault("cancelled", command("scancel"), fatal=True, asks=True),
)


class Scheduled(soak.Soak):
    """A soak whose lives are jobs."""

    limit = 600.0
    most_faults = 16
    restarts = (0, 0, 0, soak.RESTARTS)
    possible = BY_SLURM

    def _start(
        self,
        job: soak.Job,
        settings: Sequence[str],
        ranks: int,
        variables: Mapping[str, str],
        *,
        resume: bool,
        restarts: int = 0,
    ) -> Job:
        """Submit a job."""
        assert isinstance(self.place, Cluster)
        slurm = self.place.slurm
        mark = f"{os.getpid()}-{time.monotonic_ns()}"
        log = self.folder / f"{mark}.log"
        (self.folder / "tmp").mkdir(exist_ok=True)
        options = self._tasks(1 if restarts else ranks)
        words = [str(SCRIPT), str(self.folder / "job.toml"), str(self.place.out)]
        words += [
            word for one in (*self._fixed, *job.settings, *settings) for word in ("--set", one)
        ]
        if restarts:
            words += ["--ranks", str(ranks), "--restarts", str(restarts)]
        command = ["sbatch", "--parsable", *options, f"--output={log}", *words]
        log.write_text(f"{shlex.join(command)}\n")  # to which the job adds
        process = subprocess.Popen(
            command,
            env=slurm.environment | {MARK: mark, "TMPDIR": str(self.folder / "tmp")},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        number = process.communicate()[0].strip()
        return Job(process, mark, slurm, number, log, restarts)

    def _await_steps(self, life: Life, before: int) -> None:
        """Wait until a job runs and has a checkpoint beyond those that were there, or has ended."""
        assert isinstance(life, Job)
        while life.running() and life.state != "RUNNING" and life.seconds() < self.limit:
            life.wait(LOOKS)
        super()._await_steps(life, self._newest())

    def _tasks(self, ranks: int) -> list[str]:
        """Options of sbatch for so many tasks."""
        nodes = self.place.chance.randint(1, min(ranks, len(NODES)))
        # at most two tasks on a node
        nodes = max(nodes, -(-ranks // 2))
        per_node = -(-ranks // nodes)
        cores = self.place.chance.randint(1, CORES // per_node)
        return [
            f"--nodes={nodes}",
            f"--ntasks={ranks}",
            f"--ntasks-per-node={per_node}",
            f"--cpus-per-task={cores}",
        ]

    def _end(self, life: Life) -> tuple[int, str]:
        """Wait for the end of a job; (exit status, what it printed after it was last put back)."""
        assert isinstance(life, Job)
        self.place.mend()
        life.wait(self.limit - life.seconds())
        *before, text = life.pieces()
        if life.running():
            life.tell("scancel", life.job)
            kill_all(self.place, life)
            raise soak.Broken(f"a job is {life.facts}, {self.limit:g} s after its start\n{text}")
        for piece in before:
            if wrong := soak.complaint(1, piece, 0, may_fail=True, cut_off=True):
                raise soak.Broken(f"{wrong}, before the job was put back\n{piece}")
        life.excused = any(word in text for word in TORN)
        # Slurm may end a job in the queue
        life.cut_off |= life.excused or not text or any(word in text for word in SPOKEN)
        status = life.status
        if not status and "\ndigest " not in text:
            if CANCELLED not in text:
                raise soak.Broken(f"a job is complete without a digest\n{text}")
            status = 1
            life.excused = True
        text = len(before) * PUT_BACK + text
        self._look_behind(life, status, text, LAST)
        rows = list((self.folder / "tmp").glob(f"neocpu-rows-{life.job}/**/*"))
        if rows and not (status or soak.RESTARTED in text):
            raise soak.Broken(f"left: {rows}\n{text}")
        return status, text


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak on a cluster. OSError where there is no Slurm."""
    options = soak.options_of(__doc__, arguments)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="neocpu-soak-")))
        disk = Disk(folder / "disk")
        stack.callback(disk.close)
        started: list[subprocess.Popen[bytes]] = []
        # which end with the cluster
        stack.callback(lambda: [process.wait() for process in started])
        slurm = stack.enter_context(cluster(f"SlurmdTimeout={AWAY}"))
        chance = random.Random(options.seed)
        place = Cluster(disk.folder / "out", disk, chance, slurm=slurm, started=started)
        if slurm.firsts:
            place.room = Room(slurm.folder, 0, list(slurm.firsts.values()))
        else:
            print("no root: nodes have one memory, and none is lost")
        record = soak.Record(options.record)
        return soak.soaked(
            Scheduled(place, folder, options.steps, min(options.ranks, 4), record), options
        )


if __name__ == "__main__":
    sys.exit(main())
