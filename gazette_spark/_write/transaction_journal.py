"""Commits a batch in its transaction journal: does what :mod:`gazette_spark._write.transactions` decides.

The journal has one record per line. The newest one is found by searching backwards from the write head. So a
commit costs the same regardless of the journal's length, and older fragments may be deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from gazette_spark._formats.registry import framing_name
from gazette_spark._write.transactions import (
    OPENING,
    Attempt,
    TransactionRecord,
    TransactionRefusal,
    decide,
)
from gazette_spark.client import Client
from gazette_spark.errors import (
    JournalNotFoundError,
    OptionError,
    RegisterMismatchError,
    TransactionError,
    WrongAppendOffsetError,
)
from gazette_spark.failpoints import failpoint
from gazette_spark.message.publisher import AckIntent, write_ack_intents
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import CONTENT_TYPE, CONTENT_TYPE_NDJSON, label_set, values_of

log = logging.getLogger(__name__)

TAIL_BYTES = 64 << 10
"""Bytes before the write head in which the newest record is searched first."""

MAX_TRIES = 10
"""Maximum number of times that a commit reads the journal, because another run has appended or an answer was
lost."""


@dataclass(frozen=True, slots=True)
class JournalState:
    """The state of a transaction journal at one moment."""

    head: int
    registers: Mapping[str, str]
    newest: TransactionRecord | None


def check_transaction_journal(client: Client, journal: str) -> None:
    """Check that a journal can record transactions, before anything is written.

    Raises:
        JournalNotFoundError: it does not exist.
        OptionError: its content type is not one of lines.
        AuthError: it may not be read. Without this check, only the second batch would fail.
    """
    try:
        spec = client.get_journal(journal).spec
    except JournalNotFoundError:
        raise JournalNotFoundError(journal, "option 'transactionJournal' names it") from None
    if framing_name(spec, None, None) != "lines":
        label = next(iter(values_of(spec.labels, CONTENT_TYPE)), "")
        expected = f"a journal of lines: without the label, or {CONTENT_TYPE_NDJSON}"
        raise OptionError("transactionJournal", f"{journal!r} with content-type={label}", expected)
    client.write_head(journal)


def commit_transaction(
    client: Client, journal: str, attempt: Attempt, rollbacks: Mapping[str, bytes]
) -> TransactionRecord | None:
    """Commit a batch, or the batch that was recorded instead, and return when all its rows are committed.

    Args:
        client: Client of the brokers.
        journal: The transaction journal.
        attempt: The batch that tasks have published.
        rollbacks: Bytes by journal that roll the attempt's rows back.

    Returns:
        The record that was appended; None if the batch was recorded before.

    Raises:
        TransactionError: the batch may not be committed.
        GazetteError: it is unknown whether the batch is committed. Repeating the batch finds out.
    """
    for _ in range(MAX_TRIES):
        state = read_state(client, journal)
        if state.head == 0:
            # An append cannot require write head 0, so the first record needs bytes before it.
            client.append(journal, OPENING)
            continue
        plan = decide(attempt, state.newest, state.registers)
        failpoint("transaction.read")
        if isinstance(plan, TransactionRefusal):
            raise TransactionError(journal, plan.problem, plan.advice)
        # The newest record may be of a run that crashed before it acknowledged. Once another record follows
        # it, nobody reads it again, so its intents come first.
        _acknowledge(client, plan.finish)
        record = plan.record
        if record is not None:
            # A compare-and-set on the state that was read: of two runs that decide on the same state, only
            # one appends its record. Empty registers match anything; then the write head alone decides.
            expected = state.registers or (state.newest or record).registers
            try:
                client.append(
                    journal,
                    record.to_json(),
                    offset=state.head,
                    check_registers=pb.LabelSelector(include=label_set(dict(expected))),
                    union_registers=label_set(record.registers),
                )
            except (RegisterMismatchError, WrongAppendOffsetError) as error:
                # Another run may have appended, or this append may have succeeded without an answer and was
                # repeated. Only the journal shows which, so read it again.
                log.warning("transaction.retry journal=%s batch=%s error=%s", journal, attempt.batch, error)
                continue
        # From here on the batch is committed: a crash below is repaired by the next attempt at it.
        failpoint("transaction.recorded")
        if plan.rolls_back and record is not None and record.rows != attempt.rows:
            log.warning(
                "transaction.differs batch=%s recorded_rows=%d rows=%d: the recorded ones count. The query "
                "is not deterministic, or its checkpoint is a copy",
                attempt.batch,
                record.rows,
                attempt.rows,
            )
        _acknowledge(client, plan.commit)
        if plan.rolls_back:
            _acknowledge(client, rollbacks)
        failpoint("transaction.done")
        return record
    problem = f"its newest record could not be settled in {MAX_TRIES} tries, as others append to it"
    raise TransactionError(journal, problem, "Let one query at a time use it")


def read_state(client: Client, journal: str) -> JournalState:
    """Return a journal's write head, registers and newest record.

    Raises:
        TransactionError: its end is not a record.
    """
    # This append is a barrier: an append that was sent before it is in the journal now, or never will be.
    barrier = client.append(journal, b"")
    head, record = barrier.end, None
    first = client.first_offset(journal) if head else 0
    # A record with the intents of thousands of journals is longer than the tail. A few growing reads find its
    # start.
    begin, size = head, TAIL_BYTES
    while record is None and first < begin:
        begin = max(first, head - size)
        size *= 8
        with client.read(journal, offset=begin, end_offset=head) as reader:
            tail = reader.read()
        if not tail.endswith(b"\n"):
            advice = "Nobody else may append to a transaction journal: name another one"
            raise TransactionError(journal, "it ends within a line", advice)
        lines = tail.splitlines(keepends=True)
        # The first one may be the rest of a line.
        whole = lines if begin == first else lines[1:]
        if newest := next((line for line in reversed(whole) if line != OPENING), None):
            record = TransactionRecord.from_json(newest, journal)
    registers = {label.name: label.value for label in barrier.registers.labels}
    return JournalState(head, registers, record)


def _acknowledge(client: Client, contents: Mapping[str, bytes]) -> None:
    gone = write_ack_intents(client, (AckIntent(journal, content) for journal, content in contents.items()))
    if gone:
        log.warning("transaction.journals_gone journals=%s", ",".join(gone))
    failpoint("transaction.acknowledged")
