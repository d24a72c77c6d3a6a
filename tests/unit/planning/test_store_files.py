"""Directories and buckets are listed once, and their files are read as fragments or named in an error."""

from __future__ import annotations

import gzip
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import fs

from gazette_spark._planning.store_layout import StoredFragment, StoreSelection
from gazette_spark._planning.stores import Bucket, Directory, StoreFiles, StoreJournals, open_store
from gazette_spark.errors import (
    CorruptFragmentError,
    DataLossError,
    DirectReadError,
    FragmentConflictError,
    FragmentStoreError,
    ProtocolError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from tests.oracles.stores import MemoryFiles, Row, fragment_of, plan, read, rows_of, store_options

LINES = b"".join(b"record %d of some length\n" % n for n in range(200))
EXPECTED: list[Row] = [
    ("log/a", at, line)
    for at, line in zip(
        [sum(map(len, LINES.splitlines(keepends=True)[:n])) for n in range(200)],
        LINES.splitlines(),
        strict=True,
    )
]
CODECS = [pb.NONE, pb.GZIP, pb.SNAPPY, pb.ZSTANDARD, pb.GZIP_OFFLOAD_DECOMPRESSION]


def stored(root: Path) -> MemoryFiles:
    """Write a journal ``log/a`` with a fragment of each codec, and other files; return it in memory."""
    files = MemoryFiles()
    lines, begin = LINES.splitlines(keepends=True), 0
    for turn, codec in enumerate(CODECS):
        content = b"".join(lines[turn * 40 : (turn + 1) * 40])
        files.put("log/a", begin, content, codec)
        begin += len(content)
    files.write_to(root)
    (root / "log/a/.partial-x").write_bytes(b"not whole yet")
    (root / ".test").mkdir(exist_ok=True)
    (root / ".test/health-check").write_bytes(b"health-check\n")
    return files


def bucket(root: Path) -> Bucket:
    (root / "outer").mkdir(exist_ok=True)
    return Bucket(fs.SubTreeFileSystem(str(root), fs.LocalFileSystem()), "", "s3://test")


@pytest.mark.parametrize(
    ("base", "problem"),
    [
        pytest.param("there", "", id="there"),
        pytest.param("there/no/object/yet", "", id="empty path"),
        pytest.param("missing/path", "bucket 'missing' does not exist", id="missing"),
        pytest.param("there/file", "cannot be listed", id="unlistable"),
    ],
)
def test_a_bucket_exists_and_can_be_listed(tmp_path: Path, base: str, problem: str) -> None:
    """A path without objects is an empty store, but a missing bucket is an error."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").write_bytes(b"")
    checked = Bucket(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), base, f"s3://{base}")
    if not problem:
        checked.check()
        return
    with pytest.raises(FragmentStoreError, match=problem):
        checked.check()


@pytest.fixture(params=["directory", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[StoreFiles, Path]:
    root = tmp_path / "store with a blank"
    root.mkdir()
    stored(root)
    kind: StoreFiles = open_store(f"file://{tmp_path}/store%20with%20a%20blank")
    return (bucket(root) if request.param == "bucket" else kind), root


@pytest.mark.parametrize(
    "options",
    [{}, {"maxBytesPerPartition": "300"}, {"minPartitions": "9"}, {"journals": "log/a"}],
    ids=["whole", "cut", "spread", "named"],
)
def test_every_codec_is_read(store: tuple[StoreFiles, Path], options: dict[str, str]) -> None:
    assert rows_of(store[0], **options) == EXPECTED


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_machine_without_the_store_loses_nothing(tmp_path: Path, is_empty: bool) -> None:
    """Where the store is not mounted, all files are missing. That is an error and not a gap."""
    root = tmp_path / "store"
    stored(root)
    options, files = store_options(failOnDataLoss="false"), Directory(str(root))
    pieces = plan(files, options)
    root.rename(tmp_path / "elsewhere")
    if is_empty:
        root.mkdir()  # An empty mount point.
    with pytest.raises(FragmentStoreError, match=r"on the machine .* it is missing or empty; mount it there"):
        read(files, options, pieces)


def test_times_come_from_the_files(store: tuple[StoreFiles, Path]) -> None:
    """A fragment's time is its file's modification time in whole seconds."""
    files, root = store
    path = min((root / "log/a").glob("0*"))
    os.utime(path, (1_700_000_123.9, 1_700_000_123.9))
    (listed,) = [each for each in files.list(["log"]) if each.path.endswith(path.name)]
    assert (listed.path, listed.mod_time) == (f"log/a/{path.name}", 1_700_000_123)
    assert listed.size == path.stat().st_size


@pytest.mark.parametrize("turn", range(len(CODECS)), ids=["raw", "gzip", "snappy", "zstd", "offloaded"])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-7], id="cut_short"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data + data[-30:], id="too_long"),
        pytest.param(lambda data: b"?" * len(data), id="other_bytes"),
    ],
)
def test_a_file_that_is_not_what_its_name_says(
    store: tuple[StoreFiles, Path], turn: int, damage: Callable[[bytes], bytes]
) -> None:
    files, root = store
    path = sorted((root / "log/a").glob("0*"))[turn]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptFragmentError, match=path.name):
        rows_of(files, failOnDataLoss="false")


def test_a_bucket_may_decompress_what_it_hands_out(tmp_path: Path) -> None:
    """As Google's does: GZIP_OFFLOAD_DECOMPRESSION fragments arrive compressed or decompressed."""
    stored(tmp_path)
    (path,) = [each for each in (tmp_path / "log/a").glob("0*") if not each.suffix]
    path.write_bytes(gzip.decompress(path.read_bytes()))
    assert rows_of(bucket(tmp_path)) == EXPECTED


def test_a_codec_that_is_not_the_names(store: tuple[StoreFiles, Path]) -> None:
    """The name decides the codec, so other content is corrupt."""
    files, root = store
    raw, packed, *_ = sorted((root / "log/a").glob("0*"))
    packed.rename(packed.with_suffix(".zst"))
    with pytest.raises(CorruptFragmentError, match=r"\.zst.* is corrupt: not ZSTANDARD"):
        rows_of(files)
    raw.rename(raw.with_suffix(".gz"))
    with pytest.raises(CorruptFragmentError, match=r"\.gz.* is corrupt: not GZIP"):
        rows_of(files)


def test_a_file_that_is_gone_since_the_plan(store: tuple[StoreFiles, Path]) -> None:
    files, root = store
    for options in (store_options(), store_options(failOnDataLoss="false")):
        stored(root)
        pieces = plan(files, options)
        lost = sorted((root / "log/a").glob("0*"))[2]
        lost.unlink()
        begin, end = (int(part, 16) for part in lost.name.split("-")[:2])
        if options.fail_on_data_loss:
            with pytest.raises(DataLossError, match=f"offset {begin}: the next available byte is at {end}"):
                read(files, options, pieces)
        else:
            # The first record after the gap may be incomplete.
            left = [row for row in EXPECTED if row[1] + len(row[2]) < begin or row[1] > end]
            assert read(files, options, pieces) == left


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FragmentStoreError, match=f"file://{tmp_path}/none/: the directory does not exist"):
        rows_of(open_store(f"file://{tmp_path}/none"))


@pytest.mark.parametrize("link", ["log/b", "log/a/link"], ids=["directory", "file"])
def test_links_are_refused(tmp_path: Path, link: str) -> None:
    """Following a link could read outside of the store, and ignoring it would lose bytes."""
    root = tmp_path / "store"
    stored(root)
    (tmp_path / "elsewhere").mkdir()
    (root / link).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FragmentStoreError, match=f"{link}: it is a symbolic link"):
        rows_of(Directory(str(root)))


def test_pipes_are_refused(tmp_path: Path) -> None:
    """Reading a pipe would block, and ignoring it would lose bytes."""
    stored(tmp_path)
    os.mkfifo(tmp_path / "log/a/pipe")
    with pytest.raises(FragmentStoreError, match="log/a/pipe: it is neither a regular file nor a directory"):
        rows_of(Directory(str(tmp_path)))


def test_a_directory_that_became_a_link_since_the_plan(tmp_path: Path) -> None:
    """Files are opened only below the store's directory."""
    root = tmp_path / "store"
    stored(root)
    options, files = store_options(), Directory(str(root))
    pieces = plan(files, options)
    (root / "log/a").rename(tmp_path / "a")
    (root / "log/a").symlink_to(tmp_path / "a")
    with pytest.raises(ProtocolError, match="leads out of the file root"):
        read(files, options, pieces)


@pytest.mark.parametrize("path", ["../secret", "log/../../secret"])
def test_no_path_leads_out(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_bytes(b"abc")
    (tmp_path / "store/log").mkdir(parents=True)
    asked = StoredFragment(fragment_of("log/a", 0, b"abc"), path, 3)
    with pytest.raises((ProtocolError, DirectReadError)):
        Directory(str(tmp_path / "store")).open(asked, 0, 3)


def test_an_unreadable_file_is_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers write files that only they may read. The error says so, and nothing is skipped."""
    stored(tmp_path / "store")

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DirectReadError, match=r"log/a/.*: Permission denied"):
        rows_of(Directory(str(tmp_path / "store")), failOnDataLoss="false")


def test_other_files_are_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored(tmp_path)
    for n in range(3):
        (tmp_path / f"log/a/note-{n}.txt").write_text("hello")
    with caplog.at_level(logging.WARNING):
        assert rows_of(Directory(str(tmp_path))) == EXPECTED
    (record,) = caplog.records
    assert "count=3 first=log/a/note-0.txt" in record.getMessage()


def test_files_of_one_span_that_differ_are_named(store: tuple[StoreFiles, Path]) -> None:
    files, root = store
    first = min((root / "log/a").glob("0*"))
    other = MemoryFiles()
    path = other.put("log/a", 0, first.read_bytes()[::-1], pb.GZIP)
    other.write_to(root)
    with pytest.raises(FragmentConflictError, match=r"\[0, .*SHA-1 sums differ.*log/a/0.*log/a/0") as caught:
        plan(files, store_options())
    assert {source.rpartition("/")[2] for source in caught.value.sources} == {first.name, path[6:]}


def test_one_listing_serves_a_query() -> None:
    files = MemoryFiles()
    for n in range(30):
        files.put(f"log/{n:03}", 0, b"a\nb\n")
    assert len(rows_of(files)) == 60
    assert files.listed == [["log"]]
    assert "30 journals" in repr(StoreJournals.listed(files, StoreSelection(prefix="log/")))


def test_a_bucket_is_opened_by_its_url() -> None:
    made = open_store("s3://some-bucket/a/path?region=eu-west-1&scheme=https")
    assert made.url == "s3://some-bucket/a/path/"
    with pytest.raises(FragmentStoreError) as caught:
        open_store("s3://some-bucket/a?nonsense=hidden")
    assert "s3://some-bucket/a" in str(caught.value)
    assert "hidden" not in str(caught.value)
