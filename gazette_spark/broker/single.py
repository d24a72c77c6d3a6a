"""Runs one broker of this process: its parts, their start and their end. Users make an ``EmbeddedBroker``."""

from __future__ import annotations

import secrets
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gazette_spark._server.authorizer import Authorizer
from gazette_spark._server.call_watch import CallWatch
from gazette_spark._server.http_server import HttpServer
from gazette_spark._server.identity import BrokerIdentity
from gazette_spark._server.serving import bind_server, new_server, stop_at_exit
from gazette_spark._server.tls import ServerTls
from gazette_spark._server.topology import Member
from gazette_spark.broker.api.call import ServiceContext
from gazette_spark.broker.api.service import JournalService
from gazette_spark.broker.faults import Faults
from gazette_spark.broker.faulty_service import FaultyService
from gazette_spark.broker.http.fragment_server import FragmentServer
from gazette_spark.broker.http.gateway import Gateway
from gazette_spark.broker.http.signed_urls import SignedUrls, UrlOf, UrlSigner, file_url
from gazette_spark.broker.journal import JournalSettings, LiveJournal
from gazette_spark.broker.registry import LONE_MEMBER, JournalRegistry
from gazette_spark.broker.replication.peers import Peers
from gazette_spark.broker.replication.replicator import Replicator
from gazette_spark.broker.settings import (
    AS_GAZETTE,
    DURABLE,
    BrokerMembership,
    GatewaySettings,
    ServingSettings,
    StorageSettings,
)
from gazette_spark.broker.storage.persister import Persister
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc
from gazette_spark.protocol.tokens import KeySet

RESERVED_THREADS = 64
"""Number of threads that reads and watches, which may last indefinitely, leave to other calls."""

STOP_GRACE_S = 5.0
"""Seconds that calls in progress have to end when the broker stops."""


@dataclass(frozen=True, slots=True)
class _Options:
    """Settings of a broker. Fields are arguments of :class:`SingleBroker`."""

    storage: StorageSettings
    serving: ServingSettings
    gateway: GatewaySettings | None
    auth_keys: KeySet | None
    tls: ServerTls | None
    faults: Faults | None
    membership: BrokerMembership | None


class SingleBroker:
    """A broker in this process. Thread-safe; a context manager, which starts and stops it."""

    def __init__(
        self,
        root: Path | str,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        storage: StorageSettings = DURABLE,
        serving: ServingSettings = AS_GAZETTE,
        gateway: GatewaySettings | None = None,
        auth_keys: str | KeySet | None = None,
        tls: ServerTls | None = None,
        faults: Faults | None = None,
        membership: BrokerMembership | None = None,
    ) -> None:
        """Prepare a broker, which starts with the ``with`` block or with :meth:`run`.

        Args:
            root: Directory of the fragment stores and, in ``.gazette``, of the broker's state. It is created
                if it is missing.
            port: Port to listen on; 0 for any free port.
            host: Address to listen on.
            storage: How bytes are stored.
            serving: How calls are served.
            gateway: Address of the HTTP gateway; None for no gateway.
            auth_keys: Keys with which bearer tokens are verified, in the form of ``BROKER_AUTH_KEYS``; with
                None, every call is allowed.
            tls: Certificate for gRPC and HTTP; None for plain text.
            faults: Faults that a test injects.
            membership: Settings of a cluster; None for a broker alone.

        Raises:
            OptionError: ``auth_keys`` is invalid.
        """
        self.root = Path(root)
        self.host = host
        self.port = port
        keys = KeySet.parse(auth_keys, "auth_keys") if isinstance(auth_keys, str) else auth_keys
        self._options = _Options(storage, serving, gateway, keys, tls, faults, membership)
        self._lock = threading.Lock()
        self._runtime: BrokerRuntime | None = None

    def __repr__(self) -> str:
        state = self.endpoint if self._runtime is not None else "stopped"
        return f"{type(self).__name__}({str(self.root)!r}, {state})"

    def __enter__(self) -> Self:
        self.run()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """Address of the running broker, ``http://host:port`` or ``https://host:port``."""
        scheme = "http" if self._options.tls is None else "https"
        return f"{scheme}://{self.host}:{self.port}"

    @property
    def gateway_endpoint(self) -> str | None:
        """Address of the running broker's HTTP gateway, if it has one."""
        gateway = None if self._runtime is None else self._runtime.gateway
        return None if gateway is None else gateway.endpoint

    def stop(self) -> None:
        """End every call and finish uploads in progress; other spools stay. A second call does nothing."""
        self._end(BrokerRuntime.stop)

    def kill(self) -> None:
        """End every call and commit nothing more, as SIGKILL does; acknowledged bytes stay on disk."""
        self._end(BrokerRuntime.kill)

    def _end(self, end: Callable[[BrokerRuntime], None]) -> None:
        with self._lock:
            # Take it under the lock, so that only one of two threads stops the broker.
            running, self._runtime = self._runtime, None
        if running is None:
            return
        try:
            end(running)
        except BaseException:
            # An interrupt: the next call ends the rest, which may include the lock of the root.
            self._runtime = running
            raise
        stop_at_exit.pop(self, None)

    @property
    def parts(self) -> BrokerRuntime:
        """The parts of the running broker.

        Raises:
            RuntimeError: the broker is not running.
        """
        if self._runtime is None:
            raise RuntimeError("the broker is not running")
        return self._runtime

    def flush(self, timeout_s: float = 60.0) -> None:
        """Close every spool and wait until all are stored.

        Raises:
            TimeoutError: uploads did not end in time.
            OSError: a store refused. The bytes stay on disk, and uploads are retried.
        """
        self.parts.flush(timeout_s)

    def run(self) -> None:
        """Start the broker, if it is not running."""
        with self._lock:
            if self._runtime is None:
                self._runtime = BrokerRuntime(self, self._options)
                if self._options.membership is None:  # Otherwise the cluster stops its brokers.
                    stop_at_exit[self] = self.stop


class BrokerRuntime:
    """Parts of a running broker, for other modules of the package."""

    def __init__(self, broker: SingleBroker, options: _Options) -> None:
        membership = options.membership
        threads = options.serving.threads
        # Two pools: an append needs one thread to be served and one that takes its messages. In a single
        # pool, as many appends as threads would wait for each other.
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="gazette-serve")
        self.pumps = ThreadPoolExecutor(threads, thread_name_prefix="gazette-pump")
        interceptors = list(membership.interceptors) if membership is not None else []
        self.server = new_server(self.pool, interceptors)
        try:
            # Bind the port first: it is part of the member's endpoint, with which the registry joins.
            broker.port = bind_server(self.server, broker.host, broker.port, options.tls)
            self.registry = self._registry(broker, options)
        except BaseException:
            self.server.stop(None)
            raise
        member = self.registry.member
        identity = BrokerIdentity(self.registry.catalog.cluster_id, member)
        is_reachable = membership.is_reachable if membership is not None else lambda _member: True
        self.peers = Peers(member, keys=options.auth_keys, is_reachable=is_reachable)
        self.replicator = Replicator(self.registry, identity, self.peers)
        pulse_interval_s = options.storage.pulse_interval_s
        self.persister = Persister(self.registry.journals, pulse_interval_s, self.replicator.pulse)
        self.watch = CallWatch()
        self.gateway: HttpServer | None = None
        self.fragments: HttpServer | None = None
        try:
            service = self._service(broker, identity, options)
            if options.gateway is not None:
                names, port = (broker.host, *options.gateway.names), options.gateway.port
                answers = Gateway(
                    service,
                    lambda: self.gateway.endpoint if self.gateway else "",
                    names,
                    serves_without_token=options.gateway.serves_without_token,
                )
                self.gateway = HttpServer(
                    answers, broker.host, port, option="gateway_port", tls=_ssl(options)
                )
            max_streams = max(threads - RESERVED_THREADS, threads // 2)
            served: pb_grpc.JournalServicer = JournalService(service, threads, max_streams)
            if options.faults is not None:
                served = FaultyService(served, options.faults, service.header)
            pb_grpc.add_JournalServicer_to_server(served, self.server)
            # Start in this order, so that the first call finds everything running.
            self.persister.start()
            self.server.start()
            for http in (self.gateway, self.fragments):
                if http is not None:
                    http.start()
        except BaseException:
            self.stop()
            raise

    def _registry(self, broker: SingleBroker, options: _Options) -> JournalRegistry:
        fsync = options.storage.fsync
        settings = JournalSettings(
            root=broker.root, is_journal=lambda _name: False, fsync=fsync, on_sealed=self._on_sealed
        )
        cluster = options.membership
        if cluster is None:
            member = Member(LONE_MEMBER.zone, LONE_MEMBER.suffix, broker.endpoint)
            return JournalRegistry(broker.root, settings, member=member)
        member = Member(cluster.zone, cluster.suffix, broker.endpoint)
        return JournalRegistry(
            broker.root, settings, member=member, keyspace=cluster.keyspace, spools=cluster.spools
        )

    def _service(self, broker: SingleBroker, identity: BrokerIdentity, options: _Options) -> ServiceContext:
        url_of: UrlOf = file_url
        if options.storage.fragment_urls != "file":
            # Each start makes a new key, so URLs of an earlier broker are no longer valid.
            signer = UrlSigner(secrets.token_bytes(32))
            answers = FragmentServer(broker.root, signer, options.faults)
            self.fragments = HttpServer(answers, broker.host, 0, option="fragments", tls=_ssl(options))
            url_of = SignedUrls(self.fragments.endpoint, signer)
        return ServiceContext(
            registry=self.registry,
            persister=self.persister,
            identity=identity,
            pumps=self.pumps,
            min_append_rate=options.serving.min_append_rate,
            max_append_rate=options.serving.max_append_rate,
            chunk_bytes=options.serving.chunk_bytes,
            authorizer=Authorizer(options.auth_keys),
            watch=self.watch,
            url_of=url_of,
            peers=self.peers,
            replicator=self.replicator,
        )

    def _on_sealed(self, journal: LiveJournal) -> None:
        # All replicas have the same fragment. The primary stores it, and the others store it only if the
        # primary does not, or if they have given the journal up.
        is_mine = journal.closed or self.registry.is_primary(journal.name)
        if journal.first_store is not None and is_mine and journal.sealed():
            self.persister.upload(journal)  # Another replica's turn comes with its next pulse.

    def flush(self, timeout_s: float) -> None:
        """Close the spools of which this broker is the primary, and wait until the stores have them."""
        for journal in self.registry.journals():
            head = journal.head()
            if head.spool_end > head.spool_begin and self.registry.is_primary(journal.name):
                self.roll(journal)
            if journal.first_store is not None and journal.sealed():
                self.persister.upload(journal)
        if not self.persister.wait_idle(timeout_s):
            raise TimeoutError(f"uploads did not end within {timeout_s:g} s")
        for journal in self.registry.journals():
            if problem := self.persister.problem(journal):
                raise OSError(f"journal {journal.name} is not stored: {problem}")

    def agree(self, journal: LiveJournal, *, roll: bool = False) -> None:
        """Make all replicas of a journal agree, if this broker is the primary.

        Raises:
            ReplicationError: a replica is lost.
        """
        with journal.fair_lock.turn(lambda: not journal.closed) as granted:
            # Check this with the turn: the primary may have changed while this thread waited.
            is_mine = granted and self.registry.is_primary(journal.name)
            if not is_mine or not self.replicator.prepare(journal, self.replicator.slots(journal)):
                return
            head = journal.head()
            if roll and head.spool_end > head.spool_begin:
                journal.roll()

    def roll(self, journal: LiveJournal) -> None:
        """Close the journal's spool at every replica, if it has content.

        Raises:
            ReplicationError: a replica is lost.
        """
        self.agree(journal, roll=True)

    def kill(self) -> None:
        """End everything immediately, as far as a thread can: nothing more is answered or committed."""
        self.registry.abandon()
        self._end(grace_s=None)

    def stop(self) -> None:
        """End every call; files on disk stay."""
        self.registry.stop()
        self._end(grace_s=STOP_GRACE_S)

    def _end(self, grace_s: float | None) -> None:
        for http in (self.gateway, self.fragments):
            if http is not None:
                http.stop()
        # First end the calls to other brokers, because threads of this broker may be waiting for them.
        self.replicator.close()
        self.peers.close()
        self.server.stop(grace_s).wait()
        self.watch.stop()
        # No thread may touch a file after the root is released.
        self.pool.shutdown(wait=True)
        self.pumps.shutdown(wait=True)
        self.persister.stop()
        self.registry.close()


def _ssl(options: _Options) -> ssl.SSLContext | None:
    return None if options.tls is None else options.tls.ssl_context()
