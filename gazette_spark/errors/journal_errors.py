"""Errors about a journal's bytes: deleted, reset, corrupt, or missing from the requested place."""

from __future__ import annotations

from dataclasses import dataclass

from gazette_spark.errors.base import GazetteError, PlainError

_SHOWN_JOURNALS = 3
"""Journals of each side that an error names."""


@dataclass(eq=False)
class OffsetError(GazetteError, ValueError):
    """A query position is malformed, goes back, or is outside its journal."""

    problem: str
    journal: str = ""
    offset: int | None = None

    def __str__(self) -> str:
        where = f"journal {self.journal!r}: " if self.journal else ""
        at = f" (offset {self.offset})" if self.offset is not None else ""
        return f"{where}{self.problem}{at}"


@dataclass(eq=False)
class DataLossError(GazetteError):
    """The journal now begins past an offset that has to be read, or has a hole there."""

    journal: str
    wanted: int
    """Offset that has to be read next."""
    available: int
    """Smallest offset at or past ``wanted`` the journal can still serve."""

    def __str__(self) -> str:
        return (
            f"journal {self.journal!r}: cannot read offset {self.wanted}, the next byte left is at "
            f"{self.available}; {self.available - self.wanted} bytes are gone. Restore the fragments, "
            "or set failOnDataLoss=false to skip the gap"
        )


@dataclass(eq=False)
class OffsetBeyondHeadError(GazetteError):
    """A recorded offset is past the write head of its journal, as its brokers report it.

    To continue would read other bytes under offsets that were already read.
    """

    journal: str
    wanted: int
    write_head: int
    doubt: str = ""
    """Why no broker could confirm the write head; empty if the journal's primary did."""

    def __str__(self) -> str:
        return (
            f"journal {self.journal!r}: offset {self.wanted} was already read, but the journal now ends "
            f"at {self.write_head}. {end_explained(self.doubt)} If the journal was deleted and created "
            "again, the guide 'Recover' says how its table goes on"
        )


def end_explained(doubt: str) -> str:
    """Return the sentences about a journal that ends before an offset already read, the same in all errors.

    Args:
        doubt: Why the end could not be confirmed; empty if it was.
    """
    if doubt:
        return (
            f"This is not confirmed: {doubt}. A failover of brokers can cause it: a new replica reports too "
            "low an end until it has listed the stores. Wait until the brokers are healthy, and start again: "
            "no position was changed. If it stays so, bytes are lost: restore the journal's fragments."
        )
    return (
        "The journal's primary confirms it. Either the journal was deleted and created again, or all of its "
        "replicas failed, in a failover of brokers, before bytes were stored; offsets may be used again for "
        "other bytes. Restore the journal's fragments, then start again: no position was changed."
    )


@dataclass(eq=False)
class JournalRecreatedError(GazetteError):
    """A journal was deleted and created again, and its offsets may stand for other bytes than were read.

    Bytes of the old journal that were not stored yet are lost.
    """

    journal: str
    wanted: int
    """Offset up to which its bytes were read."""
    create_revision: int
    """Etcd's revision at which the journal was created; 0 if unknown."""
    revision: int
    """Etcd's revision at which it was created before, or seen last; 0 if unknown."""
    compared: tuple[int, int] | None = None
    """Range of bytes that are not those that were read; None if no bytes could be compared."""
    table: str = ""
    """Table whose ledger recorded the journal, if the sink found the difference."""

    def __str__(self) -> str:
        revisions = ""
        if self.create_revision and 0 < self.revision != self.create_revision:
            revisions = f" at revision {self.create_revision}, after revision {self.revision} had another one"
        where = f"table {self.table}: " if self.table else ""
        what = f"{where}journal {self.journal!r}: it was deleted and created again{revisions}"
        adopt = f"DeltaSink.adopt(JournalOffsets({{{self.journal!r}: 0}}), recreated=True, options=…)"
        if self.compared:
            begin, end = self.compared
            return (
                f"{what}. Its bytes [{begin}, {end}) are not those that were read, so its offsets stand for "
                "other records now. Give the new journal another table or app id; or continue this table "
                f"with it by {adopt}, and start with a new checkpoint and DeltaSink.resume(reader)"
            )
        return (
            f"{what}, and the bytes that were read up to offset {self.wanted} cannot be compared: they are "
            "not recorded here, or the journal no longer has them. Start with a new checkpoint and "
            "DeltaSink.resume(reader), which compares the bytes that the table has recorded. If that finds "
            "nothing to compare either, give the new journal another table or app id, or continue this table "
            f"with it by {adopt}"
        )


@dataclass(eq=False)
class OtherJournalsError(GazetteError, ValueError):
    """A query checkpoint's position is of other journals than its source selects now.

    To continue would read the selected journals from their first bytes, again if another source read them.
    """

    option: str
    """Option that selects the source's journals."""
    left: tuple[str, ...]
    """Journals of the position that exist and are not selected any more."""
    selected: tuple[str, ...]
    """Journals that are selected; none of them is in the position."""

    def __str__(self) -> str:
        return (
            f"option {self.option!r}: it selects {_few(self.selected)}, and this source's position in the "
            f"query checkpoint is of {_few(self.left)}. Spark matches sources and positions by their order "
            "in the query: keep the order of the sources, and put none in front. To read other journals, "
            "start with a new checkpoint and DeltaSink.resume, which continues the table; or let the "
            "option select journals of both"
        )


def _few(journals: tuple[str, ...]) -> str:
    shown = ", ".join(repr(each) for each in journals[:_SHOWN_JOURNALS])
    more = len(journals) - _SHOWN_JOURNALS
    return shown + (f" and {more} more" if more > 0 else "")


@dataclass(eq=False)
class CorruptFragmentError(GazetteError):
    """A fragment's bytes do not match its name: length, codec or SHA-1."""

    journal: str
    begin: int
    end: int
    problem: str
    source: str = ""
    """Source of the bytes: a file path, or a URL without its query."""

    def __str__(self) -> str:
        at = f" ({self.source})" if self.source else ""
        return (
            f"journal {self.journal!r}: fragment [{self.begin}, {self.end}){at} is corrupt: {self.problem}. "
            "Restore the fragment file from a replica or a backup"
        )


class FragmentTooShortError(CorruptFragmentError):
    """A fragment's content ends before the end offset in the fragment's name."""


class FragmentTooLongError(CorruptFragmentError):
    """A fragment's content goes on past the end offset in its name; no byte past that offset was returned."""


@dataclass(eq=False)
class DirectReadError(GazetteError):
    """A fragment's file or URL cannot be opened or fetched; its broker may still serve it."""

    source: str
    """A file path, or a URL without its query."""
    problem: str
    expired: bool = False
    """The URL's signature is no longer taken: a fresh one may do."""
    passing: bool = False
    """The store may answer in a moment: it is busy, or the connection broke."""
    refused: bool = False
    """This client does not open such URLs; it made no connection."""
    missing: bool = False
    """There is no such file."""

    def __str__(self) -> str:
        return f"fragment {self.source}: {self.problem}"


@dataclass(eq=False)
class FragmentConflictError(GazetteError):
    """Stored fragments hold different bytes for the same offsets: the journal lost bytes and went on.

    The client cannot tell which of these bytes are the journal's.
    """

    journal: str
    begin: int
    end: int
    sources: tuple[str, ...]
    """The files."""
    problem: str

    def __str__(self) -> str:
        return (
            f"journal {self.journal!r}: fragments overlap at [{self.begin}, {self.end}) and do not agree, "
            f"{self.problem}: {', '.join(self.sources)}. Move the wrong one out of the store"
        )


@dataclass(eq=False)
class FragmentStoreError(GazetteError):
    """A fragment store cannot be listed, or has content that this client does not read."""

    store: str
    """URL of the store, without parts that may be secret, or a path in the store."""
    problem: str

    def __str__(self) -> str:
        return f"fragment store {self.store}: {self.problem}"


@dataclass(eq=False)
class SeekRequiresNewReaderError(GazetteError):
    """A reader of one stream, or of one fragment, cannot get to an offset: open a new one there.

    The reader's position does not change.
    """

    journal: str
    offset: int
    """The reader's offset."""
    wanted: int

    def __str__(self) -> str:
        return (
            f"journal {self.journal!r}: a reader at offset {self.offset} cannot seek to {self.wanted}; "
            "open a new one there"
        )


@dataclass(eq=False)
class RecordError(GazetteError):
    """A record cannot be read: malformed under ``mode=FAILFAST``, or larger than allowed."""

    journal: str
    offset: int
    """Offset of the record's first byte."""
    problem: str

    def __str__(self) -> str:
        return f"journal {self.journal!r}, record at offset {self.offset}: {self.problem}"


@dataclass(eq=False)
class RowError(GazetteError, ValueError):
    """A row cannot be written: it would not be read again as it is, or nothing gives its journal."""

    partition: int
    """Number of the Spark partition."""
    row: int
    """The row's index in that partition, from 0."""
    problem: str
    advice: str

    def __str__(self) -> str:
        return (
            f"row {self.row} of Spark partition {self.partition} cannot be written: {self.problem}. "
            f"{self.advice}"
        )


@dataclass(eq=False)
class OffsetJumpError(GazetteError):
    """The journal has no bytes at the offset a reader got to; its next ones are further on.

    The reader goes on there when it is read again.
    """

    journal: str
    wanted: int
    offset: int
    """Offset of the next byte."""

    def __str__(self) -> str:
        return (
            f"journal {self.journal!r}: no bytes are left at offset {self.wanted}; the next are at "
            f"{self.offset}. Read on to go on there"
        )


@dataclass(eq=False)
class EmptyListingError(GazetteError):
    """There is no journal a message could be mapped to."""

    problem: str = "empty ListResponse"

    def __str__(self) -> str:
        return f"{self.problem}: no journal to map a message to. Check the selector of the listing"


class MessageError(PlainError, ValueError):
    """A message cannot be framed, its UUID cannot be read or set, or its content type has no framing."""


@dataclass(eq=False)
class SequencerError(GazetteError, ValueError):
    """A sequencer is used out of order, or a replay brought messages that are not of its range."""

    journal: str
    offset: int
    problem: str

    def __str__(self) -> str:
        return f"journal {self.journal!r}, offset {self.offset}: {self.problem}"


@dataclass(eq=False)
class TransactionError(GazetteError):
    """A batch cannot be committed in its transaction journal; its rows are in their journals, uncommitted."""

    journal: str
    """The transaction journal."""
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"transaction journal {self.journal!r}: {self.problem}. {self.advice}"
