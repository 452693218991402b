"""Is the house still the one that docs/design.md describes?

Import order, one home per library, no cycles, sizes, one meaning per name, twins, the map of
topics. Each test looks at every file and names all offences at once.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import neocpu

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(neocpu.__file__).resolve().parent  # the source's, or an installed one
MAP = next(path for path in (ROOT / "docs" / "map.md", ROOT / "README.md") if path.exists())

# One direction only: a room imports from rooms of lower number, or from itself.
ROOMS = {
    name: level
    for level, names in enumerate(
        (
            ("errors", "trees"),
            ("hdf5", "presets"),
            ("records", "formats"),
            ("paths",),
            ("jagged", "floats", "cores"),
            ("kernels",),
            ("reference",),
            ("storage",),
            ("embedding",),
            ("kinds",),
            ("peers",),
            ("parallel",),
            ("zionex",),
            ("planner",),
            ("model",),
            ("ingest",),
            ("settings", "defaults"),
            ("config_limits",),
            ("config",),
            ("advice",),
            ("simulation",),
            ("training",),
            ("search",),
            ("scoring",),
            ("report",),
            ("oracle",),
            ("cli",),
        )
    )
    for name in names
}
CORE = {
    "kernels",
    "reference",
    "storage",
    "embedding",
    "parallel",
    "zionex",
    "planner",
    "model",
    "simulation",
    "training",
    "search",
}
HOMES = {
    "numba": ("kernels/",),
    "llvmlite": ("kernels/simd/", "kernels/_key.py"),
    "mpi4py": ("parallel/mpi.py",),
    "h5py": ("hdf5/", "storage/hdf5.py"),
    "click": ("cli/",),
    "rich": ("cli/",),
    "polars": ("ingest/", "advice/", "scoring/"),
    "jinja2": ("advice/", "report/"),
    "safetensors": ("scoring/",),
    "onnx": ("scoring/",),
    "matplotlib": ("training/results.py",),
    "scipy": ("planner/exact.py",),
    "torch": ("peers/fbgemm/", "oracle/adapters.py", "peers/torchrec.py", "scoring/"),
}
GIVEN = {"numba", "llvmlite", "numpy", "mpi4py", "h5py", "matplotlib", "scipy"}

# Limits, and what may exceed them: name -> why it is one thing all the same.
FILE_LINES = 400
FUNCTION_LINES = 60
LINE_COLUMNS = 100
LONG_FILES: dict[str, str] = {
    "ingest/synthetic.py": "one law: the synthetic log from its shape to its blocks",
    "kernels/lookup.py": "lookups of one kind of table: pooled, one by one, their weights, bounds",
    "kernels/synthetic.py": "one family of kernels: the draws of the synthetic log",
    "embedding/layouts.py": "jagged layouts: one object, its conversions",
    "kernels/update.py": "merge and update, for every kind of state",
    "oracle/switches/shared.py": "one list: every switch of the oracle with its meaning",
    "planner/tiers.py": "one search: which table in which memory",
    "storage/hdf5.py": "writing one file format without HDF5's buffers",
    "storage/row_file.py": "one file format: open, read, write, commit",
}
LONG_FUNCTIONS: dict[str, str] = {
    "embedding/layouts.py:block_bucketize": "the steps of FBGEMM's operator, in its order",
    "cli/generate.py:generate": "a command's options",
    "kernels/gemm.py:_leaves": "one loop nest",
    "kernels/gemm.py:_product": "one loop nest",
    "kernels/update.py:_fuse": "a factory: the kernel within",
    "kernels/update.py:update_task": "one loop nest",
    "oracle/cases/backward.py:_numbers": "a list of cases",
    "oracle/cases/trajectory.py:cases": "a list of cases",
}
SAME_CLASS_NAMES: dict[str, str] = {
    "Bag": "one bag, of the kernels and of their twins",
    "Terms": "terms of sums, of the kernels and of their twins",
    "_Started": "private: a request under way, of MPI and of threads",
}
# cycles of imports inside functions, each a sorted list of modules joined by spaces
CYCLES: dict[str, str] = {}

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

FILES = sorted(PACKAGE.rglob("*.py"))
KERNELS = PACKAGE / "kernels"
PLAIN = KERNELS / "plain"  # textbook siblings of tuned kernels: the same twins, none of their own
SCRIPTS = sorted(
    path
    for room in ("neocpu", "tests", "benchmarks", "examples")
    for path in (PACKAGE if room == "neocpu" else ROOT / room).rglob("*.py")
)
TREES = {path: ast.parse(path.read_text(), str(path)) for path in FILES}


def home(packaged: bool) -> Path:
    """The folder of neocpu/, or that of tests/ and others."""
    return PACKAGE.parent if packaged else ROOT


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    return relative(path).split("/")[0].removesuffix(".py")


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def top_functions(path: Path) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in TREES[path].body if isinstance(node, ast.FunctionDef)}


def report(offences: list[str]) -> None:
    """Fail with all of them."""
    assert not offences, f"{len(offences)} offence(s):\n" + "\n".join(offences)


def excess(sizes: Mapping[str, int], limit: int, exceptions: Mapping[str, str]) -> list[str]:
    """Offences against a limit, and exceptions that nothing needs any more."""
    too_long = {name: size for name, size in sizes.items() if size > limit}
    return [
        f"{name}: {size} lines, more than {limit}"
        for name, size in too_long.items()
        if name not in exceptions
    ] + [f"{name} is short enough: no exception" for name in exceptions.keys() - too_long.keys()]


# ---- rooms ----


def test_every_file_belongs_to_a_room() -> None:
    outside = {"__init__.py", "__main__.py"}
    report(
        [
            f"{relative(path)} belongs to no room"
            for path in FILES
            if room_of(path) not in ROOMS and relative(path) not in outside
        ]
    )


def test_imports_are_absolute() -> None:
    report(
        [
            f"{relative(path)}:{node.lineno}: relative import; write the whole name"
            for path in FILES
            for node in ast.walk(TREES[path])
            if isinstance(node, ast.ImportFrom) and node.level
        ]
    )


def test_imports_point_to_the_foundation_only() -> None:
    offences = []
    for path in FILES:
        room = room_of(path)
        for module in imported_modules(path) if room in ROOMS else ():
            package, *names = module.split(".")
            if package != "neocpu" or not names or names[0] == room:
                continue
            if ROOMS[names[0]] >= ROOMS[room]:
                offences.append(f"{relative(path)} imports {module}, a room above it")
            elif room == "kernels" and names[0] != "formats":
                offences.append(
                    f"{relative(path)} imports {module}: kernels import the records of formats only"
                )
            elif room == "reference" and names[0] != "formats":
                offences.append(
                    f"{relative(path)} imports {module}: twins and kernels share records of "
                    "formats only"
                )
    report(offences)


def test_each_library_has_one_home() -> None:
    offences = []
    for path in FILES:
        for module in imported_modules(path):
            library = module.split(".")[0]
            if library in HOMES and not relative(path).startswith(HOMES[library]):
                offences.append(f"{relative(path)} imports {library}")
            elif (
                room_of(path) in CORE
                and library not in GIVEN | {"neocpu"}
                and library not in sys.stdlib_module_names
            ):
                offences.append(
                    f"{relative(path)} imports {library}: core rooms use the given libraries only"
                )
    report(offences)


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph() -> dict[str, set[str]]:
    """Modules of the package that each one imports, inside functions too."""
    modules = {module_name(path) for path in FILES}
    graph: dict[str, set[str]] = {}
    for path in FILES:
        targets = graph.setdefault(module_name(path), set())
        for node in ast.walk(TREES[path]):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names} & modules
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    targets |= {whole if whole in modules else node.module or ""} & modules
    return graph


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = list(graph[start])
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo += graph[module]
    return seen


def test_files_do_not_import_each_other_in_a_circle() -> None:
    graph = import_graph()
    below = {module: reachable(graph, module) for module in graph}
    cycles = {
        " ".join(sorted(other for other in below[module] if module in below[other]))
        for module in graph
        if module in below[module]
    }
    report([f"cycle: {cycle}" for cycle in sorted(cycles - CYCLES.keys())])
    report([f"no cycle any more: {cycle}" for cycle in sorted(CYCLES.keys() - cycles)])


# ---- sizes and names ----


def test_files_stay_small() -> None:
    sizes = {relative(path): len(path.read_text().splitlines()) for path in FILES}
    report(excess(sizes, FILE_LINES, LONG_FILES))


def test_functions_stay_small() -> None:
    sizes: dict[str, int] = {}
    for path in FILES:
        for function in functions(path):
            name = f"{relative(path)}:{function.name}"
            length = (function.end_lineno or 0) - function.lineno + 1
            sizes[name] = max(length, sizes.get(name, 0))
    report(excess(sizes, FUNCTION_LINES, LONG_FUNCTIONS))


def test_lines_stay_short_and_the_formatter_is_never_switched_off() -> None:
    switch = re.compile(r"#\s*fmt:\s*(skip|off)")
    offences = []
    for path in SCRIPTS:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            where = f"{path.relative_to(home(path.is_relative_to(PACKAGE)))}:{number}"
            if len(line) > LINE_COLUMNS:
                offences.append(f"{where}: {len(line)} columns")
            if switch.search(line):
                offences.append(f"{where}: the formatter is switched off")
    report(offences)


def test_a_class_name_means_one_thing() -> None:
    places = defaultdict(list)
    for path in FILES:
        for node in TREES[path].body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(relative(path))
    repeated = {name for name, paths in places.items() if len(paths) > 1}
    report(
        [
            f"class {name}: {', '.join(places[name])}"
            for name in sorted(repeated - SAME_CLASS_NAMES.keys())
        ]
    )
    report([f"class {name} is one" for name in sorted(SAME_CLASS_NAMES.keys() - repeated)])


# ---- words ----


def test_every_file_opens_with_its_question() -> None:
    report(
        [
            f"{relative(path)} has no module docstring"
            for path in FILES
            if path.read_text().strip() and not ast.get_docstring(TREES[path])
        ]
    )


def test_public_functions_and_classes_are_documented() -> None:
    report(
        [
            f"{relative(path)}:{node.name} has no docstring"
            for path in FILES
            for node in TREES[path].body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and not ast.get_docstring(node)
        ]
    )


def test_the_map_names_files_that_exist_and_every_kernel_file() -> None:
    named_files = re.compile(r"`((?:neocpu|tests|docs|data|examples|benchmarks)/[\w./*-]+)`")
    offences = []
    for page in {MAP, ROOT / "README.md"}:
        offences += [
            f"{page.name} names {name}, which does not exist"
            for name in named_files.findall(page.read_text())
            if not list(home(name.startswith("neocpu/")).glob(name.rstrip("/")))
        ]
    text = MAP.read_text()
    offences += [
        f"{MAP.name} lacks neocpu/{relative(path)}"
        for path in KERNELS.rglob("[a-z]*.py")
        if f"`neocpu/{relative(path)}`" not in text
    ]
    report(offences)


# ---- kernels ----


def is_kernel(function: ast.FunctionDef) -> bool:
    names = {ast.unparse(decorator) for decorator in function.decorator_list}
    return bool(names & {"kernel", "parallel_kernel"})


def public_kernels(path: Path) -> dict[str, ast.FunctionDef]:
    return {
        name: function
        for name, function in top_functions(path).items()
        if is_kernel(function) and not name.startswith("_")
    }


def arguments(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.args]


TUNED = [path for path in sorted(KERNELS.rglob("*.py")) if PLAIN not in path.parents]


def test_every_kernel_has_a_twin_of_the_same_name_and_arguments() -> None:
    offences = []
    for path in TUNED:
        twin_path = PACKAGE / "reference" / path.name
        twins = top_functions(twin_path) if twin_path.exists() else {}
        for name, function in public_kernels(path).items():
            if name not in twins:
                offences.append(f"{relative(path)}:{name} has no twin in reference/{path.name}")
                continue
            if arguments(function) != arguments(twins[name]):
                offences.append(f"{relative(path)}:{name}: its twin has other arguments")
            if not ast.get_docstring(twins[name]):
                offences.append(f"reference/{path.name}:{name} has no docstring")
    report(offences)


def test_every_plain_kernel_has_the_arguments_of_the_tuned_one() -> None:
    offences = []
    for path in sorted(PLAIN.glob("*.py")):
        tuned_path = KERNELS / path.name
        tuned = top_functions(tuned_path) if tuned_path.exists() else {}
        for name, function in public_kernels(path).items():
            if name not in tuned:
                offences.append(f"{relative(path)}:{name} has no tuned kernel of that name")
            elif arguments(function) != arguments(tuned[name]):
                offences.append(f"{relative(path)}:{name}: the tuned kernel has other arguments")
    report(offences)


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
COMPILED = {"kernel", "parallel_kernel", "inlined", "task_body", "intrinsic"}


def decorators(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {ast.unparse(decorator) for decorator in function.decorator_list}


def test_kernels_take_records_instead_of_long_argument_lists() -> None:
    """What travels together is a `NamedTuple` (`kernels/operands.py`, `kernels/records.py`)."""
    offences = []
    for path in sorted(KERNELS.rglob("*.py")):
        public = public_kernels(path)
        for function in functions(path):
            if not decorators(function) & COMPILED:
                continue
            count = len([arg for arg in function.args.args if arg.arg != "typingctx"])
            most = KERNEL_PARAMETERS if function.name in public else HELPER_PARAMETERS
            names = {function.name, f"{path.stem}.{function.name}"}
            if count > most and not names & LONG_SIGNATURES.keys():
                offences.append(
                    f"{relative(path)}:{function.name} takes {count} parameters, at most {most}: "
                    "make records of those that belong together"
                )
    report(offences)


def fields_written(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    """Elements of a record's fields, maybe under a local name, that a function assigns."""
    parameters = {argument.arg for argument in function.args.args}
    fields = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
            owner = node.value.value
            if isinstance(owner, ast.Name) and owner.id in parameters:
                fields |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AugAssign) else targets
        for target in targets:
            if isinstance(target, ast.Subscript) and (
                isinstance(target.value, ast.Attribute)
                or (isinstance(target.value, ast.Name) and target.value.id in fields)
            ):
                yield target


def test_parallel_kernels_write_records_in_task_bodies_only() -> None:
    """Numba drops `record.field[i] = x` from a `prange` loop as a write that nobody reads; the loop
    calls a `task_body` instead (`kernels/scratch.py`).
    """
    report(
        [
            f"{relative(path)}:{target.lineno}: {ast.unparse(target)} is written in a parallel "
            "kernel itself, which Numba leaves out"
            for path in sorted(KERNELS.rglob("*.py"))
            for function in functions(path)
            if "parallel_kernel" in decorators(function)
            for target in fields_written(function)
        ]
    )


def uncanonical(node: ast.AST) -> str:
    """Why this could give other bits on another machine; "" if it cannot."""
    if isinstance(node, ast.keyword) and node.arg == "fastmath":
        return "fastmath changes bits"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return "@ sums in an order that nobody defines"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        constant = isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant)
        return "" if constant else "** calls libm"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = ast.unparse(node.func.value)
        if owner in ("np", "numpy", "math") and node.func.attr in FORBIDDEN_CALLS:
            return f"{owner}.{node.func.attr} differs between machines"
        if owner in ("np.random", "random"):
            return "use Philox"
    return ""


def test_kernels_stay_canonical() -> None:
    """No fastmath, matrix operator, floating power, library transcendental, NumPy randomness."""
    report(
        [
            f"{relative(path)}:{getattr(node, 'lineno', 0)}: {reason}"
            for path in sorted(KERNELS.rglob("*.py"))
            for node in ast.walk(TREES[path])
            if (reason := uncanonical(node))
        ]
    )


def test_every_argsort_is_stable() -> None:
    report(
        [
            f"{relative(path)}:{node.lineno}: argsort without kind='stable'"
            for path in FILES
            for node in ast.walk(TREES[path])
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("argsort")
            and [ast.unparse(k.value) for k in node.keywords if k.arg == "kind"] != ["'stable'"]
        ]
    )
