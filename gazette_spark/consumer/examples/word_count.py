"""Counts n-grams (runs of n words) of published texts. The counts can be queried while it runs.

A text becomes one message for each of its n-grams, ``{"ngram": "the quick", "count": 1}``. The state is one
count for each n-gram. The publisher of a text can wait with Stat until the text is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gazette_spark import shard_status_errors
from gazette_spark.consumer import Application, JsonMessage, JsonStore, ResolveArgs, Shard, ShardHost
from gazette_spark.message import Envelope, Publisher
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb

CONTENT_TYPE = "application/x-ndjson"


class WordCount(Application[JsonStore]):
    """Adds the counts of n-grams."""

    def new_store(self, shard: Shard) -> JsonStore:
        """Keep a count for each n-gram."""
        return shard.json_store(initial={})

    def new_message(self, spec: pb.JournalSpec, record: bytes) -> JsonMessage:
        """Read a count."""
        return JsonMessage.parse(spec, record)

    def key_of(self, envelope: Envelope) -> str:
        """Return the n-gram. On Spark, counts of different n-grams are added in different tasks."""
        return str(_message(envelope).fields.get("ngram", ""))

    def consume_message(
        self, shard: Shard, store: JsonStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Add a count."""
        message = _message(envelope)
        if not message.is_acknowledgement:
            ngram = message.fields["ngram"]
            store.state[ngram] = store.state.get(ngram, 0) + message.fields["count"]

    def finalize_txn(self, shard: Shard, store: JsonStore, publisher: Publisher) -> None:
        """Do nothing, because the counts are already in the store."""


def ngrams(text: str, n: int) -> Iterator[str]:
    """Yield the n-grams of a text between begin and end marks, as Gazette's example does."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    marked = ["START"] * (n - 1) + words + ["END"]
    for end in range(n, len(marked) + 1):
        yield " ".join(marked[end - n : end])


def publish(publisher: Publisher, journal: str, text: str, n: int = 2) -> dict[str, int]:
    """Publish a text, and return the offsets to read through to see it counted."""
    end = 0
    mapping = (journal, CONTENT_TYPE)
    appends = [
        publisher.publish_committed(lambda _: mapping, JsonMessage({"ngram": ngram, "count": 1}))
        for ngram in ngrams(text, n)
    ]
    for append in appends:
        end = max(end, append.result().end)
    return {journal: end}


def query(
    host: ShardHost,
    shard_id: str,
    prefix: str = "",
    read_through: Mapping[str, int] | None = None,
    timeout_s: float | None = 30.0,
) -> dict[str, int]:
    """Return the counts of n-grams with a prefix, from a shard that runs in this process.

    Args:
        host: Host that runs the shard.
        shard_id: Id of the shard.
        prefix: Text with which the n-grams begin.
        read_through: Offsets that :func:`publish` has returned, to see those texts counted.
        timeout_s: Seconds to wait for that.

    Raises:
        ShardStatusError: the shard does not run.
        TimeoutError: it has not read that far.
    """
    request = ResolveArgs(shard_id, read_through=read_through or {}, timeout_s=timeout_s)
    with host.resolve(request) as resolution:
        if resolution.status != pc.OK:
            raise shard_status_errors()[pc.Status.Name(resolution.status)](shard_id)
        # Make a copy, because the shard's thread continues to count.
        counts: dict[str, int] = dict(resolution.store.state)
    return {ngram: count for ngram, count in sorted(counts.items()) if ngram.startswith(prefix)}


def _message(envelope: Envelope) -> JsonMessage:
    assert isinstance(envelope.message, JsonMessage)
    return envelope.message
