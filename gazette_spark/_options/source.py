"""Every option of the source, declared once: the fields of :class:`SourceOptions`.

An option is checked on the driver when a DataFrame is made, before any connection. An option that is unknown,
malformed or contradicts another raises an :class:`~gazette_spark.errors.OptionError` that shows the value and
the allowed form. No value is clamped, and no default replaces an invalid value.

The rules for values are the same for all options:

- booleans are only ``true`` or ``false``, in any case;
- counts are decimal digits; sizes are digits, optionally with one of Spark's units, which are powers of 1024:
  ``b``, ``k``, ``m``, ``g`` (or ``kb``, ``mb``, ``gb``), as in ``64m``. Signs, spaces, points and exponents
  are invalid;
- durations are digits with one of Spark's units, milliseconds by default: ``ms``, ``s``, ``m`` or
  ``min``, ``h``, ``d``;
- words (``earliest``, ``permissive``) match in any case.

To add an option, declare a field in its section. If it depends on another option, check that in
:func:`parse_options`. ``make generated`` writes the reference.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gazette_spark._formats.registry import FORMAT_FRAMINGS, FORMATS, FRAMINGS
from gazette_spark._options.collection import parse_collection, parse_control_plane, take_collection
from gazette_spark._options.query_range import (
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
from gazette_spark._options.schema_hints import SchemaHint, parse_hints
from gazette_spark._options.security import SECURITY_OPTIONS, Security, take_security
from gazette_spark._options.selection import (
    JournalSelection,
    only_selection,
    parse_journals,
    parse_path,
    parse_pattern,
    parse_selector_option,
)
from gazette_spark._options.store import check_store, parse_location, parse_store
from gazette_spark._options.table import (
    Option,
    Use,
    of_options,
    option,
    option_texts,
    options_of,
    parse_texts,
)
from gazette_spark._options.values import (
    DAY_MS,
    count,
    depth,
    parse_address,
    parse_any_location,
    parse_any_text,
    parse_bool,
    parse_column,
    parse_delay,
    parse_directory,
    parse_file,
    parse_quote,
    parse_record_size,
    parse_separator,
    shown,
    size,
    word,
)
from gazette_spark.errors import OptionError

READ_COMMITTED = "read_committed"

# Options that reading and writing share.
SEPARATOR = Option(
    "sep", parse_separator, "Character between the fields of a record.", default=",", section="CSV"
)
QUOTE = Option(
    "quote",
    parse_quote,
    "Character around quoted fields; inside, it is doubled. If empty, there are no quotes, and every "
    "newline ends a record.",
    default='"',
    form="one ASCII character other than newlines, or nothing",
)
UUID_PATH = Option(
    "uuidPath",
    parse_column,
    "Place of a message's UUID: a JSON pointer, a CSV column counted from 0, or the number of a protobuf "
    "field. For reading with `isolationLevel=read_committed` and writing with "
    "`deliveryGuarantee=exactly_once`.",
    form="a JSON pointer, or a number",
    shown_default="`/_meta/uuid` (JSON), `0` (CSV), `1` (protobuf)",
)
CONNECT_TIMEOUT = Option(
    "connectTimeoutMs",
    count(DAY_MS),
    "Maximum time to reach a broker for the first time; after that, the query fails.",
    default="10000",
    form="milliseconds, from 1 to 86400000 (one day)",
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options. Times are in milliseconds since 1970, delays and timeouts in their own units."""

    broker_address: str = option(
        parse_address,
        "URL of any broker of the cluster; the client finds the others. Required, unless `fragmentStore` "
        "is set. The default is the environment variable `BROKER_ADDRESS`.",
        section="Connection",
        shown_default="`BROKER_ADDRESS`",
    )
    fragment_store: str | None = option(
        parse_store,
        "Fragment store to read without any broker, instead of `brokerAddress`. Credentials come from "
        "the environment. Bytes that are not stored yet are not read.",
        use="batch",
        form="a URL without credentials: file:///directory, or pyarrow's s3://, gs:// or abfs://",
        repr=False,
    )
    fragment_postfix_levels: int | None = option(
        depth(32),
        "Number of directories that the journals' path_postfix_template adds. Required if a listing is "
        "ambiguous. For `fragmentStore`.",
        use="batch",
        shown_default="`0`",
    )
    fragment_root: str | None = option(
        parse_directory,
        "Directory in which workers find `file://` stores. Without it, tasks read such fragments through "
        "brokers.",
    )
    selection: JournalSelection = of_options(
        Option(
            "path",
            parse_path,
            "Argument of load(): a journal, or a prefix that ends in `/`. Journals that appear later below "
            "a prefix are also read.",
            section="Journals",
            form="a/journal, or a/prefix/",
        ),
        Option(
            "journals",
            parse_journals,
            "Names of journals, separated by commas. Each must exist.",
            form="names such as shop/orders,shop/returns",
        ),
        Option(
            "journalsPattern",
            parse_pattern,
            "Regular expression that matches a journal's whole name, in Python's syntax. Journals that "
            "appear later and match are also read.",
        ),
        Option(
            "selector",
            parse_selector_option,
            "Label selector. Journals that match later are also read.",
        ),
    )
    starting_offsets: OffsetChoice = option(
        parse_starting_offsets,
        "Where a new query starts; a query with a checkpoint continues there. JSON has an offset for each "
        "journal: -2 is the earliest, -1 the latest. Other journals start at the earliest. An offset outside "
        "its journal is an error. A batch cannot start at `latest`.",
        section="Start and end of a query",
        shown_default="`latest` (stream), `earliest` (batch)",
    )
    ending_offsets: OffsetChoice = option(
        parse_ending_offsets,
        "Where a batch ends: before these offsets. Journals that the JSON does not name end at the "
        "latest (-1). A record that does not end before the offset is omitted.",
        default="latest",
        use="batch",
        form='latest, or JSON such as {"a/journal":1024}',
    )
    starting_timestamp: int | None = option(
        parse_timestamp,
        "Time at which a new query starts, instead of `startingOffsets`. Each journal starts at the "
        "first fragment stored then or later. Everything appended since is read, and possibly some older "
        "bytes.",
        form="milliseconds since 1970 UTC, such as 1700000000000; at most the year 3000",
    )
    ending_timestamp: int | None = option(
        parse_timestamp,
        "Time at which a batch ends, instead of `endingOffsets`: where a query with this "
        "`startingTimestamp` starts. A journal in which nothing was stored since then ends at the latest.",
        use="batch",
        form="milliseconds since 1970 UTC, such as 1700000000000; at most the year 3000",
    )
    starting_offsets_by_timestamp: Mapping[str, int] = option(
        parse_timestamps,
        "Times by journal at which a new query starts. Other journals start at `startingTimestamp`, or at "
        "the earliest.",
        form='JSON of such times by journal: {"a/journal":1700000000000}',
    )
    starting_offsets_by_timestamp_strategy: str = option(
        word("error", "latest"),
        "Policy if nothing was stored at the starting time or later. `error`: the query fails. "
        "`latest`: it starts at the latest.",
        default="error",
    )
    resume_offsets: OffsetChoice | None = option(
        parse_resume_offsets,
        "Offsets at which a table ends; `DeltaSink.resume` sets it. A new query starts there, and at the "
        "earliest in other selected journals. The same applies to journals that the query selects later. It "
        "overrides the other starting options, and ignores journals that are deleted or not selected.",
        use="stream",
        form='JSON such as {"a/journal":1024}',
    )
    max_bytes_per_trigger: int | None = option(
        size(),
        "Maximum bytes of a micro-batch, shared among journals by backlog. The limit is soft: each journal "
        "with data gives at least one record, and a batch ends with a whole record. On Spark 4.0 and 4.1, "
        "a run of `Trigger.AvailableNow` is one such batch: repeat it until nothing is left.",
        section="Size of a micro-batch",
        use="stream",
        shown_default="no limit",
    )
    max_records_per_trigger: int | None = option(
        count(100_000_000),
        "Maximum records of a micro-batch, or one per journal if more journals have data. The driver "
        "reads the batch to count them. Not for `framing=none`.",
        use="stream",
        shown_default="no limit",
    )
    max_fragments_per_trigger: int | None = option(
        count(1_000_000),
        "Maximum fragments of a micro-batch, which then ends at the ends of fragments. The limit is soft: "
        "each journal with data gives at least one.",
        use="stream",
        shown_default="no limit",
    )
    min_bytes_per_trigger: int | None = option(
        size(),
        "Minimum bytes of a micro-batch. A smaller batch waits, at most for `maxTriggerDelay`. The first "
        "batch of a run and `Trigger.AvailableNow` do not wait. Not more than `maxBytesPerTrigger`.",
        use="stream",
        shown_default="no minimum",
    )
    max_trigger_delay: timedelta = option(
        parse_delay,
        "Maximum time that a batch waits for `minBytesPerTrigger`. Then it reads what is available.",
        default="15m",
        use="stream",
    )
    min_partitions: int | None = option(
        count(10_000),
        "Minimum number of tasks of a batch, such as the number of cores. A batch has fewer tasks if its "
        "records leave too few places to cut.",
        section="Tasks of a batch",
        shown_default="no minimum",
    )
    max_bytes_per_partition: int = option(
        size(),
        "Maximum bytes of a task. A larger range is cut into several tasks, between compressed fragments "
        "if that gives enough tasks. Records are never cut; `fixed` and `csv` framings are cut between "
        "fragments only.",
        default="128m",
    )
    format: str | None = option(
        word(*FORMATS),
        "`raw`: one row per record with `journal`, `offset` and `value`, or those of them that the "
        "schema names. `json`, `csv`, `protobuf`: the columns of the schema. Every schema may add "
        "`_journal`, `_offset`, `_end_offset`, `_fragment_mod_time` (store time of the record; null if "
        "it is not stored yet), `_labels` and `_record` (its bytes). Default: `raw` for raw's columns or "
        "without a schema; otherwise `json`, `csv`, `protobuf` for the framings `lines`, `csv`, `fixed`.",
        section="Records",
        shown_default="see meaning",
    )
    framing: str | None = option(
        word(*FRAMINGS),
        "How bytes are cut into records. `lines`: at newlines. `csv`: at newlines outside quotes. "
        "`fixed`: by frames, each with a magic word and a length. `none`: no records; rows are chunks of "
        "bytes. Default: the format's framing, or that of the journal's content-type label, or "
        "`lines`.",
        shown_default="see meaning",
    )
    max_record_bytes: int = option(
        parse_record_size,
        "Maximum length of a record. A longer record ends the query with an error, regardless of `mode`.",
        default="16m",
    )
    mode: str = option(
        word("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
        "Policy for malformed records. `PERMISSIVE`: a row with null for each value that does not fit. "
        "`DROPMALFORMED`: no row. `FAILFAST`: an error that ends the query.",
        section="Malformed records",
        default="PERMISSIVE",
    )
    column_name_of_corrupt_record: str = option(
        parse_column,
        "String column for the text of malformed records. It is filled if the schema names it.",
        default="_corrupt_record",
        form="a column's name",
    )
    rescued_data_column: str | None = option(
        parse_column,
        "String column for fields that do not fit the schema: a JSON object with these fields, `_journal` "
        "and `_offset`. The schema must name it. Such records are not malformed. For `format=json`.",
        form="a column's name",
    )
    infer_schema: bool = option(
        parse_bool,
        "Whether a query without a schema takes its columns from a sample of its records, at load(). For "
        "`format=json`.",
        section="Schema inference",
        default="false",
    )
    sampling_bytes: int = option(
        size(),
        "Bytes of each journal that `inferSchema` reads. It reads up to 16 journals.",
        default="1m",
    )
    schema_hints: tuple[SchemaHint, ...] = option(
        parse_hints,
        "Columns and types that replace those of `inferSchema`, or are added to them. Dots lead into "
        "structs, and `element` into arrays.",
    )
    inferred_schema_location: str | None = option(
        parse_location,
        "Directory in which the first start stores the columns of `inferSchema`, as schema.json. Later "
        "starts read them there. Each query needs its own directory.",
        form="an absolute path, or a URL as for fragmentStore",
    )
    time_zone: str = option(
        parse_column,
        "Time zone of timestamps without a zone in their text.",
        section="Dates and times",
        default="UTC",
        form="a zone such as Europe/Paris or +01:00",
    )
    date_format: str | None = option(
        parse_column,
        "Pattern of dates in `json` and `csv`, in the letters of Spark's patterns.",
        form="a pattern such as dd.MM.yyyy",
        shown_default="ISO 8601",
    )
    timestamp_format: str | None = option(
        parse_column,
        "Pattern of timestamps in `json` and `csv`.",
        form="a pattern such as yyyy-MM-dd HH:mm:ss.SSSXXX",
        shown_default="ISO 8601",
    )
    timestamp_ntz_format: str | None = option(
        parse_column,
        "Pattern of timestamps without a time zone in `json` and `csv`.",
        name="timestampNTZFormat",
        form="a pattern such as yyyy-MM-dd HH:mm:ss",
        shown_default="ISO 8601",
    )
    allow_single_quotes: bool = option(
        parse_bool,
        "Whether JSON strings may be in single quotes, as in Spark's reader.",
        section="JSON",
        default="true",
    )
    allow_non_numeric_numbers: bool = option(
        parse_bool,
        "Whether JSON numbers may be NaN or infinite, as in Spark's reader.",
        default="true",
    )
    header: bool = option(
        parse_bool,
        "Whether journals have headers: records with the columns' names. They give no row, in any position, "
        "because each writer may begin with one. A journal's first record must be a header.",
        section="CSV",
        default="false",
    )
    sep: str = of_options(SEPARATOR)
    quote: str = of_options(QUOTE)
    null_value: str = option(
        parse_any_text,
        "Text of null fields, in quotes or not. An empty field without quotes is always null.",
        default="",
        form="any string",
    )
    empty_value: str = option(
        parse_any_text,
        "Value of an empty field in quotes.",
        default="",
        form="any string",
        shown_default="null; an empty string if `nullValue` is set",
    )
    descriptor_file: str | None = option(
        parse_file,
        "File on the driver with the message type, written by `protoc --include_imports "
        "--descriptor_set_out`. Required for `format=protobuf`.",
        section="Protobuf",
    )
    message_name: str | None = option(
        parse_column,
        "Full name of the message type. Required for `format=protobuf`.",
        form="a name such as shop.Order",
    )
    fail_on_data_loss: bool = option(
        parse_bool,
        "Whether a loss of data ends the query: bytes that can no longer be read, or a journal deleted "
        "before all of it was read. `false`: the query skips it with a warning.",
        section="Data loss",
        default="true",
    )
    read_gaps: bool = option(
        parse_bool,
        "Whether the rows are gaps instead of records: ranges of bytes that are in no fragment any more. "
        "Columns: `journal`, `begin`, `end`, `bytes`. The range is `startingOffsets` to `endingOffsets`.",
        default="false",
        use="batch",
    )
    isolation_level: str = option(
        word("read_uncommitted", READ_COMMITTED),
        "`read_uncommitted`: every record is a row. `read_committed`: each committed message is a row, "
        "once. A message of a transaction appears when an acknowledgement commits it. The schema may then "
        "add `_uuid`, `_producer`, `_clock`, `_flags` and `_ack_offset`.",
        section="Transactions",
        default="read_uncommitted",
    )
    state_location: str | None = option(
        parse_any_location,
        "Directory that stores the transactions that are open at the ends of batches. The driver and all "
        "executors must be able to read and write it, as a path or with pyarrow or fsspec. Required for a "
        "stream with `isolationLevel=read_committed`. Each query needs its own directory, and so does "
        "each source of a query if several read the same journals.",
    )
    include_acks: bool = option(
        parse_bool,
        "Whether acknowledgements also give rows. For `isolationLevel=read_committed`.",
        default="false",
    )
    messages_since: Mapping[str, int] | None = option(
        parse_message_starts,
        "First offsets of the committed read that this batch continues. `backfill` sets it, with "
        "`stateLocation`; do not set it yourself.",
        use="batch",
        form='JSON such as {"a/journal":1024}',
    )
    uuid_path: str | None = of_options(UUID_PATH)
    security: Security = of_options(
        *SECURITY_OPTIONS,
        Option(
            "collection",
            parse_collection,
            "Collection of Estuary Flow to read, instead of `brokerAddress` and a selection of journals. "
            "`auth.token` or `auth.tokenFile` has the user's access token. The control plane gives the "
            "brokers' address and a token for them, which is renewed. Sets the default of `isolationLevel` "
            "to `read_committed`.",
            section="Estuary Flow",
            form="a name such as acmeCo/orders",
        ),
        Option(
            "controlPlane",
            parse_control_plane,
            "URL of the control plane that authorizes the query. For `collection`.",
            default="https://agent-api-1084703453822.us-central1.run.app",
            shown_default="that of estuary.dev",
        ),
    )
    request_timeout_ms: int = option(
        count(DAY_MS),
        "Maximum time that a request may make no progress. The client retries until then; after that, the "
        "query fails.",
        section="Timeouts and logging",
        default="60000",
        form="milliseconds, from 1 to 86400000 (one day)",
    )
    idle_timeout_ms: int = option(
        count(DAY_MS),
        "Maximum silence of a stream from a broker; after that, the stream is opened again.",
        default="30000",
        form="milliseconds, from 1 to 86400000 (one day)",
    )
    connect_timeout_ms: int = of_options(CONNECT_TIMEOUT)
    log_level: str | None = option(
        word("debug", "info", "warning", "error"),
        "Minimum level of the source's log lines on the driver and the executors. `info` logs one line "
        "per batch.",
        shown_default="that of Python, `warning`",
    )

    @property
    def reads_committed(self) -> bool:
        """Return whether the query reads only committed messages."""
        return self.isolation_level == READ_COMMITTED

    @property
    def origin(self) -> str:
        """The source of the bytes, without secrets."""
        if self.security.collection is not None:
            return self.security.collection.control_plane
        return self.broker_address or (self.fragment_store or "").partition("?")[0]

    def timestamp_of(self, journal: str) -> int | None:
        """Return the time at which a new query starts in a journal; None if it does not start by time."""
        return self.starting_offsets_by_timestamp.get(journal, self.starting_timestamp)


OPTIONS = options_of(SourceOptions)
"""All options, in the order in which they are checked and shown."""

RANGE_OPTIONS = frozenset(
    row.name.lower()
    for row in OPTIONS
    if row.section in ("Journals", "Start and end of a query") or row.name == "messagesSince"
)
"""Options, in lower case, that say which bytes a query reads."""


def parse_options(  # noqa: C901, PLR0912, PLR0915 - one option after the other
    options: Mapping[str, str], use: Use | None = None, *, environ: Mapping[str, str] = os.environ
) -> SourceOptions:
    """Parse the options that Spark passes in.

    Args:
        options: option names, in any case, and their texts.
        use: Purpose of the options; None if it is unknown, so that the options of each use are accepted.
        environ: Environment with ``BROKER_ADDRESS``, the default of ``brokerAddress``.

    Raises:
        OptionError: an option is invalid. The error names the first one, and the valid options.
    """
    texts = option_texts(options, OPTIONS)
    values = parse_texts(texts, OPTIONS, use, environ=environ)
    form, framing = values["format"], values["framing"]
    format_framing = FORMAT_FRAMINGS.get(form or "")

    # Location and credentials. A store has no labels, so it needs a framing.
    if values["fragment_store"] is not None:
        check_store(values, texts, framed=format_framing is not None)
    else:
        _check_alone("fragmentPostfixLevels", "fragmentStore", texts)
    values["security"] = take_security(values, texts)
    take_collection(values, texts)
    values["selection"] = only_selection(
        [values.pop(name) for name in ("journals", "journals_pattern", "selector", "path")]
    )

    # Options of one format or of inference have no effect elsewhere. Ignoring them would hide a mistake.
    if framing and format_framing and framing != format_framing:
        got = f"{framing}, and format {form}"
        raise OptionError("framing", got, f"{format_framing}, which format {form} reads")
    message_options = {"descriptor_file": "descriptorFile", "message_name": "messageName"}
    for key, name in message_options.items():
        # Each of the two is useless without the other.
        if values[key] is None and (form == "protobuf" or any(values[other] for other in message_options)):
            raise OptionError(name, "nothing", "both descriptorFile and messageName for format=protobuf")
        if values[key] is not None and form not in (None, "protobuf"):
            raise OptionError(name, f"format={form}", "to be used with format=protobuf only")
    for csv_option in (row for row in OPTIONS if row.section == "CSV"):
        # The defaults of these options are accepted, because Spark's readers pass them for every format.
        default = csv_option.parse(csv_option.name, csv_option.default or "")
        is_set = csv_option.name.lower() in texts and values[csv_option.key] != default
        if is_set and form not in (None, "csv") and framing != "csv":
            expected = "to be used with format=csv or framing=csv only"
            raise OptionError(csv_option.name, f"format={form}", expected)
    # Such a record could be split in two ways.
    if values["sep"] == values["quote"]:
        raise OptionError("quote", f"{shown(values['quote'])}, which is also sep", "another character")
    if not values["infer_schema"]:
        for name in ("schemaHints", "inferredSchemaLocation"):
            _check_alone(name, "inferSchema=true", texts)
    values["schema_hints"] = values["schema_hints"] or ()

    # Messages need framing, and a stream needs a directory for its open transactions.
    committed = f"isolationLevel={READ_COMMITTED}"
    if values["isolation_level"] != READ_COMMITTED:
        for name in ("uuidPath", "includeAcks", "stateLocation", "messagesSince"):
            _check_alone(name, committed, texts)
    else:
        # Bytes without records have no place for a UUID.
        if framing == "none":
            raise OptionError("framing", f"none, and {committed}", "a framing that has messages")
        if values["read_gaps"]:
            raise OptionError("readGaps", f"true, and {committed}", "one of them")
        # A transaction may begin in one batch and end in a later one, which needs the states in between.
        # Rebuilding them from the journal would read it from the query's start at each batch.
        if use == "stream" and values["state_location"] is None:
            expected = (
                f"a directory that all tasks can read and write, for {committed}: it stores the "
                "transactions that are open at the end of a batch"
            )
            raise OptionError("stateLocation", "nothing", expected)
        # A batch begins without open transactions, unless `backfill` continues a table with it.
        if use == "batch" and (values["state_location"] is None) != (values["messages_since"] is None):
            expected = "to be used in a stream query, or with messagesSince, as backfill does"
            got = "nothing" if values["state_location"] is None else "a batch query"
            raise OptionError("stateLocation", got, expected)
    _check_range(values, texts, use)

    if framing == "none" and values["max_records_per_trigger"] is not None:
        raise OptionError("maxRecordsPerTrigger", "framing=none, which has no records", "maxBytesPerTrigger")
    low, high = values["min_bytes_per_trigger"], values["max_bytes_per_trigger"]
    if low is None:
        _check_alone("maxTriggerDelay", "minBytesPerTrigger", texts)
    elif high is not None and low > high:
        # A batch that waits for more bytes than it may read would always wait for maxTriggerDelay.
        raise OptionError("minBytesPerTrigger", f"{low} bytes", f"at most maxBytesPerTrigger, {high} bytes")
    return SourceOptions(**values)


def _check_alone(name: str, other: str, texts: Mapping[str, str]) -> None:
    if name.lower() in texts:
        raise OptionError(name, f"no {other}", f"to be used with {other} only")


def _check_range(values: dict[str, Any], texts: Mapping[str, str], use: Use | None) -> None:
    """Check where the query starts and ends, and set the default start."""
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
    # As in Spark's Kafka source, a batch starts at the earliest offset and a stream at the latest.
    default = EARLIEST if named or use == "batch" else LATEST
    values["starting_offsets"] = values["starting_offsets"] or OffsetChoice(default)
    # A start by time is not known yet, so it cannot contradict an end by offset.
    start = OffsetChoice(EARLIEST) if common is not None else values["starting_offsets"]
    check_offsets(start, values["ending_offsets"], batch=use == "batch")
    check_timestamps(common, named, values["ending_timestamp"])
