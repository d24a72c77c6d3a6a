"""Tests which operations of a recovery log count, and which segments rebuild the files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gazette_spark.consumer.recoverylog import FSM, Segment, Verdict, add_segment, fence_of
from gazette_spark.consumer.recoverylog.operations import crc32c, new_author, recorded_path
from gazette_spark.errors import OptionError, ProtocolError
from gazette_spark.protocol import recoverylog_pb2 as pr
from gazette_spark.protocol.labels import label_set

LOG = "recovery/log"
MINE, OTHER = 100, 200


class Chain:
    """Applies operations that fit, apart from the given fields."""

    def __init__(self, hints: pr.FSMHints | None = None) -> None:
        self.fsm = FSM(hints or pr.FSMHints(log=LOG))
        self.head = 0

    def apply(self, author: int = MINE, log: str = LOG, **fields: object) -> Verdict:
        """Apply an operation. Fields that are not given are those that fit."""
        op = pr.RecordedOp(seq_no=self.fsm.next_seq_no, checksum=self.fsm.next_checksum, author=author)
        op.MergeFrom(pr.RecordedOp(**fields))  # type: ignore[arg-type]  # Fields by name.
        payload = op.SerializeToString()
        op.first_offset, op.last_offset, op.log = self.head, self.head + 10, log
        self.head += 10
        return self.fsm.apply(op, payload)

    def create(self, path: str, **fields: object) -> Verdict:
        return self.apply(create=pr.RecordedOp.Create(path=path), **fields)  # type: ignore[arg-type]  # Fields by name, of mixed types.


def link(fnode: int, path: str) -> pr.RecordedOp.Link:
    return pr.RecordedOp.Link(fnode=fnode, path=path)


@pytest.mark.parametrize(
    ("data", "checksum"),
    [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)],
    ids=["nothing", "digits", "zeros", "ones"],
)
def test_checksums_are_castagnolis(data: bytes, checksum: int) -> None:
    """The checksum is CRC-32C; the vectors are those of RFC 3720."""
    assert crc32c(data) == checksum
    assert crc32c(data[5:], crc32c(data[:5])) == checksum


def test_fences_are_in_base_32() -> None:
    """Gazette writes an author's register as its number in base 32."""
    assert int(fence_of(0x1234ABCD).labels[0].value, 32) == 0x1234ABCD
    assert fence_of(31) == label_set({"author": "v"})
    assert fence_of(32) == label_set({"author": "10"})
    assert 0 < new_author() < 1 << 32


@pytest.mark.parametrize(
    ("path", "recorded"),
    [("a", "/a"), ("/a/", "/a"), ("a//b/./c", "/a/b/c"), ("a/../b", "/b"), ("../../b", "/b")],
    ids=["name", "slashes", "doubled", "up", "out"],
)
def test_paths_are_clean(path: str, recorded: str) -> None:
    assert recorded_path(path) == recorded


def test_the_directory_is_no_file() -> None:
    with pytest.raises(ValueError, match="below the recorded directory"):
        recorded_path("a/..")


def test_what_does_not_continue_the_chain_changes_nothing() -> None:
    chain = Chain()
    assert chain.create("/a") is Verdict.APPLIED
    before = chain.fsm.build_hints(LOG), chain.fsm.next_seq_no, chain.fsm.next_checksum
    assert chain.create("/b", seq_no=1) is Verdict.WRONG_SEQ_NO
    assert chain.create("/b", seq_no=3) is Verdict.WRONG_SEQ_NO
    assert chain.create("/b", checksum=1234) is Verdict.WRONG_CHECKSUM
    assert chain.create("/a") is Verdict.LINK_EXISTS
    assert chain.apply(link=link(1, "/a")) is Verdict.LINK_EXISTS
    assert chain.apply(unlink=link(1, "/b")) is Verdict.NO_SUCH_LINK
    assert chain.apply(property=pr.Property(path="/a", content="p")) is Verdict.LINK_EXISTS
    assert before == (chain.fsm.build_hints(LOG), chain.fsm.next_seq_no, chain.fsm.next_checksum)


def test_a_file_lives_until_its_last_link() -> None:
    chain = Chain()
    chain.create("/a")
    assert chain.apply(link=link(1, "/b")) is Verdict.APPLIED
    assert chain.apply(unlink=link(1, "/a")) is Verdict.APPLIED
    assert chain.fsm.links == {"/b": 1}
    assert chain.apply(unlink=link(1, "/b")) is Verdict.APPLIED
    assert chain.fsm.nodes == {}
    # The operation counts anyway: the recorder may have had a file that the player does not need.
    assert chain.apply(write=pr.RecordedOp.Write(fnode=1, length=3)) is Verdict.NOT_TRACKED
    assert chain.fsm.next_seq_no == 6


def test_properties_keep_their_paths() -> None:
    """Old logs have properties, whose paths no file may take."""
    chain = Chain()
    assert chain.apply(property=pr.Property(path="/IDENTITY", content="one")) is Verdict.APPLIED
    assert chain.create("/IDENTITY") is Verdict.PROPERTY_EXISTS
    assert chain.fsm.build_hints(LOG).properties[0].content == "one"


def test_hints_name_the_branch() -> None:
    """Operations of other authors do not count."""
    chain = Chain()
    chain.create("/deleted")
    chain.create("/kept")
    chain.apply(unlink=link(1, "/deleted"))
    chain.apply(write=pr.RecordedOp.Write(fnode=2, length=1))
    player = Chain(chain.fsm.build_hints(LOG))
    assert player.fsm.next_seq_no == 2
    assert player.create("/kept", author=OTHER) is Verdict.WRONG_AUTHOR
    assert player.apply() is Verdict.EXPECTED_CREATE
    assert player.create("/kept") is Verdict.APPLIED
    assert len(player.fsm.hinted_segments) == 1
    assert player.apply(unlink=link(1, "/deleted")) is Verdict.NOT_TRACKED
    assert player.apply(write=pr.RecordedOp.Write(fnode=2, length=1)) is Verdict.APPLIED
    assert not player.fsm.hinted_segments
    assert player.fsm.next_checksum == chain.fsm.next_checksum
    assert player.create("/more", author=OTHER) is Verdict.APPLIED


def test_hints_skip_between_segments() -> None:
    """After a segment's last operation, the next one is the first of the next segment."""
    chain = Chain()
    chain.create("/a")
    for _ in range(3):
        chain.create("/short", author=OTHER)
        chain.apply(unlink=link(chain.fsm.next_seq_no - 1, "/short"), author=OTHER)
    chain.create("/b", author=MINE, log="another/log")
    hints = chain.fsm.build_hints("another/log")
    assert [each.segments[0].log for each in hints.live_nodes] == [LOG, ""]
    player = Chain(hints)
    player.create("/a")
    assert player.fsm.next_seq_no == 8
    assert player.fsm.hinted_segments[0].log == "another/log"


def test_a_deleted_file_takes_no_path_between_hints() -> None:
    """A segment may skip a file's deletion, so it must not create files that the hints omit."""
    chain = Chain()
    chain.create("/a")
    chain.create("/other", author=OTHER)
    chain.create("/b", author=OTHER)
    chain.apply(write=pr.RecordedOp.Write(fnode=2, length=1), author=OTHER)
    chain.apply(unlink=link(3, "/b"), author=OTHER)
    chain.apply(link=link(1, "/b"), author=OTHER)
    player = Chain(chain.fsm.build_hints(LOG))
    assert [(each.first_seq_no, each.last_seq_no) for each in player.fsm.hinted_segments] == [
        (1, 1),
        (2, 4),
        (6, 6),
    ]
    player.create("/a")
    player.create("/other", author=OTHER)
    assert player.create("/b", author=OTHER) is Verdict.NOT_TRACKED
    player.apply(write=pr.RecordedOp.Write(fnode=2, length=1), author=OTHER)
    assert player.apply(link=link(1, "/b"), author=OTHER) is Verdict.APPLIED
    assert player.fsm.links == chain.fsm.links
    assert player.fsm.next_checksum == chain.fsm.next_checksum


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda hints: hints.ClearField("log"), "hints without a log"),
        (lambda hints: hints.live_nodes.reverse(), "comes after"),
        (lambda hints: hints.live_nodes[0].ClearField("segments"), "not the first sequence number"),
        (lambda hints: setattr(hints.live_nodes[0], "fnode", 7), "not the first sequence number"),
        (lambda hints: setattr(hints.live_nodes[0].segments[0], "author", 0), "author is 0"),
        (lambda hints: setattr(hints.live_nodes[0].segments[0], "first_offset", -1), "0 or more"),
        (lambda hints: setattr(hints.live_nodes[0].segments[0], "last_offset", 0), "only the later"),
        (lambda hints: setattr(hints.live_nodes[1].segments[0], "log", "b/log"), "of log 'b/log'"),
    ],
    ids=["no-log", "order", "no-segment", "fnode", "author", "offset", "last-offset", "log"],
)
def test_contradictions_in_hints_are_refused(change: Callable[[pr.FSMHints], object], problem: str) -> None:
    chain = Chain()
    chain.create("/a")
    chain.apply()
    chain.create("/b", author=OTHER)
    hints = chain.fsm.build_hints(LOG)
    change(hints)
    with pytest.raises((ProtocolError, OptionError), match=problem):
        FSM(hints)


def segment(first: int, last: int, *, offset: int = 0, end: int = 0, author: int = MINE) -> Segment:
    """Return a segment, by default with offsets that are ten times its operation numbers."""
    return Segment(author, first, offset or first * 10, 7, last, end or last * 10 + 10, LOG)


@pytest.mark.parametrize(
    ("added", "joined"),
    [
        ([(1, 4), (3, 8)], [(1, 8)]),
        ([(3, 8), (1, 4)], [(1, 8)]),
        ([(1, 9), (3, 5)], [(1, 9)]),
        ([(1, 4), (5, 8)], [(1, 8)]),
        ([(1, 3), (5, 8)], [(1, 3), (5, 8)]),
        ([(5, 8), (1, 2), (3, 4)], [(1, 8)]),
        ([(1, 2), (9, 9), (4, 6), (2, 4)], [(1, 6), (9, 9)]),
    ],
    ids=["overlap", "overlap-turned", "covered", "adjacent", "disjoint", "bridge", "several"],
)
def test_segments_join(added: list[tuple[int, int]], joined: list[tuple[int, int]]) -> None:
    found: list[Segment] = []
    for first, last in added:
        add_segment(found, segment(first, last))
    assert found == [segment(first, last) for first, last in joined]


def test_joined_segments_keep_the_tightest_bounds() -> None:
    found = [segment(1, 4, offset=5)]
    found[0] = replace(found[0], last_offset=0)
    add_segment(found, segment(1, 4, offset=9, end=50))
    assert found == [segment(1, 4, offset=9, end=50)]


def test_segments_of_two_authors_do_not_join() -> None:
    found = [segment(1, 4)]
    add_segment(found, segment(5, 8, author=OTHER))
    assert len(found) == 2
    with pytest.raises(ProtocolError, match="differ in author or log"):
        add_segment(found, segment(3, 4, author=OTHER))
