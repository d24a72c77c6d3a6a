"""Every option of the source, in one table.

An option is checked on the driver when a DataFrame is made, before anything is connected to. What is
unknown, malformed or contradicts another option is an :class:`~gazette_spark.errors.OptionError` that
shows the value and the allowed form; nothing is clamped, and no default takes the place of a bad
value. Spark hands over names in lower case and values as text, so names match in any case.

The rules of values, the same for all options:

- booleans are ``true`` or ``false``, in any case, and nothing else;
- counts are decimal digits; sizes are digits with one of Spark's units, if any: ``b``, ``k``, ``m``,
  ``g`` (or ``kb``, ``mb``, ``gb``), powers of 1024: ``64m``. No sign, space, point or exponent;
- words (``earliest``, ``permissive``) match in any case.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal
from urllib.parse import urlsplit

from gazette_spark.errors import OffsetError, OptionError, ProtocolError
from gazette_spark.offsets import MAX_OFFSET, JournalOffsets, parse_json_object
from gazette_spark.protocol.journals import validate_journal_name
from gazette_spark.protocol.labels import PREFIX, format_selector, parse_selector, values_of

EARLIEST = -2
"""Stands for a journal's first available offset, as in Spark's Kafka source."""
LATEST = -1
"""Stands for a journal's write head, as in Spark's Kafka source."""

FORMAT_FRAMINGS = {"json": "lines", "csv": "csv", "protobuf": "fixed"}
"""The framing whose records each format reads; raw reads any."""

Use = Literal["stream", "batch"]

SPARK_OWN = frozenset({"checkpointlocation", "comment", "external", "location", "owner", "provider"})
"""Names Spark adds or users set for Spark on the same reader, a catalog's table properties among them."""

_UNITS = {"": 1, "b": 1} | {
    unit + b: 1024**power for power, unit in enumerate("kmg", start=1) for b in ("", "b")
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which journals a query reads: those with these names, or those a label selector matches."""

    option: str
    """Name of the option that says so."""
    names: tuple[str, ...] = ()
    """Each must exist."""
    selector: str = ""
    """Canonical text; new journals that match later are read too."""

    def __str__(self) -> str:
        return ", ".join(self.names) or self.selector


@dataclass(frozen=True, slots=True)
class OffsetChoice:
    """Where to start or end: for journals named, an offset; for the others ``default``.

    Offsets may be :data:`EARLIEST` or :data:`LATEST`.
    """

    default: int
    named: Mapping[str, int] = field(default_factory=dict)

    def of(self, journal: str) -> int:
        """Return the choice for one journal."""
        return self.named.get(journal, self.default)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options. Field names are the options' names in snake case."""

    broker_address: str
    selection: Selection
    framing: str | None
    format: str | None
    header: bool
    descriptor_file: str | None
    message_name: str | None
    mode: str
    column_name_of_corrupt_record: str
    rescued_data_column: str | None
    starting_offsets: OffsetChoice
    ending_offsets: OffsetChoice
    max_bytes_per_trigger: int | None
    min_partitions: int | None
    max_bytes_per_partition: int
    max_record_bytes: int
    fail_on_data_loss: bool
    fragment_root: str | None
    request_timeout_ms: int
    idle_timeout_ms: int
    connect_timeout_ms: int
    auth_token: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table."""

    name: str
    parse: Callable[[str, str], Any]
    """Takes the option's name and its text; raises OptionError."""
    default: str | None
    """As text; None where the option is absent unless given."""
    description: str
    use: Use | None = None
    """The only use the option has a meaning in; None for both."""

    @property
    def key(self) -> str:
        """The name in snake case."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])|\.", "_", self.name).lower()


def parse_options(
    given: Mapping[str, str], use: Use | None = None, *, environ: Mapping[str, str] = os.environ
) -> SourceOptions:
    """Parse what Spark hands over.

    Args:
        given: option names, in any case, and their texts.
        use: what the options are for; None while that is not known: then options and values that only
            fit one use are accepted.
        environ: where ``BROKER_ADDRESS`` is looked up when ``brokerAddress`` is not given.

    Raises:
        OptionError: naming the first option that is wrong, and the valid ones.
    """
    texts = {name.lower(): text for name, text in given.items() if not _is_spark_own(name.lower())}
    _check_known(texts)
    if not texts.get("brokeraddress") and "BROKER_ADDRESS" in environ:
        texts["brokeraddress"] = environ["BROKER_ADDRESS"]
    values: dict[str, Any] = {}
    for option in OPTIONS:
        text = texts.get(option.name.lower(), option.default)
        if option.use and use and option.use != use and option.name.lower() in texts:
            raise OptionError(option.name, f"a {use} query", f"to be used in a {option.use} query only")
        values[option.key] = None if text is None else option.parse(option.name, text)
    if values["broker_address"] is None:
        raise OptionError(
            "brokerAddress", "nothing", "http://host:port, or BROKER_ADDRESS in the environment"
        )
    values["selection"] = _one_selection(
        {name: values.pop(name) for name in ("journals", "selector", "path")}
    )
    values["starting_offsets"] = values["starting_offsets"] or _default_start(use)
    _check_framing(values["framing"], values["format"])
    _check_message(values)
    _check_edges(values["starting_offsets"], values["ending_offsets"], use)
    return SourceOptions(**values)


def _is_spark_own(name: str) -> bool:
    # Tables of a catalog repeat each option as "option.<name>".
    return name in SPARK_OWN or name.startswith("option.")


def _check_known(texts: Mapping[str, str]) -> None:
    known = {option.name.lower(): option.name for option in OPTIONS}
    if "paths" in texts:
        raise OptionError("path", "several paths", "one path in load(); name more with option 'journals'")
    for name in sorted(texts.keys() - known.keys()):
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"{known[nearest[0]]!r}? Valid options are " if nearest else "one of "
        raise OptionError(name, "an unknown option", hint + ", ".join(known.values()))


def _one_selection(given: Mapping[str, Selection | None]) -> Selection:
    found = {name: selection for name, selection in given.items() if selection is not None}
    if len(found) == 1:
        return next(iter(found.values()))
    ways = "exactly one of option 'journals', option 'selector', load('a/journal') and load('a/prefix/')"
    raise OptionError(" and ".join(found) or "journals", "more than one" if found else "nothing", ways)


def _default_start(use: Use | None) -> OffsetChoice:
    return OffsetChoice(EARLIEST if use == "batch" else LATEST)


def _check_edges(start: OffsetChoice, end: OffsetChoice, use: Use | None) -> None:
    if use == "batch" and LATEST in (start.default, *start.named.values()):
        raise OptionError(
            "startingOffsets", "latest", "earliest or offsets: a batch that starts there is empty"
        )
    if EARLIEST in (end.default, *end.named.values()):
        raise OptionError("endingOffsets", "earliest", "latest or offsets: a batch to there is empty")
    for journal, last in end.named.items():
        if 0 <= last < start.of(journal):
            problem = f"{last} for journal {journal!r}, before its startingOffsets"
            raise OptionError("endingOffsets", problem, f"at least {start.of(journal)}")


def _check_message(values: Mapping[str, Any]) -> None:
    """Check the options of one format only."""
    names = {"descriptor_file": "descriptorFile", "message_name": "messageName"}
    for key, name in names.items():
        if values[key] is None and (values["format"] == "protobuf" or any(values[other] for other in names)):
            raise OptionError(name, "nothing", "descriptorFile and messageName, both, for format=protobuf")
        if values[key] is not None and values["format"] not in (None, "protobuf"):
            raise OptionError(name, f"format={values['format']}", "to be used with format=protobuf only")
    if values["header"] and values["format"] not in (None, "csv"):
        raise OptionError("header", f"format={values['format']}", "to be used with format=csv only")


def _check_framing(framing: str | None, form: str | None) -> None:
    holds = FORMAT_FRAMINGS.get(form or "")
    if framing and holds and framing != holds:
        raise OptionError("framing", f"{framing}, and format {form}", f"{holds}, which format {form} reads")


def _parse_address(name: str, text: str) -> str:
    expected = "http://host:port"
    # Looked at before anything is quoted: what stands before an @ may be a password.
    shown = re.sub(r"[^/\"]*@", "***@", _shown(text))
    if len(text) > 1024 or not text.isascii() or not text.isprintable() or " " in text or "," in text:
        raise OptionError(name, shown, f"one address {expected}")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise OptionError(name, shown, f"{expected} with a port from 1 to 65535") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port:
        raise OptionError(name, shown, expected)
    if "@" in parts.netloc or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise OptionError(name, shown, f"{expected} with no user, path or query")
    return f"{parts.scheme}://{parts.netloc}"


def _parse_journals(name: str, text: str) -> Selection:
    names = tuple(part.strip() for part in text.split(","))
    for index, journal in enumerate(names, start=1):
        _check_journal(name, journal, f"element {index}: ")
        if journal in names[: index - 1]:
            raise OptionError(name, f"element {index}: {_shown(journal)} a second time", "each journal once")
    return Selection(name, names=names)


def _check_journal(name: str, journal: str, where: str = "") -> None:
    try:
        validate_journal_name(journal)
    except ProtocolError as error:
        raise OptionError(name, f"{where}{_shown(journal)} ({error.problem})", "a journal's name") from None


def _parse_selector(name: str, text: str) -> Selection:
    if not text.strip():
        raise OptionError(name, _shown(text), "a label selector such as app=clicks,region in (eu,us)")
    try:
        selector = parse_selector(text)
    except ProtocolError as error:
        raise OptionError(name, f"{_shown(text)} ({error.problem})", "a label selector") from None
    for value in values_of(selector.include, PREFIX) + values_of(selector.exclude, PREFIX):
        if not value.endswith("/"):
            raise OptionError(name, _shown(text), f"a prefix that ends in '/': prefix={value}/")
    return Selection(name, selector=format_selector(selector))


def _parse_path(name: str, text: str) -> Selection:
    if not text.endswith("/"):
        _check_journal(name, text)
        return Selection(name, names=(text,))
    # A prefix may be shorter than a journal's name; the rest of the rules are the same.
    _check_journal(name, f"{text}some-journal")
    return _parse_selector(name, f"prefix={text}")


def _parse_start(name: str, text: str) -> OffsetChoice:
    return _parse_edge(name, text, others=EARLIEST)


def _parse_end(name: str, text: str) -> OffsetChoice:
    return _parse_edge(name, text, others=LATEST)


def _parse_edge(name: str, text: str, *, others: int) -> OffsetChoice:
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return OffsetChoice(words[text.lower()])
    try:
        value = parse_json_object(text)
        named = JournalOffsets.from_dict(value).read_through if "format_version" in value else value
    except OffsetError as error:
        problem = f" ({error.problem.split('; expected')[0]})" if text.startswith("{") else ""
        expected = 'earliest, latest, or JSON such as {"a/journal":1024}'
        raise OptionError(name, _shown(text) + problem, expected) from None
    for journal, offset in named.items():
        _check_journal(name, journal)
        if type(offset) is not int or not EARLIEST <= offset <= MAX_OFFSET:
            got = f"{_shown(offset)} for journal {journal!r}"
            raise OptionError(name, got, "an offset from 0 to 2^63-1, -2 for earliest or -1 for latest")
    return OffsetChoice(others, dict(named))


def _word(*words: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        for word in words:
            if text.lower() == word.lower():
                return word
        raise OptionError(name, _shown(text), " or ".join(words))

    return parse


def _parse_bool(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise OptionError(name, _shown(text), "true or false")
    return text.lower() == "true"


def _integer(low: int, high: int, units: Mapping[str, int], unit_text: str) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        found = re.fullmatch(r"([0-9]{1,19})([a-z]{0,2})", text.lower())
        if found and found[2] in units and low <= (value := int(found[1]) * units[found[2]]) <= high:
            return value
        raise OptionError(name, _shown(text), f"an integer from {low} to {high}{unit_text}")

    return parse


def _count(high: int) -> Callable[[str, str], int]:
    return _integer(1, high, {"": 1}, "")


def _size(high: int = MAX_OFFSET) -> Callable[[str, str], int]:
    return _integer(1, high, _UNITS, " bytes, or with a unit such as 64m")


def _parse_directory(name: str, text: str) -> str:
    path = PurePosixPath(text)
    if not path.is_absolute() or ".." in path.parts or len(path.parts) == 1 or "\0" in text:
        raise OptionError(name, _shown(text), "an absolute path of a directory below /, without '..'")
    return str(path)


def _parse_file(name: str, text: str) -> str:
    if not text or "\0" in text:
        raise OptionError(name, _shown(text), "a file's path")
    return text


def _parse_column(name: str, text: str) -> str:
    if not text or text != text.strip():
        raise OptionError(name, _shown(text), "a column's name")
    return text


def _parse_token(name: str, text: str) -> str:
    # The value is never shown, not even in part.
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise OptionError(name, "a value that is no token (not shown)", "printable ASCII without spaces")
    return text


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:117]}..."


_DAY_MS = 24 * 60 * 60 * 1000

OPTIONS: tuple[Option, ...] = (
    Option("brokerAddress", _parse_address, None, "Broker to ask first; BROKER_ADDRESS if not given."),
    Option("journals", _parse_journals, None, "Names of journals, comma separated; each must exist."),
    Option("selector", _parse_selector, None, "Label selector; journals that match it later are read too."),
    Option("path", _parse_path, None, "What load() is given: a journal, or a prefix that ends in '/'."),
    Option(
        "framing",
        _word("lines", "fixed", "csv", "none"),
        None,
        "How bytes are cut into records: lines end in a newline; fixed: frames of a magic word, a length and "
        "as many bytes; csv: lines whose quoted fields may hold newlines; none: whole bytes, in chunks. If "
        "not given, the format and the journal's content-type label decide, and lines if it has none.",
    ),
    Option(
        "format",
        _word("raw", "json", "csv", "protobuf"),
        None,
        "raw: columns journal, offset, value, or those of them the schema names. json, csv, protobuf: the "
        "columns of the schema. All of them fill in _journal, _offset, _end_offset and _labels when the "
        "schema names them. If not given, raw for raw's columns or no schema, else what the framing holds: "
        "json in lines, csv in csv, protobuf in fixed.",
    ),
    Option(
        "header",
        _parse_bool,
        "false",
        "Whether journals of format=csv begin with a record of the columns' names. Such records are left "
        "out wherever they stand, as each writer may begin with one.",
    ),
    Option(
        "descriptorFile",
        _parse_file,
        None,
        "File on the driver with the message's type, as protoc --include_imports --descriptor_set_out "
        "writes it; for format=protobuf.",
    ),
    Option("messageName", _parse_column, None, "Full name of the message's type; for format=protobuf."),
    Option(
        "mode",
        _word("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
        "PERMISSIVE",
        "Malformed records, as in Spark's readers: null for what does not fit, no row, or an error.",
    ),
    Option(
        "columnNameOfCorruptRecord",
        _parse_column,
        "_corrupt_record",
        "String column that takes a malformed record's text, when the schema names it.",
    ),
    Option(
        "rescuedDataColumn",
        _parse_column,
        None,
        "String column, which the schema has to name, for what did not fit the schema, under format=json: a "
        "JSON object of those fields with _journal and _offset. Such records are not malformed then.",
    ),
    Option(
        "startingOffsets",
        _parse_start,
        None,
        "Where a new query starts: earliest, latest, or JSON of offsets by journal (-2 earliest, -1 "
        "latest); journals not named start at earliest. Default: latest (stream), earliest (batch).",
    ),
    Option(
        "endingOffsets",
        _parse_end,
        "latest",
        "Where a batch query ends: latest, or JSON of offsets by journal; journals not named end at "
        "latest. A record that is cut there is left out.",
        use="batch",
    ),
    Option(
        "maxBytesPerTrigger",
        _size(),
        None,
        "Soft limit on a micro-batch, shared by backlog; exceeded by one record per journal at most.",
        use="stream",
    ),
    Option("minPartitions", _count(10_000), None, "Cut a batch into at least that many tasks, if it can."),
    Option("maxBytesPerPartition", _size(), "128m", "Cut ranges larger than that into several tasks."),
    Option(
        "maxRecordBytes",
        _size(2**31 - 1),
        "16m",
        "A longer record ends the query with an error, whatever the mode.",
    ),
    Option(
        "failOnDataLoss",
        _parse_bool,
        "true",
        "Whether bytes that can no longer be read, or a deleted journal, end the query; otherwise they "
        "are skipped with a warning.",
    ),
    Option(
        "fragmentRoot",
        _parse_directory,
        None,
        "Directory under which workers find file:// stores; without it those are read through brokers.",
    ),
    Option("requestTimeoutMs", _count(_DAY_MS), "60000", "Time a request may go without any progress."),
    Option("idleTimeoutMs", _count(_DAY_MS), "30000", "Time after which a silent connection is given up."),
    Option("connectTimeoutMs", _count(_DAY_MS), "10000", "Time to connect to a broker."),
    Option("auth.token", _parse_token, None, "Token sent with each request."),
)
"""All options, in the order in which they are checked and shown."""
