"""Decides, without a clock, whether to retry or raise a failed call, and the wait before the retry.

==============================================  ======================  =====================
cause                                           read                    append, list, apply
==============================================  ======================  =====================
stream ended with no error                      at once, then 50 ms     –
a fragment's store is busy, or its URL broke    back-off (3)            –
transport (UnavailableError)                    back-off                back-off (1)
routing statuses                                back-off                back-off
OFFSET_NOT_YET_AVAILABLE                        back-off if waiting     raised
JOURNAL_NOT_FOUND                               4 tries, then raised    raised (2)
UNKNOWN, INTERNAL about a stale process         back-off                back-off
UNKNOWN about a request that breaks a rule      raised                  raised
UNKNOWN about an append too slow                –                       raised
other UNKNOWN, INTERNAL                         6 tries, then raised    raised
everything else: token, TLS, corruption, …      raised                  raised
==============================================  ======================  =====================

(1) The append may then be done twice, because raw appends are at-least-once. Apply is retried only if no
connection was made. (2) It is retried until all brokers know a new journal. (3) After that the fragment is
read through its broker.

Brokers report most failures with the code UNKNOWN, so only the texts distinguish permanent from temporary
ones. A read that fails for a reason unknown to this client may succeed a second later.

Every retry also ends at the caller's deadline. Gazette's reader has no deadline and retries a refused token
forever.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from gazette_spark.errors import (
    BrokerError,
    DirectReadError,
    GazetteError,
    JournalNotFoundError,
    OffsetNotYetAvailableError,
    OptionError,
    StatusError,
    UnavailableError,
)

T = TypeVar("T")

BACKOFF_S = (0.05, 0.05, 0.1, 0.1, 1.0, 1.0)
"""Seconds before the first retries, as in Gazette's client."""

BACKOFF_MAX_S = 5.0
"""Seconds before each later retry."""

NOT_FOUND_TRIES = 4
"""Number of attempts to read a missing journal: a new spec takes a moment to reach all brokers."""

UNKNOWN_TRIES = 6
"""Number of attempts of a read that fails with only a text: most such errors are permanent."""

MARGIN_S = 0.1
"""Minimum seconds for the last attempt before a deadline."""

MAX_SECONDS = 2_000_000
"""Maximum number of seconds that a caller may set: 23 days. gRPC counts the time to connect in 32 bits of
milliseconds, and takes a deadline after the year 2262 for one in the past."""

_STALE_PROCESS = "ProcessId"
_REFUSED = re.compile(
    # Path of a field, which brokers put before the problem.
    r"^(\w+Request|Header|Journal|Selector|Changes|Suspend|(Check|Union|Subtract)Registers|FragmentStore"
    r"|SignatureTTL|CheckDeletePrefix)(\[\d+\])?[.:]"
    r"|^invalid \w+ \("
    r"|^unexpected Content"
    r"|^append stream: (expected|register modification)"
    r"|ClusterId doesn't match"
)
_NOT_CONNECTED = ("failed to connect", "DNS resolution failed", "Connection refused")

Decide = Callable[[GazetteError, int], float | None]
"""Takes the cause and the number of attempts since the last progress. Returns the seconds to wait, or None to
raise."""


def check_seconds(name: str, value: float) -> None:
    """Refuse a number of seconds that cannot be a timeout or an interval.

    Raises:
        OptionError: it is not above 0, which would make each call fail, or is too large for gRPC.
    """
    if not 0 < value <= MAX_SECONDS:
        raise OptionError(name, repr(value), f"a number of seconds above 0, and at most {MAX_SECONDS}")


def backoff_s(attempt: int) -> float:
    """Return the seconds to wait after attempt number ``attempt``, counted from 0."""
    return BACKOFF_S[attempt] if attempt < len(BACKOFF_S) else BACKOFF_MAX_S


def within(wait_s: float, left_s: float) -> float | None:
    """Return the seconds to wait so that an attempt still fits into ``left_s``; None if none fits."""
    if wait_s + MARGIN_S <= left_s:
        return wait_s
    # A wait that is too long is cut, so that the last attempt is just before the deadline instead of never.
    return left_s - MARGIN_S if left_s > 2 * MARGIN_S else None


def after_read(cause: GazetteError | None, attempt: int, *, waits: bool) -> float | None:
    """Decide about a read.

    Args:
        cause: Why the stream ended; None if it ended without an error.
        attempt: Number of attempts since the last byte, from 0.
        waits: Whether the reader waits for bytes that are not available yet.

    Returns:
        Seconds to wait before the next attempt, or None to give up and raise the cause.
    """
    match cause:
        case None:
            # Brokers end streams for many good reasons. A second end without a byte between them is unusual,
            # and must not become a loop without a pause.
            return 0.0 if attempt == 0 else BACKOFF_S[0]
        case DirectReadError():
            return backoff_s(attempt) if cause.passing else None
        case OffsetNotYetAvailableError():
            return backoff_s(attempt) if waits else None
        # The broker called may not have heard of a new journal yet.
        case JournalNotFoundError():
            return backoff_s(attempt) if attempt < NOT_FOUND_TRIES else None
        case BrokerError() if _may_pass(cause) and not _is_stale_process(cause):
            # Gazette's reader retries these forever. A text that is not known to be temporary is most often
            # permanent.
            tries = 1 if is_refusal(cause) else UNKNOWN_TRIES
            return backoff_s(attempt) if attempt + 1 < tries else None
    return after_call(cause, attempt)


def after_call(cause: GazetteError, attempt: int) -> float | None:
    """Decide about an append or a listing, like :func:`after_read`."""
    # A broker that was restarted under the same address has another process id, until routes have caught up.
    again = cause.retryable or (isinstance(cause, BrokerError) and _is_stale_process(cause))
    return backoff_s(attempt) if again else None


def after_create(cause: GazetteError, attempt: int) -> float | None:
    """Decide about the first append to a new journal."""
    if isinstance(cause, JournalNotFoundError):
        # At most every tenth of a second, because the news takes moments, not seconds.
        return backoff_s(min(attempt, 3))
    return after_call(cause, attempt)


def after_apply(cause: GazetteError, attempt: int) -> float | None:
    """Decide about an apply, whose outcome is unknown after it was sent."""
    return backoff_s(attempt) if isinstance(cause, UnavailableError) and not may_be_done(cause) else None


def may_be_done(cause: BaseException) -> bool:
    """Return whether a call got no answer after a connection was made, so that it may have had its effect."""
    return isinstance(cause, UnavailableError) and not any(text in cause.problem for text in _NOT_CONNECTED)


@contextmanager
def unknown_changes() -> Iterator[None]:
    """Make the error of an apply without an answer say that its changes may have been applied."""
    try:
        yield
    except UnavailableError as error:
        if may_be_done(error):
            error.problem += "; the changes may have been applied"
        raise


def after_lost_answer(cause: BaseException) -> None:
    """Make the refusal of a repeated append name the earlier attempt, which may be what it refers to."""
    if isinstance(cause, StatusError):
        attempt = "an earlier attempt got no answer, and may have appended these bytes"
        cause.detail = f"{cause.detail}; {attempt}" if cause.detail else attempt


def once(_cause: GazetteError, _attempt: int) -> float | None:
    """Decide never to retry."""
    return None


def is_refusal(cause: BrokerError) -> bool:
    """Return whether a broker's text says that the request, or its destination, is permanently wrong."""
    return cause.code == "UNKNOWN" and not _is_stale_process(cause) and bool(_REFUSED.search(cause.problem))


def _may_pass(cause: BrokerError) -> bool:
    return cause.code in ("UNKNOWN", "INTERNAL")


def _is_stale_process(cause: BrokerError) -> bool:
    """Return whether a restarted broker is still known by its former id, until its lease ends."""
    return _may_pass(cause) and _STALE_PROCESS in cause.problem


def retrying(
    call: Callable[[float], T],
    decide: Decide,
    *,
    timeout_s: float,
    patience_s: Callable[[], float],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Call until success, until ``decide`` gives up, or until the time is over; then raise the last cause.

    ``call`` gets the remaining seconds of ``timeout_s`` as its deadline. ``patience_s``, after which no retry
    begins, is evaluated before each retry: it is shorter while a client has never reached its broker.
    """
    started = clock()
    attempt = 0
    while True:
        try:
            return call(max(0.001, timeout_s - (clock() - started)))
        except GazetteError as cause:
            wait_s = decide(cause, attempt)
            if wait_s is not None:
                wait_s = within(wait_s, patience_s() - (clock() - started))
            if wait_s is None:
                raise
        sleep(wait_s)
        attempt += 1
