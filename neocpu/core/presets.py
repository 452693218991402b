"""Which models, machines and logs come with the package, and where do they lie?

In the source tree, and so for an editable installation, in its folder data/; in an installed
package in neocpu/data/, where setup.py puts them. Both are found from this file, so that they are
found however the package was installed.

    data/models/NAME.toml     configs        `neocpu models`, `neocpu train NAME`
    data/machines/NAME.toml   machines       `neocpu plan CONFIG --machine NAME`
    data/NAME.tsv.gz          small logs     `--set data.train=NAME`
"""

from difflib import get_close_matches
from pathlib import Path

from neocpu.core.errors import ConfigError

MODELS = "models"
MACHINES = "machines"
LOG_SUFFIX = ".tsv.gz"
PACKAGE = Path(__file__).resolve().parent.parent
INSTALLED = PACKAGE / "data"
SOURCE = PACKAGE.parent / "data"
# another package's folder data/ may be beside an installed neocpu/
FOLDER = INSTALLED if INSTALLED.is_dir() else SOURCE


def names(kind: str) -> list[str]:
    """Names of all MODELS or MACHINES, sorted."""
    return sorted(path.stem for path in (FOLDER / kind).glob("*.toml"))


def path_of(kind: str, name: str) -> Path | None:
    """The file of one of the MODELS or MACHINES; None if there is none of this name."""
    return FOLDER / kind / f"{name}.toml" if name in names(kind) else None


def model_path(config: str | Path) -> Path:
    """The file of a config: a path, or the name of a model.

    What ends in .toml, names a folder, or is a file of the current folder, is a path. Raises
    ConfigError for anything else that is no model.
    """
    path = Path(config)
    # a file of the user wins over a model of the same name
    if path.suffix == ".toml" or path.parent != Path() or path.is_file():
        return path
    known = names(MODELS)
    preset = path_of(MODELS, str(config))
    if preset is None:
        near = get_close_matches(str(config), known, 1)
        hint = f"; did you mean {near[0]}?" if near else ";"
        raise ConfigError(
            f"{config}: no such config file, and no model of this name{hint} `neocpu models` lists "
            f"them ({', '.join(known) or 'this installation has none'})"
        )
    return preset


def log_names() -> list[str]:
    """Names of the small logs, sorted."""
    return sorted(path.name.removesuffix(LOG_SUFFIX) for path in FOLDER.glob(f"*{LOG_SUFFIX}"))


def log_file(name: str) -> Path | None:
    """The file of a small log; None if there is none of this name."""
    return FOLDER / f"{name}{LOG_SUFFIX}" if name in log_names() else None


def log_path(source: str) -> str:
    """The file of a log: that of a small one by its name, unless there is a file of this name."""
    log = None if Path(source).exists() else log_file(source)
    return source if log is None else str(log)
