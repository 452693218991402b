"""Readers of text that people write: the config, and the keys that are set on the command line."""

from pathlib import Path
from typing import Any

from fuzzing import Random, Reader, mutate_bytes
from promise_cases import FAMILIES, MAIN

from neocpu import config

# words of TOML and of our configs, each where it does not belong
WORDS = (
    "[training]",
    "[[tables]]",
    "=",
    "}",
    "[",
    "]",
    '"',
    "'''",
    "nan",
    "-inf",
    "1e400",
    "0x",
    "-1",
    "true",
    "[]",
    "{}",
    "'",
    "2024-01-01",
    "tables.wide.rows",
    "format=",
    "dim=0",
    "rows=0",
    "\\u0000",
    "99999999999999999999",
    "seed = 18446744073709551616",
    "\u0000",
    "\ufeff",
    "\u202e",
    "[" * 2000,
    "{a=" * 500,
    "a." * 3000,
)


def _make(folder: Path) -> Path:
    path = folder / "job.toml"
    path.write_text(FAMILIES[MAIN].toml(Path("/data")))
    return path


def _read(path: Path) -> Any:
    return repr(config.load(path).header())


def _mutate(path: Path, chance: Random) -> bool:
    """Damage bytes, or put words of the language where they do not belong."""
    if chance.random() < 0.5:
        mutate_bytes(path, chance)
        return True
    text = path.read_text()
    for _ in range(int(chance.integers(1, 4))):
        at = int(chance.integers(len(text)))
        end = at + int(chance.choice([0, 0, 1, 5, 20]))
        text = text[:at] + str(chance.choice(WORDS)) + text[end:]
    path.write_text(text, errors="surrogateescape")
    return True


def readers() -> dict[str, Reader]:
    """The config."""
    return {"config": Reader(_make, _read, _mutate)}
