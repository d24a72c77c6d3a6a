"""Shared options of the commands about shards: the consumer, the brokers beside it, selectors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from gazette_spark.cli.journal_options import Connect, target_option
from gazette_spark.cli.main import DEFAULT_CONSUMER_PORT
from gazette_spark.protocol.labels import ID

if TYPE_CHECKING:
    from gazette_spark.consumer.client import ShardClient

CONNECT_S = 2.0
"""Time for the first connection to a consumer."""

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

        # A consumer that does not take a connection is more likely not there than busy.
        connect_s = min(CONNECT_S, self.brokers.timeout_s)
        return self.brokers.open(ShardClient, self.endpoint, PREFIX, connect_timeout_s=connect_s)


consumer_option = click.option(
    "--consumer",
    envvar="CONSUMER_ADDRESS",
    default=f"http://localhost:{DEFAULT_CONSUMER_PORT}",
    show_default=True,
    metavar="URL",
    help="Consumer's address; also from CONSUMER_ADDRESS.",
)

shard_selector_option = click.option("--selector", "-l", default="", help=f"{_SELECTOR_HELP}.")
"""Selects the shards a command shows; without it, all."""

target_shards_option = target_option(_SELECTOR_HELP, "shard", ID)
