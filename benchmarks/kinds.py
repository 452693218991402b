"""Is a table of a kind as fast as full tables of the same traffic? From codes to updated rows.

The tables of a kind are timed against full tables of the shapes of their physical ones, each with
codes of its own: the same numbers of looked-up rows and bytes, in the same memory. What is timed
is the whole path of one rank: codes to rows (hash, row maps), lookup and composition of the pooled
vectors, and back: adjoint of the composition, merge and update of rows. MLPs are left out.

A ratio is the kind's time by the full tables' time, taken inside a round; the aim is 1.2.

    python -m benchmarks.kinds            # dims 16 and 64
    python -m benchmarks.kinds --quick
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.harness import Contender, arguments, machine, measure, ratio
from benchmarks.ours import threads
from neocpu.ingest.code_map import CodeMap
from neocpu.ingest.dataset_layout import BagColumn
from neocpu.parallel.embeddings.sharded import ShardedEmbedding
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import SingleComm
from neocpu.tables.specs.specs import TableSpec, bags
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.model.composition import Compositions

AIM = 1.2
TABLES = 26
ROWS = 400_000
SAMPLES = 2048
BATCHES = 4  # that take turns
KINDS = {
    "hash": "kind = 'hash', compression = 4.0",
    "hash, signed": "kind = 'hash', compression = 4.0, signed = true",
    "two hashes": "kind = 'hash', compression = 4.0, hashes = 2",
    "qr mult": "kind = 'qr', collisions = 4",
    "qr add": "kind = 'qr', collisions = 4, operation = 'add'",
    "qr concat": "kind = 'qr', collisions = 4, operation = 'concat'",
    "qr mult, three digits": "kind = 'qr', partitions = 3",
    "unified": "kind = 'unified', compression = 4.0, chunks = 2",
}
PHASES = ("codes to rows", "forward", "backward", "all")


def config_of(dim: int, tables: int, rows: int, keys: str) -> Config:
    """A config of tables of one kind."""
    text = f"[model]\nembedding_dim = {dim}\nbottom = [{dim}]\n[tables]\n"
    text += f"default = {{ rows = {rows}, {keys} }}\n"
    return configs.loads(text + "".join(f"C{number} = {{}}\n" for number in range(tables)))


def full_tables(config: Config) -> tuple[TableSpec, ...]:
    """Full tables of the same shapes, each key of which has a feature of its own."""
    names = iter([f"f{number}" for number, _ in enumerate(bags(config.tables))])
    return tuple(
        replace(table, features=tuple(next(names) for _ in table.features), maps=(), start=None)
        for table in config.tables
    )


class Path:
    """One rank's tables and their inputs.

    tables : physical ones. composition : of their vectors, or none.
    """

    def __init__(self, config: Config, tables: tuple[TableSpec, ...], samples: int) -> None:
        layout = config.layout(1).composition
        composed = tables == config.tables and layout is not None
        self.samples = samples
        self.composition = Compositions(0, layout, {}) if composed and layout else None
        self._code_map = CodeMap(tables)
        plan = place(tables, ["table_wise"] * len(tables), 1)
        optimizer = config.optimizer.sparse
        self._embedding = ShardedEmbedding(ShardingEnv(plan, SingleComm(), optimizer, 1, 16))
        self._columns = [self._codes(number) for number in range(BATCHES)]
        self._batches = [self.rows(number) for number in range(BATCHES)]
        width = sum(tables[key.table].dim for key in bags(tables))
        self._E = np.empty((samples, width), np.float32)
        outer = width if self.composition is None else self.composition.layout.columns
        random = np.random.default_rng(9)
        self._gradient = random.standard_normal((samples, outer), np.float32)
        self._step = 0

    def _codes(self, number: int) -> dict[str, BagColumn]:
        random = np.random.default_rng(number)
        features = dict.fromkeys(key.feature for key in self._code_map.bags)
        return {
            name: BagColumn(random.integers(0, 2**32, self.samples, np.uint32)) for name in features
        }

    def rows(self, number: int) -> Any:
        """The batch of these codes."""
        return self._code_map.kjt(self._columns[number % BATCHES], self.samples)

    def forward(self, number: int) -> Any:
        """Vectors of a batch of rows."""
        self._embedding.forward(self._batches[number % BATCHES], self.samples).finish(self._E)
        return self._E if self.composition is None else self.composition.forward(self._E)

    def backward(self, number: int) -> None:
        """Update the rows that `forward` looked up last."""
        self._step += 1
        dE = self._gradient
        if self.composition is not None:
            dE = self.composition.backward(dE)
        self._embedding.backward(dE, self._step)

    def all(self, number: int) -> None:
        """All of it, from codes on."""
        self._batches[number % BATCHES] = self.rows(number)
        self.forward(number)
        self.backward(number)


def contenders_of(side: str, path: Path) -> Iterator[Contender]:
    """The phases of a path."""
    runs: dict[str, tuple[Callable[[int], Any], Callable[[int], Any] | None]] = {
        "codes to rows": (path.rows, None),
        "forward": (path.forward, None),
        "backward": (path.backward, path.forward),
        "all": (path.all, None),
    }
    for phase, (run, prepare) in runs.items():
        yield Contender(f"{phase}, {side}", side, run, 1, threads, prepare)


def case(name: str, dim: int, options: argparse.Namespace) -> dict[str, Any]:
    """Times of a kind, and of full tables, in ms; their ratios."""
    tables, rows, samples = (3, 1000, 64) if options.quick else (TABLES, ROWS, SAMPLES)
    config = config_of(dim, tables, rows, KINDS[name])
    paths = {
        "kind": Path(config, config.tables, samples),
        "full": Path(config, full_tables(config), samples),
    }
    by_side = {side: list(contenders_of(side, path)) for side, path in paths.items()}
    pairs = [pair for both in zip(*by_side.values()) for pair in both]
    measure(pairs, options.rounds, pause=0.0 if options.quick else 0.02)
    lookups = samples * len(bags(config.tables))
    record: dict[str, Any] = {"kind": name, "dim": dim, "lookups": lookups}
    for phase, kind, full in zip(PHASES, by_side["kind"], by_side["full"]):
        record[phase] = {
            "kind_ms": 1e3 * kind.median,
            "full_ms": 1e3 * full.median,
            "ratio": ratio(kind, full),
        }
    return record


def line(record: dict[str, Any]) -> str:
    """A case as a line of the table."""
    cells = [record["kind"], f"{record['dim']}", f"{record['lookups']:,}"]
    for phase in PHASES:
        times = record[phase]
        cells.append(f"{times['full_ms']:.2f} → {times['kind_ms']:.2f}")
        cells.append(f"{times['ratio']['median']:.2f}")
    cells.append("reached" if record["all"]["ratio"]["median"] <= AIM else "MISSED")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print a line for each kind and dim."""
    options = arguments(__doc__, lambda parser: parser.add_argument("--kind", choices=KINDS))
    facts = machine()
    print(f"{facts['processor']}; one thread; load {facts['load_before']:.1f}\n")
    heads = [cell for phase in PHASES for cell in (f"{phase}: full → kind, ms", "ratio")]
    print("| kind | dim | lookups | " + " | ".join(heads) + f" | aim {AIM} |")
    print("|" + "---|" * (4 + len(heads)))
    records = []
    for dim in (16,) if options.quick else (16, 64):
        for name in [options.kind] if options.kind else KINDS:
            records.append(case(name, dim, options))
            print(line(records[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "cases": records}, indent=1))


if __name__ == "__main__":
    main()
