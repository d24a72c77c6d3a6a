"""Runs the shards of an application in this process: a thread a shard, transactions overlap as in Gazette.

For development, tests and small jobs, and where a consumer's latency counts: a transaction takes as long as
its appends. Scale and fail-over are the caller's. Two processes that run the same shard do no harm: the store
of the one that started first is fenced off.

Hosts do not know of each other: in Gazette, Etcd assigns a shard to a primary and its hot standbys. Here the
caller makes the second host a *standby*. It plays the recovery logs of shards whose spec asks for hot
standbys, and takes over when it is told to: see :meth:`LocalHost.promote`.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from gazette_spark._server.identity import BrokerIdentity
from gazette_spark._server.topology import Member
from gazette_spark.client.client import Client
from gazette_spark.closing import Closing
from gazette_spark.consumer.application import Application, Resolution, ResolveArgs, ShardListing
from gazette_spark.consumer.local_shard import LocalShard
from gazette_spark.consumer.resolver import Hints, RunningShard, ShardTable
from gazette_spark.consumer.restarts import RestartPolicy
from gazette_spark.consumer.specs import validate_shard_spec
from gazette_spark.errors import OptionError
from gazette_spark.protocol import consumer_pb2 as pc

NAME_ROOT = "/gazette-spark/consumers"
"""Names of shards are below it, as keys of Etcd are below the root of a consumer."""


RESTART = RestartPolicy()
"""When hosts start failed shards again, by default."""


class LocalHost(Closing):
    """Runs shards, and implements :class:`~gazette_spark.consumer.application.ShardHost`. Thread-safe.

    A context manager: shards start with the block, and stop at its end.
    """

    def __init__(
        self,
        app: Application[Any],
        client: Client,
        shards: Iterable[pc.ShardSpec] = (),
        *,
        name: str = "",
        zone: str = "local",
        hints: Hints | None = None,
        work_dir: str | Path | None = None,
        standby: bool = False,
        restart: RestartPolicy | None = RESTART,
    ) -> None:
        """Make a host; nothing runs before :meth:`start`.

        Args:
            app: The application.
            client: Of the brokers. It is used, and not closed.
            shards: Specs of the first shards; others come by :meth:`apply`.
            name: Of the application; stores know their shards by it, so it has to stay. By default the name
                of its class.
            zone: Where this process runs, for routes.
            hints: Where hints of recovery logs are kept, e.g. ``FileHints``; by default in memory, so that
                each process plays logs from their beginning.
            work_dir: Folder for the files of stores while they run, by default a temporary one.
            standby: Run no shard before :meth:`promote`.
            restart: When a shard that FAILED is started again; None: never by itself.

        Raises:
            ProtocolError: a spec is invalid.
            OptionError: two specs have the same id.
        """
        self._app = app
        self._client = client
        self.name = name or type(app).__name__
        self._hints: Hints = {} if hints is None else hints
        self._work_dir = Path(work_dir) if work_dir is not None else None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        member = Member(zone, f"{self.name}-{secrets.token_hex(4)}")
        identity = BrokerIdentity(secrets.randbits(63) | 1, member)
        self._table = ShardTable(
            identity, self._start_shard, self._hints, is_standby=standby, restart=restart
        )
        self._specs = list(shards)
        for spec in self._specs:
            validate_shard_spec(spec)
        ids = [spec.id for spec in self._specs]
        if len(set(ids)) < len(ids):
            raise OptionError("shards", repr(sorted(ids)), "specs with different ids")

    def __repr__(self) -> str:
        return f"LocalHost({self.name!r}, {self._table!r})"

    def start(self) -> Self:
        """Start the shards."""
        if self._work_dir is None:
            self._temporary = tempfile.TemporaryDirectory(
                prefix="gazette-spark-shards-", ignore_cleanup_errors=True
            )
            self._work_dir = Path(self._temporary.name)
        self._work_dir.mkdir(parents=True, exist_ok=True)
        for spec in self._specs:
            self._table.apply([pc.ApplyRequest.Change(upsert=spec)])
        return self

    def close(self, *, drain_s: float = 0.0, timeout_s: float = 30.0) -> None:
        """Stop all shards, and wait for that; closing again does nothing.

        Args:
            drain_s: Seconds to wait for open transactions, so that what they have consumed is committed. What
                is not committed is consumed again at the next start.
            timeout_s: Seconds to wait for the shards after that.
        """
        if drain_s > 0:
            until_s = time.monotonic() + drain_s
            running = self._table.running()
            for shard in running:
                shard.drain()
            for shard in running:
                shard.join(max(0.0, until_s - time.monotonic()))
        until_s = time.monotonic() + timeout_s
        for ended in self._table.close():
            ended.join(max(0.0, until_s - time.monotonic()))
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def __enter__(self) -> Self:
        return self.start()

    def promote(self) -> None:
        """Have a standby run its shards: it takes over those that another host runs. Does not wait for that.

        The other host's shards end with their next commit, as their stores are fenced off.
        """
        self._table.promote()
        for shard in self._table.running():
            assert isinstance(shard, LocalShard)
            shard.promote()

    def serve_at(self, endpoint: str) -> None:
        """Name this process in routes by the address of its service."""
        self._table.serve_at(endpoint)

    def metrics(self) -> str:
        """Return status and restarts of each shard, in Prometheus' text format."""
        return self._table.metrics()

    def list_shards(self) -> ShardListing:
        """Return all shards, see ``ShardHost``."""
        return self._table.list_shards()

    def apply(self, changes: Sequence[pc.ApplyRequest.Change]) -> pc.ApplyResponse:
        """Make valid changes, all or none, see ``ShardHost``."""
        return self._table.apply(changes)

    def resolve(self, args: ResolveArgs) -> Resolution:
        """Return where a shard is served, see ``ShardHost``."""
        return self._table.resolve(args)

    def hints(self, shard_id: str) -> pc.GetHintsResponse:
        """Return the hints of a shard's recovery log, see ``ShardHost``."""
        return self._table.hints(shard_id)

    def unassign(
        self, shard_ids: Sequence[str], *, only_failed: bool = False, dry_run: bool = False
    ) -> pc.UnassignResponse:
        """End assignments, see ``ShardHost``."""
        return self._table.unassign(shard_ids, only_failed=only_failed, dry_run=dry_run)

    def _start_shard(self, spec: pc.ShardSpec, after: RunningShard | None) -> LocalShard:
        assert self._work_dir is not None
        shard = LocalShard(
            self._app,
            self._client,
            spec,
            f"{NAME_ROOT}/{self.name}/items/{spec.id}",
            hints=self._hints,
            # Another name each time: what a killed process has left is nobody's.
            directory=Path(tempfile.mkdtemp(prefix=spec.id.replace("/", "_") + "-", dir=self._work_dir)),
            after=after,
            is_standby=self._table.is_standby,
        )
        shard.start()
        return shard
