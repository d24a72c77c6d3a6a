"""Implements ``gazette-spark journals``, which works with journals through a broker.

Terms and YAML are the same as in Gazette's ``gazctl``. Commands that only operators of a cluster need
(``edit``, ``prune``, ``suspend``, ``reset-head``) are only in ``gazctl``.
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

    Tokens and keys come from the environment (BROKER_AUTH_TOKEN or BROKER_AUTH_KEYS, as in gazctl) or from a
    file. Commands do not accept secrets on the command line, where other users could see them.
    """
    ctx.obj = make_connect(endpoint, timeout)


for _command in (append, apply_specs, fragments, gaps, list_journals, read):
    journals.add_command(broker_of_command(_command))
