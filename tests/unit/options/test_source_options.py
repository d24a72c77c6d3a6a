"""Every bad option is refused on the driver, with its value and the valid ones."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from gazette_spark._options.query_range import EARLIEST, LATEST, OffsetChoice
from gazette_spark._options.source import OPTIONS, SourceOptions, parse_options
from gazette_spark._options.table import Use
from gazette_spark._options.values import LONGEST_RECORD_BYTES
from gazette_spark.errors import OptionError

ADDRESS = "http://broker.test:8080"


def parse(use: Use | None = None, environ: dict[str, str] | None = None, /, **given: str) -> SourceOptions:
    """Parse options as Spark passes them: lower-case names. A broker and a journal are added if missing."""
    texts = {name.lower(): text for name, text in given.items()}
    texts.setdefault("brokeraddress", ADDRESS)
    if not texts.keys() & {"journals", "journalspattern", "selector", "path"}:
        texts["path"] = "events/clicks"
    return parse_options(texts, use, environ=environ or {})


def refusal(use: Use | None = None, /, **given: str) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse(use, **given)
    return caught.value


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_described(option: Any) -> None:
    """The options table of the documentation is generated from these descriptions."""
    assert option.description.endswith(".")
    assert len(option.description) > 20


def test_defaults() -> None:
    options = parse("stream")
    assert options.selection.names == ("events/clicks",)
    assert (options.format, options.mode, options.framing) == (None, "PERMISSIVE", None)
    assert options.fail_on_data_loss
    assert options.max_bytes_per_trigger is None
    assert (options.max_bytes_per_partition, options.max_record_bytes) == (128 << 20, 16 << 20)


@pytest.mark.parametrize(("use", "start"), [("stream", LATEST), ("batch", EARLIEST)])
def test_a_stream_starts_at_the_latest_and_a_batch_at_the_earliest(use: Use, start: int) -> None:
    """As in Spark's Kafka source."""
    assert parse(use).starting_offsets == OffsetChoice(start)


REFUSED_TEXTS: list[tuple[tuple[str, ...], str, tuple[str, ...]]] = [
    (
        ("brokerAddress",),
        "http://host:port",
        (
            *("broker:8080", "ftp://broker:8080", "unix:///run/broker", "http://", "http://:8080"),
            *("http://broker", "http://broker:0", "http://broker:70000", "http://broker:web"),
            *("http://broker:80/path", "http://broker:80?x=1", "http://a:80,http://b:80"),
            *("http://größe:80", "http://broker:80\n", "http://" + "b" * 10_000 + ":80"),
        ),
    ),
    (
        ("selector",),
        "",
        ("", " ", "=bar", "foo in ()", "foo in (a,", "foo ~ bar", "f=bar", "prefix=events", "a" * 65 + "=x"),
    ),
    (
        ("startingOffsets", "endingOffsets"),
        "",
        (
            *("", "now", "12", "[]", '{"events/a":5', '{"events/a":-3}', '{"events/a":1.0}'),
            *('{"events/a":"1"}', '{"events/a":true}', '{"events/a":null}'),
            *('{"events/a":9223372036854775808}', '{"events/a":1,"events/a":2}', '{"../a":1}'),
            '{"format_version":1,"journals":{"events/a":-1}}',
            '{"format_version":9,"journals":{}}',
        ),
    ),
    (
        ("startingTimestamp", "endingTimestamp"),
        "milliseconds since 1970 UTC",
        (
            *("", "now", "-1", "+1", "1.0", "1e12", " 1", "2026-01-01", "\u0661"),
            # Microseconds, which would lie past the year 3000.
            *("32503680000001", "1700000000000000"),
        ),
    ),
    (
        ("maxTriggerDelay",),
        "a time from 1ms to 7d, such as 90s, 15m or 1h",
        ("", "0", "0s", "-1s", "1.5h", "10x", "15 m", "8d", "1us", "9999999999d"),
    ),
    (
        ("maxBytesPerTrigger", "minBytesPerTrigger", "maxBytesPerPartition", "maxRecordBytes"),
        "a size from 1 byte to",
        (
            *("", "0", "-1", "+1", "1e6", "1.5m", "10 mb", "10mib", "m", "9223372036854775808", "1_000"),
            "9g" * 9,
        ),
    ),
    (
        (
            *("minPartitions", "maxFragmentsPerTrigger", "maxRecordsPerTrigger"),
            *("requestTimeoutMs", "idleTimeoutMs", "connectTimeoutMs"),
        ),
        "an integer from 1 to",
        ("", "0", "-1", "1.0", "1k", "1000000000", " 1", "\u0661"),
    ),
    (("failOnDataLoss",), "true or false", ("yes", "1", "", " true", "t")),
    (("framing",), "lines or fixed or csv or none", ("whatever", "")),
    (("format",), "raw or json or csv or protobuf", ("whatever", "")),
    (("mode",), "PERMISSIVE or DROPMALFORMED or FAILFAST", ("whatever", "")),
    (("isolationLevel",), "read_uncommitted or read_committed", ("serializable",)),
    # With the root directory, a store's name could reach every file.
    (("fragmentRoot",), "an absolute path of a directory", ("", "/", "relative/path", "/a/../b", "/a\0")),
]
"""Options with the same rule, the expectation in their error, and texts that break the rule."""


@pytest.mark.parametrize(
    ("option", "expected", "text"),
    [
        pytest.param(option, expected, text, id=f"{option}-{text[:20]!r}")
        for options, expected, texts in REFUSED_TEXTS
        for option in options
        for text in texts
    ],
)
def test_a_bad_text_is_refused(option: str, expected: str, text: str) -> None:
    error = refusal(**{option: text})
    assert (error.option, expected in error.expected) == (option, True)
    assert len(str(error)) < 400


COMMITTED = {"isolationLevel": "READ_COMMITTED"}

CONTRADICTIONS: list[tuple[Use | None, dict[str, str], str, str]] = [
    # Selections.
    (None, {"journals": "events/a", "selector": "app=x"}, "journals and selector", "exactly one of"),
    (None, {"journals": "events/a", "path": "events/"}, "journals and path", "exactly one of"),
    (None, {"selector": "app=x", "path": "events/"}, "selector and path", "exactly one of"),
    (
        None,
        {"journals": "events/a", "journalsPattern": "events/a"},
        "journals and journalsPattern",
        "exactly one of",
    ),
    # Batches that would be empty, go backwards, or are limited by a trigger that they do not have.
    ("batch", {"startingOffsets": "latest"}, "startingOffsets", "earliest or offsets"),
    ("batch", {"startingOffsets": '{"events/a":-1}'}, "startingOffsets", "earliest or offsets"),
    ("batch", {"endingOffsets": "earliest"}, "endingOffsets", "latest or offsets"),
    ("batch", {"endingOffsets": '{"events/a":-2}'}, "endingOffsets", "latest or offsets"),
    (
        "batch",
        {"startingOffsets": '{"events/a":9}', "endingOffsets": '{"events/a":8}'},
        "endingOffsets",
        "at least 9",
    ),
    ("batch", {"startingTimestamp": "9", "endingTimestamp": "8"}, "endingTimestamp", "at least 9"),
    (
        "batch",
        {"startingOffsetsByTimestamp": '{"events/a":9}', "endingTimestamp": "8"},
        "endingTimestamp",
        "at least 9",
    ),
    ("batch", {"maxBytesPerTrigger": "1m"}, "maxBytesPerTrigger", "in a stream query only"),
    ("batch", {"minBytesPerTrigger": "1m"}, "minBytesPerTrigger", "in a stream query only"),
    ("batch", {"maxFragmentsPerTrigger": "1"}, "maxFragmentsPerTrigger", "in a stream query only"),
    ("batch", {"maxRecordsPerTrigger": "1"}, "maxRecordsPerTrigger", "in a stream query only"),
    ("batch", {"maxTriggerDelay": "1m"}, "maxTriggerDelay", "in a stream query only"),
    # A stream has no end.
    ("stream", {"endingOffsets": "latest"}, "endingOffsets", "in a batch query only"),
    ("stream", {"endingTimestamp": "1"}, "endingTimestamp", "in a batch query only"),
    # A start or an end may be given only once. Kafka's source silently prefers one option.
    (
        "batch",
        {"startingTimestamp": "1", "startingOffsets": "earliest"},
        "startingOffsets and startingTimestamp",
        "one of them",
    ),
    (
        "batch",
        {"startingOffsetsByTimestamp": '{"events/a":9}', "startingOffsets": "earliest"},
        "startingOffsets and startingOffsetsByTimestamp",
        "one of them",
    ),
    (
        "batch",
        {"endingTimestamp": "1", "endingOffsets": "latest"},
        "endingOffsets and endingTimestamp",
        "one of them",
    ),
    (
        "batch",
        {"startingOffsetsByTimestampStrategy": "latest"},
        "startingOffsetsByTimestampStrategy",
        "to be used with startingTimestamp or startingOffsetsByTimestamp only",
    ),
    (
        "batch",
        {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "earliest"},
        "startingOffsetsByTimestampStrategy",
        "error or latest",
    ),
    # A delay without a minimum, a minimum above the maximum, and a record limit without records.
    ("stream", {"maxTriggerDelay": "5m"}, "maxTriggerDelay", "with minBytesPerTrigger only"),
    (
        "stream",
        {"minBytesPerTrigger": "2k", "maxBytesPerTrigger": "2047"},
        "minBytesPerTrigger",
        "at most maxBytesPerTrigger, 2047 bytes",
    ),
    (
        "stream",
        {"framing": "none", "maxRecordsPerTrigger": "5"},
        "maxRecordsPerTrigger",
        "maxBytesPerTrigger",
    ),
    # Options of one format or of inference, which others would silently ignore.
    (None, {"framing": "none", "format": "json"}, "framing", "lines, which format json reads"),
    (None, {"format": "protobuf"}, "descriptorFile", "both descriptorFile and messageName"),
    (None, {"messageName": "a.B"}, "descriptorFile", "both descriptorFile and messageName"),
    (None, {"format": "protobuf", "descriptorFile": "/d"}, "messageName", "messageName for format=protobuf"),
    (None, {"descriptorFile": "", "messageName": "B"}, "descriptorFile", "a file's path"),
    (
        None,
        {"format": "json", "descriptorFile": "/d", "messageName": "B"},
        "descriptorFile",
        "with format=protobuf only",
    ),
    (None, {"format": "json", "header": "true"}, "header", "with format=csv or framing=csv only"),
    (None, {"sep": "'", "quote": "'"}, "quote", "another character"),
    (None, {"schemaHints": "id BIGINT"}, "schemaHints", "with inferSchema=true only"),
    (None, {"inferredSchemaLocation": "/data"}, "inferredSchemaLocation", "with inferSchema=true only"),
    # Committed messages.
    ("stream", COMMITTED, "stateLocation", "a directory that all tasks can read and write"),
    ("batch", COMMITTED | {"stateLocation": "/mnt"}, "stateLocation", "in a stream query, or with"),
    ("batch", COMMITTED | {"messagesSince": "{}"}, "stateLocation", "in a stream query, or with"),
    ("stream", COMMITTED | {"stateLocation": "a/b"}, "stateLocation", "an absolute path, or a URL"),
    ("stream", COMMITTED | {"stateLocation": "/a/../b"}, "stateLocation", "an absolute path, or a URL"),
    ("stream", {"stateLocation": "/mnt"}, "stateLocation", "with isolationLevel=read_committed only"),
    ("batch", {"uuidPath": "/UUID"}, "uuidPath", "with isolationLevel=read_committed only"),
    ("batch", {"includeAcks": "true"}, "includeAcks", "with isolationLevel=read_committed only"),
    ("batch", COMMITTED | {"framing": "none"}, "framing", "a framing that has messages"),
    ("batch", COMMITTED | {"readGaps": "true"}, "readGaps", "one of them"),
]
"""Use, contradictory options, the option that the error names, and the expectation in the error."""


@pytest.mark.parametrize(
    ("use", "given", "option", "expected"),
    CONTRADICTIONS,
    ids=[",".join(given) + f"-{number}" for number, (_, given, _, _) in enumerate(CONTRADICTIONS)],
)
def test_options_that_do_not_go_together_are_refused(
    use: Use | None, given: dict[str, str], option: str, expected: str
) -> None:
    error = refusal(use, **given)
    assert (error.option, expected in error.expected) == (option, True)


def test_options_that_go_together_are_accepted() -> None:
    assert parse(framing="none", format="raw").framing == "none"
    assert parse(inferSchema="true", schemaHints="id BIGINT", inferredSchemaLocation="/data").infer_schema
    assert parse(format="json", header="false").format == "json"


def test_spark_own_options_are_left_alone() -> None:
    """Spark adds options for a catalog table, and users set some for Spark."""
    given = {"checkpointLocation": "/tmp/x", "owner": "root", "provider": "gazette", "option.x": "1"}
    assert parse(**given) == parse()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        pytest.param("journal", "'journals'?", id="singular"),
        pytest.param("maxbytespertriger", "'maxBytesPerTrigger'?", id="typo"),
        pytest.param("starting_offsets", "'startingOffsets'?", id="snake_case"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_right_one(name: str, hint: str) -> None:
    assert str(refusal(**{name: "x"})) == f"option '{name}': got an unknown option; expected {hint}"


def test_an_unknown_option_lists_the_valid_ones() -> None:
    """An option of another source resembles none of ours, so the error lists all."""
    text = str(refusal(subscribe="x"))
    assert all(option.name in text for option in OPTIONS)


def test_no_selection_is_refused() -> None:
    with pytest.raises(OptionError, match=r"got nothing; expected exactly one of .*load\('a/prefix/'\)"):
        parse_options({"brokerAddress": ADDRESS}, environ={})


def test_several_paths_are_refused() -> None:
    """load() passes a list to the source as one JSON text."""
    assert "option 'journals'" in str(refusal(paths='["events/a","events/b"]'))


def test_a_prefix_is_a_selector() -> None:
    """Journals that are created later under the prefix are found too."""
    assert parse(path="events/").selection.selector == "prefix=events/"
    assert parse(path="events/").selection.names == ()


@pytest.mark.parametrize(
    ("pattern", "selector"),
    [
        pytest.param("events/a/[a-z]+", "prefix=events/a/", id="two directories"),
        pytest.param("events/.*", "prefix=events/", id="all of a directory"),
        pytest.param("events/clicks?", "prefix=events/", id="a quantifier behind the directory"),
        pytest.param("events/a/*b", "prefix=events/", id="a quantifier on a slash"),
        pytest.param("events/?a", "", id="a quantifier on the only slash"),
        pytest.param("events/a|clicks/b", "", id="another directory"),
        pytest.param("(?i)EVENTS/.*", "", id="any case"),
        pytest.param("ev.*", "", id="no directory"),
    ],
)
def test_a_pattern_lists_the_directory_that_it_names(pattern: str, selector: str) -> None:
    """Brokers list one directory if every match must lie in it, and otherwise all journals."""
    selection = parse(journalsPattern=pattern).selection
    assert (selection.selector, str(selection)) == (selector, pattern)


def test_a_pattern_matches_whole_names() -> None:
    selection = parse(journalsPattern="events/[a-z]+").selection
    assert selection.matches("events/clicks")
    assert not selection.matches("events/clicks/2")
    assert not selection.matches("old/events/clicks")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", '""', id="empty"),
        pytest.param(" events/a", '" events/a"', id="blank"),
        pytest.param("events/(a", "unterminated subpattern at position 7", id="open group"),
        pytest.param("*", "nothing to repeat", id="a glob"),
        pytest.param("a{99999999999}", "repetition", id="too many"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused(text: str, problem: str) -> None:
    error = refusal(journalsPattern=text)
    assert error.option == "journalsPattern"
    assert problem in error.got
    assert "such as shop/orders-[0-9]+" in error.expected


def test_names_keep_their_order() -> None:
    assert parse(journals="events/b, events/a").selection.names == ("events/b", "events/a")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "element 1", id="empty"),
        pytest.param("events/a,,events/b", "element 2", id="empty_element"),
        pytest.param("events/a,", "element 2", id="trailing_comma"),
        pytest.param("abc", "abc", id="three_characters"),
        pytest.param("x" * 513, "element 1", id="too_long"),
        pytest.param("/events/a", "/events/a", id="leading_slash"),
        pytest.param("events/a/", "events/a/", id="trailing_slash"),
        pytest.param("events//a", "events//a", id="empty_part"),
        pytest.param("events/./a", "events/./a", id="dot"),
        pytest.param("events/../a", "events/../a", id="dot_dot"),
        pytest.param("../events", "../events", id="leading_dot_dot"),
        pytest.param("events a", "events a", id="blank"),
        pytest.param("events/#1", "#", id="hash"),
        pytest.param('events/"a"', "events", id="quote"),
        pytest.param("events/\n", "element 1", id="newline"),
        pytest.param("events/\0", "element 1", id="nul"),
        pytest.param("events/a;gen", ";", id="metadata"),
        pytest.param("events/a,events/b,events/a", "element 3", id="duplicate"),
    ],
)
def test_a_bad_name_is_shown_with_its_place(text: str, problem: str) -> None:
    error = refusal(journals=text)
    assert error.option == "journals"
    assert problem in error.got


def test_a_selector_is_kept_in_its_canonical_form() -> None:
    """Two spellings of one selector must compare as equal."""
    assert parse(selector="app=a, region in (eu)").selection == parse(selector="app==a,region=eu").selection


@pytest.mark.parametrize(
    "text", ["http://me:hunter2@broker:80", "me:hunter2@broker:80", "http://hunter2@b:x"]
)
def test_a_password_in_an_address_is_not_shown(text: str) -> None:
    """Spark shows an error's text in full."""
    assert "hunter2" not in str(refusal(brokerAddress=text))


def test_the_address_comes_from_the_environment_if_not_given() -> None:
    """Gazette's own tools use the same variable."""
    found = parse_options({"path": "events/a"}, environ={"BROKER_ADDRESS": "http://other.test:1"})
    assert found.broker_address == "http://other.test:1"
    with pytest.raises(OptionError, match="BROKER_ADDRESS in the environment"):
        parse_options({"path": "events/a"}, environ={})


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        pytest.param("earliest", OffsetChoice(EARLIEST), id="earliest"),
        pytest.param("LATEST", OffsetChoice(LATEST), id="any_case"),
        pytest.param('{"events/a":5}', OffsetChoice(EARLIEST, {"events/a": 5}), id="flat"),
        pytest.param(
            '{"events/a":-1,"events/b":-2}', OffsetChoice(-2, {"events/a": -1, "events/b": -2}), id="edges"
        ),
        pytest.param(
            '{"format_version":1,"journals":{"events/a":5},"position":"pinned"}',
            OffsetChoice(EARLIEST, {"events/a": 5}),
            id="position",
        ),
    ],
)
def test_starting_offsets(text: str, choice: OffsetChoice) -> None:
    assert parse("stream", startingOffsets=text).starting_offsets == choice


def test_resume_offsets() -> None:
    choice = parse("stream", resumeOffsets='{"events/a":5}').resume_offsets
    assert choice is not None
    assert choice.named == {"events/a": 5}
    assert parse("stream").resume_offsets is None
    for text in ("latest", "earliest", '{"events/a":-1}', "5"):
        assert refusal("stream", resumeOffsets=text).option == "resumeOffsets"
    assert refusal("batch", resumeOffsets='{"events/a":5}').option == "resumeOffsets"


def test_a_query_starts_or_ends_by_time() -> None:
    """Times are in milliseconds, as in Spark's Kafka source."""
    options = parse("batch", startingTimestamp="0", endingTimestamp="1700000000000")
    assert (options.starting_timestamp, options.ending_timestamp) == (0, 1_700_000_000_000)
    assert options.starting_offsets_by_timestamp_strategy == "error"
    given = {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "Latest"}
    assert parse("stream", **given).starting_offsets_by_timestamp_strategy == "latest"
    assert parse("batch", startingTimestamp="5", endingTimestamp="5").ending_timestamp == 5


def test_a_query_starts_by_time_in_each_journal() -> None:
    text = '{"events/a":5,"events/b":0}'
    options = parse("stream", startingOffsetsByTimestamp=text)
    assert [options.timestamp_of(f"events/{name}") for name in "abc"] == [5, 0, None]
    assert options.starting_offsets == OffsetChoice(EARLIEST)
    options = parse("batch", startingOffsetsByTimestamp=text, startingTimestamp="7", endingTimestamp="8")
    assert [options.timestamp_of(f"events/{name}") for name in "abc"] == [5, 0, 7]
    given = {"startingOffsetsByTimestamp": text, "startingOffsetsByTimestampStrategy": "latest"}
    assert parse("stream", **given).starting_offsets_by_timestamp_strategy == "latest"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", '""', id="empty"),
        pytest.param("5", '"5"', id="a number"),
        pytest.param("{}", '"{}"', id="no journal"),
        pytest.param('{"events/a":5', "events/a", id="cut"),
        pytest.param('{"events/a":-1}', "-1 for journal 'events/a'", id="latest"),
        pytest.param('{"events/a":"5"}', "\"5\" for journal 'events/a'", id="text"),
        pytest.param('{"events/a":true}', "true for journal 'events/a'", id="boolean"),
        pytest.param('{"events/a":1700000000000000}', "1700000000000000 for journal", id="microseconds"),
        pytest.param('{"events/a":{"0":5}}', "for journal 'events/a'", id="partitions of Kafka's"),
        pytest.param('{"../a":5}', "../a", id="no journal's name"),
        pytest.param('{"events/a":5,"events/a":6}', "events/a", id="twice"),
    ],
)
def test_bad_times_by_journal_are_refused(text: str, problem: str) -> None:
    error = refusal("batch", startingOffsetsByTimestamp=text)
    assert error.option == "startingOffsetsByTimestamp"
    assert problem in error.got


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1", 0.001), ("250ms", 0.25), ("90s", 90), ("15m", 900), ("2MIN", 120), ("1h", 3600), ("7d", 604800)],
)
def test_a_delay_takes_units(text: str, seconds: float) -> None:
    """The units are Spark's. A number without a unit is in milliseconds, as in Spark's Kafka source."""
    options = parse("stream", minBytesPerTrigger="1", maxTriggerDelay=text)
    assert options.max_trigger_delay.total_seconds() == seconds
    assert parse("stream", minBytesPerTrigger="1").max_trigger_delay.total_seconds() == 900


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("10b", 10), ("2k", 2048), ("2KB", 2048), ("10mb", 10 << 20), ("3G", 3 << 30)],
)
def test_sizes_take_units(text: str, size: int) -> None:
    """The units are Spark's: powers of 1024."""
    assert parse("stream", maxBytesPerTrigger=text).max_bytes_per_trigger == size


def test_a_limit_on_records_that_arrow_cannot_count_is_refused() -> None:
    """Arrow offsets within a block have 32 bits, and a block has up to two records of that length."""
    for text in ("536870913", "513m", "1g", "2147483647"):
        error = refusal(maxRecordBytes=text)
        assert (error.option, error.expected) == (
            "maxRecordBytes",
            "a size from 1 byte to 512m, such as 64m",
        )
    assert parse(maxRecordBytes="512m").max_record_bytes == LONGEST_RECORD_BYTES == 1 << 29


@pytest.mark.parametrize("text", ["", "to\nken", "to\rken", "tökén", "to ken"])
def test_a_bad_token_is_refused_without_being_shown(text: str) -> None:
    """A line break in a token would inject another header."""
    error = refusal(**{"auth.token": text})
    assert error.option == "auth.token"
    assert not text or text not in str(error)


def test_a_token_is_not_in_the_repr() -> None:
    """Options are logged, but tokens must not be."""
    options = parse(**{"auth.token": "s3cret-token"})
    assert options.security.token == "s3cret-token"
    assert "s3cret" not in repr(options)


def test_parsed_options_survive_pickling() -> None:
    """The options are pickled with the reader."""
    options = parse("batch", selector="app=a", startingOffsets='{"events/a":1}')
    assert pickle.loads(pickle.dumps(options)) == options


STORE = {"fragmentStore": "file:///var/store", "framing": "lines", "path": "events/"}


def refused_store(use: Use = "batch", **options: str) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse_options(STORE | options, use, environ={})
    return caught.value


def test_a_store_takes_the_place_of_brokers() -> None:
    found = parse_options(STORE, "batch", environ={"BROKER_ADDRESS": "http://other.test:1"})
    assert (found.fragment_store, found.broker_address) == ("file:///var/store", "")
    assert found.origin == "file:///var/store"
    assert (
        parse_options(STORE | {"fragmentStore": "file:///a%20b/"}, environ={}).fragment_store
        == "file:///a%20b"
    )
    bucket = parse_options(STORE | {"fragmentStore": "s3://b/p?region=eu"}, environ={})
    assert (bucket.fragment_store, bucket.origin) == ("s3://b/p?region=eu", "s3://b/p")
    assert "region" not in repr(bucket)


@pytest.mark.parametrize(
    "url",
    [
        "file://",
        "file:///",
        "file://host/store",
        "file:store",
        "file:///a/../b",
        "file:///a/%2e%2e/b",
        "file:///a?find=x",
        "/var/store",
        "http://host/store",
        "s3://",
        "s3://key:s3cret@bucket/path",
        "s3://s3cret@bucket/path",
        "gs://s3cret@bucket/path",
        "abfs://c:s3cret@account/path",
        "abfs://c@account/path?account_key=s3cret",
        "s3://bucket/a?region",
        "s3://bucket/a#b",
        "",
    ],
)
def test_a_bad_store_is_refused(url: str) -> None:
    error = refused_store(fragmentStore=url)
    assert error.option == "fragmentStore"
    assert "s3cret" not in str(error)
    assert "from the environment" in str(error)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        pytest.param({"brokerAddress": ADDRESS}, "'fragmentStore and brokerAddress': got both", id="broker"),
        pytest.param({"fragmentRoot": "/data"}, "'fragmentStore and fragmentRoot': got both", id="root"),
        pytest.param({"auth.token": "s3cret"}, "'fragmentStore and auth.token': got both", id="token"),
        pytest.param(
            {"path": "", "selector": "app=shop"}, "'selector': got fragmentStore: .* no labels", id="labels"
        ),
        pytest.param({"framing": ""}, "'framing'", id="framing"),
        pytest.param({"fragmentPostfixLevels": "-1"}, "from 0 to 32", id="levels"),
    ],
)
def test_what_a_store_cannot_do(options: dict[str, str], problem: str) -> None:
    given = {name: text for name, text in (STORE | options).items() if text}
    with pytest.raises(OptionError, match=problem):
        parse_options(given, "batch", environ={})


def test_a_store_is_for_batches() -> None:
    """A stream needs a broker. The depth of directories is meaningless without a store."""
    assert "batch query only" in str(refused_store("stream"))
    assert refusal(fragmentPostfixLevels="1").expected == "to be used with fragmentStore only"


def test_committed_messages() -> None:
    assert not parse().reads_committed
    batch = parse("batch", **COMMITTED)
    assert batch.reads_committed
    assert (batch.uuid_path, batch.include_acks, batch.state_location) == (None, False, None)
    stream = parse("stream", **COMMITTED, stateLocation="/mnt/states/", includeAcks="true", uuidPath="/UUID")
    assert (stream.uuid_path, stream.include_acks, stream.state_location) == ("/UUID", True, "/mnt/states")
