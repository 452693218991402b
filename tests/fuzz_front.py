"""What do `neocpu init`, frames, configs with tables inline, and imports get from `tests.fuzz`?"""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fuzzing import Random, Reader, mutate_bytes

from neocpu.core.errors import DataError
from neocpu.ingest.formats.schema import CategoryField, DenseField, LabelField, Schema
from neocpu.serve.state_dicts.imported import import_state_dict
from neocpu.train.config import config

LOG = """request,clicked,shop,price,tags,when,age
r1,0,"north, main",3.25,a|b,2024-01-01 05:00:00,NULL
r2,1,south,-1e3,,2024-01-02 06:00:00,7
r3,0,,0.5,c|a|b,2024-01-02 07:00:00,-8
"""


def readers(
    mutate_text: Callable[[Path, Random], bool], mutate_keys: Callable[[Path, Random], bool]
) -> dict[str, Reader]:
    """All readers, by name.

    mutate_text : damages a log; mutate_keys : lines of TOML.
    """
    known = {
        "config of tables": Reader(partial(_config, CONFIG), _read_config, mutate_keys),
        "config of servers": Reader(partial(_config, SERVERS), _read_config, mutate_keys),
        "config of activations": Reader(partial(_config, ACTIVATIONS), _read_config, mutate_keys),
        "init": Reader(_log, _read_init, mutate_text),
        "frame": Reader(_frame, _read_frame, _mutate_frame),
        "state_dict in npz": Reader(_npz, _read_state, _mutate_state),
        "state_dict in safetensors": Reader(_safetensors, _read_state, _mutate_state),
    }
    try:
        import polars  # noqa: F401
    except ImportError:
        del known["init"], known["frame"]
    try:
        import safetensors  # noqa: F401
    except ImportError:
        del known["state_dict in safetensors"]
    return known


# ---- a config with its schema inline, defaults and patterns of tables ----

CONFIG = """
[data]
train = "log.csv"
format = "table"
sample_weight = "weight"
split = [0.8, 0.1, 0.1]
rows_by = "vocabulary"
min_count = 2
[data.schema]
delimiter = ","
quote = '"'
[[data.schema.label]]
column = "y"
threshold = 1.0
[[data.schema.label]]
column = "z"
[[data.schema.label]]
column = "weight"
kind = "number"
[[data.schema.dense]]
columns = ["price", "age"]
kind = "float"
transform = "standard"
[[data.schema.category]]
columns = ["site", "shop"]
[[data.schema.category]]
columns = ["price"]
name = "bucket"
kind = "bucket"
buckets = 3
[model]
embedding_dim = 4
bottom = [5, 4]
top = [6, 1]
interaction = ["dcnv2", "dhen"]
wide = ["*.wide"]
[model.cross]
layers = 2
rank = 3
[model.dhen]
layers = 1
modules = ["dot", "cross", "attention"]
tokens = 3
[model.attention.past]
target = "shop"
hidden = [3]
[model.heads.also]
label = "z"
weight = 0.5
top = [3, 1]
[search]
bottom = [[3, 5], [4]]
dims = { "s*" = [2, 4] }
rows = { shop = [5, 20] }
split = 0.7
temperature = 1.5
[training]
init_from = "yesterday"
init_state = false
patience = 3
on_nonfinite = "roll_back"
roll_back_rate = 0.25
[eval]
every_steps = 5
ema = 0.9
[optimizer]
clip_norm = 2.0
[optimizer.sparse]
name = "adam_with_cowclip"
[optimizer.shampoo]
every = 3
momentum = 0.5
nesterov = true
[optimizer.scaling]
rule = "cowclip"
base_batch_size = 32
[optimizer.groups.few]
tables = ["s*"]
dense = ["top.*", "bottom.0.bias"]
learning_rate = 0.5
warmup_steps = 3
[checkpoint]
every_files = 2
[tables]
default = { rows = 30, pooling = "mean" }
"s*".rows = 20
bucket = { rows = 7, format = "fp16" }
"site.wide" = { features = ["site"], dim = 1 }
past = { features = ["past"], pooling = "none" }
hashed = { kind = "hash", compression = 3, hashes = 2, signed = true }
qr = { kind = "qr", radices = [4, 3, 3], operation = "add", combine = "rows" }
md = { kind = "md", blocks = [3, 9], queries = [0.5, 0.25, 0.25], alpha = 0.3 }
unified = { kind = "unified", shared_rows = 9, chunks = 2, shared_tables = 2 }
tt = { kind = "tt", rank = 2, row_factors = [3, 3, 4], dim_factors = [1, 2, 2], cache_rows = 4 }
cafe = { kind = "cafe", compression = 2, threshold = 0.5, decay = 0.9, slots = 2, every = 3 }
"""
SERVERS = """
[data]
train = "log.h5"
[model]
embedding_dim = 4
bottom = [4]
top = [1]
[training]
sync = "off"
[training.asynchronous]
servers = 1
threads = 2
staleness = 3
elastic_every = 4
elastic_rate = 0.25
[tables]
shop = { rows = 30, features = ["shop"] }
"""
ACTIVATIONS = """
[data]
train = "log.h5"
[model]
embedding_dim = 4
bottom = [4]
top = [1]
[optimizer]
trust_ratio = true
[optimizer.dense]
name = "adam"
[memory]
placement = "hbm_over_ddr"
policy = "bagpipe"
lookahead = 3
activations = 100000
activations_in = "ssd"
[tables]
shop = { rows = 30, features = ["shop"] }
"""


def _config(text: str, folder: Path) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path


def _read_config(path: Path) -> Any:
    settings = config.load(path)
    return repr((settings.header(), settings.search, settings.layout(2).tensors()))


# ---- logs that `neocpu init` looks at ----


def _log(folder: Path) -> Path:
    path = folder / "clicks.csv"
    header, _, rows = LOG.partition("\n")
    path.write_text(f"{header}\n{rows * 15}")
    return path


def _read_init(path: Path) -> Any:
    from neocpu.train.advice.write import Wishes, draft

    drafted = draft([path], path.parent / "config.toml", Wishes(label="clicked"))
    return drafted.text, tuple(drafted.said)


# ---- frames of any types ----

SCHEMA = Schema(
    "table",
    LabelField("y"),
    (DenseField("price", "price", "float", "none"),),
    (
        CategoryField("site", "site"),
        CategoryField("id", "id", "int"),
        CategoryField("tags", "tags", separator="|"),
    ),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**31, 2**63, 10**30, 0.5, math.inf, math.nan, "", "a", "1e999"),
    *("\0", "\x1f", "\ud800", "a|b", '"', [], ["a", None], [[1]], {"a": 1}, [1.5, "x"], "x" * 9999),
)
TYPES = (
    *("Int8", "UInt8", "Int16", "Int64", "UInt64", "Int128", "Float32", "Float64", "Boolean"),
    *("String", "Binary", "Categorical", "Date", "Datetime", "Duration", "Time", "Decimal", "Null"),
    "Object",
)


def _frame(folder: Path) -> Path:
    """JSON: columns of values, and the types that they are to have."""
    columns = {
        "y": [1, 0, 1],
        "price": [1.5, None, 2.0],
        "site": ["a\nb", None, "c"],
        "id": [3, None, 5],
        "tags": [["a", "b"], None, ["c", None]],
    }
    path = folder / "frame.json"
    path.write_text(json.dumps({"columns": columns, "types": {}}))
    return path


def _read_frame(path: Path) -> Any:
    import polars as pl

    from neocpu.ingest.formats.frames import as_frame, parse_frame

    tree = json.loads(path.read_text())
    frame = as_frame(tree["columns"])
    for name, kind in tree["types"].items():
        try:
            frame = frame.with_columns(pl.col(name).cast(getattr(pl, kind), strict=False))
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, TypeError) as error:
            raise DataError("no cast of polars") from error
    parsed = parse_frame(frame, SCHEMA)
    features = tuple(
        (name, bag.codes.tobytes(), None if bag.lengths is None else bag.lengths.tobytes())
        for name, bag in parsed.features.items()
    )
    labels = None if parsed.labels is None else parsed.labels.tobytes()
    return labels, parsed.dense.tobytes(), features, repr(parsed.faults)


def _mutate_frame(path: Path, chance: Random) -> bool:
    """Other values, other types, columns that are gone or longer."""
    tree = json.loads(path.read_text())
    columns = tree["columns"]
    for _ in range(int(chance.integers(1, 4))):
        name = str(chance.choice(list(columns)))
        way = int(chance.integers(6))
        if way == 0 and len(columns) > 1:
            del columns[name]
        elif way == 1:
            columns[name].append(None)
        elif way == 2:
            columns[name] = [VALUES[int(chance.integers(len(VALUES)))]] * len(columns[name])
        elif way == 3:
            tree["types"][name] = str(chance.choice(TYPES))
        elif columns[name]:
            at = int(chance.integers(len(columns[name])))
            columns[name][at] = VALUES[int(chance.integers(len(VALUES)))]
    tree["types"] = {name: kind for name, kind in tree["types"].items() if name in columns}
    path.write_text(json.dumps(tree))
    return True


# ---- parameters of other programs ----

MODEL = """
[model]
embedding_dim = 4
bottom = [5, 4]
top = [6, 1]
[tables]
C1.rows = 9
C2.rows = 30
"""


def _state() -> dict[str, np.ndarray]:
    """A model of facebookresearch/dlrm: 13 dense features, two tables."""
    shapes = {
        "emb_l.0.weight": (9, 4),
        "emb_l.1.weight": (30, 4),
        "bot_l.0.weight": (5, 13),
        "bot_l.0.bias": (5,),
        "bot_l.2.weight": (4, 5),
        "bot_l.2.bias": (4,),
        "top_l.0.weight": (6, 7),
        "top_l.0.bias": (6,),
        "top_l.2.weight": (1, 6),
        "top_l.2.bias": (1,),
    }
    return {
        name: np.arange(math.prod(shape), dtype=np.float32).reshape(shape) / 7
        for name, shape in shapes.items()
    }


def _npz(folder: Path) -> Path:
    path = folder / "model.npz"
    np.savez(path, allow_pickle=False, **_state())
    return path


def _safetensors(folder: Path) -> Path:
    from safetensors.numpy import save_file

    path = folder / "model.safetensors"
    save_file(_state(), path)
    return path


def _read_state(path: Path) -> Any:
    target = path.parent / "imported.h5"
    target.unlink(missing_ok=True)
    digest = import_state_dict(path, config.loads(MODEL), target)
    assert target.exists()
    return digest


def _mutate_state(path: Path, chance: Random) -> bool:
    """Bytes, or parameters that are missing or of other shapes and types."""
    if chance.random() < 0.5:
        mutate_bytes(path, chance)
        return True
    state = _state()
    name = str(chance.choice(list(state)))
    value = state[name]
    ways: list[Any] = [value[:-1], value[None], value.T, value.astype(np.float64), value * np.nan]
    ways += [value.astype(np.int32), value[:0], value.astype(np.float16), np.float32(3)]
    number = int(chance.integers(len(ways) + 2))
    if number >= len(ways):
        del state[name]
        if number > len(ways):
            state[f"{name}s"] = value
    else:
        state[name] = np.ascontiguousarray(ways[number])
    if path.suffix == ".npz":
        np.savez(path, allow_pickle=False, **state)
    else:
        from safetensors.numpy import save_file

        save_file(state, path)
    return True
