"""Gazette's acceptance test stream-sum: Go's chunker, which verifies each sum, and hosts that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from gazette_spark import Client
from gazette_spark.client import journal_spec
from gazette_spark.consumer.client import ShardClient
from gazette_spark.consumer.examples.stream_sum import SUMS_JOURNAL, Sum
from gazette_spark.message import read_committed
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol.labels import CONTENT_TYPE_NDJSON
from tests.rig.brokers import DeployedBroker
from tests.rig.gazctl import clean_environment, find_binary

CHUNK_JOURNALS = [f"examples/stream-sum/chunks/part-{part:03}" for part in range(2)]
NDJSON = {"content-type": CONTENT_TYPE_NDJSON}
CHUNKS = NDJSON | {"app.gazette.dev/message-type": "stream_sum.Chunk"}
WORKERS = 2
KEYS = "c3RyZWFtLXN1bQ=="
"""Keys of the broker, because Gazette's consumer always requests tokens."""
END_S = 30


def create_journals(client: Client) -> dict[str, int]:
    """Create the journals unless another test of this broker has; return where new chunks begin."""
    chunks = [journal_spec(name, labels=CHUNKS) for name in CHUNK_JOURNALS]
    client.create_journals(*chunks, journal_spec(SUMS_JOURNAL, labels=NDJSON), exist_ok=True)
    return client.write_heads(CHUNK_JOURNALS)


class Chunker:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def check(self) -> None:
        """Fail unless it is running: it exits after a sum that is wrong or 40 seconds late."""
        assert self._process.poll() is None, self._log.read_text()


@contextmanager
def verifying(endpoint: str, folder: Path, *, chunks: int) -> Iterator[Chunker]:
    """Run two workers that each write streams and verify their sums, until the block ends."""
    command = [str(find_binary("chunker")), "-broker", endpoint, "-streams", "-1"]
    command += ["-chunks", str(chunks), "-workers", str(WORKERS)]
    path = folder / "chunker.log"
    # A full pipe would block it, because it warns of each late sum.
    with path.open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env=clean_environment())
        try:
            yield Chunker(process, path)
        finally:
            process.kill()
            process.wait(END_S)


class Host:
    """A process that runs the shards; its command prints the address of its service."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        pipe = subprocess.PIPE
        # The Go program serves until its standard input closes.
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()

    def said(self) -> str:
        return self._output.readline().decode().strip()

    def wait_through(self, heads: Mapping[str, int], shards: Iterable[str]) -> None:
        """Wait until each shard has read everything available; for one call only."""
        with ShardClient(self.said(), timeout_s=120) as service:
            _wait_through(service, heads, shards)

    def apply(self, heads: Mapping[str, int], specs: Sequence[pc.ShardSpec]) -> None:
        """Send the shards to Gazette's host, and wait like :meth:`wait_through`; for one call only."""
        address = json.loads(self.said())["endpoint"]
        with ShardClient(address, auth_keys=KEYS, timeout_s=120) as service:
            service.apply([pc.ApplyRequest.Change(upsert=spec) for spec in specs])
            _wait_through(service, heads, [spec.id for spec in specs])

    def kill(self) -> None:
        """Kill it; repeated calls have no effect."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(END_S)
        self._input.close()
        self._output.close()


def _wait_through(service: ShardClient, heads: Mapping[str, int], shards: Iterable[str]) -> None:
    for shard in shards:
        service.stat(shard, heads)


@contextmanager
def at_work(command: Sequence[str | Path], client: Client, shards: Iterable[str]) -> Iterator[None]:
    """Run a host and kill it at the end; inside the block, each shard has caught up."""
    heads = client.write_heads(CHUNK_JOURNALS)
    with Host(command) as host:
        host.wait_through(heads, shards)
        yield


@contextmanager
def go_at_work(broker: DeployedBroker, client: Client, specs: Sequence[pc.ShardSpec]) -> Iterator[None]:
    """Run Gazette's own host, like :func:`at_work` for ours."""
    flags = [f"--sums={SUMS_JOURNAL}", f"--broker={broker.endpoint}", f"--etcd={broker.etcd_url}"]
    heads = client.write_heads(CHUNK_JOURNALS)
    with Host([find_binary("goclient"), "consume", *flags, f"--auth-keys={KEYS}"]) as host:
        host.apply(heads, specs)
        yield


def sums_since(client: Client, begin: int) -> int:
    """Return the number of sums published since an offset; fail if a stream has two."""
    found = []
    with read_committed(client, SUMS_JOURNAL, Sum.parse, offset=begin) as messages:
        for each in messages:
            assert isinstance(each.message, Sum)
            if each.message.seq_no:  # It is not an acknowledgement.
                found.append(each.message.stream)
    assert len(found) == len(set(found))
    return len(found)
