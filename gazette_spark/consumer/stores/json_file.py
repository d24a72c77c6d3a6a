"""A store of one JSON document, in a file that a recovery log moves between hosts.

The file ``state.json`` is that of Gazette's ``JSONFileStore``. It holds three JSON documents, each on a
line: by source journal the offset that is read through, the state, and the whole checkpoint. Offsets of the
first document replace those of the third, which may be missing: older versions of Gazette wrote no more.

A fourth line seals the three with their length and SHA-256, and a space before the first says that it has to
be there. Gazette skips the space and reads no fourth document. A file that Gazette wrote has neither.

A commit writes the whole file as ``next.json`` and renames it. The order is what makes it count once:

1. a barrier with all that the checkpoint relies on: what follows is appended after that has ended well;
2. ``next.json``, truncated, as a recovered one is of a transaction that was not committed;
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
from gazette_spark.strict_json import parse_json

CURRENT = "state.json"
NEXT = "next.json"

SEALED = b" "
"""First byte of a file that has a seal."""

_SPACE = re.compile(r"[ \t\n\r]*")


class JsonFileStore:
    """Keeps a JSON document in ``state.json``, see the module. Each commit writes all of it."""

    def __init__(self, recorder: Recorder, initial: object = None) -> None:
        """Open the store that was recovered, or begin one.

        Args:
            recorder: of the directory that was recovered.
            initial: the document, if none is stored yet; it is not changed.

        Raises:
            StoreFormatError: the file is not that of a JSON store.
        """
        self._recorder = recorder
        self._files = RecordedFiles(recorder)
        self._checkpoint = pc.Checkpoint()
        self.state: Any = copy.deepcopy(initial)
        """The document, of JSON values. What it holds when a commit begins is committed."""
        path = self._files.path(CURRENT)
        if path.is_file():
            self.state, self._checkpoint = parse_state_file(path.read_bytes(), str(path))

    def __repr__(self) -> str:
        return f"JsonFileStore({self._recorder.log!r})"

    def restore_checkpoint(self) -> pc.Checkpoint:
        """Return the checkpoint of the file. The recovery log's hand-off has fenced off other stores."""
        return self._checkpoint

    def start_commit(self, checkpoint: pc.Checkpoint, wait_for: Iterable[OpFuture]) -> Future[None]:
        """Begin to commit the state and a checkpoint. The state may be changed when the call returns.

        The future fails with a RecorderFencedError if another host has the recovery log, and with the error
        of an operation that failed.
        """
        try:
            content = build_state_file(self.state, checkpoint)
        except (TypeError, ValueError) as error:
            return finished_operation(error)
        self._recorder.barrier(wait_for)
        try:
            with self._files.create(NEXT) as file:
                file.write(content)
            self._files.rename(NEXT, CURRENT)
        except Exception as error:  # noqa: BLE001  # Whatever it is, the commit has failed.
            return finished_operation(error)
        return self._recorder.barrier()

    def destroy(self) -> None:
        """Remove the directory: the recovery log has what is committed."""
        shutil.rmtree(self._recorder.directory, ignore_errors=True)


def build_state_file(state: object, checkpoint: pc.Checkpoint) -> bytes:
    """Return the content of a state file.

    Raises:
        TypeError: the state holds something else than JSON values.
        ValueError: it holds a number that JSON cannot express, or refers to itself.
    """
    sources = sorted(checkpoint.sources.items())
    offsets = {journal: source.read_through for journal, source in sources}
    # The checkpoint as Go's encoder writes it: numbers as such, and the names of the fields.
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
    content = SEALED + ("\n".join(lines) + "\n").encode()
    return content + seal_line(content)


def parse_state_file(content: bytes, path: str) -> tuple[Any, pc.Checkpoint]:
    """Return state and checkpoint of a state file's content.

    Raises:
        StoreFormatError: it is damaged, or something else.
    """
    if content.startswith(SEALED):
        # The last line is the seal of those before it.
        end = content.rfind(b"\n", 0, -1) + 1
        try:
            check_seal(content[:end], content[end:], path)
        except DamagedFileError as error:
            raise StoreFormatError(path, f"it is damaged: {error.problem}") from error
        content = content[:end]
    try:
        offsets, state, *rest = _documents(content.decode())
        # Go writes null where a list or a map is empty.
        checkpoint = ParseDict(rest[0] or {}, pc.Checkpoint()) if rest else pc.Checkpoint()
        for journal, offset in (offsets or {}).items():
            checkpoint.sources[journal].read_through = offset
    except (ValueError, TypeError, AttributeError, RecursionError, ParseError) as error:
        problem = f"expected offsets, a state and a checkpoint as JSON: {error}"
        raise StoreFormatError(path, problem) from error
    return state, checkpoint


def _documents(text: str) -> list[Any]:
    """Return the JSON documents of a text, which has three at most. The state is the application's."""
    decoder = json.JSONDecoder()
    documents: list[Any] = []
    at = _skip_space(text, 0)
    while at < len(text):
        if len(documents) == 3:
            raise ValueError(f"more than three documents, from character {at} on")
        document, end = decoder.raw_decode(text, at)
        # A state may hold everything that Python's encoder writes, because it was committed.
        documents.append(document if len(documents) == 1 else parse_json(text[at:end]))
        at = _skip_space(text, end)
    return documents


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
