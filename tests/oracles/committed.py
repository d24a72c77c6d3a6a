"""Finds the committed messages of a journal by a simple walk that shares no code with the package."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Sent(NamedTuple):
    producer: int
    clock: int
    flags: int
    offset: int


def committed(messages: Iterable[Sent]) -> dict[int, int]:
    """Return, by offset of each committed message, the offset of the message that committed it.

    An acknowledgement that commits, or has nothing to commit, is committed itself.
    """
    last_acks: dict[int, int] = {}
    newest: dict[int, int] = {}
    waiting: dict[int, list[Sent]] = {}
    found: dict[int, int] = {}
    for each in messages:
        if each.clock == 0:
            found[each.offset] = each.offset
            continue
        last = last_acks.setdefault(each.producer, each.clock - 1)
        largest = max(newest.get(each.producer, 0), last)
        flags = each.flags if each.flags <= 2 else 0
        if flags == 1:
            if each.clock > largest:
                waiting.setdefault(each.producer, []).append(each)
                newest[each.producer] = each.clock
            continue
        if each.clock <= last and flags != 2:
            continue
        transaction = waiting.pop(each.producer, [])
        if each.clock > last:
            if flags == 2:
                found |= {sent.offset: each.offset for sent in transaction if sent.clock <= each.clock}
            found[each.offset] = each.offset
        last_acks[each.producer] = newest[each.producer] = each.clock
    return found
