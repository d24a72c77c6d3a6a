"""The statuses a broker answers with: one class each, named as on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gazette_spark.errors.base import GazetteError


@dataclass(eq=False)
class StatusError(GazetteError):
    """A broker answered with a status other than OK. Each status has its own subclass below."""

    status: ClassVar[str] = ""
    """Name of the status on the wire."""
    advice: ClassVar[str] = ""

    journal: str
    detail: str = ""

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        stop = "" if detail.endswith("?") else "."
        advice = f"{stop} {self.advice}" if self.advice else ""
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
