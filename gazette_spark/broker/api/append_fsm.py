"""Decides about an append: its preconditions, the shape of its stream, its rolls, its registers.

This module only decides. ``broker.api.append`` carries out the decisions.

An append goes through these steps, and stops at the first that refuses it::

    resolve -> wait for its turn -> plan_append -> suspend_step -> chunks -> marker -> half-close = committed

The stream's transitions are the table :data:`TRANSITIONS`. A stream that ends anywhere but in ``COMMIT``
is rolled back: its bytes never become readable and the write head does not move.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from gazette_spark.protocol import labels
from gazette_spark.protocol import protocol_pb2 as pb


class StreamState(Enum):
    """State of an append's stream after its first message."""

    CONTENT = auto()
    """Content may follow."""
    MARKED = auto()
    """The empty message has arrived: only the half-close may follow."""
    COMMIT = auto()
    ROLL_BACK = auto()


class StreamEvent(Enum):
    """Event on an append's stream."""

    CHUNK = auto()
    MARKER = auto()
    """A message whose fields are all empty: the client wants to commit."""
    FOREIGN = auto()
    """A message that sets something other than content."""
    MIXED = auto()
    """A message that sets content and something else."""
    HALF_CLOSE = auto()


UNEXPECTED_EOF = "append stream: unexpected EOF"
UNEXPECTED_CONTENT = "append stream: unexpected Content"
EXPECTED_CHUNK = "append stream: expected Content chunk"
EXPECTED_EOF = "append stream: expected EOF after empty Content chunk"
UNDERFLOW = "append stream: client stream didn't sustain the minimum append data rate"
REGISTERS_NEED_CONTENT = "append stream: register modification requires non-empty Append"

TRANSITIONS: dict[tuple[StreamState, StreamEvent], tuple[StreamState, str]] = {
    (StreamState.CONTENT, StreamEvent.CHUNK): (StreamState.CONTENT, ""),
    (StreamState.CONTENT, StreamEvent.MARKER): (StreamState.MARKED, ""),
    (StreamState.CONTENT, StreamEvent.FOREIGN): (StreamState.ROLL_BACK, EXPECTED_CHUNK),
    (StreamState.CONTENT, StreamEvent.MIXED): (StreamState.ROLL_BACK, UNEXPECTED_CONTENT),
    (StreamState.CONTENT, StreamEvent.HALF_CLOSE): (StreamState.ROLL_BACK, UNEXPECTED_EOF),
    (StreamState.MARKED, StreamEvent.CHUNK): (StreamState.ROLL_BACK, EXPECTED_EOF),
    (StreamState.MARKED, StreamEvent.MARKER): (StreamState.ROLL_BACK, EXPECTED_EOF),
    (StreamState.MARKED, StreamEvent.FOREIGN): (StreamState.ROLL_BACK, EXPECTED_EOF),
    (StreamState.MARKED, StreamEvent.MIXED): (StreamState.ROLL_BACK, EXPECTED_EOF),
    (StreamState.MARKED, StreamEvent.HALF_CLOSE): (StreamState.COMMIT, ""),
}
"""Maps (state, event) to (next state, text of the error if the append is rolled back)."""


def classify(message: pb.AppendRequest, content: bytes) -> StreamEvent:
    """Classify a message after the first one; ``content`` is its content, copied once."""
    if not content:
        return StreamEvent.FOREIGN if message.ListFields() else StreamEvent.MARKER
    # The expected size is a tag, a length with seven bits in each byte, and the content. If the size is
    # equal, nothing else is set. Compare sizes, because `ListFields` makes Python objects of the fields,
    # which copies the content.
    bare_size = 1 + -(-len(content).bit_length() // 7) + len(content)
    if message.ByteSize() == bare_size or len(message.ListFields()) == 1:
        return StreamEvent.CHUNK
    return StreamEvent.MIXED


@dataclass(frozen=True, slots=True)
class JournalHead:
    """A journal's state when it is the turn of an append."""

    spool_begin: int
    spool_end: int
    spool_codec: int
    first_append_time: float
    """Unix seconds of the first commit into the spool; 0 while it is empty."""
    index_begin: int
    index_end: int
    registers: pb.LabelSet


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """The answer to an append's preconditions."""

    status: int
    roll_to: int | None = None
    """Offset at which a new spool has to begin before the content goes in; None keeps the spool."""


def plan_append(head: JournalHead, spec: pb.JournalSpec, request: pb.AppendRequest, now: float) -> AppendPlan:
    """Check the preconditions of an append, in Gazette's order, and decide whether the spool rolls."""
    # Check the registers first: a fenced writer must get that error, even if something else is wrong.
    if request.HasField("check_registers") and not registers_match(head.registers, request.check_registers):
        return AppendPlan(pb.REGISTER_MISMATCH)
    # A resumed journal continues where it was suspended, even if its new brokers have not listed all of its
    # fragments.
    begin = max(head.spool_end, spec.suspend.offset)
    furthest = max(begin, head.index_end)
    # The index is ahead of the spool if the replicas with the last bytes were lost after others had stored
    # them. Then offsets would be used twice. So nothing is appended until a client confirms the loss by an
    # append at the index's end.
    if request.offset == 0:
        if begin != furthest and is_writable(spec):
            return AppendPlan(pb.INDEX_HAS_GREATER_OFFSET)
    elif request.offset != furthest:
        return AppendPlan(pb.WRONG_APPEND_OFFSET)
    else:
        begin = furthest
    if begin != head.spool_end or should_roll(head, spec, now):
        return AppendPlan(pb.OK, roll_to=begin)
    return AppendPlan(pb.OK)


def should_roll(head: JournalHead, spec: pb.JournalSpec, now: float) -> bool:
    """Return whether the spool has to be closed before the next append's content.

    An empty spool rolls only to adopt a changed codec. The first spool of a journal rolls immediately, so a
    journal's first append is a separate fragment.
    """
    length = head.spool_end - head.spool_begin
    if length == 0:
        return head.spool_codec != spec.fragment.compression_codec
    return (
        # The comparison is strict and comes before the append, so a fragment exceeds its length by the last
        # append. A fragment contains only whole appends.
        length > spec.fragment.length
        or head.spool_begin == head.index_begin
        or crossed_flush_boundary(head.first_append_time, now, spec.fragment.flush_interval.ToNanoseconds())
    )


def crossed_flush_boundary(first_append_time: float, now: float, interval_ns: int) -> bool:
    """Return whether a boundary of the uniform UTC segments lies between the two Unix times."""
    if interval_ns <= 0:
        return False
    return int(first_append_time * 1e9) // interval_ns != int(now * 1e9) // interval_ns


def is_writable(spec: pb.JournalSpec) -> bool:
    """Return whether the journal's flags allow appends with content."""
    return spec.flags != pb.JournalSpec.O_RDONLY


def is_readable(spec: pb.JournalSpec) -> bool:
    """Return whether the journal's flags allow reads."""
    return spec.flags != pb.JournalSpec.O_WRONLY


def may_carry_content(spec: pb.JournalSpec, request: pb.AppendRequest) -> bool:
    """Return whether content is allowed: not in a read-only journal, nor if the append suspends or keeps."""
    suspends = (pb.AppendRequest.SUSPEND_RESUME, pb.AppendRequest.SUSPEND_NO_RESUME)
    return is_writable(spec) and request.suspend in suspends


def registers_match(registers: pb.LabelSet, selector: pb.LabelSelector) -> bool:
    """Return whether the registers allow the append. Empty registers match every selector."""
    # Registers are lost with the last replica. If empty registers did not match, all later appends would be
    # refused.
    return not registers.labels or labels.selector_matches(selector, registers)


def next_registers(registers: pb.LabelSet, request: pb.AppendRequest) -> pb.LabelSet:
    """Return the registers after the append: first subtract, then set those of the union."""
    return labels.union(request.union_registers, labels.subtract(registers, request.subtract_registers))


def modifies_registers(request: pb.AppendRequest) -> bool:
    """Return whether the append requests a change of the registers."""
    return request.HasField("union_registers") or request.HasField("subtract_registers")


class SuspendStep(Enum):
    """Effect of an append's suspend field on a journal at its current level."""

    PROCEED = auto()
    RESUME = auto()
    """End the suspension, then proceed."""
    REFUSE = auto()
    """Answer SUSPENDED."""
    TRY = auto()
    """Suspend the journal as far as its fragments allow."""


_Suspend = pb.JournalSpec.Suspend
_NONE, _PARTIAL, _FULL = _Suspend.NONE, _Suspend.PARTIAL, _Suspend.FULL


def suspend_step(level: int, request: pb.AppendRequest) -> SuspendStep:
    """Decide an append's suspend field against the journal's suspension level."""
    match request.suspend:
        case pb.AppendRequest.SUSPEND_RESUME:
            return SuspendStep.PROCEED if level == _NONE else SuspendStep.RESUME
        case pb.AppendRequest.SUSPEND_NO_RESUME:
            return SuspendStep.PROCEED if level == _NONE else SuspendStep.REFUSE
        case pb.AppendRequest.SUSPEND_KEEP:
            return SuspendStep.REFUSE if level == _FULL else SuspendStep.PROCEED
    return SuspendStep.REFUSE if level == _FULL else SuspendStep.TRY


def suspend_level(
    fragments: list[tuple[int, int]], spec: pb.JournalSpec, *, ignore_age: bool, now: float
) -> int:
    """Return how far a journal can be suspended.

    Args:
        fragments: (end, mod_time) of every fragment of the index, in order; mod_time 0 means not persisted.
        spec: the journal's spec. A fragment younger than its flush interval (or a day) prevents a suspension.
        ignore_age: whether the age of the last fragment does not matter.
        now: Unix seconds.

    Returns:
        FULL without any content, PARTIAL if all of it is persisted and old enough, else NONE.
    """
    if not fragments:
        return _FULL
    # A fragment that only brokers have would be lost with the replicas that the journal gives up.
    if any(mod_time == 0 for _, mod_time in fragments):
        return _NONE
    age_limit = spec.fragment.flush_interval.ToSeconds() or 24 * 3600
    if ignore_age or fragments[-1][1] < now - age_limit:
        return _PARTIAL
    return _NONE
