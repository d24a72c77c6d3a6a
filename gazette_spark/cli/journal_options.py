"""Defines options that commands share: broker, security, timeout, and selection of journals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import click

from gazette_spark.cli.main import (
    Integer,
    Number,
    broker_option,
    check_not_empty,
    typed_broker,
    usage_errors,
)
from gazette_spark.errors import JournalNotFoundError, OptionError, ProtocolError
from gazette_spark.progress import Contact, tell_of_silence
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import validate_journal_name
from gazette_spark.protocol.labels import NAME, parse_target_selector

if TYPE_CHECKING:
    from gazette_spark.client import Client

Decorated = TypeVar("Decorated", bound=Callable[..., object])
Reaching = TypeVar("Reaching", bound="ReachesService")


class ReachesService(Protocol):
    """A client of brokers or consumers."""

    @property
    def default_connection(self) -> Contact:
        """The connection of its endpoint."""


FLAGS = {
    "--auth-token-file": "BROKER_AUTH_TOKEN_FILE",
    "--tls-ca-file": "BROKER_TRUSTED_CA_FILE",
    "--tls-cert-file": "BROKER_CERT_FILE",
    "--tls-key-file": "BROKER_CERT_KEY_FILE",
}
"""Security options of commands, and the environment variable that each one overrides.

Secrets come only from the environment or from files, because other users can see a command line.
"""

FLAG_HELP = {
    "--auth-token-file": "File of the token, read again when it changes. It overrides other secrets.",
    "--tls-ca-file": "PEM file of the authorities to trust. Default: the public ones.",
    "--tls-cert-file": "PEM certificate of this client.",
    "--tls-key-file": "PEM private key of the certificate, without a password.",
}

BROKER = "BROKER"
"""Prefix of the environment variables for brokers."""

_FLAGS_META = f"{__name__}.flags"


@dataclass(frozen=True, slots=True)
class Connect:
    """Makes the client of a command."""

    endpoint: str
    timeout_s: float
    environ: Mapping[str, str]
    flags: Mapping[str, str]
    """Values of the security options on the command line, by option."""
    typed: Mapping[str, str] = field(default_factory=dict)
    """Address options on the command line, by the environment variable that each overrides."""

    def at(self, endpoint: str) -> Connect:
        """Return a copy for a broker whose address is on the command line."""
        return replace(self, endpoint=endpoint, typed={f"{BROKER}_ADDRESS": "--broker"})

    def __call__(self, **arguments: Any) -> Client:  # noqa: ANN401 - the client's own
        """Return a client with the settings of the environment and the group's options."""
        from gazette_spark.client import Client

        return self.open(Client, self.endpoint, BROKER, **arguments)

    def open(
        self,
        make: Callable[..., Reaching],
        endpoint: str,
        prefix: str,
        **arguments: Any,  # noqa: ANN401 - see above
    ) -> Reaching:
        """Return a client of a service whose environment variables begin with ``prefix``.

        Raises:
            click.UsageError: an option or a variable is invalid.
        """
        from gazette_spark.client import environment

        # The client's errors name an environment variable, but the user may have set an option instead.
        names = {_variable(flag, prefix): flag for flag in self.flags} | dict(self.typed)
        with usage_errors():
            try:
                with environment.errors(prefix):
                    settings = environment.arguments(self.variables(endpoint, prefix), prefix)
                    client = make(**{**settings, "timeout_s": self.timeout_s, **arguments})
            except OptionError as error:
                option = names.get(error.option, error.option)
                raise OptionError(option, error.got, error.expected) from None
        service = f"{prefix.lower()} {endpoint.partition('://')[2] or endpoint}"
        # A client connects with its first call, so a thread watches for silence.
        tell_of_silence(lambda: client.default_connection, service, self.timeout_s)
        return client

    def variables(self, endpoint: str | None = None, prefix: str = BROKER) -> dict[str, str]:
        """Return the environment, with values overridden by the security options."""
        overrides = {_variable(flag, prefix): value for flag, value in self.flags.items()}
        if "--auth-token-file" in self.flags:
            # An option of the command line precedes the whole environment. Otherwise keys that happen to be
            # set would take precedence.
            overrides |= {f"{prefix}_AUTH_TOKEN": "", f"{prefix}_AUTH_KEYS": ""}
        return {**self.environ, **overrides, f"{prefix}_ADDRESS": endpoint or self.endpoint}


def _variable(flag: str, prefix: str) -> str:
    return FLAGS[flag].replace(BROKER, prefix, 1)


def make_connect(endpoint: str, timeout_s: float) -> Connect:
    """Return the function that makes a command's client, from its options and this process's environment."""
    ctx = click.get_current_context()
    connect = Connect(endpoint, timeout_s, os.environ, dict(ctx.meta.get(_FLAGS_META, {})))
    return connect.at(endpoint) if typed_broker(ctx) else connect


def broker_of_command(command: click.Command) -> click.Command:
    """Add ``--broker`` to a command, where it overrides the option of its group."""

    def renew(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        check_not_empty(value)
        if value is not None and ctx.obj is not None:
            ctx.obj = ctx.obj.at(value)

    text = "Broker's address, instead of the group's."
    option = click.Option(["--broker"], metavar="URL", expose_value=False, callback=renew, help=text)
    command.params.append(option)
    return command


def security_options(command: Decorated) -> Decorated:
    """Add the security options; :func:`make_connect` reads their values from the context."""

    def keep(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.meta.setdefault(_FLAGS_META, {})[parameter.opts[0]] = value

    for flag, variable in reversed(FLAGS.items()):
        command = click.option(
            flag,
            metavar="FILE",
            expose_value=False,
            callback=keep,
            help=f"{FLAG_HELP[flag]} Also from {variable}.",
        )(command)
    return command


def broker_options(command: Decorated) -> Decorated:
    """Add the broker's address and the timeout, as ``endpoint`` and ``timeout``, and the security options."""
    timeout = click.option(
        "--timeout",
        type=Number(min=0, min_open=True),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Timeout of a request.",
    )
    return broker_option()(security_options(timeout(command)))


def record_options(command: Decorated) -> Decorated:
    """Add the options of a query that change how it reads records."""
    framing = click.option(
        "--framing",
        type=click.Choice(["lines", "fixed", "csv", "none"]),
        default=None,
        help="The query's option framing. Default: from the journals' labels.",
    )
    separator = click.option(
        "--sep", "separator", default=",", show_default=True, help="The query's option sep, for CSV."
    )
    quote = click.option("--quote", default='"', show_default=True, help="The query's option quote, for CSV.")
    longest = click.option(
        "--max-record-bytes",
        type=Integer(1, 512 << 20),
        default=64 << 20,
        show_default=True,
        help="At least the query's option maxRecordBytes.",
    )
    return framing(separator(quote(longest(command))))


_SELECTOR_HELP = "Label selector, such as 'name=shop/orders', 'prefix=shop/' or 'app=shop'"


def shown_option(selector_help: str, kind: str, label: str) -> Callable[[Decorated], Decorated]:
    """Return the option that selects what a command shows; by default, everything.

    An empty value is refused: it would select every journal, which looks like a valid answer.
    """
    return click.option(
        "--selector",
        "-l",
        default="",
        callback=lambda _ctx, _parameter, text: text and checked_target(text, kind, label),
        help=f"{selector_help}.",
    )


selector_option = shown_option(_SELECTOR_HELP, "journal", NAME)


def target_option(selector_help: str, kind: str, label: str) -> Callable[[Decorated], Decorated]:
    """Return the required option that selects what a command changes. It must not select everything."""
    return click.option(
        "--selector",
        "-l",
        required=True,
        callback=lambda _ctx, _parameter, text: checked_target(text, kind, label),
        help=f"{selector_help}; '{label}' for every {kind}. An empty one, or an empty value, is refused.",
    )


def checked_target(selector: str, kind: str = "journal", label: str = NAME) -> str:
    """Return the selector of the journals or shards that a command changes.

    Raises:
        click.UsageError: it is empty or has an empty value, so that it would select everything.
    """
    try:
        parse_target_selector(selector, kind, label)
    except ProtocolError as error:
        raise click.UsageError(f"--selector: {error.problem}") from None
    return selector


def journal_argument(command: Decorated) -> Decorated:
    """Add an argument for one journal's name, and ``--selector`` for any number of journals."""
    argument = click.argument("journal", required=False)
    return argument(selector_option(command))


def chosen_selector(journal: str | None, selector: str) -> str:
    """Return the selector for a name or a selector.

    Raises:
        ProtocolError: the name is not a valid journal name, and might select other journals.
    """
    # Without either, every journal would be selected, and both may contradict each other.
    if bool(journal) == bool(selector):
        raise click.UsageError("no journals are selected; give JOURNAL or --selector")
    if not journal:
        return selector
    name = journal.partition(";")[0]
    # Users expect a prefix with a slash to select all journals below it.
    if name.endswith("/"):
        raise click.UsageError(f"{name!r} is a prefix: select its journals with --selector prefix={name}")
    # A comma or an operator in a name would change the selector.
    validate_journal_name(name)
    return f"name={name}"


def chosen_journals(client: Client, journal: str | None, selector: str) -> list[pb.JournalSpec]:
    """Return the specs of the selected journals, ascending by name; of a selector, without write-only ones.

    Raises:
        JournalNotFoundError: there is no journal of that name.
    """
    selected = chosen_selector(journal, selector)
    if journal:
        try:
            return [client.get_journal(journal).spec]
        except JournalNotFoundError as error:
            raise with_hint(client, error) from None
    specs = [journal.spec for journal in client.list_journals(selected)]
    if not specs:
        click.echo(f"no journals match {selector!r}", err=True)
    for spec in specs:
        # Brokers refuse to read it, which would end the command for all other journals.
        if spec.flags == pb.JournalSpec.O_WRONLY:
            click.echo(f"{spec.name} is left out, because it is write-only", err=True)
    return [spec for spec in specs if spec.flags != pb.JournalSpec.O_WRONLY]


@contextmanager
def leaves_out_deleted(journal: str | None) -> Iterator[None]:
    """Leave out a journal of a selection that was deleted after it was listed."""
    try:
        yield
    except JournalNotFoundError as error:
        if journal:
            raise
        click.echo(f"{error.journal} is left out, because it was deleted", err=True)


def with_hint(client: Client, error: JournalNotFoundError) -> JournalNotFoundError:
    """Return the error with a suggestion, if a journal has a similar name."""
    from gazette_spark.client._list.listing import name_hint

    hint = name_hint(client, error.journal.partition(";")[0])
    return JournalNotFoundError(error.journal, (error.detail + hint).removeprefix("; "))


def is_fully_suspended(spec: pb.JournalSpec) -> bool:
    """Return whether a journal has neither content nor brokers."""
    return spec.suspend.level == pb.JournalSpec.Suspend.FULL


class Interrupts:
    """Makes SIGTERM act like Ctrl-C, and can defer both until a step is complete. For the main thread."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._deferring = False
        self._pending = False

    def __enter__(self) -> Self:
        # Only the main thread may set handlers. Tests run commands in other threads.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._end)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def defer_signals(self) -> Iterator[None]:
        """Defer a signal until the end of the block; it is dropped if the block raises."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        # The step is complete. If the block raised, this line is not reached, because its error matters more.
        if self._pending:
            raise KeyboardInterrupt

    def _end(self, _signal: int, _frame: FrameType | None) -> None:
        if self._deferring and not self._pending:
            self._pending = True  # A second signal is not deferred.
            return
        raise KeyboardInterrupt


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Make SIGTERM act like Ctrl-C."""
    with Interrupts():
        yield
