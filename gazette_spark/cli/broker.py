"""``gazette-spark broker``: run the embedded broker as a separate process."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from gazette_spark.cli.main import Integer
from gazette_spark.cli.server_options import PORT, end_signals, security_of_server, server_tls
from gazette_spark.errors import GazetteError


@click.group()
def broker() -> None:
    """Run a Gazette broker for development and tests."""


@broker.command()
@click.option(
    "--root",
    default="gazette-data",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the journals; made if it is missing.",
)
@click.option(
    "--port", default=8080, show_default=True, type=PORT, help="Port to listen on; 0: any free port."
)
@click.option("--gateway-port", type=PORT, help="Serve the HTTP gateway at this port; 0: any free port.")
@click.option(
    "--gateway-name",
    "gateway_names",
    multiple=True,
    metavar="HOST",
    help="Host name of the gateway, beside localhost and IP addresses. Repeatable.",
)
@click.option(
    "--gateway-without-token",
    is_flag=True,
    help="Serve the gateway's GET, HEAD and PUT without a token although there are keys, as Gazette does.",
)
@click.option(
    "--pulse-interval", default=60.0, show_default=True, help="Seconds between two checks of idle journals."
)
@click.option(
    "--fsync/--no-fsync",
    default=True,
    show_default=True,
    help="Flush appends to disk, so that they survive a power cut.",
)
@security_of_server("BROKER_AUTH_KEYS")
@click.option(
    "--max-append-rate",
    default=0,
    type=Integer(0),
    help="Maximum bytes per second, for journals with a rate.",
)
@click.option(
    "--fragment-urls",
    default="file",
    show_default=True,
    type=click.Choice(["file", "http"]),
    help="How clients read stored fragments: by path, or by signed URLs of the broker.",
)
def serve(  # noqa: PLR0917 - an argument an option
    root: Path,
    port: int,
    gateway_port: int | None,
    gateway_names: tuple[str, ...],
    gateway_without_token: bool,
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

    Prints the broker's URL on stdout once it answers, and the gateway's on the next line.
    """
    from gazette_spark.broker import EmbeddedBroker, GatewaySettings, ServingSettings, StorageSettings

    gateway = None
    if gateway_port is not None:
        gateway = GatewaySettings(gateway_port, gateway_names, serves_without_token=gateway_without_token)
    ends = end_signals()
    try:
        embedded = EmbeddedBroker(
            root,
            port=port,
            storage=StorageSettings(fsync, pulse_interval, fragment_urls),
            serving=ServingSettings(max_append_rate=max_append_rate),
            gateway=gateway,
            auth_keys=auth_keys or None,
            tls=server_tls(tls_cert, tls_key, tls_client_ca),
        )
        with embedded as running:
            click.echo(running.endpoint)
            if running.gateway_endpoint is not None:
                click.echo(running.gateway_endpoint)
            click.echo(next_steps(running.endpoint), err=True)
            ends.get()
    except GazetteError as error:
        raise click.ClickException(str(error)) from error


def next_steps(endpoint: str) -> str:
    """Return what to type in another terminal."""
    return (
        "The broker runs until Ctrl-C. In another terminal:\n"
        f"  export BROKER_ADDRESS={endpoint}\n"
        "  gazette-spark journals list"
    )
