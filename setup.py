"""What cannot stand in pyproject.toml: two things that are made when the package is built.

* Models, machines and logs of data/ go into neocpu/data/. There `neocpu/core/presets.py` finds them
in
  an installed package; the source tree, and an editable installation, have data/ itself.
* The README of a package index, where links to files of the source tree would lead nowhere.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PATTERNS = ("models/*.toml", "machines/*.toml", "*.tsv.gz")
# [text](path) and ![text](path), unless the path is an address or a heading of the same page
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


class BuildWithData(build_py):
    """Python files and the data of the package."""

    def run(self):
        """Copy the data after the Python files."""
        super().run()
        for source, target in self.data():
            self.mkpath(str(target.parent))
            self.copy_file(str(source), str(target), preserve_mode=False)

    def get_source_files(self):
        """What a source distribution needs for this."""
        return [*super().get_source_files(), *(str(source) for source, _ in self.data())]

    def get_outputs(self, include_bytecode=True):
        """What is installed."""
        targets = [str(target) for _, target in self.data()]
        return [*super().get_outputs(include_bytecode), *targets]

    def data(self):
        """(file of the source tree, file of the package); none in an editable installation."""
        if self.editable_mode:
            return []
        target = Path(self.build_lib) / "neocpu" / "data"
        sources = sorted(path for pattern in PATTERNS for path in Path("data").glob(pattern))
        return [(source, target / source.relative_to("data")) for source in sources]


def index_readme(text, source=""):
    """The README without relative links.

    source : address of the tagged source tree, to whose files links then lead. Without one, a link
    becomes its text and the path, which the source distribution has, and a picture is left out.
    """

    def replaced(match):
        picture, title, path, heading = match.groups()
        if source:
            kind = "raw" if picture else "blob"
            return f"{picture}[{title}]({source.format(kind=kind)}/{path}{heading or ''})"
        if picture:
            return ""
        return f"`{path}`" if title == path else f"{title} (`{path}`)"

    text, links = LINK.subn(replaced, text)
    if links and not source:
        text += "\nFiles named here are in the source distribution.\n"
    return text


def readme():
    """The README for the index; links lead to `Source` of [project.urls], once there is one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project["urls"].get("Source", "").rstrip("/")
    source = f"{address}/{{kind}}/v{project['version']}" if address else ""
    return index_readme((ROOT / "README.md").read_text(encoding="utf-8"), source)


setup(
    cmdclass={"build_py": BuildWithData},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
