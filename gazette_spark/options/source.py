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

from gazette_spark._formats.registry import FORMAT_FRAMINGS, FORMATS, FRAMINGS
from gazette_spark.errors import OptionError, ProtocolError
from gazette_spark.options.csv import CSV_OPTIONS, check_csv
from gazette_spark.options.query_range import (
    EARLIEST,
    LATEST,
    OffsetChoice,
    check_offsets,
    check_timestamps,
    parse_ending_offsets,
    parse_message_starts,
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
    """Directory of the states of producers, for streams of committed messages."""
    messages_since: Mapping[str, int] | None
    starting_offsets: OffsetChoice
    resume_offsets: OffsetChoice | None
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

CONNECT_TIMEOUT_OPTION = Option(
    "connectTimeoutMs",
    count(DAY_MS),
    "Maximum time to reach a broker for the first time; after it, the query fails.",
    default="10000",
    form="milliseconds, from 1 to 86400000 (one day)",
)
"""The same for reading and for writing."""

OPTIONS: tuple[Option, ...] = (
    Option(
        "brokerAddress",
        parse_address,
        "URL of any broker of the cluster; the client finds the others. Required, unless `fragmentStore` "
        "is given. The environment's `BROKER_ADDRESS` counts if the option is missing.",
    ),
    Option(
        "journals",
        _parse_journals,
        "Names of journals, separated by commas. Each must exist.",
        form="names such as shop/orders,shop/returns",
    ),
    Option(
        "journalsPattern",
        _parse_pattern,
        "Regular expression that matches a journal's whole name, in Python's syntax. Journals that match "
        "later are read, too.",
    ),
    Option("selector", parse_selector_option, "Label selector. Journals that match later are read, too."),
    Option(
        "path",
        parse_path,
        "Argument of load(): a journal, or a prefix that ends in `/`. Journals that appear below a "
        "prefix later are read, too.",
        form="a/journal, or a/prefix/",
    ),
    Option(
        "framing",
        word(*FRAMINGS),
        "How bytes are cut into records. `lines`: at newlines. `csv`: at newlines outside quotes. "
        "`fixed`: by frames, each with a magic word and a length. `none`: no records; rows are chunks of "
        "bytes. Default: the format's framing, else that of the journal's content-type label, else "
        "`lines`.",
    ),
    Option(
        "format",
        word(*FORMATS),
        "`raw`: one row per record with `journal`, `offset` and `value`, or those of them that the "
        "schema names. `json`, `csv`, `protobuf`: the columns of the schema. Every schema may add "
        "`_journal`, `_offset`, `_end_offset`, `_fragment_mod_time` (when the record was stored; null if "
        "it is not yet), `_labels` and `_record` (its bytes). Default: `raw` for raw's columns or no "
        "schema; else `json`, `csv` or `protobuf` for the framings `lines`, `csv` and `fixed`.",
    ),
    *CSV_OPTIONS,
    Option(
        "inferSchema",
        parse_bool,
        "Whether a query without a schema takes its columns from a sample of its records, at load(). For "
        "`format=json`.",
        default="false",
    ),
    Option(
        "samplingBytes",
        size(),
        "Bytes of each journal that `inferSchema` reads. It reads up to 16 journals.",
        default="1m",
    ),
    Option(
        "schemaHints",
        parse_hints,
        "Columns and types that replace those of `inferSchema`, or are added to them. Dots lead into "
        "structs, `element` into arrays.",
    ),
    Option(
        "inferredSchemaLocation",
        parse_location,
        "Directory in which the first start stores the columns of `inferSchema`, as schema.json. Later "
        "starts read them there. Each query needs its own directory.",
        form="an absolute path, or a URL as of fragmentStore",
    ),
    Option(
        "timeZone",
        parse_column,
        "Time zone of timestamps whose text names none.",
        default="UTC",
        form="a zone such as Europe/Paris or +01:00",
    ),
    Option(
        "dateFormat",
        parse_column,
        "Pattern of dates in `json` and `csv`, in the letters of Spark's patterns.",
        form="a pattern such as dd.MM.yyyy",
    ),
    Option(
        "timestampFormat",
        parse_column,
        "Pattern of timestamps in `json` and `csv`.",
        form="a pattern such as yyyy-MM-dd HH:mm:ss.SSSXXX",
    ),
    Option(
        "timestampNTZFormat",
        parse_column,
        "Pattern of timestamps without a time zone in `json` and `csv`.",
        form="a pattern such as yyyy-MM-dd HH:mm:ss",
    ),
    Option(
        "allowSingleQuotes",
        parse_bool,
        "Whether JSON strings may be in single quotes, as in Spark's reader.",
        default="true",
    ),
    Option(
        "allowNonNumericNumbers",
        parse_bool,
        "Whether JSON numbers may be NaN or infinite, as in Spark's reader.",
        default="true",
    ),
    Option(
        "descriptorFile",
        parse_file,
        "File on the driver with the message type, written by `protoc --include_imports "
        "--descriptor_set_out`. Required for `format=protobuf`.",
    ),
    Option(
        "messageName",
        parse_column,
        "Full name of the message type. Required for `format=protobuf`.",
        form="a name such as shop.Order",
    ),
    Option(
        "mode",
        word("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
        "What becomes of a malformed record. `PERMISSIVE`: a row with null for what does not fit. "
        "`DROPMALFORMED`: no row. `FAILFAST`: an error that ends the query.",
        default="PERMISSIVE",
    ),
    Option(
        "columnNameOfCorruptRecord",
        parse_column,
        "String column for the text of malformed records. It is filled if the schema names it.",
        default="_corrupt_record",
        form="a column's name",
    ),
    Option(
        "rescuedDataColumn",
        parse_column,
        "String column for fields that do not fit the schema: a JSON object of these fields, `_journal` "
        "and `_offset`. The schema must name it. Such records are not malformed. For `format=json`.",
        form="a column's name",
    ),
    Option(
        "isolationLevel",
        word("read_uncommitted", READ_COMMITTED),
        "`read_uncommitted`: every record is a row. `read_committed`: each committed message is a row, "
        "once. A message of a transaction comes when an acknowledgement commits it. The schema may then "
        "add `_uuid`, `_producer`, `_clock`, `_flags` and `_ack_offset`.",
        default="read_uncommitted",
    ),
    Option(
        "uuidPath",
        parse_column,
        "Place of a message's UUID: a JSON pointer, a CSV column counted from 0, or the number of a "
        "protobuf field. For `isolationLevel=read_committed`.",
        form="a JSON pointer, or a number",
    ),
    Option(
        "includeAcks",
        parse_bool,
        "Whether acknowledgements are rows, too. For `isolationLevel=read_committed`.",
        default="false",
    ),
    Option(
        "stateLocation",
        parse_any_location,
        "Directory that keeps the open transactions where batches end. Driver and executors must all be "
        "able to read and write it, as a path or by pyarrow or fsspec. Required for a stream with "
        "`isolationLevel=read_committed`. Each query needs its own directory.",
    ),
    Option(
        "messagesSince",
        parse_message_starts,
        "First offsets of the committed read that this batch continues. `backfill` sets it, with "
        "`stateLocation`; do not set it yourself.",
        use="batch",
        form='JSON such as {"a/journal":1024}',
    ),
    Option(
        "startingOffsets",
        parse_starting_offsets,
        "Where a new query starts; one with a checkpoint continues there. JSON has an offset for each "
        "journal: -2 is the earliest, -1 the latest. Journals that it does not name start at the "
        "earliest. An offset outside its journal is an error. A batch cannot start at `latest`.",
    ),
    Option(
        "resumeOffsets",
        parse_resume_offsets,
        "Offsets at which a table ends; `DeltaSink.resume` sets it. A new query starts there, and at the "
        "earliest in selected journals that it does not name. It wins over the other starting options, "
        "and ignores journals that are deleted or not selected.",
        use="stream",
        form='JSON such as {"a/journal":1024}',
    ),
    Option(
        "endingOffsets",
        parse_ending_offsets,
        "Where a batch ends: before these offsets. Journals that the JSON does not name end at the "
        "latest (-1). A record that an offset cuts is left out.",
        default="latest",
        use="batch",
        form='latest, or JSON such as {"a/journal":1024}',
    ),
    Option(
        "startingTimestamp",
        parse_timestamp,
        "Time at which a new query starts, instead of `startingOffsets`. Each journal starts at the "
        "first fragment stored then or later. Everything appended since is read, and possibly some older "
        "bytes.",
        form="milliseconds since 1970 UTC, such as 1700000000000; at most the year 3000",
    ),
    Option(
        "startingOffsetsByTimestamp",
        parse_timestamps,
        "Times at which a new query starts, by journal. Journals that it does not name start at "
        "`startingTimestamp`, or at the earliest.",
        form='JSON of such times by journal: {"a/journal":1700000000000}',
    ),
    Option(
        "endingTimestamp",
        parse_timestamp,
        "Time at which a batch ends, instead of `endingOffsets`: where a query with this "
        "`startingTimestamp` starts. A journal in which nothing was stored since ends at the latest.",
        use="batch",
        form="milliseconds since 1970 UTC, such as 1700000000000; at most the year 3000",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        word("error", "latest"),
        "What happens if nothing was stored at the starting time or later. `error`: the query fails. "
        "`latest`: it starts at the latest.",
        default="error",
    ),
    Option(
        "maxBytesPerTrigger",
        size(),
        "Maximum bytes of a micro-batch. Journals share it by backlog. The limit is soft: each journal "
        "with data gives at least one record, and a batch ends with a whole record. On Spark 4.0 and 4.1, "
        "a run of `Trigger.AvailableNow` is one such batch: repeat it until nothing is left.",
        use="stream",
    ),
    Option(
        "maxFragmentsPerTrigger",
        count(1_000_000),
        "Maximum fragments of a micro-batch, which then ends where fragments end. The limit is soft: "
        "each journal with data gives at least one.",
        use="stream",
    ),
    Option(
        "maxRecordsPerTrigger",
        count(100_000_000),
        "Maximum records of a micro-batch, or one per journal if more journals have data. The driver "
        "reads the batch to count them. Not for `framing=none`.",
        use="stream",
    ),
    Option(
        "minBytesPerTrigger",
        size(),
        "Minimum bytes of a micro-batch. A smaller batch waits, at most for `maxTriggerDelay`. The first "
        "batch of a run and `Trigger.AvailableNow` do not wait. Not more than `maxBytesPerTrigger`.",
        use="stream",
    ),
    Option(
        "maxTriggerDelay",
        parse_delay,
        "Maximum time that a batch waits for `minBytesPerTrigger`. Then it reads what there is.",
        default="15m",
        use="stream",
    ),
    Option(
        "minPartitions",
        count(10_000),
        "Minimum number of tasks of a batch, such as the number of cores. A batch has fewer tasks if its "
        "records leave too few places to cut.",
    ),
    Option(
        "maxBytesPerPartition",
        size(),
        "Maximum bytes of a task. A larger range is cut into several tasks, between compressed fragments "
        "if that gives enough. Records are never cut; `fixed` and `csv` framings are cut between "
        "fragments only.",
        default="128m",
    ),
    Option(
        "maxRecordBytes",
        parse_record_size,
        "Maximum length of a record. A longer record ends the query with an error, whatever `mode` says.",
        default="16m",
    ),
    Option(
        "failOnDataLoss",
        parse_bool,
        "Whether lost data ends the query: bytes that can no longer be read, or a journal deleted before "
        "all of it was read. `false`: the query skips it with a warning.",
        default="true",
    ),
    Option(
        "readGaps",
        parse_bool,
        "Whether rows are the ranges of bytes that no fragment holds any more, instead of records. "
        "Columns: `journal`, `begin`, `end`, `bytes`. The range is `startingOffsets` to `endingOffsets`.",
        default="false",
        use="batch",
    ),
    Option(
        "fragmentRoot",
        parse_directory,
        "Directory in which workers find `file://` stores. Without it, tasks read such fragments through "
        "brokers.",
    ),
    Option(
        "fragmentStore",
        parse_store,
        "Fragment store to read without any broker, instead of `brokerAddress`. Credentials come from "
        "the environment. Bytes that are not stored yet are not read.",
        use="batch",
        form="a URL without credentials: file:///directory, or s3://, gs:// or abfs:// as pyarrow takes it",
    ),
    Option(
        "fragmentPostfixLevels",
        depth(32),
        "Number of directories that the journals' path_postfix_template adds. If a listing is ambiguous, "
        "the query fails and asks for it. For `fragmentStore`.",
        use="batch",
    ),
    Option(
        "requestTimeoutMs",
        count(DAY_MS),
        "Maximum time that a request goes without progress. The client retries until then; after it, the "
        "query fails.",
        default="60000",
        form="milliseconds, from 1 to 86400000 (one day)",
    ),
    Option(
        "idleTimeoutMs",
        count(DAY_MS),
        "Maximum silence of a stream from a broker; after it, the stream is opened again.",
        default="30000",
        form="milliseconds, from 1 to 86400000 (one day)",
    ),
    CONNECT_TIMEOUT_OPTION,
    *SECURITY_OPTIONS,
    Option(
        "logLevel",
        word("debug", "info", "warning", "error"),
        "Minimum level of the source's log lines on the driver and the executors. `info` logs one line "
        "per batch.",
    ),
)
"""All options, in the order in which they are checked and shown."""
