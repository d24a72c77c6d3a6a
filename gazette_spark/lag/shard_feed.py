"""The shards of a consumer as groups: how far each has come, asked of its service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from gazette_spark.lag.feeds import masked_url
from gazette_spark.lag.monitor import Monitor
from gazette_spark.ledger.positions import GroupCommit

if TYPE_CHECKING:
    from gazette_spark.protocol import consumer_pb2 as pc

NAME = "shard"
"""Begin of the groups' names, unless the consumer has a name."""


class ShardProgress(Protocol):
    """How far a shard has come."""

    @property
    def read_through(self) -> Mapping[str, int]:
        """By source journal."""


class Shards(Protocol):
    """A consumer's client."""

    endpoint: str

    def list_shards(self) -> Sequence[pc.ListResponse.Shard]:
        """Return all shards."""

    def progress_of(self, shards: Iterable[pc.ListResponse.Shard]) -> Mapping[str, ShardProgress]:
        """Return how far each shard has come; without those that do not run."""


class ShardFeed:
    """A group for each shard, ``shard:ID``, with a step whenever its progress is another than before.

    A shard that FAILED, that nobody runs, or that stands still has no more steps: with bytes left to read it
    becomes STOP. The time of a step is that of the look that saw it. The caller closes the client.

    Args:
        client: of the consumer.
        name: begin of the groups' names, in place of ``shard``.
    """

    def __init__(self, client: Shards, name: str | None = None) -> None:
        self.groups: tuple[str, ...] = ()
        self._client = client
        self._name = name or NAME
        self._seen: dict[str, dict[str, int]] = {}

    def __repr__(self) -> str:
        return f"shards of {masked_url(self._client.endpoint)}"

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        """Ask for all shards, and of those that run how far they have come."""
        listed = {each.spec.id: each for each in self._client.list_shards()}
        progress = self._client.progress_of(listed.values())
        for shard_id in self._seen.keys() - listed.keys():
            del self._seen[shard_id]
            monitor.forget_group(self._group(shard_id))
        self.groups = tuple(map(self._group, listed))
        for shard_id, each in listed.items():
            found = progress.get(shard_id)
            self._observe(monitor, each.spec, None if found is None else found.read_through, now_ms)

    def _observe(
        self, monitor: Monitor, spec: pc.ShardSpec, read_through: Mapping[str, int] | None, now_ms: int
    ) -> None:
        steps: list[GroupCommit] = []
        group, known = self._group(spec.id), self._seen.setdefault(spec.id, {})
        at = known if read_through is None else reached(spec, read_through)
        if at != known:
            self._seen[spec.id] = at
            order = monitor.last_order(group) + 1
            if known:
                steps.append(GroupCommit(order, now_ms, at))
            else:
                # What it did before is not known: it counts as level then, and is judged from there on.
                steps.append(GroupCommit(order, now_ms - 1, at, heads=at))
        monitor.observe_commits(group, steps, now_ms, source=repr(self))

    def _group(self, shard_id: str) -> str:
        return f"{self._name}:{shard_id}"


def reached(spec: pc.ShardSpec, read_through: Mapping[str, int]) -> dict[str, int]:
    """Return the next offset that a shard reads in each journal.

    A shard begins at the least offset of its spec. Sources of one journal that differ in their ``;meta``
    count as the one that is behind.
    """
    offsets: dict[str, int] = {}
    for source in spec.sources:
        journal = source.journal.partition(";")[0]
        offset = max(read_through.get(source.journal, 0), source.min_offset)
        offsets[journal] = min(offset, offsets.get(journal, offset))
    return offsets
