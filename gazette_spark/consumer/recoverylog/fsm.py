"""The state machine of a recovery log: which operations count, and the files they make. Pure.

An operation counts if it continues the chain: its sequence number and its checksum are the expected ones.
Several recorders may append to one log, so a log is a tree of histories. Hints name, by author, the branch
that is meant. After the hints the first operation that fits counts. A recorder that was replaced continues a
chain that ended before its successor's first operation, so its operations never fit.

A file is an fnode: the sequence number of the operation that created it. It keeps its number through renames,
and is gone with its last link.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from gazette_spark.consumer.recoverylog.operations import crc32c
from gazette_spark.consumer.recoverylog.segments import Segment, add_segment
from gazette_spark.errors import OptionError, ProtocolError
from gazette_spark.protocol import recoverylog_pb2 as pr


class Verdict(Enum):
    """What an operation is to the chain. All but the first two leave the state as it was."""

    APPLIED = "it counts"
    NOT_TRACKED = "it counts, but its file is known to be deleted later"
    WRONG_AUTHOR = "the hints name another author for the next operation"
    WRONG_SEQ_NO = "its sequence number is not the next one"
    WRONG_CHECKSUM = "its checksum is not that of the chain"
    EXPECTED_CREATE = "the hints say that it creates a file, and it does not"
    LINK_EXISTS = "a file has the path already"
    PROPERTY_EXISTS = "a property has the path already"
    NO_SUCH_LINK = "the file does not have the path"


@dataclass(slots=True)
class Node:
    """A live file."""

    links: set[str]
    segments: list[Segment] = field(default_factory=list)
    """Segments with all operations on the file, in order."""


class FSM:
    """The files that a chain of operations makes, and what the next operation has to be."""

    def __init__(self, hints: pr.FSMHints) -> None:
        """Begin before the first operation that hints name; without live files, before the log's first.

        Raises:
            OptionError: the hints name no log.
            ProtocolError: the hints contradict themselves.
        """
        if not hints.log:
            raise OptionError("hints", "hints without a log", "the journal of the recovery log")
        fnodes, segments = live_log_segments(hints)
        self.next_seq_no = segments[0].first_seq_no if segments else 1
        self.next_checksum = segments[0].first_checksum if segments else 0
        self.last_log = hints.log
        """Log of the newest operation that counted."""
        self.properties = {each.path: each.content for each in hints.properties}
        """Small files with a fixed path and their whole content."""
        self.nodes: dict[int, Node] = {}
        """Live files by fnode."""
        self.links: dict[str, int] = {}
        """Fnode of each path."""
        self.hinted_segments = segments
        """Hinted segments that are not applied yet, the next one first."""
        self._hinted_fnodes = fnodes

    def __repr__(self) -> str:
        return f"FSM({self.last_log!r}, next_seq_no={self.next_seq_no}, files={len(self.nodes)})"

    def apply(self, op: pr.RecordedOp, payload: bytes) -> Verdict:
        """Apply an operation, if it counts.

        Args:
            op: the operation, with its offsets and its log.
            payload: its bytes in the log, without header, as the checksum is of them.
        """
        if self.hinted_segments and self.hinted_segments[0].author != op.author:
            return Verdict.WRONG_AUTHOR
        if op.seq_no != self.next_seq_no:
            return Verdict.WRONG_SEQ_NO
        if op.checksum != self.next_checksum:
            return Verdict.WRONG_CHECKSUM
        verdict = self._change(op)
        if verdict in (Verdict.APPLIED, Verdict.NOT_TRACKED):
            self.next_seq_no += 1
            self.next_checksum = crc32c(payload, self.next_checksum)
            self.last_log = op.log
            self._leave_segment()
        return verdict

    def build_hints(self, log: str) -> pr.FSMHints:
        """Return hints by which another state machine gets to this state. ``log`` is recorded to."""
        return pr.FSMHints(
            log=log,
            live_nodes=[
                pr.FnodeSegments(fnode=fnode, segments=[each.to_pb(log) for each in node.segments])
                for fnode, node in sorted(self.nodes.items())
            ],
            properties=[
                pr.Property(path=path, content=content) for path, content in sorted(self.properties.items())
            ],
        )

    def _leave_segment(self) -> None:
        segments = self.hinted_segments
        if segments and segments[0].last_seq_no < self.next_seq_no:
            segments.pop(0)
            if segments:
                self.next_seq_no, self.next_checksum = segments[0].first_seq_no, segments[0].first_checksum

    def _change(self, op: pr.RecordedOp) -> Verdict:
        """Change the files, or return why the operation does not count and change nothing."""
        if op.HasField("create"):
            return self._create(op)
        if self._hinted_fnodes and self._hinted_fnodes[0] == op.seq_no:
            return Verdict.EXPECTED_CREATE
        kinds = (
            ("link", self._link),
            ("unlink", self._unlink),
            ("write", self._write),
            ("property", self._set_property),
        )
        change = next((change for name, change in kinds if op.HasField(name)), None)
        return Verdict.APPLIED if change is None else change(op)

    def _create(self, op: pr.RecordedOp) -> Verdict:
        path, fnode = op.create.path, op.seq_no
        # While hints last, a file that they do not name is deleted by operations that may be skipped: its
        # path must not stay taken.
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
        self._touch(fnode, op)
        if not node.links:
            del self.nodes[fnode]
        return Verdict.APPLIED

    def _write(self, op: pr.RecordedOp) -> Verdict:
        return self._touch(op.write.fnode, op)

    def _set_property(self, op: pr.RecordedOp) -> Verdict:
        if op.property.path in self.links:
            return Verdict.LINK_EXISTS
        self.properties[op.property.path] = op.property.content
        return Verdict.APPLIED

    def _taken(self, path: str) -> Verdict | None:
        if path in self.links:
            return Verdict.LINK_EXISTS
        return Verdict.PROPERTY_EXISTS if path in self.properties else None

    def _touch(self, fnode: int, op: pr.RecordedOp) -> Verdict:
        """Note that an operation on a file is at this place of the log."""
        node = self.nodes.get(fnode)
        if node is None:
            return Verdict.NOT_TRACKED
        segments = node.segments
        if segments and (segments[-1].author, segments[-1].log) == (op.author, op.log):
            segments[-1] = replace(segments[-1], last_seq_no=op.seq_no, last_offset=op.last_offset)
        else:
            place = (op.seq_no, op.first_offset, op.checksum, op.seq_no, op.last_offset)
            segments.append(Segment(op.author, *place, op.log))
        return Verdict.APPLIED


def live_log_segments(hints: pr.FSMHints) -> tuple[list[int], list[Segment]]:
    """Return the fnodes that hints name, and the segments that hold all of their operations.

    Raises:
        ProtocolError: the hints contradict themselves.
    """
    fnodes: list[int] = []
    segments: list[Segment] = []
    for node in hints.live_nodes:
        if not node.segments or node.segments[0].first_seq_no != node.fnode:
            problem = f"fnode {node.fnode} is not the first sequence number of its first segment"
            raise ProtocolError("FSMHints.LiveNodes", problem)
        if fnodes and fnodes[-1] >= node.fnode:
            raise ProtocolError("FSMHints.LiveNodes", f"fnode {node.fnode} comes after {fnodes[-1]}")
        fnodes.append(node.fnode)
        for segment in node.segments:
            add_segment(segments, Segment.of(segment, hints.log))
    if segments and segments[-1].log != hints.log:
        problem = f"the last segment is of log {segments[-1].log!r}, not {hints.log!r}"
        raise ProtocolError("FSMHints.Log", problem)
    return fnodes, segments
