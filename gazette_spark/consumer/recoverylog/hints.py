"""Hints: where and in which form they are kept, and which of them a shard recovers from.

A shard has primary hints, which its primary writes again and again, and backups, one for each of the last
recoveries. Hosts keep them in a mapping from keys to hints; the keys are Gazette's, see
:func:`~gazette_spark.consumer.specs.hint_primary_key`. Gazette keeps them in Etcd. A host here keeps them
in memory or, by :class:`FileHints`, in a folder. All hosts of a shard should share it: without hints a new
host plays the log from its beginning, which is slow, and fails once the log was pruned.

Hints are advice: older ones only make a player read more. What fences a host is its recovery log.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Protocol

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError

from gazette_spark.consumer.recoverylog.fsm import FSM
from gazette_spark.errors import DamagedFileError, GazetteError, StoreFormatError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import recoverylog_pb2 as pr
from gazette_spark.seal import seal, unseal
from gazette_spark.strict_json import parse_json

logger = logging.getLogger(__name__)

# Begin of the names of files that are being written. A crash leaves one behind, which counts as no hints.
_PARTIAL = ".partial-"


class Hints(Protocol):
    """Hints of recovery logs by key, see :func:`~gazette_spark.consumer.specs.hint_primary_key`."""

    def get(self, key: str, /) -> pr.FSMHints | None:
        """Return the hints of a key; None if there are none."""

    def __setitem__(self, key: str, hints: pr.FSMHints, /) -> None:
        """Store hints."""


class FileHints(MutableMapping[str, pr.FSMHints]):
    """Keeps hints in a folder: each key is the path of a file below it. Safe between threads and processes.

    The files hold JSON as Gazette keeps it in Etcd, below a seal. A damaged file counts as missing, with a
    warning: its shard recovers from a backup, or plays more of its log.
    """

    def __init__(self, root: str | Path) -> None:
        """Store hints below a folder, which is created with the first ones."""
        self.root = Path(root).absolute()

    def __repr__(self) -> str:
        return f"FileHints({str(self.root)!r})"

    def __getitem__(self, key: str) -> pr.FSMHints:
        """Return hints.

        Raises:
            KeyError: the key has no hints, or their file is damaged.
            StoreFormatError: the file is as it was written, and holds no hints.
        """
        path = self._path(key)
        try:
            return hints_from_bytes(unseal(path.read_bytes(), str(path)), str(path))
        except (FileNotFoundError, IsADirectoryError):
            raise KeyError(key) from None
        except DamagedFileError as error:
            # Hints only save reading, so damaged ones are worth a warning and no failure. A file that is
            # sound and holds something else is an error of configuration, and is raised.
            logger.warning("hints.damaged key=%s: %s", key, error)
            raise KeyError(key) from None

    def __setitem__(self, key: str, hints: pr.FSMHints) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder, because only within one file system is the rename atomic: readers see the old
        # hints or the new ones.
        descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=_PARTIAL)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(seal(hints_to_json(hints)))
                file.flush()
                # Before the rename: a machine that crashes could otherwise keep the new name and lose the
                # bytes.
                os.fsync(file.fileno())
            Path(made).replace(path)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise

    def __delitem__(self, key: str) -> None:
        try:
            self._path(key).unlink()
        except FileNotFoundError:
            raise KeyError(key) from None

    def __iter__(self) -> Iterator[str]:
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and not path.name.startswith(_PARTIAL):
                yield "/" + path.relative_to(self.root).as_posix()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _path(self, key: str) -> Path:
        # A key comes from a spec, which anybody may apply who may apply specs: it must not name a file
        # outside the folder.
        path = Path(os.path.normpath(self.root / key.lstrip("/")))
        if self.root not in path.parents:
            raise ValueError(f"expected a key of hints, such as '/gazette/hints/shard.primary', got {key!r}")
        return path


def hints_to_json(hints: pr.FSMHints) -> bytes:
    """Return hints as Gazette keeps them: JSON with the names of the fields, and numbers as such."""
    nodes = [
        {
            "fnode": node.fnode,
            "segments": [{field.name: value for field, value in item.ListFields()} for item in node.segments],
        }
        for node in hints.live_nodes
    ]
    properties = [{"path": item.path, "content": item.content} for item in hints.properties]
    # Written by hand, because protobuf's own JSON has camel case and 64-bit numbers as texts, which Gazette's
    # parser of hints does not read.
    document = {"log": hints.log, "live_nodes": nodes, "properties": properties}
    return json.dumps(document, separators=(",", ":")).encode()


def hints_from_bytes(value: bytes, where: str) -> pr.FSMHints:
    """Return the hints of JSON, or of a serialized message. ``where`` says in an error where they are from.

    Raises:
        StoreFormatError: they are no hints, or contradict themselves.
    """
    hints = pr.FSMHints()
    try:
        if value.startswith(b"{"):
            # Gazette writes null where a list is empty; that is parsed as an empty one. Fields that a later
            # Gazette adds do not matter here: hints are advice.
            ParseDict(parse_json(value), hints, ignore_unknown_fields=True)
        else:
            hints.ParseFromString(value)
        # Hints that contradict themselves fail here, with the place that they are from, and not in the middle
        # of a replay.
        FSM(hints)
    except (ValueError, ParseError, DecodeError, GazetteError) as error:
        raise StoreFormatError(where, f"it holds no hints of a recovery log: {error}") from error
    return hints


def pick_hints(stored: pc.GetHintsResponse, log: str) -> pr.FSMHints:
    """Return the hints to recover from: the primary's, else the newest backup, else none but the log.

    Raises:
        StoreFormatError: the hints are of another log.
    """
    # The newest first, because it leaves the least to read. Any of them leads to the same files.
    for candidate in (stored.primary_hints, *stored.backup_hints):
        if candidate.HasField("hints"):
            # Playing them would rebuild another shard's files, or those before the log was changed.
            if candidate.hints.log != log:
                problem = f"they are of recovery log {candidate.hints.log!r}, and the shard's is {log!r}"
                raise StoreFormatError(f"of hints of log {log!r}", problem)
            return candidate.hints
    return pr.FSMHints(log=log)


def keep_recovered_hints(stored: Hints, backup_keys: Sequence[str], hints: pr.FSMHints) -> None:
    """Keep the hints of a player as the newest backup, and move each older one to the next key.

    Call it after the store's ``restore_checkpoint`` has succeeded: hints of files that no store opens would
    replace good ones. Older backups move only as far as the first key that is free.
    """
    moves: list[tuple[str, pr.FSMHints]] = []
    moved: pr.FSMHints | None = hints
    for key in backup_keys:
        if moved is None:
            break
        moves.append((key, moved))
        # Read before anything is written. A free key ends the chain: nothing behind it has to move.
        moved = stored.get(key)
    # The oldest first: a crash in between repeats hints, and loses none.
    for key, moving in reversed(moves):
        stored[key] = moving
