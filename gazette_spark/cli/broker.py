"""``gazette-spark broker``: run the embedded broker as a process of its own."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType

import click

from gazette_spark.errors import GazetteError


@click.group()
def broker() -> None:
    """Run a Gazette broker for development and tests."""


@broker.command()
@click.option("--root", required=True, type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0: any free port."
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
def serve(root: Path, port: int, pulse_interval: float, fsync: bool, auth_keys: str | None) -> None:
    """Serve journals kept under a directory until interrupted.

    Prints the endpoint once it can be used.
    """
    from gazette_spark.broker.embedded import EmbeddedBroker

    over = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        over.set()

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, end)
    try:
        embedded = EmbeddedBroker(
            root, port=port, pulse_interval_s=pulse_interval, fsync=fsync, auth_keys=auth_keys or None
        )
        with embedded as running:
            click.echo(running.endpoint)
            over.wait()
    except GazetteError as error:
        raise click.ClickException(str(error)) from error
