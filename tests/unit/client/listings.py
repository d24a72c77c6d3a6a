"""Messages of List streams for use in test scripts."""

from __future__ import annotations

from collections.abc import Sequence

from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec

EMPTY = pb.ListResponse()
"""Message that ends a listing in a watch."""


def header(revision: int) -> pb.Header:
    etcd = pb.Header.Etcd(cluster_id=1, member_id=2, revision=revision, raft_term=3)
    return pb.Header(etcd=etcd, route=pb.Route(primary=-1))


def journal(name: str, mod_revision: int = 1, create_revision: int = 1) -> pb.ListResponse.Journal:
    return pb.ListResponse.Journal(
        spec=journal_spec(name),
        mod_revision=mod_revision,
        create_revision=create_revision,
        route=pb.Route(primary=-1),
    )


def message(*names: str, revision: int = 0) -> pb.ListResponse:
    """Return a message: the first of a listing if it has a revision, else a later one."""
    return pb.ListResponse(
        header=header(revision) if revision else None, journals=[journal(name) for name in names]
    )


def pages(revision: int, names: Sequence[str], size: int = 2) -> list[pb.ListResponse]:
    """Return a complete listing of a watch, including the empty message at its end."""
    first, *rest = [names[at : at + size] for at in range(0, len(names) or 1, size)]
    return [message(*first, revision=revision), *(message(*each) for each in rest), EMPTY]


def applied(revision: int) -> pb.ApplyResponse:
    return pb.ApplyResponse(header=pb.Header(etcd=pb.Header.Etcd(revision=revision)))
