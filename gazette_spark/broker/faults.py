"""Injects the faults that a test requests of an embedded broker.

::

    faults = Faults()
    with EmbeddedBroker(root, faults=faults) as broker:
        faults.fail(StatusCode.UNAVAILABLE, rpc="Read", after_bytes=1000)      # the next read breaks
        faults.answer("NO_JOURNAL_PRIMARY_BROKER", rpc="Append", times=3)      # so do three appends
        stall = faults.stall(rpc="List", times=None)                           # and every list hangs
        ...
        stall.release()
        faults.clear()

A fault applies to ``times`` matching calls, by default one; None means until :meth:`Faults.clear`. All faults
that match a call apply, in the order in which they were requested. ``rpc`` is a method of the Journal
service, or ``Fragment`` for the URL of a stored fragment of a broker with ``fragment_urls="http"``. Without
``rpc`` or ``journal``, a fault matches any. The HTTP gateway has no faults.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import grpc

from gazette_spark.protocol import protocol_pb2 as pb

FRAGMENT = "Fragment"
"""Name for the request of a fragment's URL, in addition to the names of the Journal service's methods."""


@dataclass(eq=False, slots=True)
class Fault:
    """One requested fault. Its fields define the effect; several may be set."""

    rpc: str = ""
    journal: str = ""
    times: int | None = 1
    """Number of calls to which it still applies; None means all."""
    delay_s: float = 0.0
    stalls: bool = False
    """Wait until the fault is released or the client gives up."""
    code: grpc.StatusCode | None = None
    """Fail the call with this error."""
    text: str = "injected fault"
    after_bytes: int = 0
    """Number of bytes of content that pass before the call fails or ends."""
    status: int | None = None
    """Answer with this status and do nothing else."""
    answer_is_lost: bool = False
    """Serve the call, then fail it."""
    ends: bool = False
    """End a read cleanly after ``after_bytes``."""
    jump: int = 0
    """Number of bytes that a read skips."""
    corrupts: bool = False
    """Change one byte of the content."""
    missing_bytes: int = 0
    """Number of bytes that are missing at a fragment's end."""
    http_status: int = 0
    """Answer a request for a fragment's URL with this HTTP status."""
    hits: int = 0
    """Number of calls to which it has applied."""
    released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Let stalled calls continue and later ones pass."""
        self.released.set()

    def fits(self, rpc: str, journal: str) -> bool:
        """Return whether the fault applies to a call of this method about this journal."""
        return self.rpc in ("", rpc) and self.journal in ("", journal) and self.times != 0


class Faults:
    """The faults requested of one broker. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._faults: list[Fault] = []

    def __repr__(self) -> str:
        return f"Faults({len(self._faults)} ordered)"

    def delay(self, seconds: float, *, rpc: str = "", journal: str = "", times: int | None = 1) -> Fault:
        """Let a call wait before it is served."""
        return self._add(Fault(rpc, journal, times, delay_s=seconds))

    def stall(self, *, rpc: str = "", journal: str = "", times: int | None = 1) -> Fault:
        """Let a call hang until :meth:`Fault.release`, :meth:`clear`, or its client gives up."""
        return self._add(Fault(rpc, journal, times, stalls=True))

    def fail(
        self,
        code: grpc.StatusCode,
        text: str = "injected fault",
        *,
        after_bytes: int = 0,
        rpc: str = "",
        journal: str = "",
        times: int | None = 1,
    ) -> Fault:
        """Fail a call. A read or an append fails after ``after_bytes`` of its content."""
        return self._add(Fault(rpc, journal, times, code=code, text=text, after_bytes=after_bytes))

    def answer(self, status: str, *, rpc: str = "", journal: str = "", times: int | None = 1) -> Fault:
        """Answer a call with the named status and a proper header, and do nothing else."""
        return self._add(Fault(rpc, journal, times, status=pb.Status.Value(status)))

    def lose_answer(self, *, rpc: str = "Append", journal: str = "", times: int | None = 1) -> Fault:
        """Serve a call, then fail it with UNAVAILABLE, so that its client cannot find out the outcome."""
        code = grpc.StatusCode.UNAVAILABLE
        return self._add(Fault(rpc, journal, times, code=code, answer_is_lost=True))

    def end(self, *, after_bytes: int = 0, journal: str = "", times: int | None = 1) -> Fault:
        """End a read cleanly after ``after_bytes``, even in the middle of a fragment."""
        return self._add(Fault("Read", journal, times, ends=True, after_bytes=after_bytes))

    def jump(self, by: int, *, journal: str = "", times: int | None = 1) -> Fault:
        """Let a read begin ``by`` bytes past the requested offset."""
        return self._add(Fault("Read", journal, times, jump=by))

    def corrupt(self, *, rpc: str = FRAGMENT, journal: str = "", times: int | None = 1) -> Fault:
        """Change a byte of the content read, by ``Read`` or from a fragment's URL."""
        return self._add(Fault(rpc, journal, times, corrupts=True))

    def shorten(self, missing_bytes: int, *, journal: str = "", times: int | None = 1) -> Fault:
        """Omit the end of the file behind a fragment's URL."""
        return self._add(Fault(FRAGMENT, journal, times, missing_bytes=missing_bytes))

    def refuse_fragment(self, http_status: int, *, journal: str = "", times: int | None = 1) -> Fault:
        """Answer a request for a fragment's URL with an HTTP status."""
        return self._add(Fault(FRAGMENT, journal, times, http_status=http_status))

    def clear(self) -> None:
        """Remove all faults. Stalled calls continue."""
        with self._lock:
            faults, self._faults = self._faults, []
        for fault in faults:
            fault.release()

    def wait_hit(self, fault: Fault, timeout_s: float, hits: int = 1) -> bool:
        """Wait until the fault has applied to ``hits`` calls; return False at the timeout."""
        with self._lock:
            return self._lock.wait_for(lambda: fault.hits >= hits, timeout_s)

    def take(self, rpc: str, journal: str) -> list[Fault]:
        """Return the faults for a call, and count the call. The broker calls this."""
        with self._lock:
            taken = [fault for fault in self._faults if fault.fits(rpc, journal)]
            for fault in taken:
                fault.hits += 1
                if fault.times is not None:
                    fault.times -= 1
            # A stall stays in the list after its last call, so that `clear` can release the calls that hang
            # in it.
            self._faults = [fault for fault in self._faults if fault.times != 0 or fault.stalls]
            self._lock.notify_all()
        return taken

    def take_path(self, path: str) -> list[Fault]:
        """Return the faults for the path of a fragment's URL. Journals ``a`` and ``a/b`` may both match."""
        with self._lock:
            names = {fault.journal for fault in self._faults if fault.rpc in ("", FRAGMENT)}
        journal = next((name for name in sorted(names, key=len, reverse=True) if f"{name}/" in path), "")
        return self.take(FRAGMENT, journal)

    def _add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault
