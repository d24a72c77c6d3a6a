"""Read the ledger of an Iceberg table with ``pyiceberg``, without a JVM and without reading rows.

Each commit of a sink leaves its entry in two places:

- **The table property** "gazette.ledger.<app id>" contains the newest entry with all positions, and the
  snapshot that the commit created. The property is the authority. ``expire_snapshots`` does not touch it.
- **The summary of the snapshot** contains the entry under "gazette.ledger". It serves ``verify`` and people,
  and is the ledger's end after a rollback.

A rollback of the table does not roll back its properties. Therefore the property counts only if its snapshot
is the current one or an ancestor of it. Otherwise the newest ancestor that has an entry of the app id counts,
as after a RESTORE of a Delta table.

Snapshots between the property's snapshot and the current one may have expired. Then earlier metadata files of
the table show which snapshots were parents of which. If these files are gone as well, nothing contradicts the
property, and it is trusted, like an entry of a Delta table whose parent was cleaned up.

:func:`history` returns the snapshots as rows of a history, so all code that reads the log of a Delta table
can also read an Iceberg table. The version of a row is the snapshot's sequence number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gazette_spark._frames import deltalake_text
from gazette_spark._ledger.entry import LedgerEntry, LedgerState, parse_entry
from gazette_spark._ledger.history import HistoryRow, read_state
from gazette_spark.errors import (
    GazetteError,
    InputError,
    JsonError,
    MissingPackageError,
    OptionError,
    TableRefusedError,
)
from gazette_spark.strict_json import parse_json

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

_USER_INFO = re.compile(r"://[^/@\s]*@")

SUMMARY_KEY = "gazette.ledger"
"""Key of the entry in a snapshot's summary."""

PROPERTY_PREFIX = "gazette.ledger."
"""Prefix of the table property that contains an app id's newest entry."""

OPERATIONS = {"append": "WRITE", "replace": "OPTIMIZE"}
"""Names that Delta's history has for operations of snapshots; other operations are written in capitals."""

METRICS = {"added-records": "numOutputRows", "deleted-records": "numDeletedRows"}
"""Names that Delta's history has for the numbers of snapshots."""

SCHEME = "iceberg:"
"""Prefix of the name of an Iceberg table, where the location of a Delta table is also accepted."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table in a catalog."""

    catalog: str
    """Name of the catalog in the configuration of ``pyiceberg``."""
    identifier: str
    """Namespace and name, such as "shop.orders"."""

    def __str__(self) -> str:
        return f"{SCHEME}{self.catalog}/{self.identifier}"

    @classmethod
    def parse(cls, text: str) -> TableName | None:
        """Read ``iceberg:catalog/namespace.table``.

        Returns:
            The name, or None if the text lacks the prefix and is therefore the location of a Delta table.

        Raises:
            InputError: the rest has an invalid form.
        """
        if not text.startswith(SCHEME):
            return None
        catalog, slash, identifier = text.removeprefix(SCHEME).partition("/")
        if not (catalog and slash and "." in identifier):
            raise InputError(f"{text!r} is not the name of a table: expected iceberg:catalog/namespace.table")
        return cls(catalog, identifier)

    @classmethod
    def of(cls, option: str, catalog: str, identifier: str) -> TableName:
        """Return a table's name from the options of a sink.

        Raises:
            OptionError: the table has no namespace, or a part of its name is empty.
        """
        if not catalog:
            raise OptionError("catalog", "nothing", "the name of a catalog in pyiceberg's configuration")
        if "." not in identifier or not all(identifier.split(".")):
            raise OptionError(option, repr(identifier), "namespace and name, such as 'shop.orders'")
        return cls(catalog, identifier)


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open a catalog of ``pyiceberg``'s configuration, and replace some of its configured properties.

    Raises:
        MissingPackageError: ``pyiceberg``, or a package that this kind of catalog needs, is not installed.
        TableRefusedError: the catalog cannot be opened.
    """
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NotInstalledError
    except ModuleNotFoundError:
        raise MissingPackageError("Iceberg tables need pyiceberg", "gazette-spark[iceberg]") from None
    with iceberg_errors(f"of catalog {name}"):
        try:
            return load_catalog(name, **properties)
        except (ModuleNotFoundError, NotInstalledError) as missing:
            raise MissingPackageError(f"catalog {name}: {missing}", "gazette-spark[iceberg]") from None
        except ValueError as error:
            where = (
                f"~/.pyiceberg.yaml, variables PYICEBERG_CATALOG__{name.upper()}__…, or the sink's properties"
            )
            remedy = f"Check the catalog's name and its settings, such as type and uri: {where}"
            raise TableRefusedError(f"of catalog {name}", f"{_error_text(error)}. {remedy}") from error


def catalog_errors() -> tuple[type[Exception], ...]:
    """Return the classes of errors that a catalog and the files of its tables may raise."""
    from pyiceberg import exceptions

    # They have no common base class. Errors of requests are OSErrors, and errors of pydantic are ValueErrors.
    own = [
        kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ModuleNotFoundError:
        return (*own, OSError, ValueError)
    return (*own, OSError, ValueError, SQLAlchemyError)


def unknown_outcomes() -> tuple[type[Exception], ...]:
    """Return the classes of errors after which a commit was rejected or has an unknown outcome."""
    from pydantic import ValidationError
    from pyiceberg.exceptions import (
        CommitFailedException,
        CommitStateUnknownException,
        ServerError,
        ServiceUnavailableError,
    )

    # A proxy may return a status of its own (ServerError), or only a part of the answer (ValidationError).
    kinds = (
        *(CommitFailedException, CommitStateUnknownException, ServerError, ServiceUnavailableError),
        *(OSError, ValidationError),
    )
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ModuleNotFoundError:
        return kinds
    return (*kinds, SQLAlchemyError)


@contextmanager
def iceberg_errors(
    name: str, error_type: Callable[[str, str], GazetteError] = TableRefusedError
) -> Iterator[None]:
    """Replace an error of ``pyiceberg`` by one that names the table."""
    try:
        yield
    except GazetteError:
        raise
    except catalog_errors() as error:
        from pyiceberg import exceptions

        problem = f"pyiceberg failed: {type(error).__name__}: {_error_text(error)}"
        refusals = (
            exceptions.UnauthorizedError,
            exceptions.ForbiddenError,
            exceptions.OAuthError,
            exceptions.AuthorizationExpiredError,
        )
        if isinstance(error, refusals):
            problem += ". Check the catalog's credential or token, and what it permits"
        elif isinstance(error, exceptions.NoSuchNamespaceError):
            problem += ". Create the namespace in the catalog first"
        elif isinstance(error, exceptions.NoSuchTableError):
            problem += ". Check the table's name"
        # Errors of requests and of Arrow's file systems.
        elif isinstance(error, OSError):
            problem += ". Check the addresses and the credentials of the catalog and of its store"
            problem += ", and that both answer"
        raise error_type(name, problem) from error


def _error_text(error: Exception) -> str:
    """Return an error's text on one line, without a password in an address and without the properties."""
    text = _USER_INFO.sub("://", deltalake_text(error)).partition(" with the following properties")[0]
    return text.rstrip(".")


def input_error(name: str, problem: str) -> InputError:
    """Return the error of a command about a table, for :func:`iceberg_errors`."""
    return InputError(f"table {name}: {problem}")


def property_text(entry: LedgerEntry, snapshot_id: int, sequence_number: int) -> str:
    """Return the text of the property: the entry with all positions, and its commit's snapshot."""
    # The property needs all positions, because it replaces the parent's text, and the parent's snapshot may
    # expire.
    whole = replace(entry, moved=None, new_fingerprints={})
    value = json.loads(whole.to_json())
    value |= {"snapshot_id": snapshot_id, "sequence_number": sequence_number}
    return json.dumps(
        value | {"deltas": entry.deltas, "full_ms": entry.full_ms}, separators=(",", ":"), ensure_ascii=False
    )


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest entry that was ever committed for an app id, from the table property."""

    app_id: str
    text: str
    snapshot_id: int
    sequence_number: int


@dataclass(frozen=True, slots=True)
class Ancestor:
    """The fields of a snapshot that a history needs."""

    snapshot_id: int
    parent_id: int | None
    number: int
    """Sequence number."""
    time_ms: int = 0
    operation: str = ""
    ledger: str | None = None
    added: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class EarlierMetadata:
    """What an earlier version of a table's metadata says about its snapshots."""

    last_number: int
    """Sequence number of the newest snapshot in that version."""
    parents: Mapping[int, tuple[int | None, int]]
    """Parent and sequence number of snapshots, by id."""


def history(metadata: TableMetadata, earlier: Callable[[], Iterable[EarlierMetadata]]) -> list[HistoryRow]:
    """Return the current snapshot and its ancestors as rows of a history, newest first.

    Versions are sequence numbers. Snapshots that are not ancestors, because they were undone or belong to
    other branches, leave holes in the numbers. A row RESTORE jumps over each hole, as readers of a history
    expect. If the table's first snapshot still exists, the last row has version 0.

    Args:
        metadata: The table's current metadata.
        earlier: Yields earlier versions of the metadata, newest first. It is called only if snapshots between
            an app id's newest entry and the current snapshot have expired.
    """
    snapshots: dict[int, Ancestor] = {}
    for snapshot in metadata.snapshots:
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        snapshots[snapshot.snapshot_id] = Ancestor(
            snapshot.snapshot_id,
            snapshot.parent_snapshot_id,
            snapshot.sequence_number or 0,
            snapshot.timestamp_ms,
            snapshot.summary.operation.value if snapshot.summary else "",
            summary.get(SUMMARY_KEY),
            summary,
        )
    return history_rows(metadata.current_snapshot_id, snapshots, metadata.properties, earlier)


def history_rows(
    current: int | None,
    by_id: Mapping[int, Ancestor],
    properties: Mapping[str, str],
    earlier: Callable[[], Iterable[EarlierMetadata]],
) -> list[HistoryRow]:
    """Return the rows of a history; see :func:`history`.

    Args:
        current: Id of the current snapshot, None without one.
        by_id: The snapshots that have not expired.
        properties: The table's properties.
        earlier: Yields earlier versions of the table's metadata, newest first.
    """
    # Go from the current snapshot to its parents. Snapshots of other branches, and snapshots that were rolled
    # back, are not on this path.
    chain: list[Ancestor] = []
    at = current
    while at is not None and at in by_id:
        chain.append(by_id[at])
        at = by_id[at].parent_id
    # When a parent expires, Iceberg for Java keeps its id in the child, but pyiceberg does not. So only the
    # very first snapshot, whose sequence number is 1, is certain to have no parent.
    complete = not chain or (at is None and chain[-1].number == 1)
    newest: list[_Newest] = []
    # Anyone can edit the property that is the authority. A damaged one is an error. If it were treated as a
    # missing ledger, the stream would begin a second one.
    for key, text in properties.items():
        if not key.startswith(PROPERTY_PREFIX):
            continue
        try:
            value = parse_json(text)
        except JsonError:
            value = None
        match value:
            case {"app_id": str(app_id), "snapshot_id": int(snapshot_id), "sequence_number": int(number)}:
                # A copy under another name would replace the entry of its snapshot, or begin a second ledger.
                if key != PROPERTY_PREFIX + app_id:
                    problem = f"the table property has the entry of app id {app_id!r}; remove it by hand"
                    raise TableRefusedError(key, problem)
                newest.append(_Newest(app_id, text, snapshot_id, number))
            case _:
                raise TableRefusedError(key, "the table property is not a ledger entry; remove it by hand")
    # The property of each app id counts only if its snapshot is on the path. A property that was rolled back
    # is left out here, so the newest summary with an entry is the ledger's end.
    newest = [entry for entry in newest if is_visible(entry, chain, complete=complete, earlier=earlier)]
    # The newest entry is read from the property, which has all positions: the summary may have only those
    # that moved.
    texts = {entry.snapshot_id: entry.text for entry in newest}
    snapshots = list(chain)
    shown = {snapshot.snapshot_id for snapshot in chain}
    # Entries whose snapshots have expired are older than all remaining snapshots.
    expired = [entry for entry in newest if entry.snapshot_id not in shown]
    snapshots += [
        Ancestor(entry.snapshot_id, None, entry.sequence_number)
        for entry in sorted(expired, key=lambda entry: -entry.sequence_number)
    ]
    rows: list[HistoryRow] = []
    for snapshot in snapshots:
        # Readers of a history expect versions without holes. To them, numbers that are not on the path look
        # like versions that a RESTORE has undone, which is what they are to this branch.
        if rows and rows[-1].version > snapshot.number + 1:
            jump = {"version": str(snapshot.number)}
            rows.append(HistoryRow(rows[-1].version - 1, "RESTORE", jump, time=rows[-1].time))
        moment = datetime.fromtimestamp(snapshot.time_ms / 1000, UTC)
        rows.append(
            HistoryRow(
                snapshot.number,
                OPERATIONS.get(snapshot.operation, snapshot.operation.upper()),
                user_metadata=texts.get(snapshot.snapshot_id, snapshot.ledger),
                time=moment.isoformat(sep=" ", timespec="milliseconds"),
                metrics={METRICS[name]: n for name, n in (snapshot.added or {}).items() if name in METRICS},
            )
        )
    if complete:
        rows.append(HistoryRow(0, "CREATE TABLE"))
    return rows


def is_visible(
    entry: _Newest,
    chain: Sequence[Ancestor],
    *,
    complete: bool,
    earlier: Callable[[], Iterable[EarlierMetadata]],
) -> bool:
    """Return whether an entry's snapshot is the current one or an ancestor of it; see the module's docstring.

    Args:
        entry: The entry.
        chain: The current snapshot and its ancestors, newest first, as far as they have not expired.
        complete: Whether no ancestor has expired.
        earlier: Yields earlier versions of the table's metadata, newest first.
    """
    # This is the usual case, which needs no file other than the current metadata.
    if any(snapshot.snapshot_id == entry.snapshot_id for snapshot in chain):
        return True
    # The entry was rolled back if all ancestors still exist and none of them is its snapshot, or if it is
    # newer than a remaining ancestor.
    if complete or entry.sequence_number >= chain[-1].number:
        return False
    # All remaining snapshots are newer than the entry. Starting from the oldest of them, follow the parents
    # through earlier metadata: they lead to the entry's snapshot or past it.
    at, number = chain[-1].snapshot_id, chain[-1].number
    if (parent := chain[-1].parent_id) is not None:
        at, number = parent, 0  # The parent's number is not known here.
    for metadata in earlier():
        while at != entry.snapshot_id and at in metadata.parents:
            parent, number = metadata.parents[at]
            # The search has passed the entry: numbers only fall from child to parent, so its snapshot is not
            # an ancestor.
            if number < entry.sequence_number:
                return False
            if parent is None:
                break  # It had no parent, or the parent had expired; earlier metadata shows which.
            at, number = parent, 0
        if at == entry.snapshot_id:
            return True
        if number > metadata.last_number:
            return (
                False  # It was created after this metadata and never had a parent, so the table was replaced.
            )
    # Nothing contradicts the property: all newer snapshots are on the path, and the older ones are gone. The
    # property is trusted, like an entry of a Delta table whose parent was cleaned up. Otherwise a catalog
    # that shows only one snapshot would stop each query after two commits of others (decision 0045).
    return True


def earlier_metadata(table: Table) -> Iterator[EarlierMetadata]:
    """Yield earlier versions of a table's metadata, newest first, as far as their files still exist."""
    from pyiceberg.serializers import FromInputFile

    for log_entry in reversed(table.metadata.metadata_log):
        try:
            metadata = FromInputFile.table_metadata(table.io.new_input(log_entry.metadata_file))
        # Old metadata files may have been deleted, the oldest first
        # (write.metadata.delete-after-commit.enabled).
        except FileNotFoundError:
            return
        snapshots = metadata.snapshots
        parents = {
            snapshot.snapshot_id: (snapshot.parent_snapshot_id, snapshot.sequence_number or 0)
            for snapshot in snapshots
        }
        # The table may have been upgraded from version 1 of the format, which has no sequence numbers.
        yield EarlierMetadata(getattr(metadata, "last_sequence_number", 0), parents)


def table_history(table: Table) -> list[HistoryRow]:
    """Return the current snapshot of a table and its ancestors; see :func:`history`."""
    return history(table.metadata, lambda: earlier_metadata(table))


def table_state(table: Table, app_id: str, name: str) -> LedgerState:
    """Return the state of an app id's ledger in a table.

    A writer can commit only on the snapshot that was current when it read this state. Therefore an entry
    always directly follows the one on which its decision was based, regardless of what is undone in the
    meantime.

    Raises:
        LedgerFormatError: an entry cannot be read.
    """
    return state_of(table_history(table), table.metadata.properties, app_id, name)


def state_of(
    rows: Sequence[HistoryRow], properties: Mapping[str, str], app_id: str, name: str
) -> LedgerState:
    """Return the state of an app id's ledger; see :func:`table_state`."""
    state = read_state(lambda limit: rows[:limit], app_id, table=name)
    # The commit is a compare-and-set on the snapshot, whereas Delta's is one on a transaction number. So
    # nothing can come between an entry and the one on which its decision was based, and there is no need to
    # search for a RESTORE there.
    if state.entry is not None:
        state = replace(state, previous=state.entry.parent)
    text = properties.get(PROPERTY_PREFIX + app_id)
    newest = parse_entry(text, app_id)
    if not isinstance(newest, LedgerEntry):
        return state
    # A property that was rolled back still has the highest number, and a number must never be used twice.
    state = replace(state, txn_version=max(state.txn_version, newest.txn_version))
    if state.entry is None:
        return replace(state, undone=state.undone or newest.start)
    if state.entry.attempt == newest.attempt:
        # The counts that the next summary builds on continue from the property.
        value: Any = parse_json(text or "")
        stored = replace(state.entry, deltas=value.get("deltas", 0), full_ms=value.get("full_ms"))
        return replace(state, entry=stored)
    return state


def column_batches(table: Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield some columns of all rows of a table, with one data file in memory at a time."""
    from pyiceberg.io.pyarrow import ArrowScan

    scan = table.scan(selected_fields=tuple(columns))
    reader = ArrowScan(table.metadata, table.io, scan.projection(), scan.row_filter)
    # The scan's own reader of batches reads all files at once, ahead of the caller that takes the batches.
    for task in scan.plan_files():
        yield from reader.to_record_batches([task])


def last_rows(
    table: Table, journal: str, offset: str, end: str | None = None
) -> list[tuple[str | None, int, int | None, int | None]]:
    """Return, for each journal of a table, its name, number of rows, greatest offset and greatest end.

    Reads only these columns, one file at a time.

    Args:
        table: The table.
        journal: Column of the journals' names.
        offset: Column of the offsets.
        end: Column of the ends of records. If there is none, pass None; the ends in the result are then None.
    """
    import pyarrow as pa

    columns = [offset, *([end] if end else [])]
    greatest = [(column, "max") for column in columns]
    parts = [
        pa.Table.from_batches([batch]).group_by(journal).aggregate([([], "count_all"), *greatest])
        for batch in column_batches(table, (journal, *columns))
    ]
    if not parts:
        return []
    # pyiceberg returns texts in the Arrow type of their file, and in another one if the file lacks the
    # column.
    merged = pa.concat_tables(parts, promote_options="permissive").group_by(journal)
    sums = merged.aggregate([("count_all", "sum"), *((f"{column}_max", "max") for column in columns)])
    return [
        (row[journal], row["count_all_sum"], row[f"{offset}_max_max"], row.get(f"{end}_max_max"))
        for row in sums.to_pylist()
    ]


def rows_where(table: Table, values: Mapping[str, Any], column: str) -> pa.Table:
    """Return one column of the rows that have certain values in other columns."""
    from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, Reference
    from pyiceberg.expressions.literals import literal

    condition: BooleanExpression = AlwaysTrue()
    for name, value in values.items():
        condition = And(condition, EqualTo(term=Reference(name), value=literal(value)))
    return table.scan(row_filter=condition, selected_fields=(column,)).to_arrow()


class IcebergLog:
    """Reads a table's history, as :class:`~gazette_spark._ledger.delta_reader.DeltaLog` does for Delta."""

    def __init__(self, name: TableName) -> None:
        self._name = name
        self._catalog: Catalog | None = None

    def __repr__(self) -> str:
        return f"IcebergLog({str(self._name)!r})"

    def table(self) -> Table:
        """Load the table as it is now.

        Raises:
            InputError: the table cannot be read.
            MissingPackageError: ``pyiceberg`` is not installed.
        """
        try:
            self._catalog = self._catalog or open_catalog(self._name.catalog, {})
            with iceberg_errors(str(self._name)):
                return self._catalog.load_table(self._name.identifier)
        except TableRefusedError as error:
            raise InputError(str(error)) from error

    def rows(self, limit: int | None) -> list[HistoryRow]:
        """Return the newest rows, newest first.

        Raises:
            InputError: the table cannot be read.
            MissingPackageError: ``pyiceberg`` is not installed.
        """
        return table_history(self.table())[:limit]
