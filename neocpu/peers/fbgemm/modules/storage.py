"""Where do rows and optimizer states live? In tensors of the module, which the engine updates.

    weights_host      the rows of all tables, in FBGEMM's CPU layout: one table after the other
    momentum1_host    the first optimizer state of all tables, in the same order;
                      likewise momentum2_host, prev_iter_host and row_counter_host

`weights_host` is a Parameter (int8: a buffer). `state_names` has our names of the states. The
engine takes its arrays from the tensors at every call, so a module may be copied or loaded, and
its tensors may be replaced.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from neocpu.core.errors import ConfigError
from neocpu.core.rules import RULES
from neocpu.core.types import Elements, Floats, Ints
from neocpu.peers.fbgemm.modules.compiled import Compilable
from neocpu.peers.fbgemm.modules.engine import NONE, ExternalTables
from neocpu.peers.fbgemm.names import EmbeddingLocation
from neocpu.peers.fbgemm.operators import codes
from neocpu.tables.specs.optimizers import SparseOptimizer

# FBGEMM's prefixes of optimizer states, in the order in which its methods return them.
PREFIXES = ("momentum1", "momentum2", "prev_iter", "row_counter")
# States that FBGEMM calls as we do; all others are momentum1 and momentum2, in order.
SHARED_NAMES = ("prev_iter", "row_counter")
# Placement of every table.
HOST = EmbeddingLocation.HOST.value
# Integer dtypes through which torch gives NumPy the bits of types that NumPy lacks.
WORDS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8}
# Formats whose tensors torch itself can fill with random numbers.
TORCH_FORMATS = ("fp32", "fp16", "bf16")


class StateName(NamedTuple):
    """An optimizer state: our name of it, and whether it is one number per row."""

    name: str
    rowwise: bool


def state_names(rule: str) -> dict[str, StateName]:
    """The states of an update rule, by FBGEMM's prefix."""
    states = [StateName(name, False) for name in RULES[rule].element_state]
    states += [StateName(name, True) for name in RULES[rule].row_state]
    momenta = iter(PREFIXES[:2])
    return {state.name if state.name in SHARED_NAMES else next(momenta): state for state in states}


class BadArgument(ConfigError, AssertionError):
    """An argument that does not fit; also the AssertionError that FBGEMM raises."""


def check_buffer(name: str, host: Tensor, size: int, dtype: torch.dtype) -> None:
    """Raise BadArgument unless a caller's buffer is `size` contiguous CPU elements of `dtype`."""
    if (
        host.dim() != 1
        or host.numel() != size
        or host.dtype != dtype
        or not host.is_contiguous()
        or host.is_cuda
    ):
        raise BadArgument(
            f"preallocated_host_buffers: {name} must be {size} elements of {dtype}, end to end"
        )


def _starts(sizes: Ints) -> list[int]:
    """Where each table begins if tables of these sizes follow one another."""
    return (np.cumsum(sizes) - sizes).tolist()


class Storage(Compilable):
    """The tensors of a module and views of them; `tables` binds the engine to them."""

    def _make_weights(self, form: str, dtype: torch.dtype, buffer: Tensor | None) -> None:
        """Register weights_host (`buffer`, or zeros) and FBGEMM's empty tensors beside it."""
        self.form = form
        self._row_codes = [codes.row_codes(form, dim) for dim in self.dims]
        sizes = np.array([h * w for h, w in zip(self.rows, self._row_codes)], np.int64)
        total = int(sizes.sum())
        self._place("weights", _starts(sizes))
        host = torch.zeros(total, dtype=dtype) if buffer is None else buffer
        check_buffer("weights", host, total, dtype)
        if dtype == torch.uint8:
            self.register_buffer("weights_host", host)
        else:
            # torch computes no gradients of 8-bit floats
            differentiable = dtype.is_floating_point and dtype.itemsize > 1
            self.weights_host = nn.Parameter(host, requires_grad=differentiable)
        for name in ("weights_dev", "weights_uvm"):
            self.register_buffer(name, torch.empty(0, dtype=dtype))

    def _make_states(
        self,
        rule: str,
        buffers: dict[str, Tensor],
        extra: Mapping[str, StateName],
        dtypes: Mapping[str, torch.dtype],
    ) -> None:
        """Register the states of an update rule: from `buffers` by prefix, or zeros.

        extra : states by prefix that the rule does not know. dtypes : of states that are not fp32.
        Prefixes that are not used get FBGEMM's placeholders.
        """
        self._rule_prefixes = state_names(rule)
        states = {**self._rule_prefixes, **extra}
        self._prefixes = {prefix: states[prefix] for prefix in PREFIXES if prefix in states}
        self.narrow_states = any(prefix in self._rule_prefixes for prefix in dtypes)
        unknown = sorted(set(buffers) - set(self._prefixes))
        if unknown:
            raise BadArgument(f"preallocated_host_buffers: {unknown[0]!r} is no state of {rule}")
        heights = np.array(self.rows, np.int64)
        dims = np.array(self.dims, np.int64)
        rowwise = [prefix for prefix, state in self._prefixes.items() if state.rowwise]
        # The engine wants all numbers of a row side by side, so these states are columns of one.
        joined = [p for p in rowwise if p in self._rule_prefixes and p not in dtypes]
        row_states = torch.zeros(int(heights.sum()), len(joined))
        for prefix in PREFIXES:
            if prefix not in self._prefixes:
                self._make_placeholders(prefix)
                continue
            sizes = heights if prefix in rowwise else heights * dims
            self._place(prefix, _starts(sizes))
            dtype = dtypes.get(prefix, torch.float32)
            if prefix in buffers:
                host = buffers[prefix]
                check_buffer(prefix, host, int(sizes.sum()), dtype)
            elif prefix in joined:
                host = row_states[:, joined.index(prefix)]
            else:
                host = torch.zeros(int(sizes.sum()), dtype=dtype)
            self.register_parameter(f"{prefix}_host", nn.Parameter(host))
            for part in ("dev", "uvm"):
                self.register_buffer(f"{prefix}_{part}", torch.empty(0, dtype=dtype))

    def _make_placeholders(self, prefix: str) -> None:
        for part in ("dev", "host", "uvm", "placements", "offsets"):
            placeholder = torch.zeros(1, dtype=torch.int64)
            self.register_buffer(f"{prefix}_{part}", placeholder, persistent=False)

    def _place(self, prefix: str, table_offsets: list[int]) -> None:
        """Record where tables begin: as attributes by table, as buffers by feature."""
        setattr(self, f"{prefix}_physical_offsets", table_offsets)
        setattr(self, f"{prefix}_physical_placements", [HOST] * len(self.rows))
        feature_offsets = [table_offsets[t] for t in self.feature_table_map]
        self.register_buffer(f"{prefix}_offsets", torch.tensor(feature_offsets, dtype=torch.int64))
        placements = torch.full((len(feature_offsets),), HOST, dtype=torch.int32)
        self.register_buffer(f"{prefix}_placements", placements)

    # ---- views ----

    def split_embedding_weights(self) -> list[Tensor]:
        """The rows of every table [rows, columns], in place; int8: [rows, columns + 8] bytes."""
        host = self.weights_host.detach().reshape(-1)
        return [
            host[start : start + h * w].view(h, w)
            for start, h, w in zip(self.weights_physical_offsets, self.rows, self._row_codes)
        ]

    def split_state(self, prefix: str) -> list[Tensor]:
        """A state of every table, in place: [rows] if row-wise, else [rows, columns]."""
        host = getattr(self, f"{prefix}_host").detach()
        starts = getattr(self, f"{prefix}_physical_offsets")
        if self._prefixes[prefix].rowwise:
            return [host[start : start + h] for start, h in zip(starts, self.rows)]
        return [
            host[start : start + h * d].view(h, d)
            for start, h, d in zip(starts, self.rows, self.dims)
        ]

    def init_embedding_weights_uniform(self, min_val: float, max_val: float) -> None:
        """Uniform rows from torch's generator, as FBGEMM draws them."""
        with torch.no_grad():
            for dim, weights in zip(self.dims, self.split_embedding_weights()):
                # By torch itself, so that a seed draws FBGEMM's rows.
                if self.form in TORCH_FORMATS:
                    weights.uniform_(min_val, max_val)
                else:
                    values = torch.empty(weights.shape[0], dim).uniform_(min_val, max_val)
                    # torch has no random numbers of its 8-bit types.
                    self.words(weights)[...] = codes.encode(values.numpy(), self.form)

    # ---- the engine ----

    @staticmethod
    def words(tensor: Tensor) -> Elements:
        """A tensor's memory as a NumPy array: fp32 numbers, or unsigned codes."""
        tensor = tensor.detach()
        if tensor.dtype in WORDS:
            tensor = tensor.view(WORDS[tensor.dtype])
        array = tensor.numpy()
        # Kernels take codes as unsigned numbers.
        return array.view(np.uint16) if array.dtype == np.int16 else array

    def codes(self) -> tuple[Elements, Ints, Ints]:
        """Codes of all tables, flat; rows i64[T] and dimensions i64[T] of each."""
        return (
            self.words(self.weights_host).reshape(-1),
            np.array(self.rows, np.int64),
            np.array(self.dims, np.int64),
        )

    def tables(self, optimizer: SparseOptimizer) -> ExternalTables:
        """The engine over the module's own memory, for fp32 rows."""
        tables = ExternalTables(self.names, np.array(self.rows), np.array(self.dims), optimizer)
        if self.form == "fp32":
            tables.bind(self.words(self.weights_host), *self.states())
        return tables

    def states(self) -> tuple[list[Floats], Floats]:
        """Element states, each flat, and row states [rows, n], flat; all of them in place."""
        element_states = [
            self.words(getattr(self, f"{prefix}_host"))
            for prefix, state in self._rule_prefixes.items()
            if not state.rowwise
        ]
        return element_states, self._row_states()

    def rule_states(self, rowwise: bool) -> list[Tensor]:
        """The rule's states by element, or by row, each of all tables, in place."""
        return [
            getattr(self, f"{prefix}_host").detach()
            for prefix, state in self._rule_prefixes.items()
            if state.rowwise == rowwise
        ]

    def _row_states(self) -> Floats:
        """Row states [rows, n], flat: the tensors' own memory, after joining them if need be."""
        names = [f"{prefix}_host" for prefix, state in self._rule_prefixes.items() if state.rowwise]
        if not names:
            return NONE
        columns = [getattr(self, name).detach() for name in names]
        n = len(columns)
        first = columns[0]
        if any(
            column.stride() != (n,) or column.data_ptr() != first.data_ptr() + 4 * i
            for i, column in enumerate(columns)
        ):
            # Copying or loading a module separates the columns of its row states.
            joined = torch.stack(columns, dim=1).contiguous()
            for i, name in enumerate(names):
                getattr(self, name).data = joined[:, i]
            first = joined[:, 0]
        rows: Floats = first.as_strided((first.numel(), n), (n, 1)).numpy()
        return rows.reshape(-1)
