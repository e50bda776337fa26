"""How messages become ZeroMQ frames, and how sockets are opened.

A message is ``[header, *payload]``: the header is msgpack (a struct of `messages`,
tagged by class name), the payload is raw bytes that nothing in the control path
looks into. A ROUTER sees the sender's identity in front.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
import zmq

from npu_notebook import messages
from npu_notebook.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview
Payload: TypeAlias = Sequence[Buffer]
PeerKind: TypeAlias = Literal["notebook", "agent", "rank"]

_T = TypeVar("_T")

# A handshake that lost bytes would otherwise block a link for 30 s.
# Source: libzmq, zmq_setsockopt(3), ZMQ_HANDSHAKE_IVL.
_HANDSHAKE_MS = 3000

_encoder = msgspec.msgpack.Encoder()
_to_controller = msgspec.msgpack.Decoder(messages.ToController)
_update = msgspec.msgpack.Decoder(messages.Update)
_rank_command = msgspec.msgpack.Decoder(messages.RankCommand)
_agent_command = msgspec.msgpack.Decoder(messages.AgentCommand)


class Peer(NamedTuple):
    """Who is at the other end of the controller's socket."""

    kind: PeerKind
    name: str
    incarnation: int = 0


class CurveKeys(NamedTuple):
    """One side's key pair and the server's public key, Z85 text as bytes."""

    public: bytes
    secret: bytes
    server_public: bytes


def encode(message: messages.Message, payload: Payload = ()) -> list[Buffer]:
    """Return the frames of a message."""
    return [_encoder.encode(message), *payload]


def read_to_controller(
    frames: Sequence[Any],
) -> tuple[bytes, messages.ToController, list[Any]]:
    """Read what a ROUTER received: identity, message, payload.

    Raises
    ------
    ProtocolError
        If the header is not one of ours.
    """
    if len(frames) < 2:  # noqa: PLR2004  identity and header
        problem = f"a peer sent {len(frames)} frames instead of at least 2"
        raise ProtocolError(problem, "It is not a process of this package.")
    identity = frames[0]
    message = _decode(_to_controller, frames[1])
    return bytes(identity), message, list(frames[2:])


def read_update(frames: Sequence[Any]) -> tuple[messages.Update, list[Any]]:
    """Read what a notebook received."""
    return _decode(_update, frames[0]), list(frames[1:])


def read_rank_command(frames: Sequence[Any]) -> tuple[messages.RankCommand, list[Any]]:
    """Read what a rank received."""
    return _decode(_rank_command, frames[0]), list(frames[1:])


def read_agent_command(
    frames: Sequence[Any],
) -> tuple[messages.AgentCommand, list[Any]]:
    """Read what an agent received."""
    return _decode(_agent_command, frames[0]), list(frames[1:])


def _decode(decoder: msgspec.msgpack.Decoder[_T], header: Buffer) -> _T:
    try:
        return decoder.decode(header)
    except msgspec.DecodeError as error:
        problem = f"a message cannot be read ({error})"
        remedy = "Use one version of npu_notebook for all processes of a cluster."
        raise ProtocolError(problem, remedy) from error


def rank_identity(rank: int, incarnation: int) -> bytes:
    """Return the ZeroMQ identity of a rank's process."""
    return f"rank/{rank}/{incarnation}".encode()


def agent_identity(host: str) -> bytes:
    """Return the ZeroMQ identity of a host's agent."""
    return f"agent/{host}/0".encode()


def notebook_identity() -> bytes:
    """Return a new ZeroMQ identity for a notebook."""
    return f"notebook/{uuid.uuid4().hex[:12]}/0".encode()


def parse_identity(identity: bytes) -> Peer:
    """Return who an identity belongs to.

    Raises
    ------
    ProtocolError
        If it is none of ours.

    Examples
    --------
    >>> parse_identity(rank_identity(3, 1))
    Peer(kind='rank', name='3', incarnation=1)
    """
    kind, _, rest = identity.decode(errors="replace").partition("/")
    name, _, incarnation = rest.rpartition("/")
    if kind in ("notebook", "agent", "rank") and name and incarnation.isdigit():
        return Peer(cast("PeerKind", kind), name, int(incarnation))
    problem = f"a peer calls itself {identity!r}"
    raise ProtocolError(problem, "It is not a process of this package.")


def open_router(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: CurveKeys | None
) -> zmq.Socket[bytes]:
    """Bind the controller's one socket.

    Parameters
    ----------
    context : zmq.Context
        The process's context.
    endpoint : str
        ``ipc://`` inside a private directory, or ``tcp://``.
    keys : CurveKeys or None
        Needed for TCP, which is never opened without encryption.

    Raises
    ------
    ProtocolError
        For a TCP endpoint without keys.
    """
    _refuse_open_tcp(endpoint, keys)
    router = context.socket(zmq.ROUTER)
    # An unknown receiver must be an error we see, and no limit may drop a message:
    # memory is bounded by the output cap and by credit instead.
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.SNDHWM, 0)
    router.setsockopt(zmq.RCVHWM, 100)
    router.setsockopt(zmq.LINGER, 1000)
    router.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    if keys is not None:
        router.curve_server = True
        router.curve_publickey, router.curve_secretkey = keys.public, keys.secret
    router.bind(endpoint)
    return router


def open_dealer(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoint: str,
    identity: bytes,
    keys: CurveKeys | None = None,
) -> zmq.Socket[bytes]:
    """Connect a notebook, agent or rank to the controller.

    Raises
    ------
    ProtocolError
        For a TCP endpoint without keys.
    """
    _refuse_open_tcp(endpoint, keys)
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.IDENTITY, identity)
    dealer.setsockopt(zmq.SNDHWM, 0)
    dealer.setsockopt(zmq.RCVHWM, 0)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    if keys is not None:
        dealer.curve_publickey, dealer.curve_secretkey = keys.public, keys.secret
        dealer.curve_serverkey = keys.server_public
    dealer.connect(endpoint)
    return dealer


def _refuse_open_tcp(endpoint: str, keys: CurveKeys | None) -> None:
    if endpoint.startswith("tcp:") and keys is None:
        problem = f"{endpoint} would be opened without encryption"
        raise ProtocolError(problem, "Give the cluster's CURVE keys.")
