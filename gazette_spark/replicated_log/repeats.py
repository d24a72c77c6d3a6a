"""Which records of a log are repeats: decided by their clocks. Pure.

A writer's clock grows along the log, and each of its records is appended, and appended again where an answer
was lost, before the next one is. So a record whose clock is not above those of its writer before it is a
repeat.

A receiver that starts in the middle has not seen the clocks before. A record tells since which offset it may
be in the log: where that is before the receiver's start, the bytes between are looked at first. They are few:
what was appended while the record waited for its answer.
"""

from __future__ import annotations

from gazette_spark.message.uuids import ProducerId, split_uuid
from gazette_spark.replicated_log.entries import Record


class RepeatFilter:
    """Tells repeats from new records, in a log read from any record's begin."""

    def __init__(self, start: int) -> None:
        """Begin at an offset."""
        self._known_from = start
        self._clocks: dict[ProducerId, int] = {}

    def missing(self, record: Record) -> tuple[int, int] | None:
        """Return the range whose records have to be :meth:`learned <learn>` to judge this one, if any."""
        producer, clock, _ = split_uuid(record.stamp)
        if clock <= self._clocks.get(producer, 0) or record.earliest >= self._known_from:
            return None
        return record.earliest, self._known_from

    def learn(self, record: Record) -> None:
        """Take a record into account that is before the start."""
        producer, clock, _ = split_uuid(record.stamp)
        self._clocks[producer] = max(clock, self._clocks.get(producer, 0))

    def learned_from(self, begin: int) -> None:
        """Record that all records from an offset on were learned."""
        self._known_from = min(begin, self._known_from)

    def is_new(self, record: Record) -> bool:
        """Judge the next record, once nothing is :meth:`missing`. Without a clock it is always new."""
        producer, clock, _ = split_uuid(record.stamp)
        if 0 < clock <= self._clocks.get(producer, 0):
            return False
        self.learn(record)
        return True
