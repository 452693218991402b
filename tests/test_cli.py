"""Does the command line answer at once, and in words? Commands that work on runs are tested with
checkpoints.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from neocpu import cli
from neocpu.cli import COMMANDS, SECTIONS, run
from neocpu.cli.screen import options
from neocpu.cli.screen.options import command_line
from neocpu.cli.train import default_folder
from neocpu.core.errors import ConfigError, EnvironmentProblem
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.hosts import HostRanks
from neocpu.parallel.watch import supervisor
from neocpu.parallel.watch.supervisor import Ending
from tests.jobs import ran

ROOT = Path(__file__).resolve().parent.parent
TINY = ROOT / "data" / "models" / "tiny.toml"
ANSWERS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from neocpu.cli import main
for arguments in json.load(sys.stdin):
    sys.argv[1:] = arguments
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = main()
    heavy = sorted({"numba", "mpi4py", "h5py", "polars", "matplotlib"} & set(sys.modules))
    ours = sum(name.split(".")[0] == "neocpu" for name in sys.modules)
    print(json.dumps([status, out.getvalue(), err.getvalue(), heavy, ours]))
"""
LOADED = """
import sys
from neocpu.cli import run
run(sys.argv[1:])
print(*[name for name in sys.modules if name.split(".")[0] == "neocpu"])
"""
HELPS = [("--help",), ("--version",), (), *((name, "--help") for name in COMMANDS)]
MISTAKES = {
    ("train", str(TINY), "--set", "training.step=3"): "did you mean training.steps?",
    ("train", "gone.toml"): "gone.toml: cannot read the config: No such file or directory",
    ("train", str(TINY), "--ranks", "4", "--set", "model.loss=x"): "choose one of bce, mse",
    ("compile", str(TINY), "--set", "tables.C1.dims=3"): "did you mean tables.C1.dim?",
    ("train",): "Missing argument 'CONFIG'. (see `neocpu train --help`)",
    ("trian",): "No such command 'trian'",
    ("train", str(TINY), "--rank", "2"): "--ranks",
}


class Answer(NamedTuple):
    """What a command line said, heavy modules that were imported by then, and how many of ours."""

    status: int
    out: str
    err: str
    heavy: list[str]
    ours: int


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, ...], Answer]:
    """What every command line of `HELPS` and `MISTAKES` says, one after another in one process."""
    lines = [*HELPS, *MISTAKES]
    done = ran([sys.executable, "-c", ANSWERS], input=json.dumps(lines), cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    return {
        arguments: Answer(*json.loads(text))
        for arguments, text in zip(lines, done.stdout.splitlines(), strict=True)
    }


@pytest.mark.parametrize("arguments", HELPS, ids=lambda a: " ".join(a) or "nothing")
def test_help_comes_without_heavy_imports(
    arguments: tuple[str, ...], answers: dict[tuple[str, ...], Answer]
) -> None:
    answer = answers[arguments]
    assert answer.status == 0, answer.err
    assert answer.heavy == []
    assert "neocpu" in answer.out


def test_help_shows_every_command_once_in_its_section(
    answers: dict[tuple[str, ...], Answer],
) -> None:
    lines = answers["--help",].out.splitlines()
    shown = [line.split()[0] for line in lines if re.match(r"  [a-z]+  +[A-Z]", line)]
    assert shown == list(COMMANDS)
    assert [line for line in lines if line[:-1] in SECTIONS] == [f"{name}:" for name in SECTIONS]


def test_help_loads_few_modules(answers: dict[tuple[str, ...], Answer]) -> None:
    assert answers[HELPS[0]].ours <= 40


def test_training_loads_only_what_its_config_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    command = ["train", str(TINY), "--set", "training.steps=2", "--set", "training.threads=1"]
    run([*command, "--out", str(tmp_path / "first")])  # converts the log, compiles kernels
    command += ["--out", str(tmp_path / "second")]
    done = ran([sys.executable, "-c", LOADED, *command], timeout=600)
    assert done.returncode == 0, done.stderr
    modules = done.stdout.splitlines()[-1].split()
    assert len(modules) <= 256
    unused = {
        "neocpu.ingest.dataset.convert",
        "neocpu.ingest.dataset.vocabulary",
        "neocpu.oracle",
        "neocpu.parallel.embeddings.disaggregated",
        "neocpu.parallel.embeddings.replicas",
        "neocpu.parallel.exchange.routes",
        "neocpu.peers",
        "neocpu.plan.learned",
        "neocpu.plan.tiers",
        "neocpu.plan.simulation.scenario",
        "neocpu.serve.exports",
        "neocpu.tables.embedding.tiered",
        "neocpu.train.model.composition",
        "neocpu.train.model.composition_layout",
        "neocpu.train.model.tower_layout",
        "neocpu.train.search",
        "neocpu.train.sweep",
        "neocpu.train.fit.fit",
        "neocpu.train.watch.ranking",
    }
    assert not unused & set(modules)


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.items())
def test_mistakes_are_one_line_and_status_2(
    arguments: tuple[str, ...], message: str, answers: dict[tuple[str, ...], Answer]
) -> None:
    answer = answers[arguments]
    assert answer.status == 2
    assert (answer.out, answer.heavy) == ("", [])
    assert answer.err.startswith("neocpu: error: ") and answer.err.count("\n") == 1, answer.err
    assert message in answer.err


def test_python_m_neocpu_is_the_command() -> None:
    done = ran([sys.executable, "-m", "neocpu", "--version"], timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("neocpu, version ")


def test_a_closed_stderr_is_opened_on_nothing() -> None:
    """Or the next file that is opened would be what C libraries print to."""
    code = (
        "import os, sys; from neocpu.cli import main; sys.argv = ['neocpu', 'train', 'gone.toml']; "
        "status = main(); print(status, [os.path.realpath(f'/proc/self/fd/{n}') for n in (0, 2)])"
    )
    done = ran(["sh", "-c", f'exec "$0" -c "{code}" 0<&- 2>&-', sys.executable], timeout=60)
    assert done.stdout == "2 ['/dev/null', '/dev/null']\n"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("NUMBA_NUM_THREADS", "0", "NUMBA_NUM_THREADS=0: not a number of threads; give 1 or more"),
        ("NUMBA_NUM_THREADS", "many", "NUMBA_NUM_THREADS=many: not a number of threads"),
        ("NUMBA_THREADING_LAYER", "gomp", "no such layer; choose one of default, threadsafe"),
        ("NUMBA_DISABLE_JIT", "1", "switches Numba's compiler off"),
    ],
)
def test_variables_with_which_no_kernel_runs_are_told_at_once(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentProblem, match=message):
        run(["train", str(TINY)])


def test_importing_neocpu_is_light_and_names_are_public() -> None:
    code = (
        "import sys, neocpu; assert not {'numba', 'mpi4py', 'numpy'} & set(sys.modules);"
        "print(sorted(neocpu.__all__)); neocpu.load, neocpu.load_config; assert 'numba' not in "
        "sys.modules"
    )
    done = ran([sys.executable, "-c", code], timeout=60)
    assert done.returncode == 0, done.stderr
    assert "'Trainer'" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lines_are_those_of_the_commands(name: str) -> None:
    command = cli.cli.get_command(cli.click.Context(cli.cli), name)
    assert command is not None and command.name == name
    assert (command.help or "").split("\n")[0] == COMMANDS[name]


def without_hosts(words: Sequence[str]) -> list[str]:
    """The words that ranks are given: one rank alone would start another one on the hosts."""
    at = words.index("--hosts")
    return [*words[:at], *words[at + 2 :]]


def test_eval_with_ranks_becomes_mpiexec(monkeypatch: pytest.MonkeyPatch) -> None:
    command: list[object] = []

    def become(ranks: int, arguments: list[str], hosts: Sequence[HostRanks]) -> None:
        command.extend([ranks, *arguments, *hosts])
        raise SystemExit(0)

    monkeypatch.setattr(options, "exec_mpiexec", become)
    monkeypatch.setattr(options, "launched", lambda: False)
    words = ["eval", "run", "a.csv", "--ranks", "3", "--hosts", "a,b", "--set", "eval.at=[1]"]
    with pytest.raises(SystemExit):
        run(words)
    assert command == [3, *without_hosts(words), HostRanks("a", 2), HostRanks("b", 1)]


def test_train_with_ranks_stays_mpiexecs_parent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command: list[str] = []

    def supervise(words: list[str], *_: object) -> Ending:
        command.extend(words)
        return Ending()

    monkeypatch.setattr(supervisor, "supervise", supervise)
    monkeypatch.setattr(options, "launched", lambda: False)
    words = ["train", str(TINY), "--ranks", "3", "--hosts", "a,b", "--out", str(tmp_path)]
    words += ["--set", "training.steps=1", "--resume"]
    with pytest.raises(SystemExit):
        run(words)
    given = without_hosts(words)
    assert command[-len(given) :] == given
    assert command[command.index("-n") + 1] == "3"


def test_train_starts_ranks_again_with_its_own_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from neocpu.cli import train
    from neocpu.parallel.watch import host_pool, supervisor
    from neocpu.train.run import survival

    commands: list[list[str]] = []
    endings = [supervisor.Ending(9, signal=9, process=1, host="a"), supervisor.Ending(0)]

    def supervise(
        command: list[str], environment: object, record: Path, stops: object
    ) -> supervisor.Ending:
        assert record == tmp_path / "ranks.json"
        commands.append(command[1:])
        return endings[len(commands) - 1]

    monkeypatch.setattr(supervisor, "supervise", supervise)
    monkeypatch.setattr(train, "launched", lambda: False)
    monkeypatch.setattr(survival, "FIRST_PAUSE", 0.0)
    words = ["train", str(TINY), "--ranks", "3", "--out", str(tmp_path)]
    words += ["--set", "training.steps=1"]
    with pytest.raises(SystemExit) as end:
        run([*words, "--restarts", "2"])
    assert end.value.code == 0
    # without --restarts: it is this process that starts them again
    ranks = ["-n", "3", sys.executable, "-m", "neocpu"]
    assert commands == [[*ranks, *words], [*ranks, *words, "--resume"]]
    commands.clear()
    words[4:4] = ["--hosts", "a,b"]
    monkeypatch.setattr(host_pool.HostPool, "look", lambda pool: pool.left_out.update(a="gone"))
    with pytest.raises(SystemExit):
        run([*words, "--restarts", "2", "--min-ranks", "1"])
    given = without_hosts(words)
    assert commands[0][-len(given) :] == given
    on_b = commands[1][commands[1].index("neocpu") :]
    assert on_b == ["neocpu", *given[:2], "--ranks", "1", *given[4:], "--resume"]
    assert "b:1" in commands[1]
    with pytest.raises(ConfigError, match="--min-ranks is for hosts"):
        run([*words[:4], "--restarts", "2", "--min-ranks", "2"])
    with pytest.raises(ConfigError, match="its scheduler starts again"):
        monkeypatch.setattr(train, "launched", lambda: True)
        run([*words, "--restarts", "2"])


@pytest.mark.parametrize(
    "words",
    [
        (
            "train c.toml --ranks 2 --hosts a,b:3 --restarts 3 --min-ranks 2 --trace t.json"
            " --trace-steps 7 --force --kernels plain --metrics wandb --metrics tensorboard"
            " --logs l --dry-run --set a.b=1 --set c=[2,3]"
        ),
        "online c.toml a.h5 b.h5 --ranks 2 --out x --resume --set a=",
        "search c.toml --hostfile hosts.txt --out x --resume --set a=1",
        "eval run a.csv b.csv --ranks 3 --group user --at 5,10 --baseline --json --set a=1",
        (
            "predict run a.csv --out p.csv --force --with user --with item --head h --unlabelled"
            " --top-k 3 --items i.csv --group user --item item --exclude seen.csv --ranks 2"
        ),
        "importance run a.csv --ranks 2 --repeats 4 --seed 0 --rows 100 --json --set a=1",
    ],
)
def test_ranks_read_the_options_that_the_command_was_given(words: str) -> None:
    name, *arguments = words.split()
    command = cli.cli.get_command(cli.click.Context(cli.cli), name)
    assert command is not None
    with command.make_context(name, arguments) as context:
        line = command_line()
    assert len(line) == len(words.split()), "an option was left out, or a default was added"
    assert line[0] == name
    assert command.make_context(name, line[1:]).params == context.params


def test_usage_errors_are_config_errors() -> None:
    with pytest.raises(ConfigError, match="No such option"):
        run(["doctor", "--nonsense"])


def test_the_end_of_a_file_is_no_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*arguments: object) -> None:
        raise EOFError("Ran out of input")

    monkeypatch.setattr(cli.LazyGroup, "get_command", end)
    with pytest.raises(EOFError, match="Ran out of input"):
        run(["doctor"])


def test_runs_without_out_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def folder(resume: bool) -> str:
        return default_folder(Path("tiny.toml"), resume, SingleComm()).name

    assert (folder(False), folder(True)) == ("tiny", "tiny")
    for name in ("tiny", "tiny-2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        assert folder(False) == name
        (tmp_path / "runs" / name / "metrics.jsonl").write_text("")
    assert (folder(False), folder(True)) == ("tiny-3", "tiny-2")
