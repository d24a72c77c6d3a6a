"""Publishes messages to journals: alone, or as transactions across journals.

A message that is published *committed* counts as soon as it is in its journal. Messages that are published
*uncommitted* count once their journal holds an acknowledgement (ACK) of their producer. A transaction is::

    publisher.publish_uncommitted(mapping, message)      # any number, to any journals
    intents = publisher.build_ack_intents()
    ...                                                  # store the intents together with the transaction
    write_ack_intents(client, intents)                   # and after a crash those that were stored, again

Intents that are stored before the first one is written make the transaction whole: after a crash either all
of them are written again, byte for byte, or none was. The bytes hold producer and clock, so a reader that has
seen an ACK drops it the second time.

A message gets its UUID while its journal's append is held: so the clocks of one publisher ascend in each
journal, whatever threads publish, and readers can drop what an append that was tried again has doubled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from gazette_spark.client._append.append import AppendOptions
from gazette_spark.client._append.service import AppendService, AsyncAppend, AsyncJournalClient
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
"""Returns a message's journal and content type, as :mod:`gazette_spark.client._append.mappings` do."""


@dataclass(frozen=True, slots=True)
class AckIntent:
    """Bytes that acknowledge what a publisher has published to a journal, once they are appended to it."""

    journal: str
    intent: bytes


class PublisherClock:
    """A clock that ticks, for one publisher or several. Thread-safe."""

    def __init__(self, value: Clock | None = None) -> None:
        """Begin at a value, by default 0."""
        self._value = value or Clock(0)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"PublisherClock({int(self._value)})"

    def update(self, unix_ns: int) -> None:
        """Move on to a time, in nanoseconds since the Unix epoch, unless the clock is ahead of it."""
        with self._lock:
            self._value = self._value.updated(unix_ns)

    def tick(self) -> Clock:
        """Move on by 1 µs, and return the clock."""
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

    Each publisher is a producer with its own id. Any number of threads may call
    :meth:`publish_committed`; the other methods are for one thread. It uses an append service, and does not
    close it.
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
            service: appends the messages. All publishers of a process may share one.
            clock: gives the messages' clocks, and is brought up to date by the caller; by default one that
                follows the time at each message.
            now_ns: nanoseconds since the Unix epoch, for that clock.
        """
        self._service = service
        self._clock = clock or PublisherClock()
        self._now_ns = now_ns if clock is None else None
        self._producer = new_producer_id()
        self._open: dict[str, _OpenJournal] = {}
        """In the order in which the journals were touched first."""
        self._options: dict[str, AppendOptions] = {}
        """Checked once for each journal."""

    def __repr__(self) -> str:
        return f"Publisher({self._producer.hex()}, open_journals={len(self._open)})"

    @property
    def producer_id(self) -> ProducerId:
        """The id in this publisher's UUIDs."""
        return self._producer

    def publish_committed(self, mapping: Mapping[M], message: M) -> AsyncAppend:
        """Append a message that counts as soon as it is in its journal. Thread-safe.

        The returned append may be waited for or ignored; :meth:`AppendService.flush` waits for all. A
        message with a method ``validate`` is asked to check itself, and then mapped: both before it has a
        UUID.

        Raises:
            EmptyListingError: the mapping has no journal at present.
            MessageError: the journal's content type has no framing, the message does not fit it, or the
                journal has messages of this publisher that wait for their acknowledgement: readers would
                drop them.
            GazetteError: the journal's append cannot begin or be written; nothing is appended.
            Exception: of the message's ``validate``, or the mapping.
        """
        journal, framing = self._mapped(mapping, message)
        if journal in self._open:
            problem = "has uncommitted messages of this publisher, which a committed one would discard"
            advice = "build and write their acknowledgements before, or publish by another publisher"
            raise MessageError(f"journal {journal!r} {problem}: {advice}")
        return self._publish(journal, framing, message, OUTSIDE_TXN)

    def publish_uncommitted(self, mapping: Mapping[M], message: M) -> AsyncAppend:
        """Append a message that counts once its journal's intent of :meth:`build_ack_intents` is appended.

        Raises:
            Exception: as by :meth:`publish_committed`. The transaction is as before.
        """
        journal, framing = self._mapped(mapping, message)
        opened = self._open.get(journal) or _OpenJournal(framing, message.new_acknowledgement(journal))
        appended = self._publish(journal, framing, message, CONTINUE_TXN)
        self._open.setdefault(journal, opened)
        return appended

    def build_ack_intents(self) -> list[AckIntent]:
        """Return what commits the messages published uncommitted since the last call, and forget them.

        One intent for each journal, in the order in which the journals were touched first. They have to be
        stored before any of them is appended, see :func:`write_ack_intents`.

        Raises:
            MessageError: an acknowledgement does not fit its journal's framing; nothing is forgotten.
        """
        intents = []
        for journal, opened in self._open.items():
            opened.template.set_uuid(build_uuid(self._producer, self._clock.tick(), ACK_TXN))
            intents.append(AckIntent(journal, opened.framing.marshal(opened.template)))
        self._open.clear()
        return intents

    def _mapped(self, mapping: Mapping[M], message: M) -> tuple[str, Framing]:
        if self._now_ns is not None:
            self._clock.update(self._now_ns())
        # As a Protocol's isinstance takes longer than all the rest.
        if (validate := getattr(message, "validate", None)) is not None:
            validate()
        journal, content_type = mapping(message)
        return journal, framing_by_content_type(content_type, journal)

    def _publish(self, journal: str, framing: Framing, message: Message, flags: int) -> AsyncAppend:
        options = self._options.get(journal)
        if options is None:
            options = self._options.setdefault(journal, AppendOptions(journal))
        with self._service.start_append(options) as appended:
            # Not before: another thread could write a later clock first, and readers would drop this one.
            message.set_uuid(build_uuid(self._producer, self._clock.tick(), flags))
            appended.write(framing.marshal(message))
        return appended


def write_ack_intents(
    client: Client, intents: Iterable[AckIntent], *, timeout_s: float | None = None
) -> list[str]:
    """Append intents as :func:`append_ack_intents` does; return the journals that are gone."""
    ends = append_ack_intents(client, intents, timeout_s=timeout_s)
    return [journal for journal, end in ends.items() if end is None]


def append_ack_intents(
    client: Client, intents: Iterable[AckIntent], *, timeout_s: float | None = None
) -> dict[str, int | None]:
    """Append intents that are stored.

    Intents of one journal become one append. What was appended before a crash may be appended again. All of
    it is tried for ``timeout_s`` seconds, by default the client's.

    Returns:
        By journal, the offset behind the appended bytes; None: the journal is gone, and needs no intent.

    Raises:
        GazetteError: an append failed. Some intents may be appended: write all of them again, later.
    """
    contents: dict[str, bytearray] = {}
    for ack in intents:
        contents.setdefault(ack.journal, bytearray()).extend(ack.intent)
    ends: dict[str, int | None] = {}
    # Its appends run in parallel, and one that fails does not stop the others.
    with AppendService(client, timeout_s=timeout_s or client.timeout_s) as service:
        appends = {journal: service.append(journal, bytes(content)) for journal, content in contents.items()}
        failed: BaseException | None = None
        for journal, appended in appends.items():
            error = appended.exception()
            if error is None or isinstance(error, JournalNotFoundError):
                ends[journal] = None if error else appended.span[1]
            else:
                failed = failed or error
    if failed is not None:
        raise failed.with_traceback(None)
    return ends
