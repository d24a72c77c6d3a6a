"""Announces this process as a member of a cluster: others see its key while its lease is renewed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Self

from gazette_spark.closing import Closing
from gazette_spark.consumer._cluster.etcd import EtcdClient, put, put_under_its_lease, unchanged
from gazette_spark.errors import GazetteError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import etcd_pb2 as pe

log = logging.getLogger(__name__)

ANNOUNCE_S = 1.0
"""Seconds between two attempts to announce a member."""

# The first renewal comes after a quarter of the time, which leaves room for retries before the margin.
RENEWALS = 4
"""Number of renewals of a lease within its time."""

MARGIN = 0.2
"""Fraction of a lease's time before its end at which the member considers it lost if it was not renewed.

When the lease ends by Etcd's clock, the shards are assigned to others. Before that, they have to be stopped
here.
"""


class Membership(Closing):
    """The key of a member, its lease, and the thread that renews the lease.

    The lease counts from the time when its renewal was sent, by this machine's clock. That clock continues
    while the process is stopped, so a process that wakes up late notices it.
    """

    def __init__(
        self, etcd: EtcdClient, key: str, spec: pc.ConsumerSpec, ttl_s: int, on_lost: Callable[[], None]
    ) -> None:
        """Prepare a membership.

        Args:
            etcd: Etcd.
            key: Key of the member.
            spec: Value of the key.
            ttl_s: Seconds that a lease lasts without being renewed.
            on_lost: Called once, in the thread that renews, when the lease is lost.
        """
        self.key = key
        self._etcd = etcd
        self._spec = spec
        self._ttl_s = ttl_s
        self._on_lost = on_lost
        self._ends_s = 0.0
        self.lease = 0
        self._closed = threading.Event()
        self.lost = threading.Event()
        """Set when the lease is lost."""
        self._thread = threading.Thread(target=self._renew, name="cluster lease", daemon=True)

    def __repr__(self) -> str:
        return f"Membership({self.key!r})"

    @property
    def is_live(self) -> bool:
        """Whether the lease is certainly still valid, by this machine's clock."""
        return time.monotonic() < self._ends_s and not self._closed.is_set()

    def announce(self, cancelled: threading.Event) -> Self | None:
        """Get a lease, and write the key when no other process has it.

        The key may still exist with the lease of a killed process of the same name. Then wait for the end of
        that lease. Return None if this is cancelled, or if the new lease is lost, before that.

        Raises:
            GazetteError: Etcd does not grant a lease.
        """
        # Take the time before the call: Etcd's lease begins when the request arrives, so this time is never
        # too late.
        began_s = time.monotonic()
        lease = self._etcd.grant(self._ttl_s)
        self.lease = lease.id
        self._ends_s = began_s + lease.ttl_s * (1 - MARGIN)
        # Renew the lease while the process waits for its key. Otherwise it would have expired after a long
        # wait.
        self._thread.start()
        while not (cancelled.is_set() or self.lost.is_set()):
            try:
                response = self._etcd.txn(
                    [unchanged(self.key, 0)],
                    [put(self.key, self._spec.SerializeToString(), self.lease)],
                    [pe.RequestOp(request_range=pe.RangeRequest(key=self.key.encode()))],
                )
            except GazetteError as error:
                log.warning("cluster.not_announced key=%s cause=%s", self.key, error)
            else:
                # The answer may have been lost after the key was written.
                ours = not response.succeeded and any(
                    kv.lease == self.lease for kv in response.responses[0].response_range.kvs
                )
                if response.succeeded or ours:
                    return self
                log.warning("cluster.key_is_taken key=%s", self.key)
            cancelled.wait(ANNOUNCE_S)
        return None

    def set_exiting(self, mod_revision: int) -> None:
        """Request that the leader assigns this member's shards to others."""
        self._spec.exiting = True
        value = self._spec.SerializeToString()
        # The condition is the revision that the caller has seen. If it differs, the caller sees that in the
        # next state and repeats the request.
        self._etcd.txn([unchanged(self.key, mod_revision)], [put_under_its_lease(self.key, value)])

    def close(self) -> None:
        """End the lease, which deletes the keys of this member, and with them its assignments."""
        if not self._closed.is_set():
            self._closed.set()
            # End the thread first: a renewal after the end of the lease would report the lease as lost.
            if self._thread.is_alive() and threading.current_thread() is not self._thread:
                self._thread.join()
            # Revoke the lease. Otherwise others have to wait for its end before they take the shards.
            if self.lease and not self.lost.is_set():
                try:
                    self._etcd.revoke(self.lease)
                except GazetteError as error:
                    log.warning("cluster.lease_not_ended key=%s cause=%s", self.key, error)

    def _renew(self) -> None:
        pause_s = self._ttl_s / RENEWALS
        # Never wait beyond the end of the lease, so that its loss is noticed in time.
        while not self._closed.wait(min(pause_s, max(0.0, self._ends_s - time.monotonic()))):
            sent_s = time.monotonic()
            if sent_s >= self._ends_s:
                break
            try:
                ttl_s = self._etcd.keep_alive(self.lease)
            # Catch any error, such as that of a machine that starts no more threads: without this thread,
            # nothing would stop the shards before the lease ends.
            except Exception as error:  # noqa: BLE001
                # The lease is not lost before its time is over, so try again soon.
                log.warning("cluster.lease_not_renewed key=%s cause=%s", self.key, error)
                pause_s = min(1.0, self._ttl_s / RENEWALS / 4)
                continue
            # This is Etcd's answer for a lease that has expired or was revoked.
            if ttl_s <= 0:
                break
            pause_s = self._ttl_s / RENEWALS
            self._ends_s = sent_s + ttl_s * (1 - MARGIN)
        if not self._closed.is_set():
            self._ends_s = 0.0
            self.lost.set()
            log.error("cluster.lease_lost key=%s", self.key)
            self._on_lost()
