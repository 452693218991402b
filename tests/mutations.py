"""Which small bugs could a file have? Edits of its source, one each, found in its syntax tree.

Comparisons, arithmetic, constants, and/or/not, dropped statements, returned values, bounds of
slices and ranges, and functions that are taken for one another (min and max). What is only said or
only typed has none: texts, messages of errors and of logs, annotations, decorators, `__repr__`. Nor
has that on which no answer depends: hints to the processor (functions named `fetch` and `prefetch`,
their calls), how long is waited, how much is done at a time, and what only guards against a bug
(`strict`).
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.Pow: ast.Mult,
}
PAIRS = ("min max", "minimum maximum", "argmin argmax", "floor ceil", "any all", "left right")
SWAPS = {name: other for pair in map(str.split, PAIRS) for name, other in (pair, pair[::-1])}
SILENT_FIELDS = {"decorator_list", "annotation", "returns"}
HINT = re.compile(r"(?:pre)?fetch(?:_|$)")
SILENT_CALLS = {"sleep"}
CLOCKS = {"monotonic", "perf_counter", "process_time", "time"}
SILENT_WORDS = {"timeout", "strict", "stacklevel", "daemon"}
LOG = "LOG"  # name of a module's logger
# constants of a module, by name or by the comment behind them
PACE_NAME = re.compile(r"(?:AHEAD|APART|CHUNK|OFTEN|PIECE|\w+_SLEEP)$")
PACE_COMMENT = re.compile(r"#\s*seconds\b|#.*\bat (?:a time|once)\b")
SILENT_NODES = (ast.Raise, ast.JoinedStr)  # Python 3.11 places what is in an f-string wrongly

Edit = tuple[ast.AST, str]


@dataclass(frozen=True)
class Mutant:
    """One edit of a file: the bytes from `start` to `end`, which begin in `line`, become `new`."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def applied(self, source: bytes) -> bytes:
        """The source with the bug in it."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def is_in(self, source: bytes) -> bool:
        """Whether a source has what the bug changes, where it was."""
        return " ".join(source[self.start : self.end].decode(errors="replace").split()) == self.old

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.old}  ->  {self.new}"


def mutants_of(file: str, source: bytes) -> Iterator[Mutant]:
    """All edits of a file, in the order of its tree."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    module = ast.parse(source)
    lines = source.decode().splitlines()
    module.body = [node for node in module.body if not _is_pace(node, lines[node.lineno - 1])]
    for node, new in _edits(module, None):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        old = " ".join(source[start:end].decode().split())
        yield Mutant(file, node.lineno, start, end, old, new)


def differs(mutant: Mutant, source: bytes) -> bool:
    """Whether the bug is in the bytecode, and Python compiles it."""
    try:
        changed = compile(mutant.applied(source), mutant.file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return facts(changed) != facts(compile(source, mutant.file, "exec", dont_inherit=True))


def facts(code: CodeType) -> list[Any]:
    """Bytecode, names and constants, without lines."""
    consts = [facts(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code, code.co_names, code.co_varnames, consts]


def _edits(node: ast.AST, function: ast.FunctionDef | None) -> Iterator[Edit]:
    """Edits of a node and of all below it."""
    if isinstance(node, SILENT_NODES) or _is_hint(node) or _is_silent(node):
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if node.name == "__repr__":
            return
        function = node
    for kind in (_comparisons, _arithmetic, _constants, _booleans, _slices, _calls):
        yield from kind(node)
    if function is not None:
        yield from _statements(node, function)
        yield from _returns(node, function)
    for name, value in ast.iter_fields(node):
        if name in SILENT_FIELDS:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_unknown_length(node, child):
                yield from _edits(child, function)


def _is_hint(node: ast.AST) -> bool:
    """Whether a node is a function that prefetches, or the call of one."""
    if isinstance(node, ast.FunctionDef):
        return bool(HINT.match(node.name))
    called = node.value if isinstance(node, ast.Expr) else node
    return (
        isinstance(called, ast.Call)
        and isinstance(called.func, ast.Name)
        and bool(HINT.match(called.func.id))
    )


def _is_silent(node: ast.AST) -> bool:
    """Whether a node is the statement of a call that waits or logs, or a silent keyword."""
    if isinstance(node, ast.keyword):
        return node.arg in SILENT_WORDS
    called = node.value if isinstance(node, ast.Expr) else node
    if not isinstance(called, ast.Call) or not isinstance(called.func, ast.Attribute):
        return False
    owner = called.func.value
    logs = isinstance(owner, ast.Name) and owner.id == LOG
    return logs or called.func.attr in SILENT_CALLS


def _is_pace(node: ast.stmt, line: str) -> bool:
    """Whether a statement of a module says how long is waited, or how much is done at a time."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return False
    if isinstance(node.value, ast.Dict | ast.List | ast.Tuple | ast.Call):
        return False
    return bool(PACE_NAME.match(node.targets[0].id) or PACE_COMMENT.search(line))


def _is_unknown_length(call: ast.AST, argument: ast.AST) -> bool:
    """Whether an argument is the -1 of a reshape, for which NumPy takes any negative number."""
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "reshape"
        and ast.unparse(argument) == "-1"
    )


def _text(node: ast.AST, **changes: Any) -> str:
    """Source of a node with other fields."""
    return ast.unparse(type(node)(**{**dict(ast.iter_fields(node)), **changes}))


def _comparisons(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Compare) and not _asks_clock(node):
        for place, operator in enumerate(node.ops):
            ops = [*node.ops[:place], COMPARISONS[type(operator)](), *node.ops[place + 1 :]]
            yield node, _text(node, ops=ops)


def _asks_clock(node: ast.Compare) -> bool:
    """Whether a moment is compared, which never is another one to the last bit."""
    called = (part.func for part in ast.walk(node) if isinstance(part, ast.Call))
    names = {getattr(function, "attr", getattr(function, "id", "")) for function in called}
    return not names.isdisjoint(CLOCKS)


def _arithmetic(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.AugAssign | ast.BinOp) and type(node.op) in ARITHMETIC:
        if isinstance(node, ast.BinOp):
            if any(_is_text(side) for side in (node.left, node.right)):
                return
            if isinstance(node.op, ast.FloorDiv):
                down = ast.BinOp(ast.UnaryOp(ast.USub(), node.left), node.op, node.right)
                yield node, ast.unparse(ast.UnaryOp(ast.USub(), down))
                return
        yield node, _text(node, op=ARITHMETIC[type(node.op)]())


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _constants(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        value = node.value
        yield node, repr(not value if isinstance(value, bool) else value + 1)


def _booleans(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BoolOp):
        yield node, _text(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, f"({ast.unparse(node.operand)})"


def _slices(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Slice) and (node.lower or node.upper or node.step):
        lower = ast.Constant(1)
        if node.lower:
            lower = ast.BinOp(node.lower, ast.Add(), ast.Constant(1))
        yield node, _text(node, lower=lower)
        upper = ast.Constant(-1)
        if node.upper:
            upper = ast.BinOp(node.upper, ast.Sub(), ast.Constant(1))
        yield node, _text(node, upper=upper)


def _calls(node: ast.AST) -> Iterator[Edit]:
    """Functions taken for one another, and the ends of ranges."""
    if not isinstance(node, ast.Call):
        return
    called = node.func
    if isinstance(called, ast.Name) and called.id in SWAPS:
        yield called, SWAPS[called.id]
    if isinstance(called, ast.Attribute) and called.attr in SWAPS:
        yield called, _text(called, attr=SWAPS[called.attr])
    if isinstance(called, ast.Name) and called.id in ("range", "prange") and node.args:
        first, *rest = node.args if len(node.args) > 1 else [ast.Constant(0), *node.args]
        later = ast.BinOp(first, ast.Add(), ast.Constant(1))
        yield node, _text(node, args=[later, *rest])
        earlier = ast.BinOp(rest[0], ast.Sub(), ast.Constant(1))
        yield node, _text(node, args=[first, earlier, *rest[1:]])


def _statements(node: ast.AST, function: ast.FunctionDef) -> Iterator[Edit]:
    """Dropped ones; not the first assignment of a name, nor that of an attribute in `__init__`,
    without which nothing runs, or which holds a place until another one.
    """
    if isinstance(node, ast.AugAssign):
        yield node, "pass"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "pass"
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        again = isinstance(target, ast.Name) and _bound_before(target, function)
        later = isinstance(target, ast.Attribute) and function.name != "__init__"
        if again or later or isinstance(target, ast.Subscript):
            yield node, "pass"


def _bound_before(target: ast.Name, function: ast.FunctionDef) -> bool:
    """Whether a name has a value above the line that assigns it."""
    return any(
        (isinstance(node, ast.arg) and node.arg == target.id)
        or (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Store)
            and node.id == target.id
            and node.lineno < target.lineno
        )
        for node in ast.walk(function)
    )


def _returns(node: ast.AST, function: ast.FunctionDef) -> Iterator[Edit]:
    """None, or an argument, instead of what is returned."""
    if not isinstance(node, ast.Return) or node.value is None:
        return
    # who asks whether something is so, or there, takes None for False and for what is empty
    if ast.unparse(node.value) not in ("None", "False", "''", "[]", "{}", "()"):
        yield node, "return None"
    arguments = [arg.arg for arg in function.args.args if arg.arg not in ("self", "cls")]
    if arguments and ast.unparse(node.value) != arguments[0]:
        yield node, f"return {arguments[0]}"
