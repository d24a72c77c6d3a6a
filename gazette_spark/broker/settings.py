"""Defines the settings of an embedded broker, in groups. Each group is an argument of ``EmbeddedBroker``."""

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
"""Default seconds between checks of an idle journal, as in Gazette. Within this time, its first fragment is
stored and flush intervals end."""

MIN_APPEND_RATE = 1 << 16
"""Default minimum rate in bytes per second, as in Gazette. A slower append is aborted so that others get
their turn."""

CHUNK_BYTES = 1 << 18
"""Bytes of content in one message of a read. Gazette sends 32 KiB, for which Python would need eight times as
many messages."""

THREADS = 512
"""Maximum number of threads that serve calls. Threads are made as they are needed."""


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Settings for storing bytes and naming their files.

    Raises:
        OptionError: ``fragment_urls`` is invalid.
    """

    fsync: bool = True
    """Whether to force every append to the disk before it is answered. Otherwise a power cut may lose the
    last appends. The end of the process loses nothing in either case."""
    pulse_interval_s: float = PULSE_INTERVAL_S
    """Maximum interval between checks of an idle journal."""
    fragment_urls: Literal["file", "http"] = "file"
    """With ``file``, the URL of a stored fragment is its path below the root. With ``http``, it is a signed
    URL that the broker serves itself, at any free port: clients bypass its gRPC service, as with an object
    store."""

    def __post_init__(self) -> None:
        if self.fragment_urls not in ("file", "http"):
            raise OptionError("fragment_urls", repr(self.fragment_urls), "'file' or 'http'")


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """Settings for serving calls."""

    min_append_rate: int = MIN_APPEND_RATE
    """Bytes per second that an append has to deliver; 0 lets it stall indefinitely."""
    max_append_rate: int = 0
    """Maximum bytes per second of appends to a journal, where its spec allows more; 0 means the spec's rate.
    As in Gazette, it does not apply to a journal whose spec has no rate."""
    chunk_bytes: int = CHUNK_BYTES
    """Maximum bytes of content in one message of a read."""
    threads: int = THREADS
    """Maximum number of threads serving calls; reads and watches use all but 64 of them, or half."""


DURABLE = StorageSettings()
"""The default storage settings."""

AS_GAZETTE = ServingSettings()
"""The default serving settings."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Settings of a broker's HTTP gateway: its port, and the clients that it serves."""

    port: int = 0
    """Port to listen on; 0 for any free port."""
    names: Sequence[str] = ()
    """Host names by which clients may call it, in addition to its ``host``, localhost and any address.
    Others are refused, because the owner of a web page can make its host name resolve to this machine."""
    serves_without_token: bool = False
    """Serve GET, HEAD and PUT without a token although the broker has keys, as Gazette's gateway does. Then
    anyone who reaches the port can read and append to every journal."""


@dataclass(frozen=True, slots=True)
class BrokerMembership:
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
    """Whether another member can be called."""
