"""What is left of a table whose making was killed; tests/spark/test_ingest.py has the lane itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from gazette_spark._delta.files import clear_unmade

COMMIT = "00000000000000000000.json"
LEFT = (".00000000000000000000.json.5f1c.tmp", ".00000000000000000000.json.crc")


@pytest.mark.parametrize("prefix", ["", "file:"])
@pytest.mark.parametrize("names", [(), LEFT])
def test_a_log_without_a_commit_is_removed(tmp_path: Path, prefix: str, names: tuple[str, ...]) -> None:
    """Its temporary files and empty folders go with it; other files of the directory stay."""
    log = tmp_path / "_delta_log"
    (log / "_staged_commits").mkdir(parents=True)
    for name in names:
        (log / name).touch()
    (tmp_path / "rows.parquet").touch()
    clear_unmade(f"{prefix}{tmp_path}")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]
    clear_unmade(f"{prefix}{tmp_path}")


@pytest.mark.parametrize("name", [COMMIT, "00000000000000000010.checkpoint.parquet", "_last_checkpoint"])
def test_a_log_with_a_commit_stays_as_it_is(tmp_path: Path, name: str) -> None:
    """Nothing is touched: neither the commit nor what somebody else is about to rename."""
    log = tmp_path / "_delta_log"
    log.mkdir()
    for file in (*LEFT, name):
        (log / file).touch()
    clear_unmade(str(tmp_path))
    assert {path.name for path in log.iterdir()} == {*LEFT, name}


def test_what_another_process_is_about_to_commit_stays(tmp_path: Path) -> None:
    """A folder with something in it is no remainder; nor is a table in an object store looked at."""
    staged = tmp_path / "_delta_log" / "_staged_commits"
    staged.mkdir(parents=True)
    (staged / COMMIT).touch()
    clear_unmade(str(tmp_path))
    clear_unmade("s3a://lake/orders")
    clear_unmade(None)
    assert (staged / COMMIT).exists()
