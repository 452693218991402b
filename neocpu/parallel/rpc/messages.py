"""What do agents write to each other? Calls, answers, failures and notes, each with one header.

magic  u8[4]  "nrpc"        version  u8        kind  u8        length of the name  u16
number of the call  u64     number of values  u32              the name, then the values
"""

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

from neocpu.core.types import Bytes
from neocpu.parallel.rpc.failures import BadMessage
from neocpu.parallel.rpc.values import HandleKind, Value, ValueReader, ValueWriter
from neocpu.parallel.transport.mail import LARGEST_HEAD, LARGEST_LETTER, MOST_BODIES, Letter

MAGIC = b"nrpc"
VERSION = 1
_HEADER = struct.Struct("<4sBBHQI")
LONGEST_NAME = 255


class MessageKind(enum.IntEnum):
    """What a message is: a call, which is answered by an answer or a failure, or a note."""

    CALL = 1
    ANSWER = 2
    FAILURE = 3
    NOTE = 4


class RpcMessage(NamedTuple):
    """A message that was read as far as its values: `total` ones. name : of the function, "" of an
    answer. call : the number that its sender gave the call.
    """

    source: int
    kind: MessageKind
    name: str
    call: int
    total: int
    reader: ValueReader

    def values(self) -> list[Value]:
        """Its values. Raises BadMessage."""
        return self.reader.values(self.total)


class Outgoing(NamedTuple):
    """A message to be sent: its kind, the name of its function, the number of its call."""

    kind: MessageKind
    name: str
    call: int


def compose(
    to: int,
    message: Outgoing,
    values: Sequence[Value],
    kinds: Sequence[HandleKind] = (),
    largest: int = LARGEST_LETTER,
) -> tuple[bytes, list[Bytes]]:
    """Head and bodies of the letter of a message with its values, of at most `largest` bytes.

    Raises BadMessage where one of them cannot be sent.
    """
    writer = ValueWriter(to, kinds)
    try:
        for value in values:
            writer.write(value)
        name = message.name.encode()
        header = _HEADER.pack(MAGIC, VERSION, message.kind, len(name), message.call, len(values))
        head = b"".join((header, name, writer.head))
        _check_size(len(head), writer, largest)
    except BaseException:
        writer.cancel()
        raise
    return head, writer.bodies


def _check_size(head: int, writer: ValueWriter, largest: int) -> None:
    """Raise BadMessage where no mail would take it in."""
    arrays = len(writer.bodies)
    size = sum(body.size for body in writer.bodies)
    if head > LARGEST_HEAD or arrays > MOST_BODIES or size > largest:
        raise BadMessage(
            f"a message has {head} bytes of values and {arrays} arrays of {size} bytes; at most "
            f"{LARGEST_HEAD}, {MOST_BODIES} and {largest} can be sent: send large texts as arrays, "
            "and much in several calls"
        )


def read(letter: Letter, kinds: Sequence[HandleKind] = ()) -> RpcMessage:
    """The message that a letter is. Raises BadMessage."""
    head = letter.head
    if len(head) < _HEADER.size:
        raise BadMessage(f"it has {len(head)} bytes, fewer than a header")
    magic, version, kind, length, call, count = _HEADER.unpack_from(head)
    if magic != MAGIC or version != VERSION:
        raise BadMessage(
            f"it begins with {magic!r} and version {version}; "
            f"messages of this program with {MAGIC!r} and {VERSION}"
        )
    end = _HEADER.size + length
    try:
        name = head[_HEADER.size : end].decode()
        found_kind = MessageKind(kind)
    except ValueError:
        raise BadMessage(f"it is of kind {kind}, or its name is no text") from None
    if end > len(head) or length > LONGEST_NAME:
        raise BadMessage(f"its name has {length} bytes, of which {len(head) - _HEADER.size} came")
    reader = ValueReader(letter.source, head, letter.bodies, end, kinds)
    # whoever gets the arrays is to be the only one who holds them (`snapshots.py`)
    letter.bodies.clear()
    return RpcMessage(letter.source, found_kind, name, call, count, reader)
