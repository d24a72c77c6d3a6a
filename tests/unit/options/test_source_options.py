"""Every bad option is refused on the driver, with its value and the valid ones."""

from __future__ import annotations

import pickle

import pytest

from gazette_spark.errors import OptionError
from gazette_spark.options.query_range import EARLIEST, LATEST, OffsetChoice
from gazette_spark.options.source import OPTIONS, SourceOptions, parse_options
from gazette_spark.options.table import Use
from gazette_spark.options.values import LONGEST_RECORD_BYTES

ADDRESS = "http://broker.test:8080"


def parse(use: Use | None = None, environ: dict[str, str] | None = None, /, **given: str) -> SourceOptions:
    """Parse options as Spark hands them over: names in lower case; a broker and a journal if not given."""
    texts = {name.lower(): text for name, text in given.items()}
    texts.setdefault("brokeraddress", ADDRESS)
    if not texts.keys() & {"journals", "journalspattern", "selector", "path"}:
        texts["path"] = "events/clicks"
    return parse_options(texts, use, environ=environ or {})


def refusal(use: Use | None = None, /, **given: str) -> OptionError:
    """Return the error that the options are refused with."""
    with pytest.raises(OptionError) as caught:
        parse(use, **given)
    return caught.value


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_described(option: object) -> None:
    """The table of the documentation is made from the rows."""
    assert option.description.endswith(".")  # type: ignore[attr-defined]
    assert len(option.description) > 20  # type: ignore[attr-defined]


def test_defaults() -> None:
    """A query that names a journal and nothing else gets these defaults."""
    options = parse("stream")
    assert options.selection.names == ("events/clicks",)
    assert (options.format, options.mode, options.framing) == (None, "PERMISSIVE", None)
    assert options.fail_on_data_loss
    assert options.max_bytes_per_trigger is None
    assert (options.max_bytes_per_partition, options.max_record_bytes) == (128 << 20, 16 << 20)


@pytest.mark.parametrize(("use", "start"), [("stream", LATEST), ("batch", EARLIEST)])
def test_a_stream_starts_at_the_latest_and_a_batch_at_the_earliest(use: Use, start: int) -> None:
    """Streams start at the latest and batches at the earliest offset, as in Spark's Kafka source."""
    assert parse(use).starting_offsets == OffsetChoice(start)


def test_spark_own_options_are_left_alone() -> None:
    """Options that Spark adds for a catalog table, or users set for Spark, are not unknown."""
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
    """The text names the nearest option, and no other."""
    assert str(refusal(**{name: "x"})) == f"option '{name}': got an unknown option; expected {hint}"


def test_an_unknown_option_lists_the_valid_ones() -> None:
    """An option of another source is like none of this one's, so all are named."""
    text = str(refusal(subscribe="x"))
    assert all(option.name in text for option in OPTIONS)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"journals": "events/a", "selector": "app=x"}, id="names_and_selector"),
        pytest.param({"journals": "events/a", "path": "events/"}, id="names_and_path"),
        pytest.param({"selector": "app=x", "path": "events/"}, id="selector_and_path"),
        pytest.param({"journals": "events/a", "journalsPattern": "events/a"}, id="names_and_pattern"),
    ],
)
def test_two_selections_are_refused(given: dict[str, str]) -> None:
    """Two selections are refused by an error that names both options."""
    error = refusal(**given)
    assert error.got == "more than one"
    assert all(name in error.option for name in given)


def test_no_selection_is_refused() -> None:
    """Options without a selection are refused by an error that lists the ways to give one."""
    with pytest.raises(OptionError, match=r"got nothing; expected exactly one of .*load\('a/prefix/'\)"):
        parse_options({"brokerAddress": ADDRESS}, environ={})


def test_several_paths_are_refused() -> None:
    """load() with a list reaches the source as one JSON text."""
    assert "option 'journals'" in str(refusal(paths='["events/a","events/b"]'))


def test_a_prefix_is_a_selector() -> None:
    """A prefix is a selector, so journals made later under it are found."""
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
    """Brokers list one directory where every match lies in it, and everything else where that is not sure."""
    selection = parse(journalsPattern=pattern).selection
    assert (selection.selector, str(selection)) == (selector, pattern)


def test_a_pattern_matches_whole_names() -> None:
    """A name that has a match in it is another journal."""
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
    """The error shows the text, the reason and an example."""
    error = refusal(journalsPattern=text)
    assert error.option == "journalsPattern"
    assert problem in error.got
    assert "such as shop/orders-[0-9]+" in error.expected


def test_names_keep_their_order() -> None:
    """Blanks around commas are no part of a name."""
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
    """The error shows a bad name and its place, or the place alone if the name cannot be seen."""
    error = refusal(journals=text)
    assert error.option == "journals"
    assert problem in error.got


@pytest.mark.parametrize(
    "text",
    ["", " ", "=bar", "foo in ()", "foo in (a,", "foo ~ bar", "f=bar", "prefix=events", "a" * 65 + "=x"],
    ids=["empty", "blank", "no_name", "no_values", "open", "operator", "short_name", "no_slash", "long_name"],
)
def test_a_bad_selector_is_refused(text: str) -> None:
    """A bad selector is refused before any broker sees it."""
    assert refusal(selector=text).option == "selector"


def test_a_selector_is_kept_in_its_canonical_form() -> None:
    """Two spellings of one selector are one selection."""
    assert parse(selector="app=a, region in (eu)").selection == parse(selector="app==a,region=eu").selection


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("broker:8080", id="no_scheme"),
        pytest.param("ftp://broker:8080", id="scheme"),
        pytest.param("unix:///run/broker", id="unix"),
        pytest.param("http://", id="no_host"),
        pytest.param("http://:8080", id="empty_host"),
        pytest.param("http://broker", id="no_port"),
        pytest.param("http://broker:0", id="port_zero"),
        pytest.param("http://broker:70000", id="port_too_large"),
        pytest.param("http://broker:web", id="port_word"),
        pytest.param("http://broker:80/path", id="path"),
        pytest.param("http://broker:80?x=1", id="query"),
        pytest.param("http://a:80,http://b:80", id="two"),
        pytest.param("http://größe:80", id="not_ascii"),
        pytest.param("http://broker:80\n", id="newline"),
        pytest.param("http://" + "b" * 10_000 + ":80", id="ten_kilobytes"),
    ],
)
def test_a_bad_address_is_refused(text: str) -> None:
    """The error shows the form of a good address, in a text of bounded length."""
    error = refusal(brokerAddress=text)
    assert (error.option, "http://host:port" in error.expected) == ("brokerAddress", True)
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    "text", ["http://me:hunter2@broker:80", "me:hunter2@broker:80", "http://hunter2@b:x"]
)
def test_a_password_in_an_address_is_not_shown(text: str) -> None:
    """Spark shows an error's text in full."""
    assert "hunter2" not in str(refusal(brokerAddress=text))


def test_the_address_comes_from_the_environment_if_not_given() -> None:
    """The address comes from the environment, as for Gazette's own tools."""
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
    """Words, offsets by journal, or a whole position; journals not named start at earliest."""
    assert parse("stream", startingOffsets=text).starting_offsets == choice


def test_resume_offsets() -> None:
    """Offsets of a table, by journal; not a word, and neither of the marks for the two ends."""
    choice = parse("stream", resumeOffsets='{"events/a":5}').resume_offsets
    assert choice is not None
    assert choice.named == {"events/a": 5}
    assert parse("stream").resume_offsets is None
    for text in ("latest", "earliest", '{"events/a":-1}', "5"):
        assert refusal("stream", resumeOffsets=text).option == "resumeOffsets"
    assert refusal("batch", resumeOffsets='{"events/a":5}').option == "resumeOffsets"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("now", id="word"),
        pytest.param("12", id="number"),
        pytest.param("[]", id="list"),
        pytest.param('{"events/a":5', id="cut"),
        pytest.param('{"events/a":-3}', id="negative"),
        pytest.param('{"events/a":1.0}', id="float"),
        pytest.param('{"events/a":"1"}', id="text"),
        pytest.param('{"events/a":true}', id="boolean"),
        pytest.param('{"events/a":null}', id="null"),
        pytest.param('{"events/a":9223372036854775808}', id="too_large"),
        pytest.param('{"events/a":1,"events/a":2}', id="twice"),
        pytest.param('{"../a":1}', id="bad_name"),
        pytest.param('{"format_version":1,"journals":{"events/a":-1}}', id="edge_in_a_position"),
        pytest.param('{"format_version":9,"journals":{}}', id="later_format"),
    ],
)
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_bad_offsets_are_refused(option: str, text: str) -> None:
    """The options for start and end refuse the same bad offsets."""
    assert refusal("batch", **{option: text}).option == option


@pytest.mark.parametrize(
    ("given", "option"),
    [
        pytest.param({"startingOffsets": "latest"}, "startingOffsets", id="starts_at_latest"),
        pytest.param({"startingOffsets": '{"events/a":-1}'}, "startingOffsets", id="one_starts_at_latest"),
        pytest.param({"endingOffsets": "earliest"}, "endingOffsets", id="ends_at_earliest"),
        pytest.param({"endingOffsets": '{"events/a":-2}'}, "endingOffsets", id="one_ends_at_earliest"),
        pytest.param(
            {"startingOffsets": '{"events/a":9}', "endingOffsets": '{"events/a":8}'},
            "endingOffsets",
            id="ends_before_its_start",
        ),
        pytest.param({"maxBytesPerTrigger": "1m"}, "maxBytesPerTrigger", id="stream_only"),
        pytest.param({"minBytesPerTrigger": "1m"}, "minBytesPerTrigger", id="minimum_stream_only"),
        pytest.param({"maxFragmentsPerTrigger": "1"}, "maxFragmentsPerTrigger", id="fragments_stream_only"),
        pytest.param({"maxRecordsPerTrigger": "1"}, "maxRecordsPerTrigger", id="records_stream_only"),
        pytest.param({"maxTriggerDelay": "1m"}, "maxTriggerDelay", id="delay_stream_only"),
        pytest.param(
            {"startingTimestamp": "9", "endingTimestamp": "8"}, "endingTimestamp", id="ends_before_its_time"
        ),
        pytest.param(
            {"startingOffsetsByTimestamp": '{"events/a":9}', "endingTimestamp": "8"},
            "endingTimestamp",
            id="ends_before_the_time_of_one",
        ),
        pytest.param(
            {"startingOffsetsByTimestamp": '{"events/a":9}', "startingOffsets": "earliest"},
            "startingOffsets and startingOffsetsByTimestamp",
            id="two_starts",
        ),
    ],
)
def test_a_batch_that_makes_no_sense_is_refused(given: dict[str, str], option: str) -> None:
    """Empty by definition, backwards, or limited by a trigger it does not have."""
    assert refusal("batch", **given).option == option


@pytest.mark.parametrize("given", [{"endingOffsets": "latest"}, {"endingTimestamp": "1"}])
def test_a_batch_only_option_is_refused_in_a_stream(given: dict[str, str]) -> None:
    """A stream has no end."""
    assert "batch query only" in str(refusal("stream", **given))


def test_a_query_starts_or_ends_by_time() -> None:
    """Times are milliseconds, as in Spark's Kafka source; a stream may start at one too."""
    options = parse("batch", startingTimestamp="0", endingTimestamp="1700000000000")
    assert (options.starting_timestamp, options.ending_timestamp) == (0, 1_700_000_000_000)
    assert options.starting_offsets_by_timestamp_strategy == "error"
    given = {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "Latest"}
    assert parse("stream", **given).starting_offsets_by_timestamp_strategy == "latest"
    assert parse("batch", startingTimestamp="5", endingTimestamp="5").ending_timestamp == 5


@pytest.mark.parametrize(
    ("name", "text"), [("schemaHints", "id BIGINT"), ("inferredSchemaLocation", "/data/schema")]
)
def test_what_is_said_of_an_inferred_schema_needs_one(name: str, text: str) -> None:
    """A query with a schema would ignore it in silence."""
    error = refusal(**{name: text})
    assert (error.option, error.expected) == (name, "to be used with inferSchema=true only")
    assert parse(inferSchema="true", **{name: text}).infer_schema


def test_chunks_are_not_counted() -> None:
    """Whole bytes are cut into chunks where batches end, so no limit could count them."""
    error = refusal("stream", framing="none", maxRecordsPerTrigger="5")
    assert (error.option, error.expected) == ("maxRecordsPerTrigger", "maxBytesPerTrigger")


def test_a_query_starts_by_time_in_each_journal() -> None:
    """Journals not named start at startingTimestamp; without it at the earliest, a stream too."""
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
    """The error names the journal and its time, and shows the form."""
    error = refusal("batch", startingOffsetsByTimestamp=text)
    assert error.option == "startingOffsetsByTimestamp"
    assert problem in error.got


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "-1",
        "+1",
        "1.0",
        "1e12",
        " 1",
        "2026-01-01",
        "32503680000001",
        "1700000000000000",
        "\u0661",
    ],
)
@pytest.mark.parametrize("option", ["startingTimestamp", "endingTimestamp"])
def test_a_bad_timestamp_is_refused(option: str, text: str) -> None:
    """Microseconds, which would lie past the year 3000, among them."""
    error = refusal("batch", **{option: text})
    assert error.option == option
    assert error.expected.startswith("milliseconds since 1970 UTC")


@pytest.mark.parametrize(
    ("given", "option", "expected"),
    [
        pytest.param(
            {"startingTimestamp": "1", "startingOffsets": "earliest"},
            "startingOffsets and startingTimestamp",
            "one of them",
            id="two_starts",
        ),
        pytest.param(
            {"endingTimestamp": "1", "endingOffsets": "latest"},
            "endingOffsets and endingTimestamp",
            "one of them",
            id="two_ends",
        ),
        pytest.param(
            {"startingOffsetsByTimestampStrategy": "latest"},
            "startingOffsetsByTimestampStrategy",
            "to be used with startingTimestamp or startingOffsetsByTimestamp only",
            id="strategy_alone",
        ),
        pytest.param(
            {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "earliest"},
            "startingOffsetsByTimestampStrategy",
            "error or latest",
            id="strategy",
        ),
    ],
)
def test_a_start_or_end_is_given_once(given: dict[str, str], option: str, expected: str) -> None:
    """Kafka's source lets one win; here the two contradict each other."""
    error = refusal("batch", **given)
    assert (error.option, error.expected) == (option, expected)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        pytest.param({"maxTriggerDelay": "5m"}, "maxTriggerDelay", id="delay_alone"),
        pytest.param(
            {"minBytesPerTrigger": "2k", "maxBytesPerTrigger": "2047"},
            "minBytesPerTrigger",
            id="min_over_max",
        ),
    ],
)
def test_limits_that_contradict_each_other_are_refused(given: dict[str, str], option: str) -> None:
    """A delay of nothing, or a minimum no batch may reach."""
    assert refusal("stream", **given).option == option


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1", 0.001), ("250ms", 0.25), ("90s", 90), ("15m", 900), ("2MIN", 120), ("1h", 3600), ("7d", 604800)],
)
def test_a_delay_takes_units(text: str, seconds: float) -> None:
    """Spark's own; without one, milliseconds, as in Spark's Kafka source."""
    options = parse("stream", minBytesPerTrigger="1", maxTriggerDelay=text)
    assert options.max_trigger_delay.total_seconds() == seconds
    assert parse("stream", minBytesPerTrigger="1").max_trigger_delay.total_seconds() == 900


@pytest.mark.parametrize("text", ["", "0", "0s", "-1s", "1.5h", "10x", "15 m", "8d", "1us", "9999999999d"])
def test_a_bad_delay_is_refused(text: str) -> None:
    """The error shows the least delay, the most, and examples."""
    error = refusal("stream", minBytesPerTrigger="1", maxTriggerDelay=text)
    assert (error.option, error.expected) == (
        "maxTriggerDelay",
        "a time from 1ms to 7d, such as 90s, 15m or 1h",
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("10b", 10), ("2k", 2048), ("2KB", 2048), ("10mb", 10 << 20), ("3G", 3 << 30)],
)
def test_sizes_take_units(text: str, size: int) -> None:
    """Spark's own, powers of 1024."""
    assert parse("stream", maxBytesPerTrigger=text).max_bytes_per_trigger == size


BAD_SIZES = [
    "",
    "0",
    "-1",
    "+1",
    "1e6",
    "1.5m",
    "10 mb",
    "10mib",
    "m",
    "9223372036854775808",
    "9g" * 9,
    "1_000",
]
BAD_COUNTS = ["", "0", "-1", "1.0", "1k", "1000000000", " 1", "\u0661"]


@pytest.mark.parametrize("text", BAD_SIZES)
@pytest.mark.parametrize(
    "option", ["maxBytesPerTrigger", "minBytesPerTrigger", "maxBytesPerPartition", "maxRecordBytes"]
)
def test_a_bad_size_is_refused(option: str, text: str) -> None:
    """One rule for all sizes."""
    assert refusal("stream", **{option: text}).option == option


@pytest.mark.parametrize("text", BAD_COUNTS)
@pytest.mark.parametrize(
    "option",
    [
        "minPartitions",
        "maxFragmentsPerTrigger",
        "maxRecordsPerTrigger",
        "requestTimeoutMs",
        "idleTimeoutMs",
        "connectTimeoutMs",
    ],
)
def test_a_bad_count_is_refused(option: str, text: str) -> None:
    """One rule for all counts, and none is unbounded."""
    assert refusal("stream", **{option: text}).option == option


def test_a_limit_on_records_that_arrow_cannot_count_is_refused() -> None:
    """Arrow counts the bytes of a block in 32 bits; a block has up to two records of that length."""
    for text in ("536870913", "513m", "1g", "2147483647"):
        error = refusal(maxRecordBytes=text)
        assert (error.option, error.expected) == (
            "maxRecordBytes",
            "a size from 1 byte to 512m, such as 64m",
        )
    assert parse(maxRecordBytes="512m").max_record_bytes == LONGEST_RECORD_BYTES == 1 << 29


@pytest.mark.parametrize("text", ["yes", "1", "", " true", "t"])
def test_a_boolean_is_true_or_false(text: str) -> None:
    """Nothing else, not even with blanks."""
    assert refusal(failOnDataLoss=text).expected == "true or false"


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        pytest.param("framing", "lines or fixed or csv or none", id="framing"),
        pytest.param("format", "raw or json or csv or protobuf", id="format"),
        pytest.param("mode", "PERMISSIVE or DROPMALFORMED or FAILFAST", id="mode"),
    ],
)
def test_an_unknown_word_is_refused_with_the_known_ones(option: str, expected: str) -> None:
    """An unknown word is refused and none is guessed."""
    assert refusal(**{option: "whatever"}).expected == expected


@pytest.mark.parametrize(
    ("given", "option"),
    [
        pytest.param({"format": "protobuf"}, "descriptorFile", id="nothing"),
        pytest.param({"messageName": "a.B"}, "descriptorFile", id="no_file"),
        pytest.param({"format": "protobuf", "descriptorFile": "/d"}, "messageName", id="no_message"),
        pytest.param(
            {"format": "json", "descriptorFile": "/d", "messageName": "B"}, "descriptorFile", id="json"
        ),
        pytest.param({"format": "json", "header": "true"}, "header", id="header"),
        pytest.param({"descriptorFile": "", "messageName": "B"}, "descriptorFile", id="empty"),
    ],
)
def test_options_of_one_format_belong_to_it(given: dict[str, str], option: str) -> None:
    """A message's type is both its file and its name, and no other format has use for them."""
    assert refusal(**given).option == option


def test_a_format_of_another_framing_is_refused() -> None:
    """Each format reads the records of one framing; raw reads any."""
    assert refusal(framing="none", format="json").expected == "lines, which format json reads"
    assert parse(framing="none", format="raw").framing == "none"


@pytest.mark.parametrize("text", ["", "/", "relative/path", "/a/../b", "/a\0"])
def test_a_bad_fragment_root_is_refused(text: str) -> None:
    """The root directory itself would open every file to a store's name."""
    assert refusal(fragmentRoot=text).option == "fragmentRoot"


@pytest.mark.parametrize("text", ["", "to\nken", "to\rken", "tökén", "to ken"])
def test_a_bad_token_is_refused_without_being_shown(text: str) -> None:
    """A line break would add a header of its own."""
    error = refusal(**{"auth.token": text})
    assert error.option == "auth.token"
    assert not text or text not in str(error)


def test_a_token_is_not_in_the_repr() -> None:
    """Options are logged; tokens are not."""
    options = parse(**{"auth.token": "s3cret-token"})
    assert options.security.token == "s3cret-token"
    assert "s3cret" not in repr(options)


def test_parsed_options_survive_pickling() -> None:
    """Parsed options survive pickling, because they travel with the reader."""
    options = parse("batch", selector="app=a", startingOffsets='{"events/a":1}')
    assert pickle.loads(pickle.dumps(options)) == options


STORE = {"fragmentStore": "file:///var/store", "framing": "lines", "path": "events/"}


def refused_store(use: Use = "batch", **options: str) -> OptionError:
    """Return the error of a query on a store."""
    with pytest.raises(OptionError) as caught:
        parse_options(STORE | options, use, environ={})
    return caught.value


def test_a_store_takes_the_place_of_brokers() -> None:
    """A store wins over the environment's broker; its URL is kept, but for a directory's last slash."""
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
    """Credentials in it, too, and they are not shown."""
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
    """Is said when the query is made."""
    given = {name: text for name, text in (STORE | options).items() if text}
    with pytest.raises(OptionError, match=problem):
        parse_options(given, "batch", environ={})


def test_a_store_is_for_batches() -> None:
    """A stream needs a broker; and the depth of a store's directories is nothing without one."""
    assert "batch query only" in str(refused_store("stream"))
    assert refusal(fragmentPostfixLevels="1").expected == "to be used with fragmentStore only"


COMMITTED = {"isolationLevel": "READ_COMMITTED"}


def test_committed_messages() -> None:
    """A batch needs the isolation level alone; a stream keeps states."""
    assert not parse().reads_committed
    batch = parse("batch", **COMMITTED)
    assert batch.reads_committed
    assert (batch.uuid_path, batch.include_acks, batch.state_location) == (None, False, None)
    stream = parse("stream", **COMMITTED, stateLocation="/mnt/states/", includeAcks="true", uuidPath="/UUID")
    assert (stream.uuid_path, stream.include_acks, stream.state_location) == ("/UUID", True, "/mnt/states")


@pytest.mark.parametrize(
    ("use", "given", "option"),
    [
        pytest.param("stream", COMMITTED, "stateLocation", id="stream_without_states"),
        pytest.param("batch", COMMITTED | {"stateLocation": "/mnt"}, "stateLocation", id="batch_with_states"),
        pytest.param("batch", COMMITTED | {"messagesSince": "{}"}, "stateLocation", id="no_states"),
        pytest.param("stream", COMMITTED | {"stateLocation": "a/b"}, "stateLocation", id="relative"),
        pytest.param("stream", COMMITTED | {"stateLocation": "/a/../b"}, "stateLocation", id="parent"),
        pytest.param("stream", {"stateLocation": "/mnt"}, "stateLocation", id="states_alone"),
        pytest.param("batch", {"uuidPath": "/UUID"}, "uuidPath", id="path_alone"),
        pytest.param("batch", {"includeAcks": "true"}, "includeAcks", id="acks_alone"),
        pytest.param("batch", COMMITTED | {"framing": "none"}, "framing", id="no_framing"),
        pytest.param("batch", COMMITTED | {"readGaps": "true"}, "readGaps", id="gaps"),
        pytest.param("batch", {"isolationLevel": "serializable"}, "isolationLevel", id="another_level"),
    ],
)
def test_bad_options_of_committed_messages_are_refused(use: Use, given: dict[str, str], option: str) -> None:
    """Options of committed messages are refused without them, and so are those that exclude them."""
    assert refusal(use, **given).option == option
