"""How do values become bytes? One byte says which type comes, then the value; arrays that are not
small travel as they lie in memory.

    type       bytes that follow its code (little-endian)
    none, true, false
    int        i64
    float      f64
    str        u32 length, UTF-8
    bytes      u32 length, bytes
    array      u8 dtype, u8 dimensions, i64 each; elements in C order
    far array  the same, elements are the next body of the letter
    tuple, list, dict   u32 length, values; a dict's keys and values in turn
    handle     u8 kind, a tuple: what another part of this package makes of it

Nothing is executed to read them, and no length is believed: each is compared with the bytes that
are there before anything is allocated for it.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from neocpu.core.types import Bytes, Dtype, Elements
from neocpu.parallel.rpc.failures import BadMessage

# Bytes of an array that travels in the head: one message less, and copies of it cost nothing.
NEAR = 1 << 12
# Values within values, at most.
DEEPEST = 32
_NONE, _TRUE, _FALSE, _INT, _FLOAT, _STR, _BYTES, _ARRAY, _FAR, _TUPLE, _LIST, _DICT, _HANDLE = (
    range(13)
)
_I64 = struct.Struct("<q")
_F64 = struct.Struct("<d")
_U32 = struct.Struct("<I")
_NUMBERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
DTYPES = tuple(np.dtype(name).newbyteorder("<") for name in ("?", *_NUMBERS))
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}

Value: TypeAlias = object  # of the types above


class Handles(Protocol):
    """What stands for an object of one class on its way to another rank."""

    def pack(self, thing: object, to: int) -> tuple[Value, ...]:
        """Values that the rank `to` makes the object of."""

    def cancel(self, values: tuple[Value, ...]) -> None:
        """What `pack` returned will not be sent."""

    def unpack(self, source: int, values: tuple[Value, ...]) -> object:
        """The object, from the values that came from a rank. Raises BadMessage."""


class HandleKind(NamedTuple):
    """A class whose objects travel as handles."""

    cls: type
    code: int
    handles: Handles


class ValueWriter:
    """Values on their way to a rank.

    Attributes: head, the bytes of values; bodies, of arrays that travel by themselves.
    """

    def __init__(self, to: int, kinds: Sequence[HandleKind] = ()) -> None:
        self.head = bytearray()
        self.bodies: list[Bytes] = []
        self._to = to
        self._kinds = kinds
        self._packed: list[tuple[Handles, tuple[Value, ...]]] = []

    def cancel(self) -> None:
        """What was written will not be sent."""
        for handles, values in self._packed:
            handles.cancel(values)

    def write(self, value: Value, depth: int = 0) -> None:
        """Append a value. Raises BadMessage where its type cannot be sent."""
        if depth > DEEPEST:
            raise BadMessage(f"values within values can be sent {DEEPEST} deep, not deeper")
        head = self.head
        if value is None:
            head.append(_NONE)
        elif value is True or value is False:
            head.append(_TRUE if value else _FALSE)
        elif isinstance(value, np.ndarray | np.generic):
            self._write_array(value)
        elif isinstance(value, int):
            head.append(_INT)
            head += self._packed_int(value)
        elif isinstance(value, float):
            head.append(_FLOAT)
            head += _F64.pack(value)
        elif isinstance(value, str):
            self._write_bytes(_STR, _utf8(value))
        elif isinstance(value, bytes | bytearray | memoryview):
            self._write_bytes(_BYTES, bytes(value))
        elif isinstance(value, tuple | list):
            self._write_items(_TUPLE if isinstance(value, tuple) else _LIST, value, depth)
        elif isinstance(value, Mapping):
            _check_keys(value)
            self._write_items(_DICT, [x for item in value.items() for x in item], depth)
        else:
            self._write_handle(value, depth)

    def _packed_int(self, value: int) -> bytes:
        try:
            return _I64.pack(value)
        except struct.error:
            raise BadMessage(
                f"the integer {value} has more than 64 bits; send it as text"
            ) from None

    def _write_bytes(self, code: int, data: bytes) -> None:
        self.head.append(code)
        self.head += _U32.pack(len(data))
        self.head += data

    def _write_items(self, code: int, items: Sequence[Value], depth: int) -> None:
        self.head.append(code)
        self.head += _U32.pack(len(items))
        for item in items:
            self.write(item, depth + 1)

    def _write_array(self, value: Elements | np.generic) -> None:
        if isinstance(value, np.ma.MaskedArray):
            raise BadMessage("an array with a mask cannot be sent; send its data and its mask")
        array = np.asarray(value)
        code = _CODES.get(array.dtype)
        if code is None:
            names = ", ".join(dtype.name for dtype in DTYPES)
            raise BadMessage(f"arrays of dtype {array.dtype} cannot be sent; these can: {names}")
        far = array.nbytes > NEAR
        self.head += bytes((_FAR if far else _ARRAY, code, array.ndim))
        for length in array.shape:
            self.head += _I64.pack(length)
        if far:
            flat = np.ascontiguousarray(array).reshape(-1)
            self.bodies.append(flat.view(np.uint8))
        else:
            self.head += array.tobytes()

    def _write_handle(self, value: object, depth: int) -> None:
        for cls, code, handles in self._kinds:
            if isinstance(value, cls):
                self.head += bytes((_HANDLE, code))
                values = handles.pack(value, self._to)
                self._packed.append((handles, values))
                self.write(values, depth + 1)
                return
        raise BadMessage(
            f"a {type(value).__name__} cannot be sent; None, bool, int, float, str, bytes, NumPy "
            "arrays, references, and tuples, lists and dicts of these can"
        )


class ValueReader:
    """Values that came from a rank. head, bodies : of the letter; at : where the values begin."""

    def __init__(
        self,
        source: int,
        head: bytes,
        bodies: Sequence[Bytes],
        at: int = 0,
        kinds: Sequence[HandleKind] = (),
    ) -> None:
        self._source = source
        self._head = head
        self._bodies = list(bodies)
        self._at = at
        self._body = 0
        self._kinds = kinds

    def values(self, count: int) -> list[Value]:
        """So many values, which are all that came. Raises BadMessage."""
        self._check_count(count, 1)
        values = [self._read(0) for _ in range(count)]
        if self._at != len(self._head) or self._body != len(self._bodies):
            raise BadMessage(f"{len(self._head) - self._at} bytes follow its last value")
        # from here on the arrays belong to whoever takes the values
        self._bodies.clear()
        return values

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._head):
            raise BadMessage(f"it ends {end - len(self._head)} bytes within a value")
        data = self._head[self._at : end]
        self._at = end
        return data

    def _length(self) -> int:
        return int(_U32.unpack(self._take(4))[0])

    def _check_count(self, count: int, least: int) -> None:
        if count * least > len(self._head) - self._at:
            raise BadMessage(f"it announces {count} values in {len(self._head) - self._at} bytes")

    def _read(self, depth: int) -> Value:
        if depth > DEEPEST:
            raise BadMessage(f"its values are nested more than {DEEPEST} deep")
        code = self._take(1)[0]
        if code <= _FALSE:
            return (None, True, False)[code]
        if code == _INT:
            return int(_I64.unpack(self._take(8))[0])
        if code == _FLOAT:
            return float(_F64.unpack(self._take(8))[0])
        if code == _STR:
            return self._text()
        if code == _BYTES:
            return self._take(self._length())
        if code in (_ARRAY, _FAR):
            return self._array(far=code == _FAR)
        if code in (_TUPLE, _LIST, _DICT):
            return self._items(code, depth)
        if code == _HANDLE:
            return self._handle(depth)
        raise BadMessage(f"no type of values has the code {code}")

    def _text(self) -> str:
        try:
            return self._take(self._length()).decode()
        except UnicodeDecodeError:
            raise BadMessage("a text in it is no UTF-8") from None

    def _items(self, code: int, depth: int) -> Value:
        count = self._length()
        self._check_count(count, 1)
        items = [self._read(depth + 1) for _ in range(count)]
        if code != _DICT:
            return tuple(items) if code == _TUPLE else items
        keys = items[::2]
        _check_keys(keys)
        if count % 2:
            raise BadMessage("a key of a dict in it lacks a value")
        return dict(zip(keys, items[1::2]))

    def _array(self, far: bool) -> Elements:
        code, dimensions = self._take(2)
        if code >= len(DTYPES):
            raise BadMessage(f"no dtype has the code {code}")
        dtype = DTYPES[code]
        shape = struct.unpack(f"<{dimensions}q", self._take(8 * dimensions))
        size = _product(shape) * dtype.itemsize
        if far:
            return _shaped(self._next_body(size), dtype, shape)
        # a copy: it may be written to
        return _shaped(np.frombuffer(self._take(size), np.uint8), dtype, shape).copy()

    def _next_body(self, size: int) -> Bytes:
        if self._body == len(self._bodies):
            raise BadMessage("it names more arrays than came with it")
        body = self._bodies[self._body]
        self._body += 1
        if body.size != size:
            raise BadMessage(f"an array of {size} bytes came with {body.size}")
        return body

    def _handle(self, depth: int) -> object:
        kind = self._take(1)[0]
        values = self._read(depth + 1)
        if not isinstance(values, tuple):
            raise BadMessage(f"a handle of kind {kind} in it has no values")
        for _, code, handles in self._kinds:
            if code == kind:
                return handles.unpack(self._source, values)
        raise BadMessage(f"no handle has the kind {kind}")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as problem:
        raise BadMessage(
            f"a text whose character {problem.start} is half of one cannot be sent; send bytes"
        ) from None


def _check_keys(keys: Iterable[object]) -> None:
    for key in keys:
        if not isinstance(key, str | int):
            raise BadMessage(
                f"a dict with a key of type {type(key).__name__} cannot be sent; keys are texts or "
                "integers"
            )


def _product(shape: Sequence[int]) -> int:
    """Elements of an array; Python's integers do not overflow. Raises BadMessage."""
    product = 1
    for length in shape:
        if length < 0:
            raise BadMessage(f"an array in it has {length} elements along a dimension")
        product *= length
    return product


def _shaped(data: Bytes, dtype: Dtype, shape: tuple[int, ...]) -> Elements:
    try:
        return data.view(dtype).reshape(shape)
    except ValueError:  # more dimensions than arrays have, or an empty one of impossible lengths
        raise BadMessage(f"no array has the shape {shape}") from None
