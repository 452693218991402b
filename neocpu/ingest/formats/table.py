"""How does any other log become a dataset? A TOML file, or a table of a config, names its columns:

delimiter = ","            # one character, or several as "::"; "\\t" for TSV. Default ","
quote = '"'                # fields may be quoted; "" for none. Default '"' where the delimiter is
                           # "," or ";", none elsewhere
header = true              # the first line names the columns. Default true
columns = ["y", "price"]   # names, needed where there is no header
missing = ["NULL", "NaN"]  # texts that stand for an empty field
decimal = ","              # the point of numbers: 3,14 and 1.234,50. Default "."
encoding = "latin-1"       # of the text, by Python's name. Default UTF-8, or UTF-16 where the text
                           # begins as such
comment = "#"              # lines at the start of a file that begin so are no rows
session = "user"           # rows that agree in this category become neighbours

[label]                    # several: [[label]]. Leave out for a log without labels
column = "click"
name = "click"             # what data.label of a config calls it. Default: the column
kind = "click"             # click (default): 0 or 1, also 0.0, -1, false or 1.0, true | number
                           # | class: a text, one of several
threshold = 4.0            # instead of kind: 1 from this number on, else 0
positive = ["buy", "cart"] # instead of kind: 1 for these texts, 0 for all others

[[dense]]
columns = ["price", "age"]
kind = "float"             # int (default) | float
transform = "none"         # log1p | none | standard: minus the mean, divided by the deviation.
                           # Default: --dense-transform
invalid = "missing"        # a text that is no number: error (default) | missing
clip = [0, 1e6]            # numbers outside are moved to the nearer end, before the transform
width = 8                  # each field holds so many numbers, each of them an input
separator = " "            # between them: "0.1 0.2"; lists of a frame or of Parquet have none

[[category]]
columns = ["site", "user"]
kind = "text"              # text (default) | int | hex
digits = 8                 # hex: at most so many digits. Default 16

[[category]]
columns = ["when"]
kind = "hour"              # hour | weekday | day | month | date
time = "iso"               # YYMMDDHH (default) | unix | unix_ms | iso | a format as "%d/%m/%Y"

[[category]]
columns = ["income"]
kind = "bucket"            # of a number, with about as many rows in each
buckets = 50
edges = [10, 20, 50]       # instead of buckets

[[category]]
columns = ["tags"]
separator = "|"            # a list: "a|b|c"
list = true                # lists of a data frame or of Parquet
weight_separator = ":"     # with weights: "a:0.5|b:2"
weights = "tag_weights"    # or weights in lists of another column, or in a field of structs
name = "topics"            # another name for the feature (one column only)

Means, deviations and edges are fitted on the train data (`neocpu.ingest.dataset.fitting`) and
written into the entries as `fitted`; so are the texts of a label of kind class, sorted, as
`classes`, which may be given too: the label is the number of its text, from 0 on. `version = 3`,
which `neocpu init` writes, gives a whole number the same text whatever type holds it: 196.0 of a
column of floats is the category 196 (2, the default: 196.0). With `version = 1` a schema is read as
neocpu 0.1.0 did: no quotes, and a missing integer is code 0.
"""

import codecs
import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from neocpu.core.errors import ConfigError
from neocpu.core.records import toml_tree
from neocpu.core.types import Tree
from neocpu.ingest.formats.schema import (
    CATEGORY_KINDS,
    DENSE_KINDS,
    DENSE_TRANSFORMS,
    HOURS,
    INVALID,
    LABEL_KINDS,
    MISSING_INTEGER,
    TIME_KINDS,
    TIMES,
    CategoryField,
    DenseField,
    LabelField,
    Schema,
)
from neocpu.ingest.formats.table_entries import Problems, SchemaEntry, is_utf8
from neocpu.ingest.formats.times import format_fault

VERSION = 2  # where a schema names none
VERSIONS = (1, 2, 3)
MOST_BUCKETS = 1 << 20
MOST_INPUTS = 1 << 16  # of a column of vectors
DECIMALS = (".", ",")
_TOP = {
    "delimiter": str,
    "quote": str,
    "header": bool,
    "columns": list,
    "missing": list,
    "decimal": str,
    "encoding": str,
    "comment": str,
    "session": str,
    "label": (dict, list),
    "dense": list,
    "category": list,
    "version": int,
}
_LABEL = {
    "column": str,
    "name": str,
    "kind": str,
    "threshold": float,
    "positive": list,
    "classes": list,
}
_DENSE = {
    "columns": list,
    "name": str,
    "kind": str,
    "transform": str,
    "invalid": str,
    "width": int,
    "separator": str,
    "clip": list,
    "fitted": dict,
}
_CATEGORY = {
    "columns": list,
    "name": str,
    "kind": str,
    "digits": int,
    "time": str,
    "buckets": int,
    "edges": list,
    "separator": str,
    "list": bool,
    "weight_separator": str,
    "weights": str,
    "fitted": dict,
}


def _entries(
    problems: Problems, top: SchemaEntry, key: str, allowed: Mapping[str, object]
) -> Iterator[SchemaEntry]:
    entries = top.get(key, [])
    if isinstance(entries, dict):
        yield SchemaEntry(problems, key, entries, allowed)
        return
    for number, entry in enumerate(entries, 1):
        yield SchemaEntry(problems, f"{key} {number}", entry, allowed)


def _label(entry: SchemaEntry) -> LabelField:
    if "column" not in entry:
        entry.wrong("column is missing")
    keys = [key for key in ("kind", "threshold", "positive") if key in entry]
    if len({*keys} - {"kind"}) > 1:
        entry.wrong("threshold and positive exclude each other")
    column = entry.get("column", "")
    kind = entry.get("kind", "click", LABEL_KINDS)
    if kind != "click" and keys[1:]:
        entry.wrong(f"with {keys[1]} the label is a click, so kind cannot be {kind}")
    positive = entry.texts("positive")
    if "positive" in entry and not positive:
        entry.wrong("positive must name at least one text")
    classes = entry.texts("classes")
    if "classes" in entry and kind != "class":
        entry.wrong('classes goes with kind = "class"')
    if "classes" in entry and not (classes and all(classes) and len({*classes}) == len(classes)):
        entry.wrong("classes must name texts, each once")
    threshold = entry.get("threshold", None)
    return LabelField(
        column=column,
        kind=kind,
        name=entry.get("name", column),
        threshold=None if threshold is None else float(threshold),
        positive=positive,
        classes=classes,
    )


def _dense(entry: SchemaEntry, column: str, name: str, transform: str) -> Iterator[DenseField]:
    """The inputs of a column: one, or as many as each of its vectors has numbers."""
    fitted = entry.fitted(column)
    if fitted is not None and (len(fitted) != 2 or fitted[1] <= 0):
        entry.wrong(f"fitted of {column!r} must be a mean and a positive deviation")
        fitted = None
    clip = entry.clip()
    width = entry.get("width", 0)
    if "width" in entry and not 1 <= width <= MOST_INPUTS:
        entry.wrong(f"width = {width} must be from 1 to {MOST_INPUTS}")
        width = 0
    if "separator" in entry and not width:
        entry.wrong("separator goes with width, the numbers in each field")
    number = DenseField(
        column=column,
        name=name,
        kind=entry.get("kind", "int", DENSE_KINDS),
        transform=entry.get("transform", transform, DENSE_TRANSFORMS),
        fitted=None if fitted is None else (fitted[0], fitted[1]),
        invalid=entry.get("invalid", "error", INVALID),
        width=width,
        separator=entry.byte("separator"),
        clip=clip,
    )
    if not width:
        yield number
    for item in range(width):
        yield replace(number, name=f"{name}.{item}", item=item)


def _category(entry: SchemaEntry, column: str, name: str, version: int) -> CategoryField:
    kind = entry.get("kind", "text", CATEGORY_KINDS)
    field = CategoryField(
        column=column,
        name=name,
        kind=kind,
        digits=entry.get("digits", 16),
        separator=entry.byte("separator"),
        weight_separator=entry.byte("weight_separator"),
        many=entry.get("list", False),
        weights=entry.get("weights", ""),
        time=entry.get("time", HOURS),
        missing=MISSING_INTEGER if kind == "int" and version > 1 else 0,
        buckets=entry.get("buckets", 0),
        edges=_edges(entry, column),
    )
    _check_list(entry, field)
    if not 1 <= field.digits <= 16:
        entry.wrong(f"digits = {field.digits} must be from 1 to 16")
    if kind in TIME_KINDS and field.time not in TIMES and (fault := format_fault(field.time)):
        entry.wrong(f"time = {field.time!r} {fault}")
    if kind not in TIME_KINDS and "time" in entry:
        entry.wrong(f"time goes with the kinds {', '.join(TIME_KINDS)}")
    if kind != "bucket" and ("buckets" in entry or "edges" in entry):
        entry.wrong('buckets and edges go with kind = "bucket"')
    if kind == "bucket" and field.edges is None and not 2 <= field.buckets <= MOST_BUCKETS:
        entry.wrong(f"kind = 'bucket' needs buckets, from 2 to {MOST_BUCKETS}, or edges")
    return field


def _check_list(entry: SchemaEntry, field: CategoryField) -> None:
    """Tell what is wrong with the keys of lists and their weights."""
    if field.weight_separator and not field.separator:
        entry.wrong("weight_separator needs a separator")
    if field.weight_separator and field.weight_separator == field.separator:
        entry.wrong(f"separator and weight_separator are both {field.separator!r}")
    if field.weights and not field.is_list:
        entry.wrong("weights needs a separator, or list = true")
    if field.weights and field.weight_separator:
        entry.wrong("weights and weight_separator exclude each other")
    if field.is_list and field.kind in (*TIME_KINDS, "bucket"):
        entry.wrong(f"a list cannot be of kind {field.kind}")


def _edges(entry: SchemaEntry, column: str) -> tuple[float, ...] | None:
    """The edges of a category's buckets: fitted, or given; ascending."""
    edges = entry.fitted(column)
    if edges is None:
        edges = entry.edges()
    if edges is not None and any(high <= low for low, high in itertools.pairwise(edges)):
        entry.wrong("edges must ascend")
        return None
    return edges


def read_tree(path: str | Path) -> dict[str, Any]:
    """The tree of a SCHEMA.toml. Raises ConfigError if it cannot be read."""
    try:
        return toml_tree(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # an error of syntax, of UTF-8, a NUL in the path
        raise ConfigError(f"{path}: not a TOML file: {error}") from error


def table_schema(
    source: str | Path | Tree, transform: str = "log1p", where: str = "data.schema"
) -> Schema:
    """The schema that a SCHEMA.toml, or a tree of its keys, describes (see the module's docstring).

    transform : of dense columns that name none. where : what messages call a tree.

    Raises ConfigError naming everything that is wrong: file, entry, key and choices.
    """
    if isinstance(source, Mapping):
        tree = source
    else:
        tree = read_tree(source)
        where = str(source)
    problems = Problems(where)
    top = SchemaEntry(problems, "", tree, _TOP)
    version = top.get("version", VERSION)
    if version not in VERSIONS:
        top.wrong(f"version = {version}; choose one of {', '.join(map(str, VERSIONS))}")
    labels = tuple(_label(entry) for entry in _entries(problems, top, "label", _LABEL))
    dense = tuple(
        number
        for entry in _entries(problems, top, "dense", _DENSE)
        for column, name in entry.columns()
        for number in _dense(entry, column, name, transform)
    )
    categories = tuple(
        _category(entry, column, name, version)
        for entry in _entries(problems, top, "category", _CATEGORY)
        for column, name in entry.columns()
    )
    delimiter = _delimiter(top)
    default_quote = '"' if version > 1 and delimiter in (",", ";") else ""
    schema = Schema(
        name="table",
        label=labels[0] if labels else None,
        dense=dense,
        categories=categories,
        columns=top.texts("columns"),
        delimiter=delimiter,
        quote=top.byte("quote") if "quote" in top else default_quote,
        header=top.get("header", True),
        hint=f"{where} asks for it",
        missing=top.texts("missing"),
        words=version > 1,
        more_labels=labels[1:],
        session=top.get("session", ""),
        decimal=top.get("decimal", ".", DECIMALS),
        encoding=_encoding(top),
        comment=top.get("comment", ""),
        whole=version > 2,
        tree=_complete(tree, transform),
    )
    _check(top, schema)
    problems.check()
    return schema


def _delimiter(top: SchemaEntry) -> str:
    delimiter: str = top.get("delimiter", ",")
    if not delimiter or not is_utf8(delimiter) or {*delimiter} & {*"\n\r\0"}:
        top.wrong(f"delimiter = {delimiter!r} must be one ASCII character, or several")
        return ","
    return delimiter


def _encoding(top: SchemaEntry) -> str:
    """The encoding of the text. "": it is not named."""
    name: str = top.get("encoding", "")
    try:
        # also of codecs that are none of texts: "hex"
        if name and "".encode(name) is not None:
            return codecs.lookup(name).name
    except (LookupError, ValueError, TypeError):
        top.wrong(f"encoding = {name!r} is no encoding of text that Python knows, as latin-1, gbk")
    return ""


def _check(top: SchemaEntry, schema: Schema) -> None:
    """Tell what is wrong with the schema as a whole."""
    if not schema.dense and not schema.categories:
        top.wrong("no column is used; add [[dense]] or [[category]] entries")
    if not schema.header and not schema.columns:
        top.wrong("header = false needs columns = [...]")
    if schema.quote == schema.delimiter:
        top.wrong(f"quote and delimiter are both {schema.quote!r}")
    if schema.quote and len(schema.delimiter.encode("utf-8", "replace")) > 1:
        top.wrong(f"quote goes with a delimiter of one character, not with {schema.delimiter!r}")
    unhinted = replace(schema, hint="")
    if schema.columns and (faults := unhinted.column_faults(list(schema.columns), "columns has")):
        top.wrong(faults)
    for kind, names in (
        ("label", [label.name for label in schema.labels]),
        ("dense column", [field.name for field in schema.dense]),
        ("feature", [field.name for field in schema.categories]),
    ):
        repeated = list(dict.fromkeys(name for name in names if names.count(name) > 1))
        if repeated:
            top.wrong(f"{kind} {', '.join(map(repr, repeated))} occurs twice; give one a name")
    if schema.session and schema.session not in [
        field.name for field in schema.categories if not field.is_list
    ]:
        top.wrong(f"session = {schema.session!r} is no category with one value a row")


def _complete(tree: Tree, transform: str) -> dict[str, Any]:
    """A copy of a tree that says what options would add."""
    whole = copy.deepcopy(dict(tree))
    whole.setdefault("version", VERSION)
    entries = whole.get("dense", [])
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            entry.setdefault("transform", transform)
    return whole
