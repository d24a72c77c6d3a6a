"""``gazette-spark broker``: run the embedded broker as a separate process."""

from __future__ import annotations

import signal
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Literal

import click

from gazette_spark.errors import GazetteError

if TYPE_CHECKING:
    from gazette_spark.broker.tls import ServerTls

_PORT = click.IntRange(0, 65535)
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def broker() -> None:
    """Run a Gazette broker for development and tests."""


@broker.command()
@click.option("--root", required=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--port", default=8080, show_default=True, type=_PORT, help="0: any free port.")
@click.option("--gateway-port", type=_PORT, help="Serve the HTTP gateway, too; 0: at any free port.")
@click.option(
    "--gateway-name",
    "gateway_names",
    multiple=True,
    metavar="HOST",
    help="Host name of the gateway, beside localhost and addresses; may be repeated.",
)
@click.option(
    "--pulse-interval", default=60.0, show_default=True, help="Seconds between looks at idle journals."
)
@click.option(
    "--fsync/--no-fsync",
    default=True,
    show_default=True,
    help="Survive power cuts, not only the end of the process.",
)
@click.option(
    "--auth-keys",
    envvar="BROKER_AUTH_KEYS",
    metavar="KEYS",
    help="Base64 keys that tokens have to verify against; better by $BROKER_AUTH_KEYS than here.",
)
@click.option("--tls-cert", type=_FILE, help="PEM certificate to serve by.")
@click.option("--tls-key", type=_FILE, help="Its private key, PEM.")
@click.option(
    "--tls-client-ca", type=_FILE, help="Authorities, PEM, one of which a client has to be known to."
)
@click.option(
    "--max-append-rate", default=0, type=click.IntRange(0), help="Bytes a second, for journals with a rate."
)
@click.option(
    "--fragment-urls",
    default="file",
    show_default=True,
    type=click.Choice(["file", "http"]),
    help="How clients read fragments past the broker: by path, or by URLs it signs and serves.",
)
def serve(  # noqa: PLR0917 - an argument an option
    root: Path,
    port: int,
    gateway_port: int | None,
    gateway_names: tuple[str, ...],
    pulse_interval: float,
    fsync: bool,
    auth_keys: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    max_append_rate: int,
    fragment_urls: Literal["file", "http"],
) -> None:
    """Serve journals kept under a directory until interrupted.

    Prints the endpoint once it can be used, and on the next line that of the gateway.
    """
    from gazette_spark.broker import EmbeddedBroker, GatewaySettings, ServingSettings, StorageSettings

    # Not an Event: a handler that sets one waits for its lock, which the interrupted thread may hold.
    ends: SimpleQueue[int] = SimpleQueue()

    def end(number: int, _frame: FrameType | None) -> None:
        ends.put(number)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, end)
    try:
        embedded = EmbeddedBroker(
            root,
            port=port,
            storage=StorageSettings(fsync, pulse_interval, fragment_urls),
            serving=ServingSettings(max_append_rate=max_append_rate),
            gateway=None if gateway_port is None else GatewaySettings(gateway_port, gateway_names),
            auth_keys=auth_keys or None,
            tls=_tls(tls_cert, tls_key, tls_client_ca),
        )
        with embedded as running:
            click.echo(running.endpoint)
            if running.gateway_endpoint is not None:
                click.echo(running.gateway_endpoint)
            ends.get()
    except GazetteError as error:
        raise click.ClickException(str(error)) from error


def _tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    from gazette_spark.broker.tls import ServerTls

    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        raise click.UsageError("TLS needs both --tls-cert and --tls-key")
    return ServerTls(cert, key, client_ca)
