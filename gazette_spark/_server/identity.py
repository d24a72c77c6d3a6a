"""Defines the identity of a broker, and makes the headers of its answers."""

from __future__ import annotations

from dataclasses import dataclass

from gazette_spark._server.topology import Member, make_route
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb

# Gazette's clients refuse headers in which one of Etcd's four numbers is zero. The values of these two do not
# matter.
_ETCD_MEMBER = 1
_RAFT_TERM = 1


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """One broker of a cluster."""

    cluster_id: int
    member: Member

    @property
    def endpoint(self) -> str:
        """Endpoint of the broker."""
        return self.member.endpoint

    @property
    def process_id(self) -> pb.ProcessSpec.ID:
        """The broker's process id."""
        return self.member.process_id

    def header(self, revision: int, route: pb.Route | None = None) -> pb.Header:
        """Return a header at a revision. Its route is empty without a known journal."""
        return pb.Header(
            process_id=self.process_id,
            route=make_route(()) if route is None else route,
            etcd=pb.Header.Etcd(
                cluster_id=self.cluster_id, member_id=_ETCD_MEMBER, revision=revision, raft_term=_RAFT_TERM
            ),
        )

    def check_proxied(self, header: pb.Header) -> None:
        """Refuse a request that was routed here by mistake; see :func:`check_proxied`."""
        check_proxied(header, self.cluster_id, self.process_id)


def check_proxied(header: pb.Header, cluster_id: int, process_id: pb.ProcessSpec.ID) -> None:
    """Refuse a request that another process, or a caller of another cluster, routed here by mistake.

    Args:
        header: Header of the request.
        cluster_id: Id of this process's Etcd cluster.
        process_id: Id of this process.

    Raises:
        ProtocolError: the header names another cluster or process. The text is Gazette's.
    """
    named_cluster, named = header.etcd.cluster_id, header.process_id
    # Offsets and revisions of one cluster have no meaning in another.
    if named_cluster != cluster_id:
        problem = f"request Etcd ClusterId doesn't match our own ({named_cluster} vs {cluster_id})"
        raise ProtocolError("Header.Etcd", problem)
    # A process that was restarted under an old address has another id, and lacks its predecessor's state.
    if (named.zone or named.suffix) and named != process_id:
        problem = f"request ProcessId doesn't match our own ({named.zone}/{named.suffix})"
        raise ProtocolError("Header.ProcessId", problem)
