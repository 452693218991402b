"""What pyproject.toml cannot say: models, machines and logs of data/ go into neocpu/data/.

There `neocpu/presets.py` finds them in an installed package; the source tree, and an editable
installation, have data/ itself.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PATTERNS = ("models/*.toml", "machines/*.toml", "*.tsv.gz")


class BuildWithData(build_py):
    """Python files and the data of the package."""

    def run(self):
        """Copy the data after the Python files."""
        super().run()
        for source, target in self._data():
            self.mkpath(str(target.parent))
            self.copy_file(str(source), str(target), preserve_mode=False)

    def get_source_files(self):
        """What a source distribution needs for this."""
        return [*super().get_source_files(), *(str(source) for source, _ in self._data())]

    def get_outputs(self, include_bytecode=True):
        """What is installed."""
        targets = [str(target) for _, target in self._data()]
        return [*super().get_outputs(include_bytecode), *targets]

    def _data(self):
        """(file of the source tree, file of the package); none in an editable installation."""
        if self.editable_mode:
            return []
        target = Path(self.build_lib) / "neocpu" / "data"
        sources = sorted(path for pattern in PATTERNS for path in Path("data").glob(pattern))
        return [(source, target / source.relative_to("data")) for source in sources]


setup(cmdclass={"build_py": BuildWithData})
