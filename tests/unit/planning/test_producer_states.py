"""Files of producer states: what is stored, what is read back, and how damaged files are handled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gazette_spark._planning.states import KEPT_FILES, RangeStates, StateFiles
from gazette_spark.errors import OptionError
from gazette_spark.failpoints import calling
from gazette_spark.message.bulk_sequencer import LOST, NO_TRANSACTION, ProducerStates

GOLDEN = Path(__file__).parents[2] / "golden" / "producer_states"
JOURNAL = "log/a"
STATES = ProducerStates(
    np.array([1, 0x0102030405FF], np.int64),
    np.array([5, (1 << 64) - 1], np.uint64),
    np.array([9, (1 << 64) - 1], np.uint64),
    np.array([1234, NO_TRANSACTION], np.int64),
    np.array([1300, 7], np.int64),
    newest=(1 << 64) - 1,
)


def values(states: ProducerStates) -> list[list[int]]:
    columns = (states.producers, states.last_acks, states.last_clocks, states.begins, states.last_offsets)
    return [*(column.tolist() for column in columns), [states.newest]]


@pytest.fixture(params=["path", "file", "local", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A directory as a path and as URLs for pyarrow and fsspec. Only fsspec supports the last two."""
    return str(tmp_path) if request.param == "path" else f"{request.param}://{tmp_path}"


def test_states_are_read_back(location: str) -> None:
    check_states_are_read_back(location)


def check_states_are_read_back(location: str) -> None:
    StateFiles(location).save(JOURNAL, 2000, 100, STATES)
    files = StateFiles(location)
    assert files.older(JOURNAL, 3000, 0) == [2000]
    for start in (100, None):
        found = files.load(JOURNAL, 2000, start)
        assert found is not None
        assert (values(found[0]), found[1]) == (values(STATES), 100)
    assert files.load(JOURNAL, 2000, 0) is None
    assert files.load(JOURNAL, 1999, 100) is None
    assert files.load("log/b", 2000, 100) is None


def test_another_place_of_uuids_is_refused_by_its_type(tmp_path: Path) -> None:
    """The place may be valid only for the type that the journal has now, which is then the cause."""
    StateFiles(str(tmp_path), "/id", "application/x-ndjson").save(JOURNAL, 2000, 100, STATES)
    for place, content_type in (("/id2", "application/x-ndjson"), ("3", "text/csv"), ("3", None)):
        message = f"'uuidPath': got '{place}', .*'/id' in application/x-ndjson"
        with pytest.raises(OptionError, match=message):
            StateFiles(str(tmp_path), place, content_type).load(JOURNAL, 2000, 100)


def test_the_stored_form_is_read_as_it_was() -> None:
    found = StateFiles(f"file://{GOLDEN}").load("v1", 2000, 100)
    assert found is not None
    assert values(found[0]) == values(STATES)


def test_old_files_go(location: str) -> None:
    files = StateFiles(location)
    for offset in (1000, *range(KEPT_FILES + 3)):
        StateFiles(location).save(JOURNAL, offset, 0, STATES)
    kept = list(range(KEPT_FILES + 2, 2, -1))
    assert files.older(JOURNAL, 1000, 0) == kept
    assert files.older(JOURNAL, kept[1], kept[3]) == kept[2:4]
    assert files.load(JOURNAL, 1000, 0) is not None, "a query that went back writes before it"


def test_where_a_batch_begins_stays(location: str) -> None:
    """Batches die before their commit and each plans a later end, so the file of the begin must stay."""
    files = StateFiles(location)
    for offset in (90, 100):
        files.save(JOURNAL, offset, 0, STATES)
    for end in range(200, 200 + 2 * KEPT_FILES):
        ends = RangeStates(JOURNAL, 100, end, start=0, files=files, catch_up=lambda states, *_: states)
        ends.at_end(STATES)
    assert files.load(JOURNAL, 100, 0) is not None
    assert files.load(JOURNAL, 90, 0) is None


def test_other_files_are_let_alone(tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path))
    (tmp_path / JOURNAL).mkdir(parents=True)
    (tmp_path / JOURNAL / "notes.txt").touch()
    for offset in range(KEPT_FILES + 3):
        files.save(JOURNAL, offset, 0, STATES)
    assert (tmp_path / JOURNAL / "notes.txt").exists()


class KillError(Exception):
    """The end of a task."""


def killed(files: StateFiles, offset: int) -> None:
    def die() -> None:
        raise KillError

    with calling("scan.before_states", die), pytest.raises(KillError):
        files.save(JOURNAL, offset, 0, STATES)


def test_what_a_killed_task_leaves_goes(tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path))
    killed(files, 10)
    killed(files, 20)
    assert (files.load(JOURNAL, 10, 0), files.older(JOURNAL, 99, 0)) == (None, [])
    assert len(list((tmp_path / JOURNAL).iterdir())) == 2
    files.save(JOURNAL, 20, 0, STATES)
    (left,) = (path.name for path in (tmp_path / JOURNAL).iterdir() if path.name != "20")
    assert left.startswith("20."), "another attempt at the task may still write it"
    files.save(JOURNAL, 30, 0, STATES)
    assert sorted(path.name for path in (tmp_path / JOURNAL).iterdir()) == ["20", "30"]


def test_attempts_that_overlap_write_the_same_file(location: str) -> None:
    """During one attempt, another one and a later batch write and clean up. The file must be complete."""
    slow, files = StateFiles(location), StateFiles(location)

    def meanwhile() -> None:
        files.save(JOURNAL, 20, 0, STATES)
        files.save(JOURNAL, 30, 0, STATES)

    with calling("scan.before_states", meanwhile):
        slow.save(JOURNAL, 20, 0, STATES)
    assert files.older(JOURNAL, 99, 0) == [30, 20]
    found = files.load(JOURNAL, 20, 0)
    assert found is not None
    assert values(found[0]) == values(STATES)


def test_a_location_that_cannot_be_written_is_an_error(location: str, tmp_path: Path) -> None:
    StateFiles(location)._system.open_output_stream(f"{tmp_path}/log").close()
    files = StateFiles(location)
    states = RangeStates(JOURNAL, 30, 40, start=0, files=files, catch_up=lambda states, *_: states)
    assert values(states.at_begin()) == values(ProducerStates.none())
    with pytest.raises(OptionError, match=r"'stateLocation': got .*'log/a' at 40 cannot be written"):
        states.at_end(STATES)


@pytest.mark.parametrize("content", [b"", b"no arrow file", None])
def test_files_that_are_no_good_are_left_aside(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    files = StateFiles(str(tmp_path))
    files.save(JOURNAL, 10, 0, STATES)
    files.save(JOURNAL, 20, 5, STATES)
    files.save(JOURNAL, 30, 0, STATES)
    path = tmp_path / JOURNAL / "30"
    path.unlink() if content is None else path.write_bytes(content)
    asked = []

    def catch_up(states: ProducerStates, at: int, until: int) -> ProducerStates:
        asked.append((values(states), at, until))
        return states

    RangeStates(JOURNAL, 30, 40, start=0, files=files, catch_up=catch_up).at_begin()
    RangeStates(JOURNAL, 9, 40, start=0, files=files, catch_up=catch_up).at_begin()
    first = RangeStates(JOURNAL, 0, 40, start=0, files=files, catch_up=catch_up).at_begin()
    assert asked == [(values(STATES), 10, 30), (values(ProducerStates.none()), 0, 9)]
    assert values(first) == values(ProducerStates.none())
    assert "journal=log/a begin=10 end=30" in caplog.text
    assert ("unreadable" in caplog.text) == (content is not None)


def test_open_transactions_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    files = StateFiles(str(tmp_path))
    states = RangeStates(JOURNAL, 0, 40, start=0, files=files, catch_up=lambda states, *_: states)
    states.at_end(ProducerStates.none())
    assert caplog.text == ""
    states.at_end(STATES)
    assert "open journal=log/a at=40 count=1 oldest=1234 producer=000000000001" in caplog.text


def test_transactions_with_missing_bytes_are_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = StateFiles(str(tmp_path))
    files.save(JOURNAL, 2000, 0, STATES)

    def states(holes: list[tuple[int, int]]) -> ProducerStates:
        def missing(begin: int, end: int) -> list[tuple[int, int]]:
            assert (begin, end) == (1234, 2000)
            return holes

        return RangeStates(
            JOURNAL, 2000, 2001, start=0, files=files, catch_up=lambda states, *_: states, missing=missing
        ).at_begin()

    assert states([]).begins.tolist() == [1234, NO_TRANSACTION]
    assert caplog.text == ""
    assert states([(1300, 1400)]).begins.tolist() == [LOST, NO_TRANSACTION]
    assert "gone, their messages give no rows journal=log/a begin=1300 end=1400 transactions=1" in caplog.text


def test_a_location_that_nothing_opens_is_an_error() -> None:
    with pytest.raises(OptionError, match=r"stateLocation.*nowhere://bucket/states'") as caught:
        StateFiles("nowhere://name:secret@bucket/states?secret=1")
    assert "secret" not in str(caught.value)
