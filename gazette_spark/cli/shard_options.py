"""Shared options of the commands about shards: the consumer, the brokers beside it, selectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import click

from gazette_spark.cli.journal_options import Connect
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol.labels import ID, parse_target_selector

if TYPE_CHECKING:
    from gazette_spark.consumer.client import ShardClient

Decorated = TypeVar("Decorated", bound=Callable[..., object])

_SELECTOR_HELP = "Label selector, such as 'id=shard-000', 'id:prefix=orders-' or 'app=shop'"


@dataclass(frozen=True, slots=True)
class ShardConnect:
    """Makes the clients of a command: of consumers, and of the brokers that their journals are on."""

    endpoint: str
    """Of a consumer."""
    brokers: Connect

    def at(self, endpoint: str) -> ShardConnect:
        """Return the same for brokers whose address was typed."""
        return replace(self, brokers=self.brokers.at(endpoint))

    def __call__(self) -> ShardClient:
        """Return a consumers' client as the environment and the group's options describe it."""
        from gazette_spark.consumer.client import PREFIX, ShardClient

        return self.brokers.open(ShardClient, self.endpoint, PREFIX)


def consumer_option(command: Decorated) -> Decorated:
    """Add the consumer's address, as ``consumer``."""
    return click.option(
        "--consumer",
        envvar="CONSUMER_ADDRESS",
        default="http://localhost:8080",
        show_default=True,
        metavar="URL",
        help="Consumer's address; also from CONSUMER_ADDRESS.",
    )(command)


def shard_selector_option(command: Decorated) -> Decorated:
    """Add the option that selects the shards a command shows; without it, all."""
    return click.option("--selector", "-l", default="", help=f"{_SELECTOR_HELP}.")(command)


def target_shards_option(command: Decorated) -> Decorated:
    """Add the option that selects the shards a command changes; it has to be given, and name some."""

    def checked(_ctx: click.Context, _parameter: click.Parameter, text: str) -> str:
        try:
            parse_target_selector(text, "shard", ID)
        except ProtocolError as error:
            raise click.UsageError(f"--selector: {error.problem}") from None
        return text

    return click.option(
        "--selector",
        "-l",
        required=True,
        callback=checked,
        help=f"{_SELECTOR_HELP}; 'id' for every shard. An empty one, or an empty value, is refused.",
    )(command)
