"""Settings of an embedded broker, in groups: each is an argument of ``EmbeddedBroker``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import grpc

from gazette_spark._server.topology import Member
from gazette_spark.broker.registry import LONE_MEMBER, JournalKeyspace
from gazette_spark.errors import OptionError

PULSE_INTERVAL_S = 60.0
"""Gazette's own: within it an idle journal's first fragment is stored, and flush intervals are seen."""

MIN_APPEND_RATE = 1 << 16
"""Gazette's own, in bytes per second: a slower append is aborted so that others get their turn."""

CHUNK_BYTES = 1 << 18
"""Content per message of a read; Gazette sends 32 KiB, which costs Python eight times the messages."""

THREADS = 512
"""Most threads that serve calls; made as they are needed."""


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """How a broker keeps bytes, and names their files.

    Raises:
        OptionError: ``fragment_urls`` is invalid.
    """

    fsync: bool = True
    """Force every append to the disk before it is answered. Without, a power cut may take the last ones; the
    end of the process takes none either way."""
    pulse_interval_s: float = PULSE_INTERVAL_S
    """Time between two looks at an idle journal, at the latest."""
    fragment_urls: Literal["file", "http"] = "file"
    """``file`` names stored fragments by their path below the root; ``http`` by signed URLs that the broker
    serves itself, at any free port, so that clients read past its gRPC service as with an object store."""

    def __post_init__(self) -> None:
        if self.fragment_urls not in ("file", "http"):
            raise OptionError("fragment_urls", repr(self.fragment_urls), "'file' or 'http'")


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """How a broker serves calls."""

    min_append_rate: int = MIN_APPEND_RATE
    """Bytes a second that an append has to deliver; 0 lets it stall without end."""
    max_append_rate: int = 0
    """Maximum bytes a second of appends to a journal, where its spec allows more; 0 leaves it to the spec. As
    in Gazette, it does not apply to a journal whose spec has no rate."""
    chunk_bytes: int = CHUNK_BYTES
    """Most content in one message of a read."""
    threads: int = THREADS
    """Most threads serving calls; reads and watches use all but 64 of them, or half."""


DURABLE = StorageSettings()
"""The storage of a broker by default."""

AS_GAZETTE = ServingSettings()
"""How a broker serves by default."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Where a broker's HTTP gateway is, and whom it serves."""

    port: int = 0
    """0 takes any free one."""
    names: Sequence[str] = ()
    """Host names by which clients may call it, beside the broker's ``host``, localhost and any address.
    Others are refused, since a web page's name can be made to lead here."""
    serves_without_token: bool = False
    """Serve GET, HEAD and PUT without a token although the broker has keys, as Gazette's gateway does: then
    everybody who reaches the port may read and append to every journal."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Settings that make a broker a member of a cluster."""

    keyspace: JournalKeyspace
    spools: Path
    """Directory of the broker's spools."""
    zone: str = LONE_MEMBER.zone
    suffix: str = LONE_MEMBER.suffix
    """Name of the broker within the zone."""
    interceptors: tuple[grpc.ServerInterceptor[Any, Any], ...] = ()
    """gRPC interceptors that each call to the broker passes first."""
    is_reachable: Callable[[Member], bool] = lambda _member: True
    """Whether a call to another member goes through."""
