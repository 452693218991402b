"""Is the house still the one that docs/design.md describes?

Import order, one home per library, no cycles, sizes, one meaning per name, twins, the map of
topics. Each test looks at every file and names all offences at once.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import neocpu

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(neocpu.__file__).resolve().parent  # the source's, or an installed one
MAP = next(path for path in (ROOT / "docs" / "map.md", ROOT / "README.md") if path.exists())

# One direction only: a wing imports from wings of lower storeys, or from itself.
WINGS = {
    wing: storey
    for storey, wings in enumerate(
        (
            ("core",),
            ("kernels",),
            ("tables",),
            ("parallel", "ingest", "peers"),
            ("plan", "oracle"),
            ("train",),
            ("serve",),
            ("cli",),
        )
    )
    for wing in wings
}
# Inside a wing, the same of its folders, from the first to the last; "" is the wing's own files.
# A face stands above the folders that it hands on (`oracle/__init__.py`), so it is not listed.
STOREYS = {
    "tables": ("hdf5", "storage", "tiers", "specs", "embedding", "kinds"),
    "parallel": ("transport", "watch", "sharding", "exchange", "embeddings", "parity", "rpc"),
    "ingest": ("formats", "dataset", "synthetic", "readers"),
    "plan": (
        "machines",
        "files",
        "towers",
        "cost",
        "activations",
        "tiers",
        "search",
        "learned",
        "simulation",
        "show",
    ),
    "train": (
        "model",
        "config",
        "fit",
        "advice",
        "state",
        "step",
        "activations",
        "watch",
        "checkpoint",
        "asynchronous",
        "before",
        "run",
        "sweep",
        "search",
    ),
    "serve": ("report", "scoring", "exports", "state_dicts", "estimator"),
    "cli": ("screen", ""),
}
# Wings that use the given libraries only; the oracle judges other programs by theirs.
CORE = {"kernels", "tables", "parallel", "plan", "train"}
HOMES = {
    "numba": ("kernels/",),
    "llvmlite": ("kernels/simd/", "kernels/compile/key.py", "kernels/compile/linking.py"),
    "mpi4py": ("parallel/transport/mpi.py", "parallel/transport/mpi_mail.py"),
    "h5py": ("tables/hdf5/", "tables/storage/extents.py"),
    "hdf5plugin": ("tables/hdf5/", "ingest/dataset/"),
    "click": ("cli/",),
    "rich": ("cli/",),
    "polars": ("ingest/formats/", "train/advice/", "serve/"),
    "fsspec": ("ingest/formats/files/remote.py",),
    "jinja2": ("core/html.py", "train/advice/"),
    "safetensors": ("serve/",),
    "onnx": ("serve/exports/",),
    "matplotlib": ("train/watch/results.py",),
    "torch": ("peers/fbgemm/", "oracle/adapters.py", "peers/torchrec.py", "serve/"),
}

# Limits, and what may exceed them: name -> why it is one thing all the same.
FILE_LINES = 400
FUNCTION_LINES = 60
LINE_COLUMNS = 100
FOLDER_FILES = 22
LONG_FILES: dict[str, str] = {
    "ingest/synthetic/law.py": "one law: the synthetic log from its shape to its blocks",
    "kernels/rows/lookup.py": "lookups of one kind of table: pooled, one by one, weights, bounds",
    "kernels/logs/synthetic.py": "one family of kernels: the draws of the synthetic log",
    "tables/embedding/layouts.py": "jagged layouts: one object, its conversions",
    "kernels/rows/update.py": "merge and update, for every kind of state",
    "plan/tiers/tiers.py": "one search: which table in which memory",
    "tables/storage/extents.py": "writing one file format without HDF5's buffers",
    "tables/storage/row_file.py": "one file format: open, read, write, commit",
}
LONG_FUNCTIONS: dict[str, str] = {
    "tables/embedding/layouts.py:block_bucketize": "the steps of FBGEMM's operator, in its order",
    "kernels/dense/gemm.py:_product": "one loop nest",
    "kernels/rows/update.py:_fuse": "a factory: the kernel within",
    "kernels/rows/update.py:update_task": "one loop nest",
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
TWINS = KERNELS / "twins"
SCRIPTS = sorted(
    path
    for room in ("neocpu", "tests", "benchmarks", "examples")
    for path in (PACKAGE if room == "neocpu" else ROOT / room).rglob("*.py")
)


@cache
def tree_of(path: Path) -> ast.Module:
    """A file as its syntax tree; parsed when a test asks, not when tests are collected."""
    return ast.parse(path.read_text(), str(path))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a file's tree; a walk takes ten times as long as to go over its list."""
    return list(ast.walk(tree_of(path)))


def home(packaged: bool) -> Path:
    """The folder of neocpu/, or that of tests/ and others."""
    return PACKAGE.parent if packaged else ROOT


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def wing_of(path: Path) -> str:
    return relative(path).split("/")[0].removesuffix(".py")


def folder_of(path: Path) -> str:
    """The folder inside its wing: "cost" of plan/cost/seconds.py, "" of the wing's own files."""
    inner = relative(path).split("/")[1:-1]
    return inner[0] if inner else ""


def imported_modules(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def top_functions(path: Path) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in tree_of(path).body if isinstance(node, ast.FunctionDef)}


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


# ---- wings ----


def test_every_file_stands_in_a_wing() -> None:
    outside = {"__init__.py", "__main__.py"}
    report(
        [
            f"{relative(path)} stands in no wing"
            for path in FILES
            if wing_of(path) not in WINGS and relative(path) not in outside
        ]
    )


def test_imports_are_absolute() -> None:
    report(
        [
            f"{relative(path)}:{node.lineno}: relative import; write the whole name"
            for path in FILES
            for node in nodes_of(path)
            if isinstance(node, ast.ImportFrom) and node.level
        ]
    )


def test_wings_import_from_lower_storeys_only() -> None:
    report(
        [
            f"{relative(path)} imports {module}, a wing that is not below it"
            for path in FILES
            for module in imported_modules(path)
            if module.startswith("neocpu.") and wing_of(path) in WINGS
            if (wing := module.split(".")[1]) != wing_of(path)
            if WINGS[wing] >= WINGS[wing_of(path)]
        ]
    )


def test_folders_of_a_wing_import_in_one_order() -> None:
    modules = {module_name(path): path for path in FILES}
    offences = []
    for module, targets in import_graph().items():
        path = modules[module]
        order = STOREYS.get(wing_of(path), ())
        for target in targets:
            if wing_of(modules[target]) != wing_of(path):
                continue
            above, below = folder_of(path), folder_of(modules[target])
            if above in order and below in order and order.index(below) > order.index(above):
                offences.append(f"{relative(path)} imports {target}, from a later folder")
    report(offences)


RECORDS = {f"neocpu.core.{name}" for name in ("formats", "codecs", "rules", "policies")}


def test_kernels_and_twins_share_records_only() -> None:
    """Kernels and twins know no other wing but records of core, and nothing of each other."""
    offences = []
    for path in FILES:
        place = relative(path)
        if wing_of(path) != "kernels":
            continue
        twin = place.startswith("kernels/twins/")
        for module in imported_modules(path):
            if not module.startswith("neocpu."):
                continue
            if module.startswith("neocpu.kernels"):
                if twin != module.startswith("neocpu.kernels.twins"):
                    offences.append(f"{place} imports {module}: a twin shares nothing with kernels")
            elif module not in RECORDS:
                offences.append(f"{place} imports {module}: records only")
    report(offences)


def test_no_folder_is_a_crowd() -> None:
    sizes: dict[str, int] = defaultdict(int)
    for path in FILES:
        sizes[relative(path.parent)] += path.name != "__init__.py"
    report(
        [
            f"{folder}/ has {count} files side by side, more than {FOLDER_FILES}"
            for folder, count in sizes.items()
            if count > FOLDER_FILES
        ]
    )


def test_each_library_has_one_home() -> None:
    offences = []
    for path in FILES:
        for module in imported_modules(path):
            library = module.split(".")[0]
            if library in HOMES and not relative(path).startswith(HOMES[library]):
                offences.append(f"{relative(path)} imports {library}")
            elif (
                wing_of(path) in CORE
                and library not in {"numpy", "neocpu", *HOMES}
                and library not in sys.stdlib_module_names
            ):
                offences.append(
                    f"{relative(path)} imports {library}: this wing uses the given libraries only"
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
        for node in nodes_of(path):
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
        place = path.relative_to(home(path.is_relative_to(PACKAGE)))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if len(line) > LINE_COLUMNS:
                offences.append(f"{place}:{number}: {len(line)} columns")
            if switch.search(line):
                offences.append(f"{place}:{number}: the formatter is switched off")
    report(offences)


def test_a_class_name_means_one_thing() -> None:
    places = defaultdict(list)
    for path in FILES:
        for node in tree_of(path).body:
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
            if path.read_text().strip() and not ast.get_docstring(tree_of(path))
        ]
    )


def test_public_functions_and_classes_are_documented() -> None:
    report(
        [
            f"{relative(path)}:{node.name} has no docstring"
            for path in FILES
            for node in tree_of(path).body
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
        for path in COMPILED_FILES
        if not path.name.startswith("_") and folder_of(path) != "compile"
        if f"`neocpu/{relative(path)}`" not in text
    ]
    report(offences)


# ---- kernels ----


def is_kernel(function: ast.FunctionDef) -> bool:
    names = {ast.unparse(decorator) for decorator in function.decorator_list}
    return bool(names & {"called_kernel", "kernel", "parallel_kernel"})


def public_kernels(path: Path) -> dict[str, ast.FunctionDef]:
    return {
        name: function
        for name, function in top_functions(path).items()
        if is_kernel(function) and not name.startswith("_")
    }


def arguments(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.args]


TUNED = [path for path in sorted(KERNELS.rglob("*.py")) if not {PLAIN, TWINS} & {*path.parents}]
COMPILED_FILES = [path for path in sorted(KERNELS.rglob("*.py")) if TWINS not in path.parents]


def test_every_kernel_has_a_twin_of_the_same_name_and_arguments() -> None:
    offences = []
    for path in TUNED:
        twin_path = TWINS / path.relative_to(KERNELS)
        twins = top_functions(twin_path) if twin_path.exists() else {}
        for name, function in public_kernels(path).items():
            if name not in twins:
                offences.append(f"{relative(path)}:{name} has no twin in {relative(twin_path)}")
                continue
            if arguments(function) != arguments(twins[name]):
                offences.append(f"{relative(path)}:{name}: its twin has other arguments")
            if not ast.get_docstring(twins[name]):
                offences.append(f"{relative(twin_path)}:{name} has no docstring")
    report(offences)


def test_every_plain_kernel_has_the_arguments_of_the_tuned_one() -> None:
    offences = []
    for path in sorted(PLAIN.rglob("*.py")):
        tuned_path = KERNELS / path.relative_to(PLAIN)
        tuned = top_functions(tuned_path) if tuned_path.exists() else {}
        for name, function in public_kernels(path).items():
            if name not in tuned:
                offences.append(f"{relative(path)}:{name} has no tuned kernel of that name")
            elif arguments(function) != arguments(tuned[name]):
                offences.append(f"{relative(path)}:{name}: the tuned kernel has other arguments")
    report(offences)


# Functions of kernels/ with more parameters than others may have, and why.
LONG_SIGNATURES = {
    "small_floats.encode_rows_randomly": "key, step and first column are three numbers",
    "tiles.chains": "three arrays, with records of numbers beside them; no array is counted",
    "gemm._product": "called from Python for small products, which records would slow down",
}
KERNEL_PARAMETERS = 7
HELPER_PARAMETERS = 9
COMPILED = {"called_kernel", "kernel", "parallel_kernel", "inlined", "task_body", "intrinsic"}


def decorators(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {ast.unparse(decorator) for decorator in function.decorator_list}


def test_kernels_take_records_instead_of_long_argument_lists() -> None:
    """What travels together is a `NamedTuple` (`kernels/operands.py`, `kernels/records.py`)."""
    offences = []
    long_names = set()
    for path in COMPILED_FILES:
        public = public_kernels(path)
        for function in functions(path):
            if not decorators(function) & COMPILED:
                continue
            count = len([arg for arg in function.args.args if arg.arg != "typingctx"])
            most = KERNEL_PARAMETERS if function.name in public else HELPER_PARAMETERS
            name = f"{path.stem}.{function.name}"
            if count <= most:
                continue
            long_names.add(name)
            if name not in LONG_SIGNATURES:
                offences.append(
                    f"{relative(path)}:{function.name} takes {count} parameters, at most {most}: "
                    "make records of those that belong together"
                )
    unused = LONG_SIGNATURES.keys() - long_names
    report(offences + [f"{name} is short enough: no exception" for name in sorted(unused)])


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
            for path in COMPILED_FILES
            for function in functions(path)
            if "parallel_kernel" in decorators(function)
            for target in fields_written(function)
        ]
    )


def is_number(node: ast.AST) -> bool:
    operand = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(operand, ast.Constant)


def uncanonical(node: ast.AST) -> str:
    """Why this could give other bits on another machine; "" if it cannot."""
    if isinstance(node, ast.keyword) and node.arg == "fastmath":
        return "fastmath changes bits"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return "@ sums in an order that nobody defines"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return "" if is_number(node.left) and is_number(node.right) else "** calls libm"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = ast.unparse(node.func.value)
        if owner in ("np", "numpy", "math") and node.func.attr in FORBIDDEN_CALLS:
            return f"{owner}.{node.func.attr} differs between machines"
        if owner in ("np.random", "random"):
            return "use Philox"
    return ""


def test_kernels_stay_canonical() -> None:
    """No fastmath, matrix operator, floating power, library transcendental, NumPy randomness; nor
    in the oracle's exact values, which have one hash on every machine.
    """
    report(
        [
            f"{relative(path)}:{getattr(node, 'lineno', 0)}: {reason}"
            for path in [*COMPILED_FILES, *(PACKAGE / "oracle" / "truth").glob("*.py")]
            for node in nodes_of(path)
            if (reason := uncanonical(node))
        ]
    )


def test_every_argsort_is_stable() -> None:
    report(
        [
            f"{relative(path)}:{node.lineno}: argsort without kind='stable'"
            for path in FILES
            for node in nodes_of(path)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("argsort")
            and [ast.unparse(k.value) for k in node.keywords if k.arg == "kind"] != ["'stable'"]
        ]
    )
