"""How can a call fail? The function raises, its rank is lost, or it takes too long."""

from numbers import Real

from neocpu.core.errors import NeocpuError, RpcError

LONGEST_TEXT = 10_000  # characters of an error that are sent


class RemoteError(RpcError):
    """The function raised an error on its rank, or could not be called there.

    Attributes: rank, where; function; kind, name of the class of the error.
    """

    rank = -1
    function = ""
    kind = ""


class PeerLost(RpcError):
    """The rank that was called is gone, left, or does not answer.

    Attributes: rank; said, why it left, in its own words ("": it said nothing).
    """

    rank = -1
    said = ""


class CallTimeout(RpcError):
    """The rank is there, but the call took longer than it may. Attribute: rank."""

    rank = -1


class BadMessage(RpcError):
    """A message that cannot be read, or a value that cannot be sent."""


def text_of(error: BaseException) -> str:
    """What an error says, as a text that can be sent."""
    try:
        text = str(error)
    except Exception:
        text = "it cannot say what is wrong"
    if not isinstance(error, NeocpuError):
        text = f"{type(error).__name__}: {text}"
    return text[:LONGEST_TEXT].encode(errors="backslashreplace").decode()


def check_seconds(name: str, seconds: object) -> None:
    """Raise RpcError for what is no time to wait."""
    if not isinstance(seconds, Real) or not float(seconds) > 0:
        raise RpcError(f"{name} is {seconds!r}; it has to be seconds above 0 (math.inf: any)")
