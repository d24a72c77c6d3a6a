"""Decides about a batch by its transaction journal: record it, repeat a recorded one, or refuse it. Pure.

Tasks publish rows under new producers, and pass their intents to the driver: the acknowledgements that commit
the rows. A batch is committed at the moment at which the transaction journal has its record, which contains
all intents. They are appended after that, as often as necessary.

:func:`decide` compares an attempt at a batch, of one run of a query, with the newest record:

=============================  =====================  ======================================================
newest record                  attempt                decision
=============================  =====================  ======================================================
none                           batch 0, batch write   record
none                           later batch            refuse: a record is lost, or the query began elsewhere
same query, batch *m*          *m* + 1                record
same query, batch *m*          *m*                    repeat the record's intents; roll the attempt back
same query, batch *m*          below *m*              refuse: the query checkpoint is an old one
same query, batch *m*          above *m* + 1          refuse: a record is lost
same query, run was replaced   any                    refuse: another run has continued the query
another stream                 any                    refuse: the journal belongs to that stream
another batch write            batch write            record, unless it was recorded among the last ones
=============================  =====================  ======================================================

A run that continues after another run's record first appends that run's intents. A run that repeats another
run's record appends it again under its own name. So the journal names each run that has made progress, and
:attr:`TransactionRecord.replaced` names the replaced runs that could still come back, because their next
batch would fit.

The journal's registers name the newest record. Each append requires that the registers and the write head are
as they were read, so of two runs that decide on the same record only one appends. Empty registers match
anything; then the write head alone decides. It is never 0, because a run that reads an empty journal appends
:data:`OPENING` and reads again.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from gazette_spark.errors import JsonError, TransactionError
from gazette_spark.strict_json import parse_json

FORMAT_VERSION = 1
"""Version of the records' form."""

OPENING = b'{"format_version":1}\n'
"""First line of a transaction journal, which is not a record. With it, no record is appended at write head 0,
which an append cannot require. A late copy of this line may follow records, and is ignored."""

EARLIER_WRITES = 100
"""Number of batch writes that a record remembers, so that a late repetition of one of them is noticed."""

NO_BATCH = "-"
"""Value of the register ``batch`` of a batch write."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A batch that tasks have published and that is not committed yet."""

    query: str
    """The query's id, or the id of a batch write's transaction."""
    batch: int | None
    """Number of the batch; None for a batch write."""
    author: str
    """The run's id, which is a new one each time the query starts."""
    intents: Mapping[str, bytes] = field(default_factory=dict)
    """Bytes by journal that commit the rows."""
    rows: int = 0
    first_batch: int | None = None
    """Batch that needs neither a record of the previous batch nor one of the same query."""


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """The record of a committed batch in a transaction journal."""

    query: str
    batch: int | None
    author: str
    intents: Mapping[str, bytes] = field(default_factory=dict)
    rows: int = 0
    replaced: Mapping[str, int] = field(default_factory=dict)
    """The last batch of each other run that wrote a record of this batch or the previous one."""
    earlier: tuple[str, ...] = ()
    """Ids of the batch writes that were recorded before this one, the newest last."""

    @property
    def registers(self) -> dict[str, str]:
        """The registers of a journal whose newest record is this one."""
        batch = NO_BATCH if self.batch is None else str(self.batch)
        return {"author": self.author, "batch": batch, "query": self.query}

    def to_json(self) -> bytes:
        """Return the record as a line of JSON."""
        value = {
            "format_version": FORMAT_VERSION,
            "query": self.query,
            "batch": self.batch,
            "author": self.author,
            "rows": self.rows,
            "replaced": dict(sorted(self.replaced.items())),
            "earlier": list(self.earlier),
            "intents": {name: base64.b64encode(self.intents[name]).decode() for name in sorted(self.intents)},
        }
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_json(cls, line: bytes, journal: str = "") -> TransactionRecord:
        """Parse a line of a transaction journal.

        Raises:
            TransactionError: it is not a record, or has a later form.
        """
        try:
            # A record has an intent for each task and journal, so it may exceed the usual limit. If it was
            # appended, it has to be readable.
            value = parse_json(line, max_bytes=len(line))
        except JsonError:
            value = None
        if isinstance(value, dict) and value.get("format_version", 0) != FORMAT_VERSION:
            problem = f"its newest record has the form {value.get('format_version')!r}, not {FORMAT_VERSION}"
            raise TransactionError(
                journal, problem, "Write with the release that wrote the record, or a later"
            )
        try:
            return cls._parsed(value)
        except (KeyError, TypeError, ValueError, binascii.Error):
            problem = f"its newest record cannot be read: {line[:80]!r}"
            advice = "Nobody else may append to a transaction journal: name another one"
            raise TransactionError(journal, problem, advice) from None

    @classmethod
    def _parsed(cls, value: object) -> TransactionRecord:
        match value:
            case {
                "query": str(query),
                "batch": int() | None as batch,
                "author": str(author),
                "rows": int(rows),
                "replaced": dict(replaced),
                "earlier": list(earlier),
                "intents": dict(intents),
            } if all(type(last_batch) is int for last_batch in replaced.values()) and all(
                isinstance(text, str) for text in (*earlier, *intents.values())
            ):
                decoded = {name: base64.b64decode(text, validate=True) for name, text in intents.items()}
                return cls(query, batch, author, decoded, rows, replaced, tuple(earlier))
        raise ValueError(value)


@dataclass(frozen=True, slots=True)
class TransactionPlan:
    """The steps of a commit, in this order. Each step is completed before the next one begins."""

    finish: Mapping[str, bytes] = field(default_factory=dict)
    """Intents of the newest record, which are appended again because they may not have been."""
    record: TransactionRecord | None = None
    """Record to append if registers and write head have not changed."""
    commit: Mapping[str, bytes] = field(default_factory=dict)
    """Intents to append."""
    rolls_back: bool = False
    """Whether to roll back the attempt's own rows, because other rows are recorded for the batch."""


@dataclass(frozen=True, slots=True)
class TransactionRefusal:
    """The reason why an attempt may not be committed, and what to do."""

    problem: str
    advice: str


ANOTHER_JOURNAL = "Name another transactionJournal"
"""Advice for a query that cannot use a journal."""
OLD_CHECKPOINT = (
    "Start the query from its newest checkpoint; with an older one, rows would be written again: name a new "
    "transactionJournal if you want that"
)
"""Advice for a query that goes back."""


def decide(  # noqa: C901, PLR0911 - one decision table
    attempt: Attempt, newest: TransactionRecord | None, registers: Mapping[str, str]
) -> TransactionPlan | TransactionRefusal:
    """Return what to do with an attempt.

    Args:
        attempt: The batch that was published.
        newest: The journal's newest record; None without one.
        registers: The journal's registers, which are empty if it is new or has lost all of its replicas.
    """
    # The option names one batch, so it cannot excuse a later loss.
    is_allowed_first = attempt.batch is not None and attempt.batch == attempt.first_batch
    # The registers name the newest record. If they name another one, the journal has lost records, and the
    # rows of this batch may be committed already.
    if registers and not is_allowed_first and (newest is None or newest.registers != registers):
        values = ", ".join(f"{name}={value}" for name, value in sorted(registers.items()))
        return _lost(attempt, f"its registers are of {values}, and the record of that is not its newest")
    if newest is None:
        begins = attempt.batch in (0, None) or is_allowed_first
        return _append(attempt, None) if begins else _lost(attempt, "it has no record")

    if newest.query != attempt.query:
        both_writes = attempt.batch is None and newest.batch is None
        if both_writes and attempt.query in newest.earlier:
            # This is a late repetition. The recorded intents were appended before the next record was.
            return TransactionPlan(rolls_back=True)
        if both_writes or is_allowed_first:
            return _append(attempt, newest)
        kind = "a batch write, transaction" if newest.batch is None else "query"
        advice = f"{ANOTHER_JOURNAL}: each query needs a separate one"
        if attempt.batch is not None:
            advice += f". To continue in this one for good, set transactionFirstBatch={attempt.batch}"
        return TransactionRefusal(f"it belongs to {kind} {newest.query}, not to {attempt.query}", advice)

    if newest.batch is None or attempt.batch is None:
        if newest.batch is not attempt.batch:
            problem = f"a stream and a batch write both have the id {attempt.query}"
            return TransactionRefusal(problem, ANOTHER_JOURNAL)
        return _repeat(attempt, newest)

    if attempt.author in newest.replaced:
        # This run's next batch would fit, but the run that replaced it has committed that batch.
        problem = (
            f"run {attempt.author} of query {attempt.query} was replaced by run {newest.author}, which has "
            f"committed batch {newest.batch}"
        )
        return TransactionRefusal(problem, "Stop this run: the other one has continued from its checkpoint")
    if attempt.batch < newest.batch:
        problem = (
            f"batch {attempt.batch} of query {attempt.query} comes after batch {newest.batch} was committed"
        )
        return TransactionRefusal(problem, OLD_CHECKPOINT)
    # The record counts, even if this attempt has other rows: its rows may already be visible.
    if attempt.batch == newest.batch:
        return _repeat(attempt, newest)
    if attempt.batch > newest.batch + 1 and not is_allowed_first:
        return _lost(attempt, f"its newest record is of batch {newest.batch}")
    return _append(attempt, newest)


def _append(attempt: Attempt, newest: TransactionRecord | None) -> TransactionPlan:
    # A run appends the intents of a batch before it begins the next one. Only another run may have died in
    # between.
    own = newest is None or newest.author == attempt.author
    record = TransactionRecord(
        attempt.query,
        attempt.batch,
        attempt.author,
        attempt.intents,
        attempt.rows,
        _replaced(attempt, newest),
        _earlier(attempt, newest),
    )
    finish: Mapping[str, bytes] = {} if newest is None or own else newest.intents
    return TransactionPlan(finish, record, attempt.intents)


def _repeat(attempt: Attempt, newest: TransactionRecord) -> TransactionPlan:
    """Repeat the recorded batch, whose record may be of this attempt."""
    rolls_back = dict(newest.intents) != dict(attempt.intents)
    if newest.batch is None or newest.author == attempt.author:
        return TransactionPlan(commit=newest.intents, rolls_back=rolls_back)
    # The record is written again under the name of this run, so that the run which wrote it first is refused
    # if it comes back: see `replaced`.
    taken = TransactionRecord(
        newest.query,
        newest.batch,
        attempt.author,
        newest.intents,
        newest.rows,
        _replaced(attempt, newest),
    )
    return TransactionPlan(record=taken, commit=newest.intents, rolls_back=rolls_back)


def _replaced(attempt: Attempt, newest: TransactionRecord | None) -> dict[str, int]:
    if newest is None or newest.query != attempt.query or newest.batch is None or attempt.batch is None:
        return {}
    authors = {**newest.replaced, newest.author: newest.batch}
    return {
        author: batch
        for author, batch in authors.items()
        # A run whose last batch is older could only come back with a batch that is refused as too old anyway.
        if author != attempt.author and batch >= attempt.batch - 1
    }


def _earlier(attempt: Attempt, newest: TransactionRecord | None) -> tuple[str, ...]:
    if newest is None or newest.batch is not None or attempt.batch is not None:
        return ()
    return (*newest.earlier, newest.query)[-EARLIER_WRITES:]


def _lost(attempt: Attempt, problem: str) -> TransactionRefusal:
    if attempt.batch is None:
        return TransactionRefusal(problem, ANOTHER_JOURNAL)
    before = attempt.batch - 1
    return TransactionRefusal(
        f"{problem}, and batch {attempt.batch} of query {attempt.query} is to follow batch {before}",
        f"If batch {before} was committed elsewhere, or was written at least once, set "
        f"transactionFirstBatch={attempt.batch}; if its record was lost, rows may be missing or be doubled",
    )
