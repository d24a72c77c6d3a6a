"""Options that server commands share, and the signals that end them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import click

from gazette_spark.cli.main import Integer

if TYPE_CHECKING:
    from gazette_spark._server.tls import ServerTls

Decorated = TypeVar("Decorated", bound=Callable[..., object])

PORT = Integer(0, 65535)

_FILE = click.Path(dir_okay=False, path_type=Path)


def security_of_server(variable: str) -> Callable[[Decorated], Decorated]:
    """Add ``auth_keys``, also from the environment, ``tls_cert``, ``tls_key`` and ``tls_client_ca``."""

    def decorate(command: Decorated) -> Decorated:
        keys = click.option(
            "--auth-keys",
            envvar=variable,
            metavar="KEYS",
            help=f"Base64 keys that verify tokens. Set ${variable} instead: others can see a command line.",
        )
        cert = click.option("--tls-cert", type=_FILE, help="PEM certificate of this server.")
        key = click.option("--tls-key", type=_FILE, help="PEM private key of the certificate.")
        client_ca = click.option(
            "--tls-client-ca",
            type=_FILE,
            help="PEM file of the authorities that sign client certificates. Clients need one.",
        )
        return keys(cert(key(client_ca(command))))

    return decorate


def server_tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    """Return the TLS settings of the options; None for plain text."""
    from gazette_spark._server.tls import ServerTls

    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        raise click.UsageError("TLS needs both --tls-cert and --tls-key")
    return ServerTls(cert, key, client_ca)


def end_signals() -> SimpleQueue[int]:
    """Return a queue that receives each SIGINT and SIGTERM from now on."""
    # Not an Event: its set() takes a lock that the interrupted thread may hold, which would deadlock.
    ends: SimpleQueue[int] = SimpleQueue()

    def end(number: int, _frame: FrameType | None) -> None:
        ends.put(number)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, end)
    return ends
