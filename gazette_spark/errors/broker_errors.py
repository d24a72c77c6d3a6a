"""Errors between a client and its brokers, except for the statuses that brokers answer with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gazette_spark.errors.base import GazetteError, PlainError

BROKER = "broker"
"""Whom a client calls, unless an error's ``service`` says otherwise."""


@dataclass(eq=False)
class AuthError(GazetteError):
    """The broker refused the caller's token, or the caller gave no token."""

    endpoint: str
    problem: str
    service = BROKER

    def __str__(self) -> str:
        prefix = self.service.upper()
        of_query = "options auth.token, auth.tokenFile and auth.keysSecret of a query; for a command "
        return (
            f"{self.service} {self.endpoint}: not authorized: {self.problem}. Check the token, or the keys "
            f"that sign it: {of_query if self.service == BROKER else ''}"
            f"{prefix}_AUTH_TOKEN, {prefix}_AUTH_TOKEN_FILE and {prefix}_AUTH_KEYS"
        )


class TokenError(PlainError):
    """A bearer token does not verify. Its text never holds the token or a key."""


@dataclass(eq=False)
class UnavailableError(GazetteError):
    """The broker could not be reached, or did not answer within the deadline."""

    endpoint: str
    problem: str
    retryable: ClassVar[bool] = True
    service = BROKER

    def __str__(self) -> str:
        address = "brokerAddress" if self.service == BROKER else f"{self.service.upper()}_ADDRESS"
        where = f"{self.service} {self.endpoint}"
        return f"{where}: unavailable: {self.problem}. Check {address} and the {self.service}"


@dataclass(eq=False)
class TlsError(GazetteError):
    """No secure connection to the broker can be made: one side does not trust the other, or has no TLS."""

    endpoint: str
    problem: str
    service = BROKER

    def __str__(self) -> str:
        prefix = self.service.upper()
        of_query = "options tls.caFile, tls.certFile and tls.keyFile of a query; for a command "
        return (
            f"{self.service} {self.endpoint}: no secure connection: {self.problem}. Check the address and "
            f"the certificates: {of_query if self.service == BROKER else ''}"
            f"{prefix}_TRUSTED_CA_FILE, {prefix}_CERT_FILE and {prefix}_CERT_KEY_FILE"
        )


@dataclass(eq=False)
class BrokerError(GazetteError):
    """The broker failed the call with a text and no status (gRPC UNKNOWN and the like)."""

    endpoint: str
    code: str
    """Name of the gRPC code."""
    problem: str
    service = BROKER

    def __str__(self) -> str:
        text = f"{self.service} {self.endpoint}: {self.code}: {self.problem}"
        if self.service == BROKER or self.code != "UNIMPLEMENTED":
            return text
        prefix = self.service.upper()
        return f"{text} No {self.service} serves this address; it may be a broker's. Check {prefix}_ADDRESS"


class FlowControlError(BrokerError):
    """An append brought its bytes too slowly, and was rolled back: others wait for the journal meanwhile."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()}. Nothing was appended. Have all bytes at hand before the first is written, "
            "or use an AppendService, which collects them first"
        )


@dataclass(eq=False)
class BrokerRootError(GazetteError):
    """The embedded broker cannot use its root directory: in use, unreadable, or of another version."""

    root: str
    problem: str

    def __str__(self) -> str:
        return f"embedded broker root {self.root!r}: {self.problem}"


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
    """Etcd revision of the last transaction that was applied."""
    cause: GazetteError
    """Error of the next transaction. After an UnavailableError it may have been done, too."""

    def __str__(self) -> str:
        return (
            f"the first {self.applied} of {self.changes} changes were applied, up to revision "
            f"{self.revision}; then batch {self.batch} failed: {self.cause}"
        )


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
