"""What is right? A solution of every unit, also with a slip made in it; and what it is begun with.

The starter of a unit is its solution without the bodies of its functions, so both have one
signature and one docstring.
"""

import ast
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from neocpu.oracle.course.unit import Slip

FOLDER = Path(__file__).resolve().parent
HEAD = '''"""Unit {number}: {title}.

Read docs/course/{number:02}_{name}.md and write the function{plural}.
Then: neocpu course check {number}; for a hint: neocpu course hint {number}
"""
'''


def source(name: str) -> str:
    """The text of the solution of that name."""
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")


def starter(name: str, number: int, title: str) -> str:
    """The solution's imports of NumPy, constants, and functions whose bodies fail."""
    text = source(name)
    lines = text.splitlines()
    tree = ast.parse(text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    public = [node for node in functions if not node.name.startswith("_")]
    plural = "s" if len(public) > 1 else ""
    blocks = [HEAD.format(number=number, title=title, name=name, plural=plural)]
    for node in tree.body:
        numpy = isinstance(node, ast.Import) and node.names[0].name == "numpy"
        typing = isinstance(node, ast.ImportFrom) and node.module == "typing"
        if numpy or typing or isinstance(node, ast.Assign):
            blocks.append(f"{ast.unparse(node)}\n")
        elif node in public and isinstance(node, ast.FunctionDef):
            head = lines[node.lineno - 1 : node.body[0].end_lineno]
            body = f'    raise NotImplementedError("{node.name} is still to be written")\n'
            blocks.append("\n" + "\n".join(head) + "\n" + body)
    return "\n".join(blocks)


@cache
def _owner(function: str) -> str:
    """The name of the solution that defines a function."""
    for path in sorted(FOLDER.glob("*.py")):
        if f"\ndef {function}(" in path.read_text(encoding="utf-8") and path.stem != "__init__":
            return path.stem
    raise KeyError(function)


def exercise_function(function: str, slips: Sequence[Slip] = ()) -> Callable[..., object] | None:
    """A function of the solutions, with slips made in it; None where their edits do not fit."""
    text = source(_owner(function))
    for slip in slips:
        for old, new in slip.edits:
            if old not in text:
                return None
            text = text.replace(old, new)
    names: dict[str, object] = {"__name__": f"solution of {function}"}
    try:
        exec(compile(text, f"<{function}>", "exec"), names)
    except SyntaxError:  # two edits that leave a block without a statement
        return None
    answer = names[function]
    return answer if callable(answer) else None
