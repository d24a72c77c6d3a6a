"""Compares our publisher of messages with Gazette's.

    .venv/bin/python benchmarks/message_bench.py                       # small; only checks the answers
    .venv/bin/python benchmarks/message_bench.py --timed --broker deployed

Each publishes numbered JSON documents to one journal as a transaction, and commits it. Then Go's committed
reader counts them. They alternate in separate processes, and the best of ``--rounds`` counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import tempfile
import uuid
from pathlib import Path
from time import perf_counter
from typing import Any

from harness import running_broker

from gazette_spark import Client
from gazette_spark.client import AppendService, journal_spec
from gazette_spark.message import NIL_UUID, Message, Publisher, write_ack_intents
from gazette_spark.protocol.labels import CONTENT_TYPE_NDJSON
from tests.rig.gazctl import clean_environment, find_binary

TEXT_BYTES = 200
SMALL_MESSAGES, MESSAGES = 2_000, 500_000


class Document:
    """The same document as goclient's bench-publish publishes."""

    __slots__ = ("number", "text", "uuid")

    def __init__(self, number: int = 0, text: str = "") -> None:
        self.number, self.text, self.uuid = number, text, NIL_UUID

    def get_uuid(self) -> uuid.UUID:
        """Return the UUID."""
        return self.uuid

    def set_uuid(self, stamp: uuid.UUID) -> None:
        """Set the UUID."""
        self.uuid = stamp

    def new_acknowledgement(self, _journal: str) -> Message:
        """Return a document with only its UUID."""
        return Document()

    def __bytes__(self) -> bytes:
        return b'{"_meta":{"uuid":"%b"},"number":%d,"text":"%b"}' % (
            str(self.uuid).encode(),
            self.number,
            self.text.encode(),
        )


def publish(endpoint: str, journal: str, messages: int) -> float:
    """Publish a transaction, and return the messages per second."""
    text = "." * TEXT_BYTES
    with Client(endpoint) as client:
        began = perf_counter()
        with AppendService(client) as service:
            publisher = Publisher(service)
            target = (journal, CONTENT_TYPE_NDJSON)
            for number in range(messages):
                publisher.publish_uncommitted(lambda _: target, Document(number, text))
            service.flush(None)
        write_ack_intents(client, publisher.build_ack_intents())
        return messages / (perf_counter() - began)


def goclient(mode: str, endpoint: str, journal: str, *flags: str) -> dict[str, Any]:
    """Run Go's program, and return its last event."""
    command = [str(find_binary("goclient")), mode, f"--broker={endpoint}", f"--journal={journal}", *flags]
    done = subprocess.run(command, capture_output=True, check=True, env=clean_environment())
    last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return last


def run(endpoint: str, messages: int, rounds: int) -> dict[str, float]:
    """Return the best rate of each publisher, after checking that all messages are committed."""
    best: dict[str, float] = {"ours": 0.0, "go": 0.0}
    spawn = multiprocessing.get_context("spawn")
    with Client(endpoint) as client, spawn.Pool(1) as pool:
        for turn in range(rounds):
            for who in ("ours", "go"):
                journal = f"bench/messages/{who}-{turn}"
                client.create_journals(journal_spec(journal, labels={"content-type": CONTENT_TYPE_NDJSON}))
                if who == "ours":
                    rate = pool.apply(publish, (endpoint, journal, messages))
                else:
                    sizes = (f"--size={messages * TEXT_BYTES}", f"--record-size={TEXT_BYTES}")
                    rate = goclient("bench-publish", endpoint, journal, *sizes)["messages_per_s"]
                end = goclient("read-committed", endpoint, journal, f"--ring-size={messages}")
                found = (end["messages"], end["acks"], end["open"])
                if found != (messages, 1, 0):
                    raise SystemExit(f"{who}: committed messages, acks, open transactions: {found}")
                best[who] = max(best[who], rate)
    return best


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--timed", action="store_true", help="use enough messages for meaningful times")
    parser.add_argument("--broker", choices=["embedded", "deployed"], default="embedded")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    messages, rounds = (MESSAGES, asked.rounds) if asked.timed else (SMALL_MESSAGES, 1)
    with tempfile.TemporaryDirectory() as root, running_broker(asked.broker, Path(root)) as (endpoint, _):
        best = run(endpoint, messages, rounds)
    print(f"{messages} messages, {asked.broker} broker: all are committed, once")
    if asked.timed:
        print(f"ours {best['ours']:,.0f} messages/s, Gazette's {best['go']:,.0f} messages/s")


if __name__ == "__main__":
    main()
