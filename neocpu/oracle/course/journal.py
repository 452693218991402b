"""What has a student passed, and which hints has she read? A file beside her own."""

import hashlib
import json
from pathlib import Path

from neocpu.core.errors import DataError

NAME = "course.json"


class Journal:
    """course.json of a folder: {"units": {"3": {"hints": 1, "passed": SHA-256 of her file}}}.

    Raises DataError for a file that is no journal.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.units: dict[str, dict[str, int | str]] = {}
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise self._foreign() from error
        units = content.get("units") if isinstance(content, dict) else None
        if not isinstance(units, dict) or not all(isinstance(u, dict) for u in units.values()):
            raise self._foreign()
        self.units = units

    def _foreign(self) -> DataError:
        return DataError(f"{self.path}: not the journal of a course; move it away, or remove it")

    def hints(self, number: int) -> int:
        """How many hints of a unit were read."""
        hints = self.units.get(str(number), {}).get("hints", 0)
        return hints if isinstance(hints, int) else 0

    def state(self, number: int, path: Path) -> str:
        """How far a unit is: passed, changed since it passed, begun, or ""."""
        passed = self.units.get(str(number), {}).get("passed")
        if not path.exists():
            return "passed" if passed else ""
        if not passed:
            return "begun"
        return "passed" if passed == digest(path) else f"{path.name} has changed since it passed"

    def note(self, number: int, **facts: int | str) -> str:
        """Keep facts about a unit; why they cannot be kept, or ""."""
        self.units.setdefault(str(number), {}).update(facts)
        text = json.dumps({"units": dict(sorted(self.units.items()))}, indent=1) + "\n"
        try:
            self.path.write_text(text, encoding="utf-8")
        except OSError as error:
            return f"{self.path}: cannot be written: {error.strerror}"
        return ""


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
