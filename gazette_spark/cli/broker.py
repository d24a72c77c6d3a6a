"""``gazette-spark broker``: run the embedded broker as a separate process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from gazette_spark.cli.main import Integer, Number
from gazette_spark.cli.server_options import PORT, EndSignals, security_of_server, server_tls
from gazette_spark.errors import GazetteError

if TYPE_CHECKING:
    from gazette_spark.broker import LocalCluster
    from gazette_spark.protocol.tokens import KeySet


@click.group()
def broker() -> None:
    """Run a Gazette broker for development and tests."""


@broker.command()
@click.option(
    "--root",
    default="gazette-data",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the journals, created if it is missing.",
)
@click.option(
    "--port", default=8080, show_default=True, type=PORT, help="Port to listen on; 0: any free port."
)
@click.option(
    "--replicas",
    default=1,
    show_default=True,
    type=Integer(1, 9),
    help="Run a local cluster of this many brokers, 3 or more, of which one may be down.",
)
@click.option("--gateway-port", type=PORT, help="Serve the HTTP gateway at this port; 0: any free port.")
@click.option(
    "--gateway-name",
    "gateway_names",
    multiple=True,
    metavar="HOST",
    help="Host name of the gateway, in addition to localhost and IP addresses. Repeatable.",
)
@click.option(
    "--gateway-without-token",
    is_flag=True,
    help="Serve the gateway's GET, HEAD and PUT without a token even if there are keys, as Gazette does.",
)
@click.option(
    "--pulse-interval",
    type=Number(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Interval between checks of idle journals.",
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
    help="Upper bound of the rate, in bytes per second, that the spec of a journal may set.",
)
@click.option(
    "--fragment-urls",
    default="file",
    show_default=True,
    type=click.Choice(["file", "http"]),
    help="Form of the URLs of stored fragments: file paths, or the broker's signed URLs.",
)
def serve(  # noqa: PLR0917 - one argument per option
    root: Path,
    port: int,
    replicas: int,
    gateway_port: int | None,
    gateway_names: tuple[str, ...],
    gateway_without_token: bool,
    pulse_interval: float,
    fsync: bool,
    auth_keys: KeySet | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    max_append_rate: int,
    fragment_urls: Literal["file", "http"],
) -> None:
    """Serve the journals in a directory until interrupted.

    The command prints the broker's URL on stdout once it answers, and the gateway's on the next line. With
    --replicas it prints the URL of each broker, and reads commands from stdin: "kill 1", "start 1", "stop 1".
    """
    from gazette_spark.broker import EmbeddedBroker, GatewaySettings, ServingSettings, StorageSettings

    gateway = None
    if gateway_port is not None:
        gateway = GatewaySettings(gateway_port, gateway_names, serves_without_token=gateway_without_token)
    options: dict[str, Any] = {
        "storage": StorageSettings(fsync, pulse_interval, fragment_urls),
        "serving": ServingSettings(max_append_rate=max_append_rate),
        "gateway": gateway,
        "auth_keys": auth_keys,
    }
    # The brokers of a local cluster call each other without certificates.
    if replicas > 1 and tls_cert is not None:
        raise click.UsageError("--replicas and --tls-cert: brokers of a local cluster do not use TLS")
    if replicas > 1 and port_was_chosen():
        raise click.UsageError("--replicas and --port: each broker of a local cluster uses any free port")
    tls = server_tls(tls_cert, tls_key, tls_client_ca)
    ends = EndSignals()
    try:
        if replicas > 1:
            with EmbeddedBroker.start(root, replicas=replicas, **options) as cluster:
                for endpoint in cluster.endpoints:
                    click.echo(endpoint)
                click.echo(next_steps(cluster.endpoint), err=True)
                # A daemon, because the process must not wait for a line that may never come.
                threading.Thread(target=obey, args=(cluster, sys.stdin), daemon=True).start()
                ends.wait()
            return
        with EmbeddedBroker.start(root, port=port, tls=tls, **options) as running:
            # On its own line of stdout, for programs that start a broker and read its address. Advice goes to
            # stderr.
            click.echo(running.endpoint)
            if running.gateway_endpoint is not None:
                click.echo(running.gateway_endpoint)
            click.echo(next_steps(running.endpoint), err=True)
            ends.wait()
    except GazetteError as error:
        raise click.ClickException(str(error)) from error


def port_was_chosen() -> bool:
    """Return whether the user gave ``--port``."""
    source = click.get_current_context().get_parameter_source("port")
    return source is not click.core.ParameterSource.DEFAULT


def obey(cluster: LocalCluster, commands: Iterable[str]) -> None:
    """Execute commands such as ``kill 1``. Brokers are numbered from 1, in the order of their URLs."""
    for line in commands:
        match line.split():
            case [("kill" | "start" | "stop") as verb, number] if number.isdecimal() and 1 <= int(
                number
            ) <= len(cluster.brokers):
                broker = cluster.brokers[int(number) - 1]
                getattr(broker, verb)()
                # Wait until the other brokers have noticed, so that the next command finds a stable cluster.
                cluster.settle()
                click.echo(f"broker {number} is {'running' if broker.is_running else 'down'}", err=True)
            # An empty line, because the user pressed Enter.
            case []:
                pass
            case _:
                expected = f"kill, start or stop and a number from 1 to {len(cluster.brokers)}, as in: kill 1"
                click.echo(f"{line.strip()!r} is not a command; expected {expected}", err=True)


def next_steps(endpoint: str) -> str:
    """Return the commands to type in another terminal."""
    return (
        "The broker runs until Ctrl-C. In another terminal:\n"
        f"  export BROKER_ADDRESS={endpoint}\n"
        "  gazette-spark journals list"
    )
