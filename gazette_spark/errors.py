"""Defines all errors that the package raises on purpose.

An error keeps its values as attributes and survives pickling, because Spark carries errors from executors
to the driver. Its text says what happened, shows the values, and says what to do. Texts never contain a
token, a key or a signed URL, because Spark shows them in full.

The tree, with abstract base classes in brackets::

    [GazetteError]
        OptionError, InputError, JsonError, DamagedFileError, ClosedError
        MissingModuleError, MissingPackageError, MissingZonesError
        ProtocolError
            WatchUnsupportedError
        TokenError, CollectionAccessError, BrokerRootError, PartialApplyError
        BacklogError, DependencyError
        AppendWaitError
            PendingEntryError
        [CallError]
            UnavailableError, AuthError, TlsError
            BrokerError
                FlowControlError
        [StatusError]
            JournalNotFoundError, NoJournalPrimaryBrokerError, NotJournalPrimaryBrokerError
            NotJournalBrokerError, InsufficientJournalBrokersError, WrongRouteError, ProposalMismatchError
            OffsetNotYetAvailableError, EtcdTransactionFailedError, NotAllowedError, WrongAppendOffsetError
            IndexHasGreaterOffsetError, RegisterMismatchError, SuspendedError, FragmentStoreUnhealthyError
        [ShardStatusError]
            ShardNotFoundError, NoShardPrimaryError, NotShardPrimaryError, ShardTransactionFailedError
            ShardStoppedError
        OffsetError, OffsetBeyondHeadError, JournalRecreatedError, OtherJournalsError
        DataLossError
            LogDataLossError
        CorruptFragmentError
            FragmentTooShortError, FragmentTooLongError
        DirectReadError, FragmentConflictError, FragmentStoreError
        OffsetJumpError, SeekRequiresNewReaderError
        RecordError, RowError, EmptyListingError, MessageError, SequencerError, TransactionError
        [SinkError]
            [BatchMismatchError]
                GapError, OverlapError
            [BatchError]
                TrimError, UpsertError, BadRowError, NoSpaceError
            DeadLetterError, FencedError, LedgerLostError, LedgerFormatError, RestoredError
            QueryCheckpointError, TableRefusedError, SchemaMismatchError, DataFileError
        InvalidVersionError, LogFencedError, CheckpointStateError
        NoMoreMessageError, FetchTimeoutError, FetchCancelledError
        ShardFailedError, PermanentError, SourceLossError, TransactionOrderError
        RecoveryLogLossError, RecorderFencedError, StoreFencedError, StoreFormatError

To add an error, write its class here, draw it in the tree, and write its remedy in ``tools/error_page.py``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, dataclass_transform

_BROKER = "broker"

_FAILED_LOOKUP = re.compile(r"address lookup failed for \S+: ([^\]]+)")
"""gRPC's text for a host that cannot be looked up, with the reason as a group."""

_SHOWN_ITEMS = 10
"""Maximum number of items of a list in an error's text. The attribute has all of them."""

_SHOWN_JOURNALS = 3
"""Maximum number of journals of each side in the text of :class:`OtherJournalsError`."""

_SUBJECTS = {
    "table": "table {}",
    "app_id": "app id {!r}",
    "batch_id": "batch {}",
    "journal": "journal {!r}",
    "shard": "shard {!r}",
}
"""Fields with which an error's text begins, in this order, each with its format."""


def _rebuild(cls: type[GazetteError], fields: dict[str, Any]) -> GazetteError:
    error = cls.__new__(cls)
    error.__dict__.update(fields)
    return error


@dataclass_transform(eq_default=False)
class GazetteError(Exception):
    """Base of all errors raised on purpose. All subclasses become dataclasses without a decorator.

    The text begins with the table, journal or other subject that the error's fields name, so subclasses state
    only what happened and what to do. ``retryable`` says whether the same call may succeed later without a
    change by the caller. Only ``client._transport.retry`` reads it.
    """

    retryable: ClassVar[bool] = False

    problem: str
    """What happened, in classes with a constant text."""

    def __init_subclass__(cls) -> None:
        dataclass(eq=False)(cls)

    def __str__(self) -> str:
        subject, text = ", ".join(self._subject()), self._text()
        if _is_iceberg(self):
            # Sinks of both formats share these texts and methods of the same names.
            text = text.replace("DeltaSink", "IcebergSink")
        return f"{subject}: {text}" if subject else text

    def _subject(self) -> Iterator[str]:
        for name, form in _SUBJECTS.items():
            if (value := getattr(self, name, None)) not in (None, ""):
                yield form.format(value)

    def _text(self) -> str:
        # Internal errors may have no text.
        return str(getattr(self, "problem", type(self).__name__))

    def __reduce__(self) -> tuple[Any, ...]:
        # The inherited method would call the class with `args`, which a dataclass leaves empty.
        return _rebuild, (type(self), dict(self.__dict__))


def _is_iceberg(error: GazetteError) -> bool:
    """Return whether an error is about an Iceberg table, whose name is such as iceberg:prod/shop.a."""
    return str(getattr(error, "table", "")).startswith("iceberg:")


def _listed(items: Sequence[object], separator: str, shown: int = _SHOWN_ITEMS) -> str:
    more = len(items) - shown
    text = separator.join(str(item) for item in items[:shown])
    return f"{text}{separator}and {more} more" if more > 0 else text


# Options, input and environment


class OptionError(GazetteError, ValueError):
    """An option is unknown, malformed, or contradicts another."""

    option: str
    got: str
    expected: str

    def _text(self) -> str:
        return f"option {self.option!r}: got {self.got}; expected {self.expected}"


class InputError(GazetteError, ValueError):
    """The input of a command does not have the specified form."""

    problem: str


class JsonError(GazetteError, ValueError):
    """Text is not JSON, or breaks a limit of ``strict_json``."""

    problem: str

    def _text(self) -> str:
        return f"not JSON ({self.problem})"


class DamagedFileError(GazetteError):
    """A stored file is not what was written: its length or its SHA-256 differs."""

    path: str
    problem: str

    def _text(self) -> str:
        return f"{self.path} is damaged: {self.problem}. Restore it from a copy"


class ClosedError(GazetteError, ValueError):
    """A client, reader or append was used after its end, or in a process that did not create it."""

    what: str
    problem: str

    def _subject(self) -> Iterator[str]:
        yield self.what


class MissingModuleError(GazetteError, ImportError):
    """The Python that runs Spark's workers lacks the package's dependencies."""

    module: str
    interpreter: str = field(default_factory=lambda: sys.executable)

    def _text(self) -> str:
        return (
            f"Spark's Python workers run {self.interpreter}, which has no module {self.module!r}. Before the "
            "session is made, set PYSPARK_PYTHON to the Python that gazette-spark[spark] is installed in. In "
            "the driver's program: os.environ['PYSPARK_PYTHON'] = sys.executable"
        )


class MissingPackageError(GazetteError, ImportError):
    """An optional package that the call needs is not installed."""

    problem: str
    install: str = "gazette-spark[spark]"

    def _text(self) -> str:
        return f"{self.problem}: pip install {self.install!r} (for {sys.executable})"


class MissingZonesError(GazetteError):
    """A named time zone cannot be looked up, so rows would differ between machines."""

    zone: str

    def _text(self) -> str:
        return (
            f"time zone {self.zone!r} cannot be looked up: this machine has no time zone database; "
            "install the system's, or the package tzdata"
        )


# Brokers


class ProtocolError(GazetteError, ValueError):
    """A message from a broker, or one about to be sent, breaks a rule of the Gazette protocol."""

    where: str
    """Dotted path of the field, e.g. ``JournalSpec.fragment.length``, or the rpc."""
    problem: str

    def _subject(self) -> Iterator[str]:
        yield self.where


class WatchUnsupportedError(ProtocolError):
    """A broker ended a listing instead of continuing it as a watch: it is older than Gazette 0.100."""


class TokenError(GazetteError):
    """A bearer token is invalid. The text never contains the token or a key."""

    problem: str


class CollectionAccessError(GazetteError):
    """Estuary's control plane gave no access to a collection, or gave no valid answer."""

    collection: str
    control_plane: str
    problem: str

    def _text(self) -> str:
        return f"collection {self.collection!r} at {self.control_plane}: {self.problem}"


class BrokerRootError(GazetteError):
    """The embedded broker cannot use its root directory: it is in use, unreadable, or of another version."""

    root: str
    problem: str

    def _text(self) -> str:
        return f"embedded broker root {self.root!r}: {self.problem}"


class PartialApplyError(GazetteError):
    """A series of transactions failed after some of them were applied; these remain applied."""

    batch: int
    """Index of the failed transaction, from 0. Earlier ones were applied, later ones were not."""
    applied: int
    """Number of changes that were applied, which are the first ones."""
    changes: int
    """Number of all changes."""
    revision: int
    """Etcd revision of the last transaction that was applied."""
    cause: GazetteError
    """Error of the failed transaction. After an UnavailableError, it may have been applied as well."""

    def _text(self) -> str:
        return (
            f"the first {self.applied} of {self.changes} changes were applied, up to revision "
            f"{self.revision}; then batch {self.batch} failed: {self.cause}"
        )


class BacklogError(GazetteError):
    """An append service had no room for more bytes within the timeout."""

    journal: str
    size: int
    """Number of bytes for which there was no room."""
    pending_bytes: int
    """Number of bytes that wait to be appended to all journals."""
    limit_bytes: int

    def _text(self) -> str:
        return (
            f"no room for {self.size} bytes: {self.pending_bytes} bytes wait to be appended, and the limit "
            f"is {self.limit_bytes}. Append less at a time, or raise max_pending_bytes"
        )


class AppendWaitError(GazetteError):
    """An append did not get what it waited for: its turn, a dependency, or the broker's answer."""

    journal: str
    """Name of the journal; empty for several journals."""
    waited_s: float
    problem: str

    def _text(self) -> str:
        service = "" if self.journal else "append service: "
        return f"{service}waited {self.waited_s:g} s without success: {self.problem}"


class DependencyError(GazetteError):
    """An operation that an append depends on failed, so this append and all later ones failed."""

    journal: str
    problem: str
    """Text of the operation's error, which is the cause of this one."""

    def _text(self) -> str:
        return f"an operation that the append depends on failed: {self.problem}"


class CallError(GazetteError):
    """Base of the errors of failed calls, except for the statuses that brokers and consumers return."""

    endpoint: str

    service = _BROKER
    """The service that the client called."""

    def _subject(self) -> Iterator[str]:
        yield f"{self.service} {self.endpoint}"

    def _settings(self, options: str, *variables: str) -> str:
        """Return where to change a setting: options of a query, which calls only brokers, and variables."""
        query = f"options {options} of a query; for a command " if self.service == _BROKER else ""
        *first, last = (f"{self.service.upper()}_{name}" for name in variables)
        return f"{query}{', '.join(first)} and {last}"


class UnavailableError(CallError):
    """The broker could not be reached, or did not answer within the deadline."""

    problem: str

    retryable: ClassVar[bool] = True

    def _text(self) -> str:
        # Queries show this text, and so do the log and the page of the lag monitor, which is a command.
        broker = "brokerAddress (for a command, --broker or BROKER_ADDRESS)"
        address = broker if self.service == _BROKER else f"{self.service.upper()}_ADDRESS"
        # gRPC lists each address that it tried, and then the cause, which is what helps the user.
        cause = self.problem.rpartition("Failed to connect to remote host: ")[2]
        if lookup := _FAILED_LOOKUP.search(cause):
            cause = f"the name of its host cannot be looked up ({lookup[1]})"
        service = "Etcd" if self.service == "etcd" else f"the {self.service}"
        return f"unavailable: {cause}. Check {address} and {service}"


class AuthError(CallError):
    """The broker refused the caller's token, or the caller gave no token."""

    problem: str

    def _text(self) -> str:
        return (
            f"not authorized: {self.problem}. Check the token, or the keys that sign it: "
            + self._settings(
                "auth.token, auth.tokenFile and auth.keysSecret", "AUTH_TOKEN", "AUTH_TOKEN_FILE", "AUTH_KEYS"
            )
        )


class TlsError(CallError):
    """A secure connection failed: one side does not trust the other, or does not use TLS."""

    problem: str

    def _text(self) -> str:
        return (
            f"no secure connection: {self.problem}. Check the address and the certificates: "
            + self._settings(
                "tls.caFile, tls.certFile and tls.keyFile", "TRUSTED_CA_FILE", "CERT_FILE", "CERT_KEY_FILE"
            )
        )


class BrokerError(CallError):
    """The broker failed the call with a message instead of a status, such as gRPC's UNKNOWN."""

    code: str
    """Name of the gRPC code."""
    problem: str

    def _text(self) -> str:
        text = f"{self.code}: {self.problem}"
        if self.service == _BROKER or self.code != "UNIMPLEMENTED":
            return text
        address = f"{self.service.upper()}_ADDRESS"
        return f"{text} No {self.service} serves this address; it may be a broker's. Check {address}"


class FlowControlError(BrokerError):
    """An append sent its bytes too slowly and was rolled back, because it blocked other appends."""

    def _text(self) -> str:
        return (
            f"{super()._text()}. Nothing was appended. Prepare all bytes before you write the first, "
            "or use an AppendService, which collects them first"
        )


# Statuses of brokers: one class each, named as on the wire


class StatusError(GazetteError):
    """A broker answered with a status other than OK. Each status has its own subclass."""

    status: ClassVar[str] = ""
    """Name of the status on the wire."""
    advice: ClassVar[str] = ""

    journal: str
    detail: str = ""

    def _text(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        stop = "" if detail.endswith("?") else "."
        advice = f"{stop} {self.advice}" if self.advice else ""
        return f"{self.status}{detail}{advice}"


class JournalNotFoundError(StatusError):
    """The journal does not exist, or the caller's token does not cover it."""

    status = "JOURNAL_NOT_FOUND"
    advice = "Check the name; a token that does not cover the journal gets the same answer"


class NoJournalPrimaryBrokerError(StatusError):
    """The journal has no primary at present."""

    status = "NO_JOURNAL_PRIMARY_BROKER"
    retryable = True


class NotJournalPrimaryBrokerError(StatusError):
    """The called broker is not the journal's primary and may not proxy."""

    status = "NOT_JOURNAL_PRIMARY_BROKER"
    retryable = True


class InsufficientJournalBrokersError(StatusError):
    """The journal has fewer brokers than its replication requires."""

    status = "INSUFFICIENT_JOURNAL_BROKERS"
    retryable = True


class NotJournalBrokerError(StatusError):
    """The called broker does not have the journal and may not proxy."""

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


class OffsetNotYetAvailableError(StatusError):
    """No bytes are available at the offset yet."""

    status = "OFFSET_NOT_YET_AVAILABLE"

    offset: int = 0
    write_head: int = 0

    def _text(self) -> str:
        return f"offset {self.offset} cannot be read yet; the write head is {self.write_head}"


class EtcdTransactionFailedError(StatusError):
    """A spec changed since it was read; nothing was applied."""

    status = "ETCD_TRANSACTION_FAILED"
    advice = "List the journals again and retry with their current revisions"


class NotAllowedError(StatusError):
    """The journal's flags forbid the call."""

    status = "NOT_ALLOWED"


class WrongAppendOffsetError(StatusError):
    """The append requires an offset that is not the write head."""

    status = "WRONG_APPEND_OFFSET"


class IndexHasGreaterOffsetError(StatusError):
    """The store has bytes past the brokers' write head."""

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


# Statuses of consumers


class ShardStatusError(GazetteError):
    """A consumer answered with a status other than OK. Each status has its own subclass."""

    status: ClassVar[str] = ""
    """Name of the status on the wire."""
    advice: ClassVar[str] = ""

    shard: str
    """Id of the shard, or of several, separated by commas."""

    def _text(self) -> str:
        return f"{self.status}. {self.advice}" if self.advice else self.status


class ShardNotFoundError(ShardStatusError):
    """The shard does not exist, or the caller's token does not cover it."""

    status = "SHARD_NOT_FOUND"
    advice = "Check the id; a token that does not cover the shard gets the same answer"


class NoShardPrimaryError(ShardStatusError):
    """The shard has no primary at present, or is disabled."""

    status = "NO_SHARD_PRIMARY"
    retryable = True


class NotShardPrimaryError(ShardStatusError):
    """The called consumer is not the shard's primary and did not forward the call."""

    status = "NOT_SHARD_PRIMARY"
    retryable = True


class ShardTransactionFailedError(ShardStatusError):
    """A spec, or an assignment, changed since it was read; nothing was applied."""

    status = "ETCD_TRANSACTION_FAILED"
    advice = "List the shards again and retry with their current revisions"


class ShardStoppedError(ShardStatusError):
    """The shard failed, or its assignment ended, before it answered the call."""

    status = "SHARD_STOPPED"
    advice = "`gazette-spark shards list` shows why; after `unassign` it starts again"


def shard_status_errors() -> dict[str, type[ShardStatusError]]:
    """Return the error class of each status name."""
    return {cls.status: cls for cls in ShardStatusError.__subclasses__()}


# Journals: positions, and bytes that are deleted, reset, corrupt or missing


class OffsetError(GazetteError, ValueError):
    """A query position is malformed, goes back, or is outside its journal."""

    problem: str
    journal: str = ""
    offset: int | None = None

    def _text(self) -> str:
        return f"{self.problem} (offset {self.offset})" if self.offset is not None else self.problem


class DataLossError(GazetteError):
    """A required offset is no longer available: the journal begins after it or has a hole there."""

    journal: str
    requested: int
    """Offset of the next byte to read."""
    available: int
    """Smallest available offset at or after ``requested``."""

    def _text(self) -> str:
        return (
            f"cannot read offset {self.requested}: the next available byte is at {self.available}; "
            f"{self.available - self.requested} bytes are gone. Restore the fragments, or set "
            "failOnDataLoss=false to skip the gap"
        )


class OffsetBeyondHeadError(GazetteError):
    """A recorded offset is past the journal's write head that its brokers report.

    Continuing would read other bytes under offsets that were already read.
    """

    journal: str
    requested: int
    write_head: int
    doubt: str = ""
    """Why no broker could confirm the write head; empty if the journal's primary did."""

    def _text(self) -> str:
        return (
            f"offset {self.requested} was already read, but the journal now ends at {self.write_head}. "
            f"{_low_end_explained(self.doubt)} If the journal was deleted and created again, the guide "
            "'Recover' explains how to continue its table"
        )


def _low_end_explained(doubt: str) -> str:
    """Explain why a journal may end before an offset that was already read, and what to do.

    Args:
        doubt: Why the end could not be confirmed; empty if it was.
    """
    if doubt:
        return (
            f"This is not confirmed: {doubt}. A failover of brokers can cause it: a new replica reports too "
            "low an end until it has listed the stores. Wait until the brokers are healthy, and start again: "
            "no position was changed. If the error persists, bytes are lost: restore the journal's fragments."
        )
    return (
        "The journal's primary confirms it. Either the journal was deleted and created again, or all of its "
        "replicas failed, in a failover of brokers, before bytes were stored, and offsets may now belong to "
        "other bytes. Restore the journal's fragments, then start again: no position was changed."
    )


class JournalRecreatedError(GazetteError):
    """A journal was deleted and created again, and its offsets may refer to other bytes than were read.

    Bytes of the old journal that were not yet stored are lost.
    """

    journal: str
    requested: int
    """Offset up to which its bytes were read."""
    create_revision: int
    """Etcd revision at which the journal was created; 0 if unknown."""
    revision: int
    """Etcd revision at which the old journal was created or last seen; 0 if unknown."""
    compared: tuple[int, int] | None = None
    """Range of bytes that differ from those that were read; None if no bytes could be compared."""
    table: str = ""
    """Table whose ledger recorded the journal, if the sink found the difference."""

    def _text(self) -> str:
        revisions = ""
        if self.create_revision and 0 < self.revision != self.create_revision:
            revisions = f" at revision {self.create_revision} (the old one existed at {self.revision})"
        what = f"it was deleted and created again{revisions}"
        adopt = f"sink.adopt(JournalOffsets({{{self.journal!r}: 0}}), recreated=True, options=…)"
        if self.compared:
            begin, end = self.compared
            return (
                f"{what}. Its bytes [{begin}, {end}) are not those that were read, so its offsets now refer "
                "to other records. Give the new journal another table or app id; or continue this table "
                f"with it by {adopt}, and start with a new checkpoint and sink.resume(reader)"
            )
        return (
            f"{what}, and the bytes that were read up to offset {self.requested} cannot be compared: they "
            "are not recorded here, or the journal no longer has them. Start with a new checkpoint and "
            "sink.resume(reader), which compares the bytes that the table has recorded. If that has "
            "nothing to compare either, give the new journal another table or app id, or continue this table "
            f"with it by {adopt}"
        )


class OtherJournalsError(GazetteError, ValueError):
    """A query checkpoint's position belongs to other journals than its source now selects.

    Continuing would read the selected journals from their first bytes, even if another source has read them.
    """

    option: str
    """Option that selects the source's journals."""
    previous: tuple[str, ...]
    """Journals of the position that still exist but are no longer selected."""
    selected: tuple[str, ...]
    """Selected journals, none of which is in the position."""

    def _text(self) -> str:
        selected, previous = (
            _listed([repr(journal) for journal in journals], ", ", _SHOWN_JOURNALS)
            for journals in (self.selected, self.previous)
        )
        return (
            f"option {self.option!r}: it selects {selected}, but this source's position in the query "
            f"checkpoint is of {previous}. Spark matches sources and positions by their order in the query: "
            "keep that order, and add no source in front. To read other journals, start with a new "
            "checkpoint and sink.resume(reader), which continues the table; or let the option select "
            "journals of both"
        )


class CorruptFragmentError(GazetteError):
    """A fragment's bytes do not match its name: length, codec or SHA-1."""

    journal: str
    begin: int
    end: int
    problem: str
    source: str = ""
    """Source of the bytes: a file path, or a URL without its query."""

    def _text(self) -> str:
        source = f" ({self.source})" if self.source else ""
        return (
            f"fragment [{self.begin}, {self.end}){source} is corrupt: {self.problem}. Restore the fragment "
            "file from a replica or a backup"
        )


class FragmentTooShortError(CorruptFragmentError):
    """A fragment's content ends before the end offset in the fragment's name."""


class FragmentTooLongError(CorruptFragmentError):
    """A fragment's content continues past the end offset in its name; no byte past that was returned."""


class DirectReadError(GazetteError):
    """A fragment's file or URL cannot be read directly; its broker may still serve the fragment."""

    source: str
    """A file path, or a URL without its query."""
    problem: str
    expired: bool = False
    """The store refused the URL's signature: a fresh URL may work."""
    passing: bool = False
    """A retry may succeed: the store is busy, or the connection broke."""
    refused: bool = False
    """This client does not open such URLs and made no connection."""
    missing: bool = False
    """The file does not exist."""

    def _subject(self) -> Iterator[str]:
        yield f"fragment {self.source}"


class FragmentConflictError(GazetteError):
    """Stored fragments have different bytes for the same offsets: the journal lost bytes and reused offsets.

    The client cannot determine which of these bytes are the journal's.
    """

    journal: str
    begin: int
    end: int
    sources: tuple[str, ...]
    """The conflicting files."""
    problem: str

    def _text(self) -> str:
        return (
            f"fragments overlap at [{self.begin}, {self.end}) and do not agree, {self.problem}: "
            f"{', '.join(self.sources)}. Move the wrong one out of the store"
        )


class FragmentStoreError(GazetteError):
    """A fragment store cannot be listed, or has content that this client cannot read."""

    store: str
    """URL of the store without secret parts, or a path in the store."""
    problem: str

    def _subject(self) -> Iterator[str]:
        yield f"fragment store {self.store}"


class OffsetJumpError(GazetteError):
    """The journal has no bytes at the reader's offset, only at a later one.

    The reader continues there when it is read again.
    """

    journal: str
    requested: int
    offset: int
    """Offset of the next byte."""

    def _text(self) -> str:
        return (
            f"no bytes are left at offset {self.requested}; the next are at {self.offset}. Read on to "
            "continue there"
        )


class SeekRequiresNewReaderError(GazetteError):
    """A reader of one stream or fragment cannot reach an offset: open a new reader there.

    The reader's position does not change.
    """

    journal: str
    offset: int
    """The reader's current offset."""
    requested: int

    def _text(self) -> str:
        return f"a reader at offset {self.offset} cannot seek to {self.requested}; open a new reader there"


# Records, rows and messages


class RecordError(GazetteError):
    """A record cannot be read: malformed under ``mode=FAILFAST``, or larger than allowed."""

    journal: str
    offset: int
    """Offset of the record's first byte."""
    problem: str

    def _subject(self) -> Iterator[str]:
        yield f"journal {self.journal!r}, record at offset {self.offset}"


class RowError(GazetteError, ValueError):
    """A row cannot be written: readers would get another value, or its journal is unknown."""

    partition: int
    """Number of the Spark partition."""
    row: int
    """The row's index in that partition, from 0."""
    problem: str
    advice: str

    def _text(self) -> str:
        return (
            f"row {self.row} of Spark partition {self.partition} cannot be written: {self.problem}. "
            f"{self.advice}"
        )


class EmptyListingError(GazetteError):
    """A mapping has no journals."""

    problem: str = "empty ListResponse"

    def _text(self) -> str:
        return f"{self.problem}: a message cannot be mapped without a journal. Check the listing's selector"


class MessageError(GazetteError, ValueError):
    """A message cannot be framed, its UUID cannot be read or set, or its content type has no framing."""

    problem: str


class SequencerError(GazetteError, ValueError):
    """A sequencer was used out of order, or a replay returned messages outside its range."""

    journal: str
    offset: int
    problem: str

    def _subject(self) -> Iterator[str]:
        yield f"journal {self.journal!r}, offset {self.offset}"


class TransactionError(GazetteError):
    """A batch cannot be committed in its transaction journal; its rows stay uncommitted in their journals."""

    journal: str
    """The transaction journal."""
    problem: str
    advice: str

    def _subject(self) -> Iterator[str]:
        yield f"transaction journal {self.journal!r}"

    def _text(self) -> str:
        return f"{self.problem}. {self.advice}"


# The Delta sink


class SinkError(GazetteError):
    """Base of the Delta sink's errors."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The difference between one source of a batch, a journal or another source, and the table's record."""

    source: str
    """Name of the journal, or a text such as ``source 1`` for another kind of source."""
    recorded: int | str | None
    """End of the table's rows; None for a source that is new to the table."""
    begin: int | str | None
    end: int | str | None
    journal: str = ""
    """Name of the journal; empty for another source."""

    def __str__(self) -> str:
        recorded = (
            "the table has no record of it" if self.recorded is None else f"the table ends at {self.recorded}"
        )
        return f"{self.source}: {recorded}, the batch is [{self.begin}, {self.end})"


class BatchMismatchError(SinkError):
    """A batch does not continue the table; nothing was written. The subclasses say why."""

    table: str
    app_id: str
    batch_id: int
    mismatches: tuple[Mismatch, ...]

    advice: str = (
        "The query checkpoint does not belong to this state of the table. Start the query with a new "
        "checkpoint directory and DeltaSink.resume(reader), or startingOffsets from "
        "DeltaSink.resume_offsets()"
    )

    def _text(self) -> str:
        advice = self.advice
        if self.batch_id == 0 and advice == BatchMismatchError.advice:
            start = "sink.start(sink.resume(reader).load(), checkpoint=…)"
            if _is_iceberg(self):
                start = "ingest(sink.resume(reader), sink, checkpoint=…)"
            advice = (
                "This is the first batch of a new query checkpoint, and it does not begin where the table "
                f"ends. Start the query with {start} and a new checkpoint directory, which is right for "
                "every start. If it was started like this, another query writes to the table with the same "
                "app id: stop one of them"
            )
        return f"{self.problem}: {_listed(self.mismatches, '; ')}. {advice}"


class GapError(BatchMismatchError):
    """The batch begins past the end of the table: writing it would omit bytes permanently."""

    problem = "the batch begins after the end of the table"

    @property
    def missing(self) -> dict[str, list[tuple[int, int]]]:
        """Bytes by journal that would be omitted, in the form of ``DeltaSink(accept_gaps=…)``."""
        return {
            mismatch.journal: [(mismatch.recorded, mismatch.begin)]
            for mismatch in self.mismatches
            if mismatch.journal and isinstance(mismatch.recorded, int) and isinstance(mismatch.begin, int)
        }

    def _text(self) -> str:
        text = super()._text()
        if not (missing := self.missing):
            return text
        shown = dict(list(missing.items())[:_SHOWN_ITEMS])
        return f"{text}. To omit these bytes permanently and record so in the ledger: accept_gaps={shown}"


class OverlapError(BatchMismatchError):
    """The batch has bytes that the table already covers: writing it would duplicate rows."""

    problem = "the batch overlaps the table"


class BatchError(SinkError):
    """Base of the errors of a batch of which nothing was written to the table."""

    table: str
    app_id: str
    batch_id: int
    problem: str


class TrimError(BatchError):
    """A batch is partly in the table, but its rows there cannot be identified; nothing was written."""

    def _text(self) -> str:
        return (
            f"part of it is in the table, but it cannot be trimmed: {self.problem}. Or start the query with "
            "a new checkpoint directory and DeltaSink.resume(reader): then no batch overlaps the table"
        )


class UpsertError(BatchError):
    """A batch's rows cannot be merged by their key; nothing was written."""

    def _text(self) -> str:
        return f"its rows cannot be merged by key: {self.problem}"


class BadRowError(BatchError):
    """A row of a batch cannot be written; nothing of the batch was written to the table."""


class NoSpaceError(BatchError):
    """The disk of the table, of the query checkpoint, or of Spark's scratch directory is full."""

    def _text(self) -> str:
        return (
            f"no space is left: {self.problem}. Free space there, and start the query again with the same "
            "checkpoint: it writes the batch, or skips it if the table has it"
        )


class DeadLetterError(SinkError):
    """Dead letters cannot be separated from the rows that fit a table; nothing was written."""

    table: str
    app_id: str
    problem: str

    def _text(self) -> str:
        return f"no dead letters: {self.problem}"


class FencedError(SinkError):
    """Another writer with the same app id has written to the table; this writer must stop."""

    table: str
    app_id: str
    batch_id: int
    """Batch of the writer that must stop. It is in the table only if the winner's entry follows it."""
    winner_query_id: str
    winner_batch_id: int
    winner_time: str
    winner_table_version: int

    def _text(self) -> str:
        return (
            f"fenced by query {self.winner_query_id}, which wrote its batch {self.winner_batch_id} as table "
            f"version {self.winner_table_version} at {self.winner_time}. Stop one of the two queries; each "
            "needs its own app id or its own table"
        )


class LedgerLostError(SinkError):
    """Rows of the app id were written before, but the table's history no longer has their offsets."""

    table: str
    app_id: str

    def _text(self) -> str:
        reason = (
            "the history was cleaned up, the table is a copy, or something else writes with the transaction "
            f"id 'gazette_spark/{self.app_id}'"
        )
        retention = "delta.logRetentionDuration longer than the longest pause"
        if _is_iceberg(self):
            reason = "the table was rolled back, and the snapshots with the entries before that have expired"
            retention = "history.expire.max-snapshot-age-ms longer than rollbacks reach back"
        return (
            f"rows were written before, but the table's history has no entry with their offsets: {reason}. "
            "Nothing was written. Find where the rows of each journal end "
            "(gazette-spark offsets show TABLE --from-data) and start the ledger there: "
            "DeltaSink.adopt(JournalOffsets.from_json(…)). Then start with a new checkpoint and "
            f"DeltaSink.resume(reader), and keep {retention}"
        )


class LedgerFormatError(SinkError):
    """A ledger entry in the table's history cannot be read."""

    app_id: str
    problem: str

    def _text(self) -> str:
        return f"a ledger entry in the table's history cannot be read: {self.problem}"


class RestoredError(SinkError):
    """The table was restored in a way that the sink cannot continue from."""

    table: str
    app_id: str
    problem: str
    advice: str

    def _text(self) -> str:
        return f"{self.problem}. {self.advice}"


class QueryCheckpointError(SinkError):
    """The query checkpoint lacks the batch's offsets."""

    path: str
    problem: str

    def _subject(self) -> Iterator[str]:
        yield f"query checkpoint {self.path}"


class TableRefusedError(SinkError):
    """The table cannot be written exactly once: it or its location lacks support, or its log is damaged."""

    table: str
    problem: str


class DataFileError(SinkError):
    """A task of the direct lane cannot write a file of the table; nothing of the batch is committed."""

    table: str
    location: str
    problem: str

    def _text(self) -> str:
        return (
            f"a data file cannot be written at {self.location}: {self.problem}. Nothing of the batch was "
            "committed. Give the tasks access and space, and start the query again with the same checkpoint"
        )


@dataclass(frozen=True, slots=True)
class ColumnProblem:
    """Reason why one column, or a field of one, cannot be written to a table."""

    column: str
    """Path with the names of enclosing structs, and ``element``, ``key`` or ``value`` for arrays and maps."""
    problem: str
    advice: str
    table_type: str | None = None
    """None if the table lacks the column."""
    batch_type: str | None = None
    """None if the batch lacks the column."""

    def __str__(self) -> str:
        return f"column {self.column!r} {self.problem}; {self.advice}"


class SchemaMismatchError(SinkError):
    """The columns of a batch do not fit the table; nothing was written."""

    table: str
    app_id: str
    batch_id: int | None
    """None before the first batch."""
    problems: tuple[ColumnProblem, ...]

    def _subject(self) -> Iterator[str]:
        yield from super()._subject()
        if self.batch_id is None:
            yield "at its start"

    def _text(self) -> str:
        more = len(self.problems) - _SHOWN_ITEMS
        shown = ". ".join(str(problem) for problem in self.problems[:_SHOWN_ITEMS])
        rest = f". And {more} more columns" if more > 0 else ""
        return f"its columns do not fit the table; nothing was written: {shown}{rest}"


# Replicated logs


class InvalidVersionError(GazetteError):
    """A checkpoint was requested at a version other than the log's. Nothing was appended."""

    journal: str
    expected: int
    """Version that the caller expected."""
    actual: int
    """Version of the log; 0 if there was no checkpoint, or if its brokers lost the registers."""

    def _text(self) -> str:
        return (
            f"the log is at version {self.actual}, not {self.expected}: no checkpoint was made. Another "
            "checkpoint came first, or the version is of another snapshot: read the log to its end first. "
            "If all brokers of the journal were lost with its registers, "
            f"take_over(version={self.expected}) restores the version"
        )


class LogFencedError(GazetteError):
    """Another writer has taken the log over; this one must stop.

    Entries that were not acknowledged may or may not be in the log. Read the log to find out.
    """

    journal: str
    author: str
    """The writer that appends now; empty if the journal's brokers lost its registers."""

    def _text(self) -> str:
        if not self.author:
            return (
                "its registers no longer name this writer, because all its brokers were lost. Entries may be "
                "missing, and no writer is fenced. Make sure that one primary is left, and let it make a "
                "new Writer"
            )
        return (
            f"writer {self.author} has taken the log over. Stop acting as primary. To become primary again, "
            "make a new Writer, take the log over, and read it to its end"
        )


class PendingEntryError(AppendWaitError, TimeoutError):
    """An entry was not acknowledged in time, but may be in the log now or later. Read the log to find out."""


class CheckpointStateError(GazetteError, ValueError):
    """The steps of a checkpoint were called out of order, or by a thread that would wait for itself."""

    journal: str
    problem: str

    def _text(self) -> str:
        return f"{self.problem}. `with writer.checkpointing(version)` keeps the order"


class NoMoreMessageError(GazetteError):
    """The log ends here: all entries acknowledged before the call have been fetched."""

    journal: str
    offset: int
    """The journal's write head."""

    def _text(self) -> str:
        return f"the log ends at offset {self.offset}"


class FetchTimeoutError(GazetteError, TimeoutError):
    """No entry arrived in time. The next fetch continues at the same offset."""

    journal: str
    offset: int
    waited_s: float

    def _text(self) -> str:
        return f"no entry at offset {self.offset} within {self.waited_s:g} s"


class FetchCancelledError(GazetteError):
    """A fetch was cancelled. The next fetch continues at the same offset."""

    journal: str
    offset: int

    def _text(self) -> str:
        return f"the fetch at offset {self.offset} was cancelled"


class LogDataLossError(DataLossError):
    """Entries of a replicated log are gone: the journal begins after them, has a hole, or ends too early."""

    doubt: str = ""
    """Why no broker could confirm an end that is too low; empty if the journal's primary did."""

    def _text(self) -> str:
        if self.available < self.requested:
            return (
                f"the log was read up to offset {self.requested}, but it ends at {self.available}. "
                f"{_low_end_explained(self.doubt)} Or start this replica from a copy of the primary's state"
            )
        return (
            f"entries at offset {self.requested} are gone; the next available byte is at {self.available}. "
            "Restore the fragments, or load a snapshot and continue at its offset with set_offset"
        )


# Consumer applications, their shards and recovery logs


class ShardFailedError(GazetteError):
    """A shard cannot continue. The error is raised from its cause."""

    shard: str
    step: str
    """The step that failed: a method of the application or store, or a step of the host."""
    cause: str
    is_permanent: bool = False
    """Whether the cause is a :class:`PermanentError`, after which hosts do not restart the shard."""

    def _text(self) -> str:
        return (
            f"{self.step}: {self.cause}. The shard is FAILED and keeps its offsets. After you have removed "
            "the cause, unassign the shard or apply its spec again to start it"
        )


class PermanentError(GazetteError):
    """Raised by an application whose shard would fail again, so that hosts do not restart it by themselves.

    Raise it, or a subclass, from the error that is its cause.
    """

    problem: str

    def _text(self) -> str:
        return self.problem


class SourceLossError(GazetteError):
    """A source of a shard ends before the offset that the shard has read: it lost bytes or was recreated.

    Waiting there would omit everything that is appended up to that offset.
    """

    journal: str
    read_through: int
    """Offset of the shard's next byte."""
    write_head: int
    doubt: str = ""
    """Why no broker could confirm the write head; empty if the journal's primary did."""

    def _text(self) -> str:
        return (
            f"the shard has read up to offset {self.read_through}, but the journal ends at "
            f"{self.write_head}. {_low_end_explained(self.doubt)} If the journal was created again, apply "
            "the spec under another id, which begins at the sources' min_offset with new state"
        )


class TransactionOrderError(GazetteError):
    """A step of a consumer transaction was called out of order."""

    problem: str


class RecoveryLogLossError(GazetteError):
    """A recovery log lacks operations that are needed to rebuild a shard's files."""

    journal: str
    offset: int
    """Offset at which the operations should be, or after which they are gone."""
    problem: str

    def _subject(self) -> Iterator[str]:
        yield f"recovery log {self.journal!r}, offset {self.offset}"

    def _text(self) -> str:
        return (
            f"{self.problem}. Data is lost: restore the journal's fragments, or start from the hints of a "
            "backup. To start without state, delete the journal and the shard's hints, and create the "
            "journal again"
        )


class RecorderFencedError(GazetteError):
    """Another host has taken the recovery log over; this one must stop. The call recorded nothing."""

    journal: str

    def _subject(self) -> Iterator[str]:
        yield f"recovery log {self.journal!r}"

    def _text(self) -> str:
        return (
            "another recorder has taken it over, so the shard's primary is elsewhere now. This host's files "
            "are out of date: stop the shard here, and play the log again to become primary"
        )


class StoreFencedError(GazetteError):
    """Another store of the same shard has restored its checkpoint; this store can no longer commit."""

    store: str
    shard: str

    def _text(self) -> str:
        return (
            f"another host restored the shard since store {self.store} was opened, so the shard's primary is "
            "elsewhere now. The transaction was rolled back"
        )


class StoreFormatError(GazetteError, ValueError):
    """A store's file is not in the store's format."""

    path: str
    problem: str

    def _text(self) -> str:
        return f"store file {self.path}: {self.problem}. Restore the file, or begin with an empty store"
