"""How does somebody's tensor become a NumPy array?

From NumPy, torch on CPU or CUDA, JAX, CuPy, or anything with DLPack. NumPy has no bfloat16 and no
fp8: elements of such formats travel as codes in an array whose dtype is a record with one field
that names the format, e.g. `np.dtype([("bf16", "<u2")])`. torch is imported only to look at an
object that is a torch tensor, hence never before torch is there.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from neocpu.core.errors import OracleError
from neocpu.core.formats import FORMATS
from neocpu.core.types import Elements

Array = Elements

# What torch, ml_dtypes (JAX) and safetensors call a narrow format -> our name of it.
NAMES = {
    "bfloat16": "bf16",
    "BF16": "bf16",
    "float8_e4m3fn": "fp8_e4m3",
    "F8_E4M3": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "F8_E5M2": "fp8_e5m2",
}
# format -> dtype of one element's code
CODES = {name: form.dtype for name, form in FORMATS.items() if form.number is not None}


def coded(codes: Array, form: str) -> Array:
    """A view of codes (any dtype of the format's width) as elements of a narrow format."""
    return np.ascontiguousarray(codes).view(CODES[form]).view([(form, CODES[form])])


def format_of(array: Array) -> str:
    """Name of the narrow format whose codes an array holds ("" if it holds numbers)."""
    return array.dtype.names[0] if array.dtype.names else ""


def codes_of(array: Array) -> Array:
    """The bare codes of an array of narrow elements; any other array as it is."""
    return array[array.dtype.names[0]] if array.dtype.names else array


def to_numpy(value: object, name: str = "array") -> Array:
    """A NumPy array of `value`, without a copy where none is needed; never writes to it.

    Takes NumPy arrays, torch tensors (any device, any layout of strides), objects with DLPack or
    `__array__`, numbers and nested lists. Raises OracleError, naming the array, for what is none of
    these or cannot be brought to the host.
    """
    if isinstance(value, np.ndarray):
        return _named(value, name)
    kind = type(value)
    if kind.__module__.split(".")[0] == "torch" or hasattr(value, "is_nested"):
        return _from_torch(value)
    if hasattr(value, "__dlpack__"):
        try:
            return _named(_from_dlpack(value), name)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            # a device, or a dtype that NumPy lacks; JAX's bf16 has a way by __array__
            if not hasattr(value, "__array__"):
                raise OracleError(
                    f"{name}: DLPack gives no array on the host ({error}); copy it there first"
                ) from error
    try:
        return _named(np.asarray(value), name)
    except (TypeError, ValueError) as error:
        raise OracleError(
            f"{name}: a {kind.__module__}.{kind.__qualname__} is not an array ({error})"
        ) from error


def _from_dlpack(value: Any) -> Array:
    """DLPack; from another device, by the exporter's own copy to the host."""
    cpu = 1  # kDLCPU
    if value.__dlpack_device__()[0] == cpu:
        return np.from_dlpack(value)
    return np.from_dlpack(value, device="cpu", copy=True)


def _from_torch(tensor: object) -> Array:
    """A torch tensor's elements, detached, on the host; narrow floats as codes."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise OracleError(
            f"a {type(tensor).__name__} is no tensor: give a tensor, e.g. `.data` or `.weight` of "
            "it"
        )
    # NumPy cannot see lazy conjugates and signs, nor memory of a device.
    host = tensor.detach().resolve_conj().resolve_neg().to("cpu")
    if host.layout is not torch.strided:
        host = host.to_dense()
    form = NAMES.get(str(host.dtype).removeprefix("torch."))
    if form is None:
        return host.numpy()
    code = {1: torch.uint8, 2: torch.int16}[host.element_size()]
    return coded(host.contiguous().view(code).numpy(), form)


def to_torch(array: Array, device: object) -> Any:
    """A torch tensor of an array's elements, on a device, that may be written to.

    It shares memory with the array on the host; codes become elements of torch's own formats.
    """
    import torch

    form = format_of(array)
    if not form:
        return torch.from_numpy(array).to(device)
    codes = codes_of(array)
    signed = torch.from_numpy(np.ascontiguousarray(codes).view(f"i{codes.itemsize}"))
    names = {ours: theirs for theirs, ours in NAMES.items() if theirs.islower()}
    return signed.view(getattr(torch, names.get(form, "float16"))).to(device)


def _named(array: Array, name: str) -> Array:
    """The array with a dtype that is known here: ml_dtypes' narrow floats become codes.

    Raises OracleError for text, objects and unknown records.
    """
    form = NAMES.get(array.dtype.name)
    if form is not None:
        return coded(array.view(CODES[form]), form)
    if array.dtype.names and (len(array.dtype.names) != 1 or array.dtype.names[0] not in CODES):
        raise OracleError(
            f"{name}: records of fields {list(array.dtype.names)} are not numbers of a known format"
        )
    if array.dtype.kind not in "fiub" and not array.dtype.names:
        raise OracleError(f"{name}: elements of type {array.dtype} are not numbers")
    # Files may be of machines of the other byte order; arithmetic wants our own.
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def arrays(named: Mapping[str, object], what: str) -> dict[str, Array]:
    """`to_numpy` of every entry, by name. what : how messages call the mapping, e.g. "answer"."""
    return {str(name): to_numpy(value, f'{what} "{name}"') for name, value in named.items()}
