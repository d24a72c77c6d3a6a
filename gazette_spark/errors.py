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
        return f"broker {self.endpoint}: not authorized: {self.problem}"


@dataclass(eq=False)
class UnavailableError(GazetteError):
    """The broker could not be reached, or did not answer within the deadline."""

    endpoint: str
    problem: str
    retryable: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"broker {self.endpoint}: unavailable: {self.problem}. Check brokerAddress and the broker"


@dataclass(eq=False)
class BrokerError(GazetteError):
    """The broker failed the call with a text and no status (gRPC UNKNOWN and the like)."""

    endpoint: str
    code: str
    """Name of the gRPC code."""
    problem: str

    def __str__(self) -> str:
        return f"broker {self.endpoint}: {self.code}: {self.problem}"


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
