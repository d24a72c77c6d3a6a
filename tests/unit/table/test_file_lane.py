"""A table whose creation was killed. The lane itself is tested in tests/spark/test_ingest.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from gazette_spark._delta.files import FIRST_COMMIT, put_first_commit

LEFT = (f".{FIRST_COMMIT}.5f1c.tmp", f".{FIRST_COMMIT}.crc")


def log_with(directory: Path, *names: str) -> Path:
    log = directory / "_delta_log"
    log.mkdir(parents=True)
    for name in names:
        (log / name).write_text(name)
    return log


@pytest.fixture
def made(tmp_path: Path) -> Path:
    (log_with(tmp_path / "made") / FIRST_COMMIT).write_text("made")
    return tmp_path / "made"


@pytest.mark.parametrize("names", [(), LEFT])
def test_a_first_commit_is_put_beside_what_is_left(
    tmp_path: Path, made: Path, names: tuple[str, ...]
) -> None:
    """Files that another process may be about to commit stay, but a checksum of another commit goes."""
    log = log_with(tmp_path / "table", *names)
    (tmp_path / "table" / "rows.parquet").touch()
    put_first_commit(made, tmp_path / "table")
    assert (log / FIRST_COMMIT).read_text() == "made"
    assert {path.name for path in log.iterdir()} == {FIRST_COMMIT, *names[:1]}
    assert (tmp_path / "table" / "rows.parquet").exists()


def test_files_without_a_log_get_one(tmp_path: Path, made: Path) -> None:
    """A process that is killed before its first commit leaves such files."""
    (tmp_path / "table").mkdir()
    put_first_commit(made, tmp_path / "table")
    assert (tmp_path / "table" / "_delta_log" / FIRST_COMMIT).read_text() == "made"


@pytest.mark.parametrize(
    "name", [FIRST_COMMIT, "00000000000000000010.checkpoint.parquet", "_last_checkpoint"]
)
def test_a_log_with_a_commit_stays_as_it_is(tmp_path: Path, made: Path, name: str) -> None:
    log = log_with(tmp_path / "table", *LEFT, name)
    put_first_commit(made, tmp_path / "table")
    assert {path.name: path.read_text() for path in log.iterdir()} == {file: file for file in (*LEFT, name)}
