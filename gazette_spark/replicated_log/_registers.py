"""The registers of a log's journal, and what a writer does by them. Pure.

============  ====================================================================
register      holds
============  ====================================================================
``author``    the writer that appends; each of its appends checks it
``version``   how many checkpoints were made, if any
============  ====================================================================

Brokers take empty registers for a match of any check. A new journal has none, and one whose brokers were all
lost has none left. So they are read before each append that changes them, and after each that checks them.
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
    """What a journal's registers say about its log."""

    author: str = ""
    """Empty: nobody."""
    version: int | None = None

    @classmethod
    def of(cls, registers: pb.LabelSet) -> LogRegisters:
        """Return the meaning of registers; those of others do not matter.

        Raises:
            ProtocolError: the version is not a number.
        """
        author, version = values_of(registers, AUTHOR), values_of(registers, VERSION)
        if version and not (version[0].isascii() and version[0].isdigit()):
            raise ProtocolError(f"register {VERSION!r}", f"expected a number, got {version[0]!r}")
        return cls(author[0] if author else "", int(version[0]) if version else None)

    @property
    def number(self) -> int:
        """The version; without one, 0."""
        return self.version or 0


class Step(Enum):
    """What a writer does next about an append that changes registers."""

    APPEND = "append"
    FIND = "find"
    """An earlier try changed the registers: find where it put the record."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of registers by an append: a take-over, a checkpoint, or both."""

    author: str
    """The writer that appends."""
    replaces: str
    """The author that it replaces; its own name where it has taken the log over before."""
    expected_version: int | None = None
    """The version that a checkpoint expects; None if the version stays."""
    restored: int | None = None
    """The version to set, where the brokers have lost it."""


def next_step(journal: str, change: Change, current: LogRegisters, *, tried: bool) -> Step:
    """Decide by the journal's registers.

    Args:
        journal: its name.
        change: the change to be made.
        current: the registers now.
        tried: an earlier try of this append may have made the change.

    Raises:
        InvalidVersionError: the log is at another version.
        LogFencedError: another writer has taken the log over.
    """
    is_ours = tried and current.author == change.author
    if change.expected_version is not None and current.number != change.expected_version:
        if is_ours and current.number == change.expected_version + 1:
            return Step.FIND
        raise InvalidVersionError(journal, change.expected_version, current.number)
    if current.author != change.replaces:
        if is_ours and change.expected_version is None:
            return Step.FIND
        raise LogFencedError(journal, current.author)
    if change.restored is not None and current.version not in (None, change.restored):
        raise InvalidVersionError(journal, change.restored, current.number)
    return Step.APPEND


def check_of(current: LogRegisters) -> pb.LabelSelector:
    """Return the selector that matches as long as author and version are what they are."""
    values = {AUTHOR: current.author, VERSION: "" if current.version is None else str(current.version)}
    return pb.LabelSelector(
        include=label_set({name: value for name, value in values.items() if value}),
        # An empty value is any.
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
    """Refuse the registers after an append of an author's if they do not name it: empty ones match any check.

    Raises:
        LogFencedError: the registers are lost, or another writer's.
    """
    current = LogRegisters.of(registers)
    if current.author != author:
        raise LogFencedError(journal, current.author)
