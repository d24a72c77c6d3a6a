"""Tests that a membership reports in time that its lease is lost."""

from __future__ import annotations

import threading

from gazette_spark.consumer._cluster.etcd import Lease
from gazette_spark.consumer._cluster.member import Membership
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import etcd_pb2 as pe


class _Etcd:
    """An Etcd that grants a short lease and cannot renew it."""

    def grant(self, _ttl_s: int) -> Lease:
        return Lease(1, 0.5)

    def txn(self, *_operations: object) -> pe.TxnResponse:
        return pe.TxnResponse(succeeded=True)

    def keep_alive(self, _lease: int) -> float:
        raise RuntimeError("can't start new thread")


def test_a_lease_that_cannot_be_renewed_is_lost_whatever_the_reason() -> None:
    """Shards have to stop before other members get them."""
    lost = threading.Event()
    etcd = _Etcd()
    with Membership(etcd, "/app/members/a#b", pc.ConsumerSpec(), 1, lost.set) as membership:  # type: ignore[arg-type]  # Only the part of Etcd that is needed.
        assert membership.announce(threading.Event()) is membership
        assert lost.wait(10)
        assert membership.lost.is_set()
        assert not membership.is_live
