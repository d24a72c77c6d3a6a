"""Every option of the source, in one table.

An option is checked on the driver when a DataFrame is made, before anything is connected to. An option that
is unknown, malformed or contradicts another is an :class:`~gazette_spark.errors.OptionError` that shows the
value and the allowed form; nothing is clamped, and no default takes the place of a bad value. Spark hands
over names in lower case and values as text, so names match in any case.

The rules of values, the same for all options:

- booleans are ``true`` or ``false``, in any case, and nothing else;
- counts are decimal digits; sizes are digits with one of Spark's units, if any: ``b``, ``k``, ``m``,
  ``g`` (or ``kb``, ``mb``, ``gb``), powers of 1024: ``64m``. No sign, space, point or exponent;
- durations are digits with one of Spark's units, milliseconds by default: ``ms``, ``s``, ``m`` or
  ``min``, ``h``, ``d``;
- words (``earliest``, ``permissive``) match in any case.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from gazette_spark.errors import OptionError, ProtocolError
from gazette_spark.options.csv import CSV_OPTIONS, check_csv
from gazette_spark.options.query_range import (
    EARLIEST,
    LATEST,
    OffsetChoice,
    check_offsets,
    check_timestamps,
    parse_ending_offsets,
    parse_resume_offsets,
    parse_starting_offsets,
    parse_timestamp,
    parse_timestamps,
)
from gazette_spark.options.schema_hints import SchemaHint, parse_hints
from gazette_spark.options.security import SECURITY_OPTIONS, Security, take_security
from gazette_spark.options.store import check_store, parse_location, parse_store
from gazette_spark.options.table import Option, Use, option_texts, parse_texts
from gazette_spark.options.values import (
    check_journal,
    count,
    depth,
    parse_address,
    parse_any_location,
    parse_bool,
    parse_column,
    parse_delay,
    parse_directory,
    parse_file,
    parse_record_size,
    shown,
    size,
    word,
)
from gazette_spark.protocol.labels import PREFIX, format_selector, parse_selector, values_of

READ_COMMITTED = "read_committed"

FORMAT_FRAMINGS = {"json": "lines", "csv": "csv", "protobuf": "fixed"}
"""The framing whose records each format reads; raw reads any."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The journals a query reads: those with these names, or those that match, also if they match later."""

    option: str
    """Name of the option that says so."""
    names: tuple[str, ...] = ()
    """Each must exist."""
    selector: str = ""
    """Canonical text of a label selector; empty matches all."""
    pattern: str = ""
    """Regular expression of whole names, of those that the selector matches; empty matches all."""

    def __str__(self) -> str:
        return ", ".join(self.names) or self.pattern or self.selector

    def matches(self, journal: str) -> bool:
        """Tell whether a journal that the names or the selector match is selected."""
        return not self.pattern or re.fullmatch(self.pattern, journal) is not None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options. Field names are the options' names in snake case."""

    broker_address: str
    """Empty if a fragment store is read."""
    selection: Selection
    framing: str | None
    format: str | None
    header: bool
    infer_schema: bool
    sampling_bytes: int
    schema_hints: tuple[SchemaHint, ...]
    inferred_schema_location: str | None
    """URL of a directory."""
    time_zone: str
    date_format: str | None
    timestamp_format: str | None
    timestamp_ntz_format: str | None
    allow_single_quotes: bool
    allow_non_numeric_numbers: bool
    sep: str
    quote: str
    null_value: str
    empty_value: str
    descriptor_file: str | None
    message_name: str | None
    mode: str
    column_name_of_corrupt_record: str
    rescued_data_column: str | None
    isolation_level: str
    uuid_path: str | None
    include_acks: bool
    state_location: str | None
    messages_since: Mapping[str, int] | None
    """Directory of the states of producers, for streams of committed messages."""
    starting_offsets: OffsetChoice
    resume_offsets: Mapping[str, int] | None
    """If given, the start of a new query in place of all other options."""
    ending_offsets: OffsetChoice
    starting_timestamp: int | None
    """Milliseconds since 1970, as is the other one."""
    ending_timestamp: int | None
    starting_offsets_by_timestamp: Mapping[str, int]
    """By journal, in place of ``starting_timestamp``."""
    starting_offsets_by_timestamp_strategy: str
    max_bytes_per_trigger: int | None
    max_fragments_per_trigger: int | None
    max_records_per_trigger: int | None
    min_bytes_per_trigger: int | None
    max_trigger_delay: timedelta
    min_partitions: int | None
    max_bytes_per_partition: int
    max_record_bytes: int
    fail_on_data_loss: bool
    read_gaps: bool
    fragment_root: str | None
    fragment_store: str | None = field(repr=False)
    """Read in place of brokers."""
    fragment_postfix_levels: int | None
    request_timeout_ms: int
    idle_timeout_ms: int
    connect_timeout_ms: int
    security: Security
    log_level: str | None

    @property
    def reads_committed(self) -> bool:
        """Tell whether the query reads committed messages only."""
        return self.isolation_level == READ_COMMITTED

    @property
    def origin(self) -> str:
        """Source of the bytes, in a form without secrets."""
        return self.broker_address or (self.fragment_store or "").partition("?")[0]

    def timestamp_of(self, journal: str) -> int | None:
        """Return the time at which a new query starts in a journal; None if it does not start by time."""
        return self.starting_offsets_by_timestamp.get(journal, self.starting_timestamp)


def parse_options(
    given: Mapping[str, str], use: Use | None = None, *, environ: Mapping[str, str] = os.environ
) -> SourceOptions:
    """Parse the options that Spark passes in.

    Args:
        given: option names, in any case, and their texts.
        use: purpose of the options; None while the purpose is unknown: then options and values that only fit
            one use are accepted.
        environ: where ``BROKER_ADDRESS`` is looked up when ``brokerAddress`` is not given.

    Raises:
        OptionError: naming the first invalid option, and the valid ones.
    """
    texts = option_texts(given, OPTIONS)
    values = parse_texts(texts, OPTIONS, use, environ=environ)
    if values["fragment_store"] is not None:
        check_store(values, texts, framed=values["format"] in FORMAT_FRAMINGS)
    else:
        _check_alone("fragmentPostfixLevels", "fragmentStore", texts)
    values["security"] = take_security(values, texts)
    values["selection"] = _one_selection(
        [values.pop(name) for name in ("journals", "journals_pattern", "selector", "path")]
    )
    _check_framing(values["framing"], values["format"])
    _check_message(values)
    _check_inference(values, texts)
    check_csv(values, texts)
    _check_isolation(values, texts, use)
    _check_range(values, texts, use)
    _check_limits(values, texts)
    return SourceOptions(**values)


def _one_selection(given: Sequence[Selection | None]) -> Selection:
    found = [selection for selection in given if selection is not None]
    if len(found) == 1:
        return found[0]
    ways = (
        "exactly one of option 'journals', option 'journalsPattern', option 'selector', load('a/journal') "
        "and load('a/prefix/')"
    )
    names = " and ".join(each.option for each in found)
    raise OptionError(names or "journals", "more than one" if found else "nothing", ways)


def _default_start(use: Use | None) -> OffsetChoice:
    return OffsetChoice(EARLIEST if use == "batch" else LATEST)


def _check_range(values: dict[str, Any], texts: Mapping[str, str], use: Use | None) -> None:
    """Check where the query starts and ends, and set where it starts if nothing is said."""
    for offsets, timestamp in (
        ("startingOffsets", "startingTimestamp"),
        ("startingOffsets", "startingOffsetsByTimestamp"),
        ("endingOffsets", "endingTimestamp"),
    ):
        if {offsets.lower(), timestamp.lower()} <= texts.keys():
            raise OptionError(f"{offsets} and {timestamp}", "both", "one of them")
    common, named = values["starting_timestamp"], values["starting_offsets_by_timestamp"] or {}
    if common is None and not named:
        ways = "startingTimestamp or startingOffsetsByTimestamp"
        _check_alone("startingOffsetsByTimestampStrategy", ways, texts)
    values["starting_offsets_by_timestamp"] = named
    unset = OffsetChoice(EARLIEST) if named else _default_start(use)
    values["starting_offsets"] = values["starting_offsets"] or unset
    start = OffsetChoice(EARLIEST) if common is not None else values["starting_offsets"]
    check_offsets(start, values["ending_offsets"], batch=use == "batch")
    check_timestamps(common, named, values["ending_timestamp"])


def _check_limits(values: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    if values["framing"] == "none" and values["max_records_per_trigger"] is not None:
        raise OptionError("maxRecordsPerTrigger", "framing=none, which has no records", "maxBytesPerTrigger")
    low, high = values["min_bytes_per_trigger"], values["max_bytes_per_trigger"]
    if low is None:
        _check_alone("maxTriggerDelay", "minBytesPerTrigger", texts)
    elif high is not None and low > high:
        raise OptionError("minBytesPerTrigger", f"{low} bytes", f"at most maxBytesPerTrigger, {high} bytes")


def _check_isolation(values: Mapping[str, Any], texts: Mapping[str, str], use: Use | None) -> None:
    """Check what belongs to reading committed messages."""
    if values["isolation_level"] != READ_COMMITTED:
        for name in ("uuidPath", "includeAcks", "stateLocation", "messagesSince"):
            _check_alone(name, f"isolationLevel={READ_COMMITTED}", texts)
        return
    if values["framing"] == "none":
        raise OptionError(
            "framing", f"none, and isolationLevel={READ_COMMITTED}", "a framing that has messages"
        )
    if values["read_gaps"]:
        raise OptionError("readGaps", f"true, and isolationLevel={READ_COMMITTED}", "one of them")
    if use == "stream" and values["state_location"] is None:
        expected = (
            f"a directory that all tasks can read and write, for isolationLevel={READ_COMMITTED}: it keeps "
            "which transactions are open where a batch ends"
        )
        raise OptionError("stateLocation", "nothing", expected)
    if use == "batch" and (values["state_location"] is None) != (values["messages_since"] is None):
        expected = "to be used in a stream query, or with messagesSince, as backfill does"
        got = "nothing" if values["state_location"] is None else "a batch query"
        raise OptionError("stateLocation", got, expected)


def _check_alone(name: str, other: str, texts: Mapping[str, str]) -> None:
    if name.lower() in texts:
        raise OptionError(name, f"no {other}", f"to be used with {other} only")


def _check_inference(values: dict[str, Any], texts: Mapping[str, str]) -> None:
    """Check the options that say more of an inferred schema."""
    if not values["infer_schema"]:
        for name in ("schemaHints", "inferredSchemaLocation"):
            _check_alone(name, "inferSchema=true", texts)
    values["schema_hints"] = values["schema_hints"] or ()


def _check_message(values: Mapping[str, Any]) -> None:
    """Check the options of one format only."""
    names = {"descriptor_file": "descriptorFile", "message_name": "messageName"}
    for key, name in names.items():
        if values[key] is None and (values["format"] == "protobuf" or any(values[other] for other in names)):
            raise OptionError(name, "nothing", "descriptorFile and messageName, both, for format=protobuf")
        if values[key] is not None and values["format"] not in (None, "protobuf"):
            raise OptionError(name, f"format={values['format']}", "to be used with format=protobuf only")


def _check_framing(framing: str | None, form: str | None) -> None:
    holds = FORMAT_FRAMINGS.get(form or "")
    if framing and holds and framing != holds:
        raise OptionError("framing", f"{framing}, and format {form}", f"{holds}, which format {form} reads")


def _parse_journals(name: str, text: str) -> Selection:
    names = tuple(part.strip() for part in text.split(","))
    for index, journal in enumerate(names, start=1):
        check_journal(name, journal, f"element {index}: ")
        if journal in names[: index - 1]:
            raise OptionError(name, f"element {index}: {shown(journal)} a second time", "each journal once")
    return Selection(name, names=names)


def _parse_pattern(name: str, text: str) -> Selection:
    expected = "a regular expression of whole names, in Python's syntax, such as shop/orders-[0-9]+"
    if not text or text != text.strip():
        raise OptionError(name, shown(text), expected)
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise OptionError(name, f"{shown(text)} ({error})", expected) from None
    prefix = literal_prefix(text)
    return Selection(name, selector=f"prefix={prefix}" if prefix else "", pattern=text)


def literal_prefix(pattern: str) -> str:
    """Return a directory, with its slash, that holds all journals a pattern matches; empty if unknown.

    Brokers list this directory only.
    """
    # A quantifier may make what is before it optional, and an alternative need not begin so.
    found = re.match(r"((?:[\w%=-]+/)+)(?![?*{])", pattern, re.ASCII)
    return found[1] if found and "|" not in pattern else ""


def parse_selector_option(name: str, text: str) -> Selection:
    """Parse a label selector."""
    if not text.strip():
        raise OptionError(name, shown(text), "a label selector such as app=clicks,region in (eu,us)")
    try:
        selector = parse_selector(text)
    except ProtocolError as error:
        raise OptionError(name, f"{shown(text)} ({error.problem})", "a label selector") from None
    for value in values_of(selector.include, PREFIX) + values_of(selector.exclude, PREFIX):
        if not value.endswith("/"):
            raise OptionError(name, shown(text), f"a prefix that ends in '/': prefix={value}/")
    return Selection(name, selector=format_selector(selector))


def parse_path(name: str, text: str) -> Selection:
    """Parse a journal's name, or a prefix that ends in a slash."""
    if not text.endswith("/"):
        check_journal(name, text)
        return Selection(name, names=(text,))
    # A prefix may be shorter than a journal's name; the rest of the rules are the same.
    check_journal(name, f"{text}some-journal")
    return parse_selector_option(name, f"prefix={text}")


DAY_MS = 24 * 60 * 60 * 1000

OPTIONS: tuple[Option, ...] = (
    Option("brokerAddress", parse_address, None, "Broker to ask first; BROKER_ADDRESS if not given."),
    Option("journals", _parse_journals, None, "Names of journals, comma separated; each must exist."),
    Option(
        "journalsPattern",
        _parse_pattern,
        None,
        "Regular expression, in Python's syntax, of journals' whole names; journals that match it later are "
        "read too.",
    ),
    Option(
        "selector", parse_selector_option, None, "Label selector; journals that match it later are read too."
    ),
    Option(
        "path",
        parse_path,
        None,
        "What load() is given: a journal, or a prefix that ends in '/'.",
        form="a/journal, or a/prefix/",
    ),
    Option(
        "framing",
        word("lines", "fixed", "csv", "none"),
        None,
        "How bytes are cut into records: lines end in a newline; fixed: frames of a magic word, a length and "
        "as many bytes; csv: lines whose quoted fields may hold newlines; none: whole bytes, in chunks. If "
        "not given, the format and the journal's content-type label decide, and lines if it has none.",
    ),
    Option(
        "format",
        word("raw", "json", "csv", "protobuf"),
        None,
        "raw: columns journal, offset, value, or those of them the schema names. json, csv, protobuf: the "
        "columns of the schema. All of them fill in _journal, _offset, _end_offset, _fragment_mod_time (when "
        "the record was stored, null if it is not yet), _labels and _record (its bytes) when the schema "
        "names them. If not given, raw for raw's columns or no schema, else what the framing holds: json in "
        "lines, csv in csv, protobuf in fixed.",
    ),
    *CSV_OPTIONS,
    Option(
        "inferSchema",
        parse_bool,
        "false",
        "Whether a query without a schema takes its columns from a sample of its records, when it is loaded; "
        "for format=json.",
    ),
    Option(
        "samplingBytes",
        size(),
        "1m",
        "How much of each journal inferSchema looks at, in up to 16 journals.",
    ),
    Option(
        "schemaHints",
        parse_hints,
        None,
        "Columns and types that inferSchema takes in place of the sample's, or in addition. A path leads "
        "into structs; through element into arrays.",
    ),
    Option(
        "inferredSchemaLocation",
        parse_location,
        None,
        "Directory that keeps the columns which inferSchema found first, in schema.json: later starts of the "
        "query have the same. For one query alone.",
    ),
    Option(
        "timeZone",
        parse_column,
        "UTC",
        "Zone of timestamps whose text names none.",
        form="a zone such as Europe/Paris or +01:00",
    ),
    Option(
        "dateFormat",
        parse_column,
        None,
        "Pattern of dates in json and csv, in Spark's letters; ISO forms if not given.",
        form="a pattern such as dd.MM.yyyy",
    ),
    Option(
        "timestampFormat",
        parse_column,
        None,
        "Pattern of timestamps in json and csv; ISO forms if not given.",
        form="a pattern such as yyyy-MM-dd HH:mm:ss.SSSXXX",
    ),
    Option(
        "timestampNTZFormat",
        parse_column,
        None,
        "Pattern of timestamps without a zone in json and csv; ISO forms if not given.",
        form="a pattern such as yyyy-MM-dd HH:mm:ss",
    ),
    Option(
        "allowSingleQuotes",
        parse_bool,
        "true",
        "Whether JSON strings may stand in single quotes, as in Spark's reader.",
    ),
    Option(
        "allowNonNumericNumbers",
        parse_bool,
        "true",
        "Whether JSON numbers may be NaN or infinite, as in Spark's reader.",
    ),
    Option(
        "descriptorFile",
        parse_file,
        None,
        "File on the driver with the message's type, as protoc --include_imports --descriptor_set_out "
        "writes it; for format=protobuf.",
    ),
    Option(
        "messageName",
        parse_column,
        None,
        "Full name of the message's type; for format=protobuf.",
        form="a name such as shop.Order",
    ),
    Option(
        "mode",
        word("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
        "PERMISSIVE",
        "Malformed records, as in Spark's readers: null for what does not fit, no row, or an error.",
    ),
    Option(
        "columnNameOfCorruptRecord",
        parse_column,
        "_corrupt_record",
        "String column that takes a malformed record's text, when the schema names it.",
        form="a column's name",
    ),
    Option(
        "rescuedDataColumn",
        parse_column,
        None,
        "String column, which the schema has to name, for what did not fit the schema, under format=json: a "
        "JSON object of those fields with _journal and _offset. Such records are not malformed then.",
        form="a column's name",
    ),
    Option(
        "isolationLevel",
        word("read_uncommitted", READ_COMMITTED),
        "read_uncommitted",
        "read_committed: a message comes once, and one of a transaction only when an acknowledgement commits "
        "it; the schema may name _uuid, _producer, _clock, _flags and _ack_offset.",
    ),
    Option(
        "uuidPath",
        parse_column,
        None,
        "Where a message keeps its UUID, for isolationLevel=read_committed: a JSON pointer, a CSV column "
        "counted from 0, or the number of a protobuf field. Default: /_meta/uuid, 0, 1.",
        form="a JSON pointer, or a number",
    ),
    Option(
        "includeAcks",
        parse_bool,
        "false",
        "Whether acknowledgements are rows, too, under isolationLevel=read_committed.",
    ),
    Option(
        "stateLocation",
        parse_any_location,
        None,
        "Directory for the states of producers where batches end, for a stream of isolationLevel="
        "read_committed, or a backfill: a path or a URL that pyarrow or fsspec opens on the driver and all "
        "executors.",
    ),
    Option(
        "messagesSince",
        parse_resume_offsets,
        None,
        "Where the query of committed messages began that a batch goes on with, by journal, as backfill sets "
        "it: which transactions are open follows from the bytes since then, and is in stateLocation.",
        use="batch",
    ),
    Option(
        "startingOffsets",
        parse_starting_offsets,
        None,
        "Where a new query starts: earliest, latest, or JSON of offsets by journal (-2 earliest, -1 "
        "latest); journals not named start at earliest. Default: latest (stream), earliest (batch).",
    ),
    Option(
        "resumeOffsets",
        parse_resume_offsets,
        None,
        "Where a table ends, by journal, as DeltaSink.resume sets it: a new query starts there, and at the "
        "earliest in selected journals that it does not name. Journals that are not selected or were deleted "
        "do not count. It comes before startingOffsets and the starting times.",
        use="stream",
    ),
    Option(
        "endingOffsets",
        parse_ending_offsets,
        "latest",
        "Where a batch query ends: latest, or JSON of offsets by journal; journals not named end at "
        "latest. A record that is cut there is left out.",
        use="batch",
    ),
    Option(
        "startingTimestamp",
        parse_timestamp,
        None,
        "Where a new query starts, by time, in place of startingOffsets: in each journal at the first "
        "fragment stored at that time or later, so that nothing appended since is left out.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        parse_timestamps,
        None,
        "Where a new query starts, by time and journal. Journals not named start at startingTimestamp, or at "
        "the earliest.",
    ),
    Option(
        "endingTimestamp",
        parse_timestamp,
        None,
        "Where a batch query ends, by time, in place of endingOffsets: where one that starts at that time "
        "begins, or at latest if nothing was stored since.",
        use="batch",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        word("error", "latest"),
        "error",
        "What to do where nothing was stored at the starting time or later: fail, or start at latest.",
    ),
    Option(
        "maxBytesPerTrigger",
        size(),
        None,
        "Soft limit on a micro-batch, shared by backlog; exceeded by one record per journal at most.",
        use="stream",
    ),
    Option(
        "maxFragmentsPerTrigger",
        count(1_000_000),
        None,
        "Soft limit on the fragments a micro-batch reads, at least one per journal; it ends with fragments.",
        use="stream",
    ),
    Option(
        "maxRecordsPerTrigger",
        count(100_000_000),
        None,
        "Limit on the records of a micro-batch, shared by backlog, at least one per journal; the driver "
        "reads them to count them.",
        use="stream",
    ),
    Option(
        "minBytesPerTrigger",
        size(),
        None,
        "Wait until there is so much to read, or maxTriggerDelay has passed. An AvailableNow run does not "
        "wait.",
        use="stream",
    ),
    Option(
        "maxTriggerDelay",
        parse_delay,
        "15m",
        "Longest time that minBytesPerTrigger holds back what there is to read.",
        use="stream",
    ),
    Option(
        "minPartitions",
        count(10_000),
        None,
        "Cut a batch into at least that many tasks, if it can: the number of cores to use.",
    ),
    Option(
        "maxBytesPerPartition",
        size(),
        "128m",
        "Cut ranges larger than that into several tasks; between compressed fragments rather than within, "
        "as soon as that gives enough tasks.",
    ),
    Option(
        "maxRecordBytes",
        parse_record_size,
        "16m",
        "A longer record ends the query with an error, whatever the mode.",
    ),
    Option(
        "failOnDataLoss",
        parse_bool,
        "true",
        "Whether bytes that can no longer be read, or a journal deleted before all of it was read, end the "
        "query; otherwise they are skipped with a warning.",
    ),
    Option(
        "readGaps",
        parse_bool,
        "false",
        "Whether the rows are, in place of records, the ranges of bytes between startingOffsets and "
        "endingOffsets that no fragment holds any more: columns journal, begin, end, bytes.",
        use="batch",
    ),
    Option(
        "fragmentRoot",
        parse_directory,
        None,
        "Directory under which workers find file:// stores; without it those are read through brokers.",
    ),
    Option(
        "fragmentStore",
        parse_store,
        None,
        "Store to read fragments from, with no broker at all. What is not stored yet is not seen.",
        use="batch",
    ),
    Option(
        "fragmentPostfixLevels",
        depth(32),
        None,
        "Directories that the journals' path_postfix_template adds below each journal; for fragmentStore. "
        "If not given, 0, unless what is listed looks otherwise: then it has to be.",
        use="batch",
    ),
    Option("requestTimeoutMs", count(DAY_MS), "60000", "Timeout of a request that makes no progress."),
    Option("idleTimeoutMs", count(DAY_MS), "30000", "Timeout of a silent connection."),
    Option("connectTimeoutMs", count(DAY_MS), "10000", "Timeout of connecting to a broker."),
    *SECURITY_OPTIONS,
    Option(
        "logLevel",
        word("debug", "info", "warning", "error"),
        None,
        "Minimum level of the source's log lines on the driver and the executors; info has one line for each "
        "batch. If not given, Python's logging there decides, which shows warnings.",
    ),
)
"""All options, in the order in which they are checked and shown."""
