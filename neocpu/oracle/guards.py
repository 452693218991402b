"""What does a kernel do to memory beside its answer? Buffers that show it.

    inputs    copies between two guard zones: whoever writes beyond one, or changes what it should
              only read, is told so; zones are NaN (in whole numbers -1), so that what is read
              beyond an input spoils the answer, and another answer comes of zones of zeros
    outputs   for kernels that take them: between guard zones as well, and filled with a NaN that
              no arithmetic makes, so that elements that nobody wrote are told

NumPy arrays and torch tensors, on any device, have such buffers; others are copied as they are.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from neocpu.core.types import Bools
from neocpu.oracle.adapters import CODES, Array, codes_of, to_numpy, to_torch
from neocpu.oracle.operator import Truth
from neocpu.oracle.semantics import Mistake
from neocpu.oracle.verdicts.compare import Verdict

# A neighbour of the widest row, 2,048 columns of fp64, lies within a zone; kernels that load
# vectors find all buffers as well aligned as allocators do.
ZONE_BYTES = 16384
ALIGNMENT = 512
NAN_BYTE = 0xFF  # all ones are a NaN in every format, and -1
# A NaN (in whole numbers a large one) with bits that neither arithmetic nor a zone gives, by format
UNWRITTEN = {"fp32": 0x7FC5A5A5, "fp16": 0x7E5A, "bf16": 0x7FE5, "fp8_e4m3": 0x7F, "fp8_e5m2": 0x7D}
UNWRITTEN_WHOLE = 0x5A5A5A5A5A5A5A5A

WROTE_OUTSIDE = Mistake(
    "wrote_outside",
    "it wrote before the beginning or behind the end of a buffer",
    "check the last block's bounds, and offsets that wrap",
)
CHANGED_AN_INPUT = Mistake(
    "changed_an_input",
    "it changed an array that it should only read",
    "work on a copy, or look for a pointer that is passed as output by mistake",
)
READ_OUTSIDE = Mistake(
    "read_outside",
    "its answer depends on what lies before the beginning or behind the end of an input",
    "check the last block's bounds, rows beyond a table and offsets beyond the last bag",
)
LEFT_UNWRITTEN = Mistake(
    "left_unwritten",
    "elements of the output were never written",
    "write empty bags and the last block's elements too, or clear the output first",
)


class Guarded:
    """An array between two guard zones.

    Attributes: array, of the kind, dtype and shape of the original, row-major.
    """

    def __init__(self, original: Any, zone_byte: int = NAN_BYTE) -> None:
        self._original = original
        self._zone_byte = zone_byte
        self._size = original.nbytes
        memory = np.empty(2 * ZONE_BYTES + self._size + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        memory = memory[start : start + 2 * ZONE_BYTES + self._size]
        memory[...] = zone_byte
        is_numpy = isinstance(original, np.ndarray)
        self._memory: Any = memory if is_numpy else to_torch(memory, original.device)
        self.array: Any = self._inner().view(original.dtype).reshape(original.shape)
        self.array[...] = original if is_numpy else original.detach()

    def _inner(self) -> Any:
        return self._memory[ZONE_BYTES : ZONE_BYTES + self._size]

    def outside(self) -> str:
        """Which bytes outside the array were changed, in words; "" where none was."""
        memory = to_numpy(self._memory)
        before = np.flatnonzero(memory[:ZONE_BYTES] != self._zone_byte)
        behind = np.flatnonzero(memory[ZONE_BYTES + self._size :] != self._zone_byte)
        texts = []
        if before.size:
            texts.append(
                f"{before.size:,} bytes up to {ZONE_BYTES - before[0]:,} before its beginning"
            )
        if behind.size:
            texts.append(f"{behind.size:,} bytes up to {behind[-1] + 1:,} behind its end")
        return " and ".join(texts)

    def changed(self) -> int:
        """How many elements have other bits than the original."""
        now = codes_of(to_numpy(self.array))
        original = np.ascontiguousarray(codes_of(to_numpy(self._original)))
        as_bytes = (now.size, now.itemsize)
        bits = np.ascontiguousarray(now).view(np.uint8).reshape(as_bytes)
        return int((bits != original.view(np.uint8).reshape(as_bytes)).any(1).sum())


def _is_guarded(array: object) -> bool:
    return isinstance(array, np.ndarray) or type(array).__module__.split(".")[0] == "torch"


class GuardedCall:
    """The buffers of one call of a kernel.

    Attributes: inputs, outputs (by name, to be handed to the kernel).
    """

    def __init__(
        self,
        inputs: Mapping[str, object],
        truths: Mapping[str, Truth] | None = None,
        zone_byte: int = NAN_BYTE,
    ) -> None:
        """Copies of the inputs; outputs for the truths, of the kind of the inputs."""
        self._inputs = {k: Guarded(a, zone_byte) for k, a in inputs.items() if _is_guarded(a)}
        self.inputs: dict[str, Any] = {
            name: self._inputs[name].array if name in self._inputs else _copy(array)
            for name, array in inputs.items()
        }
        tensor: Any = next((a for a in inputs.values() if hasattr(a, "new_empty")), None)
        self._patterns = {name: _unwritten(truth) for name, truth in (truths or {}).items()}
        self._outputs = {
            name: Guarded(
                pattern if tensor is None else to_torch(pattern, tensor.device), zone_byte
            )
            for name, pattern in self._patterns.items()
        }
        self.outputs = {name: guarded.array for name, guarded in self._outputs.items()}

    def verdicts(self, updated: Collection[str]) -> list[Verdict]:
        """What the kernel did beside its answer; each is a failure.

        updated : names of inputs that it may change, as updates in place do.
        """
        verdicts = []
        for kind, buffers in (("inputs/", self._inputs), ("", self._outputs)):
            for name, buffer in buffers.items():
                if outside := buffer.outside():
                    message = f"wrote outside: {outside}"
                    verdicts.append(_failure(f"{kind}{name}", message, WROTE_OUTSIDE))
        for name, buffer in self._inputs.items():
            changed = buffer.changed() if name not in updated else 0
            if changed:
                message = f"changed an input: {changed:,} elements have other bits after the call"
                verdicts.append(_failure(f"inputs/{name}", message, CHANGED_AN_INPUT, changed))
        for name, pattern in self._patterns.items():
            left = _same_bits(to_numpy(self.outputs[name]), pattern)
            if left.any():
                message = f"left unwritten: {left.sum():,} elements, first {_index(left)}"
                verdicts.append(_failure(name, message, LEFT_UNWRITTEN, int(left.sum())))
        return verdicts


def read_outside(answers: Mapping[str, Array], with_zeros: Mapping[str, Array]) -> list[Verdict]:
    """Outputs that are others where guard zones are zeros instead of NaN; each is a failure."""
    verdicts = []
    for name, answer in answers.items():
        differing = ~_same_bits(answer, with_zeros[name])
        if differing.any():
            message = (
                f"read outside: {differing.sum():,} elements depend on what lies beyond the "
                f"inputs, first {_index(differing)}"
            )
            verdicts.append(_failure(name or "answer", message, READ_OUTSIDE, int(differing.sum())))
    return verdicts


def _failure(output: str, message: str, mistake: Mistake, wrong: int = 0) -> Verdict:
    return Verdict(output, "failed", message, wrong=wrong, mistakes=(mistake,))


def _index(elements: Bools) -> str:
    return f"index {[int(i) for i in np.argwhere(elements)[0]]}"


def _same_bits(x: Array, y: Array) -> Bools:
    bits = [np.ascontiguousarray(codes_of(array)) for array in (x, y)]
    unsigned = np.dtype(f"u{bits[0].itemsize}")
    return np.asarray(bits[0].view(unsigned) == bits[1].view(unsigned))


def _unwritten(truth: Truth) -> Array:
    """An output of a truth's shape and type, full of the pattern."""
    shape = np.shape(truth.reference)
    if truth.exact:
        dtype = np.asarray(truth.reference).dtype
        pattern = UNWRITTEN_WHOLE >> (64 - 8 * dtype.itemsize)
        return np.full(shape, pattern, f"u{dtype.itemsize}").view(dtype)
    pattern = UNWRITTEN[truth.format]
    if truth.format == "fp32":
        return np.full(shape, pattern, np.uint32).view(np.float32)
    codes = np.full(shape, pattern, CODES[truth.format])
    return codes.view([(truth.format, CODES[truth.format])])


def _copy(array: object) -> object:
    """An array of a kind that has no guard zones, which a kernel may write to."""
    return array.copy() if hasattr(array, "copy") else array
