"""How does a model of facebookresearch/dlrm or TorchRec come in? As a checkpoint of step 0.

Its config says what the model is; shapes must agree. Optimizer states start anew. The file is
written block by block from the parameters, which are mapped, so tables may be larger than memory.

A state_dict has rows, not what looks them up: the hash of a raw value was its program's own. What
neocpu's loader hashes would meet other rows, so rows must be given (`data.rows_by`, docs/export.md)
or the model be trained on.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from neocpu.core.errors import CheckpointError, ConfigError, EnvironmentProblem
from neocpu.core.types import Floats, Ints
from neocpu.serve.exports.arrays import check_disk, file_library
from neocpu.serve.state_dicts.names import Names, column_order, names_of
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
from neocpu.tables.specs.specs import TableSpec
from neocpu.train.checkpoint.layout import Part, create, file_bytes, lay_out, seal
from neocpu.train.checkpoint.snapshot import Share, facts_of, write_share
from neocpu.train.checkpoint.tools import written
from neocpu.train.config.config import Config
from neocpu.train.model.layout import ModelLayout
from neocpu.train.state.blocks import (
    BLOCK,
    Blocks,
    Index,
    Tensor,
    canonical,
    digest_of,
    not_finite,
)
from neocpu.train.state.initial import fields_of, initial_rows

PIECE = 4 * BLOCK  # rows of a table that are read at a time


class StateDict(Protocol):
    """Parameters by name, read piece by piece."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape."""

    def rows(self, name: str, first: int, end: int) -> Floats:
        """Entries [first, end) of the first axis, as float32."""


class _Torch:
    """What torch.save wrote: a state_dict, or a mapping that has one as "state_dict"."""

    def __init__(self, path: Path) -> None:
        try:
            import torch
        except ImportError as error:
            raise EnvironmentProblem(
                f"{path}: needs torch to be read: pip install torch; or save the state_dict as "
                ".safetensors"
            ) from error
        try:
            # weights_only refuses pickles that run code; mapped, tables larger than memory can be
            # read.
            loaded = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except Exception as error:
            raise CheckpointError(
                f"{path}: torch cannot read it as a file of tensors: {str(error)[:200]}"
            ) from error
        # How training scripts wrap a state_dict; several may be nested.
        for key in ("state_dict", "model_state_dict", "model"):
            if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
                loaded = loaded[key]
        if not isinstance(loaded, dict) or not all(map(torch.is_tensor, loaded.values())):
            raise CheckpointError(
                f"{path}: holds no state_dict of whole tensors; sharded ones must be gathered first"
            )
        self._tensors = loaded

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def rows(self, name: str, first: int, end: int) -> Floats:
        return self._tensors[name][first:end].float().numpy()


class _SafetensorsFile:
    """A state_dict in a .safetensors file."""

    def __init__(self, path: Path) -> None:
        library = file_library("safetensors")
        try:
            self._file = library.safe_open(path, framework="numpy")
        except (library.SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: cannot be read as safetensors: {error}") from error
        names = list(self._file.keys())
        self._slices = {name: self._file.get_slice(name) for name in names}
        for name, tensor in self._slices.items():
            # NumPy has no bfloat16
            if tensor.get_dtype() not in ("F32", "F16", "F64"):
                raise CheckpointError(
                    f"{path}: {name} has elements of type {tensor.get_dtype()}; save it as float32"
                )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.get_shape()) for name, tensor in self._slices.items()}

    def rows(self, name: str, first: int, end: int) -> Floats:
        return np.asarray(self._slices[name][first:end], np.float32)


class _Arrays:
    """A state_dict in an .npz file."""

    def __init__(self, path: Path) -> None:
        try:
            with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                self._arrays = {name: np.asarray(file[name], np.float32) for name in file.files}
        except Exception as error:
            raise CheckpointError(f"{path}: cannot be read as .npz: {error}") from error

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self._arrays.items()}

    def rows(self, name: str, first: int, end: int) -> Floats:
        return self._arrays[name][first:end]


READERS: dict[str, Callable[[Path], StateDict]] = {
    ".safetensors": _SafetensorsFile,
    ".npz": _Arrays,
}


def state_dict_of(path: Path) -> StateDict:
    """Open a state_dict: .safetensors, .npz, or anything else that torch saved.

    Raises CheckpointError for a file that cannot be read.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    return READERS.get(path.suffix, _Torch)(path)


@dataclass(frozen=True)
class _Model:
    """Another program's model, as the config describes it."""

    state: StateDict
    names: Names
    config: Config
    layout: ModelLayout

    def _optimizer(self, parameters: Floats) -> DenseOptimizer:
        """The optimizer of a run that begins with these dense parameters."""
        config = self.config
        return DenseOptimizer(config.optimizer.dense, parameters, ema=config.eval.ema)

    def tensors(self) -> list[Tensor]:
        """Those of the checkpoint."""
        # only the names of its state are asked for
        dense_state = self._optimizer(np.empty(0, np.float32)).state
        tensors = []
        for name, shape in self.layout.tensors():
            fields = tuple((field, shape[1:]) for field in ("value", *dense_state))
            tensors.append(Tensor(f"dense/{name}", shape[0], fields))
        for spec in self.config.tables:
            fields = (("weight", (spec.dim,)), *fields_of(spec, self.config.optimizer.sparse))
            tensors.append(Tensor(f"tables/{spec.name}", spec.rows, fields, spec.format))
        return tensors

    def blocks(self, tensors: list[Tensor]) -> Iterator[Blocks]:
        """All blocks of the state, in order."""
        for number, (name, shape) in enumerate(self.layout.tensors()):
            value = canonical(self.state.rows(self.names.dense[name], 0, shape[0]))
            if name == "top.0.weight" and self.names.program == "torchrec":
                # TorchRec lists dot products in another order.
                value = np.ascontiguousarray(value[:, column_order(self.layout)])
            values = {"value": value.reshape(shape)}
            for field, flat in self._optimizer(value.reshape(-1).copy()).state.items():
                values[field] = flat.reshape(shape)
            yield Blocks.of(number, np.arange(shape[0]), values)
        first = len(self.layout.tensors())
        for number, (spec, (_, key)) in enumerate(
            zip(self.config.tables, self.names.tables), first
        ):
            for row in range(0, spec.rows, PIECE):
                yield self._table_blocks(number, spec, key, row)

    def _table_blocks(self, number: int, spec: TableSpec, key: str, row: int) -> Blocks:
        """Blocks of a table from a row on; a row with its initial values is not in the state."""
        rows = np.arange(row, min(row + PIECE, spec.rows), dtype=np.int64)
        values = initial_rows(spec, self.config.optimizer.sparse, self.config.training.seed, rows)
        weight = canonical(self.state.rows(key, row, row + rows.size))
        # By bits: a row that happens to hold its initial values costs nothing in the file.
        trained = (weight.view(np.uint32) != values["weight"].view(np.uint32)).any(axis=1)
        values["weight"] = weight
        kept = {name: np.ascontiguousarray(value[trained]) for name, value in values.items()}
        return Blocks.of(number, rows[trained], kept)


def import_state_dict(source: Path, config: Config, target: Path) -> str:
    """Write the model of a state_dict as a checkpoint of step 0; returns its digest.

    source : of facebookresearch/dlrm or TorchRec, saved by torch, or as .safetensors or .npz.

    Raises CheckpointError where it cannot be read, or the target not be written; ConfigError where
    the config describes another model.
    """
    state = state_dict_of(source)
    names = names_of(state.shapes(), str(source))
    model = _Model(state, names, config, _layout(state.shapes(), names, config, source))
    tensors = model.tensors()
    # The layout of the file needs the number of rows before any is written, so blocks are made
    # twice.
    index, counts = _index(model, tensors, source)
    digest = digest_of(config.header(), 0, tensors, index)
    attributes, texts = facts_of(tensors, config, 1, 0, {})
    attributes["digest"] = digest
    check_disk(target, file_bytes(tensors, counts))
    with written(target) as partial:
        image = create(lay_out(tensors, counts, attributes, texts), partial)
        parts = (Part.of(blocks, tensors[blocks.tensor]) for blocks in model.blocks(tensors))
        share = Share(
            path=partial,
            tensors=tensors,
            offsets=image.offsets,
            before=np.zeros_like(counts),
            index=index,
            parts=parts,
        )
        if (error := write_share(share)) is not None:
            raise error
        seal(image, partial, tensors)
    return digest


def _index(model: _Model, tensors: list[Tensor], source: Path) -> tuple[Index, Ints]:
    """Index of the state, and counts i64[T, 3] of its rows, rows gone and blocks.

    Raises CheckpointError for a number that is not finite; source : for its message.
    """
    counts = np.zeros((len(tensors), 3), np.int64)
    tensor = []
    numbers = []
    rows = []
    hashes: list[bytes] = []
    for blocks in model.blocks(tensors):
        if wrong := not_finite(tensors[blocks.tensor].name, blocks.rows, blocks.values):
            raise CheckpointError(f"{source}: {wrong}; a model with it predicts no numbers")
        counts[blocks.tensor] += (blocks.rows.size, 0, blocks.numbers.size)
        tensor.append(np.full(blocks.numbers.size, blocks.tensor, np.int64))
        numbers.append(blocks.numbers)
        rows.append(blocks.counts)
        hashes += blocks.sha256()
    sha256 = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)
    index = Index(np.concatenate(tensor), np.concatenate(numbers), np.concatenate(rows), sha256)
    return index, counts


def _layout(
    shapes: dict[str, tuple[int, ...]], names: Names, config: Config, source: Path
) -> ModelLayout:
    """The model's tensors. Raises ConfigError where those of the state_dict are others."""
    _refuse_features(names, config, source)
    input_key = names.dense.get("bottom.0.weight")
    if input_key is None or len(shapes[input_key]) != 2:
        raise CheckpointError(f"{source}: has no first layer of a bottom MLP")
    layout = config.layout(shapes[input_key][1])
    expected = {name: names.dense.get(name) for name, _ in layout.tensors()}
    surplus = sorted(names.dense.keys() - expected.keys())
    if surplus:
        raise ConfigError(
            f"{source}: has {names.dense[surplus[0]]}, a layer more than the config's model.bottom "
            "and model.top"
        )
    for name, shape in layout.tensors():
        key = expected[name]
        if key is None or shapes[key] != shape:
            actual = "missing" if key is None else f"{key} of shape {list(shapes[key])}"
            raise ConfigError(
                f"{source}: the config's {name} has shape {list(shape)}, there it is {actual}"
            )
    for spec, (_, key) in zip(config.tables, names.tables):
        if shapes[key] != (spec.rows, spec.dim):
            raise ConfigError(
                f"{source}: {key} has shape {list(shapes[key])}, but table {spec.name} has "
                f"{spec.rows} rows of {spec.dim} columns in the config"
            )
    return layout


def _refuse_features(names: Names, config: Config, source: Path) -> None:
    """Raise ConfigError for a config of something that these models do not have."""
    if len(names.tables) != len(config.tables):
        raise ConfigError(
            f"{source}: has {len(names.tables)} tables, the config has {len(config.tables)}"
        )
    own_names = [spec.name for spec in config.tables]
    other_names = [name for name, _ in names.tables]
    if set(own_names) == set(other_names) and own_names != other_names:
        raise ConfigError(
            f"{source}: its tables are in the order {', '.join(other_names)}; give them in this "
            "order in the config, since columns of the top MLP depend on it"
        )
    for spec in config.tables:
        # bf16_split keeps all 32 bits of a number.
        if spec.format not in ("fp32", "bf16_split"):
            raise ConfigError(
                f"tables.{spec.name}.format: {spec.format} would round what is imported; import it "
                "as fp32"
            )
    if config.optimizer.in_blocks:
        what = "momentum of optimizer.muon" if config.optimizer.muon.steps else ""
        raise ConfigError(
            f"{source}: brings no {what or 'factors of optimizer.shampoo'}; leave that out, and "
            "set it in a run that starts from the import (training.init_from)"
        )
    if config.model.precision.format != "fp32":
        raise ConfigError(
            f"{source}: brings no scales of model.precision; leave that out, and set it in a run "
            "that starts from the import (training.init_from)"
        )
    if config.model.towers or (config.model.diagonal and names.program == "torchrec"):
        raise ConfigError(
            f"{source}: has neither towers nor, from TorchRec, a diagonal; leave model.towers and "
            "model.diagonal out"
        )
