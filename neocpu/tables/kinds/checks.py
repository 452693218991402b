"""Which values may keys have that several kinds share? What config errors say of others."""

import math
from collections.abc import Collection

from neocpu.core.errors import ConfigError


def check_choice(table: str, key: str, value: str, choices: Collection[str]) -> None:
    """Raise ConfigError for a text that is none of the choices. table : its name."""
    if value not in choices:
        raise ConfigError(
            f"tables.{table}.{key}: {value!r} is unknown; choose one of {', '.join(choices)}"
        )


def check_compression(table: str, compression: float) -> None:
    """Raise ConfigError for a compression that makes a table larger; 0: it is not set."""
    if compression and not 1 <= compression < math.inf:
        raise ConfigError(f"tables.{table}.compression: {compression} should be 1 or more")
