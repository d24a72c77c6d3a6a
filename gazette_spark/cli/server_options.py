"""Defines options that server commands share, and the signals that end these commands."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from gazette_spark.cli.main import Integer, usage_errors

if TYPE_CHECKING:
    from gazette_spark._server.tls import ServerTls
    from gazette_spark.protocol.tokens import KeySet

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
            callback=_parse_keys,
            help=f"Base64 keys that verify tokens. Prefer ${variable}: others can see a command line.",
        )
        cert = click.option("--tls-cert", type=_FILE, help="PEM certificate of this server.")
        key = click.option("--tls-key", type=_FILE, help="PEM private key of the certificate.")
        client_ca = click.option(
            "--tls-client-ca",
            type=_FILE,
            help="PEM file of the authorities that sign client certificates. Clients then need one.",
        )
        return keys(cert(key(client_ca(command))))

    return decorate


def _parse_keys(_context: click.Context, _option: click.Parameter, text: str | None) -> KeySet | None:
    from gazette_spark.protocol.tokens import KeySet

    with usage_errors():
        return KeySet.parse(text, "--auth-keys") if text else None


@usage_errors()
def server_tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    """Return the TLS settings of the options; None for plain text."""
    from gazette_spark._server.tls import ServerTls

    if cert is None and key is None and client_ca is None:
        return None
    # A client CA without a certificate would look secure, but the connection would not be encrypted.
    if cert is None or key is None:
        raise click.UsageError("TLS needs both --tls-cert and --tls-key")
    return ServerTls(cert, key, client_ca)


ENDING = frozenset({signal.SIGINT, signal.SIGTERM})


class EndSignals:
    """Catches SIGINT and SIGTERM for the rest of the process, and waits for one of them.

    Python runs its handlers in the main thread, but the kernel may deliver a signal to any thread, which does
    not wake a main thread that waits for a lock. So the main thread waits for a byte in a pipe, which
    Python's low-level handler writes in whichever thread receives the signal.
    """

    def __init__(self) -> None:
        # Never closed, because the handlers stay for the life of the process.
        self._reader, writer = os.pipe()
        # Python's handler must not block in the write. If the pipe is full, the reader is already awake.
        os.set_blocking(writer, False)
        self._has_come = False
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for signum in ENDING:
            # The default action would end the process, and Python writes to the pipe only for signals that
            # have a Python handler.
            signal.signal(signum, lambda *_: None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until a signal has arrived, now or earlier. Return False at the timeout."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._has_come:
            remaining_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            if not select.select([self._reader], [], [], remaining_s)[0]:
                return False
            # Each byte is a signal number. Other handled signals also write to the pipe.
            self._has_come = not ENDING.isdisjoint(os.read(self._reader, 64))
        return True
