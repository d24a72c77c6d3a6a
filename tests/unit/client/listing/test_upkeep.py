"""Only what is past its retention is deleted, and only the file that a fragment's name stands for."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from gazette_spark.client import Client
from gazette_spark.client.listing.listings import ListedFragment
from gazette_spark.client.listing.upkeep import Pruned, aged, remove_fragment, reset_head, suspend_journal
from gazette_spark.errors import FragmentNotRemovedError, GazetteError, NotAllowedError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.testing.stub_broker import Fail, StubBroker, not_yet

JOURNAL = "a/journal"
NOW = 1_800_000_000.0
COMMIT = pb.AppendResponse(
    commit=pb.Fragment(journal=JOURNAL, begin=9, end=9, compression_codec=pb.NONE), registers=pb.LabelSet()
)


def fragment(
    begin: int = 0, *, store: str = "file:///", age_s: float = 100, codec: int = pb.GZIP
) -> Fragment:
    """Return a fragment of ten bytes."""
    mod_time = int(NOW - age_s) if store else 0
    return Fragment(JOURNAL, begin, begin + 10, bytes(20), codec, store, mod_time)


@pytest.mark.parametrize(
    ("retention_s", "expected"),
    [
        pytest.param(50, [0, 30], id="half"),
        pytest.param(100, [0, 30], id="at its age"),
        pytest.param(101, [], id="a second less"),
        pytest.param(0, [], id="none"),
        pytest.param(-1, [], id="less than none"),
    ],
)
def test_aged(retention_s: float, expected: list[int]) -> None:
    """A stored fragment as old as the retention is past it; without a retention none is."""
    listed = [
        ListedFragment(fragment(0), "file:///a/journal/x"),
        ListedFragment(fragment(10, age_s=10), "file:///a/journal/y"),
        ListedFragment(fragment(20, store=""), ""),
        ListedFragment(fragment(30, store="s3://bucket/"), "https://s3/x?sig=SECRET"),
    ]
    found = list(aged(listed, retention_s=retention_s, now=NOW))
    assert [each.fragment.begin for each in found] == expected
    assert "SECRET" not in repr(found)
    assert [each.is_file for each in found] == [True, False][: len(found)]


def pruned(root: Path, *, folder: str = JOURNAL, codec: int = pb.GZIP) -> tuple[Pruned, Path]:
    """Make a fragment's file, and return both."""
    each = fragment(codec=codec)
    path = root / folder / each.content_name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return Pruned(each, f"file:///{folder}/{each.content_name}"), path


@pytest.mark.parametrize(
    "codec", [pb.NONE, pb.GZIP, pb.GZIP_OFFLOAD_DECOMPRESSION], ids=["raw", "gz", "gzod"]
)
def test_remove(tmp_path: Path, codec: int) -> None:
    """The file is deleted once, and nothing beside it."""
    each, path = pruned(tmp_path, folder=f"{JOURNAL}/date=2026-11-21", codec=codec)
    other = path.with_name("other")
    other.write_bytes(b"y")
    assert remove_fragment(each, tmp_path)
    assert [path.exists(), other.exists()] == [False, True]
    assert not remove_fragment(each, tmp_path)


def test_other_stores_are_left(tmp_path: Path) -> None:
    """Objects of other stores are left, because they are not files."""
    with pytest.raises(FragmentNotRemovedError, match="only files"):
        remove_fragment(Pruned(fragment(store="s3://bucket/"), "s3://bucket/"), tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "file:///a/journal/precious",
        "file:///a/journal/",
        "file:///../{name}",
        "file:///a/../../{name}",
        "file://",
    ],
)
def test_a_lying_broker_deletes_nothing_else(tmp_path: Path, url: str) -> None:
    """A URL that leads out of the root, or to a file of another name, is refused."""
    root = tmp_path / "root"
    each, path = pruned(root)
    (tmp_path / path.name).write_bytes(b"outside")
    (path.parent / "precious").write_bytes(b"inside")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ProtocolError):
        remove_fragment(Pruned(each.fragment, url.format(name=path.name)), root)
    assert sorted(tmp_path.rglob("*")) == before


def test_links_are_not_followed(tmp_path: Path) -> None:
    """A link to a folder outside the root is not followed, and neither is one to a file."""
    root = tmp_path / "root"
    _, outside = pruned(tmp_path / "outside")
    root.mkdir()
    (root / "a").symlink_to(tmp_path / "outside" / "a")
    each = Pruned(fragment(), f"file:///{JOURNAL}/{outside.name}")
    with pytest.raises(ProtocolError, match="leads out"):
        remove_fragment(each, root)
    (root / "a").unlink()
    (root / JOURNAL).mkdir(parents=True)
    (root / JOURNAL / outside.name).symlink_to(outside)
    with pytest.raises(FragmentNotRemovedError, match="not a regular file"):
        remove_fragment(each, root)
    assert outside.exists()


def test_a_root_that_is_not_there(tmp_path: Path) -> None:
    """A missing root is no sign that the fragment is gone."""
    with pytest.raises(FragmentNotRemovedError, match="no such root"):
        remove_fragment(Pruned(fragment(), f"file:///{JOURNAL}/{fragment().content_name}"), tmp_path / "none")


@pytest.mark.parametrize("force", [False, True])
def test_suspend(stub: StubBroker, client: Client, force: bool) -> None:
    """SUSPENDED is success, OK says that there was no need."""
    stub.script("Append", [pb.AppendResponse(status=pb.SUSPENDED)], [COMMIT])
    assert suspend_journal(client, JOURNAL, force=force)
    assert not suspend_journal(client, JOURNAL, force=force)
    asked = stub.requests("Append")[0][0].suspend
    assert asked == (pb.AppendRequest.SUSPEND_NOW if force else pb.AppendRequest.SUSPEND_IF_FLUSHED)


@pytest.mark.parametrize(
    ("answers", "expected", "suspends"),
    [
        pytest.param([COMMIT], 9, [pb.AppendRequest.SUSPEND_KEEP], id="done"),
        pytest.param(
            [pb.AppendResponse(status=pb.WRONG_APPEND_OFFSET)],
            None,
            [pb.AppendRequest.SUSPEND_KEEP],
            id="raced",
        ),
        pytest.param(
            [Fail(grpc.StatusCode.UNKNOWN, "Suspend: invalid Suspend variant (4)"), COMMIT],
            9,
            [pb.AppendRequest.SUSPEND_KEEP, pb.AppendRequest.SUSPEND_RESUME],
            id="an old broker",
        ),
    ],
)
def test_reset_head(
    stub: StubBroker,
    client: Client,
    answers: list[pb.AppendResponse | Fail],
    expected: int | None,
    suspends: list[int],
) -> None:
    """An empty append at the head that the stores have, which does not change a suspension."""
    stub.script("Read", [not_yet(9)])
    stub.script("Append", *([answer] for answer in answers))
    assert reset_head(client, JOURNAL) == expected
    requests = [messages[0] for messages in stub.requests("Append")]
    assert [each.offset for each in requests] == [9] * len(suspends)
    assert [each.suspend for each in requests] == suspends


def test_other_failures_are_raised(stub: StubBroker, client: Client) -> None:
    """Other failures are not taken for a race."""
    stub.script("Read", [not_yet(9)])
    stub.script("Append", [pb.AppendResponse(status=pb.NOT_ALLOWED)])
    for call in (reset_head, suspend_journal):
        with pytest.raises(NotAllowedError):
            call(client, JOURNAL)
    stub.script("Append", [Fail(grpc.StatusCode.UNKNOWN, "other")])
    with pytest.raises(GazetteError, match="other"):
        reset_head(client, JOURNAL)
