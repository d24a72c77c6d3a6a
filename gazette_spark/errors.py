"""The error tree.

Everything the package raises on purpose is a :class:`GazetteError`. An error holds its values as
attributes, survives pickling (Spark carries errors from executors to the driver), and says in its
text what happened, the values that show it, and the way out. Texts never hold a token, a key or a
signed URL: Spark shows them in full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


def _rebuild(cls: type[GazetteError], fields: dict[str, Any]) -> GazetteError:
    error = cls.__new__(cls)
    error.__dict__.update(fields)
    return error


class GazetteError(Exception):
    """Base of all errors raised on purpose.

    ``retryable`` says whether the same call may succeed later with no change by the caller. It is
    read in one place, ``client.retry``.
    """

    retryable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), dict(self.__dict__))


@dataclass(eq=False)
class OptionError(GazetteError, ValueError):
    """An option is unknown, malformed, or contradicts another."""

    option: str
    got: str
    expected: str

    def __str__(self) -> str:
        return f"option {self.option!r}: got {self.got}; expected {self.expected}"


@dataclass(eq=False)
class ProtocolError(GazetteError, ValueError):
    """A message breaks a rule of the Gazette protocol: ours before sending, or the broker's."""

    where: str
    """Dotted path of the field, e.g. ``JournalSpec.Fragment.Length``, or the rpc."""
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


@dataclass(eq=False)
class OffsetError(GazetteError, ValueError):
    """A query position is malformed, goes back, or lies outside its journal."""

    problem: str
    journal: str = ""
    offset: int | None = None

    def __str__(self) -> str:
        where = f"journal {self.journal!r}: " if self.journal else ""
        at = f" (offset {self.offset})" if self.offset is not None else ""
        return f"{where}{self.problem}{at}"


@dataclass(eq=False)
class DataLossError(GazetteError):
    """The journal now begins past an offset that has to be read, or has a hole there."""

    journal: str
    wanted: int
    """Offset that has to be read next."""
    available: int
    """Smallest offset at or past ``wanted`` the journal can still serve."""

    def __str__(self) -> str:
        return (
            f"journal {self.journal!r}: cannot read offset {self.wanted}, the next byte left is at "
            f"{self.available}; {self.available - self.wanted} bytes are gone. Restore the fragments, "
            "or set failOnDataLoss=false to skip the gap"
        )


@dataclass(eq=False)
class OffsetBeyondHeadError(GazetteError):
    """A recorded offset lies past the journal's write head: the journal was reset or lost bytes.

    Going on would give other bytes the offsets of those already read.
    """

    journal: str
    wanted: int
    write_head: int

    def __str__(self) -> str:
        return (
            f"journal {self.journal!r}: offset {self.wanted} was already read, but the journal now ends "
            f"at {self.write_head}. The journal was recreated or its broker lost bytes, so offsets may be "
            "used again for other bytes. Restore the journal, or start a new query on it with a new "
            "checkpoint and table"
        )


@dataclass(eq=False)
class CorruptFragmentError(GazetteError):
    """A fragment's bytes do not match its name: length, codec or SHA-1."""

    journal: str
    begin: int
    end: int
    problem: str
    source: str = ""
    """Where the bytes came from: a file path, or a URL without its query."""

    def __str__(self) -> str:
        at = f" ({self.source})" if self.source else ""
        return (
            f"journal {self.journal!r}: fragment [{self.begin}, {self.end}){at} is corrupt: {self.problem}. "
            "Restore the fragment file from a replica or a backup"
        )


class FragmentTooShortError(CorruptFragmentError):
    """A fragment's content ends before the offset its name tells."""


class FragmentTooLongError(CorruptFragmentError):
    """A fragment's content goes on past the offset its name tells; nothing past it was handed out."""


@dataclass(eq=False)
class DirectReadError(GazetteError):
    """A fragment's file or URL cannot be opened or fetched; its broker may still serve it."""

    source: str
    """A file path, or a URL without its query."""
    problem: str
    expired: bool = False
    """The URL's signature is no longer taken: a fresh one may do."""
    passing: bool = False
    """The store may answer in a moment: it is busy, or the connection broke."""
    refused: bool = False
    """This client does not open such URLs; nothing was connected to."""

    def __str__(self) -> str:
        return f"fragment {self.source}: {self.problem}"


@dataclass(eq=False)
class SeekRequiresNewReaderError(GazetteError):
    """A reader of one stream, or of one fragment, cannot get to an offset: open a new one there.

    The reader stands where it stood.
    """

    journal: str
    offset: int
    """Where the reader stands."""
    wanted: int

    def __str__(self) -> str:
        return (
            f"journal {self.journal!r}: a reader at offset {self.offset} cannot seek to {self.wanted}; "
            "open a new one there"
        )


@dataclass(eq=False)
class RecordError(GazetteError):
    """A record cannot be read: malformed under ``mode=FAILFAST``, or larger than allowed."""

    journal: str
    offset: int
    """Offset of the record's first byte."""
    problem: str

    def __str__(self) -> str:
        return f"journal {self.journal!r}, record at offset {self.offset}: {self.problem}"


@dataclass(eq=False)
class AuthError(GazetteError):
    """The broker refused the caller's token, or none was given."""

    endpoint: str
    problem: str

    def __str__(self) -> str:
        return (
            f"broker {self.endpoint}: not authorized: {self.problem}. Check the token or the keys that "
            "sign it (options token and auth_keys, or BROKER_AUTH_TOKEN and BROKER_AUTH_KEYS)"
        )


@dataclass(eq=False)
class TokenError(GazetteError):
    """A bearer token does not verify. Its text never holds the token or a key."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(eq=False)
class UnavailableError(GazetteError):
    """The broker could not be reached, or did not answer within the deadline."""

    endpoint: str
    problem: str
    retryable: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"broker {self.endpoint}: unavailable: {self.problem}. Check brokerAddress and the broker"


@dataclass(eq=False)
class TlsError(GazetteError):
    """No secure connection to the broker can be made: one side does not trust the other, or has no TLS."""

    endpoint: str
    problem: str

    def __str__(self) -> str:
        return (
            f"broker {self.endpoint}: no secure connection: {self.problem}. Check the address and the "
            "certificates (option tls; BROKER_TRUSTED_CA_FILE, BROKER_CERT_FILE and BROKER_CERT_KEY_FILE)"
        )


@dataclass(eq=False)
class BrokerError(GazetteError):
    """The broker failed the call with a text and no status (gRPC UNKNOWN and the like)."""

    endpoint: str
    code: str
    """Name of the gRPC code."""
    problem: str

    def __str__(self) -> str:
        return f"broker {self.endpoint}: {self.code}: {self.problem}"


class FlowControlError(BrokerError):
    """An append brought its bytes too slowly, and was rolled back: others wait for the journal meanwhile."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()}. Nothing was appended. Have all bytes at hand before the first is written, "
            "or use an AppendService, which collects them first"
        )


@dataclass(eq=False)
class StatusError(GazetteError):
    """A broker answered with a status other than OK. Each status has a class of its own below."""

    status: ClassVar[str] = ""
    """Name of the status on the wire."""
    advice: ClassVar[str] = ""

    journal: str
    detail: str = ""

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        advice = f". {self.advice}" if self.advice else ""
        return f"journal {self.journal!r}: {self.status}{detail}{advice}"


class JournalNotFoundError(StatusError):
    """No such journal, or the caller's token does not cover it."""

    status = "JOURNAL_NOT_FOUND"
    advice = "Check the name; a token that does not cover the journal gets the same answer"


class NoJournalPrimaryBrokerError(StatusError):
    """The journal has no primary at the moment."""

    status = "NO_JOURNAL_PRIMARY_BROKER"
    retryable = True


class NotJournalPrimaryBrokerError(StatusError):
    """The broker asked is not the journal's primary and may not proxy."""

    status = "NOT_JOURNAL_PRIMARY_BROKER"
    retryable = True


class InsufficientJournalBrokersError(StatusError):
    """Fewer brokers than the journal's replication asks for."""

    status = "INSUFFICIENT_JOURNAL_BROKERS"
    retryable = True


class NotJournalBrokerError(StatusError):
    """The broker asked does not hold the journal and may not proxy."""

    status = "NOT_JOURNAL_BROKER"
    retryable = True


class WrongRouteError(StatusError):
    """Brokers disagree about the journal's route."""

    status = "WRONG_ROUTE"
    retryable = True


class ProposalMismatchError(StatusError):
    """Brokers disagree about the journal's current fragment."""

    status = "PROPOSAL_MISMATCH"
    retryable = True


@dataclass(eq=False)
class OffsetNotYetAvailableError(StatusError):
    """Nothing can be read at the offset yet."""

    status: ClassVar[str] = "OFFSET_NOT_YET_AVAILABLE"

    offset: int = 0
    write_head: int = 0

    def __str__(self) -> str:
        return (
            f"journal {self.journal!r}: offset {self.offset} cannot be read yet; the write head is "
            f"{self.write_head}"
        )


class EtcdTransactionFailedError(StatusError):
    """A spec changed since it was read; nothing was applied."""

    status = "ETCD_TRANSACTION_FAILED"
    advice = "List the journals again and repeat with their present revisions"


class NotAllowedError(StatusError):
    """The journal's flags forbid the call."""

    status = "NOT_ALLOWED"


class WrongAppendOffsetError(StatusError):
    """The append asked for an offset that is not the write head."""

    status = "WRONG_APPEND_OFFSET"


class IndexHasGreaterOffsetError(StatusError):
    """The store holds bytes past the brokers' write head."""

    status = "INDEX_HAS_GREATER_OFFSET"
    advice = "Use `gazctl journals reset-head` once the brokers' bytes are known to be lost"


class RegisterMismatchError(StatusError):
    """The journal's registers do not match the append's selector: another writer has taken over."""

    status = "REGISTER_MISMATCH"


class SuspendedError(StatusError):
    """The journal is suspended."""

    status = "SUSPENDED"


class FragmentStoreUnhealthyError(StatusError):
    """The journal's first fragment store fails its health check."""

    status = "FRAGMENT_STORE_UNHEALTHY"


def status_errors() -> dict[str, type[StatusError]]:
    """Return the error class of each status name."""
    return {cls.status: cls for cls in StatusError.__subclasses__()}


class SinkError(GazetteError):
    """Base of what the Delta sink refuses."""


@dataclass(eq=False)
class BrokerRootError(GazetteError):
    """The embedded broker cannot use its root directory: in use, unreadable, or of another version."""

    root: str
    problem: str

    def __str__(self) -> str:
        return f"embedded broker root {self.root!r}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How one journal, or one other source, of a batch disagrees with what a table has recorded."""

    source: str
    """Journal name, or e.g. ``source 1`` for one that is not Gazette's."""
    recorded: int | str | None
    """Where the table's rows end, None if the table has never heard of it."""
    begin: int | str | None
    end: int | str | None

    def __str__(self) -> str:
        known = (
            "the table knows nothing of it" if self.recorded is None else f"the table ends at {self.recorded}"
        )
        return f"{self.source}: {known}, the batch is [{self.begin}, {self.end})"


SHOWN_MISMATCHES = 10
"""Mismatches an error's text lists; all of them are in its attribute."""


def _listed(mismatches: tuple[Mismatch, ...]) -> str:
    more = len(mismatches) - SHOWN_MISMATCHES
    shown = "; ".join(str(each) for each in mismatches[:SHOWN_MISMATCHES])
    return f"{shown}; and {more} more" if more > 0 else shown


@dataclass(eq=False)
class BatchMismatchError(SinkError):
    """A batch does not continue what the table holds; nothing was written. See the two subclasses."""

    table: str
    app_id: str
    batch_id: int
    mismatches: tuple[Mismatch, ...]

    problem: ClassVar[str] = ""
    advice: ClassVar[str] = (
        "The query checkpoint does not belong to this state of the table. Start the query with a new "
        "checkpoint directory and startingOffsets from DeltaSink.resume_offsets()"
    )

    def __str__(self) -> str:
        return (
            f"table {self.table}, app id {self.app_id!r}, batch {self.batch_id}: {self.problem}: "
            f"{_listed(self.mismatches)}. {self.advice}"
        )


class GapError(BatchMismatchError):
    """The batch begins past what the table holds: writing it would leave bytes out for ever."""

    problem = "the batch begins past what the table holds"


class OverlapError(BatchMismatchError):
    """The batch holds bytes the table has already, or cannot have in order: writing it would double rows."""

    problem = "the batch overlaps what the table holds"


@dataclass(eq=False)
class FencedError(SinkError):
    """Another writer with the same app id has moved the table on; this one must stop."""

    table: str
    app_id: str
    batch_id: int
    """Batch of the writer that stops. It is in the table only if the winner's entry follows it."""
    winner_query_id: str
    winner_batch_id: int
    winner_time: str
    winner_table_version: int

    def __str__(self) -> str:
        return (
            f"table {self.table}, app id {self.app_id!r}, batch {self.batch_id}: fenced by query "
            f"{self.winner_query_id}, which wrote its batch {self.winner_batch_id} as table version "
            f"{self.winner_table_version} at {self.winner_time}. Stop one of the two queries; each needs an "
            "app id of its own, or a table of its own"
        )


@dataclass(eq=False)
class LedgerLostError(SinkError):
    """Delta remembers transactions of the app id whose offsets the table's history no longer tells."""

    table: str
    app_id: str

    def __str__(self) -> str:
        return (
            f"table {self.table}, app id {self.app_id!r}: rows were written before, but the table's "
            "history holds no entry that says up to which offsets: the history was cleaned up, the table is "
            "a copy, or something else writes with the transaction id "
            f"'gazette_spark/{self.app_id}'. Nothing was written. Find the largest offset per journal in the "
            "rows, then start with a new checkpoint, a new app id and startingOffsets just past them; keep "
            "delta.logRetentionDuration longer than the longest pause of the query"
        )


@dataclass(eq=False)
class LedgerFormatError(SinkError):
    """A ledger entry in the table's history cannot be read."""

    app_id: str
    problem: str

    def __str__(self) -> str:
        return f"app id {self.app_id!r}: a ledger entry in the table's history cannot be read: {self.problem}"


@dataclass(eq=False)
class RestoredError(SinkError):
    """The table was restored in a way the sink cannot follow."""

    table: str
    app_id: str
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"table {self.table}, app id {self.app_id!r}: {self.problem}. {self.advice}"


@dataclass(eq=False)
class QueryCheckpointError(SinkError):
    """The query checkpoint does not tell the batch's offsets."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"query checkpoint {self.path}: {self.problem}"


@dataclass(eq=False)
class TableRefusedError(SinkError):
    """The table, or its place, is one on which exactly-once cannot be kept."""

    table: str
    problem: str

    def __str__(self) -> str:
        return f"table {self.table}: {self.problem}"


@dataclass(eq=False)
class OffsetJumpError(GazetteError):
    """The journal has no bytes at the offset a reader got to; its next ones are further on.

    The reader goes on there when it is read again.
    """

    journal: str
    wanted: int
    offset: int
    """Of the next byte."""

    def __str__(self) -> str:
        return (
            f"journal {self.journal!r}: no bytes are left at offset {self.wanted}; the next are at "
            f"{self.offset}. Read on to go on there"
        )


@dataclass(eq=False)
class PartialApplyError(GazetteError):
    """A series of transactions failed after some of them were done; these stay done."""

    batch: int
    """Index of the transaction that failed, from 0. Those before it were done, those after it not begun."""
    applied: int
    """Changes that were done: the first ones."""
    changes: int
    """All changes."""
    revision: int
    """Of the last transaction that was done."""
    cause: GazetteError
    """Why the next one failed. After an UnavailableError it may have been done, too."""

    def __str__(self) -> str:
        return (
            f"the first {self.applied} of {self.changes} changes were applied, up to revision "
            f"{self.revision}; then batch {self.batch} failed: {self.cause}"
        )


@dataclass(eq=False)
class InputError(GazetteError, ValueError):
    """Input of a command is not of the form it was said to have."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(eq=False)
class FragmentNotRemovedError(GazetteError):
    """A fragment past its retention cannot be deleted."""

    journal: str
    source: str
    """Path of the file, or the store."""
    problem: str

    def __str__(self) -> str:
        return f"journal {self.journal!r}: fragment {self.source} was not removed: {self.problem}"


@dataclass(eq=False)
class ClosedError(GazetteError, ValueError):
    """A client, reader or append is used after its end, or in a process that did not make it."""

    what: str
    problem: str

    def __str__(self) -> str:
        return f"{self.what}: {self.problem}"


@dataclass(eq=False)
class BacklogError(GazetteError):
    """An append service had no room for more bytes, and got none in time."""

    journal: str
    size: int
    """Bytes there was no room for."""
    pending_bytes: int
    """Bytes that wait to be appended, of all journals."""
    limit_bytes: int

    def __str__(self) -> str:
        return (
            f"journal {self.journal!r}: no room for {self.size} bytes: {self.pending_bytes} wait to be "
            f"appended, of {self.limit_bytes} that may. Append less at a time, or raise max_pending_bytes"
        )


@dataclass(eq=False)
class AppendWaitError(GazetteError):
    """An append waited in vain: for another writer, for a dependency, or to be flushed."""

    journal: str
    """Name of the journal; empty where it is more than one."""
    waited_s: float
    problem: str

    def __str__(self) -> str:
        where = f"journal {self.journal!r}" if self.journal else "append service"
        return f"{where}: waited {self.waited_s:g} s in vain: {self.problem}"


@dataclass(eq=False)
class DependencyError(GazetteError):
    """An operation that an append had to wait for failed, so the append and all behind it did."""

    journal: str
    problem: str
    """Text of the operation's own error, which is the cause of this one."""

    def __str__(self) -> str:
        return f"journal {self.journal!r}: an operation the append depends on failed: {self.problem}"


@dataclass(eq=False)
class EmptyListingError(GazetteError):
    """There is no journal a message could be mapped to."""

    problem: str = "empty ListResponse"

    def __str__(self) -> str:
        return f"{self.problem}: no journal to map a message to. Check the selector of the listing"
