"""Is the house still the one that docs/design.md describes? Import order, one home per library,
sizes, twins, README map.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "neocpu"

# One direction only: a room imports from rooms of lower number, or from itself.
ROOMS = {
    name: level
    for level, names in enumerate(
        (
            ("errors", "trees"),
            ("records",),
            ("jagged", "floats", "cores"),
            ("kernels",),
            ("reference",),
            ("storage",),
            ("embedding",),
            ("peers",),
            ("parallel",),
            ("planner",),
            ("model",),
            ("ingest",),
            ("config",),
            ("training",),
            ("oracle",),
            ("cli",),
        )
    )
    for name in names
}
CORE = {"kernels", "reference", "storage", "embedding", "parallel", "planner", "model", "training"}
HOMES = {
    "numba": ("kernels/",),
    "llvmlite": ("kernels/simd/", "kernels/_key.py"),
    "mpi4py": ("parallel/mpi.py",),
    "h5py": ("storage/hdf5.py", "ingest/", "training/checkpoint/", "oracle/"),
    "click": ("cli/",),
    "rich": ("cli/",),
    "polars": ("ingest/",),
    "matplotlib": ("training/results.py",),
    "torch": ("peers/fbgemm/", "oracle/adapters.py", "peers/torchrec.py"),
}
GIVEN = {"numba", "llvmlite", "numpy", "mpi4py", "h5py", "matplotlib"}
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
FORBIDDEN_CALLS = {
    "dot",
    "matmul",
    "einsum",
    "exp",
    "log",
    "log1p",
    "expm1",
    "power",
    "tanh",
    "cumsum_float",
}
CANONICAL = ("kernels/",)  # the training, initialisation, conversion and generator paths

FILES = sorted(PACKAGE.rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (
                f"{path}: relative import at line {node.lineno}; write the whole name"
            )
            yield node.module or ""


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef))


def room(name: str) -> str:
    return name.split("/")[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_point_to_the_foundation_only(path: Path) -> None:
    mine = room(relative(path))
    if mine not in ROOMS:
        assert relative(path) in ("__init__.py", "__main__.py"), (
            f"{relative(path)} belongs to no room"
        )
        return
    for module in imports(path):
        parts = module.split(".")
        if parts[0] != "neocpu":
            continue
        other = parts[1] if len(parts) > 1 else "neocpu"
        assert other == mine or other == "neocpu" or ROOMS[other] < ROOMS[mine], (
            f"{relative(path)} imports {module}"
        )
        if mine == "kernels":
            assert other == "kernels", (
                f"{relative(path)} imports {module}: kernels import nothing of ours"
            )
        if mine == "reference":
            assert other == "reference", (
                f"{relative(path)} imports {module}: twins share nothing with kernels"
            )


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_each_library_has_one_home(path: Path) -> None:
    for module in imports(path):
        library = module.split(".")[0]
        if library in HOMES:
            assert relative(path).startswith(HOMES[library]), f"{relative(path)} imports {library}"
        if room(relative(path)) in CORE and library not in GIVEN and library != "neocpu":
            assert library in STDLIB, (
                f"{relative(path)} imports {library}: core rooms use the given libraries only"
            )


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_files_and_functions_stay_small(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= 560 or relative(path) in LONG_FILES, f"{relative(path)}: {lines} lines"
    for function in functions(path):
        length = (function.end_lineno or 0) - function.lineno + 1
        name = f"{relative(path)}:{function.name}"
        assert length <= 130 or name in LONG_FUNCTIONS, f"{name}: {length} lines"


@pytest.mark.parametrize("path", [p for p in FILES if p.read_text().strip()], ids=relative)
def test_every_file_opens_with_its_question(path: Path) -> None:
    assert ast.get_docstring(tree(path)), f"{relative(path)} has no module docstring"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_public_functions_are_documented(path: Path) -> None:
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{relative(path)}:{node.name} has no docstring"


def is_kernel(function: ast.FunctionDef) -> bool:
    names = {ast.unparse(d) for d in function.decorator_list}
    return bool(names & {"kernel", "parallel_kernel"})


def signature(function: ast.FunctionDef) -> list[str]:
    return [a.arg for a in function.args.args]


@pytest.mark.parametrize("path", sorted((PACKAGE / "kernels").rglob("*.py")), ids=lambda p: p.name)
def test_every_kernel_has_a_twin_of_the_same_name_and_arguments(path: Path) -> None:
    kernels = [
        n
        for n in tree(path).body
        if isinstance(n, ast.FunctionDef) and is_kernel(n) and not n.name.startswith("_")
    ]
    if not kernels:
        return
    twin_path = PACKAGE / "reference" / path.name
    assert twin_path.exists(), f"kernels/{path.name} has no twin file"
    twins = {n.name: n for n in tree(twin_path).body if isinstance(n, ast.FunctionDef)}
    for function in kernels:
        assert function.name in twins, f"kernels/{path.name}:{function.name} has no twin"
        assert signature(function) == signature(twins[function.name]), (
            f"{function.name}: twin has other arguments"
        )
        assert ast.get_docstring(twins[function.name]), (
            f"reference/{path.name}:{function.name} has no docstring"
        )


# Functions of kernels/ with more parameters than others may have, and why.
LONG_SIGNATURES = {
    "codecs.encode_rows_randomly": "a key, a step and a first column are three different numbers",
    "chains": "three operands of a tile, each an array, a position and a step; no array is counted",
    "gap_chains": "as chains",
    "finish_tile": "as chains",
    "gemm._product": "called from Python for small products, which records would slow down",
    "update.merge_rows": "records and single arrays that have nothing in common",
    "update.step_rows": "as merge_rows",
    "update.update_task": "the arguments of its kernel, and what the loop lends",
    "update.merge_task": "as update_task",
}
KERNEL_PARAMETERS = 7
HELPER_PARAMETERS = 9


def test_kernels_take_records_instead_of_long_argument_lists() -> None:
    """What travels together is a `NamedTuple` (`kernels/operands.py`)."""
    for path in (PACKAGE / "kernels").rglob("*.py"):
        for function in functions(path):
            names = {ast.unparse(d) for d in function.decorator_list}
            if not names & {"kernel", "parallel_kernel", "inlined", "task_body", "intrinsic"}:
                continue
            parameters = [name for name in signature(function) if name != "typingctx"]
            public = is_kernel(function) and not function.name.startswith("_")
            most = KERNEL_PARAMETERS if public else HELPER_PARAMETERS
            known = {function.name, f"{path.stem}.{function.name}"} & LONG_SIGNATURES.keys()
            assert len(parameters) <= most or known, (
                f"{relative(path)}:{function.name} takes {len(parameters)} parameters, "
                f"at most {most}: make records of those that belong together"
            )


def test_parallel_kernels_write_records_in_task_bodies_only() -> None:
    """Numba drops `record.field[i] = x` from a `prange` loop as a write that nobody reads; the loop
    calls a `task_body` instead (`kernels/scratch.py`).
    """
    for path in (PACKAGE / "kernels").rglob("*.py"):
        for function in functions(path):
            if "parallel_kernel" not in {ast.unparse(d) for d in function.decorator_list}:
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Assign | ast.AugAssign):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    for target in targets:
                        dropped = isinstance(target, ast.Subscript) and isinstance(
                            target.value, ast.Attribute
                        )
                        assert not dropped, (
                            f"{relative(path)}:{node.lineno}: {ast.unparse(target)} is written in "
                            "a parallel kernel itself, which Numba leaves out"
                        )


@pytest.mark.parametrize("path", sorted((PACKAGE / "kernels").rglob("*.py")), ids=lambda p: p.name)
def test_kernels_stay_canonical(path: Path) -> None:
    """No fastmath, no matrix operator, no floating power, no library transcendental, no NumPy
    randomness.
    """
    for node in ast.walk(tree(path)):
        where = f"kernels/{path.name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.keyword):
            assert node.arg != "fastmath", f"{where}: fastmath changes bits"
        if isinstance(node, ast.BinOp):
            assert not isinstance(node.op, ast.MatMult), (
                f"{where}: @ sums in an order that nobody defines"
            )
            if isinstance(node.op, ast.Pow):
                assert isinstance(node.left, ast.Constant) and isinstance(
                    node.right, ast.Constant
                ), f"{where}: ** calls libm"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if owner in ("np", "numpy", "math"):
                assert node.func.attr not in FORBIDDEN_CALLS, (
                    f"{where}: {owner}.{node.func.attr} differs between machines"
                )
            assert owner not in ("np.random", "random"), f"{where}: use Philox"


def test_no_unstable_sorts_outside_metrics() -> None:
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("argsort"):
                kinds = [ast.unparse(k.value) for k in node.keywords if k.arg == "kind"]
                assert kinds == ["'stable'"], (
                    f"{relative(path)}:{node.lineno}: argsort without kind='stable'"
                )


def test_the_map_names_files_that_exist_and_every_kernel_file() -> None:
    readme = (ROOT / "docs" / "map.md").read_text()
    for name in re.findall(r"`((?:neocpu|tests|docs|data|examples|benchmarks)/[\w./*-]+)`", readme):
        assert list(ROOT.glob(name.rstrip("/"))), f"docs/map.md names {name}, which does not exist"
    for path in (PACKAGE / "kernels").rglob("[a-z]*.py"):
        assert f"`neocpu/{relative(path)}`" in readme, f"docs/map.md lacks kernels/{path.name}"


STDLIB = set(__import__("sys").stdlib_module_names)
