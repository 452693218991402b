"""What did a run leave in its folder? Read as far as it can be, with what is wrong with it.

A run that goes on, was stopped or was killed has no `run.json` yet, and a file may be damaged: the
rest is shown all the same.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neocpu.core.errors import DataError
from neocpu.core.types import JsonObject
from neocpu.train.config.keys import flatten
from neocpu.train.run.folder import in_use

FILES = ("run.json", "metrics.jsonl", "config.json", "plan.json")
IMPORTANCES = "importances.json"  # of `neocpu importance`


@dataclass
class Run:
    """One run as its folder tells it.

    state : "finished", "running" or "unfinished".
    summary : of run.json, {} without it.
    keys : of the config, by dotted name.
    toml : the text of the config.
    plan : of plan.json.
    importances : of columns, as `neocpu importance` left them; {}: it was not asked.
    lines : of metrics.jsonl.
    problems : what could not be read, in words.
    """

    folder: Path
    name: str
    state: str = "unfinished"
    summary: JsonObject = field(default_factory=dict)
    keys: JsonObject = field(default_factory=dict)
    toml: str = ""
    plan: JsonObject = field(default_factory=dict)
    importances: JsonObject = field(default_factory=dict)
    lines: list[JsonObject] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def last_step(self) -> int:
        """Of what is known of it."""
        steps = [line["step"] for line in self.lines]
        return int(self.summary.get("steps", max(steps, default=0)))


def find_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs of these folders: each is one, or holds some.

    Raises DataError for a folder without any.
    """
    run_folders: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder of results")
        inside = [path for path in sorted(folder.iterdir()) if path.is_dir() and _is_run(path)]
        runs = [folder] if _is_run(folder) else inside
        if not runs:
            raise DataError(f"{folder}: neither it nor a folder in it holds results of a run")
        run_folders |= dict.fromkeys(runs)
    names = _names(list(run_folders))
    return [read_run(folder, name) for folder, name in zip(run_folders, names)]


def read_run(folder: Path, name: str) -> Run:
    """What a folder holds; nothing that is wrong with it raises."""
    run = Run(folder, name)
    run.summary = _object(run, "run.json")
    # A run that is not over has written its config, but no summary.
    start = run.summary if "config" in run.summary else _object(run, "config.json")
    if isinstance(start.get("config"), dict):
        keys = flatten(start["config"])
        # They follow from the tables of kinds, whose keys are shown.
        run.keys = {key: keys[key] for key in keys if not key.startswith("physical_tables.")}
    run.toml = start["toml"] if isinstance(start.get("toml"), str) else ""
    run.plan = _object(run, "plan.json")
    run.importances = _object(run, IMPORTANCES)
    _read_lines(run)
    if run.summary:
        run.state = "finished"
    # files of a killed run and of one that goes on are the same, but for the lock
    elif in_use(folder):
        run.state = "running"
    if not (run.summary or run.lines or run.problems):
        run.problems.append("nothing was measured yet")
    return run


def differing(runs: Sequence[Run]) -> list[tuple[str, list[object]]]:
    """Keys whose values differ between runs, each with those values (None: it has no such key).

    A table that some runs lack is one row, with its size where a run has it.
    """
    readable = [run.keys for run in runs if run.keys]
    tables = [{_table(key) for key in keys} for keys in readable]
    lacking = {
        name for names in tables for name in names if not all(name in each for each in tables)
    }
    rows: dict[str, list[object]] = {}
    for key in dict.fromkeys(key for keys in readable for key in keys):
        table = _table(key)
        if table in lacking:
            rows[table] = [_size(run.keys, table) for run in runs]
        elif any(keys.get(key) != readable[0].get(key) for keys in readable):
            rows[key] = [run.keys.get(key) for run in runs]
    return list(rows.items())


def _table(key: str) -> str:
    """The part of a key that names its table: "tables.C1" of "tables.C1.rows"; else ""."""
    return key.rpartition(".")[0] if key.startswith("tables.") else ""


def _size(keys: Mapping[str, object], table: str) -> str | None:
    """Rows and dimension of a table; None: the run has no such table."""
    rows = keys.get(f"{table}.rows")
    return None if rows is None else f"{rows} x {keys.get(f'{table}.dim')}"


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in FILES)


def _names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of paths that tell folders apart."""
    paths = [folder.resolve() for folder in folders]
    for parts in range(1, max((len(path.parts) for path in paths), default=1) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _object(run: Run, name: str) -> JsonObject:
    """A JSON object of the folder, {} where there is none."""
    try:
        data = json.loads((run.folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    # json raises RecursionError for thousands of open brackets
    except (OSError, ValueError, RecursionError) as error:
        run.problems.append(f"{name} cannot be read: {error}")
        return {}
    if isinstance(data, dict):
        return data
    run.problems.append(f"{name} is no JSON object")
    return {}


def _read_lines(run: Run) -> None:
    """Lines of metrics.jsonl that are whole."""
    try:
        # A line that was cut inside a character must not hide the lines before it.
        text = (run.folder / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        run.problems.append(f"metrics.jsonl cannot be read: {error.strerror}")
        return
    damaged = 0
    for text_line in text.splitlines():
        try:
            line = json.loads(text_line)
            sound = _is_measurement(line)
        # Any line may be damaged; deep nesting ends json in a RecursionError.
        except (ValueError, RecursionError):
            sound = False
        if sound:
            run.lines.append(line)
        else:
            damaged += 1
    if damaged:
        run.problems.append(f"metrics.jsonl: {damaged} lines cannot be read")


def _is_measurement(line: object) -> bool:
    """Has it the keys that all lines have, and numbers beside them?

    Lines of `neocpu online` also name the "file" that was measured.
    """
    if not isinstance(line, Mapping) or not isinstance(line.get("split"), str):
        return False
    values = [value for name, value in line.items() if name not in ("split", "file")]
    numbers = all(value is None or isinstance(value, int | float) for value in values)
    return numbers and all(isinstance(line.get(name), int) for name in ("step", "samples"))
