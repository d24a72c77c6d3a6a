"""Makes calls from one broker to another: proxied requests, and Replicate streams.

A broker signs these calls itself, because it has checked its own caller.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc

from gazette_spark._server.topology import Member
from gazette_spark.broker.replication.pipeline import PeerLostError
from gazette_spark.client._transport.channel import Endpoint, cancel, starting_call
from gazette_spark.errors import GazetteError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc
from gazette_spark.protocol.tokens import Capability, KeySet, journal_claims

LOOK_AHEAD = 8
"""Maximum number of messages of a Replicate stream that wait to be sent."""

# Brokers send content in messages of any size, and find a restarted peer within half a second. Channels are
# not shared, because cutting one off must not end the calls of another broker in this process.
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
]


@dataclass(eq=False)
class PeerError(GazetteError):
    """A call to another broker failed, so the proxied call fails. Never raised outside the broker."""

    code: grpc.StatusCode
    details: str

    def __str__(self) -> str:
        return self.details

    @classmethod
    def of(cls, error: grpc.RpcError) -> PeerError:
        """Return the error of a failed call. A cancelled call means that the peer cannot be reached."""
        # The channel was closed, because the peer cannot be reached. The caller's own call was not cancelled.
        code: grpc.StatusCode = error.code()
        if code is grpc.StatusCode.CANCELLED:
            code = grpc.StatusCode.UNAVAILABLE
        return cls(code, error.details() or code.name)


class Peers:
    """Connections to the other brokers of a cluster. Any thread may call anything."""

    def __init__(
        self,
        local: Member,
        *,
        keys: KeySet | None = None,
        is_reachable: Callable[[Member], bool] = lambda _member: True,
    ) -> None:
        """Prepare connections; each is made when it is first needed.

        Args:
            local: this broker.
            keys: keys that sign the calls, if brokers require tokens.
            is_reachable: returns whether a member can be reached; called for each call.
        """
        self._local = local
        self._keys = keys
        self._is_reachable = is_reachable
        self._lock = threading.Lock()
        self._channels: dict[Member, grpc.Channel] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"Peers({self._local.suffix}, {len(self._channels)} connections)"

    def stub(self, member: Member) -> pb_grpc.JournalStub:
        """Return a stub of a member.

        Raises:
            PeerError: it cannot be reached.
        """
        with self._lock:
            if self._closed or not self._is_reachable(member):
                problem = f"broker {member.zone}/{member.suffix} cannot be reached"
                raise PeerError(grpc.StatusCode.UNAVAILABLE, problem)
            if member not in self._channels:
                self._channels[member] = self._dial(member)
            return pb_grpc.JournalStub(self._channels[member])

    def metadata(self, capability: Capability, journal: str) -> tuple[tuple[str, str], ...]:
        """Return the metadata that authorizes a call about a journal."""
        if self._keys is None:
            return ()
        # Sign with the capability of this call only. The caller of a proxied call has already been checked,
        # but the peer also checks brokers.
        token = self._keys.sign(journal_claims(capability, journal), now=time.time())
        return (("authorization", f"Bearer {token}"),)

    def cut(self, *members: Member) -> None:
        """End every call to some members, or to all."""
        with self._lock:
            cut = members or tuple(self._channels)
            channels = [self._channels.pop(member) for member in cut if member in self._channels]
        # Do this outside the lock: closing ends calls, whose threads may immediately request a stub.
        for channel in channels:
            channel.close()

    def close(self) -> None:
        """End every call, and refuse later ones."""
        with self._lock:
            self._closed = True
        self.cut()

    def _dial(self, member: Member) -> grpc.Channel:
        endpoint = Endpoint.parse(member.endpoint)
        if endpoint.secure:
            return grpc.secure_channel(endpoint.target, grpc.ssl_channel_credentials(), _OPTIONS)
        return grpc.insecure_channel(endpoint.target, _OPTIONS)


class ReplicateStream:
    """A Replicate stream to one member: messages wait in a short queue until gRPC sends them."""

    def __init__(self, member: Member, peers: Peers, journal: str) -> None:
        """Open the stream.

        Raises:
            PeerLostError: the member cannot be reached.
        """
        self.member = member.process_id
        self._changed = threading.Condition()
        # gRPC reads the messages in a separate thread. The short queue lets the primary run ahead of the
        # network, but not by a whole append.
        self._waiting: deque[pb.ReplicateRequest] = deque()
        self._is_closed = False
        self.is_over = False
        try:
            stub = peers.stub(member)
            metadata = peers.metadata(Capability.REPLICATE, journal)
            with starting_call():
                self._call = stub.Replicate(self._requests(), metadata=metadata)
        except (
            PeerError,
            ValueError,
        ) as error:  # gRPC raises ValueError if the channel was closed in the meantime.
            raise PeerLostError(str(error)) from error
        # A call that has already ended accepts no callback.
        if not self._call.add_callback(self._ended):
            self._ended()

    def __repr__(self) -> str:
        return f"ReplicateStream({self.member.suffix}, waiting={len(self._waiting)}, over={self.is_over})"

    def send(self, request: pb.ReplicateRequest) -> None:
        """Send a message, as soon as there is room for it."""
        with self._changed:
            # A hanging replica blocks the primary here. The end of the client's call, or a new route, cancels
            # the stream.
            self._changed.wait_for(lambda: self.is_over or len(self._waiting) < LOOK_AHEAD)
            if not self.is_over:
                self._waiting.append(request)
                self._changed.notify_all()
                return
        self.receive()  # This raises the reason, unless there are still answers.
        raise PeerLostError("the stream ended")

    def receive(self) -> pb.ReplicateResponse:
        """Return the next answer."""
        try:
            answer: pb.ReplicateResponse = next(self._call)  # type: ignore[call-overload]  # It is an iterator.
        except StopIteration:
            raise PeerLostError("it ended the stream") from None
        except grpc.RpcError as error:
            raise PeerLostError(PeerError.of(error).details) from None
        return answer

    def close(self) -> None:
        """Half-close the stream: no message follows."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def cancel(self) -> None:
        """End the stream now."""
        self.close()
        cancel(self._call)

    def _ended(self) -> None:
        with self._changed:
            self.is_over = True
            self._changed.notify_all()

    def _requests(self) -> Iterator[pb.ReplicateRequest]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed or self.is_over)
                # The end of the iteration half-closes the stream. The replica then rolls back the bytes that
                # were not committed.
                if self.is_over or not self._waiting:
                    return
                request = self._waiting.popleft()
                self._changed.notify_all()
            yield request
