"""What decides the machine code of a kernel? Everything hashed here, and nothing else.

The key of a compiled kernel is a SHA-256 over

* the kernel as it is in memory: bytecode with its constants, compile options, default arguments,
  and the values of the cells of kernels that are made by factories;
* everything that it refers to, in turn: functions that are inlined or called, intrinsics, the
  Python code with which an intrinsic writes LLVM IR, named tuples, constants. This is its import
  closure, but by definitions instead of files: an edited function recompiles what uses it, not what
  uses its file;
* the types of the arguments;
* what compiles it and for what (`environment`): versions, Python, CPU, Numba's switches.

It does not contain comments, docstrings, annotations, line numbers, the install path or the time of
files. Since the objects in memory are hashed, not files, an edit while a process runs cannot give
old code a new key. Code of other packages is named, not hashed: their versions stand for it.

Not seen are implementations that reach Numba without being referred to (`@overload`,
`@lower_builtin`); kernels must not use them.
"""

import dis
import functools
import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import llvmlite
import llvmlite.binding
import numba
import numpy as np
from numba.core import types
from numba.core.cpu_options import AbstractOptionValue
from numba.core.descriptors import TargetDescriptor
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target

INLINED = "_inlined"  # the mark of a function that is inlined where it is called (`compile/jit.py`)
PACKAGE = Path(__file__).resolve().parent.parent

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range, slice)
_NAMED = sys.stdlib_module_names | {"numba", "numpy", "llvmlite"}
_CONSTANT_OPCODES = frozenset(dis.hasconst)
# settings that change machine code; NUMBA_CPU_NAME and NUMBA_CPU_FEATURES are in `cpu_kind`
_SWITCHES = (
    "OPT",
    "LOOP_VECTORIZE",
    "SLP_VECTORIZE",
    "BOUNDSCHECK",
    "DEBUGINFO_DEFAULT",
    "DISABLE_INTEL_SVML",
    "LLVM_REFPRUNE_PASS",
)
_CLASS_NOISE = {
    "__module__",
    "__qualname__",
    "__doc__",
    "__dict__",
    "__weakref__",
    "__annotations__",
    "__annotate__",
    "__annotate_func__",
    "__annotations_cache__",
    "__firstlineno__",
    "__static_attributes__",
    "__match_args__",
    "_abc_impl",
}

# (digest of the code, names that the code uses) by function
_codes: "WeakKeyDictionary[FunctionType, tuple[str, tuple[str, ...]]]" = WeakKeyDictionary()


def cpu_kind() -> tuple[str, str, str]:
    """(target triple, CPU name, CPU features) that kernels are compiled for."""
    triple, name, features = cpu_target.target_context.codegen().magic_tuple()[:3]
    return triple, name, features


@functools.cache
def has_fma() -> bool:
    """Does the CPU that kernels are compiled for have a fused multiply-add?

    The compiler is asked for one: where it has none, it calls a function of the C library.
    """
    # a private name, the only way to the target machine that Numba has set up
    machine = getattr(cpu_target.target_context.codegen(), "_tm", None)
    if machine is None:
        return True  # another version of Numba; not known, so not refused
    source = f"""
target triple = "{cpu_kind()[0]}"
declare double @llvm.fma.f64(double, double, double)
define double @probe(double %a, double %b, double %c) {{
  %d = call double @llvm.fma.f64(double %a, double %b, double %c)
  ret double %d
}}"""
    assembly: str = machine.emit_assembly(llvmlite.binding.parse_assembly(source))
    return re.search(r"\b_?fma\b", assembly) is None


@functools.cache
def environment() -> str:
    """Digest of what compiles kernels and for what, the same for all kernels of this process."""
    facts = [
        numba.__version__,
        llvmlite.__version__,
        np.__version__,
        sys.implementation.cache_tag,
        importlib.util.MAGIC_NUMBER.hex(),
        *cpu_kind(),
        *(f"{name}={getattr(numba.config, name, None)}" for name in _SWITCHES),
    ]
    return _sha(repr(facts).encode())[:16]


def source_digest(folder: Path = PACKAGE) -> str:
    """Digest of every Python file below `folder`, byte for byte."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        # names and sizes too: text that moves from one file into another is another source
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def key(*roots: Any) -> str:
    """Digest of some objects (kernels, types of arguments) and of all that they refer to.

    Objects are numbered in the order in which they are met, breadth first, and told by number, so
    that recursion ends and no address enters. Names are walked in alphabetical order.
    """
    digest = hashlib.sha256()
    numbers: dict[int, int] = {}
    queue: list[Any] = []

    def refer(value: Any) -> str:
        if isinstance(value, _ATOMS):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, types.Type):  # equal ones need not be one object
            return "\n".join(_numba_type(value, refer))
        if id(value) not in numbers:
            numbers[id(value)] = len(queue)
            # Met objects are kept in the queue until the end, so that no address is used twice.
            queue.append(value)
        return f"#{numbers[id(value)]}"

    for root in roots:
        digest.update(f"{refer(root)}\n".encode())
    for value in queue:  # grows meanwhile
        for part in _describe(value, refer):
            # with its length: two parts may not read like one
            digest.update(f"{len(part)}:{part}\n".encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _describe(value: Any, refer: Callable[[Any], str]) -> Iterator[str]:
    """The parts of a value: texts, and references to other values."""
    if isinstance(value, Dispatcher):
        yield f"kernel {refer(value.py_func)}"
        yield from _options(value.targetoptions)
        yield from _options(value.locals)
    elif isinstance(value, ModuleType):
        yield f"module {value.__name__}"
    elif isinstance(value, TargetDescriptor):
        yield "target"  # which one is in `environment`
    elif _is_named(value) and hasattr(value, "__name__"):
        yield f"named {_name(value)}"
    elif isinstance(value, FunctionType):
        yield from _function(value, refer)
    elif isinstance(value, type):
        yield from _class(value, refer)
    elif isinstance(value, tuple | list):
        yield f"{refer(type(value))} of {len(value)}"
        yield from (refer(item) for item in value)
    elif isinstance(value, set | frozenset):
        yield f"{type(value).__name__} {sorted(map(repr, value))!r}"  # no order of its own
    elif isinstance(value, Mapping):
        yield f"mapping of {len(value)}"
        for name, item in value.items():
            yield refer(name)
            yield refer(item)
    elif isinstance(value, np.ndarray | np.generic):
        yield f"{type(value).__name__} {value.dtype.str} {value.shape} {_sha(value.tobytes())}"
    elif isinstance(value, staticmethod | classmethod):
        yield f"{type(value).__name__} {refer(value.__func__)}"
    elif isinstance(value, property):
        yield f"property {refer(value.fget)}"
    elif isinstance(value, functools.partial):
        yield f"partial {refer(value.func)} {refer(value.args)} {refer(value.keywords)}"
    elif hasattr(value, "_defn"):
        yield f"intrinsic {refer(value._defn)}"
    elif hasattr(value, "__wrapped__"):
        yield f"wrapped {refer(value.__wrapped__)}"
    elif hasattr(value, "__dict__") and not _is_named(type(value)):
        yield f"instance {refer(type(value))} {refer(vars(value))}"
    else:
        yield _text(value)


def _function(function: FunctionType, refer: Callable[[Any], str]) -> Iterator[str]:
    """What a function does, and all that its names mean: globals, names in modules, cells."""
    digest, names = _code_of(function)
    yield f"function {_name(function)} {digest}"
    yield f"{refer(function.__defaults__)} {refer(function.__kwdefaults__)}"
    yield refer(getattr(function, INLINED, None))
    spaces = [function.__globals__]
    for space in spaces:  # of the function, then of the modules of ours that it names
        for name in names:
            # builtins are Python's, whose version is in `environment`; dunders are the module's own
            # facts
            if name not in space or name.startswith("__"):
                continue
            value = space[name]
            yield f"{name} {refer(value)}"
            # `module.name` in bytecode is two names: those of our modules are looked up there as
            # well
            ours = isinstance(value, ModuleType) and not _is_named(value)
            if ours and not any(vars(value) is known for known in spaces):
                spaces.append(vars(value))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield f"{name} {refer(cell.cell_contents)}"
        except ValueError:
            yield f"{name} was never assigned"


def _class(cls: type, refer: Callable[[Any], str]) -> Iterator[str]:
    """A class of ours: its fields if it is a named tuple, else what it defines and inherits."""
    yield f"class {_name(cls)}"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        yield f"{cls._fields!r} {refer(cls._field_defaults)}"  # type: ignore[attr-defined]
        return
    yield from (refer(base) for base in cls.__bases__)
    for name, value in sorted(vars(cls).items()):
        if name not in _CLASS_NOISE:
            yield f"{name} {refer(value)}"


def _numba_type(kind: types.Type, refer: Callable[[Any], str]) -> Iterator[str]:
    """A type of an argument, and the named tuple that it stands for, whose fields have an order."""
    yield f"{_name(type(kind))} {kind}"
    if isinstance(kind, types.Dispatcher):
        yield refer(kind.dispatcher)
    yield refer(getattr(kind, "instance_class", None))
    yield from (refer(item) for item in getattr(kind, "types", ()))


def _options(options: dict[str, Any]) -> Iterator[str]:
    for name, value in sorted(options.items()):
        yield f"{name} {value.encode() if isinstance(value, AbstractOptionValue) else value!r}"


def _code_of(function: FunctionType) -> tuple[str, tuple[str, ...]]:
    """(digest of a function's bytecode, names that it and the functions within it use)."""
    if function not in _codes:
        names: set[str] = set()
        digest = _code(function.__code__, names)
        _codes[function] = digest, tuple(sorted(names))
    return _codes[function]


def _code(code: CodeType, names: set[str]) -> str:
    """Digest of bytecode; `names` gets those that it uses.

    An instruction that loads a constant is told with the constant, not with its number: no
    instruction loads a docstring, so it is not in the digest and shifts nothing.
    """
    names.update(code.co_names)
    facts = (
        code.co_name,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        # higher bits are `from __future__` imports, which only change how the source is read
        code.co_flags & 0xFF,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_exceptiontable,
    )
    digest = hashlib.sha256(repr(facts).encode())
    loaded: dict[int, bytes] = {}
    number = 0
    bytecode = code.co_code
    for opcode, operand in zip(bytecode[::2], bytecode[1::2]):
        number = number << 8 | operand
        if opcode in _CONSTANT_OPCODES:
            if number not in loaded:
                loaded[number] = _constant(code.co_consts[number], names).encode()
            digest.update(loaded[number])
        elif opcode != dis.EXTENDED_ARG:
            digest.update(b"%d %d\n" % (opcode, number))
        if opcode != dis.EXTENDED_ARG:
            number = 0
    return digest.hexdigest()


def _constant(value: Any, names: set[str]) -> str:
    """A text of a constant of bytecode."""
    if isinstance(value, CodeType):
        return f"code {_code(value, names)}\n"
    if isinstance(value, tuple):
        return f"tuple of {len(value)}\n" + "".join(_constant(item, names) for item in value)
    if isinstance(value, frozenset):
        # sets have another order in each process, since hashes of texts are salted
        return f"set of {len(value)}\n" + "".join(sorted(_constant(item, names) for item in value))
    return f"{type(value).__name__} {value!r}\n"


# What compiles and keeps kernels; the options with which it compiles are in every key (`_options`,
# INLINED). Sets that it holds have another order in each process.
_MACHINERY = tuple(f"neocpu.kernels.compile.{name}" for name in ("cache", "jit", "key", "trust"))


def _is_named(value: Any) -> bool:
    """Is it of a package whose version stands for it, or no part of any kernel's code?"""
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    if not isinstance(module, str):
        return False
    return module.partition(".")[0] in _NAMED or module in _MACHINERY


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    return f"{getattr(value, '__module__', '')}.{name}"


def _text(value: Any) -> str:
    """A value of another package's type by its text; where that is an address, any edit of a
    kernel counts.
    """
    text = f"{_name(type(value))} {value!r}"
    return f"{_name(type(value))} {_all_sources()}" if " at 0x" in text else text


@functools.cache
def _all_sources() -> str:
    return source_digest()


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
