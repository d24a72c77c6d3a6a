"""Gives a query's processes access to its journals: clients and stores, credentials, and logs.

The driver reads credentials from files. Tasks get the contents that the driver has read:

==================== ========================== ==========================================================
option               the driver's client        a task's client
==================== ========================== ==========================================================
``auth.token``       sends it                   sends it
``auth.tokenFile``   reads it when it changes   reads it when it changes, if the machine has the file;
                                                otherwise sends the token from the planning
``auth.keysSecret``  signs a token per request  signs a token per request
``tls.…File``        reads them when they       has their contents from the time of planning
                     change
``collection``       asks the control plane     sends the token from the time of planning
                     for a token, and renews it
==================== ========================== ==========================================================
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from gazette_spark._options.security import CollectionAccess, Security
from gazette_spark._options.source import SourceOptions
from gazette_spark._planning.pieces import Piece
from gazette_spark.errors import OptionError
from gazette_spark.protocol.tokens import KeySet

if TYPE_CHECKING:  # It loads gRPC, which a query's first processes do not need.
    from gazette_spark._planning.collection_tokens import CollectionTokens
    from gazette_spark._planning.reads import JournalSource
    from gazette_spark._planning.stores import StoreJournals
    from gazette_spark.client import Client, TlsOptions

log = logging.getLogger(__name__)

PACKAGE = "gazette_spark"

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def open_journals(options: SourceOptions) -> Client | StoreJournals:
    """Return the source of a batch: brokers or a store. The caller closes it."""
    show_logs(options.log_level)
    if options.fragment_store is None:
        return open_client(options)
    from gazette_spark._planning.stores import listed_store

    return listed_store(options)


def opened_pieces(
    options: SourceOptions, pieces: Collection[Piece]
) -> Iterator[tuple[JournalSource | None, Piece]]:
    """Yield each piece of a task with its source, brokers or a store, which is open until the next piece."""
    show_logs(options.log_level)
    # Pieces with content need no client, except to read the states of producers.
    if not options.reads_committed and all(piece.content is not None for piece in pieces):
        yield from ((None, piece) for piece in pieces)
        return
    if options.fragment_store is None:
        with open_client(options) as client:
            for piece in pieces:
                yield client, piece
        return
    from gazette_spark._planning.stores import store_of_piece

    for piece in pieces:
        with store_of_piece(options, piece) as journals:
            yield journals, piece


def open_client(options: SourceOptions) -> Client:
    """Return a client with a query's options. The caller closes it."""
    from gazette_spark.client import Client

    security = options.security
    address = options.broker_address or security.broker_address or ""
    if security.collection is not None:
        address = _tokens(security.collection).current().broker_address
    return Client(
        address,
        timeout_s=options.request_timeout_ms / 1000,
        idle_timeout_s=options.idle_timeout_ms / 1000,
        connect_timeout_s=options.connect_timeout_ms / 1000,
        fragment_root=options.fragment_root,
        **access(security),
    )


class Access(TypedDict):
    """Arguments of a ``Client``."""

    token: str | Callable[[], str] | None
    token_file: str | None
    auth_keys: KeySet | None
    tls: TlsOptions | None


def access(security: Security) -> Access:
    """Return the arguments of a client from the security options.

    Raises:
        OptionError: a certificate's file cannot be read, or a certificate is invalid.
    """
    token: str | Callable[[], str] | None = security.token
    if security.collection is not None:
        token = _tokens(security.collection).token
    return {
        "token": token,
        "token_file": security.token_file,
        "auth_keys": security.keys,
        "tls": _tls(security),
    }


def security_for_tasks(security: Security) -> Security:
    """Return the credentials of tasks: contents instead of files, and the current token.

    Raises:
        CollectionAccessError: the control plane of a collection issues no token.
        OptionError: a file cannot be read, or a certificate is invalid.
    """
    from gazette_spark.client._transport.credentials import read_token

    if security.collection is not None:
        granted = _tokens(security.collection).current()
        security = replace(
            security, token=granted.token, collection=None, broker_address=granted.broker_address
        )
    # The machine of a task need not have the driver's files. Tasks also get the token's path, so that a task
    # that has the file can renew its token during a long read.
    token = security.token if security.token_file is None else read_token(security.token_file)
    tls = _tls(security)
    if tls is None:
        return replace(security, token=token)
    cert, key = tls.pair or (None, None)
    return Security(
        token,
        security.token_file,
        security.keys,
        ca=tls.authorities,
        cert=cert,
        key=key,
        broker_address=security.broker_address,
    )


def _tokens(collection: CollectionAccess) -> CollectionTokens:
    # Loaded here because few queries read collections.
    from gazette_spark._planning.collection_tokens import tokens_of

    return tokens_of(collection)


def _tls(security: Security) -> TlsOptions | None:
    settings = (
        security.ca_file,
        security.cert_file,
        security.key_file,
        security.ca,
        security.cert,
        security.key,
    )
    if not any(settings):
        return None
    from gazette_spark.client import TlsOptions

    return TlsOptions(*settings)


class TaskCredentials:
    """The credentials of tasks, from files that change while a query runs. For one thread."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._last: Security | None = None

    def snapshot(self) -> Security:
        """Return the current credentials, or those of the last batch while files are being replaced.

        Raises:
            OptionError: at the first call, a file cannot be read, or a certificate is invalid.
        """
        try:
            # A tool that rotates certificates replaces several files one after the other. In between, a key
            # does not fit its certificate, and that must not end a query that runs for months.
            self._last = security_for_tasks(self._security)
        except OptionError as error:
            if self._last is None:
                raise
            log.warning("credentials of the last batch are used again: %s", error)
        return self._last


def show_logs(level: str | None) -> None:
    """Show the package's log lines from a level on; None changes nothing.

    If logging is configured in this process, only the level is set.
    """
    if level is None:
        return
    logger = logging.getLogger(PACKAGE)
    logger.setLevel(level.upper())
    # Spark's workers configure no logging, and Python would drop lines below WARNING.
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
        logger.addHandler(handler)
