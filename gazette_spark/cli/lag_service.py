"""Implements ``gazette-spark lag serve`` and ``lag show``, which judge current queries and tables."""

from __future__ import annotations

import json
import logging
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import click

from gazette_spark.cli.journal_options import interrupted_by_signals, make_connect
from gazette_spark.cli.lag_options import alarms, feed_options, named, rule_options, rules
from gazette_spark.cli.main import Integer, Number, one_line, usage_errors
from gazette_spark.cli.output import format_option
from gazette_spark.errors import GazetteError, MissingPackageError
from gazette_spark.lag.rules import Status
from gazette_spark.locations import masked_url

if TYPE_CHECKING:
    from gazette_spark.lag.feeds import Feed
    from gazette_spark.lag.monitor import Monitor
    from gazette_spark.lag.notifier import Notifier

EXIT_CODES = {"OK": 0, "UNKNOWN": 0, "WARN": 1, "ERR": 2}

UNWRAPPED = 10_000
"""Number of columns if the output is not a terminal, or if a table does not fit into one."""

MIN_NAMES = 24
"""Minimum number of columns for group, journal and verdict together, when folded."""

STALE_AFTER_S, STALE_ROUNDS = 60, 3
"""Seconds, and intervals between polls. A verdict is stale if the last poll is longer ago than both."""

UNREADABLE = 3
"""Exit code of ``lag show`` if something could not be read, so that a verdict is missing or stale."""


@click.command(short_help="Serve Burrow's HTTP API, metrics and a status page.")
@feed_options
@rule_options
@click.option(
    "--listen", default="127.0.0.1:8000", show_default=True, metavar="HOST:PORT", help="Address to listen on."
)
@click.option(
    "--interval",
    "interval_s",
    type=Number(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Interval between polls.",
)
@click.option(
    "--expire-cache",
    "expire_cache_s",
    type=Integer(min=0),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="Time for which a verdict is cached.",
)
@click.option(
    "--other-cluster",
    "other_clusters",
    multiple=True,
    metavar="NAME=URL",
    help="Another `lag serve`, whose groups the page also shows. Repeatable.",
)
@click.option(
    "--allow-delete", is_flag=True, help="Allow DELETE requests for groups, and for topics of groups."
)
@click.option(
    "--notify-command",
    metavar="COMMAND",
    help="Program to run for each notice, with the notice as JSON on stdin.",
)
@click.option(
    "--notify-webhook",
    envvar="GAZETTE_SPARK_WEBHOOK",
    metavar="URL",
    help="URL to post notices to, as JSON. Also from GAZETTE_SPARK_WEBHOOK.",
)
@click.option(
    "--notify-template",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Body for the webhook, instead of the notice's JSON; ${group} and other names are replaced.",
)
@click.option(
    "--notify-mail",
    metavar="URL",
    help="Mail server, receivers and sender: smtp://USER@HOST:587/ops@example.org?from=lag@example.org. "
    "The password comes from GAZETTE_SPARK_MAIL_PASSWORD.",
)
@click.option(
    "--notify-groups", default="", metavar="REGEX", help="Send notices only for groups whose name matches."
)
@click.option(
    "--notify-threshold",
    type=click.Choice(["WARN", "ERR"]),
    default="WARN",
    show_default=True,
    help="Mildest verdict for which notices are sent.",
)
@click.option(
    "--send-interval",
    "send_interval_s",
    type=Integer(min=1),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="Interval between notices of one incident.",
)
@click.option("--send-once", is_flag=True, help="Send one notice for each incident.")
@click.option("--send-close", is_flag=True, help="Send a notice when an incident ends.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Minimum level of the log, which goes to stderr.",
)
def serve(listen: str, **options: Any) -> None:  # noqa: ANN401 - what click gives
    """Serve Burrow's HTTP API, Prometheus metrics and a status page until stopped.

    The monitor reads write heads from the broker, commits from the logs of Delta tables and from query
    checkpoints, and the progress of shards from consumers. It needs no JVM and writes nothing. After a
    restart it rebuilds the history from tables and query checkpoints.
    """
    try:
        from gazette_spark._ledger.positions import now_ms as clock
        from gazette_spark.lag.api import Api
        from gazette_spark.lag.server import LagService, parse_listen
    except ImportError as error:
        raise MissingPackageError(f"{error.name} is not installed", "gazette-spark[lag]") from error
    # To stderr, because programs that start the server read its address from stdout.
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("gazette_spark.lag").setLevel(options["log_level"].upper())
    with interrupted_by_signals(), ExitStack() as clients:
        client = clients.enter_context(_client(options))
        consumers = clients.enter_context(_consumers(options))
        # Both times must pass: a minute decides if polls are frequent, three intervals if they are rare.
        stale_after_ms = round(max(STALE_AFTER_S, STALE_ROUNDS * options["interval_s"]) * 1000)
        monitor = _monitor(options, options["expire_cache_s"], stale_after_ms)
        config = _config(options | {"listen": listen})
        other_clusters = {}
        for text in options["other_clusters"]:
            name, address = named(text)
            if name is None or _parts_of(address, "http", "https") is None:
                raise click.UsageError(
                    f"--other-cluster {masked_url(text)!r}: expected NAME=URL of another monitor"
                )
            other_clusters[name] = address.rstrip("/")
        api = Api(
            monitor,
            clock,
            socket.gethostname(),
            config,
            options["allow_delete"],
            more_metrics=client.metrics.exposition,
            other_clusters=other_clusters,
        )
        with usage_errors():
            parse_listen(listen)
            notifier = _notifier(options)
        with LagService(
            api,
            _feeds(options, client, consumers),
            listen=listen,
            interval_s=options["interval_s"],
            notifier=notifier,
            interrupt=clients.close,
        ) as service:
            click.echo(f"listening on {service.address}")
            try:
                threading.Event().wait()
            except KeyboardInterrupt:
                click.echo("stopped", err=True)


@click.command()
@feed_options
@rule_options
@click.option("--group", default=None, help="Show only this group.")
@click.option(
    "--for",
    "for_s",
    type=Number(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Time to watch before the verdict. Choose more than a trigger interval.",
)
@format_option
def show(group: str | None, for_s: float, output_format: str, **options: Any) -> None:  # noqa: ANN401 - what click gives
    """Show each journal's lag and verdict.

    The command reads the tables' history and query checkpoints, with the write heads that queries recorded
    there. The verdict is UNKNOWN if that is not enough: either a query had read everything at its last
    commit, so that the age of the unread bytes is unknown, or the group is a shard, which keeps no history.
    With --for, the command watches until the verdict is known.

    The worst group determines the exit code: 0 OK or UNKNOWN, 1 WARN or an alarm, 2 ERR. It is 3 if there is
    no group, or something could not be read. Alarms and read failures are on stderr.
    """
    from gazette_spark.lag.detail import (
        UNKNOWN,
        ambiguous_journals,
        group_detail,
        mark_unknown,
        worst_first,
    )

    with interrupted_by_signals(), _client(options) as client, _consumers(options) as consumers:
        # Without a cache, because each poll of --for must give a new verdict.
        monitor = _monitor(options, 0)
        feeds = _feeds(options, client, consumers)
        # After this many polls, all write heads in the ring were polled, and the rules need no assumptions.
        now_ms, failures = _watch(feeds, monitor, for_s, options["intervals"] if for_s else 0)
    details = []
    for name in monitor.groups():
        if group in (None, name):
            lag = monitor.lag(name, now_ms)
            detail = group_detail(name, lag, monitor.alarms, worst_first(lag.journals))
            # A single poll cannot distinguish bytes that have just arrived from bytes that have waited for an
            # hour.
            ambiguous = () if for_s else ambiguous_journals(monitor, name, lag, options["allowed_lag"])
            details.append(mark_unknown(detail, ambiguous))
    if output_format == "json":
        click.echo(json.dumps(details, indent=2, ensure_ascii=False))
    else:
        _print_table(details)
    for line in [
        *(f"{detail['group']}: {alarm}" for detail in details for alarm in detail["alarms"]),
        *failures,
    ]:
        click.echo(line, err=True)
    if any(detail["status"] == UNKNOWN for detail in details):
        click.echo("one poll is not enough for every verdict; use --for SECONDS to watch", err=True)
    if not details:
        click.echo(
            f"there is no group {group!r}"
            if group
            else "there is no group: no ledger entry and no shard was found",
            err=True,
        )
    # True equals 1, so an alarm counts as WARN.
    codes = [max(EXIT_CODES.get(detail["status"], UNREADABLE), bool(detail["alarms"])) for detail in details]
    sys.exit(UNREADABLE if failures else max(codes, default=UNREADABLE))


def _watch(feeds: Sequence[Feed], monitor: Monitor, for_s: float, times: int) -> tuple[int, list[str]]:
    """Poll once, then ``times`` more within ``for_s``; return the time and the failures of the last poll."""
    from gazette_spark._ledger.positions import now_ms as clock
    from gazette_spark.lag.feeds import poll_all

    begun, pause = time.monotonic(), threading.Event()
    for look in range(times + 1):
        if look:
            # At fixed times after the start, so that slow polls do not prolong the watch.
            pause.wait(max(0.0, begun + for_s * look / times - time.monotonic()))
        now_ms = clock()
        try:
            failures = [one_line(failure) for failure in poll_all(feeds, monitor, now_ms)]
        except GazetteError as error:
            failures = [one_line(error)]
    return now_ms, failures


def _print_table(details: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gazette_spark.lag.detail import UNKNOWN
    from gazette_spark.lag.metrics import Kind, Level, columns

    # Speeds are only on the page, because a terminal has no room for them.
    metrics = [metric for metric in columns(Level.JOURNAL) if metric.kind is not Kind.SPEED]
    rows = []
    for detail in details:
        # A group without a journal still gets a line, because it exists.
        unlisted = detail["unlisted"] or ([] if detail["journals"] else ["-"])
        rows += [[detail["group"], name, UNKNOWN, *["-" for _ in metrics]] for name in unlisted]
        for journal in detail["journals"]:
            # The offsets belong to two journals of the same name, so their difference is meaningless.
            verdict = UNKNOWN if journal["journal"] in detail["recreated"] else journal["status"]
            cells = [metric.cell(journal) for metric in metrics]
            rows.append([detail["group"], journal["journal"], verdict, *cells])
    # A column without values is omitted, except the lag.
    headings = ["GROUP", "JOURNAL", "VERDICT", *[metric.column.upper() for metric in metrics]]
    shown = [at for at in range(len(headings)) if at < 4 or any(row[at] != "-" for row in rows)]
    table = Table(box=None, pad_edge=False)
    for at in shown:
        is_number = at >= 3
        table.add_column(
            headings[at], overflow="fold", justify="right" if is_number else "left", no_wrap=is_number
        )
    for row in rows:
        styles = {2: STYLES.get(row[2], "red")}
        table.add_row(*(Text(row[at], styles.get(at, "")) for at in shown))
    console = Console()
    # Names are folded, but if the numbers leave too little room, Rich would show only numbers. Output for
    # scripts is never wrapped.
    numbers = [max(len(row[at]) for row in (headings, *rows)) + 2 for at in shown if at >= 3]
    is_narrow = console.width - sum(numbers) < MIN_NAMES
    (console if sys.stdout.isatty() and not is_narrow else Console(width=UNWRAPPED)).print(table)


STYLES = {"OK": "green", "WARN": "yellow", "UNKNOWN": ""}


def _client(options: dict[str, Any]) -> Any:  # noqa: ANN401 - a context manager of a client
    return make_connect(options["broker"], options["timeout_s"])()


def _monitor(options: dict[str, Any], expire_cache_s: int, stale_after_ms: int | None = None) -> Monitor:
    from gazette_spark.lag.history import Evaluator, History
    from gazette_spark.lag.monitor import Monitor

    history_options, thresholds = rules(options)
    history = History(history_options)
    evaluator = Evaluator(history, thresholds, expire_cache_s=expire_cache_s)
    return Monitor(
        options["cluster"], history, evaluator, stale_after_ms=stale_after_ms, alarms=alarms(options)
    )


@contextmanager
def _consumers(options: dict[str, Any]) -> Iterator[list[Feed]]:
    """Yield the feeds of consumers, and close their clients at the end."""
    from gazette_spark.cli.shards import ShardConnect  # Imports gRPC.
    from gazette_spark.lag.feeds import ShardFeed

    connect = make_connect(options["broker"], options["timeout_s"])
    with ExitStack() as stack:
        yield [
            ShardFeed(stack.enter_context(ShardConnect(endpoint, connect)()), name)
            for name, endpoint in map(named, options["consumers"])
        ]


def _feeds(options: dict[str, Any], client: Any, consumers: Sequence[Feed]) -> list[Feed]:  # noqa: ANN401 - a client, which imports gRPC
    from gazette_spark.lag.feeds import CheckpointFeed, HeadFeed, RecordFeed, StateFeed, TableFeed

    if options["topics"] and options["selector"]:
        raise click.UsageError("give either --selector or --topic")
    topics = []
    for text in options["topics"]:
        topic, selector = named(text)
        if topic is None:
            raise click.UsageError(f"--topic {text!r}: expected NAME=SELECTOR")
        topics.append((topic, selector))
    feeds: list[Feed] = [HeadFeed(client, selector, topic) for topic, selector in topics]
    feeds = feeds or [HeadFeed(client, options["selector"])]
    # Feeds of heads come first, because the history accepts a commit only if the journal's head is known.
    heads = len(feeds)
    for text in options["tables"]:
        name, location = named(text)
        feeds.append(TableFeed(location, name))
    for text in options["checkpoints"]:
        name, location = named(text)
        # Unlike a ledger with its app ids, a query checkpoint has no name.
        if name is None:
            raise click.UsageError(f"--checkpoint {text!r}: expected NAME=DIRECTORY")
        feeds.append(CheckpointFeed(location, name, options["intervals"]))
    feeds += consumers
    if len(feeds) == heads:
        raise click.UsageError("nothing to watch: give --table, --checkpoint or --consumer")
    # Feeds of open transactions come after the feeds that report groups.
    for text in options["states"]:
        from gazette_spark._planning.states import OpenTransactions, StateFiles

        group, location = named(text)
        if group is None:
            raise click.UsageError(f"--states {text!r}: expected GROUP=LOCATION")
        feeds.append(StateFeed(group, location, OpenTransactions(StateFiles(location))))
    if options["count_bytes"]:
        feeds.append(RecordFeed(client, options["count_bytes"]))
    return feeds


def _notifier(options: dict[str, Any]) -> Notifier | None:
    from gazette_spark.lag.notifier import (
        BackgroundSender,
        CommandSender,
        MailSender,
        Notifier,
        NotifyOptions,
        Sender,
        WebhookSender,
        parse_template,
    )

    senders: list[Sender] = []
    if command := options["notify_command"]:
        try:
            words = tuple(shlex.split(command))
        except ValueError as error:
            problem = f"{str(error).lower()} in {command!r}"
            raise click.UsageError(f"--notify-command: {problem}; quote its words as in a shell") from None
        if not words:
            raise click.UsageError("--notify-command: expected a program with optional arguments")
        senders.append(CommandSender(words))
    template = None
    if options["notify_template"]:
        if not options["notify_webhook"]:
            raise click.UsageError("--notify-template is for --notify-webhook")
        try:
            template = parse_template(Path(options["notify_template"]).read_text("utf-8"))
        except UnicodeDecodeError as error:
            raise click.UsageError(f"--notify-template: it is not UTF-8 at byte {error.start}") from None
    if url := options["notify_webhook"]:
        if _parts_of(url, "http", "https") is None:
            # The URL may be a secret.
            raise click.UsageError("--notify-webhook: expected a URL with http:// or https://")
        senders.append(WebhookSender(url, template))
    if url := options["notify_mail"]:
        form = "smtp://[USER@]HOST[:PORT]/TO[,TO]?from=ADDRESS"
        parts = _parts_of(url, "smtp") or urlsplit("")
        receivers = tuple(filter(None, unquote(parts.path.strip("/")).split(",")))
        # In a mail address a plus is a plus. In a form, which parse_qsl reads, it is a blank.
        sender = dict(parse_qsl(parts.query.replace("+", "%2B"))).get("from", "")
        if not (parts.hostname and receivers and sender) or parts.password:
            secret = f"; the password comes from {MAIL_PASSWORD}"
            raise click.UsageError(f"--notify-mail: expected {form}{secret}")
        user, password = unquote(parts.username or ""), os.environ.get(MAIL_PASSWORD, "")
        if user and not password:
            raise click.UsageError(f"--notify-mail: {user} needs a password in {MAIL_PASSWORD}")
        # A mail server on this machine usually has no certificate, and the mail does not leave the machine.
        tls = parts.hostname not in ("localhost", "127.0.0.1", "::1")
        port = parts.port or 587
        senders.append(MailSender(parts.hostname, port, sender, receivers, user, password, tls=tls))
    when = NotifyOptions(
        Status[options["notify_threshold"]],
        options["send_interval_s"],
        send_once=options["send_once"],
        send_close=options["send_close"],
        groups=options["notify_groups"],
    )
    # Each in the background, so that a receiver that hangs delays neither the polls nor the others.
    return Notifier(when, [BackgroundSender(sender) for sender in senders]) if senders else None


def _parts_of(url: str, *schemes: str) -> SplitResult | None:
    """Return the parts of a URL that has a host and one of the schemes; None for any other text."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # Raises for an invalid port.
    except ValueError:
        return None
    return parts if parts.scheme in schemes and parts.hostname else None


MAIL_PASSWORD = "GAZETTE_SPARK_MAIL_PASSWORD"  # noqa: S105 - the variable's name
"""Environment variable with the password for the mail server."""


def _config(options: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the configuration in Burrow's form. URLs are masked, and webhook and command are omitted."""
    profile = {
        "name": "default",
        "client-id": "gazette-spark",
        "kafka-version": "",
        "tls": None,
        "sasl": None,
    }
    interval_s = round(options["interval_s"])
    notices = {
        "group-whitelist": options["notify_groups"],
        "interval": interval_s,
        "threshold": int(Status[options["notify_threshold"]]),
        "template-open": options["notify_template"] or "",
        "template-close": options["notify_template"] or "",
        "extra": {},
        "send-close": options["send_close"],
        "send-interval": options["send_interval_s"],
        "send-once": options["send_once"],
    }
    return {
        "httpserver": {"default": {"address": options["listen"], "tls": "", "timeout": 30}},
        "cluster": {
            options["cluster"]: {
                "class-name": "gazette",
                "servers": [options["broker"].rpartition("@")[2]],
                "client-profile": profile,
                "topic-refresh": interval_s,
                "offset-refresh": interval_s,
            }
        },
        "consumer": {
            "default": {
                "class-name": "delta",
                "cluster": options["cluster"],
                "servers": [],
                "group-whitelist": options["group_allowlist"],
                "zookeeper-path": "",
                "zookeeper-timeout": 0,
                "client-profile": profile,
                "offsets-topic": "",
                "start-latest": False,
                "tables": [masked_url(text) for text in options["tables"]],
                "checkpoints": [masked_url(text) for text in options["checkpoints"]],
                "states": [masked_url(text) for text in options["states"]],
                "consumers": [masked_url(text) for text in options["consumers"]],
            }
        },
        "storage": {
            "default": {
                "class-name": "inmemory",
                "intervals": options["intervals"],
                "min-distance": options["min_distance_s"],
                "group-whitelist": options["group_allowlist"],
                "expire-group": options["expire_group_s"],
                "group-denylist": options["group_denylist"],
            }
        },
        "evaluator": {
            "default": {
                "class-name": "caching",
                "expire-cache": options["expire_cache_s"],
                "allowed-lag": options["allowed_lag"],
                "minimum-complete": options["minimum_complete"],
            }
        },
        "notifier": {
            name: {"class-name": class_name, **notices}
            for name, class_name in (("command", "command"), ("webhook", "http"), ("mail", "email"))
            if options[f"notify_{name}"]
        },
    }
