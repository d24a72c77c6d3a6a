"""``gazette-spark consumer``: run the shards of an application as a separate process."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from gazette_spark.cli.journal_options import broker_options, make_connect
from gazette_spark.cli.main import DEFAULT_CONSUMER_PORT
from gazette_spark.cli.server_options import PORT, EndSignals, security_of_server, server_tls
from gazette_spark.errors import ClosedError, GazetteError, UnavailableError

if TYPE_CHECKING:
    from gazette_spark.consumer.application import Application
    from gazette_spark.consumer.client import ShardClient
    from gazette_spark.consumer.local import LocalHost

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two looks of a standby at its primary."""


@click.group()
def consumer() -> None:
    """Run the shards of a consumer application."""


@consumer.command()
@click.argument("application", metavar="MODULE:APPLICATION")
@click.option("--specs", "-f", type=click.File("r"), help="YAML of the shards to start with; '-' is stdin.")
@click.option("--name", default="", help="Name of the application in its stores.")
@click.option("--address", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=DEFAULT_CONSUMER_PORT,
    show_default=True,
    type=PORT,
    help="Port to listen on; 0: any free port.",
)
@security_of_server("CONSUMER_AUTH_KEYS")
@click.option(
    "--hints",
    "hints_dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Directory for hints of recovery logs, shared by all processes of the application. Without it, each "
    "start plays the logs from their beginning.",
)
@click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Directory for the files of running stores. Default: a temporary one.",
)
@click.option(
    "--drain",
    "drain_s",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for open transactions to commit at the end, in seconds.",
)
@click.option(
    "--max-restart-delay",
    "max_restart_delay_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest time until a failed shard is started again: the first is a second, each next one twice as "
    "long. 0: failed shards are not started again.",
)
@click.option("--metrics-port", type=PORT, help="Serve Prometheus metrics at this port; 0: any free port.")
@click.option(
    "--standby-of",
    "primary",
    metavar="URL",
    help="Address of a consumer of the same shards: run them when it does not answer any more. Recovery logs "
    "of shards with hot_standbys are played meanwhile.",
)
@click.option(
    "--takeover-after",
    "takeover_s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="With --standby-of: how long that consumer has not answered then.",
)
@broker_options
def serve(  # noqa: PLR0917 - an argument an option
    application: str,
    specs: TextIO | None,
    name: str,
    address: str,
    port: int,
    auth_keys: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    hints_dir: Path | None,
    work_dir: Path | None,
    drain_s: float,
    max_restart_delay_s: float,
    metrics_port: int | None,
    primary: str | None,
    takeover_s: float,
    endpoint: str,
    timeout: float,
) -> None:
    """Run shards of APPLICATION until interrupted, and serve the API consumer.Shard.

    MODULE is imported, also from the current directory. APPLICATION is an object in it, or a class without
    arguments. The command prints its endpoint once it serves, and that of its metrics on the next line. It
    starts the shards of --specs and ignores their revisions. Specs applied later last until the process ends.
    """
    from gazette_spark._server.http_server import HttpServer
    from gazette_spark.consumer.assignments import RestartPolicy
    from gazette_spark.consumer.client import PREFIX, ShardClient, verify_referenced_journals
    from gazette_spark.consumer.local import LocalHost
    from gazette_spark.consumer.recoverylog.hints import FileHints
    from gazette_spark.consumer.service import MetricsPage, ShardServer
    from gazette_spark.consumer.shard_yaml import parse_shard_yaml

    app = load_application(application)
    changes = [] if specs is None else parse_shard_yaml(specs.read())
    ends = EndSignals()
    tls = server_tls(tls_cert, tls_key, tls_client_ca)
    with (
        make_connect(endpoint, timeout)() as client,
        ShardServer(port=port, address=address, auth_keys=auth_keys or None, tls=tls) as server,
    ):
        verify_referenced_journals(client, changes)
        shards = [change.upsert for change in changes if not change.delete]
        hints = None if hints_dir is None else FileHints(hints_dir)
        restart = None
        if max_restart_delay_s > 0:
            restart = RestartPolicy(min(1.0, max_restart_delay_s), max_restart_delay_s)
        host = LocalHost(
            app,
            client,
            shards,
            name=name,
            hints=hints,
            work_dir=work_dir,
            standby=primary is not None,
            restart=restart,
        )
        host.serve_at(server.endpoint)
        with host, ExitStack() as stack:
            server.start(host)
            click.echo(server.endpoint)
            if metrics_port is not None:
                http = HttpServer(MetricsPage(host.metrics), address, metrics_port, option="metrics_port")
                stack.callback(http.stop)
                http.start()
                click.echo(f"{http.endpoint}/metrics")
            if primary is not None:
                watched = stack.enter_context(
                    make_connect(endpoint, takeover_s).open(
                        ShardClient, primary, PREFIX, connect_timeout_s=takeover_s
                    )
                )
                threading.Thread(target=take_over, args=(watched, host), daemon=True).start()
            ends.wait()
            host.close(drain_s=drain_s)


def take_over(primary: ShardClient, host: LocalHost) -> None:
    """Promote a standby when another consumer has not answered for as long as its client waits.

    If it does answer somebody else, its stores are fenced off all the same: no message counts twice.
    """
    while True:
        try:
            primary.list_all_shards()
        except ClosedError:  # This process ends.
            return
        except UnavailableError as error:
            log.warning("consumer.takes_over primary=%s cause=%s", primary.endpoint, error)
            host.promote()
            return
        except GazetteError as error:
            log.warning("consumer.primary_refuses primary=%s cause=%s", primary.endpoint, error)
        time.sleep(LOOK_S)


def load_application(text: str) -> Application[Any]:
    """Return the application that ``MODULE:APPLICATION`` names.

    Raises:
        click.UsageError: it names none.
    """
    from gazette_spark.consumer.application import Application

    module, _, name = text.partition(":")
    if not module or not name:
        raise click.UsageError(f"{text!r}: expected MODULE:APPLICATION, as my_package.orders:Totals")
    # As python -m has it, and a command that was installed has not.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        member = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module and not module.startswith(f"{error.name}."):
            raise
        raise click.UsageError(f"{text!r}: there is no module {error.name!r}") from error
    except AttributeError as error:
        raise click.UsageError(f"{text!r}: module {module!r} has no {name!r}") from error
    app = member() if isinstance(member, type) and issubclass(member, Application) else member
    if not isinstance(app, Application):
        raise click.UsageError(f"{text!r} is no Application, but {type(app).__name__}")
    return app
