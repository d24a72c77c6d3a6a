"""The command's entry point: loads a group of commands only when it is called.

``gazette-spark --help`` must answer at once, so neither Spark nor gRPC is imported here, and the
groups import theirs inside their functions.
"""

from __future__ import annotations

from importlib import import_module

import click

from gazette_spark.errors import GazetteError
from gazette_spark.version import VERSION

COMMANDS = {
    "broker": ("gazette_spark.cli.broker:broker", "Run the embedded broker."),
    "consumer": ("gazette_spark.cli.consumer:consumer", "Run the shards of an application."),
    "demo": (
        "gazette_spark.cli.demo:demo",
        "Stream journals into a Delta table, with crashes, and prove it exact.",
    ),
    "journals": ("gazette_spark.cli.journal_commands:journals", "Work with the journals of a broker."),
    "lag": ("gazette_spark.cli.lag:lag", "Judge whether queries keep up, by the rules of Burrow."),
    "offsets": ("gazette_spark.cli.offsets:offsets", "Show how far a Delta table has read its journals."),
    "shards": ("gazette_spark.cli.shard_commands:shards", "Work with the shards of a consumer."),
    "verify": (
        "gazette_spark.cli.verify:verify",
        "Prove that a Delta table holds its journals' records exactly.",
    ),
}
"""Name → where the command is, and its line in ``--help``."""


class LazyGroup(click.Group):
    """A group whose commands are imported when used, and whose errors are one line each."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of ``--help``."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; turn a GazetteError into one line and exit code 1."""
        try:
            return super().invoke(ctx)
        except GazetteError as error:
            raise click.ClickException(one_line(error)) from error


def one_line(error: GazetteError) -> str:
    """Return the error's text without line breaks: logs and scripts read stderr by line."""
    return " ".join(str(error).split())


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="gazette-spark")
def main() -> None:
    """Gazette journals in Spark and Delta Lake."""
