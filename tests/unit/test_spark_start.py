"""The end of a log is shown, whatever the log contains."""

from __future__ import annotations

from pathlib import Path

from gazette_spark.spark_start import log_tail


def test_a_long_log_is_cut_to_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %d\n" % n for n in range(100)) + b"\xff\n")
    assert log_tail(log, 3).splitlines() == ["line 98", "line 99", "�"]
    assert log_tail(tmp_path / "none") == ""
