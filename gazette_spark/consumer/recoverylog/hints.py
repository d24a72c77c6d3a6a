"""Stores hints of recovery logs, and chooses those from which a shard recovers.

A shard has primary hints, which its primary updates regularly, and backups, one for each of the last
recoveries. Hosts store them in a mapping from keys to hints. The keys are Gazette's; see
:func:`~gazette_spark.consumer.specs.hint_primary_key`. Gazette stores hints in Etcd. A local host stores them
in memory or, with :class:`FileHints`, in a folder. All hosts of a shard should share them: without hints, a
new host plays the log from its beginning, which is slow, and which fails if the log was pruned.

Hints are advice: older ones only make a player read more. Hosts are fenced by the recovery log, not by hints.
"""

from __future__ import annotations

import json
import logging
import os
import re
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

# Prefix of the names of files that are being written. A crash leaves such a file, which is ignored.
_PARTIAL = ".partial-"

_CUT = "!"
"""End of the name of a folder whose key continues without a slash. Ids of shards do not contain it."""


class Hints(Protocol):
    """Hints of recovery logs by key, see :func:`~gazette_spark.consumer.specs.hint_primary_key`."""

    def get(self, key: str, /) -> pr.FSMHints | None:
        """Return the hints of a key, or None if there are none."""

    def __setitem__(self, key: str, hints: pr.FSMHints, /) -> None:
        """Store hints."""


class FileHints(MutableMapping[str, pr.FSMHints]):
    """Stores hints in a folder: each key is the path of a file in it. Safe between threads and processes.

    The files contain the JSON that Gazette stores in Etcd, after a seal. A damaged file counts as missing,
    with a warning: its shard recovers from a backup, or plays more of its log.
    """

    def __init__(self, root: str | Path) -> None:
        """Store hints in a folder, which is created with the first ones."""
        self.root = Path(root).absolute()

    def __repr__(self) -> str:
        return f"FileHints({str(self.root)!r})"

    def __getitem__(self, key: str) -> pr.FSMHints:
        """Return hints.

        Raises:
            KeyError: the key has no hints, or their file is damaged.
            StoreFormatError: the file is intact but does not contain hints.
        """
        path = self._path(key)
        try:
            return hints_from_bytes(unseal(path.read_bytes(), str(path)), str(path))
        except (FileNotFoundError, IsADirectoryError):
            raise KeyError(key) from None
        except DamagedFileError as error:
            # Hints only reduce reading, so damaged ones cause a warning, not a failure. An intact file with
            # other content is a configuration error, which is raised.
            logger.warning("hints.damaged key=%s: %s", key, error)
            raise KeyError(key) from None

    def __setitem__(self, key: str, hints: pr.FSMHints) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Write the file in the same folder, because a rename is atomic only within a file system: readers see
        # the old hints or the new ones.
        descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=_PARTIAL)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(seal(hints_to_json(hints)))
                file.flush()
                # Sync before the rename. Otherwise a machine that crashes could keep the new name but lose
                # the bytes.
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
                yield "/" + path.relative_to(self.root).as_posix().replace(f"{_CUT}/", "")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _path(self, key: str) -> Path:
        # A key comes from a spec, which any client with the right to apply specs may write, so it must not
        # name a file outside the folder.
        # The id of a shard may have 512 bytes, but the name of a file only 255, which are 63 characters.
        relative = re.sub("([^/]{60})(?=[^/])", rf"\1{_CUT}/", key.lstrip("/"))
        path = Path(os.path.normpath(self.root / relative))
        if self.root not in path.parents:
            raise ValueError(f"expected a key of hints, such as '/gazette/hints/shard.primary', got {key!r}")
        return path


def hints_to_json(hints: pr.FSMHints) -> bytes:
    """Return hints in Gazette's stored form: JSON with the names of the fields, and with numbers."""
    nodes = [
        {
            "fnode": node.fnode,
            "segments": [{field.name: value for field, value in item.ListFields()} for item in node.segments],
        }
        for node in hints.live_nodes
    ]
    properties = [{"path": item.path, "content": item.content} for item in hints.properties]
    # Do not use protobuf's own JSON, which has camel case and writes 64-bit numbers as texts: Gazette's
    # parser of hints does not read that.
    document = {"log": hints.log, "live_nodes": nodes, "properties": properties}
    return json.dumps(document, separators=(",", ":")).encode()


def hints_from_bytes(value: bytes, where: str) -> pr.FSMHints:
    """Return hints from JSON or from a serialized message. ``where`` names their origin in errors.

    Raises:
        StoreFormatError: the value is not hints, or they contradict themselves.
    """
    hints = pr.FSMHints()
    try:
        if value.startswith(b"{"):
            # Gazette writes null for an empty list, which is parsed as such. Fields that a later release of
            # Gazette adds do not matter here, because hints are advice.
            ParseDict(parse_json(value), hints, ignore_unknown_fields=True)
        else:
            hints.ParseFromString(value)
        # Hints that contradict themselves fail here, where the error can name their origin, and not in the
        # middle of a replay.
        FSM(hints)
    except (ValueError, ParseError, DecodeError, GazetteError) as error:
        raise StoreFormatError(where, f"it contains no hints of a recovery log: {error}") from error
    return hints


def pick_hints(stored: pc.GetHintsResponse, log: str) -> pr.FSMHints:
    """Return the hints for a recovery: the primary's, or the newest backup, or hints with only the log.

    Raises:
        StoreFormatError: the hints are of another log.
    """
    # Try the newest first, because it leaves the least to read. All of them lead to the same files.
    for candidate in (stored.primary_hints, *stored.backup_hints):
        if candidate.HasField("hints"):
            # Playing them would rebuild another shard's files, or files from before the log was changed.
            if candidate.hints.log != log:
                problem = f"they are of recovery log {candidate.hints.log!r}, but the shard's is {log!r}"
                raise StoreFormatError(f"of hints of log {log!r}", problem)
            return candidate.hints
    return pr.FSMHints(log=log)


def keep_recovered_hints(stored: Hints, backup_keys: Sequence[str], hints: pr.FSMHints) -> None:
    """Store the hints of a player as the newest backup, and move each older one to the next key.

    Call this after the store's ``restore_checkpoint`` has succeeded: otherwise hints of files that no store
    can open would replace good ones. Older backups move only up to the first free key.
    """
    moves: list[tuple[str, pr.FSMHints]] = []
    moved: pr.FSMHints | None = hints
    for key in backup_keys:
        if moved is None:
            break
        moves.append((key, moved))
        # Read everything before writing. A free key ends the chain, because nothing after it has to move.
        moved = stored.get(key)
    # Move the oldest first: a crash in between then repeats hints but loses none.
    for key, moving in reversed(moves):
        stored[key] = moving
