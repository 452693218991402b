"""Is docs/public.md the one list of what is public, by the package and by what pages import?"""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

import neocpu
from neocpu import oracle
from neocpu.cli import cli
from tests import recorded

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "public.md"
if not PAGE.exists():
    pytest.skip("the package alone has no docs/", allow_module_level=True)
STABLE, DOCUMENTED = PAGE.read_text().split("**Documented.**")
MODULE = re.compile(r"`(neocpu[.\w]*)`")
IMPORT = re.compile(
    r"^(?:>>> )?\s*(?:from (neocpu[.\w]*) import (\w+)|import (neocpu[.\w]*))", re.MULTILINE
)
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs").glob("course/*.md")),
    ROOT / "README.md",
]
# what pages and lessons may show: a family by its prefix stands for all of its modules
FAMILIES = ("neocpu.kernels.",)


def stable_modules() -> list[str]:
    return re.findall(r"^\| `(neocpu[.\w]*)` \|", STABLE, re.MULTILINE)


def documented_modules() -> list[str]:
    return MODULE.findall(DOCUMENTED)


def is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is a module without others in it
        return False


def imports_of(text: str) -> set[str]:
    """Modules of neocpu that code in a text imports."""
    imported = IMPORT.findall(text)
    modules = set()
    for package, name, whole in imported:
        module = f"{package}.{name}" if package else whole
        modules.add(module if is_module(module) else package)
    return modules


def test_names_of_the_package_are_those_of_the_page() -> None:
    row = next(line for line in STABLE.splitlines() if line.startswith("| `neocpu` |"))
    assert re.findall(r"`(\w+)`", row)[1:] == sorted(neocpu.__all__)


@pytest.mark.parametrize("module", [*stable_modules(), *documented_modules()])
def test_public_modules_exist(module: str) -> None:
    assert find_spec(module) is not None


@pytest.mark.parametrize("module", ["neocpu.oracle"])
def test_public_names_can_be_had(module: str) -> None:
    package = import_module(module)
    for name in package.__all__:
        assert getattr(package, name) is not None


def options_of(command: click.Command, name: str) -> Iterator[str]:
    """What each option of a command and of those below it takes, and its default, as texts."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            below = command.get_command(context, inner)
            assert below is not None
            yield from options_of(below, f"{name} {inner}")
    for option in command.params:
        limits = [getattr(option.type, key, "") for key in ("choices", "min", "max")]
        default = option.default if isinstance(option.default, str | int | float) else ""
        yield f"{name} {option.opts} {option.type.name} {limits} {default}"


def defaults_of(name: str, value: object) -> Iterator[str]:
    """The arguments of a public function, or of what a public class does, with their defaults."""
    if isinstance(value, type):
        for inner, method in vars(value).items():
            if inspect.isfunction(method) and (inner == "__init__" or not inner.startswith("_")):
                yield from defaults_of(f"{name}.{inner}", method)
    elif inspect.isfunction(value):
        for key, argument in inspect.signature(value).parameters.items():
            plain = isinstance(argument.default, str | int | float | tuple | None)
            yield f"{name} {key} {argument.kind.name} {argument.default if plain else ''}"


def test_defaults_are_those_that_were_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    sections = import_module("key_reference").sections().values()
    keys = [
        f"{key.name} {key.type} {key.default} {key.allowed}"
        for _, of_one in sections
        for key in of_one
    ]
    recorded.check("keys of a config", recorded.lines_of("\n".join(keys)))
    options = options_of(cli, "neocpu")
    recorded.check("options of the commands", recorded.lines_of("\n".join(options)))
    values = {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in (neocpu, oracle)
        for name in module.__all__
    }
    arguments = [line for name in sorted(values) for line in defaults_of(name, values[name])]
    recorded.check("arguments of what is public", recorded.lines_of("\n".join(arguments)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_show_public_modules_only(page: Path) -> None:
    public = {*stable_modules(), *documented_modules()}
    private = {
        module
        for module in imports_of(page.read_text()) - public
        if not module.startswith(FAMILIES)
    }
    assert not private, f"{page.name} imports {sorted(private)}: list them in docs/public.md"
