"""Tests that a store never leaves its directory, and that a journal lists only its own files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gazette_spark.broker.storage.fragment_content import stored_content
from gazette_spark.broker.storage.fragment_store import FragmentStore, open_store
from gazette_spark.errors import CorruptFragmentError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment


def fragment(journal: str = "a/journal", begin: int = 0, postfix: str = "", codec: int = pb.NONE) -> Fragment:
    return Fragment(journal, begin, begin + 4, bytes(range(20)), codec, path_postfix=postfix)


@pytest.fixture
def store(tmp_path: Path) -> FragmentStore:
    return open_store(tmp_path, "file:///")


def listed(store: FragmentStore, journal: str, *others: str) -> list[Fragment]:
    """List a journal's fragments when ``others`` are journals, too."""
    return sorted(store.list(journal, lambda name: name in others), key=lambda one: one.begin)


def test_put_and_list(store: FragmentStore) -> None:
    put = store.put(fragment(postfix="date=2026-11-21"), [b"ab", b"cd"], fsync=True)
    path = store.path(put)
    assert path.read_bytes() == b"abcd"
    assert path.relative_to(store.root).as_posix().startswith("a/journal/date=2026-11-21/0000000000000000-")
    assert put.backing_store == "file:///"
    assert put.mod_time == int(path.stat().st_mtime)
    assert listed(store, "a/journal") == [put]
    assert store.fragment_url(put) == f"file:///{put.content_path}"


def test_a_failed_put_leaves_nothing(store: FragmentStore) -> None:
    def broken() -> Iterator[bytes]:
        yield b"ab"
        raise OSError("disk on fire")

    with pytest.raises(OSError, match="on fire"):
        store.put(fragment(), broken(), fsync=False)
    assert list((store.root / "a/journal").iterdir()) == []


def test_a_longer_journal_name_is_another_journal(store: FragmentStore) -> None:
    """The file of ``a/journal/part`` could also be one of ``a/journal`` with a postfix."""
    own = store.put(fragment(postfix="date=x"), [b"abcd"], fsync=False)
    store.put(fragment("a/journal/part", begin=4), [b"abcd"], fsync=False)
    assert listed(store, "a/journal", "a/journal/part") == [own]
    assert len(listed(store, "a/journal")) == 2


def test_strange_files_are_skipped(store: FragmentStore) -> None:
    own = store.put(fragment(), [b"abcd"], fsync=False)
    folder = store.root / "a/journal"
    (folder / "README").write_text("hello")
    (folder / f".partial-{own.content_name}").write_text("abcd")
    (folder / fragment(begin=8).content_name).symlink_to(folder / own.content_name)
    os.mkfifo(folder / fragment(begin=12).content_name)
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    assert listed(store, "a/journal") == [own]


def test_a_journal_without_files(store: FragmentStore) -> None:
    assert listed(store, "b/journal") == []


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("file:///../x/", id="dots"),
        pytest.param("file:///a/../../x/", id="inner-dots"),
        pytest.param("file:///.gazette/", id="own-state"),
        pytest.param("file:///./.gazette/", id="own-state-after-a-dot"),
        pytest.param("file:///state/", id="own-state-through-a-link"),
        pytest.param("file:///x", id="no-slash"),
        pytest.param("file:///x/?sign=1", id="unknown-argument"),
        pytest.param("file:///link/", id="link-out-of-the-root"),
    ],
)
def test_refused_store(tmp_path: Path, url: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path, target_is_directory=True)
    (root / "state").symlink_to(root / ".gazette", target_is_directory=True)
    with pytest.raises(ProtocolError, match="FragmentStore"):
        open_store(root, url)


def test_other_schemes_are_directories_too(tmp_path: Path) -> None:
    """A bucket's path is a directory under the root, as with Gazette's file-only flag."""
    (tmp_path / "x").mkdir()
    store = open_store(tmp_path, "s3://bucket/x/?profile=p")
    put = store.put(fragment(codec=pb.GZIP_OFFLOAD_DECOMPRESSION), [b"abcd"], fsync=False)
    assert store.path(put).parent == tmp_path / "x/a/journal"
    assert listed(store, "a/journal") == [put]


def test_find_and_replace(tmp_path: Path) -> None:
    """The first occurrence of ``find`` in an object's path is replaced."""
    store = open_store(tmp_path, "file:///?find=a/&replace=b/")
    put = store.put(fragment(), [b"abcd"], fsync=False)
    assert store.path(put).parent == tmp_path / "b/journal"
    assert listed(store, "a/journal") == [put]


def test_a_missing_directory_is_a_problem(tmp_path: Path) -> None:
    store = open_store(tmp_path, "file:///x/")
    assert "does not exist" in store.problem()
    (tmp_path / "x").mkdir()
    assert store.problem() == ""


@pytest.mark.parametrize("codec", [pytest.param(pb.NONE, id="none"), pytest.param(pb.GZIP, id="gzip")])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"abc", "3|offset 3", id="short"),
        pytest.param(b"abcde", "5|more bytes", id="long"),
        pytest.param(b"", "0|offset 0", id="empty"),
    ],
)
def test_a_file_of_another_length_is_corrupt(
    store: FragmentStore, codec: int, content: bytes, problem: str
) -> None:
    """The file's name states the length of its content."""
    from gazette_spark.broker.storage.encoders import encode

    put = store.put(fragment(codec=codec), encode([content], codec), fsync=False)
    with pytest.raises(CorruptFragmentError, match=problem) as caught:
        list(stored_content(store.path(put), put, 0, 4, 100))
    assert (caught.value.journal, caught.value.begin, caught.value.end) == ("a/journal", 0, 4)


def test_garbage_under_a_codec_is_corrupt(store: FragmentStore) -> None:
    put = store.put(fragment(codec=pb.ZSTANDARD), [b"no zstandard"], fsync=False)
    with pytest.raises(CorruptFragmentError, match="ZSTANDARD"):
        list(stored_content(store.path(put), put, 0, 4, 100))


@pytest.mark.parametrize("codec", [pytest.param(pb.NONE, id="none"), pytest.param(pb.SNAPPY, id="snappy")])
def test_a_span_of_a_stored_fragment(store: FragmentStore, codec: int) -> None:
    """Any span is read exactly, in chunks of at most the requested size."""
    from gazette_spark.broker.storage.encoders import encode

    put = store.put(fragment(codec=codec), encode([b"abcd"], codec), fsync=False)
    for begin in range(4):
        for end in range(begin + 1, 5):
            chunks = list(stored_content(store.path(put), put, begin, end, 2))
            assert b"".join(chunks) == b"abcd"[begin:end]
            assert max(map(len, chunks)) <= 2


def test_a_probe_leaves_what_gazettes_does(store: FragmentStore) -> None:
    """Leave Gazette's health-check object, which no journal lists as a fragment."""
    assert store.probe() == ""
    assert store.probe("tmp/") == ""
    files = [path.relative_to(store.root).as_posix() for path in store.root.rglob("*") if path.is_file()]
    assert files == [".test/health-check"]


def test_a_probe_tells_what_fails(store: FragmentStore, tmp_path: Path) -> None:
    assert "does not exist" in open_store(tmp_path, "file:///missing/").probe()
    assert "leads out" in store.probe("../")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".test").write_text("in the way")
    assert ".test" in open_store(tmp_path, "file:///other/").probe()


@pytest.mark.parametrize(
    ("find", "replacement"),
    [
        pytest.param("a/", "../victim/", id="out-of-the-root"),
        pytest.param("a/", ".gazette/", id="own-state"),
        pytest.param("a/", "./.gazette/", id="own-state-after-a-dot"),
        pytest.param("a/journal", "", id="the-store-itself"),
        pytest.param("a/", "/", id="absolute"),
        pytest.param("a/", "link/", id="through-a-link"),
        pytest.param("a/", "state/", id="own-state-through-a-link"),
        pytest.param("a/", "b\0/", id="nul"),
    ],
)
def test_a_rewritten_path_is_checked(tmp_path: Path, find: str, replacement: str) -> None:
    """No operation follows ``find`` and ``replace`` out of the root or into the broker's state."""
    root, victim = tmp_path / "root", tmp_path / "victim"
    (root / ".gazette").mkdir(parents=True)
    victim.mkdir()
    (root / "link").symlink_to(victim, target_is_directory=True)
    (root / "state").symlink_to(root / ".gazette", target_is_directory=True)
    store = FragmentStore("file:///", root, "", find, replacement)
    operations: tuple[Callable[[], object], ...] = (
        lambda: store.check(fragment()),
        lambda: store.put(fragment(), [b"abcd"], fsync=False),
        lambda: store.path(fragment()),
        lambda: listed(store, "a/journal"),
    )
    for operation in operations:
        with pytest.raises(ProtocolError, match="FragmentStore"):
            operation()
    assert [*victim.iterdir(), *(root / ".gazette").iterdir()] == []


@pytest.mark.parametrize("find", ["0000", "l/", ".raw"])
def test_a_fragment_that_is_not_listed_again_is_refused(tmp_path: Path, find: str) -> None:
    """The next start would not find a fragment if ``find`` changed more than the journal's name."""
    with pytest.raises(ProtocolError, match="more than the journal's name"):
        FragmentStore("file:///", tmp_path, "", find, "x").check(fragment())


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_what_is_no_file_takes_the_place_of_none(tmp_path: Path, store: FragmentStore, kind: str) -> None:
    """Opening a pipe would block, and a link could lead out of the root."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"health-check\n")
    health = store.root / ".test/health-check"
    for path in (store.path(fragment()), health):
        path.parent.mkdir(parents=True)
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(secret)
        else:
            path.mkdir()
    with pytest.raises(OSError, match="not a regular file"):
        store.put(fragment(), [b"abcd"], fsync=False)
    with pytest.raises(OSError, match=r"regular file|symbolic link"):
        list(stored_content(store.path(fragment()), fragment(), 0, 4, 100))
    assert str(health) in store.probe()
    assert secret.read_bytes() == b"health-check\n"
