"""Writes the tables of errors in ``docs/reference/errors.md``: names, meanings and remedies.

The meanings come from docstrings. ``make generated`` runs this module; a test fails if the page differs or an
error has no remedy.
"""

from __future__ import annotations

import re
from pathlib import Path

from gazette_spark import errors

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "errors.md"

BEGIN = "<!-- The tables are made from the code: make generated -->"
END = "<!-- End of the tables. -->"

RETRIED = "The client tries again by itself. If the error persists, check that enough brokers run."

REMEDIES: dict[str, dict[str, str]] = {
    "Options, input and environment": {
        "OptionError": "Correct the option; the text has the allowed form. See [options](options.md).",
        "InputError": "Correct the file or the input; the text names the line or key.",
        "JsonError": "Correct the text; the error names the problem.",
        "DamagedFileError": "Restore the file from a copy.",
        "MissingModuleError": "Set `PYSPARK_PYTHON` to the Python of the package before you create the "
        "session. On a cluster: [Deploy](../guides/deploy.md).",
        "MissingPackageError": "Install the package that the text names, in the Python that it names.",
        "MissingZonesError": "Install the system's time zone database, or the package `tzdata`, on the "
        "machine.",
        "ClosedError": "Create a new client, reader or append. Do not use one after a fork.",
    },
    "Brokers": {
        "UnavailableError": "Check `brokerAddress`, the broker, and the network from driver and executors.",
        "AuthError": "Check the token or the signing keys: [Secured clusters](../guides/secure.md).",
        "TokenError": "Check the key, the expiry, and the clock of the program that signs.",
        "CollectionAccessError": "Check the collection's name, the user's token and the control plane: "
        "[Estuary Flow](../guides/estuary.md).",
        "TlsError": "Check the address, `tls.caFile`, and the client's certificate: [Secured "
        "clusters](../guides/secure.md).",
        "BrokerError": "Read the broker's log: it failed the call without a status.",
        "FlowControlError": "Prepare all bytes before the append begins, or use an `AppendService`.",
        "BrokerRootError": "Stop the other broker, or choose another directory.",
        "PartialApplyError": "The changes that the text names are applied. List the journals, and apply "
        "the rest again.",
        "BacklogError": "Append less at a time, or raise `max_pending_bytes`.",
        "AppendWaitError": "The append may still happen. Check the brokers; then flush again.",
        "DependencyError": "Remove the cause in the text, and append again.",
        "ProtocolError": "Check that the address is a Gazette broker's. If it is, report a defect.",
        "WatchUnsupportedError": "Use brokers of Gazette 0.100 or later, or list without a watch.",
    },
    "Statuses of brokers": {
        "JournalNotFoundError": "Check the name, and the token's selector. A prefix ends in `/`.",
        "NoJournalPrimaryBrokerError": RETRIED,
        "NotJournalPrimaryBrokerError": RETRIED,
        "NotJournalBrokerError": RETRIED,
        "InsufficientJournalBrokersError": RETRIED,
        "WrongRouteError": RETRIED,
        "ProposalMismatchError": RETRIED,
        "OffsetNotYetAvailableError": "Read at or before the write head, or wait until the write head "
        "reaches the offset.",
        "EtcdTransactionFailedError": "List the journals again, and apply with their current revisions.",
        "NotAllowedError": "Change the journal's `flags`.",
        "WrongAppendOffsetError": "Another writer has appended. Read its bytes, and get the new write head.",
        "IndexHasGreaterOffsetError": "Brokers lost bytes. When no broker is left that could still store "
        "them, run `gazctl journals reset-head`.",
        "RegisterMismatchError": "Stop this writer: another one has taken over.",
        "SuspendedError": "Append to the journal, which resumes it.",
        "FragmentStoreUnhealthyError": "Check the store and the broker's credentials with `gazctl journals "
        "store-health`.",
    },
    "Journals and fragments": {
        "OffsetError": "Give an offset inside the journal, at a record's first byte.",
        "DataLossError": "Restore the fragments, or set `failOnDataLoss=false`: [Lost "
        "data](../guides/data-loss.md).",
        "OffsetBeyondHeadError": "Wait until the brokers are healthy, and start again: [When brokers fail "
        "over](../guides/data-loss.md#when-brokers-fail-over).",
        "JournalRecreatedError": "Continue the table with the new journal: "
        "[Recover](../guides/recover.md#a-journal-was-deleted-and-created-again).",
        "OtherJournalsError": "Keep the order of the query's sources, or start with a new checkpoint and "
        "`DeltaSink.resume`.",
        "CorruptFragmentError": "Restore the fragment file from a backup.",
        "FragmentTooShortError": "Restore the fragment file from a backup.",
        "FragmentTooLongError": "Restore the fragment file from a backup.",
        "FragmentConflictError": "Compare the files that the text names, and move the wrong one out of the "
        "store.",
        "FragmentStoreError": "Check the store's URL and the credentials in the environment.",
        "DirectReadError": "Check the network to the store, and `fragmentRoot`.",
        "OffsetJumpError": "Continue reading: the next bytes are at the offset that the text names.",
        "SeekRequiresNewReaderError": "Open a new reader at that offset.",
        "RecordError": "Use `mode=PERMISSIVE`, [dead letters](../guides/dead-letters.md), or a larger "
        "`maxRecordBytes`.",
        "RowError": "Correct the value that the framing cannot represent, or set the row's journal.",
        "EmptyListingError": "Check the selector; create journals first.",
        "MessageError": "Check the message, `uuidPath` and the journal's content type.",
        "SequencerError": "Call the sequencer's methods in the order of its docstring.",
        "TransactionError": "See [the table of refusals](../guides/write.md#exactly-once).",
    },
    "Delta sink": {
        "GapError": "Start with a new checkpoint and `resume`, or accept the gap: "
        "[Recover](../guides/recover.md#the-query-begins-past-the-tables-end).",
        "OverlapError": "Start with a new checkpoint and `resume`, or trim: "
        "[Recover](../guides/recover.md#batches-overlap-the-table).",
        "TrimError": "Keep `_journal` and `_offset` in the query, or start with a new checkpoint and "
        "`resume`.",
        "UpsertError": "Leave out rows with a null key, or choose other keys: [Upsert](../guides/upsert.md).",
        "NoSpaceError": "Free space in the directory that the text names, and start again with the same "
        "checkpoint.",
        "BadRowError": "Correct the row at the offset that the text names, or use [dead "
        "letters](../guides/dead-letters.md).",
        "DeadLetterError": "Keep `_journal` and `_offset`, or run as before for one batch: [Dead "
        "letters](../guides/dead-letters.md).",
        "FencedError": "Stop one of the two queries, or give it another app id.",
        "LedgerLostError": "Adopt the offsets: [Recover](../guides/recover.md#the-ledger-is-lost).",
        "LedgerFormatError": (
            "Use the release that wrote the entry, or a later one. If the entry is damaged, restore this "
            "version's file of the log from a copy of the table."
        ),
        "RestoredError": "Run the RESTORE that the text gives.",
        "QueryCheckpointError": "Give the sink its checkpoint, or start with a new one and `resume`.",
        "DataFileError": "Give the tasks access to the table's directory or object store, and space in it.",
        "TableRefusedError": "Do what the text says: for example, change a table property, restore a "
        "damaged file of the table's log, or use another table.",
        "SchemaMismatchError": "Cast the columns, change the table, or set `schema_evolution`: [Delta "
        "sink](../guides/delta-sink.md#when-columns-change).",
    },
    "Replicated logs": {
        "InvalidVersionError": "Read the log to its end, and make the checkpoint again.",
        "LogFencedError": "Stop being the primary. To become the primary again, take over with a new "
        "`Writer`.",
        "PendingEntryError": "Read the log to find out whether it has the entry.",
        "CheckpointStateError": "Use `with writer.checkpointing(version)`, which keeps the order.",
        "NoMoreMessageError": "Nothing to do: the log ends here.",
        "FetchTimeoutError": "Fetch again; it continues at the same offset.",
        "FetchCancelledError": "Fetch again; it continues at the same offset.",
        "LogDataLossError": "Wait until the brokers are healthy. If the error persists, restore the "
        "fragments, or load a snapshot and continue at its offset.",
    },
    "Applications": {
        "ShardFailedError": "Remove the cause, then run `gazette-spark shards unassign`.",
        "PermanentError": "Raise it in an application. If it is the cause of a `ShardFailedError`, correct "
        "the application or its input, then run `gazette-spark shards unassign`.",
        "SourceLossError": "Wait until the brokers are healthy. If the error persists, restore the "
        "journal, or apply the shard's spec under another id.",
        "TransactionOrderError": "Call the steps in the order of the interface's docstring.",
        "RecoveryLogLossError": "Restore the recovery log's fragments, or start from the hints of a backup.",
        "RecorderFencedError": "Nothing to do: another host has the shard.",
        "StoreFencedError": "Nothing to do: another host has the shard.",
        "StoreFormatError": "Restore the file, or begin with an empty store.",
        "ShardNotFoundError": "Check the id, and the token's selector.",
        "NoShardPrimaryError": "Wait, or check that a consumer is running.",
        "NotShardPrimaryError": "The client calls the primary by itself. If the error persists, list the "
        "shards.",
        "ShardTransactionFailedError": "List the shards again, and apply with their current revisions.",
        "ShardStoppedError": "`gazette-spark shards list` shows why; `unassign` starts it again.",
    },
}
"""Remedy of each error, by group."""


def meaning(name: str) -> str:
    """Return the first sentences of an error's docstring."""
    doc = getattr(errors, name).__doc__ or ""
    return re.sub(r"``", "`", doc.split("\n\n")[0].replace("\n", " ").strip())


def tables() -> str:
    """Return the page's tables."""
    lines = []
    for group, remedies in REMEDIES.items():
        lines += [f"## {group}", "", "| error | meaning | what to do |", "|---|---|---|"]
        lines += [
            f"| `{name}` | {re.sub(' +', ' ', meaning(name))} | {remedy} |"
            for name, remedy in remedies.items()
        ]
        lines.append("")
    return "\n".join(lines)


def with_tables(page: str) -> str:
    """Return the page with updated tables between its two marks."""
    return between_marks(page, BEGIN, tables())


def between_marks(page: str, begin: str, made: str) -> str:
    """Return a page with generated text between the marks ``begin`` and :data:`END`."""
    before, _, rest = page.partition(begin)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"the page needs the lines {begin!r} and {END!r}")
    return f"{before}{begin}\n\n{made.rstrip()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
