"""Which functions and classes are public, and what do they say of themselves?

Writes docs/generated/api.rst. Docstrings are plain text: paragraphs stay paragraphs, and what is
laid out by hand (drawings, `name : meaning`) is shown as it was written.
"""

import re
from pathlib import Path
from typing import Any

from generated_pages import write_page
from sphinx.application import Sphinx

import neocpu

PUBLIC = Path(__file__).resolve().parent.parent / "public.md"


def documented() -> list[tuple[str, list[str]]]:
    """(group, modules) of the second table of docs/public.md."""
    rows = re.findall(r"^\| (\w+) \| (`neocpu\..*) \|$", PUBLIC.read_text("utf-8"), re.MULTILINE)
    return [(title, re.findall(r"`(neocpu[.\w]*)`", modules)) for title, modules in rows]


def page() -> str:
    """The page in reStructuredText."""
    lines = [
        "API",
        "===",
        "",
        "What is public in ``neocpu`` itself, and where it is described:",
        "",
    ]
    for name in sorted(set(neocpu.__all__) - {"__version__"}):
        target = getattr(neocpu, name)
        role = "class" if isinstance(target, type) else "func"
        lines.append(f"* ``neocpu.{name}``: :py:{role}:`{target.__module__}.{target.__qualname__}`")
    lines += ["", "Below, the modules that the documentation uses."]
    for title, modules in documented():
        lines += ["", title, "-" * len(title)]
        for module in modules:
            lines += ["", module, "~" * len(module), "", f".. automodule:: {module}"]
            lines += ["   :members:", "   :member-order: bysource"]
    return "\n".join([*lines, ""])


def paragraph(lines: str) -> str:
    """Plain text as reStructuredText: `name` is code, and nothing else is markup."""
    parts = re.split(r"`([^`]+)`", " ".join(lines.split()))
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = f"``{part}``\\ "
        else:
            parts[i] = re.sub(r"([\\*_|`])", r"\\\1", part)
    return "".join(parts)


def as_text(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring into paragraphs, and what is laid out by hand into blocks of text."""
    parts = "\n".join(lines).strip("\n").split("\n\n")
    lines.clear()
    for part in parts:
        if re.search(r"^(\s|[\w*]+(, [\w*]+)* : |- |\* )", part, re.MULTILINE):
            lines += [".. code-block:: text", "", *(f"   {line}" for line in part.split("\n")), ""]
        elif part:
            lines += [paragraph(part), ""]


def short_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, arguments: str | None, result: Any
) -> tuple[str, Any] | None:
    """A signature whose types are named without their modules."""
    if arguments is None:
        return None
    return re.sub(r"~(?:\w+\.)+", "", arguments), result


def write_api(app: Sphinx) -> None:
    """Write the page."""
    write_page("api.rst", page())


def setup(app: Sphinx) -> dict[str, Any]:
    """Register it."""
    app.connect("builder-inited", write_api)
    app.connect("autodoc-process-signature", short_signature)
    app.connect("autodoc-process-docstring", as_text)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
