"""Implements ``gazette-spark consumer``, which runs the shards of an application as a separate process."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from gazette_spark.cli.cluster_options import ClusterOptions, cluster_options
from gazette_spark.cli.journal_options import broker_options, make_connect
from gazette_spark.cli.main import DEFAULT_CONSUMER_PORT, Number
from gazette_spark.cli.server_options import PORT, EndSignals, security_of_server, server_tls

if TYPE_CHECKING:
    from gazette_spark.consumer._cluster.host import ClusterHost
    from gazette_spark.consumer.application import Application
    from gazette_spark.consumer.local import LocalHost
    from gazette_spark.protocol.tokens import KeySet

log = logging.getLogger(__name__)


@click.group()
def consumer() -> None:
    """Run the shards of a consumer application."""


@consumer.command(short_help="Run the shards of APPLICATION until interrupted.")
@click.argument("application", metavar="MODULE:APPLICATION")
@click.option("--specs", "-f", type=click.File("r"), help="YAML of the initial shards; '-' is stdin.")
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
    help="Directory for hints of recovery logs, without --etcd. Without hints, each start plays the logs "
    "from their beginning.",
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
    type=Number(min=0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for open transactions to commit when the process ends.",
)
@click.option(
    "--max-restart-delay",
    "max_restart_delay_s",
    type=Number(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Maximum delay before a failed shard is started again. The first delay is a second, each further "
    "one is twice as long. 0: failed shards are not started again.",
)
@click.option("--metrics-port", type=PORT, help="Serve Prometheus metrics at this port; 0: any free port.")
@cluster_options
@broker_options
def serve(  # noqa: PLR0915, PLR0917 - steps in order; one argument per option
    application: str,
    specs: TextIO | None,
    name: str,
    address: str,
    port: int,
    auth_keys: KeySet | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    hints_dir: Path | None,
    work_dir: Path | None,
    drain_s: float,
    max_restart_delay_s: float,
    metrics_port: int | None,
    cluster: ClusterOptions,
    endpoint: str,
    timeout: float,
) -> None:
    """Run shards of APPLICATION until interrupted, and serve the API consumer.Shard.

    The command imports MODULE, if necessary from the current directory. APPLICATION is an object in it, or a
    class that needs no arguments. The command prints its endpoint once it serves, and that of its metrics on
    the next line.

    With --etcd, the process is a member of a cluster, together with other processes of this command and of
    Gazette. The specs of shards are in Etcd; missing ones are created from --specs. Before the process ends,
    it hands over its shards.

    Without --etcd, the process starts the shards of --specs and ignores their revisions. Specs that are
    applied later last until the process ends, and no other process takes over.
    """
    from gazette_spark._server.http_server import HttpServer
    from gazette_spark.client import environment
    from gazette_spark.consumer._cluster.host import ClusterHost
    from gazette_spark.consumer.assignments import RestartPolicy
    from gazette_spark.consumer.client import PREFIX, verify_referenced_journals
    from gazette_spark.consumer.local import LocalHost
    from gazette_spark.consumer.recoverylog.hints import FileHints
    from gazette_spark.consumer.service import MetricsPage, ShardServer
    from gazette_spark.consumer.shard_yaml import parse_shard_yaml

    app = load_application(application)
    changes = [] if specs is None else parse_shard_yaml(specs.read())
    # Before anything is started, so that a signal during the start shuts everything down properly.
    ends = EndSignals()
    tls = server_tls(tls_cert, tls_key, tls_client_ca)
    peer_tls = environment.arguments(os.environ, PREFIX)["tls"]
    restart = None
    if max_restart_delay_s > 0:
        restart = RestartPolicy(min(1.0, max_restart_delay_s), max_restart_delay_s)
    with ExitStack() as stack:
        client = stack.enter_context(make_connect(endpoint, timeout)())
        server = stack.enter_context(
            ShardServer(port=port, address=address, auth_keys=auth_keys, tls=tls, peer_tls=peer_tls)
        )
        # A shard whose journal is missing would be FAILED and be restarted repeatedly. This check reports the
        # problem immediately.
        verify_referenced_journals(client, changes)
        # Deletions start no shard.
        shards = [change.upsert for change in changes if not change.delete]
        host: ClusterHost | LocalHost
        if cluster.endpoints:
            if hints_dir is not None:
                raise click.UsageError(
                    "--hints is for a process without --etcd; a cluster keeps its hints in Etcd"
                )
            prefix = cluster.prefix or f"/gazette/consumers/{name or type(app).__name__}"
            etcd = stack.enter_context(cluster.open_etcd())
            member = cluster.member(server.endpoint)
            host = ClusterHost(
                app,
                client,
                etcd,
                prefix,
                member,
                limit=cluster.limit,
                lease_s=cluster.lease_s,
                work_dir=work_dir,
                restart=restart,
            )
            host.create_missing(shards)
            # Before the start, so that a later error also ends the membership. Closing twice does nothing.
            stack.callback(host.close)
            host.start()
            server.start(host)
            # A killed process may keep the name until its lease ends.
            while not (host.wait_joined(0.2) or ends.wait(0)):
                pass
        else:
            click.echo("Without --etcd, no other process takes over the shards of this one.", err=True)
            hints = None if hints_dir is None else FileHints(hints_dir)
            host = LocalHost(app, client, shards, name=name, hints=hints, work_dir=work_dir, restart=restart)
            host.serve_at(server.endpoint)
            stack.enter_context(host)
            server.start(host)
        click.echo(server.endpoint)
        if metrics_port is not None:
            http = HttpServer(MetricsPage(host.metrics), address, metrics_port, option="metrics_port")
            stack.callback(http.stop)
            http.start()
            click.echo(f"{http.endpoint}/metrics")
        ends.wait()
        if isinstance(host, ClusterHost):
            # Hand over before stopping. A shard that is handed over is down only for a moment, but one that
            # is stopped is down until others notice.
            host.leave(drain_s=drain_s)
            if not host.wait_left(cluster.hand_over_s):
                log.warning("consumer.not_handed_over seconds=%g", cluster.hand_over_s)
        host.close(drain_s=drain_s)


def load_application(text: str) -> Application[Any]:
    """Return the application that ``MODULE:APPLICATION`` names.

    Raises:
        click.UsageError: the text names no application.
    """
    from gazette_spark.consumer.application import Application

    module, _, name = text.partition(":")
    if not module or not name:
        raise click.UsageError(f"{text!r}: expected MODULE:APPLICATION, such as my_package.orders:Totals")
    # Python adds this for python -m, but not for an installed command.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        member = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        # The module exists, but imports a missing one. The traceback shows the line.
        if error.name != module and not module.startswith(f"{error.name}."):
            raise
        raise click.UsageError(f"{text!r}: there is no module {error.name!r}") from error
    except AttributeError as error:
        raise click.UsageError(f"{text!r}: module {module!r} has no {name!r}") from error
    app = member() if isinstance(member, type) and issubclass(member, Application) else member
    if not isinstance(app, Application):
        raise click.UsageError(f"{text!r} is not an Application but of type {type(app).__name__}")
    return app
