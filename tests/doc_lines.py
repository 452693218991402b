"""Does neocpu understand the command lines and the keys that the documentation shows?

Nothing is run. A command line is what begins with `neocpu` in a block or between backticks, also
behind a launcher: its commands, options, choices and the number of its arguments are checked by the
commands themselves, the keys of `--set` by the records of the config. `[--out X]` counts as if it
were there, `show|digest` as each of the two, `...` as nothing, COMMAND as any command.
Keys are also those of TOML blocks, and words like `training.patience` or
`training.patience = 3` between backticks.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import click

from neocpu.cli import cli
from neocpu.plan.simulation.what_if import _NUMBERS, WIRES
from neocpu.tables.kinds import key_records
from neocpu.tables.specs.specs import TableKeys
from neocpu.train.config.config import SECTIONS

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "*.md",
    "docs/*.md",
    "docs/course/*.md",
    "examples/*.md",
    "data/*.md",
    "examples/slurm/*.sh",
)
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
SHELLS = ("", "sh", "bash", "console", "text")
# What may stand before the command: variables, launchers with their options, the shell's prompt.
START = re.compile(
    r"^\s*(?:\$ )?(?:\w+=\S*\s+)*(?:exec\s+)?(?:(?:mpiexec|mpirun|srun)\s[^|;&]*?)?neocpu (?=\S)"
)
KEY = re.compile(rf"(?:{'|'.join(SECTIONS)})(?:\.[A-Za-z_]\w*)*(?:\.[a-z_]*[a-z])")
# Ends of names that are no keys.
FILES = (".csv", ".gz", ".h5", ".json", ".onnx", ".parquet", ".py", ".safetensors", ".toml")
KEY_OPTIONS = ("--set", "--grid", "--random")
# Keys of `neocpu simulate` beside those of a config.
SIMULATED = {*_NUMBERS, "work.precision", *(f"wires.{wire}" for wire in WIRES)}


def pages() -> list[Path]:
    """Every file that shows commands; what was once true may stand in the change log."""
    found = sorted(path for pattern in PAGES for path in ROOT.glob(pattern))
    return [path for path in found if path.name != "CHANGELOG.md"]


def page_faults(page: Path) -> list[str]:
    """What a page or a shell script shows that neocpu would not understand."""
    text = page.read_text()
    return faults(f"```sh\n{text}\n```" if page.suffix == ".sh" else text)


def faults(text: str) -> list[str]:
    """What a text in Markdown shows that neocpu would not understand."""
    blocks = FENCE.findall(text)
    prose = FENCE.sub("", text)
    spans = [" ".join(span.split()) for _, span in SPAN.findall(prose)]
    lines = [line for language, block in blocks if language in SHELLS for line in joined(block)]
    wrong = [fault for line in [*lines, *spans] for fault in line_faults(line)]
    for language, block in blocks:
        if language == "toml":
            wrong += toml_faults(block)
    names = [span.partition(" = ")[0] for span in spans]
    keys = [name for name in names if KEY.fullmatch(name) and not name.endswith(FILES)]
    return wrong + [
        f"no key {key}" for key in keys if not is_key(key.split(".")) and key not in SIMULATED
    ]


def joined(block: str) -> list[str]:
    """The lines of a block, those that end in a backslash with the next one."""
    return re.sub(r"\\\n\s*", " ", block).splitlines()


def commands(line: str) -> Iterator[list[str]]:
    """The words behind `neocpu` in each reading of a line; none where it is no command."""
    start = START.match(line)
    if start is None:
        return
    words = [word.strip("[]") for word in shlex.split(line[start.end() :], comments=True)]
    words = [word for word in words if word.strip(".…") and word != "$@"]
    for end in ("&", "|", ";", "&&", "||", ">", "2>&1"):
        words = words[: words.index(end)] if end in words else words
    first = [
        word.split("|") if n < 2 and "=" not in word else [word] for n, word in enumerate(words)
    ]
    yield from map(list, product(*first))


def line_faults(line: str) -> list[str]:
    """What is wrong with a line."""
    try:
        readings = list(commands(line))
        return [f"{line.strip()}: {fault}" for words in readings for fault in command_faults(words)]
    except ValueError as error:  # an open quote
        return [f"{line.strip()}: {error}"]


def command_faults(words: Sequence[str]) -> list[str]:
    """What is wrong with the words behind `neocpu`."""
    command: click.Command = cli
    context = click.Context(cli, info_name="neocpu")
    rest = list(words)
    while isinstance(command, click.Group) and rest:
        if rest[0].startswith("-") and command is not cli:  # options of one of the commands
            names = command.list_commands(context)
            before = list(words[: len(words) - len(rest)])
            outcomes = [command_faults([*before, name, *rest]) for name in names]
            return min(outcomes, key=len)
        if rest[0] == "COMMAND" or rest[0].startswith("-"):
            return []
        step = command.get_command(context, rest[0])
        if step is None:
            return [f"no command {rest[0]}"]
        context = click.Context(step, info_name=rest.pop(0), parent=context)
        command = step
    return list(argument_faults(command, context, rest))


def argument_faults(
    command: click.Command, context: click.Context, words: list[str]
) -> Iterator[str]:
    """What is wrong with the options and arguments of a command.

    Arguments may be missing, and the value of the last option: prose names commands alone.
    """
    try:
        values, extra, _ = command.make_parser(context).parse_args(list(words))
    except click.BadOptionUsage as error:
        if not words[-1].startswith("--"):
            yield error.format_message()
        return
    except click.ClickException as error:
        yield error.format_message()
        return
    if extra:
        yield f"more arguments than it takes: {' '.join(extra)}"
    own_keys = SIMULATED if command.name == "simulate" else set[str]()
    for parameter in command.params:
        yield from value_faults(parameter, values.get(parameter.name or ""), own_keys)


def value_faults(parameter: click.Parameter, value: Any, own_keys: set[str]) -> Iterator[str]:
    """Choices that an option does not have, numbers that are none, keys that no config has."""
    option = parameter.opts[0]
    for text in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(text, str) or re.fullmatch(r"[A-Z]+|\$.*", text):  # a placeholder
            continue
        if isinstance(parameter.type, click.Choice) and text not in parameter.type.choices:
            yield f"{option} has no {text}"
        if isinstance(parameter.type, click.types.IntParamType) and not text.isdigit():
            yield f"{option} takes a number, not {text}"
        if option in KEY_OPTIONS:
            key = text.partition("=")[0]
            given = key in own_keys or (own_keys and key.startswith("machine."))
            if key != "KEY" and not given and not is_key(key.split(".")):
                yield f"no key {key}"


def toml_faults(block: str) -> Iterator[str]:
    """Keys that no config has, of a block that is a config or a part of one."""
    tree = tomllib.loads(block)
    if set(tree) <= {*SECTIONS, "tables"}:
        for path in leaves(tree):
            if not is_key(path):
                yield f"no key {'.'.join(path)}"


def leaves(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The whole names of all values."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


def is_key(path: Sequence[str]) -> bool:
    """Whether a config has this key, or this part."""
    if path[0] == "tables":
        records = (TableKeys, *key_records().values())
        known = {field.name for record in records for field in fields(record)}
        return len(path) < 3 or path[2] in known
    return path[0] in SECTIONS and _has(SECTIONS[path[0]], path[1:])


def _has(kind: Any, path: Sequence[str]) -> bool:
    """Whether values of a type have this key: records those of their fields, mappings any."""
    if not path:
        return True
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return path[0] in hints and _has(hints[path[0]], path[1:])
    if get_origin(kind) in (Mapping, dict):
        return True
    return any(_has(part, path) for part in get_args(kind))
