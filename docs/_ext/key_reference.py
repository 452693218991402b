"""Which keys has a config, and what does each mean? The page is made of the records themselves.

Types, defaults and limits are those of the fields; meanings are read from the records' docstrings,
where `name, name : text` stands at the start of a line or of a sentence. A key without a meaning
ends the build.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from generated_pages import write_page

from neocpu.core.records import Limits, limits_at, limits_of, toml_text
from neocpu.core.rules import RULES
from neocpu.tables.kinds import key_records
from neocpu.tables.specs.optimizers import DENSE_NAMES, GENERAL
from neocpu.tables.specs.specs import TableKeys
from neocpu.train.config import config

TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false"}
# Options of some rules, and those of rules for dense parameters.
OPTIONS = {option for rule in RULES.values() for option in rule.options} | set(GENERAL)
DENSE_OPTIONS = {option for rule in DENSE_NAMES.values() for option in RULES[rule].options}
INTRODUCTION = """\
# Keys of a config

A config is a TOML file; `--set SECTION.KEY=VALUE` overrides any key. What is not written has its
default. A key that does not exist is answered with its nearest neighbour, and everything is checked
before anything starts. Whole numbers are at least 0 where nothing else is said.
"""


@dataclass(frozen=True)
class Key:
    """One key: its whole name, type, default, what it may be, and its meaning ("": none)."""

    name: str
    type: str
    default: str
    allowed: str
    meaning: str


def meanings(record: type) -> dict[str, str]:
    """What the docstring of a record says of each of its fields."""
    names = [field.name for field in fields(record)]
    text = re.sub(r"\n\s*\n", "\n\n", inspect.getdoc(record) or "")
    one_of = "|".join(sorted(names, key=len, reverse=True))
    start = re.compile(
        rf"(?:^[ ]*|(?<=[.):;\]] )|(?<=\A))((?:{one_of})(?:,\s+(?:{one_of}))*) : ", re.MULTILINE
    )
    entries = list(start.finditer(text))
    found = dict[str, str]()
    for entry, following in zip(entries, [*entries[1:], None]):
        meaning = text[entry.end() : following.start() if following else len(text)]
        meaning = " ".join(meaning.partition("\n\n")[0].split()).rstrip(" ;")
        for name in re.split(r",\s+", entry[1]):
            found[name] = meaning
    return found


def introduction(record: type) -> str:
    """What the docstring says before its first field."""
    text = inspect.getdoc(record) or ""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return " ".join(part for part in paragraphs if not re.match(r"[a-z_0-9, ]+ : ", part))


def type_name(hint: Any) -> str:
    """A type in words of TOML."""
    if hint in TYPES:
        return TYPES[hint]
    if get_origin(hint) is tuple:
        return f"list of {type_name(get_args(hint)[0]).partition(' of ')[0]}s"
    if get_origin(hint) is Mapping and get_args(hint)[1] is Any:
        return "table"
    if get_origin(hint) is Mapping:
        return f"table of {type_name(get_args(hint)[1]).partition(' of ')[0]}s"
    return " or ".join(type_name(kind) for kind in get_args(hint))


def allowed(limits: Limits) -> str:
    """The values or limits of a key."""
    if limits.choices:
        return ", ".join(f"`{choice}`" for choice in limits.choices)
    bounds = []
    if limits.least is not None:
        bounds.append(f"at least {limits.least:,}")
    if limits.most is not None:
        bounds.append(f"at most {limits.most:,}")
    return ", ".join(bounds)


def keys_of(section: str, defaults: Any) -> Iterator[Key]:
    """The keys of a section with these defaults, those of its inner tables in their places."""
    record = type(defaults)
    said = meanings(record)
    hints = get_type_hints(record)
    limits = limits_of(record)
    for field in fields(record):
        kind = hints[field.name]
        name = f"{section}.{field.name}"
        value = getattr(defaults, field.name)
        if is_dataclass(kind):
            yield from keys_of(name, value)
            continue
        if get_origin(kind) is Mapping and is_dataclass(get_args(kind)[1]):
            yield from keys_of(f"{name}.NAME", get_args(kind)[1]())
            continue
        if section == "optimizer.dense" and field.name in OPTIONS - DENSE_OPTIONS:
            continue
        yield Key(
            name=name,
            type=type_name(kind),
            default=toml_text(value),
            allowed=allowed(limits_at(name, limits[field.name], config.LIMITS)),
            meaning=said.get(field.name, ""),
        )


def sections() -> dict[str, tuple[type, list[Key]]]:
    """All keys, by section; those of a table are in `tables.NAME`."""
    of_kinds = {f"tables.NAME (kind {kind})": record for kind, record in key_records().items()}
    records = {**config.SECTIONS, "tables.NAME": TableKeys, **of_kinds}
    return {name: (record, list(keys_of(name, record()))) for name, record in records.items()}


def cell(text: str) -> str:
    """A text as a cell of a table of Markdown."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def page() -> str:
    """The page in Markdown. Raises ValueError naming the keys without a meaning."""
    lines = [INTRODUCTION]
    missing = []
    for name, (record, keys) in sections().items():
        lines += [f"## {name}", "", introduction(record), ""]
        lines += ["| key | meaning | type | default | may be |", "|---|---|---|---|---|"]
        for key in keys:
            short = key.name.removeprefix(f"{name}.")
            if not key.meaning:
                missing.append(key.name)
            lines.append(
                f"| `{short}` | {cell(key.meaning)} | {key.type} | `{key.default}` "
                f"| {cell(key.allowed)} |"
            )
        lines.append("")
    if missing:
        raise ValueError(
            "keys without a meaning in the docstrings of their records, as `name : text`: "
            + ", ".join(missing)
        )
    return "\n".join(lines)


def write_keys(app: Any) -> None:
    """Write docs/generated/keys.md."""
    write_page("keys.md", page())


def setup(app: Any) -> dict[str, Any]:
    """Register it."""
    app.connect("builder-inited", write_keys)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
