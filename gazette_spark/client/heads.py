"""Write heads, by the cheapest call there is: a read at the head that asks for metadata only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from gazette_spark.client.channel import Connection
from gazette_spark.client.status import read_status_error
from gazette_spark.errors import GazetteError, UnavailableError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.tokens import Capability, journal_claims

CALLS_IN_FLIGHT = 64
"""Head calls open at a time: the broker's latency is hidden, its stream limit not reached."""


class HeadCall:
    """One question for a write head, under way from the start; :meth:`take` ends it."""

    def __init__(self, connection: Connection, journal: str, *, timeout_s: float) -> None:
        self.journal = journal
        self._connection = connection
        request = pb.ReadRequest(journal=journal, offset=-1, metadata_only=True)
        metadata = connection.metadata(journal_claims(Capability.READ, journal))
        self._answers = connection.stub().Read(request, timeout=timeout_s, metadata=metadata)

    def take(self) -> int:
        """Return the write head.

        Raises:
            StatusError: the broker gives none, e.g. SUSPENDED.
        """
        message: pb.ReadResponse | None = None
        with self._connection.errors():
            for answer in self._answers:
                message = message or answer
        if message is not None and message.HasField("header"):
            self._connection.observe(self.journal, message.header)
        if message is None:
            problem = f"journal {self.journal!r}: the stream ended with no answer"
            raise UnavailableError(self._connection.endpoint.text, problem)
        # An offset of -1 is the head itself, where nothing can be read yet.
        if message.status not in (pb.OK, pb.OFFSET_NOT_YET_AVAILABLE):
            raise read_status_error(message, self.journal)
        return message.write_head


def write_heads(
    dial: Callable[[str], Connection],
    journals: Iterable[str],
    again: Callable[[str], int],
    *,
    timeout_s: float,
) -> dict[str, int]:
    """Return many write heads, with many calls under way at once.

    ``dial`` gives each journal's connection. Each journal whose call fails is given to ``again``, which
    tries for as long as it takes.
    """
    heads: dict[str, int] = {}
    under_way: deque[HeadCall] = deque()

    def take() -> None:
        call = under_way.popleft()
        try:
            heads[call.journal] = call.take()
        except GazetteError:
            heads[call.journal] = again(call.journal)

    for journal in dict.fromkeys(journals):
        if len(under_way) == CALLS_IN_FLIGHT:
            take()
        under_way.append(HeadCall(dial(journal), journal, timeout_s=timeout_s))
    while under_way:
        take()
    return heads
