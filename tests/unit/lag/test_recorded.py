"""Recorded windows and requests are parsed strictly, and an error names the path of the bad value."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from gazette_spark.errors import InputError, OptionError
from gazette_spark.lag.burrow_json import parse_recording
from gazette_spark.lag.rules import OffsetCommit, PartitionWindow, Thresholds

RECORDING: dict[str, Any] = {
    "now_ms": 1_000_000,
    "cluster": "local",
    "group": "orders",
    "partitions": [
        {
            "topic": "shop/",
            "partition": 1,
            "current_lag": 2**64 - 1,
            "broker_offsets": [70],
            "offsets": [None, {"offset": 40, "timestamp": 999_000, "observedAt": 999_000, "lag": None}],
        }
    ],
}


def changed(*path: str | int, to: object) -> str:
    """Return the recording as text with one field changed; ``...`` removes it."""
    found: Any = copy.deepcopy(RECORDING)
    place = found
    for step in path[:-1]:
        place = place[step]
    if to is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return json.dumps(found)


def test_a_recording_is_read_whole() -> None:
    """Missing fields have Burrow's defaults."""
    read = parse_recording(json.dumps(RECORDING))
    assert (read.cluster, read.group, read.now_ms, read.thresholds) == (
        "local",
        "orders",
        1_000_000,
        Thresholds(),
    )
    assert read.windows == [
        PartitionWindow("shop/", 1, 2**64 - 1, [70], [None, OffsetCommit(40, 999_000, 999_000, None)], "", "")
    ]


def test_null_for_partitions_is_an_unknown_group() -> None:
    """An empty list would be a known group without partitions."""
    assert parse_recording(changed("partitions", to=None)).windows is None
    assert parse_recording(changed("partitions", to=[])).windows == []


FIRST = ("partitions", 0)
COMMIT = (*FIRST, "offsets", 1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "not JSON", id="nothing"),
        pytest.param("{", "not JSON", id="cut"),
        pytest.param("[" * 100_000, "not JSON", id="deep"),
        pytest.param("[]", r"the input: expected a JSON object, got \[\]", id="no object"),
        pytest.param('{"now_ms": 1, "now_ms": 2}', "the key 'now_ms' occurs twice", id="a key twice"),
        pytest.param(changed("minimum_complete", to=float("nan")), "NaN is not a number", id="not a number"),
        pytest.param(changed("now_ms", to=...), "now_ms: missing; expected an integer", id="no time"),
        pytest.param(
            changed("now_ms", to="1"), 'now_ms: expected an integer .*, got "1"', id="text for a time"
        ),
        pytest.param(changed("now_ms", to=1.0), r"now_ms: expected an integer .*, got 1\.0", id="a float"),
        pytest.param(changed("now_ms", to=True), "now_ms: expected an integer .*, got true", id="a boolean"),
        pytest.param(changed("now_ms", to=-1), "now_ms: expected an integer from 0", id="before 1970"),
        pytest.param(
            changed("now_ms", to=10**30), "now_ms: expected an integer from 0", id="beyond all time"
        ),
        pytest.param(
            changed("alowed_lag", to=1), "alowed_lag: unknown field; did you mean 'allowed_lag'", id="typo"
        ),
        pytest.param(
            changed("x\n", to=1), r"x\\n: unknown field; expected one of now_ms", id="unknown field"
        ),
        pytest.param(
            changed("minimum_complete", to="1"), "minimum_complete: expected a number", id="text share"
        ),
        pytest.param(changed("cluster", to=None), "cluster: expected text, got null", id="null for a name"),
        pytest.param(changed("group", to="\ud800"), "it is not Unicode", id="half a letter"),
        pytest.param(changed("partitions", to=...), "partitions: missing", id="no partitions"),
        pytest.param(
            changed("partitions", to={}), "partitions: expected an array, got {}", id="partitions named"
        ),
        pytest.param(
            changed(*FIRST, to=5), r"partitions\[0\]: expected a JSON object, got 5", id="no partition"
        ),
        pytest.param(
            changed(*FIRST, "partition", to=2**31), r"partitions\[0\]\.partition: expected", id="large index"
        ),
        pytest.param(
            changed(*FIRST, "current_lag", to=-1),
            r"partitions\[0\]\.current_lag: expected an integer from 0 to 18446744073709551615, got -1",
            id="negative current lag",
        ),
        pytest.param(
            changed(*FIRST, "broker_offsets", 0, to="7"),
            r"partitions\[0\]\.broker_offsets\[0\]: expected an integer",
            id="text for a head",
        ),
        pytest.param(
            changed(*FIRST, "offsets", to=[{"offset": 1, "timestamp": 1, "lag": 1}, None]),
            r"partition 1: an unused slot follows a commit",
            id="a gap after a commit",
        ),
        pytest.param(
            changed(*COMMIT, "lag", to=-1),
            r"partitions\[0\]\.offsets\[1\]\.lag: expected an integer from 0 .*, got -1",
            id="negative lag",
        ),
        pytest.param(changed(*COMMIT, "lag", to=...), r"offsets\[1\]\.lag: missing", id="no lag"),
        pytest.param(changed(*COMMIT, "offset", to=None), r"offsets\[1\]\.offset: expected", id="no offset"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse_recording(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("allowed_lag", -1, id="negative lag"),
        pytest.param("minimum_complete", 1.5, id="more than all"),
        pytest.param("minimum_complete", -0.5, id="less than none"),
    ],
)
def test_thresholds_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(OptionError, match=field):
        parse_recording(changed(field, to=value))


def test_long_values_are_cut_in_errors() -> None:
    with pytest.raises(InputError) as caught:
        parse_recording(changed("cluster", to=list(range(10_000))))
    assert len(str(caught.value)) < 150
