"""``gazette-spark shards``: specs, status and upkeep of a consumer's shards.

The words and the YAML are those of Gazette's own ``gazctl``, for machines that do not have it.
"""

from __future__ import annotations

import click

from gazette_spark.cli.journal_options import broker_of_command, broker_options, make_connect
from gazette_spark.cli.shard_options import ShardConnect, consumer_option
from gazette_spark.cli.shard_specs import apply_specs, edit, list_shards
from gazette_spark.cli.shard_upkeep import prune, stat, unassign


@click.group()
@consumer_option
@broker_options
@click.pass_context
def shards(ctx: click.Context, consumer: str, endpoint: str, timeout: float) -> None:
    """Work with the shards of a consumer.

    Tokens and keys are taken from the environment, in gazctl's CONSUMER_AUTH_TOKEN and CONSUMER_AUTH_KEYS,
    for brokers in BROKER_AUTH_TOKEN and BROKER_AUTH_KEYS; or from a file, which then is sent to both.
    """
    ctx.obj = ShardConnect(consumer, make_connect(endpoint, timeout))


for _command in (apply_specs, edit, list_shards, prune, stat, unassign):
    shards.add_command(broker_of_command(_command))
