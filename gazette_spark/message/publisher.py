"""Publishes messages to journals, alone or as transactions across journals.

A message that is published *committed* counts as soon as it is in its journal. Messages that are published
*uncommitted* count when their journal has an acknowledgement (ACK) of their producer. A transaction is::

    publisher.publish_uncommitted(mapping, message)      # any number, to any journals
    intents = publisher.build_ack_intents()
    ...                                                  # store the intents together with the transaction
    write_ack_intents(client, intents)                   # after a crash, write the stored ones again

Storing the intents before the first one is written makes the transaction atomic: after a crash, either all of
them are written again, byte for byte, or none was written. The bytes contain producer and clock, so a reader
that has seen an ACK drops its repetition.

A message gets its UUID while its writer has the journal's append. So the clocks of one publisher ascend in
each journal, regardless of threads, and readers can drop the copies that a retried append leaves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from gazette_spark.client._append.service import AppendService, AsyncAppend, AsyncJournalClient
from gazette_spark.client._transport import retry
from gazette_spark.client.client import Client
from gazette_spark.errors import JournalNotFoundError, MessageError
from gazette_spark.message.interfaces import Framing, Message, framing_by_content_type
from gazette_spark.message.uuids import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    Clock,
    ProducerId,
    build_uuid,
    new_producer_id,
)

M = TypeVar("M", bound=Message)

Mapping = Callable[[M], tuple[str, str]]
"""Returns a message's journal and content type, like :mod:`gazette_spark.client._append.mappings`."""


@dataclass(frozen=True, slots=True)
class AckIntent:
    """Bytes that acknowledge a publisher's messages in a journal when they are appended to it."""

    journal: str
    intent: bytes


class PublisherClock:
    """A clock for one or several publishers. Thread-safe."""

    def __init__(self, value: Clock | None = None) -> None:
        """Start the clock at a value, by default 0."""
        self._value = value or Clock(0)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"PublisherClock({int(self._value)})"

    def update(self, unix_ns: int) -> None:
        """Advance to a time, in nanoseconds since the Unix epoch, unless the clock is ahead of it."""
        with self._lock:
            self._value = self._value.updated(unix_ns)

    def tick(self) -> Clock:
        """Advance by 1 µs, and return the clock."""
        with self._lock:
            self._value = self._value.ticked()
            return self._value


@dataclass(frozen=True, slots=True)
class _OpenJournal:
    """A journal with messages that wait for their acknowledgement."""

    framing: Framing
    template: Message


class Publisher:
    """Gives messages their UUIDs, and appends them in the background.

    Each publisher is a producer with its own id. Any thread may call :meth:`publish_committed`; the other
    methods are for one thread. It does not close its append service.
    """

    def __init__(
        self,
        service: AsyncJournalClient,
        clock: PublisherClock | None = None,
        *,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Make a publisher with a new producer id.

        Args:
            service: Appends the messages. All publishers of a process may share one.
            clock: Clock of the messages, which the caller updates; by default one that follows the time at
                each message.
            now_ns: Nanoseconds since the Unix epoch, for the default clock.
        """
        self._service = service
        self._clock = clock or PublisherClock()
        self._now_ns = now_ns if clock is None else None
        self._producer = new_producer_id()
        self._open: dict[str, _OpenJournal] = {}
        """Journals with uncommitted messages, in the order of their first messages."""
        self._turns: dict[str, threading.Lock] = {}
        """By journal, the lock of the thread that stamps and appends a message."""

    def __repr__(self) -> str:
        return f"Publisher({self._producer.hex()}, open_journals={len(self._open)})"

    @property
    def producer_id(self) -> ProducerId:
        """The producer id in this publisher's UUIDs."""
        return self._producer

    def publish_committed(self, mapping: Mapping[M], message: M) -> AsyncAppend:
        """Append a message that counts as soon as it is in its journal. Thread-safe.

        The caller may wait for the returned append or ignore it; :meth:`AppendService.flush` waits for all.
        If the message has a method ``validate``, it is called first. Then the message is mapped, and then it
        gets its UUID.

        Raises:
            EmptyListingError: the mapping has no journals.
            MessageError: the journal's content type has no framing, the message does not fit it, or the
                journal has unacknowledged messages of this publisher, which readers would drop.
            GazetteError: the journal's append cannot begin or be written. Nothing is appended.
            Exception: an error of the message's ``validate`` or of the mapping.
        """
        journal, framing = self._mapped(mapping, message)
        # A committed message has a larger clock than the open ones. Readers would treat it as the end of the
        # transaction, and drop the messages that its acknowledgement should commit.
        if journal in self._open:
            problem = "has uncommitted messages of this publisher, which a committed one would discard"
            advice = "build and write their acknowledgements first, or use another publisher"
            raise MessageError(f"journal {journal!r} {problem}: {advice}")
        return self._publish(journal, framing, message, OUTSIDE_TXN)

    def publish_uncommitted(self, mapping: Mapping[M], message: M) -> AsyncAppend:
        """Append a message that counts when its journal's intent of :meth:`build_ack_intents` is appended.

        Raises:
            Exception: as in :meth:`publish_committed`. The transaction does not change.
        """
        journal, framing = self._mapped(mapping, message)
        # Make the template before the message is appended: if that fails, no message was written that no
        # acknowledgement could commit.
        opened = self._open.get(journal) or _OpenJournal(framing, message.new_acknowledgement(journal))
        appended = self._publish(journal, framing, message, CONTINUE_TXN)
        # Not earlier, because a message that was not appended needs no acknowledgement.
        self._open.setdefault(journal, opened)
        return appended

    def build_ack_intents(self) -> list[AckIntent]:
        """Return the intents that commit the uncommitted messages since the last call, and forget them.

        There is one intent for each journal, in the order of the journals' first messages. Store all of them
        before any is appended with :func:`write_ack_intents`.

        Raises:
            MessageError: an acknowledgement does not fit its journal's framing. Nothing is forgotten.
        """
        # The intents are bytes, not messages: after a crash the same bytes are appended again, even if the
        # program's message class has changed.
        intents = []
        for journal, opened in self._open.items():
            opened.template.set_uuid(build_uuid(self._producer, self._clock.tick(), ACK_TXN))
            intents.append(AckIntent(journal, opened.framing.marshal(opened.template)))
        # Not before all intents exist: an earlier error leaves the transaction as it was.
        self._open.clear()
        return intents

    def _mapped(self, mapping: Mapping[M], message: M) -> tuple[str, Framing]:
        if self._now_ns is not None:
            self._clock.update(self._now_ns())
        # Not isinstance with a Protocol, which takes longer than everything else here.
        if (validate := getattr(message, "validate", None)) is not None:
            validate()
        journal, content_type = mapping(message)
        return journal, framing_by_content_type(content_type, journal)

    def _publish(self, journal: str, framing: Framing, message: Message, flags: int) -> AsyncAppend:
        # Stamp and append one message at a time: otherwise another thread could append a later clock first,
        # and readers would drop this message. The turn of `start_append` would do the same, but an interrupt
        # (Ctrl-C in a notebook) between two of its steps would block the journal for later messages.
        with self._turns.setdefault(journal, threading.Lock()):
            message.set_uuid(build_uuid(self._producer, self._clock.tick(), flags))
            return self._service.append(journal, framing.marshal(message))


def write_ack_intents(
    client: Client, intents: Iterable[AckIntent], *, timeout_s: float | None = None
) -> list[str]:
    """Append stored intents as :func:`append_ack_intents` does; return the journals that no longer exist."""
    ends = append_ack_intents(client, intents, timeout_s=timeout_s)
    return [journal for journal, end in ends.items() if end is None]


def append_ack_intents(
    client: Client, intents: Iterable[AckIntent], *, timeout_s: float | None = None
) -> dict[str, int | None]:
    """Append stored intents.

    Intents of one journal become one append. Intents that were appended before a crash may be appended again.
    The appends are tried for ``timeout_s`` seconds, by default the client's.

    Returns:
        The offset after the appended bytes by journal; None if the journal no longer exists and needs no
        intent.

    Raises:
        GazetteError: an append failed. Some intents may have been appended: write all of them again later.
    """
    contents: dict[str, bytearray] = {}
    for ack in intents:
        contents.setdefault(ack.journal, bytearray()).extend(ack.intent)
    limit_s = client.timeout_s if timeout_s is None else timeout_s
    ends: dict[str, int | None] = dict.fromkeys(contents)
    for wait_s in (*retry.BACKOFF_S, None):
        # The service appends in parallel, and a failed append does not stop the others.
        with AppendService(client, timeout_s=limit_s) as service:
            appends = {
                journal: service.append(journal, bytes(contents[journal]))
                for journal, end in ends.items()
                if end is None
            }
            errors = {journal: appended.exception() for journal, appended in appends.items()}
        ends |= {journal: appends[journal].span[1] for journal, error in errors.items() if error is None}
        failed = [error for error in errors.values() if error and not isinstance(error, JournalNotFoundError)]
        if failed:
            raise failed[0].with_traceback(None)
        # A broker that has not heard of a new journal yet reports it as missing. Its messages would never
        # count if this were believed at once.
        if wait_s is None or None not in ends.values():
            break
        time.sleep(wait_s)
    # A deleted journal took its messages with it, so there is nothing left to acknowledge. Waiting for it
    # would stop every later transaction.
    return ends
