"""What the sink reports about a batch, as far as it needs no Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gazette_spark._delta.upsert import Upsert
from gazette_spark._ledger.entry import SHOWN_RANGES, SkippedGap, ranges_text
from gazette_spark.errors import NoSpaceError, OptionError
from gazette_spark.sink import DeltaSink, check_output_mode

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamReader


def test_a_log_line_sums_up_ranges() -> None:
    assert ranges_text([SkippedGap("x/a", 3, 10)]) == "bytes=7 journals=1 ranges=x/a[3,10)"
    many = [SkippedGap(f"x/{number}", 0, 2) for number in range(SHOWN_RANGES + 3)]
    text = ranges_text([*many, SkippedGap("x/0", 5, 6)])
    assert text.startswith(f"bytes=17 journals={SHOWN_RANGES + 3} ranges=x/0[0,2) x/1[0,2)")
    assert text.endswith("and 4 more")


def test_only_a_reader_can_resume() -> None:
    """Otherwise the error would come only once the table has its first entry."""
    with pytest.raises(TypeError, match=r"not str: call load after it, as in sink.resume\(reader\).load"):
        DeltaSink("orders", path="orders").resume(cast("DataStreamReader", "shop/orders"))


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        pytest.param({"app_id": "", "path": "/t"}, "app_id", id="empty app id"),
        pytest.param({"app_id": "a\nb", "path": "/t"}, "app_id", id="newline in app id"),
        pytest.param({"app_id": "a" * 513, "path": "/t"}, "app_id", id="long app id"),
        pytest.param({"app_id": None, "path": "/t"}, "app_id", id="no app id"),
        pytest.param({"app_id": "a"}, "path and table", id="no table"),
        pytest.param({"app_id": "a", "path": "/t", "table": "t"}, "path and table", id="two tables"),
        pytest.param(
            {"app_id": "a", "path": "/t", "on_overlap": "ignore"}, "on_overlap", id="unknown on_overlap"
        ),
        pytest.param(
            {"app_id": "a", "path": "/t", "accept_gaps": {"j": [(5, 5)]}}, "accept_gaps", id="empty gap"
        ),
        pytest.param(
            {"app_id": "a", "path": "/t", "accept_gaps": {"j": (5, 6)}}, "accept_gaps", id="no list of gaps"
        ),
        pytest.param(
            {"app_id": "a", "path": "/t", "accept_gaps": [("j", 5, 6)]},
            "accept_gaps",
            id="gaps by no journal",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], option: str) -> None:
    with pytest.raises(OptionError) as caught:
        DeltaSink(**arguments)  # type: ignore[arg-type]  # Fields by name, of mixed types.
    assert caught.value.option == option


def test_output_modes_that_repeat_rows_need_keys() -> None:
    for mode in ("append", "Append"):
        check_output_mode(mode, None)
    for mode in ("update", "Complete"):
        check_output_mode(mode, Upsert(("id",)))
        with pytest.raises(OptionError, match=r"outputMode.*upsert"):
            check_output_mode(mode, None)
    with pytest.raises(OptionError, match=r"outputMode.*'often'"):
        check_output_mode("often", None)


def test_a_full_disk_is_named_even_if_there_is_no_temporary_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python tries to write a file there. Its own error must not hide that of the batch."""

    def no_directory() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("gazette_spark.sink.gettempdir", no_directory)
    session: Any = SimpleNamespace(conf={})
    sink = DeltaSink("orders", path="/table", checkpoint="/checkpoint")
    with pytest.raises(NoSpaceError, match="No space left"), sink._named_full_disk(session, 3):
        raise OSError("No space left on device")
