"""Which functions and classes are public, and what do they say of themselves?

Writes docs/generated/api.rst. Docstrings are plain text: the summary becomes a paragraph, the rest
is shown as it was written.
"""

from importlib.util import find_spec
from typing import Any

from generated_pages import write_page
from sphinx.application import Sphinx

# Title of a group, and its modules; those that are not there yet are left out.
MODULES = (
    ("Run", ("neocpu.config", "neocpu.training.trainer", "neocpu.training.inspect")),
    ("Use", ("neocpu.presets", "neocpu.scoring")),
    ("Data", ("neocpu.ingest.dataset", "neocpu.jagged", "neocpu.formats")),
    ("Tables", ("neocpu.embedding.specs", "neocpu.embedding.optimizers", "neocpu.embedding.tbe")),
    (
        "Ranks",
        (
            "neocpu.parallel.plan",
            "neocpu.parallel.sharding",
            "neocpu.parallel.sharded",
            "neocpu.parallel.comm",
            "neocpu.parallel.threads",
        ),
    ),
    ("Memory", ("neocpu.storage.cache",)),
    ("Oracle", ("neocpu.oracle",)),
    ("Kernels", ("neocpu.kernels.operands", "neocpu.kernels.records", "neocpu.kernels.choice")),
)


def page() -> str:
    """The page in reStructuredText."""
    lines = [
        "API",
        "===",
        "",
        "What the documentation uses; shapes and units stand with each name.",
    ]
    for title, modules in MODULES:
        lines += ["", title, "-" * len(title)]
        for module in modules:
            if find_spec(module):
                lines += ["", module, "~" * len(module), "", f".. automodule:: {module}"]
                lines += ["   :members:", "   :member-order: bysource"]
    return "\n".join([*lines, ""])


def as_text(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring into a paragraph and a block of text."""
    if not any(lines):
        return
    text = "\n".join(lines).strip("\n")
    summary, _, rest = text.partition("\n\n")
    escaped = "".join(f"\\{c}" if c in "\\*_|<>:`" else c for c in " ".join(summary.split()))
    lines[:] = [escaped, ""]
    if rest.strip("\n"):
        lines += [".. code-block:: text", "", *(f"   {line}" for line in rest.split("\n")), ""]


def write_api(app: Sphinx) -> None:
    """Write the page."""
    write_page("api.rst", page())


def setup(app: Sphinx) -> dict[str, Any]:
    """Register both."""
    app.connect("builder-inited", write_api)
    app.connect("autodoc-process-docstring", as_text)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
