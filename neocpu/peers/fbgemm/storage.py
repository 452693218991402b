"""Where do rows and optimizer states live, so that torch and the engine see the same memory? In
tensors of the module.

    weights_host      all tables, one after the other, as FBGEMM lays them out on a CPU (a Parameter; int8: a buffer)
    momentum1_host    first state of all tables; momentum2_host, prev_iter_host, row_counter_host likewise

Which of the rule's states goes by which name: `NAMES_OF_STATES`. The engine's arrays are taken from
the tensors at every call, so a module that was copied, loaded or given other tensors goes on with
those.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.errors import ConfigError
from neocpu.peers.fbgemm import codes
from neocpu.peers.fbgemm.engine import NONE, CallerTables
from neocpu.peers.fbgemm.names import EmbeddingLocation
from neocpu.reference.rules import RULES

PREFIXES = ("momentum1", "momentum2", "prev_iter", "row_counter")
LATER = {"prev_iter": "prev_iter", "row_counter": "row_counter"}
HOST = EmbeddingLocation.HOST.value
WORDS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8}


def prefixes_of(rule: str) -> dict[str, tuple[str, bool]]:
    """FBGEMM's name of each state of a rule -> (ours, whether it is one number per row)."""
    found = {}
    free = iter(PREFIXES[:2])
    for names, rowwise in ((RULES[rule].element_state, False), (RULES[rule].row_state, True)):
        for name in names:
            found[LATER.get(name) or next(free)] = (name, rowwise)
    return found


class BadArgument(ConfigError, AssertionError):
    """An argument that does not fit; also the AssertionError that FBGEMM raises."""


def check_buffer(name: str, host: Tensor, size: int, dtype: torch.dtype) -> None:
    """Raise BadArgument unless a caller's buffer is `size` elements of `dtype`, end to end on the
    CPU.
    """
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


class Storage(nn.Module):
    """The tensors of a module, and their views; `tables` binds the engine to them."""

    def _make_weights(self, form: str, dtype: torch.dtype, given: Tensor | None) -> None:
        """weights_host and what FBGEMM keeps beside it."""
        self.form = form
        self._row_codes = [codes.row_codes(form, d) for d in self.dims]
        sizes = np.array([h * w for h, w in zip(self.rows, self._row_codes)], np.int64)
        self.weights_physical_offsets = (np.cumsum(sizes) - sizes).tolist()
        self.weights_physical_placements = [HOST] * len(self.rows)
        self._place("weights", self.weights_physical_offsets, persistent=True)
        host = torch.zeros(int(sizes.sum()), dtype=dtype) if given is None else given
        check_buffer("weights", host, int(sizes.sum()), dtype)
        if dtype == torch.uint8:
            self.register_buffer("weights_host", host)
        else:
            self.weights_host = nn.Parameter(
                host, requires_grad=dtype.is_floating_point and dtype.itemsize > 1
            )
        for name in ("weights_dev", "weights_uvm"):
            self.register_buffer(name, torch.empty(0, dtype=dtype))

    def _make_states(self, rule: str, given: dict[str, Tensor]) -> None:
        """The states of a rule; prefixes that it does not use get FBGEMM's placeholders."""
        self._prefixes = prefixes_of(rule)
        used = prefixes_of(rule)
        heights = np.array(self.rows, np.int64)
        dims = np.array(self.dims, np.int64)
        foreign = sorted(set(given) - set(used))
        if foreign:
            raise BadArgument(f"preallocated_host_buffers: {foreign[0]!r} is no state of {rule}")
        rowwise = [p for p, (_, r) in used.items() if r]
        # states of a row side by side, as the engine has them
        beside = torch.zeros(int(heights.sum()), len(rowwise))
        for prefix in PREFIXES:
            if prefix not in used:
                for part in ("dev", "host", "uvm", "placements", "offsets"):
                    self.register_buffer(
                        f"{prefix}_{part}", torch.zeros(1, dtype=torch.int64), persistent=False
                    )
                continue
            sizes = heights if used[prefix][1] else heights * dims
            offsets = (np.cumsum(sizes) - sizes).tolist()
            setattr(self, f"{prefix}_physical_offsets", offsets)
            setattr(self, f"{prefix}_physical_placements", [HOST] * len(self.rows))
            self._place(prefix, offsets, persistent=True)
            host = (
                beside[:, rowwise.index(prefix)]
                if used[prefix][1]
                else torch.zeros(int(sizes.sum()))
            )
            if prefix in given:
                host = given[prefix]
                check_buffer(prefix, host, int(sizes.sum()), torch.float32)
            self.register_parameter(f"{prefix}_host", nn.Parameter(host))
            for part in ("dev", "uvm"):
                self.register_buffer(f"{prefix}_{part}", torch.empty(0))

    def _place(self, prefix: str, offsets: list[int], persistent: bool) -> None:
        of = [offsets[t] for t in self.feature_table_map]
        self.register_buffer(f"{prefix}_offsets", torch.tensor(of, dtype=torch.int64), persistent)
        places = torch.full((len(of),), HOST, dtype=torch.int32)
        self.register_buffer(f"{prefix}_placements", places, persistent)

    # ---- views ----

    def split_embedding_weights(self) -> list[Tensor]:
        """The rows of every table [rows, columns], in place; int8: [rows, columns + 8] bytes."""
        host = self.weights_host.detach()
        return [
            host[at : at + h * w].view(h, w)
            for at, h, w in zip(self.weights_physical_offsets, self.rows, self._row_codes)
        ]

    def _split_state(self, prefix: str) -> list[Tensor]:
        host = getattr(self, f"{prefix}_host").detach()
        found = []
        for at, h, d in zip(getattr(self, f"{prefix}_physical_offsets"), self.rows, self.dims):
            found.append(
                host[at : at + h] if self._prefixes[prefix][1] else host[at : at + h * d].view(h, d)
            )
        return found

    def init_embedding_weights_uniform(self, min_val: float, max_val: float) -> None:
        """Uniform rows from torch's generator, as FBGEMM draws them."""
        with torch.no_grad():
            for t, emb in enumerate(self.split_embedding_weights()):
                if self.form in ("fp32", "fp16", "bf16"):
                    emb.uniform_(min_val, max_val)
                else:
                    drawn = torch.empty(emb.shape[0], self.dims[t]).uniform_(min_val, max_val)
                    self.words(emb)[...] = codes.encode(drawn.numpy(), self.form)

    # ---- the engine ----

    @staticmethod
    def words(tensor: Tensor) -> NDArray[Any]:
        """A tensor's memory as NumPy knows it: fp32, or codes."""
        tensor = tensor.detach()
        if tensor.dtype in WORDS:
            tensor = tensor.view(WORDS[tensor.dtype])
        found = tensor.numpy()
        return found.view(np.uint16) if found.dtype == np.int16 else found

    def codes(self) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
        """Codes of all tables, their rows and dimensions."""
        return (
            self.words(self.weights_host),
            np.array(self.rows, np.int64),
            np.array(self.dims, np.int64),
        )

    def tables(self, optimizer: SparseOptimizer) -> CallerTables:
        """The engine over the module's own memory, for fp32 rows."""
        made = CallerTables(self.names, np.array(self.rows), np.array(self.dims), optimizer)
        if self.form == "fp32":
            made.bind(self.words(self.weights_host), *self.states())
        return made

    def states(self) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Element states, flat, and row states [rows, n], both in place."""
        elements = [
            self.words(getattr(self, f"{p}_host")) for p, (_, r) in self._prefixes.items() if not r
        ]
        names = [f"{p}_host" for p, (_, r) in self._prefixes.items() if r]
        if not names:
            return elements, NONE
        columns = [getattr(self, n).detach() for n in names]
        n = len(names)
        first = columns[0]
        if any(
            c.stride() != (n,) or c.data_ptr() != first.data_ptr() + 4 * i
            for i, c in enumerate(columns)
        ):
            beside = torch.stack(columns, dim=1).contiguous()
            for i, name in enumerate(names):  # copied or loaded apart: put side by side again
                getattr(self, name).data = beside[:, i]
            first = beside[:, 0]
        return elements, first.as_strided((first.numel(), n), (n, 1)).numpy().reshape(-1)
