"""Where do pages stand that the build writes?"""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "generated"


def write_page(name: str, text: str) -> None:
    """Write docs/generated/NAME; a page that is as it was is left, and not built again."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / name
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
