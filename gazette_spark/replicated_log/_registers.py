"""Reads the registers of a log's journal, and decides a writer's next step from them. Pure.

============  ====================================================================
register      value
============  ====================================================================
``author``    the writer that appends; each of its appends checks it
``version``   the number of checkpoints, if any
============  ====================================================================

For brokers, empty registers match any check. A new journal has no registers, and neither does one whose
brokers were all lost. So they are read before each append that changes them, and after each that checks them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gazette_spark.errors import InvalidVersionError, LogFencedError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set, values_of

AUTHOR = "author"
VERSION = "version"


@dataclass(frozen=True, slots=True)
class LogRegisters:
    """The state of a log in its journal's registers."""

    author: str = ""
    """The writer that appends; empty for none."""
    version: int | None = None

    @classmethod
    def of(cls, registers: pb.LabelSet) -> LogRegisters:
        """Return the state in registers, ignoring foreign ones.

        Raises:
            ProtocolError: the version is not a number.
        """
        author, version = values_of(registers, AUTHOR), values_of(registers, VERSION)
        if version and not (version[0].isascii() and version[0].isdigit()):
            raise ProtocolError(f"register {VERSION!r}", f"expected a number, got {version[0]!r}")
        return cls(author[0] if author else "", int(version[0]) if version else None)

    @property
    def number(self) -> int:
        """The version as a number; 0 without one."""
        return self.version or 0


class Step(Enum):
    """The next step of a writer whose append changes registers."""

    APPEND = "append"
    FIND = "find"
    """An earlier attempt has changed the registers, so find its record."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of registers by an append: a takeover, a checkpoint, or both."""

    author: str
    """The writer that appends."""
    replaces: str
    """The author that it replaces; its own name if it has already taken over the log."""
    expected_version: int | None = None
    """The version that a checkpoint expects; None if the version stays."""
    restored: int | None = None
    """The version to restore after the brokers have lost it."""


def next_step(journal: str, change: Change, current: LogRegisters, *, tried: bool) -> Step:
    """Decide the next step from the journal's registers.

    Args:
        journal: Name of the journal.
        change: The change to make.
        current: The current registers.
        tried: Whether an earlier attempt of this append may have made the change.

    Raises:
        InvalidVersionError: the log is at another version.
        LogFencedError: another writer has taken the log over.
    """
    # Only after an attempt: before it, registers that look as this change would leave them are from another
    # writer, or from an earlier call.
    is_ours = tried and current.author == change.author
    # Check the version before the author: the caller of a checkpoint at a wrong version then gets that error,
    # and fences nobody.
    if change.expected_version is not None and current.number != change.expected_version:
        if is_ours and current.number == change.expected_version + 1:
            return Step.FIND
        raise InvalidVersionError(journal, change.expected_version, current.number)
    if current.author != change.replaces:
        if is_ours and change.expected_version is None:
            return Step.FIND
        raise LogFencedError(journal, current.author)
    # A version can be restored only if none is there, or the same one.
    if change.restored is not None and current.version not in (None, change.restored):
        raise InvalidVersionError(journal, change.restored, current.number)
    return Step.APPEND


def check_of(current: LogRegisters) -> pb.LabelSelector:
    """Return the selector that matches while author and version do not change."""
    values = {AUTHOR: current.author, VERSION: "" if current.version is None else str(current.version)}
    return pb.LabelSelector(
        # A register that is there must have the same value, and one that is not must still be missing.
        include=label_set({name: value for name, value in values.items() if value}),
        # An empty value matches any value.
        exclude=label_set({name: "" for name, value in values.items() if not value}),
    )


def union_of(change: Change) -> pb.LabelSet:
    """Return the registers that a change sets."""
    values = {AUTHOR: change.author}
    if change.expected_version is not None:
        values[VERSION] = str(change.expected_version + 1)
    elif change.restored is not None:
        values[VERSION] = str(change.restored)
    return label_set(values)


def author_check(author: str) -> pb.LabelSelector:
    """Return the selector that each entry of an author checks."""
    return pb.LabelSelector(include=label_set({AUTHOR: author}))


def check_author(journal: str, author: str, registers: pb.LabelSet) -> None:
    """Check that the registers after an author's append name it, because empty registers match any check.

    Raises:
        LogFencedError: the registers are lost, or name another writer.
    """
    current = LogRegisters.of(registers)
    if current.author != author:
        raise LogFencedError(journal, current.author)
