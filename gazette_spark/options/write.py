"""Every option of writing to journals, in one table; rules as in :mod:`gazette_spark.options.source`.

An option of the same name means the same as when reading. Where rows go is said in one way: by naming a
journal, by selecting journals among which rows are shared out, or, without either, by the rows' own
column ``journal``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from gazette_spark.errors import OptionError, ProtocolError
from gazette_spark.options.csv import CSV_OPTIONS
from gazette_spark.options.security import SECURITY_OPTIONS, Security, take_security
from gazette_spark.options.source import (
    DAY_MS,
    Selection,
    parse_options,
    parse_path,
    parse_selector_option,
)
from gazette_spark.options.table import Option, option_texts, parse_texts
from gazette_spark.options.values import (
    check_journal,
    count,
    depth,
    parse_address,
    parse_column,
    parse_record_size,
    shown,
    word,
)
from gazette_spark.protocol.labels import parse_target_selector

Purpose = Literal["read", "write"]

PURPOSES: Mapping[str, Purpose] = {"pyspark.sql.worker.write_into_data_source": "write"}
"""Modules of Spark's processes that make a data source for one purpose only, and what for.

``create_data_source`` makes those of queries that read, and also those that commit a stream's batches.
"""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The parsed options. Field names are the options' names in snake case."""

    broker_address: str
    target: Selection | None
    """One journal, or the journals that a selector matches; None: each row's column ``journal`` names it."""
    mapping: str | None
    framing: str | None
    sep: str
    quote: str
    max_record_bytes: int
    delivery_guarantee: str
    transaction_journal: str | None
    """Where exactly-once writes are committed."""
    transaction_id: str | None
    transaction_first_batch: int | None
    uuid_path: str | None
    request_timeout_ms: int
    connect_timeout_ms: int
    security: Security

    @property
    def exactly_once(self) -> bool:
        """Whether rows are written in transactions."""
        return self.delivery_guarantee == "exactly_once"


def parse_write_options(given: Mapping[str, str], *, environ: Mapping[str, str] = os.environ) -> WriteOptions:
    """Parse what Spark hands over.

    Args:
        given: option names, in any case, and their texts.
        environ: where ``BROKER_ADDRESS`` is looked up when ``brokerAddress`` is not given.

    Raises:
        OptionError: naming the first option that is wrong, and the valid ones.
    """
    texts = option_texts(given, WRITE_OPTIONS)
    values = parse_texts(texts, WRITE_OPTIONS, None, environ=environ)
    values["security"] = take_security(values, texts)
    targets = {name: values.pop(name) for name in ("journal", "selector", "path")}
    values["target"] = _one_target({name: found for name, found in targets.items() if found is not None})
    if values["mapping"] and not (values["target"] and values["target"].selector):
        raise OptionError("mapping", "no selector", "to be used with selector, or a prefix as path, only")
    _check_transaction(values, texts)
    return WriteOptions(**values)


def checked_address(
    given: Mapping[str, str], purpose: Purpose | None = None, *, environ: Mapping[str, str] = os.environ
) -> str:
    """Check options for reading or writing, and return the broker's address.

    Args:
        given: option names, in any case, and their texts.
        purpose: purpose of the options; None while the purpose is unknown: then they have to fit one of the
            two.
        environ: where ``BROKER_ADDRESS`` is looked up when ``brokerAddress`` is not given.

    Raises:
        OptionError: an option is invalid.
    """
    if purpose == "write":
        return parse_write_options(given, environ=environ).broker_address
    try:
        return parse_options(given, environ=environ).broker_address
    except OptionError:
        if purpose == "read":
            raise
        if not any(name.lower() in _ONLY_WRITING for name in given):
            with suppress(OptionError):
                return parse_write_options(given, environ=environ).broker_address
            raise
    return parse_write_options(given, environ=environ).broker_address


def spark_purpose() -> Purpose | None:
    """Return what this Spark process makes data sources for; None if unknown.

    Spark does not tell a data source its purpose when it makes one, so the options of both are checked then.
    Where a later Spark has other processes, an invalid option shows a little later.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    running = {getattr(main, "name", "")} | sys.modules.keys()
    found = {purpose for module, purpose in PURPOSES.items() if module in running}
    return found.pop() if len(found) == 1 else None


def _one_target(found: Mapping[str, Selection]) -> Selection | None:
    if len(found) > 1:
        ways = "one of option 'journal', option 'selector', save('a/journal') and save('a/prefix/')"
        raise OptionError(" and ".join(found), "more than one", ways)
    return next(iter(found.values()), None)


def _check_transaction(values: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Check that the options of exactly-once writes stand together."""
    if values["delivery_guarantee"] == "exactly_once":
        if values["transaction_journal"] is None:
            expected = "the journal that exactly_once keeps its commits in, such as acme/txn/orders"
            raise OptionError("transactionJournal", "nothing", expected)
        for name, default in (("sep", ","), ("quote", '"')):
            if values[name] != default:
                got = f"{values[name]!r}, and deliveryGuarantee=exactly_once"
                raise OptionError(name, got, f"{default!r}, as Gazette's messages of CSV have it")
        return
    for name in _OF_TRANSACTIONS:
        if name.lower() in texts:
            raise OptionError(name, "deliveryGuarantee=at_least_once", "exactly_once, which alone uses it")


def _parse_transaction_journal(name: str, text: str) -> str:
    check_journal(name, text)
    return text


def _parse_transaction_id(name: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._/+-]{1,200}", text):
        raise OptionError(name, shown(text), "1 to 200 letters, digits, or any of . _ / + -")
    return text


def _parse_journal(name: str, text: str) -> Selection:
    check_journal(name, text)
    return Selection(name, names=(text,))


def _parse_target_selector(name: str, text: str) -> Selection:
    selection = parse_selector_option(name, text)
    try:
        parse_target_selector(text)
    except ProtocolError as error:
        got = f"{shown(text)} ({error.problem})"
        raise OptionError(name, got, "a label selector without empty values") from None
    return selection


WRITE_OPTIONS: tuple[Option, ...] = (
    Option("brokerAddress", parse_address, None, "Broker to ask first; BROKER_ADDRESS if not given."),
    Option("journal", _parse_journal, None, "Journal of all rows, whatever their column journal says."),
    Option(
        "selector",
        _parse_target_selector,
        None,
        "Label selector of the journals among which rows are shared out: by the column key, or at random "
        "without one. Their column journal does not count then.",
    ),
    Option(
        "path",
        parse_path,
        None,
        "What save() or start() is given: a journal, or a prefix, as a selector.",
        form="a/journal, or a/prefix/",
    ),
    Option(
        "mapping",
        word("modulo", "rendezvous"),
        None,
        "How a key chooses its journal, with a selector: modulo, by its hash and the number of journals; "
        "rendezvous, so that a new journal takes over only what it gets. If not given, modulo. Gazette's own "
        "clients choose the same journals.",
    ),
    Option(
        "framing",
        word("lines", "fixed", "csv", "none"),
        None,
        "How each value becomes a record: lines: a newline is added; fixed: a frame's header goes before; "
        "csv: a newline is added, and the value has to be one record of CSV; none: bytes as they are. If not "
        "given, the journal's content-type label decides, and lines if it has none.",
    ),
    *(option for option in CSV_OPTIONS if option.name in ("sep", "quote")),
    Option(
        "maxRecordBytes",
        parse_record_size,
        "16m",
        "A longer value is an error: readers refuse such records unless told otherwise.",
    ),
    Option(
        "deliveryGuarantee",
        word("at_least_once", "exactly_once"),
        "at_least_once",
        "at_least_once: rows count when they are appended, and may be there twice. exactly_once: rows are "
        "messages of transactions; readers of committed messages see each row once.",
    ),
    Option(
        "transactionJournal",
        _parse_transaction_journal,
        None,
        "With exactly_once, the journal that commits are recorded in. Each query has one to itself.",
    ),
    Option(
        "transactionId",
        _parse_transaction_id,
        None,
        "With exactly_once, the id of a batch write: a repetition under the same id writes nothing again. If "
        "not given, a new one. A stream has its query's id.",
    ),
    Option(
        "transactionFirstBatch",
        depth(1 << 62),
        None,
        "With exactly_once, the batch of a stream that needs no record of the one before it: where a running "
        "query turns exactly_once, or moves to another transactionJournal.",
    ),
    Option(
        "uuidPath",
        parse_column,
        None,
        "Where a row keeps its UUID, for deliveryGuarantee=exactly_once: a JSON pointer, a CSV column "
        "counted from 0, or the number of a protobuf field. Default: /_meta/uuid, 0, 1.",
        form="a JSON pointer, or a number",
    ),
    Option(
        "requestTimeoutMs",
        count(DAY_MS),
        "60000",
        "Time that an append is tried for, and that rows wait for earlier ones of their task.",
    ),
    Option("connectTimeoutMs", count(DAY_MS), "10000", "Timeout of connecting to a broker."),
    *SECURITY_OPTIONS,
)
"""All options, in the order in which they are checked and shown."""

_OF_TRANSACTIONS = ("transactionJournal", "transactionId", "transactionFirstBatch", "uuidPath")
"""Options that mean something with exactly_once only."""

_ONLY_WRITING = frozenset({"journal", "mapping", "deliveryguarantee"}) | {
    name.lower() for name in _OF_TRANSACTIONS if name.startswith("transaction")
}
"""Options that reading does not have, in lower case."""
