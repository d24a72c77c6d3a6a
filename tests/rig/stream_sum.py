"""Go's half of Gazette's acceptance test stream-sum: the chunker, which verifies each sum."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gazette_spark.client import Client
from gazette_spark.consumer.examples.stream_sum import SUMS_JOURNAL
from gazette_spark.protocol.journals import journal_spec
from gazette_spark.protocol.labels import CONTENT_TYPE_NDJSON
from tests.rig.gazctl import clean_environment, find_binary

CHUNK_JOURNALS = [f"examples/stream-sum/chunks/part-{part:03}" for part in range(2)]
NDJSON = {"content-type": CONTENT_TYPE_NDJSON}
CHUNKS = NDJSON | {"app.gazette.dev/message-type": "stream_sum.Chunk"}
WORKERS = 2
END_S = 30


def create_journals(client: Client) -> dict[str, int]:
    """Make the journals, unless another test of this broker has; return where new chunks begin."""
    chunks = [journal_spec(name, labels=CHUNKS) for name in CHUNK_JOURNALS]
    client.create_journals(*chunks, journal_spec(SUMS_JOURNAL, labels=NDJSON), exist_ok=True)
    return client.write_heads(CHUNK_JOURNALS)


class Chunker:
    """The running chunker."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def runs(self) -> bool:
        """Whether it has not ended; a sum that is wrong or 40 seconds late ends it."""
        return self._process.poll() is None

    def check(self, *, ended: bool, wait_s: float = 0.0) -> None:
        """Fail unless it runs, or has ended with each sum verified."""
        if ended:
            assert self._process.wait(wait_s) == 0, self._log.read_text()
        else:
            assert self.runs, self._log.read_text()


@contextmanager
def verifying(endpoint: str, folder: Path, *, streams: int, chunks: int) -> Iterator[Chunker]:
    """Have two workers each write streams and verify their sums, -1: without end; kill it at the end."""
    command = [str(find_binary("chunker")), "-broker", endpoint, "-streams", str(streams)]
    command += ["-chunks", str(chunks), "-workers", str(WORKERS)]
    path = folder / "chunker.log"
    # A pipe that nobody reads would stop it: it warns of each sum that is late.
    with path.open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env=clean_environment())
        try:
            yield Chunker(process, path)
        finally:
            process.kill()
            process.wait(END_S)
