"""Decides which operations of a recovery log count, and which files they make. Pure.

An operation counts if it continues the chain, that is, if its sequence number and checksum are the expected
ones. Several recorders may append to one log, so a log is a tree of histories. Hints determine the branch by
authors. After the hints, the first operation that fits counts. A recorder that was replaced continues a chain
that ended before its successor's first operation, so its operations never fit.

A file is identified by its fnode, the sequence number of the operation that created it. It keeps this number
when it is renamed, and is deleted with its last link.

A segment is a run of operations by one author, that is, a part of a log that must be read to rebuild the
files. A set of segments is a list with increasing sequence numbers that do not overlap. Segments that overlap
or touch are merged.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from enum import Enum

from gazette_spark.consumer.recoverylog.operations import crc32c
from gazette_spark.errors import OptionError, ProtocolError
from gazette_spark.protocol import recoverylog_pb2 as pr
from gazette_spark.protocol.journal_specs import validate_journal_name


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of operations, by sequence number and offset in its log."""

    author: int
    first_seq_no: int
    first_offset: int
    """Lower bound of the offset of the first operation, which is exact if a player made the segment."""
    first_checksum: int
    """Checksum of the chain before the first operation."""
    last_seq_no: int
    last_offset: int
    """Offset after the last operation; 0 if it is unknown, because a recorder made the segment."""
    log: str

    @classmethod
    def of(cls, hinted: pr.Segment, log: str) -> Segment:
        """Return a segment of hints. ``log`` is the log of the hints, used if the segment names none.

        Raises:
            ProtocolError: the segment is inconsistent.
        """
        segment = cls(
            hinted.author,
            hinted.first_seq_no,
            hinted.first_offset,
            hinted.first_checksum,
            hinted.last_seq_no,
            hinted.last_offset,
            hinted.log or log,
        )
        # Hints come from Etcd or from a file. Refuse an impossible segment here, where its values are known.
        segment._check()
        return segment

    def to_pb(self, log: str) -> pr.Segment:
        """Return the segment for hints of a log."""
        return pr.Segment(
            author=self.author,
            first_seq_no=self.first_seq_no,
            first_offset=self.first_offset,
            first_checksum=self.first_checksum,
            last_seq_no=self.last_seq_no,
            last_offset=self.last_offset,
            # Gazette omits the log if it equals that of the hints.
            log="" if self.log == log else self.log,
        )

    def _check(self) -> None:
        problem = ""
        if self.author == 0:
            problem = "author is 0"
        elif self.first_seq_no <= 0:
            problem = f"first_seq_no is {self.first_seq_no}; expected above 0"
        elif self.first_offset < 0:
            problem = f"first_offset is {self.first_offset}; expected 0 or more"
        elif self.last_seq_no < self.first_seq_no:
            problem = f"last_seq_no {self.last_seq_no} is below first_seq_no {self.first_seq_no}"
        elif 0 != self.last_offset <= self.first_offset:
            problem = f"last_offset {self.last_offset} is not above first_offset {self.first_offset}"
        if problem:
            raise ProtocolError("Segment", problem)
        validate_journal_name(self.log, where="Segment.Log")


def add_segment(segments: list[Segment], segment: Segment) -> None:
    """Add a segment to a set, and merge it with segments that it overlaps or continues.

    Raises:
        ProtocolError: the segment contradicts one in the set.
    """
    # The set is sorted and has no overlaps, so only the segment before and those after can touch the new one.
    begin = bisect_left(segments, segment.first_seq_no, key=lambda member: member.first_seq_no)
    if begin and (joined := _joined(segments[begin - 1], segment)) is not None:
        segment, begin = joined, begin - 1
        end = begin + 1
    else:
        end = begin
    # A long segment may join several that were separate.
    while end < len(segments) and (joined := _joined(segments[end], segment)) is not None:
        segment, end = joined, end + 1
    segments[begin:end] = [segment]


def _joined(a: Segment, b: Segment) -> Segment | None:
    """Return one segment for two, or None if both are needed."""
    # Order the two, so that each rule below occurs once: a begins first or, if both begin together, is
    # longer.
    if a.first_seq_no > b.first_seq_no or (
        a.first_seq_no == b.first_seq_no and a.last_seq_no < b.last_seq_no
    ):
        a, b = b, a
    # The two may contradict each other. Offsets of two logs cannot be compared; the other rules apply across
    # logs.
    same_log, problem = a.log == b.log, ""
    if a.first_seq_no < b.first_seq_no and same_log and a.first_offset > b.first_offset:
        problem = "first offsets decrease"
    # A recorder has no last offsets, but a player has all of them. A player's segments come first, because a
    # recorder continues what a player has read.
    elif a.first_seq_no < b.first_seq_no and a.last_offset == 0 and b.last_offset != 0:
        problem = "only the later segment has a last offset"
    # Only the newest log is written. Segments of older logs have been played, so their last offsets are
    # known.
    elif a.last_offset == 0 and not same_log:
        problem = "a segment without last offset precedes one of another log"
    elif same_log and (
        (a.last_seq_no <= b.last_seq_no and 0 != b.last_offset < a.last_offset)
        or (a.last_seq_no >= b.last_seq_no and 0 != a.last_offset < b.last_offset)
    ):
        problem = "last offsets decrease"
    elif a.first_seq_no == b.first_seq_no and a.first_checksum != b.first_checksum:
        problem = "checksums of one operation differ"
    if problem:
        raise ProtocolError("SegmentSet", f"{problem}: {a} and {b}")
    adjacent = a.last_seq_no + 1 == b.first_seq_no
    # The gap between two segments need not be read. Adjacent segments of two authors stay separate, because
    # hints determine the branch by author.
    if a.last_seq_no + 1 < b.first_seq_no or (adjacent and (a.author, a.log) != (b.author, b.log)):
        return None
    # A sequence number has one author. Two authors mean that the hints mix two branches of the log.
    if (a.author, a.log) != (b.author, b.log):
        raise ProtocolError("SegmentSet", f"overlapping segments differ in author or log: {a} and {b}")
    # Both are lower bounds of the same offset, so the larger one is better.
    first_offset = max(a.first_offset, b.first_offset) if a.first_seq_no == b.first_seq_no else a.first_offset
    last_seq_no, last_offset = a.last_seq_no, a.last_offset
    if last_seq_no == b.last_seq_no:
        # 0 means unknown: a player, which has the offset, may have made the other segment.
        last_offset = last_offset or b.last_offset
    elif last_seq_no < b.last_seq_no:
        last_seq_no, last_offset = b.last_seq_no, b.last_offset
    return replace(a, first_offset=first_offset, last_seq_no=last_seq_no, last_offset=last_offset)


class Verdict(Enum):
    """How an operation fits the chain. All values except the first two leave the state unchanged."""

    APPLIED = "it counts"
    NOT_TRACKED = "it counts, but its file is deleted later"
    WRONG_AUTHOR = "the hints name another author for the next operation"
    WRONG_SEQ_NO = "its sequence number is not the next one"
    WRONG_CHECKSUM = "its checksum is not that of the chain"
    EXPECTED_CREATE = "according to the hints it creates a file, but it does not"
    LINK_EXISTS = "a file already has the path"
    PROPERTY_EXISTS = "a property already has the path"
    NO_SUCH_LINK = "the file does not have the path"


@dataclass(slots=True)
class Node:
    """A live file."""

    links: set[str]
    segments: list[Segment] = field(default_factory=list)
    """Segments that contain all operations on the file, in order."""


class FSM:
    """The files that a chain of operations makes, and the conditions for the next operation."""

    def __init__(self, hints: pr.FSMHints) -> None:
        """Begin before the first operation that hints name or, without live files, before the log's first.

        Raises:
            OptionError: the hints name no log.
            ProtocolError: the hints contradict themselves.
        """
        if not hints.log:
            raise OptionError("hints", "hints without a log", "the journal of the recovery log")
        # Properties have no segments, because their contents are in the hints themselves.
        fnodes, segments = live_log_segments(hints)
        # Begin in the middle of the chain, because earlier operations concern no live file. Their checksum
        # comes from the hints.
        self.next_seq_no = segments[0].first_seq_no if segments else 1
        self.next_checksum = segments[0].first_checksum if segments else 0
        self.last_log = hints.log
        """Log of the newest operation that counted."""
        self.properties = {prop.path: prop.content for prop in hints.properties}
        """Contents of small files with a fixed path, by path."""
        self.nodes: dict[int, Node] = {}
        """Live files by fnode."""
        self.links: dict[str, int] = {}
        """Fnode of each path."""
        self.hinted_segments = segments
        """Hinted segments that have not been applied yet, in order."""
        self._hinted_fnodes = fnodes

    def __repr__(self) -> str:
        return f"FSM({self.last_log!r}, next_seq_no={self.next_seq_no}, files={len(self.nodes)})"

    def apply(self, op: pr.RecordedOp, payload: bytes) -> Verdict:  # noqa: C901, PLR0912 - one decision
        """Apply an operation, if it counts.

        Args:
            op: the operation, with its offsets and its log.
            payload: the operation's bytes in the log without header, of which the checksum is computed.
        """
        # As long as there are hints, they determine the branch of the history by its author. Another author's
        # operation may also have the next sequence number if both recorders continued the same chain.
        segments = self.hinted_segments
        if segments and segments[0].author != op.author:
            return Verdict.WRONG_AUTHOR
        # A number that was already applied is a repetition by a retried append. A number that is too high
        # comes from a recorder with a different history.
        if op.seq_no != self.next_seq_no:
            return Verdict.WRONG_SEQ_NO
        # The number may fit by chance, or because the recorder was replaced after the same number of
        # operations. The checksum covers all operations before this one, so only a recorder with the same
        # history has it.
        if op.checksum != self.next_checksum:
            return Verdict.WRONG_CHECKSUM

        if op.HasField("create"):
            verdict = self._create(op)
        # A file is identified by the number of its create operation. Another operation with that number means
        # that the hints belong to another history.
        elif self._hinted_fnodes and self._hinted_fnodes[0] == op.seq_no:
            verdict = Verdict.EXPECTED_CREATE
        elif op.HasField("link"):
            verdict = self._link(op)
        elif op.HasField("unlink"):
            verdict = self._unlink(op)
        elif op.HasField("write"):
            verdict = self._touch(op.write.fnode, op)
        elif op.HasField("property"):
            verdict = Verdict.LINK_EXISTS if op.property.path in self.links else Verdict.APPLIED
            if verdict is Verdict.APPLIED:
                self.properties[op.property.path] = op.property.content
        else:
            # This is an operation without effect: a hand-off.
            verdict = Verdict.APPLIED

        # A refused operation does not move the chain, so the next one that fits is still found. An operation
        # whose file is not tracked moves it, because it is part of the history that later checksums cover.
        if verdict in (Verdict.APPLIED, Verdict.NOT_TRACKED):
            self.next_seq_no += 1
            self.next_checksum = crc32c(payload, self.next_checksum)
            self.last_log = op.log
            if segments and segments[0].last_seq_no < self.next_seq_no:
                # Operations between two hinted segments concern files that were deleted later. Jump over
                # them.
                segments.pop(0)
                if segments:
                    self.next_seq_no = segments[0].first_seq_no
                    self.next_checksum = segments[0].first_checksum
        return verdict

    def build_hints(self, log: str) -> pr.FSMHints:
        """Return hints for ``log`` with which another state machine reaches this state."""
        return pr.FSMHints(
            log=log,
            live_nodes=[
                pr.FnodeSegments(fnode=fnode, segments=[segment.to_pb(log) for segment in node.segments])
                for fnode, node in sorted(self.nodes.items())
            ],
            properties=[
                pr.Property(path=path, content=content) for path, content in sorted(self.properties.items())
            ],
        )

    def _create(self, op: pr.RecordedOp) -> Verdict:
        path, fnode = op.create.path, op.seq_no
        # As long as there are hints, a file that they do not name is deleted later by operations that may be
        # skipped, so its path must not stay taken.
        if self.hinted_segments and fnode not in self._hinted_fnodes[:1]:
            return Verdict.NOT_TRACKED
        if (taken := self._taken(path)) is not None:
            return taken
        del self._hinted_fnodes[:1]
        self.nodes[fnode] = Node({path})
        self.links[path] = fnode
        return self._touch(fnode, op)

    def _link(self, op: pr.RecordedOp) -> Verdict:
        path, fnode = op.link.path, op.link.fnode
        if (taken := self._taken(path)) is not None:
            return taken
        # A link of a file that is not tracked leaves its path free for the file that finally has it.
        if fnode in self.nodes:
            self.nodes[fnode].links.add(path)
            self.links[path] = fnode
        return self._touch(fnode, op)

    def _unlink(self, op: pr.RecordedOp) -> Verdict:
        path, fnode = op.unlink.path, op.unlink.fnode
        node = self.nodes.get(fnode)
        if node is None:
            return Verdict.NOT_TRACKED
        if path not in node.links:
            return Verdict.NO_SUCH_LINK
        node.links.remove(path)
        del self.links[path]
        # Do this before deleting the node: if the file has further links, it remains, and its segments have
        # to include this operation.
        self._touch(fnode, op)
        if not node.links:
            del self.nodes[fnode]
        return Verdict.APPLIED

    def _taken(self, path: str) -> Verdict | None:
        if path in self.links:
            return Verdict.LINK_EXISTS
        return Verdict.PROPERTY_EXISTS if path in self.properties else None

    def _touch(self, fnode: int, op: pr.RecordedOp) -> Verdict:
        """Record the position of an operation on a file, which hints must include."""
        node = self.nodes.get(fnode)
        if node is None:
            return Verdict.NOT_TRACKED
        segments = node.segments
        # The segment may also span operations on other files, because reading them is cheaper than starting
        # another read.
        begin = (op.seq_no, op.first_offset, op.checksum)
        if segments and (segments[-1].author, segments[-1].log) == (op.author, op.log):
            last = segments.pop()
            begin = (last.first_seq_no, last.first_offset, last.first_checksum)
        segments.append(Segment(op.author, *begin, op.seq_no, op.last_offset, op.log))
        return Verdict.APPLIED


def live_log_segments(hints: pr.FSMHints) -> tuple[list[int], list[Segment]]:
    """Return the fnodes that hints name, and the segments that contain all of their operations.

    Raises:
        ProtocolError: the hints contradict themselves.
    """
    fnodes: list[int] = []
    segments: list[Segment] = []
    for node in hints.live_nodes:
        # A file without its create operation could not be staged.
        if not node.segments or node.segments[0].first_seq_no != node.fnode:
            problem = f"fnode {node.fnode} is not the first sequence number of its first segment"
            raise ProtocolError("FSMHints.LiveNodes", problem)
        if fnodes and fnodes[-1] >= node.fnode:
            raise ProtocolError("FSMHints.LiveNodes", f"fnode {node.fnode} comes after {fnodes[-1]}")
        fnodes.append(node.fnode)
        for segment in node.segments:
            # Merge the segments of all files, so that each part of the log is read once, however many files
            # need it.
            add_segment(segments, Segment.of(segment, hints.log))
    # After the last segment, the player continues to the head of this log, which is the log that is handed
    # over.
    if segments and segments[-1].log != hints.log:
        problem = f"the last segment is of log {segments[-1].log!r}, not {hints.log!r}"
        raise ProtocolError("FSMHints.Log", problem)
    return fnodes, segments
