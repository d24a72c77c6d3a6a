"""Defines the command's entry point, which imports a group of commands only when it is called.

``gazette-spark --help`` must answer quickly, so this module imports neither Spark nor gRPC, and the groups
import them inside their functions.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from threading import TIMEOUT_MAX
from typing import IO, Any, TypeVar

import click
from click.core import ParameterSource

from gazette_spark.errors import GazetteError, OptionError, ProtocolError
from gazette_spark.version import VERSION

COMMANDS = {
    "quickstart": (
        "gazette_spark.cli.demo:quickstart",
        "Stream journals into a Delta table and watch its lag.",
    ),
    "demo": ("gazette_spark.cli.demo:demo", "Kill a running stream, and prove that its table is exact."),
    "doctor": ("gazette_spark.cli.doctor:doctor", "Check this machine and the broker; say what to fix."),
    "broker": ("gazette_spark.cli.broker:broker", "Run the embedded broker."),
    "journals": (
        "gazette_spark.cli.journals:journals",
        "List, create, change, read and append to journals.",
    ),
    "consumer": ("gazette_spark.cli.consumer:consumer", "Run an application's shards in one process."),
    "shards": (
        "gazette_spark.cli.shards:shards",
        "List, change and restart an application's shards.",
    ),
    "offsets": ("gazette_spark.cli.offsets:offsets", "Show how far a table has read its journals."),
    "lag": ("gazette_spark.cli.lag:lag", "Show whether queries keep up, once or as a service."),
    "verify": ("gazette_spark.cli.verify:verify", "Prove that a table holds each record once."),
}
"""Location and line in ``--help`` of each command, by name."""

SECTIONS = {
    "First steps": ("quickstart", "demo", "doctor"),
    "Gazette": ("broker", "journals", "consumer", "shards"),
    "Delta and Iceberg tables": ("offsets", "lag", "verify"),
}
"""Groups of commands in ``--help``."""


Decorated = TypeVar("Decorated", bound=Callable[..., object])


class Integer(click.IntRange):
    """A 64-bit integer within bounds. Errors say "integer" instead of click's "integer range"."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's
        """Return the number; refuse one that does not fit into a message to a broker."""
        number = super().convert(value, param, ctx)
        # Python's integers have no bounds, and protobuf's error would name neither the option nor the value.
        if not -(1 << 63) <= number < 1 << 63:
            self.fail(f"{number} does not fit into 64 bits.", param, ctx)
        return number


class Number(click.FloatRange):
    """A number within bounds, mostly of seconds. Errors say "number" instead of click's "float range"."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's
        """Return the number; refuse ``nan``, and more seconds than a thread can wait."""
        number = super().convert(value, param, ctx)
        # NaN passes every bound, and for an infinite timeout gRPC reports that the broker does not answer.
        if not abs(number) <= TIMEOUT_MAX:
            self.fail(f"{value!r} is not a number up to {TIMEOUT_MAX:.0f}.", param, ctx)
        return number


DEFAULT_BROKER = "http://localhost:8080"
DEFAULT_CONSUMER_PORT = 8090

NATIVE_LOGS = {"GRPC_VERBOSITY": "NONE", "RUST_LOG": "error"}
"""Log levels that keep gRPC and deltalake from logging in addition to the command's error."""

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})

_ADDRESS = f"{__name__}.broker"


def broker_option(name: str = "endpoint") -> Callable[[Decorated], Decorated]:
    """Return the option ``--broker``, which may be anywhere on a command line.

    The innermost one on the command line takes precedence, then ``BROKER_ADDRESS``, then the default.
    """

    def chosen(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str:
        check_not_empty(value)
        # An address given to a group applies to its commands, and takes precedence over the environment.
        # click only sees the option of the command itself.
        if ctx.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE:
            ctx.meta[_ADDRESS] = value
        typed: str | None = typed_broker(ctx)
        return typed or value or DEFAULT_BROKER

    return click.option(
        "--broker",
        name,
        envvar="BROKER_ADDRESS",
        metavar="URL",
        callback=chosen,
        help=f"Broker's address; also from BROKER_ADDRESS. [default: {DEFAULT_BROKER}]",
    )


def check_not_empty(address: str | None) -> None:
    """Refuse an empty address, as from an unset shell variable in ``--broker "$B"``."""
    # click treats an empty BROKER_ADDRESS as not set.
    if address == "":
        raise click.BadParameter(f"it is empty; give a URL such as {DEFAULT_BROKER}, or omit the option")


def broker_here(command: Decorated) -> Decorated:
    """Add ``--broker`` to a group, for its commands."""

    def keep(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        check_not_empty(value)
        if value is not None:
            ctx.meta[_ADDRESS] = value

    text = "Broker's address, for commands that call a broker."
    return click.option("--broker", metavar="URL", expose_value=False, callback=keep, help=text)(command)


def typed_broker(ctx: click.Context) -> str | None:
    """Return the address on the command line; None if it comes from the environment or the default."""
    typed: str | None = ctx.meta.get(_ADDRESS)
    return typed


class LazyGroup(click.Group):
    """A group that imports commands when they are used, and prints each error as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of ``--help``."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        # Imported only now, because gRPC and Spark take up to seconds to import, and --help needs neither.
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the first word, and suggest one for a misspelled word."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        for section, names in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(f"{name:<10}", COMMANDS[name][1]) for name in names])

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; turn a GazetteError into one line and exit code 1."""
        # Before the libraries are imported, because they read these variables once. A level that the user has
        # set is kept. ERROR is replaced, because the package itself sets it for gRPC.
        for name, level in NATIVE_LOGS.items():
            if os.environ.get(name, "ERROR") == "ERROR":
                os.environ[name] = level
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            # click knows only the options of the command itself, and many options are its group's.
            name, command = error.option_name, error.ctx
            group = command and command.parent
            if command and group and any(name in option.opts for option in group.command.params):
                words = f"{group.command_path} {name} … {command.info_name}"
                raise click.UsageError(f"{name} comes before the command: {words}", command) from None
            raise
        except GazetteError as error:
            # A GazetteError says what to do, and a traceback would hide that. Other errors are bugs and keep
            # their traceback.
            raise click.ClickException(one_line(error)) from error
        except OSError as error:
            # The user can solve a full disk. Other system errors may be bugs, and click handles a closed
            # pipe.
            if error.errno not in FULL_DISK:
                raise
            discard_output()
            place = error.filename or "the output or a temporary file"
            raise click.ClickException(f"cannot write {place}: {error.strerror}") from error
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None


def discard_output() -> None:
    """Discard what could not be written to standard output."""
    try:
        sys.stdout.flush()
    except OSError:
        # At its end, Python tries again to write it. Some releases, such as Debian's 3.11.2, then end with
        # exit code 120 instead of 1. Python's documentation treats a closed pipe in this way.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class Interrupted(click.ClickException):
    """Ctrl-C was pressed. The text says what was done and how to continue."""

    exit_code = 130  # As in shells.

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the text without "Error:"."""
        click.echo(self.format_message(), file=file, err=True)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Treat an invalid option in the block as wrong usage, which is exit code 2.

    Raises:
        click.UsageError: replaces an OptionError or a ProtocolError.
    """
    try:
        yield
    except (OptionError, ProtocolError) as error:
        raise click.UsageError(one_line(error)) from error


def one_line(error: GazetteError | str) -> str:
    """Return an error's text on one line, with the command's options instead of the library's."""
    text = " ".join(str(error).split())
    text = text.replace("option 'brokerAddress'", "option '--broker'")
    text = text.replace("option 'timeout_s'", "option '--timeout'")
    text = text.replace("Check CONSUMER_ADDRESS and", "Check --consumer or CONSUMER_ADDRESS, and")
    option = "brokerAddress (for a command, --broker or BROKER_ADDRESS)"
    return text.replace(f"Check {option} and", "Check --broker or BROKER_ADDRESS, and")


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@broker_here
@click.version_option(VERSION, prog_name="gazette-spark")
def main() -> None:
    """Gazette journals in Spark and Delta Lake."""
