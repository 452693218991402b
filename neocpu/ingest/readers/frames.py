"""How do readers, their master and trainers talk? In frames on TCP connections.

    16 bytes     sizes of the two parts, u64 each
    JSON         a note, and the dtypes and shapes of arrays
    arrays       their bytes, one after the other, each begun at a multiple of 64

A frame holds data only: whatever arrives, nothing of it is run. Who connects says the job's token
before anything else.
"""

import hmac
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Elements, JsonObject

ALIGNED = 64  # bytes; kernels are compiled for arrays that begin at whole elements
SIZES = struct.Struct("<QQ")
MOST_NOTE = 1 << 30  # bytes of JSON: a damaged size must not ask for any memory
SECONDS = 10.0  # to connect to one address
PATIENCE = 60.0  # with somebody who does not answer
DTYPES = ("float32", "int32", "int64")

Address = tuple[str, int]


class Frame(NamedTuple):
    """What was sent at once."""

    note: JsonObject
    arrays: list[Elements]


def send(connection: socket.socket, note: JsonObject, arrays: Sequence[Elements] = ()) -> None:
    """Send a frame. Raises OSError where nobody is there any more."""
    layout = [[str(array.dtype), array.shape] for array in arrays]
    head = json.dumps({"note": note, "arrays": layout}).encode()
    parts: list[memoryview | bytes] = []
    for array in arrays:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        parts += [data.data, bytes(-data.size % ALIGNED)]
    size = sum(len(part) for part in parts)
    connection.sendall(SIZES.pack(len(head), size) + head)
    for part in parts:
        connection.sendall(part)


def receive(connection: socket.socket) -> Frame | None:
    """The next frame; None where the other side has ended, or sends none."""
    try:
        sizes = _bytes(connection, SIZES.size)
        if sizes is None:
            return None
        head_size, size = SIZES.unpack(sizes)
        head = _bytes(connection, head_size) if head_size <= MOST_NOTE else None
        if head is None:
            return None
        layout = json.loads(bytes(head))
        expected = sum(_padded(dtype, shape) for dtype, shape in layout["arrays"])
        if expected != size or not {dtype for dtype, _ in layout["arrays"]} <= {*DTYPES}:
            return None
        data = _bytes(connection, size)
        return None if data is None else Frame(layout["note"], _arrays(data, layout["arrays"]))
    except (OSError, ValueError, TypeError, KeyError, MemoryError):
        return None


def _arrays(data: bytearray, layout: Sequence[tuple[str, Sequence[int]]]) -> list[Elements]:
    """Arrays of these dtypes and shapes, one after the other in a frame."""
    arrays = []
    first = 0
    for dtype, shape in layout:
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(data, dtype, count, first).reshape(shape))
        first += _padded(dtype, shape)
    return arrays


def _padded(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of an array in a frame."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return -(-size // ALIGNED) * ALIGNED


def _bytes(connection: socket.socket, size: int) -> bytearray | None:
    """So many bytes; None where the connection ends before them."""
    # aligned, as NumPy's arrays are and a bytearray of some KiB need not be
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            return None
        view = view[count:]
    return data


def connect(addresses: Sequence[Address], token: str) -> socket.socket:
    """A connection to whoever listens at one of these addresses and knows the token.

    Raises ConnectionError where none is reached.
    """
    end = time.monotonic() + PATIENCE
    begun = -SECONDS
    why = "it speaks another language, or for another job"
    # who refuses at once is gone; who does not answer may be stopped, and go on
    while time.monotonic() - begun > SECONDS / 2 and time.monotonic() < end:
        begun = time.monotonic()
        for address in addresses:
            try:
                connection = socket.create_connection((address[0], address[1]), SECONDS)
                # another program may listen at that port of another host's address
                if _meet(connection, token):
                    return connection
            except OSError as error:
                why = str(error)
    names = ", ".join(f"{host}:{port}" for host, port in addresses)
    raise ConnectionError(f"no connection to {names}: {why}")


class Connections:
    """Who comes to a listener and knows the token: each is served by a thread, until `close`."""

    def __init__(
        self, listener: socket.socket, token: str, serve: Callable[[socket.socket], None]
    ) -> None:
        self._listener = listener
        self._token = token
        self._serve = serve
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._closed = False
        threading.Thread(target=self._accept, name="readers", daemon=True).start()

    def add(self, connection: socket.socket) -> None:
        """Take in a connection that ends with the others."""
        with self._lock:
            self._open.append(connection)
            closed = self._closed
        if closed:
            end(connection)

    def close(self) -> None:
        """Listen no more; every connection ends."""
        with self._lock:
            self._closed = True
            connections = [self._listener, *self._open]
        for connection in connections:
            end(connection)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection = accept(self._listener, self._token)
                if connection is not None:
                    self.add(connection)
                    threading.Thread(
                        target=self._serve, args=(connection,), name="readers", daemon=True
                    ).start()


def accept(listener: socket.socket, token: str) -> socket.socket | None:
    """The next connection of somebody who knows the token; None where there is none.

    Raises OSError once the listener is closed.
    """
    connection, _ = listener.accept()
    connection.settimeout(SECONDS)
    with suppress(OSError):
        if _meet(connection, token):
            return connection
    return None


def _meet(connection: socket.socket, token: str) -> bool:
    """Do both sides know the token? Else, and where OSError is raised, the connection is closed."""
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(token.encode())
        word = connection.recv(len(token), socket.MSG_WAITALL)
    except OSError:
        connection.close()
        raise
    if hmac.compare_digest(word, token.encode()):
        connection.settimeout(None)
        return True
    connection.close()
    return False


def end(connection: socket.socket) -> None:
    """Close a connection, or a listener, also for the thread that waits at it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
