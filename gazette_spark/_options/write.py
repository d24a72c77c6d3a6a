"""Every option of writing to journals, declared once, with the rules of :mod:`gazette_spark._options.source`.

An option with the name of a reading option has the same meaning. The destination of rows is set in one of
three ways: one journal, a selection of journals among which rows are distributed, or, without either, the
rows' column ``journal``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from gazette_spark._formats.registry import FRAMINGS
from gazette_spark._options.security import SECURITY_OPTIONS, Security, take_security
from gazette_spark._options.selection import JournalSelection, parse_path, parse_selector_option
from gazette_spark._options.source import CONNECT_TIMEOUT, OPTIONS, QUOTE, SEPARATOR, UUID_PATH, parse_options
from gazette_spark._options.table import Option, of_options, option, option_texts, options_of, parse_texts
from gazette_spark._options.values import (
    DAY_MS,
    check_journal,
    count,
    depth,
    parse_address,
    parse_record_size,
    shown,
    word,
)
from gazette_spark.errors import OptionError, ProtocolError
from gazette_spark.protocol.labels import parse_target_selector

Purpose = Literal["read", "write"]

PURPOSES: Mapping[str, Purpose] = {"pyspark.sql.worker.write_into_data_source": "write"}
"""Modules of Spark's processes that create a data source for only one purpose, with that purpose.

``create_data_source`` serves queries that read, and also processes that commit a stream's batches.
"""


def _parse_transaction_journal(name: str, text: str) -> str:
    check_journal(name, text)
    return text


def _parse_transaction_id(name: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._/+-]{1,200}", text):
        raise OptionError(name, shown(text), "1 to 200 letters, digits, or any of . _ / + -")
    return text


def _parse_journal(name: str, text: str) -> JournalSelection:
    check_journal(name, text)
    return JournalSelection(name, names=(text,))


def _parse_target_selector(name: str, text: str) -> JournalSelection:
    selection = parse_selector_option(name, text)
    try:
        parse_target_selector(text)
    except ProtocolError as error:
        got = f"{shown(text)} ({error.problem})"
        raise OptionError(name, got, "a label selector without empty values") from None
    return selection


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The parsed options. Without a target, each row's column ``journal`` names its journal."""

    broker_address: str = option(
        parse_address,
        "URL of any broker of the cluster; the client finds the others. Required. The default is the "
        "environment variable `BROKER_ADDRESS`.",
        section="Connection",
        shown_default="`BROKER_ADDRESS`",
    )
    target: JournalSelection | None = of_options(
        Option(
            "path",
            parse_path,
            "Argument of save() or start(): a journal, or a prefix, which selects the journals below it.",
            section="Journals",
            form="a/journal, or a/prefix/",
        ),
        Option(
            "journal",
            _parse_journal,
            "Journal of all rows. It overrides the column `journal`.",
        ),
        Option(
            "selector",
            _parse_target_selector,
            "Label selector of the journals among which rows are distributed: by the column `key`, or at "
            "random without one. It overrides the column `journal`.",
        ),
    )
    mapping: str | None = option(
        word("modulo", "rendezvous"),
        "How `key` chooses among selected journals, as in Gazette's own clients. `modulo`: by "
        "its hash and the number of journals. `rendezvous`: a new journal takes over only the keys that "
        "it gets.",
        shown_default="`modulo`",
    )
    framing: str | None = option(
        word(*FRAMINGS),
        "How a value becomes a record. `lines`: a newline is added. `csv`: a newline is added to one "
        "record of CSV. `fixed`: a frame's header is put before it. `none`: the bytes are unchanged. "
        "Default: the framing of the journal's content-type label, or `lines`.",
        section="Records",
        shown_default="see meaning",
    )
    max_record_bytes: int = option(
        parse_record_size,
        "Maximum length of a value. A longer value fails the query. Readers have the same limit by default.",
        default="16m",
    )
    sep: str = of_options(SEPARATOR)
    quote: str = of_options(QUOTE)
    delivery_guarantee: str = option(
        word("at_least_once", "exactly_once"),
        "`at_least_once`: each row is written at least once, and is visible once it is appended. "
        "`exactly_once`: rows are messages of transactions, and readers of committed messages see each "
        "row once.",
        section="Transactions",
        default="at_least_once",
    )
    transaction_journal: str | None = option(
        _parse_transaction_journal,
        "Journal that records the commits of the query. Required for `deliveryGuarantee=exactly_once`. "
        "Each query needs its own.",
    )
    transaction_id: str | None = option(
        _parse_transaction_id,
        "Id of a batch write. Repeating a write with one of the last 100 ids writes nothing. A stream "
        "uses its query's id. For `deliveryGuarantee=exactly_once`.",
        shown_default="a new id",
    )
    transaction_first_batch: int | None = option(
        depth(1 << 62),
        "Batch of a stream that needs no record of the previous batch. Set it once, when an existing "
        "query switches to `exactly_once` or to another `transactionJournal`.",
    )
    uuid_path: str | None = of_options(UUID_PATH)
    security: Security = of_options(*SECURITY_OPTIONS)
    request_timeout_ms: int = option(
        count(DAY_MS),
        "Time for which an append is retried, and for which rows wait for earlier appends of their task. "
        "After that the task fails.",
        section="Timeouts and logging",
        default="60000",
        form="milliseconds, from 1 to 86400000 (one day)",
    )
    connect_timeout_ms: int = of_options(CONNECT_TIMEOUT)

    @property
    def exactly_once(self) -> bool:
        """Whether rows are written in transactions."""
        return self.delivery_guarantee == "exactly_once"


WRITE_OPTIONS = options_of(WriteOptions)
"""All options, in the order in which they are checked and shown."""

_ONLY_WRITING = {row.name.lower() for row in WRITE_OPTIONS} - {row.name.lower() for row in OPTIONS}
"""Options that reading does not have, in lower case."""


def parse_write_options(
    options: Mapping[str, str], *, environ: Mapping[str, str] = os.environ
) -> WriteOptions:
    """Parse the options that Spark passes.

    Args:
        options: option names, in any case, and their texts.
        environ: environment with ``BROKER_ADDRESS``, the default of ``brokerAddress``.

    Raises:
        OptionError: an option is invalid. The error names the first one, and the valid options.
    """
    texts = option_texts(options, WRITE_OPTIONS)
    values = parse_texts(texts, WRITE_OPTIONS, None, environ=environ)
    values["security"] = take_security(values, texts)
    targets = {name: values.pop(name) for name in ("journal", "selector", "path")}
    named = [name for name, target in targets.items() if target is not None]
    if len(named) > 1:
        ways = "one of option 'journal', option 'selector', save('a/journal') and save('a/prefix/')"
        raise OptionError(" and ".join(named), "more than one", ways)
    values["target"] = targets[named[0]] if named else None
    # A mapping chooses among several journals. With one journal, or the column `journal`, nothing is left to
    # choose.
    if values["mapping"] and not (values["target"] and values["target"].selector):
        raise OptionError("mapping", "no selector", "to be used with selector, or a prefix as path, only")
    if values["delivery_guarantee"] == "exactly_once":
        if values["transaction_journal"] is None:
            expected = "the journal that exactly_once keeps its commits in, such as acme/txn/orders"
            raise OptionError("transactionJournal", "nothing", expected)
        # Gazette's consumers read messages of CSV in this form only.
        for name, default in (("sep", ","), ("quote", '"')):
            if values[name] != default:
                got = f"{values[name]!r}, and deliveryGuarantee=exactly_once"
                raise OptionError(name, got, f"{default!r}, as in Gazette's CSV messages")
    else:
        for name in ("transactionJournal", "transactionId", "transactionFirstBatch", "uuidPath"):
            if name.lower() in texts:
                raise OptionError(
                    name, "deliveryGuarantee=at_least_once", "to be used with exactly_once only"
                )
    return WriteOptions(**values)


def checked_address(
    options: Mapping[str, str], purpose: Purpose | None = None, *, environ: Mapping[str, str] = os.environ
) -> str:
    """Check options for reading or writing, and return the broker's address.

    Args:
        options: option names, in any case, and their texts.
        purpose: purpose of the options; None if it is unknown, so that they have to fit one of the two.
        environ: environment with ``BROKER_ADDRESS``, the default of ``brokerAddress``.

    Raises:
        OptionError: an option is invalid.
    """
    if purpose == "write":
        return parse_write_options(options, environ=environ).broker_address
    try:
        return parse_options(options, environ=environ).broker_address
    except OptionError:
        if purpose == "read":
            raise
        # Neither reading nor writing accepts these options. The error that is shown is the one for the
        # purpose that the options suggest.
        if not any(name.lower() in _ONLY_WRITING for name in options):
            with suppress(OptionError):
                return parse_write_options(options, environ=environ).broker_address
            raise
    return parse_write_options(options, environ=environ).broker_address


def spark_purpose() -> Purpose | None:
    """Return the purpose for which this Spark process creates data sources; None if unknown.

    Spark does not pass its purpose to a data source. If it is unknown, the options must fit one of the two.
    If a later Spark has other processes, an invalid option is reported a little later.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    # Spark's process is either the module itself, or a daemon's fork that has imported it.
    running = {getattr(main, "name", "")} | sys.modules.keys()
    purposes = {purpose for module, purpose in PURPOSES.items() if module in running}
    return purposes.pop() if len(purposes) == 1 else None
