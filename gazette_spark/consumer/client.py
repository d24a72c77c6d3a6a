"""Lists shards of consumers, changes them, and requests how far they have come."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Self, TypeVar

from gazette_spark._server.catalog import MAX_OPERATIONS
from gazette_spark.client import environment
from gazette_spark.client._list.apply import apply_in_batches
from gazette_spark.client._transport import retry
from gazette_spark.client._transport.channel import Connection, is_no_answer
from gazette_spark.client._transport.credentials import Credentials, TlsOptions
from gazette_spark.client._transport.routes import RouteCache, open_dialer
from gazette_spark.client.client import Client
from gazette_spark.closing import Closing
from gazette_spark.consumer.application import Progress
from gazette_spark.consumer.specs import (
    MAX_HOT_STANDBYS,
    recovery_log,
    validate_hints_request,
    validate_list_request,
    validate_shard_changes,
    validate_stat_request,
    validate_unassign_request,
)
from gazette_spark.errors import (
    GazetteError,
    MessageError,
    ProtocolError,
    ShardStatusError,
    StatusError,
    UnavailableError,
    shard_status_errors,
)
from gazette_spark.message.interfaces import framing_by_content_type
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import consumer_pb2_grpc as pc_grpc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import (
    CONTENT_TYPE,
    CONTENT_TYPE_RECOVERY_LOG,
    ID,
    label_set,
    parse_selector,
    values_of,
)
from gazette_spark.protocol.tokens import APPLY_LIFETIME_S, Capability, Claims, KeySet, item_claims

logger = logging.getLogger(__name__)

T = TypeVar("T")

PREFIX = "CONSUMER"
"""Prefix of the environment variables that contain a consumer's address and credentials."""

STATS_AT_ONCE = 16
"""Maximum number of concurrent Stat calls."""

# A change with hints is two operations.
SHARDS_PER_APPLY = MAX_OPERATIONS // 2
"""Default number of changes in one Apply call, which is one transaction of Etcd."""

# A shard needs one operation for each replica that is ended.
UNASSIGNED_AT_ONCE = MAX_OPERATIONS // (1 + MAX_HOT_STANDBYS)
"""Maximum number of shards in one Unassign call, which is one transaction of Etcd."""

_CLASSES = shard_status_errors()


class ShardClient(Closing):
    """Calls the consumers of one application. Thread-safe. It belongs to the process that created it."""

    def __init__(
        self,
        endpoint: str,
        *,
        timeout_s: float = 60.0,
        connect_timeout_s: float = 10.0,
        token: str | None = None,
        token_file: str | None = None,
        auth_keys: str | KeySet | None = None,
        tls: TlsOptions | None = None,
        route_cache_size: int = 0,
        route_cache_ttl_s: float = 60.0,
        zone: str = "",
    ) -> None:
        """Make a client without connecting. The arguments are those of a broker's ``Client``.

        ``timeout_s`` is the number of seconds that a call may take, including all retries. The primaries of
        up to ``route_cache_size`` shards are remembered and called directly.
        """
        for name, value in (("timeout_s", timeout_s), ("connect_timeout_s", connect_timeout_s)):
            retry.check_seconds(name, value)
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._dialer = open_dialer(
            endpoint,
            connect_timeout_s=connect_timeout_s,
            credentials=Credentials.given(token, token_file, auth_keys),
            tls=tls,
            cache=RouteCache(route_cache_size, route_cache_ttl_s) if route_cache_size != 0 else None,
            zone=zone,
            service=PREFIX.lower(),
        )

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Self:
        """Return a client with the settings of environment variables that ``gazctl`` also reads.

        ``CONSUMER_ADDRESS`` and similar variables correspond to ``BROKER_ADDRESS`` and so on for a broker's
        client.
        """
        with environment.errors(PREFIX):
            return cls(**environment.arguments(env, PREFIX))

    def __repr__(self) -> str:
        return f"ShardClient({self.endpoint!r})"

    def close(self) -> None:
        """Close all connections. Calls in progress fail."""
        self._dialer.close()

    @property
    def default_connection(self) -> Connection:
        """Connection to a consumer at ``endpoint``."""
        return self._dialer.default

    def list_shards(self, selector: str | pb.LabelSelector = "") -> list[pc.ListResponse.Shard]:
        """Return the shards that a selector matches, ascending by id; ``""`` matches all."""
        return list(self.list_all_shards(selector).shards)

    def list_all_shards(self, selector: str | pb.LabelSelector = "") -> pc.ListResponse:
        """Return the shards that a selector matches, with a header that contains the revision."""
        label_selector = parse_selector(selector) if isinstance(selector, str) else selector
        request = pc.ListRequest(selector=label_selector)
        validate_list_request(request)

        def call(connection: Connection, remaining_s: float) -> pc.ListResponse:
            with connection.errors():
                response = connection.stub(pc_grpc.ShardStub).List(
                    request,
                    timeout=remaining_s,
                    metadata=connection.metadata(Claims(Capability.LIST, label_selector)),
                )
            connection.observe("", response.header)
            for shard in response.shards:
                connection.observe(shard.spec.id, shard.route)
            _check(response.status, "")
            return response

        return self._retrying(call)

    def stat(
        self, shard_id: str, read_through: Mapping[str, int] | None = None, *, timeout_s: float | None = None
    ) -> Progress:
        """Wait until a shard has read through offsets, and return how far it has come.

        If you pass the end of an append, the state includes that append. What the shard published because of
        it is before ``publish_at``, which you can then pass to a downstream shard.

        Args:
            shard_id: id of the shard.
            read_through: by journal, an offset to wait for; journals that the shard does not read are
                ignored.
            timeout_s: seconds to wait, by default the client's.

        Raises:
            ShardNotFoundError: there is no such shard.
            ShardStoppedError: the shard failed or was unassigned.
            NoShardPrimaryError: the shard is disabled, or was not assigned in time.
            UnavailableError: the shard did not read through the offsets in time.
        """
        request = pc.StatRequest(shard=shard_id, read_through=read_through or {})
        validate_stat_request(request)
        claims = item_claims(Capability.READ, ID, shard_id)

        def call(connection: Connection, remaining_s: float) -> Progress:
            with connection.errors():
                response = connection.stub(pc_grpc.ShardStub).Stat(
                    request, timeout=remaining_s, metadata=connection.metadata(claims)
                )
            # The header's route names the primary, for the next call.
            connection.observe(shard_id, response.header)
            _check(response.status, shard_id)
            return Progress(dict(response.read_through), dict(response.publish_at))

        return self._retrying(call, dial=partial(self._dialer.for_primary, shard_id), timeout_s=timeout_s)

    def progress_of(self, shards: Iterable[pc.ListResponse.Shard]) -> dict[str, Progress]:
        """Return the progress of each listed shard that runs. The calls are concurrent.

        Shards of a member that does not answer are left out, with a warning in the log.
        """
        silent: set[str] = set()

        def one(shard: pc.ListResponse.Shard) -> Progress | None:
            primary = shard.route.members[shard.route.primary]
            member = f"{primary.zone}/{primary.suffix}"
            # A call takes up to timeout_s, so do not wait for the same member again.
            if member in silent:
                return None
            try:
                return self.stat(shard.spec.id)
            # It was stopped or moved after the listing, so it does not run.
            except ShardStatusError:
                return None
            except UnavailableError as error:
                silent.add(member)
                logger.warning("shards.no_answer member=%s cause=%s", member, error)
                return None

        # A primary answers immediately once its store is open. Stat of a shard that is still recovering would
        # wait for that.
        running = {
            shard.spec.id: shard
            for shard in shards
            if 0 <= shard.route.primary < len(shard.status)
            and shard.status[shard.route.primary].code == pc.ReplicaStatus.PRIMARY
        }
        with ThreadPoolExecutor(STATS_AT_ONCE) as pool:
            progress_by_shard = dict(zip(running, pool.map(one, running.values()), strict=True))
        return {
            shard_id: progress for shard_id, progress in progress_by_shard.items() if progress is not None
        }

    def lags(self, client: Client, shards: Iterable[pc.ListResponse.Shard]) -> dict[str, dict[str, int]]:
        """Return the unread bytes of each source whose head brokers return, by shard, for running shards."""
        progress = self.progress_of(shards)
        journals = {journal for reached in progress.values() for journal in reached.read_through}
        refusals: dict[str, StatusError] = {}
        heads = client.highest_heads(sorted(journals), refusals=refusals)
        for refusal in refusals.values():  # For example, the journal was just deleted.
            logger.warning("shards.no_head cause=%s", refusal)
        return {
            shard_id: {name: heads[name] - at for name, at in reached.read_through.items() if name in heads}
            for shard_id, reached in progress.items()
        }

    def apply(self, changes: Sequence[pc.ApplyRequest.Change]) -> int:
        """Apply all changes in one transaction, and return its revision. It is never sent twice.

        Raises:
            ShardTransactionFailedError: a spec has another revision than expected. Nothing was applied.
            ProtocolError: a change is invalid.
        """
        validate_shard_changes(changes)
        claims = Claims(Capability.APPLY, pb.LabelSelector())

        def call(connection: Connection, remaining_s: float) -> int:
            with retry.unknown_changes(), connection.errors():
                response = connection.stub(pc_grpc.ShardStub).Apply(
                    pc.ApplyRequest(changes=changes),
                    timeout=remaining_s,
                    metadata=connection.metadata(claims, APPLY_LIFETIME_S),
                )
            _check(response.status, _names([change.delete or change.upsert.id for change in changes]))
            return response.header.etcd.revision

        # A second attempt at a transaction that was made would fail because of the revisions that the first
        # one changed.
        return self._retrying(call, decide=retry.after_apply)

    def apply_in_batches(
        self, changes: Sequence[pc.ApplyRequest.Change], size: int = SHARDS_PER_APPLY
    ) -> int:
        """Apply changes in transactions of ``size`` changes, in order, and return the last revision.

        Raises:
            PartialApplyError: a transaction failed after others were applied. The error has their number.
            GazetteError: nothing was applied; see :meth:`apply`.
        """
        validate_shard_changes(changes)
        return apply_in_batches(changes, size, self.apply)

    def get_hints(self, shard_id: str) -> pc.GetHintsResponse:
        """Return the hints of a shard's recovery log: the primary's, and those of earlier recoveries.

        Raises:
            ShardNotFoundError: there is no such shard.
        """
        request = pc.GetHintsRequest(shard=shard_id)
        validate_hints_request(request)
        claims = item_claims(Capability.READ, ID, shard_id)

        def call(connection: Connection, remaining_s: float) -> pc.GetHintsResponse:
            with connection.errors():
                response = connection.stub(pc_grpc.ShardStub).GetHints(
                    request, timeout=remaining_s, metadata=connection.metadata(claims)
                )
            _check(response.status, shard_id)
            return response

        return self._retrying(call)

    def unassign(
        self, shard_ids: Sequence[str], *, only_failed: bool = False, dry_run: bool = False
    ) -> list[str]:
        """End the assignments of shards, so that they start again, and return the ids of these shards.

        More than 32 shards are unassigned in several transactions.

        Args:
            shard_ids: ids of the shards; unknown ones are left out.
            only_failed: leave alone shards that have not failed.
            dry_run: change nothing.

        Raises:
            ShardTransactionFailedError: an assignment has changed in the meantime. Nothing of its transaction
                was done.
        """
        unassigned: list[str] = []
        for begin in range(0, len(shard_ids), UNASSIGNED_AT_ONCE):
            batch = shard_ids[begin : begin + UNASSIGNED_AT_ONCE]
            request = pc.UnassignRequest(shards=batch, only_failed=only_failed, dry_run=dry_run)
            validate_unassign_request(request)
            unassigned += self._retrying(partial(_unassign, request), decide=retry.after_apply)
        return unassigned

    def _retrying(
        self,
        call: Callable[[Connection, float], T],
        *,
        dial: Callable[[], Connection] | None = None,
        decide: retry.Decide = retry.after_call,
        timeout_s: float | None = None,
    ) -> T:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        retry.check_seconds("timeout_s", limit_s)
        refusal: GazetteError | None = None

        def attempt(remaining_s: float) -> T:
            nonlocal refusal
            try:
                return call(dial() if dial is not None else self._dialer.default, remaining_s)
            except GazetteError as error:
                # The last attempt has little time. The error of an earlier attempt is more useful, if nothing
                # was changed.
                if refusal is not None and is_no_answer(error) and decide is retry.after_call:
                    raise refusal from None
                refusal = error
                raise

        return retry.retrying(
            attempt,
            decide,
            timeout_s=limit_s,
            patience_s=lambda: self._dialer.default.patience_s(limit_s),
        )


def _unassign(request: pc.UnassignRequest, connection: Connection, remaining_s: float) -> list[str]:
    claims = Claims(Capability.APPLY, pb.LabelSelector(include=label_set({ID: request.shards})))
    with connection.errors():
        response = connection.stub(pc_grpc.ShardStub).Unassign(
            request, timeout=remaining_s, metadata=connection.metadata(claims, APPLY_LIFETIME_S)
        )
    _check(response.status, _names(request.shards))
    return list(response.shards)


def _names(shard_ids: Sequence[str]) -> str:
    names = ", ".join(shard_ids[:3])
    return names if len(shard_ids) <= 3 else f"{names}, …"


def _check(status: int, shard: str) -> None:
    """Raise unless the status is OK."""
    if status == pc.OK:
        return
    if status not in pc.Status.values():
        raise ProtocolError(f"shard {shard!r}", f"the consumer answered with unknown status {status}")
    raise _CLASSES[pc.Status.Name(pc.Status.ValueType(status))](shard)


def verify_referenced_journals(client: Client, changes: Iterable[pc.ApplyRequest.Change]) -> None:
    """Check the journals that shards read, and the journals of their recovery logs.

    Args:
        client: client of the brokers.
        changes: changes of shards. Deletions refer to no journals.

    Raises:
        JournalNotFoundError: a journal does not exist.
        ProtocolError: a source's content type has no framing, or a recovery log does not have the content
            type of recovery logs.
    """
    types: dict[str, str] = {}

    def content_type(journal: str) -> str:
        # Many shards read the same journals.
        if journal not in types:
            types[journal] = "".join(values_of(client.get_journal(journal).spec.labels, CONTENT_TYPE))
        return types[journal]

    for spec in (change.upsert for change in changes if not change.delete):
        for source in spec.sources:
            try:
                framing_by_content_type(content_type(source.journal), source.journal)
            except MessageError as error:
                raise ProtocolError(f"Shard[{spec.id}].Sources[{source.journal}]", str(error)) from None
        log = recovery_log(spec)
        if log and (log_type := content_type(log)) != CONTENT_TYPE_RECOVERY_LOG:
            problem = (
                f"expected {log} to have {CONTENT_TYPE} {CONTENT_TYPE_RECOVERY_LOG} but was {log_type!r}"
            )
            raise ProtocolError(f"Shard[{spec.id}]", problem)
