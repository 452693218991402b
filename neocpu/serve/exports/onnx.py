"""How does a model become an ONNX file? The whole of it, or its dense part, in opset 18.

whole   inputs: `dense` f32[batch, n], numbers of the log, NaN where they are missing; for each
        feature codes i64[batch] (the bits of 64-bit codes), or rows; of lists codes [batch, L]
        with NAME.count i64[batch], and NAME.weights f32[batch, L] where the table is weighted.
        Hash, vocabulary, transforms, lookups and pooling are in the graph
dense   inputs: `dense` f32[batch, n], transformed, and `pooled` f32[batch, sum of dims], vectors of
        the features side by side: tables live elsewhere

The output is `prediction` f32[batch]. Rows that were never trained are in the file, which holds
whole tables; with `unlearnt="zero"` it holds the trained ones and an index, and others are zeros.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.core.types import Ints
from neocpu.serve.exports.arrays import Entry, check_disk
from neocpu.serve.exports.card import DataFacts, card_of
from neocpu.serve.exports.onnx_graph import Graph, Proto
from neocpu.serve.exports.onnx_interactions import OnnxInteractions
from neocpu.serve.exports.onnx_kinds import WORD, OnnxKinds, mixed_rows
from neocpu.serve.exports.raw_values import Card, weighted_features
from neocpu.serve.exports.scorer import STORED, UNLEARNT, StoredTable, stored_tables
from neocpu.train.before.preflight import human
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.checkpoint.tools import refuse_needed_files, written
from neocpu.train.config.config import Config

PARTS = ("auto", "whole", "dense")
INPUTS = ("codes", "rows")
LARGEST = (2 << 30) - (1 << 20)  # bytes: protobuf's limit of a file
AUTO_WHOLE = 512 << 20  # bytes of tables that `auto` still writes whole
ENTRY = 16  # bytes of a code or row, and its number, in an index
ONNX_TYPES = {"fp32": "FLOAT", "fp16": "FLOAT16", "bf16": "BFLOAT16"}


def export_onnx(
    file: CheckpointFile,
    target: Path,
    facts: DataFacts,
    *,
    part: str = "auto",
    inputs: str = "codes",
    unlearnt: str = "initial",
) -> tuple[str, int]:
    """Write a model, or its dense part, as ONNX; returns which, and the bytes of its tables.

    part : one of PARTS; auto: the whole model where its tables are small.
    inputs : of the whole model, one of INPUTS.
    unlearnt : what rows that were never trained give, "initial" or "zero".

    Raises ConfigError for a whole model of more than 2 GB, CheckpointError where the checkpoint
    cannot be read, or the target not be written.
    """
    for value, choices in ((part, PARTS), (inputs, INPUTS), (unlearnt, UNLEARNT)):
        if value not in choices:
            raise ConfigError(f"{value!r} is not one of {', '.join(choices)}")
    refuse_needed_files(file, target)
    tables = [_onnx_table(table) for table in stored_tables(file, file.config(), unlearnt)]
    size = sum(_bytes(table) for table in tables)
    # A LabelEncoder holds each code and its row as attributes, which count toward protobuf's limit.
    size += sum(ENTRY * codes.size for codes in facts.vocabularies.values())
    if part == "auto":
        part = "whole" if size <= AUTO_WHOLE else "dense"
    if part == "whole" and size > LARGEST:
        raise ConfigError(
            f"{target}: its tables take {human(size)}, and an ONNX file holds 2 GiB; --part dense "
            "leaves tables to a server of rows"
            + ("" if unlearnt == "zero" else ", --unlearnt zero leaves out rows never trained")
            + ", and a .safetensors file has no limit"
        )
    check_disk(target, size if part == "whole" else 0)
    builder = _Builder(file, facts, inputs)
    model = builder.whole(tables) if part == "whole" else builder.dense_part()
    with written(target) as partial:
        builder.graph.onnx.save(model, str(partial))
    return part, size


def _onnx_table(table: StoredTable) -> StoredTable:
    """The table in a format of ONNX, all rows where they may not be zero."""
    narrow = table.form in ONNX_TYPES
    return replace(table, narrow=narrow, all_rows=table.unlearnt == "initial")


def _bytes(table: StoredTable) -> int:
    """Bytes that a table takes in the file."""
    rows = table.spec.rows if table.whole else table.learnt + 1
    return rows * table.row_bytes + (0 if table.whole else ENTRY * table.learnt)


def _array(entry: Entry) -> Proto:
    """An array in one piece."""
    parts = [np.empty((0, *entry.shape[1:]), entry.dtype), *entry.parts()]
    return np.concatenate(parts).reshape(entry.shape)


class _Builder:
    """The graph of one checkpoint's model."""

    def __init__(self, file: CheckpointFile, facts: DataFacts, inputs: str) -> None:
        self.graph = Graph()
        self._file = file
        self._facts = facts
        self._inputs = inputs
        self._config: Config = file.config()
        self.card = card_of(file, facts)
        self._layout = self._config.layout(len(facts.dense))
        self._parts = OnnxKinds(self.graph, self._layout.composition)

    # ---- the two models ----

    def whole(self, tables: list[StoredTable]) -> Proto:
        """From codes or rows and raw numbers to predictions."""
        graph = self.graph
        weights = [self._table(table) for table in tables]
        dense = graph.input("dense", np.float32, ["batch", len(self._facts.dense)])
        bags: dict[str, tuple[str, str, str]] = {}
        pooled = []
        for feature in self.card["features"]:
            table = tables[feature["table"]]
            name = feature["name"] if self._inputs == "codes" else feature["key"]
            # features of several tables share their inputs
            if name not in bags:
                weighted = feature["name"] in weighted_features(self.card)
                bags[name] = self._bag(name, feature["list"], feature["list"] and weighted)
            values, count, factors = bags[name]
            factors = factors if table.spec.weighted else ""
            rows = values
            if self._inputs == "codes":
                rows = self._rows(values, feature, table)
                if row_map := feature.get("map"):
                    # before `rows` changes: weights depend on rows of the logical table
                    factors = self._parts.weights(rows, factors, row_map)
                    rows = self._parts.rows(rows, row_map)
            pooled.append(self._pooled(weights[feature["table"]], rows, count, factors, table))
        return self._model(self._transformed(dense), pooled)

    def dense_part(self) -> Proto:
        """From pooled vectors and transformed numbers to predictions."""
        graph = self.graph
        dense = graph.input("dense", np.float32, ["batch", len(self._facts.dense)])
        tables = self.card["tables"]
        widths = [tables[feature["table"]]["dim"] for feature in self.card["features"]]
        pooled = graph.input("pooled", np.float32, ["batch", sum(widths)])
        return self._model(dense, graph.split(pooled, widths))

    def _model(self, dense: str, pooled: list[str]) -> Proto:
        """What follows pooling, and the file's metadata."""
        graph = self.graph
        layout = self._layout
        bottom = self._mlp("bottom", dense)
        pooled = self._parts.composed(pooled, self._parameter)
        interactions = OnnxInteractions(graph, layout, self._parameter)
        vectors = [vector for key, vector in enumerate(pooled) if key not in layout.wide]
        widths = (layout.first_column, *layout.vector_widths)
        z, logit = interactions.chain([bottom, *self._towers(vectors)], widths)
        logits = self._mlp("top", z)
        if logit:
            logits = graph.node("Add", logits, logit)
        if layout.has_first_order:
            weights = [pooled[key] for key in layout.wide]
            logits = graph.node("Add", logits, interactions.first_order(dense, weights))
        logits = graph.node("Reshape", logits, graph.constant([-1]))
        if self._layout.loss == "bce":
            logits = graph.node("Sigmoid", logits)
        return graph.model(logits, "prediction", {"neocpu": json.dumps(self.card)})

    # ---- inputs ----

    def _transformed(self, dense: str) -> str:
        """Dense inputs of the model: transformed in fp64, missing numbers 0."""
        graph = self.graph
        columns = self._facts.dense
        unknown = {column.transform for column in columns} - {"log1p", "none", "standard"}
        if unknown:
            raise ConfigError(
                f"the transform {min(unknown)!r} of dense columns has no ONNX graph here; "
                "--part dense takes transformed numbers"
            )
        zero = graph.constant(0, np.float64)
        missing = graph.node("IsNaN", dense)
        wide = graph.node("Where", missing, zero, graph.cast(dense, np.float64))
        if any(column.clip for column in columns):
            ends = np.array([column.clip or (-np.inf, np.inf) for column in columns]).T
            clipped = graph.node("Max", wide, graph.constant(ends[0], np.float64))
            clipped = graph.node("Min", clipped, graph.constant(ends[1], np.float64))
            wide = graph.node("Where", missing, zero, clipped)
        squashed = [column.transform == "log1p" for column in columns]
        if any(squashed):
            # ONNX has no log1p; in fp64 log(1 + x) is as good for what becomes fp32.
            above = graph.node("Add", graph.node("Relu", wide), graph.constant(1, np.float64))
            wide = graph.node(
                "Where", graph.constant(squashed, np.bool_), graph.node("Log", above), wide
            )
        if any(column.fitted for column in columns):
            means = [column.fitted[0] if column.fitted else 0.0 for column in columns]
            deviations = [column.fitted[1] if column.fitted else 1.0 for column in columns]
            wide = graph.node("Sub", wide, graph.constant(means, np.float64))
            wide = graph.node("Div", wide, graph.constant(deviations, np.float64))
            # 0 means missing, not the number 0 standardised
            wide = graph.node("Where", missing, zero, wide)
        return graph.cast(wide, np.float32)

    def _bag(self, name: str, is_list: bool, weighted: bool) -> tuple[str, str, str]:
        """Inputs of one feature: values, count ("": one each) and weights ("": none)."""
        graph = self.graph
        if not is_list:
            return graph.input(name, np.int64, ["batch"]), "", ""
        shape = ["batch", f"{name}.length"]
        values = graph.input(name, np.int64, shape)
        count = graph.input(f"{name}.count", np.int64, ["batch"])
        return values, count, graph.input(f"{name}.weights", np.float32, shape) if weighted else ""

    def _rows(self, codes: str, feature: Card, table: StoredTable) -> str:
        """Rows of codes: by vocabulary, hashed, or codes modulo rows."""
        if feature["vocabulary"]:
            # ONNX's LabelEncoder has no unsigned keys: codes are told apart by their bits.
            words = np.ascontiguousarray(self._facts.vocabularies[feature["name"]], WORD)
            return self._index(codes, words.view(np.int64))
        graph = self.graph
        rows = feature["map"]["rows"] if "map" in feature else table.spec.rows
        count = graph.constant(rows, WORD)
        if self._config.data.rows_by == "code":
            # as i64, bits of codes from 2^63 on would have other remainders
            return graph.cast(graph.node("Mod", graph.cast(codes, WORD), count), np.int64)
        return mixed_rows(graph, codes, int(feature["hash_key"]), rows)

    def _index(self, values: str, keys: Ints) -> str:
        """Place of each value among distinct keys, from 1; 0 for others."""
        # onnx cannot tell the type of an empty attribute; times 0 is row 0 for every value.
        if not keys.size:
            return self.graph.node("Mul", values, self.graph.constant(0))
        return self.graph.node(
            "LabelEncoder",
            values,
            domain="ai.onnx.ml",
            keys_int64s=keys.tolist(),
            values_int64s=list(range(1, keys.size + 1)),
            default_int64=0,
        )

    # ---- tables ----

    def _table(self, table: StoredTable) -> tuple[str, Ints | None]:
        """Weights of a table; rows that are there, behind a row of zeros (None: all)."""
        *index, weight = (_array(entry) for entry in table.entries(self._file))
        kind = ONNX_TYPES[table.form]
        if index:
            # Row 0 is what the index gives for a row that is not there.
            weight = np.concatenate([np.zeros((1, *weight.shape[1:]), weight.dtype), weight])
        name = self.graph.tensor(f"tables/{table.spec.name}/weight", weight, kind)
        return name, index[0] if index else None

    def _pooled(
        self,
        weight: tuple[str, Ints | None],
        rows: str,
        count: str,
        factors: str,
        table: StoredTable,
    ) -> str:
        """Pooled vectors f32[batch, dim]; count "": one row for each sample."""
        graph = self.graph
        name, learnt = weight
        if learnt is not None:
            rows = self._index(rows, learnt)
        vectors = graph.node("Gather", name, rows, axis=0)
        if STORED[table.form][1] != "float32":
            vectors = graph.cast(vectors, np.float32)
        if not count:
            if not factors:
                return vectors
            return graph.node("Mul", vectors, graph.node("Unsqueeze", factors, graph.constant([1])))
        # The length of lists is known when the model runs, so its mask is made in the graph.
        length = graph.node("Shape", rows, start=1, end=2)
        # Range takes scalars
        length = graph.node("Reshape", length, graph.constant([], np.int64))
        columns = graph.node("Range", graph.constant(0), length, graph.constant(1))
        column = graph.node("Unsqueeze", count, graph.constant([1]))
        inside = graph.cast(graph.node("Less", columns, column), np.float32)
        if factors:
            inside = graph.node("Mul", inside, factors)
        factor = graph.node("Unsqueeze", inside, graph.constant([2]))
        pooled = graph.node(
            "ReduceSum", graph.node("Mul", vectors, factor), graph.constant([1]), keepdims=0
        )
        if table.spec.pooling == "mean":
            # An empty bag is a vector of zeros, not 0 / 0.
            counts = graph.cast(graph.node("Max", column, graph.constant(1)), np.float32)
            pooled = graph.node("Div", pooled, counts)
        return pooled

    # ---- layers ----

    def _parameter(self, name: str) -> str:
        number = self._file.number(f"dense/{name}")
        field = self._file.dense_field
        values = [block.values[field] for block in self._file.blocks(number)]
        return self.graph.tensor(name, np.concatenate(values))

    def _linear(self, name: str, x: str) -> str:
        """x f32[m, in] through a layer."""
        weight = self._parameter(f"{name}.weight")
        return self.graph.node("Gemm", x, weight, self._parameter(f"{name}.bias"), transB=1)

    def _mlp(self, name: str, x: str) -> str:
        layers = len(self._layout.sizes(name)) - 1
        for layer in range(layers):
            x = self._linear(f"{name}.{layer}", x)
            if name == "bottom" or layer < layers - 1:
                x = self.graph.node("Relu", x)
        return x

    def _towers(self, pooled: list[str]) -> list[str]:
        """Vectors that interact: the pooled ones, or what the towers make of them."""
        graph = self.graph
        vectors: list[str] = []
        for tower in self._layout.towers:
            members = [pooled[key] for key in tower.keys]
            module = tower.module
            if module.joint_vectors:
                x = graph.node("Concat", *members, axis=1)
                joint = self._linear(f"towers.{tower.name}.joint", x)
                vectors += graph.split(joint, [module.width] * module.joint_vectors)
            if module.feature_vectors:
                x = graph.node("Concat", *members, axis=1)
                x = graph.node("Reshape", x, graph.constant([-1, tower.dims[0]]))
                out = self._linear(f"towers.{tower.name}.feature", x)
                count = module.feature_vectors * len(members)
                out = graph.node("Reshape", out, graph.constant([-1, count * module.width]))
                vectors += graph.split(out, [module.width] * count)
        return vectors if self._layout.towers else pooled
