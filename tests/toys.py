"""What would a stranger write to add something by the recipes of docs/design.md §3? A toy of each
kind, as the lines that go into each file.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Lines:
    """Lines of one file: before the first line that begins with `before`, or at its end. A file
    that is not there begins with them.
    """

    file: str
    text: str
    before: str = ""

    def write(self, root: Path) -> None:
        """Write them below a folder that has a copy of the package."""
        path = root / self.file
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        place = len(lines)
        if self.before:
            places = [i for i, line in enumerate(lines) if line.startswith(self.before)]
            assert places, f"{self.file} has no line that begins with {self.before!r}"
            place = places[0]
        lines.insert(place, self.text)
        path.write_text("".join(lines))


@dataclass(frozen=True)
class Neighbour:
    """A copy of a function of the same file at its end, under another name, with one change."""

    file: str
    function: str
    name: str
    old: str
    new: str

    def write(self, root: Path) -> None:
        """Write it below a folder that has a copy of the package."""
        path = root / self.file
        source = path.read_text()
        node = next(
            node
            for node in ast.parse(source).body
            if isinstance(node, ast.FunctionDef) and node.name == self.function
        )
        first = min([node.lineno, *(line.lineno for line in node.decorator_list)]) - 1
        text = "\n".join(source.splitlines()[first : node.end_lineno])
        assert text.count(self.old) == 1, f"{self.file}: {self.function} has no {self.old!r}"
        copy = text.replace(f"def {self.function}(", f"def {self.name}(")
        path.write_text(f"{source}\n\n{copy.replace(self.old, self.new)}\n")


@dataclass(frozen=True)
class Toy:
    """Something new. `recipe`: its row in docs/design.md §3; `name`: as a config has it."""

    recipe: str
    name: str
    edits: tuple[Lines | Neighbour, ...]

    @property
    def files(self) -> set[str]:
        """Files that are written."""
        return {edit.file for edit in self.edits}

    def write(self, root: Path) -> None:
        """Follow the recipe in a copy of the package."""
        for edit in self.edits:
            edit.write(root)


def _both(write: Callable[[str], Lines | Neighbour]) -> tuple[Lines | Neighbour, ...]:
    """The same edit of a kernel and of its twin."""
    return write("kernels"), write("kernels/twins")


FORMAT = Toy(
    "row format",
    "fp8_e3m4",
    (
        Lines(
            "neocpu/core/formats.py",
            '    RowFormat("fp8_e3m4", "|u1", 8, SmallFloat(8, 4, 3), trains=True),\n',
            before='    RowFormat("int8"',
        ),
    ),
)
OPTIMIZER = Toy(
    "optimizer",
    "double_sgd",
    (
        Neighbour(
            "neocpu/kernels/rows/rules.py", "exact_sgd", "double_sgd", "* g[c]", "* (g[c] + g[c])"
        ),
        Neighbour(
            "neocpu/kernels/twins/rows/rules.py", "exact_sgd", "double_sgd", "* g,", "* (g + g),"
        ),
        Lines(
            "neocpu/core/rules.py",
            '        Rule("double_sgd", source="a toy"),\n',
            before='        Rule("none"',
        ),
        Lines(
            "neocpu/oracle/truth/rules.py",
            '''def double_sgd(rows: RowUpdate, h: Hyper) -> Bounded:
    """w -= lr * (g + g)"""
    g = _regularised(rows, h)
    return _down(rows, h["learning_rate"] * (g + g), h.keep())


''',
            before="def momentum_sgd(",
        ),
        Lines(
            "neocpu/oracle/truth/rules.py",
            "        double_sgd,\n",
            before="        momentum_sgd,",
        ),
        Lines(
            "docs/arithmetic.md",
            "| double_sgd | | of `w`, `fl(lr·fl(g + g))` is taken |\n",
            before="| momentum_sgd |",
        ),
        Lines(
            "tests/test_rule_formulas.py",
            """    def double_sgd(self, g, t):
        self.w = self.shrink() * self.w - self.o.learning_rate * 2 * g

""",
            before="    def momentum_sgd(",
        ),
    ),
)
SCHEME = Toy(
    "sharding scheme",
    "row_wise_reversed",
    (
        Lines(
            "neocpu/parallel/sharding/schemes.py",
            '''

@sharding("row_wise_reversed", homes="all")
def row_wise_reversed(
    table: int, rows: int, dim: int, layout: RankLayout, home: int
) -> list[Shard]:
    """Rows cut over all ranks, the first rows on the last rank."""
    return _cut_rows(table, rows, (0, dim), range(layout.ranks)[::-1])
''',
        ),
    ),
)
POLICY = Toy(
    "cache policy",
    "mru",
    (
        *_both(
            lambda room: Neighbour(
                f"neocpu/{room}/tiers/policies.py", "lru_touch", "mru_touch", "= now", "= -now"
            )
        ),
        *_both(
            lambda room: Neighbour(
                f"neocpu/{room}/tiers/policies.py",
                "lru_victim",
                "mru_victim",
                "The least",
                "The most",
            )
        ),
        Lines(
            "tests/cache_model.py",
            """    def mru(self, s, number, use):
        return max(self.free(s), key=lambda way: (self.ways[s][way].used, -way), default=None)

""",
            before="    def lru(",
        ),
        Lines(
            "neocpu/core/policies.py",
            '        Policy("mru"),\n',
            before="        Policy(",
        ),
    ),
)
COMMAND = Toy(
    "command",
    "greet",
    (
        Lines(
            "neocpu/cli/greet.py",
            '''"""`neocpu greet`: say hello."""

import click


@click.command()
@click.argument("name")
def greet(name: str) -> None:
    """Say hello to NAME."""
    click.echo(f"hello {name}")
''',
        ),
        Lines(
            "neocpu/cli/__init__.py",
            '        "greet": "Say hello to NAME.",\n',
            before='        "doctor"',
        ),
    ),
)
KIND = Toy(
    "table kind",
    "neighbours",
    (
        Lines(
            "neocpu/tables/kinds/neighbours.py",
            '''"""Two neighbouring rows share one: row i is row i // 2 of half as many."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neocpu.tables.specs.compositions import (
    Composition,
    Expanded,
    LogicalTable,
    terms_of,
)
from neocpu.tables.specs.specs import RowMap


@dataclass(frozen=True)
class NeighboursKeys:
    """Keys of a table of kind "neighbours". share : rows that share one."""

    share: int = 2


def expand(tables: Sequence[LogicalTable]) -> list[Expanded]:
    """The smaller table of each."""
    return [_expand(table) for table in tables]


def _expand(table: LogicalTable) -> Expanded:
    spec = table.spec
    rows = -(-spec.rows // table.keys.share)
    row_map = RowMap("digit", spec.rows, divisor=table.keys.share, modulus=rows)
    part = replace(
        spec,
        name=f"{spec.name}.shared",
        rows=rows,
        maps=(row_map,) * len(spec.features),
        start=spec.initial,
    )
    terms = terms_of([part], len(spec.features))
    return Expanded((part,), Composition(spec.name, terms))
''',
        ),
        Lines(
            "neocpu/tables/kinds/__init__.py",
            '    "neighbours": ("neocpu.tables.kinds.neighbours", "NeighboursKeys"),\n',
            before='    "hash": (',
        ),
    ),
)
TOYS = (FORMAT, OPTIMIZER, SCHEME, POLICY, KIND, COMMAND)
