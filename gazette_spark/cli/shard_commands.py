"""``gazette-spark shards``: the specs and the status of a consumer's shards.

The words and the YAML are those of Gazette's own ``gazctl``.
"""

from __future__ import annotations

import click

from gazette_spark.cli.journal_options import broker_of_command, broker_options, make_connect
from gazette_spark.cli.shard_options import ShardConnect, consumer_option
from gazette_spark.cli.shard_specs import apply_specs, list_shards
from gazette_spark.cli.shard_upkeep import stat, unassign


@click.group()
@consumer_option
@broker_options
@click.pass_context
def shards(ctx: click.Context, consumer: str, endpoint: str, timeout: float) -> None:
    """Work with the shards of a consumer.

    Tokens and keys come from the environment, as for gazctl: CONSUMER_AUTH_TOKEN or CONSUMER_AUTH_KEYS, and
    for brokers BROKER_AUTH_TOKEN or BROKER_AUTH_KEYS. A token file counts for both.
    """
    ctx.obj = ShardConnect(consumer, make_connect(endpoint, timeout))


for _command in (apply_specs, list_shards, stat, unassign):
    shards.add_command(broker_of_command(_command))
