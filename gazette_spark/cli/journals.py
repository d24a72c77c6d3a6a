"""``gazette-spark journals``: the specs and bytes of journals, through a broker.

The terms and the YAML are those of Gazette's own ``gazctl``. The commands that only operators of a cluster
need (``edit``, ``prune``, ``suspend``, ``reset-head``) are in ``gazctl`` alone.
"""

from __future__ import annotations

import click

from gazette_spark.cli.journal_appends import append
from gazette_spark.cli.journal_fragments import fragments, gaps
from gazette_spark.cli.journal_options import broker_of_command, broker_options, make_connect
from gazette_spark.cli.journal_reads import read
from gazette_spark.cli.journal_specs import apply_specs, list_journals


@click.group()
@broker_options
@click.pass_context
def journals(ctx: click.Context, endpoint: str, timeout: float) -> None:
    """Work with the journals of a broker.

    Tokens and keys come from the environment, as for gazctl: BROKER_AUTH_TOKEN or BROKER_AUTH_KEYS, or from a
    file. Commands take no secret from the command line, where other users could see it.
    """
    ctx.obj = make_connect(endpoint, timeout)


for _command in (append, apply_specs, fragments, gaps, list_journals, read):
    journals.add_command(broker_of_command(_command))
