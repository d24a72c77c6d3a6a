"""Stores one JSON document in a file that a recovery log moves between hosts.

The file ``state.json`` has the format of Gazette's ``JSONFileStore``. It contains three JSON documents, each
on a line: the offsets read through by source journal, the state, and the whole checkpoint. Offsets in the
first document replace those in the third, which may be missing, because older versions of Gazette did not
write it.

A fourth line seals the three with their length and SHA-256, and a space before the first line shows that the
seal must exist. Gazette skips the space and does not read a fourth document. A file that Gazette wrote has
neither.

A commit writes the whole file as ``next.json`` and renames it. The order lets each message count once:

1. a barrier that depends on everything on which the checkpoint relies, so that all later steps are appended
   after it has succeeded;
2. ``next.json``, truncated first, because a recovered one belongs to a transaction that was not committed;
3. the rename, which is the commit;
4. a barrier, whose end is the end of the commit.
"""

from __future__ import annotations

import base64
import copy
import json
import re
import shutil
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError

from gazette_spark.client._append.futures import OpFuture, finished_operation
from gazette_spark.consumer.recoverylog.recorder import RecordedFiles, Recorder
from gazette_spark.errors import DamagedFileError, StoreFormatError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.seal import check_seal, seal_line
from gazette_spark.strict_json import check_keys, parse_json

CURRENT = "state.json"
NEXT = "next.json"

SEALED = b" "
"""First byte of a file that has a seal."""

_SPACE = re.compile(r"[ \t\n\r]*")


class JsonFileStore:
    """Keeps a JSON document in ``state.json``; see the module. Each commit writes the whole document."""

    def __init__(self, recorder: Recorder, initial: object = None) -> None:
        """Open the recovered store, or begin a new one.

        Args:
            recorder: recorder of the recovered directory.
            initial: the document if none is stored yet. This object is not changed.

        Raises:
            StoreFormatError: the file is not that of a JSON store.
        """
        self._recorder = recorder
        self._files = RecordedFiles(recorder)
        self._checkpoint = pc.Checkpoint()
        self.state: Any = copy.deepcopy(initial)
        """The document, of JSON values. Its value at the beginning of a commit is committed."""
        path = self._files.path(CURRENT)
        if path.is_file():
            self.state, self._checkpoint = parse_state_file(path.read_bytes(), str(path))

    def __repr__(self) -> str:
        return f"JsonFileStore({self._recorder.log!r})"

    def restore_checkpoint(self) -> pc.Checkpoint:
        """Return the checkpoint in the file. The hand-off of the recovery log has fenced off other stores."""
        return self._checkpoint

    def start_commit(self, checkpoint: pc.Checkpoint, wait_for: Iterable[OpFuture]) -> Future[None]:
        """Begin to commit the state and a checkpoint. The state may be changed after the call has returned.

        The future fails with a RecorderFencedError if another host has the recovery log, and with the error
        of an operation that failed.
        """
        try:
            content = build_state_file(self.state, checkpoint)
        except (TypeError, ValueError, RecursionError) as error:
            return finished_operation(error)
        self._recorder.barrier(wait_for)
        try:
            with self._files.create(NEXT) as file:
                file.write(content)
            self._files.rename(NEXT, CURRENT)
        except Exception as error:  # noqa: BLE001  # With any error, the commit has failed.
            return finished_operation(error)
        return self._recorder.barrier()

    def destroy(self) -> None:
        """Remove the directory, because the recovery log has the committed state."""
        shutil.rmtree(self._recorder.directory, ignore_errors=True)


def build_state_file(state: object, checkpoint: pc.Checkpoint) -> bytes:
    """Return the content of a state file.

    Raises:
        TypeError: the state contains other values than JSON values, or a key that is not a text.
        ValueError: the state contains a number that JSON cannot represent, or refers to itself.
        RecursionError: the state is nested too deeply.
    """
    sources = sorted(checkpoint.sources.items())
    offsets = {journal: source.read_through for journal, source in sources}
    # Write the checkpoint as Go's encoder does: numbers as numbers, and the names of the fields.
    whole = {
        "sources": {
            journal: {
                "read_through": source.read_through,
                "producers": [
                    {
                        "id": base64.b64encode(entry.id).decode(),
                        "state": {"last_ack": entry.state.last_ack, "begin": entry.state.begin},
                    }
                    for entry in source.producers
                ],
            }
            for journal, source in sources
        },
        "ack_intents": {
            journal: base64.b64encode(intent).decode()
            for journal, intent in sorted(checkpoint.ack_intents.items())
        },
    }
    documents = (offsets, state, whole)
    lines = [json.dumps(document, separators=(",", ":"), allow_nan=False) for document in documents]
    # Check this after the encoder, which refuses a state that refers to itself.
    check_keys(state)
    content = SEALED + ("\n".join(lines) + "\n").encode()
    return content + seal_line(content)


def parse_state_file(content: bytes, path: str) -> tuple[Any, pc.Checkpoint]:
    """Return the state and the checkpoint from the content of a state file.

    Raises:
        StoreFormatError: the content is damaged, or is not a state file.
    """
    if content.startswith(SEALED):
        # The last line is the seal of the lines before it.
        end = content.rfind(b"\n", 0, -1) + 1
        try:
            check_seal(content[:end], content[end:], path)
        except DamagedFileError as error:
            raise StoreFormatError(path, f"it is damaged: {error.problem}") from error
        content = content[:end]
    try:
        offsets, state, *rest = _documents(content.decode())
        # Go writes null for an empty list or map.
        checkpoint = ParseDict(rest[0] or {}, pc.Checkpoint()) if rest else pc.Checkpoint()
        for journal, offset in (offsets or {}).items():
            checkpoint.sources[journal].read_through = offset
    except (ValueError, TypeError, AttributeError, RecursionError, ParseError) as error:
        problem = f"expected offsets, a state and a checkpoint as JSON: {error}"
        raise StoreFormatError(path, problem) from error
    return state, checkpoint


def _documents(text: str) -> list[Any]:
    """Return the JSON documents of a text, which has at most three."""
    decoder = json.JSONDecoder()
    documents: list[Any] = []
    at = _skip_space(text, 0)
    while at < len(text):
        if len(documents) == 3:
            raise ValueError(f"more than three documents, from character {at} on")
        document, end = decoder.raw_decode(text, at)
        # The state may contain everything that Python's encoder writes, because it was committed.
        documents.append(document if len(documents) == 1 else parse_json(text[at:end]))
        at = _skip_space(text, end)
    return documents


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
