"""Defines options that the commands of ``gazette-spark lag`` share: Burrow's settings, and what to watch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from gazette_spark.cli.journal_options import security_options, shown_option
from gazette_spark.cli.main import Integer, Number, broker_option, usage_errors
from gazette_spark.lag.group_lag import Alarms
from gazette_spark.lag.history import HistoryOptions
from gazette_spark.lag.rules import Thresholds
from gazette_spark.protocol.labels import NAME

Decorated = TypeVar("Decorated", bound=Callable[..., object])

HISTORY = ("intervals", "min_distance_s", "expire_group_s", "group_allowlist", "group_denylist")


def rule_options(command: Decorated) -> Decorated:
    """Add the settings of Burrow's storage and evaluator; see :func:`rules`."""
    return _with(
        command,
        click.option(
            "--intervals",
            type=Integer(min=1),
            default=10,
            show_default=True,
            help="Number of commits, and of write heads, to judge.",
        ),
        click.option(
            "--min-distance",
            "min_distance_s",
            type=Integer(min=0),
            default=0,
            show_default=True,
            metavar="SECONDS",
            help="Minimum time between commits; a commit that follows sooner replaces the previous one.",
        ),
        click.option(
            "--expire-group",
            "expire_group_s",
            type=Integer(min=0),
            default=604_800,
            show_default=True,
            metavar="SECONDS",
            help="Time without commits after which a group is forgotten.",
        ),
        click.option(
            "--group-allowlist", default="", metavar="REGEX", help="Watch only groups whose name matches."
        ),
        click.option(
            "--group-denylist", default="", metavar="REGEX", help="Ignore groups whose name matches."
        ),
        click.option(
            "--allowed-lag",
            type=Integer(min=0),
            default=0,
            show_default=True,
            metavar="BYTES",
            help="Lag up to which a journal is OK.",
        ),
        click.option(
            "--minimum-complete",
            type=Number(min=0, max=1),
            default=0.0,
            show_default=True,
            metavar="SHARE",
            help="Share of --intervals commits; a journal with fewer commits is OK.",
        ),
    )


def rules(options: Mapping[str, Any]) -> tuple[HistoryOptions, Thresholds]:
    """Return the settings of a command's options.

    Raises:
        click.UsageError: an option is out of range.
    """
    with usage_errors():
        history = HistoryOptions(**{name: options[name] for name in HISTORY})
        return history, Thresholds(options["allowed_lag"], options["minimum_complete"])


def feed_options(command: Decorated) -> Decorated:
    """Add the options of the watched journals, tables and query checkpoints."""
    return _with(
        command,
        broker_option("broker"),
        security_options,
        shown_option("Journals whose write heads to poll. Default: all", "journal", NAME),
        click.option(
            "--table",
            "tables",
            multiple=True,
            metavar="[NAME=]LOCATION",
            help="Table of a sink: a Delta table's location, or iceberg:CATALOG/NAMESPACE.TABLE. Its groups "
            "are its app ids, or NAME. Repeatable.",
        ),
        click.option(
            "--checkpoint",
            "checkpoints",
            multiple=True,
            metavar="NAME=DIRECTORY",
            help="Checkpoint of a query with another sink, as group NAME. Repeatable.",
        ),
        click.option(
            "--states",
            "states",
            multiple=True,
            metavar="GROUP=LOCATION",
            help="stateLocation of a group that reads committed messages, to show its open transactions. "
            "Repeatable.",
        ),
        click.option(
            "--consumer",
            "consumers",
            multiple=True,
            metavar="[NAME=]URL",
            help="Consumer to watch. Each shard is a group shard:ID, or NAME:ID. Repeatable.",
        ),
        click.option(
            "--topic",
            "topics",
            multiple=True,
            metavar="NAME=SELECTOR",
            help="Show these journals as topic NAME. Replaces --selector. Repeatable.",
        ),
        click.option(
            "--count-records",
            "count_bytes",
            type=Integer(min=0),
            default=0,
            metavar="BYTES",
            help="Maximum bytes to read at each poll to count unread lines; 0 does not count.",
        ),
        click.option(
            "--max-lag",
            "max_lag_bytes",
            type=Integer(min=0),
            metavar="BYTES",
            help="Raise an alarm if a group's lag is larger.",
        ),
        click.option(
            "--max-age",
            "max_age_s",
            type=Number(min=0),
            metavar="SECONDS",
            help="Raise an alarm if the oldest byte that a table lacks is older.",
        ),
        click.option(
            "--min-loss-in",
            "min_loss_s",
            type=Number(min=0),
            metavar="SECONDS",
            help="Raise an alarm if unread bytes may be pruned sooner.",
        ),
        click.option(
            "--cluster",
            default="gazette",
            show_default=True,
            help="Name of the cluster in answers and metrics.",
        ),
        click.option(
            "--timeout",
            "timeout_s",
            type=Number(min=0, min_open=True),
            default=30.0,
            show_default=True,
            metavar="SECONDS",
            help="Timeout of a request.",
        ),
    )


def alarms(options: Mapping[str, Any]) -> Alarms:
    """Return the alarm thresholds of a command's options."""
    age_s, loss_s = options["max_age_s"], options["min_loss_s"]
    return Alarms(
        options["max_lag_bytes"],
        None if age_s is None else round(age_s * 1000),
        None if loss_s is None else round(loss_s * 1000),
    )


def named(text: str) -> tuple[str | None, str]:
    """Split ``NAME=LOCATION``. An equals sign after a slash is part of the location.

    >>> named("orders=/lake/orders"), named("/lake/day=1")
    (('orders', '/lake/orders'), (None, '/lake/day=1'))
    """
    name, sign, location = text.partition("=")
    # Directories of table partitions, such as day=1, have equals signs after a slash.
    if not sign or "/" in name:
        return None, text
    if not name or not location:
        raise click.UsageError(f"{text!r}: expected NAME=LOCATION")
    return name, location


def _with(command: Decorated, *options: Callable[[Decorated], Decorated]) -> Decorated:
    ordered: Sequence[Callable[[Decorated], Decorated]] = options
    # The option that is added last is the first in --help.
    for option in reversed(ordered):
        command = option(command)
    return command
