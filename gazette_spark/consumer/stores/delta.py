"""Keeps the state of a shard on Spark as rows of a Delta table that anyone can query.

An application's document becomes rows ``(shard, kind, key, value)``. Each entry of a dictionary is a row of
the kind ``state`` with the entry's key and its value as JSON. Any other document, and an empty dictionary, is
one row of the kind ``document``. A task gets the rows, builds the document from them, and returns the rows
that have changed. The table itself is in :mod:`gazette_spark.consumer.spark`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from gazette_spark.client._append.futures import OpFuture, finished_operation
from gazette_spark.consumer.micro_batch import DOCUMENT, STATE
from gazette_spark.errors import InputError, StoreFormatError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.strict_json import check_keys

Rows = Mapping[tuple[str, str], str]
"""A document as rows: JSON by kind and key."""


def rows_of(document: object) -> dict[tuple[str, str], str]:
    """Return the rows of a document.

    Raises:
        InputError: JSON cannot represent the document or one of its keys.
    """
    if not isinstance(document, dict) or not document:
        return {(DOCUMENT, ""): _json("the document", document)}
    for key in document:
        if not isinstance(key, str):
            raise InputError(f"the state has the key {key!r}, but the keys of a JSON object must be strings")
        check_key(key)
    return {(STATE, key): _json(f"the state of key {key!r}", value) for key, value in document.items()}


def check_key(key: str) -> None:
    """Refuse a key that a table cannot store.

    Raises:
        InputError: it has half of a surrogate pair, which JSON can escape but UTF-8 cannot represent.
    """
    if not _is_utf8(key):
        problem = f"the state has the key {key!r}, which has half of a surrogate pair"
        raise InputError(f"{problem}: a table cannot store it, so give the entry another key")


def document_of(rows: Rows, initial: object) -> Any:  # noqa: ANN401 - the application's
    """Return the document of stored rows, or a copy of ``initial`` if there are no rows.

    Raises:
        StoreFormatError: a row is not JSON.
    """
    if (DOCUMENT, "") in rows:
        return _parsed("", rows[DOCUMENT, ""])
    if rows:
        return {key: _parsed(key, text) for (_, key), text in rows.items()}
    return copy.deepcopy(initial)


def _parsed(key: str, text: str) -> Any:  # noqa: ANN401 - the application's
    # The state may contain everything that Python's encoder writes, because it was committed.
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreFormatError("of a state table", f"the row of key {key!r} is not JSON: {error}") from error


class RowStore:
    """A :class:`~gazette_spark.consumer.application.JsonStore` of rows. For one task, and one thread."""

    def __init__(self, rows: Rows, initial: object = None, *, only_key: str | None = None) -> None:
        """Build the document from rows.

        Args:
            rows: The stored rows of the shard, or of one key.
            initial: The document if there are no rows.
            only_key: The key whose entry is the whole document, in an application that declares keys.

        Raises:
            InputError: ``initial`` has entries although the application declares keys.
        """
        if only_key is not None and initial not in (None, {}):
            raise InputError("the state of an application with keys begins as an empty dictionary")
        self._rows = dict(rows)
        self._only_key = only_key
        self.state: Any = document_of(rows, {} if only_key is not None else initial)

    def __repr__(self) -> str:
        return f"RowStore({len(self._rows)} rows, only_key={self._only_key!r})"

    def restore_checkpoint(self) -> pc.Checkpoint:
        """Return an empty checkpoint, because the driver has the checkpoints of all shards."""
        return pc.Checkpoint()

    def start_commit(self, _checkpoint: pc.Checkpoint, _wait_for: Iterable[OpFuture]) -> Future[None]:
        """Do nothing, because the driver commits the rows of all shards."""
        return finished_operation()

    def destroy(self) -> None:
        """Do nothing."""

    def changes(self) -> dict[tuple[str, str], str | None]:
        """Return the rows that differ from the stored ones; None for a row to delete.

        Raises:
            InputError: the state is not JSON, or an application with keys has changed another key.
        """
        after = {} if self._only_key is not None and not self.state else rows_of(self.state)
        if self._only_key is not None:
            for _, key in after.keys() - {(STATE, self._only_key)}:
                raise InputError(
                    f"the application declares keys, but changed the state of {key!r} for a message of the "
                    f"key {self._only_key!r}: a message may change only the entry of its key"
                )
        changed: dict[tuple[str, str], str | None] = dict.fromkeys(self._rows.keys() - after.keys())
        return changed | {at: text for at, text in after.items() if self._rows.get(at) != text}


def _json(what: str, value: object) -> str:
    encode = partial(json.dumps, value, separators=(",", ":"), sort_keys=True, allow_nan=False)
    try:
        text = encode(ensure_ascii=False)
        check_keys(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{what} cannot be written as JSON: {error}") from error
    # A text may have half of a surrogate pair, because records may escape one. Only its escape can be stored.
    return text if _is_utf8(text) else encode()


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
