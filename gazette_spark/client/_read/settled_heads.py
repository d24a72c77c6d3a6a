"""Write heads that a failover of brokers does not lower.

A member of a journal answers reads from its index: the stored fragments that it has listed, and the appends
that it has taken part in. A replica that replaces a dead broker takes part in none until somebody appends,
and lists the store every ``refresh_interval``. Until then its write head is too low by all that its peers
hold in their spools. Which member answers is chance, so a head below an offset already read is *unsettled*.
It proves a loss only once the journal's members confirm it:

===============================  ===========================================================
answer                           what it says
===============================  ===========================================================
a read, from any member          the journal has at least so many bytes
reads, from each member          all acknowledged bytes, unless all that answer joined late
an append of no bytes            all acknowledged bytes: the replicas have agreed on their end
===============================  ===========================================================

The append changes nothing, not even the suspension of a journal, but needs a token that may append. Without
one, and while brokers refuse appends, the members are asked again until the client's timeout ends. Routes
lead to the members, where this client can reach them; any broker passes on the append.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gazette_spark.client._transport.retry import backoff_s, within
from gazette_spark.errors import (
    AuthError,
    GazetteError,
    IndexHasGreaterOffsetError,
    JournalNotFoundError,
    NotAllowedError,
)


@dataclass(frozen=True, slots=True)
class SettledHead:
    """A journal's write head, at or above the offset that was asked about unless bytes are lost."""

    write_head: int
    doubt: str = ""
    """Why no broker could confirm a head that is too low. Empty: the head is high enough, or confirmed."""


def settle_head(
    reached: int,
    ask_members: Callable[[], int],
    append_nothing: Callable[[float], int],
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> SettledHead:
    """Find out whether a journal ends before an offset that was already read.

    Args:
        reached: that offset.
        ask_members: returns the highest write head that a member gives to a read.
        append_nothing: appends no bytes within so many seconds, and returns the write head.
        timeout_s: seconds after which the last answer counts.
        clock: monotonic seconds.
        sleep: waits for so many seconds.

    Raises:
        GazetteError: the journal cannot be asked about.
    """
    started, attempt, may_append, doubt = clock(), 0, True, ""
    while True:
        head = ask_members()
        if head >= reached:
            return SettledHead(head)
        left_s = timeout_s - (clock() - started)
        if may_append and left_s > 0:
            try:
                return SettledHead(append_nothing(left_s))
            except (AuthError, JournalNotFoundError, NotAllowedError):
                # A token that does not cover an append may get the answer of a missing journal. If it is
                # missing, the next question says so.
                may_append = False
                doubt = "this client may not append, so it could not have the journal's replicas agree"
            except IndexHasGreaterOffsetError:
                # All replicas are lost, or a broker that is cut off still holds bytes: it may yet store them.
                doubt = "the brokers take no append before an operator confirms their bytes as lost"
            except GazetteError as error:
                doubt = f"the journal's replicas have not agreed on its end: {error}"
        wait_s = within(backoff_s(attempt), timeout_s - (clock() - started))
        if wait_s is None:
            return SettledHead(head, f"{doubt}, within {timeout_s:g} s")
        sleep(wait_s)
        attempt += 1
