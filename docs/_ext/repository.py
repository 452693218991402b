"""How do pages that read well on a code host become a site?

* A link to a file outside docs/ (`../neocpu/x.py`), and a path in backticks that names a file of
  the repository, lead to a page that shows the file. The lessons, the README and what is generated
  have pages of their own (`PAGES`).
* The lists of links on the pages in `SECTIONS` are the table of contents.
* CHANGELOG.md and CONTRIBUTING.md are copied to docs/generated/ before pages are read.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from generated_pages import write_page
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parent.parent.parent
# Pages whose lists of links are tables of contents.
SECTIONS = ("index", "train", "check", "learn", "concepts", "reference")
# Files outside docs/ that have a page of their own.
PAGES = {
    "README.md": "index",
    "CHANGELOG.md": "generated/changelog",
    "CONTRIBUTING.md": "generated/contributing",
    "neocpu/train/config/config.py": "generated/keys",
    "neocpu/__init__.py": "generated/api",
    "examples/lessons": "generated/lessons/index",
}
COPIED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
# Where the pages of source files stand in the site.
SHOWN = "source"
LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".c": "c",
    ".h": "c",
    ".md": "markdown",
    ".yml": "yaml",
}
PATH = re.compile(r"(neocpu|tests|benchmarks|examples|data|docs)/[\w./-]+")


def page_of(path: str) -> str | None:
    """The page that shows a file of the repository, or None where there is none.

    path : from the repository's root.
    """
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/") and path.endswith(".md"):
        return path.removeprefix("docs/").removesuffix(".md")
    if re.fullmatch(r"examples/lessons/\d\d_\w+\.py", path):
        return f"generated/lessons/{Path(path).stem}"
    if (ROOT / path).is_file() and Path(path).suffix in LANGUAGES:
        return f"{SHOWN}/{path}"
    return None


def markdown_outside(node: nodes.Element) -> str:
    """Path of the Markdown file outside docs/ that a link leads to, or ""."""
    target = Path(node["reftarget"])
    outside = target.is_absolute() and target.is_relative_to(ROOT)
    return f"{target.relative_to(ROOT).as_posix()}.md" if outside else ""


class RepositoryLinks(SphinxTransform):
    """Links and paths that name files of the repository lead to their pages."""

    default_priority = 500

    def apply(self, **kwargs: Any) -> None:
        """Rewrite the links of one page."""
        for node in list(self.document.findall(addnodes.download_reference)):
            self._replace(node, self._from_root(node["reftarget"]))
        for node in list(self.document.findall(addnodes.pending_xref)):
            path = markdown_outside(node) or self._from_root(node["reftarget"])
            if node.get("reftype") == "myst" and not path.startswith("docs/"):
                self._replace(node, path)
        for node in list(self.document.findall(nodes.literal)):
            path = node.astext()
            linked = isinstance(node.parent, nodes.reference | addnodes.pending_xref)
            if PATH.fullmatch(path) and not linked and (target := page_of(path)):
                link = self._reference(target)
                node.replace_self(link)
                link += node

    def _from_root(self, target: str) -> str:
        """A link's target as a path from the repository's root."""
        if target.startswith("/"):  # as the directives of a page have it
            return f"docs{target}"
        folder = posixpath.dirname(self.env.docname)
        return posixpath.normpath(posixpath.join("docs", folder, target))

    def _replace(self, node: nodes.Element, path: str) -> None:
        """A link to the page of a file, or else its text."""
        target = page_of(path)
        if target is None:
            if (ROOT / path).is_dir():
                node.replace_self(node.children)
            return
        link = self._reference(target)
        link += node.children
        node.replace_self(link)

    def _reference(self, target: str) -> nodes.reference:
        """A link to a page of the site."""
        if target.startswith(f"{SHOWN}/"):
            shown = self.env.__dict__.setdefault("shown_files", {})
            shown.setdefault(target, set()).add(self.env.docname)
        up = "../" * self.env.docname.count("/")
        return nodes.reference("", "", refuri=f"{up}{target}.html", internal=True)


def is_link(node: nodes.Node) -> bool:
    """Does a node lead to another page?"""
    return isinstance(node, addnodes.pending_xref | addnodes.download_reference)


class ListsAsContents(SphinxTransform):
    """A section's lists of links are its table of contents."""

    default_priority = 490  # while links still say which page they lead to

    def apply(self, **kwargs: Any) -> None:
        """Add the table, hidden, to a page of `SECTIONS`."""
        if self.env.docname not in SECTIONS:
            return
        entries = []
        for item in self.document.findall(nodes.list_item):
            for link in item.findall(is_link):
                target = link["reftarget"]
                if target not in self.env.found_docs:
                    path = posixpath.normpath(posixpath.join("docs", target))
                    target = page_of(markdown_outside(link) or path)
                if target in self.env.found_docs:
                    entries.append((link.astext(), target))
                break
        self.document.children[-1] += addnodes.toctree(
            "",
            parent=self.env.docname,
            entries=entries,
            includefiles=[page for _, page in entries],
            maxdepth=2,
            glob=False,
            hidden=True,
            includehidden=False,
            numbered=0,
            titlesonly=True,
            caption=None,
            rawentries=[],
        )


def copy_pages(app: Sphinx) -> None:
    """Write docs/generated/*.md from files at the repository's root."""
    for name, copy in COPIED.items():
        text = (ROOT / name).read_text()
        text = re.sub(r"\]\((?!https?:|#|docs/)", "](../../", text).replace("](docs/", "](../")
        write_page(copy, text)


def shown_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Pages of the files that some page leads to."""
    for page in sorted(getattr(app.env, "shown_files", {})):
        path = page.removeprefix(f"{SHOWN}/")
        code = app.builder.highlighter.highlight_block(
            (ROOT / path).read_text(), LANGUAGES[Path(path).suffix], linenos="inline"
        )
        yield page, {"title": path, "body": f"<h1>{path}</h1>{code}", "parents": []}, "page.html"


def forget(app: Sphinx, env: Any, docname: str) -> None:
    """What a page led to no longer counts."""
    for page, names in list(getattr(env, "shown_files", {}).items()):
        names.discard(docname)
        if not names:
            del env.shown_files[page]


def sections(app: Sphinx, env: Any, added: Any, changed: Any, removed: Any) -> list[str]:
    """Pages that are read in every build: their lists may name pages that have come or gone."""
    return [name for name in SECTIONS if name in env.found_docs]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register all of it."""
    app.connect("builder-inited", copy_pages)
    app.connect("env-get-outdated", sections)
    app.connect("env-purge-doc", forget)
    app.connect("html-collect-pages", shown_pages)
    app.add_transform(ListsAsContents)
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
