"""How can a call fail? The function raises, its rank is lost, or it takes too long."""

from neocpu.core.errors import RpcError


class RemoteError(RpcError):
    """The function raised an error on its rank, or could not be called there.

    Attributes: rank, where; function; kind, name of the class of the error.
    """

    rank = -1
    function = ""
    kind = ""


class PeerLost(RpcError):
    """The rank that was called is gone, left, or does not answer. Attribute: rank."""

    rank = -1


class CallTimeout(RpcError):
    """The rank is there, but the call took longer than it may. Attribute: rank."""

    rank = -1


class BadMessage(RpcError):
    """A message that cannot be read, or a value that cannot be sent."""
