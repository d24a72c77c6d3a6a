"""Hints: where they are kept, as what bytes, and which of them a shard recovers from.

A shard has primary hints, which its primary writes again and again, and backups, one for each of the last
recoveries. Their keys are paths: ``{hint_prefix}/{id}.primary`` and ``{hint_prefix}/{id}.backup.{n}``.
Gazette keeps them in Etcd, as JSON. A host without Etcd keeps them in a folder. All hosts of a shard should
share it: without hints a new host plays the log from its beginning, which is slow, and fails once the log was
pruned.

Hints are advice: older ones only make a player read more. What fences a host is its recovery log.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError

from gazette_spark.consumer.recoverylog.fsm import FSM
from gazette_spark.errors import GazetteError, StoreFormatError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import recoverylog_pb2 as pr


class HintStore(Protocol):
    """Where hints are kept, by key. Thread-safe."""

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the value of each key; None where there is none."""

    def put(self, values: Mapping[str, bytes]) -> None:
        """Set keys to values. A reader sees each value as a whole."""


class FileHintStore:
    """Keeps hints in a folder: each key is a file's path below it."""

    def __init__(self, root: str | Path) -> None:
        """Keep hints below a folder, which is made when the first ones are."""
        self.root = Path(root).absolute()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"FileHintStore({str(self.root)!r})"

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the value of each key; None where there is none."""
        with self._lock:
            return [path.read_bytes() if (path := self._path(key)).is_file() else None for key in keys]

    def put(self, values: Mapping[str, bytes]) -> None:
        """Set keys to values, durably, one after the other."""
        with self._lock:
            for key, value in values.items():
                self._put(self._path(key), value)

    def _put(self, path: Path, value: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=".hints-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            Path(made).replace(path)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise

    def _path(self, key: str) -> Path:
        path = Path(os.path.normpath(self.root / key.lstrip("/")))
        if path == self.root or self.root not in path.parents:
            raise ValueError(f"expected a key of hints, got {key!r}")
        return path


def hints_to_json(hints: pr.FSMHints) -> bytes:
    """Return hints as Gazette keeps them: JSON with the names of the fields, and numbers as such."""
    return json.dumps(_json_of(hints), separators=(",", ":")).encode()


def hints_from_json(value: bytes, where: str, log: str) -> pr.FSMHints:
    """Return the hints of JSON, or of a serialized message.

    Args:
        value: the bytes.
        where: says in an error where they are from.
        log: the recovery log they have to be of.

    Raises:
        StoreFormatError: they are no hints, contradict themselves, or are of another log.
    """
    hints = pr.FSMHints()
    try:
        if value.startswith(b"{"):
            # An empty list is null where Gazette has written it.
            found = {name: each for name, each in json.loads(value).items() if each is not None}
            ParseDict(found, hints, ignore_unknown_fields=True)
        else:
            hints.ParseFromString(value)
        FSM(hints)
    except (ValueError, ParseError, DecodeError, GazetteError) as error:
        raise StoreFormatError(where, f"it holds no hints of a recovery log: {error}") from error
    if hints.log != log:
        raise StoreFormatError(where, f"its hints are of recovery log {hints.log!r}, not {log!r}")
    return hints


def fetch_hints(
    store: HintStore, primary_key: str, backup_keys: Sequence[str], log: str
) -> pc.GetHintsResponse:
    """Return all hints of a shard; those that were never written are empty. The header is the caller's."""
    keys = [primary_key, *backup_keys]
    response = pc.GetHintsResponse(status=pc.OK, backup_hints=[{} for _ in backup_keys])
    slots = [response.primary_hints, *response.backup_hints]
    for key, value, slot in zip(keys, store.get(keys), slots, strict=True):
        if value is not None:
            slot.hints.CopyFrom(hints_from_json(value, key, log))
    return response


def pick_hints(response: pc.GetHintsResponse, log: str) -> pr.FSMHints:
    """Return the hints to recover from: the primary's, else the newest backup, else none but the log."""
    for each in (response.primary_hints, *response.backup_hints):
        if each.HasField("hints"):
            return each.hints
    return pr.FSMHints(log=log)


def store_recorded_hints(store: HintStore, primary_key: str, hints: pr.FSMHints) -> None:
    """Keep the hints of a recorder: from time to time, and when a shard stops."""
    store.put({primary_key: hints_to_json(hints)})


def store_recovered_hints(store: HintStore, backup_keys: Sequence[str], hints: pr.FSMHints) -> None:
    """Keep the hints of a player as the newest backup, and move each older one to the next key.

    Call it after the store's ``restore_checkpoint`` has succeeded: hints of files that no store opens would
    replace good ones. Older backups move only as far as the first key that is free.
    """
    values: dict[str, bytes] = {}
    value: bytes | None = hints_to_json(hints)
    for key, previous in zip(backup_keys, store.get(backup_keys), strict=True):
        if value is None:
            break
        values[key], value = value, previous
    # The oldest first: a crash in between repeats a value, and loses none.
    store.put(dict(reversed(values.items())))


def _json_of(hints: pr.FSMHints) -> dict[str, Any]:
    return {
        "log": hints.log,
        "live_nodes": [
            {
                "fnode": node.fnode,
                "segments": [
                    {field.name: value for field, value in segment.ListFields()} for segment in node.segments
                ],
            }
            for node in hints.live_nodes
        ],
        "properties": [{"path": each.path, "content": each.content} for each in hints.properties],
    }
