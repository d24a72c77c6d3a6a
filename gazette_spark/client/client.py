"""Provides the client of brokers, one object for everything that a program does with journals.

It retries temporary failures (:mod:`gazette_spark.client._transport.retry`) and gives up at a deadline: a
call takes at most ``timeout_s``. It has few connections: one for all calls except reads, and one per open
reader.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NoReturn, Self, TypeVar, Unpack

from gazette_spark.client import environment
from gazette_spark.client._append.append import (
    Appender,
    AppendKeywords,
    AppendOptions,
    AppendResult,
    Bytes,
    Content,
    Piece,
    append_options,
)
from gazette_spark.client._list import listing
from gazette_spark.client._list.apply import CHANGES_PER_APPLY, apply_changes, apply_in_batches, conflict
from gazette_spark.client._list.listing import FragmentsOptions, ListedFragment, Listing, StoreHealth
from gazette_spark.client._read import heads
from gazette_spark.client._read.fragment import FetchLimit, FragmentReader
from gazette_spark.client._read.fragment_urls import FragmentOpener
from gazette_spark.client._read.gaps import FragmentGap, find_gaps
from gazette_spark.client._read.heads import SettledHead, settle_head
from gazette_spark.client._read.reader import Reader, RetryReader
from gazette_spark.client._read.stream import ReadOptions, ReadStream
from gazette_spark.client._transport import retry
from gazette_spark.client._transport.channel import Connection
from gazette_spark.client._transport.credentials import Credentials, TlsOptions
from gazette_spark.client._transport.routes import RouteCache, check_ttl, open_dialer
from gazette_spark.client.metrics import ClientMetrics
from gazette_spark.closing import Closing
from gazette_spark.errors import (
    EtcdTransactionFailedError,
    GazetteError,
    PartialApplyError,
    StatusError,
    SuspendedError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import validate_journal_name
from gazette_spark.protocol.labels import NAME, label_set
from gazette_spark.protocol.requests import validate_changes
from gazette_spark.protocol.tokens import KeySet

T = TypeVar("T")

MEMBER_TIMEOUT_S = 5.0
"""Seconds that another member may take to answer. A hanging one is about to lose its lease."""

SETTLED_AT_ONCE = 16
"""Maximum number of journals whose write heads are confirmed concurrently."""


class Client(Closing):
    """Calls one broker, which proxies calls to the others, or each journal's own brokers. Thread-safe.

    Its readers and appenders are for one thread each. A client belongs to the process that made it: it
    cannot be pickled, and does not survive a fork.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout_s: float = 60.0,
        idle_timeout_s: float = 30.0,
        connect_timeout_s: float = 10.0,
        fragment_root: str | None = None,
        fragment_hosts: Iterable[str] = (),
        token: str | Callable[[], str] | None = None,
        token_file: str | None = None,
        auth_keys: str | KeySet | None = None,
        tls: TlsOptions | None = None,
        route_cache_size: int = 0,
        route_cache_ttl_s: float = 60.0,
        zone: str = "",
    ) -> None:
        """Make a client; no connection is made yet.

        Args:
            endpoint: URL of a broker: ``http://host:port``, ``https://host:port`` or ``unix://localhost/path``.
                Several are separated by commas; the client uses one until it cannot be reached.
            timeout_s: Seconds that a call may take, or that a reader may wait for its next byte.
            idle_timeout_s: Seconds after which a silent stream is opened again.
            connect_timeout_s: Seconds to reach a broker for the first time.
            fragment_root: Directory with the journals' ``file://`` stores, if this host has it.
            fragment_hosts: ``host`` or ``host:port`` of stores whose fragments are fetched over ``http://``,
                or at private addresses although the broker's is public. Other ``https://`` stores need no
                entry.
            token: Token to send with each call, which cannot be renewed, or a function that returns the
                current token. Any thread calls the function, for each request, which raises the function's
                errors without a retry.
            token_file: File with the token to send, read again when it changes. It overrides ``token``, which
                is sent while the file cannot be read.
            auth_keys: Keys shared with the brokers, as in ``BROKER_AUTH_KEYS``: each call gets a separate
                token, signed with the first key. They override both tokens.
            tls: Certificates for an ``https://`` endpoint; by default the public authorities are trusted.
                Files are read again when they change.
            route_cache_size: Number of journals whose brokers are remembered and called directly, which saves
                a hop: appends go to the primary, reads to a member of the journal's route, and stored
                fragments are fetched from their URLs. With 0, the broker of ``endpoint`` proxies all calls,
                except those that request a journal's end from the members themselves.
            route_cache_ttl_s: Seconds that a journal's brokers are remembered.
            zone: Zone of this process; members in the same zone are preferred for reads.

        Raises:
            OptionError: an argument is not as described. Secrets are not shown.
        """
        for name, value in (
            ("timeout_s", timeout_s),
            ("idle_timeout_s", idle_timeout_s),
            ("connect_timeout_s", connect_timeout_s),
        ):
            retry.check_seconds(name, value)
        self.endpoint = endpoint
        self.fragment_root = fragment_root
        self._timeout_s = timeout_s
        self._idle_timeout_s = idle_timeout_s
        credentials = Credentials.given(token, token_file, auth_keys)
        check_ttl(route_cache_ttl_s)
        # Do not connect yet: a client may be made where its brokers cannot be reached, and before a fork.
        self._dialer = open_dialer(
            endpoint,
            connect_timeout_s=connect_timeout_s,
            credentials=credentials,
            tls=tls,
            cache=RouteCache(route_cache_size, route_cache_ttl_s) if route_cache_size != 0 else None,
            zone=zone,
        )
        self.metrics = ClientMetrics()
        """Counters of what this client has read and appended."""
        self._opener = FragmentOpener(
            fragment_root,
            frozenset(fragment_hosts),
            broker=self._dialer.default.endpoint.host,
            http=self._dialer.default.http,
            metrics=self.metrics,
        )

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Self:
        """Return the client that environment variables describe, those that ``gazctl`` reads.

        ``BROKER_ADDRESS`` (by default ``http://localhost:8080``), ``BROKER_AUTH_KEYS``,
        ``BROKER_AUTH_TOKEN``, ``BROKER_TRUSTED_CA_FILE``, ``BROKER_CERT_FILE``, ``BROKER_CERT_KEY_FILE``,
        ``BROKER_CACHE_SIZE``, ``BROKER_CACHE_TTL`` and ``ZONE``; and ``BROKER_AUTH_TOKEN_FILE``, which
        ``gazctl`` does not read. An empty variable counts as unset.

        Raises:
            OptionError: a variable is invalid. The error names it.
        """
        with environment.errors():
            return cls(**environment.arguments(env))

    def __repr__(self) -> str:
        return f"Client({self.endpoint!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Client cannot be pickled: make one in each process, from the same endpoint")

    def close(self) -> None:
        """Close all connections. Calls and readers in progress fail."""
        self._dialer.close()

    @property
    def timeout_s(self) -> float:
        """Seconds that a call may take."""
        return self._timeout_s

    def list_journals(
        self, selector: str | pb.LabelSelector = "", *, limit: int = 0
    ) -> list[pb.ListResponse.Journal]:
        """Return the journals that match a selector, ascending by name; ``""`` matches all.

        A ``limit`` other than 0 ends the listing after the broker's page that reaches this number of
        journals.
        """
        return list(self._list(selector, limit).journals)

    def list_all_journals(self, selector: str | pb.LabelSelector = "") -> Listing:
        """Return the journals that match a selector, with the revision of the listing."""
        return self._list(selector, 0)

    def _list(self, selector: str | pb.LabelSelector, limit: int) -> Listing:
        return self._retrying(
            lambda connection, left_s: listing.list_journals(
                connection, selector, timeout_s=left_s, limit=limit
            )
        )

    def get_journal(self, name: str) -> pb.ListResponse.Journal:
        """Return one journal.

        Raises:
            JournalNotFoundError: the journal does not exist, or the token does not cover it.
        """
        return self._retrying(
            lambda connection, left_s: listing.get_journal(connection, name, timeout_s=left_s)
        )

    def apply(self, changes: Sequence[pb.ApplyRequest.Change]) -> int:
        """Apply all changes in one transaction, and return its revision.

        A transaction that was sent is never retried: the outcome is unknown after an UnavailableError.

        Raises:
            EtcdTransactionFailedError: a spec has another revision than expected; nothing was applied.
            ProtocolError: a change is invalid for brokers, or there are more changes than Etcd allows in one
                transaction.
        """
        validate_changes(changes)
        try:
            return self._retrying(
                lambda connection, left_s: apply_changes(connection, changes, timeout_s=left_s),
                decide=retry.after_apply,
            )
        except EtcdTransactionFailedError as error:
            # Brokers report that a revision is not as expected, but not for which journal, so look it up.
            try:
                journals = self.journals_named(change.upsert.name or change.delete for change in changes)
            except GazetteError:
                raise error from None  # The token may not allow listings.
            problems = {}
            for change in changes:
                name = change.upsert.name or change.delete
                if problem := conflict(
                    change.expect_mod_revision, journals.get(name), delete=bool(change.delete)
                ):
                    problems[name] = problem
            if not problems:
                raise
            (name, problem), *more = problems.items()
            also = f"; {len(more)} more of {len(changes)} changes conflict" if more else ""
            raise EtcdTransactionFailedError(name, f"{problem}{also}") from None

    def journals_named(self, names: Iterable[str]) -> dict[str, pb.ListResponse.Journal]:
        """Return by name those of the journals that exist."""
        include = label_set({NAME: names})
        listed = self.list_journals(pb.LabelSelector(include=include)) if include.labels else []
        return {journal.spec.name: journal for journal in listed}

    def apply_in_batches(
        self, changes: Sequence[pb.ApplyRequest.Change], size: int = CHANGES_PER_APPLY
    ) -> int:
        """Apply changes in order, in transactions of ``size``, and return the last revision.

        Each transaction may take the client's timeout. A ``size`` of 0 means one transaction, which Etcd by
        default refuses above 128 changes.

        Raises:
            PartialApplyError: a transaction failed after others were applied. The error has their number.
            GazetteError: nothing was applied. See :meth:`apply`.
        """
        validate_changes(changes)
        return apply_in_batches(changes, size, self.apply)

    def store_health(self, store: str, *, check_delete_prefix: str | None = None) -> StoreHealth:
        """Let the broker test a fragment store: write, read, list and sign.

        Args:
            store: URL of the store, such as ``s3://bucket/prefix/``.
            check_delete_prefix: Also test deletion, below this path of the store, which ends in ``/``; ``""``
                is the store's top.
        """
        return self._retrying(
            lambda connection, left_s: listing.check_store(
                connection, store, check_delete_prefix, timeout_s=left_s
            )
        )

    def create_journals(self, *specs: pb.JournalSpec, exist_ok: bool = False) -> int:
        """Create journals, wait until each accepts appends, and return the last revision.

        More than a hundred journals are created in several transactions.

        Args:
            specs: Specs of the journals.
            exist_ok: Ignore journals that already exist, regardless of their specs.

        Returns:
            The revision; 0 if all journals already exist.

        Raises:
            EtcdTransactionFailedError: a journal already exists.
            PartialApplyError: a journal of a later transaction already exists.
        """
        # Apply has no "create if missing". Creating what a listing lacks, and looking again after a conflict,
        # has the same effect.
        existing = self.journals_named(spec.name for spec in specs) if exist_ok else {}
        missing = remaining = [spec for spec in specs if spec.name not in existing]
        attempt = 0
        while True:
            try:
                revision = self.apply_in_batches([pb.ApplyRequest.Change(upsert=spec) for spec in remaining])
                break
            except (EtcdTransactionFailedError, PartialApplyError):
                # Another client was faster, and the broker may hear of its journals a moment later.
                existing = self.journals_named(spec.name for spec in remaining) if exist_ok else {}
                if not existing:
                    if not exist_ok or attempt == retry.NOT_FOUND_TRIES:
                        raise
                    time.sleep(retry.backoff_s(attempt))
                    attempt += 1
                remaining = [spec for spec in remaining if spec.name not in existing]
        # A broker answers an apply before it has assigned the journals. An append without bytes waits until
        # each has a primary, so that the caller's first append need not wait.
        for spec in missing:
            self._append(AppendOptions(spec.name), Content(b""), self._timeout_s, retry.after_create)
        return revision

    def write_head(self, journal: str) -> int:
        """Return the offset of the journal's next append, also for a fully suspended journal."""
        return self._write_head(journal)

    @property
    def _question_s(self) -> float:
        """Seconds of one attempt of a request. A hanging broker must leave time to call another."""
        return min(self._timeout_s, self._idle_timeout_s)

    def _write_head(
        self,
        journal: str,
        headers: dict[str, pb.Header] | None = None,
        refusals: Mapping[str, StatusError] | None = None,
    ) -> int:
        validate_journal_name(journal, allow_meta=True)

        def ask(connection: Connection, left_s: float) -> int:
            timeout_s = min(left_s, self._idle_timeout_s)
            request = heads.head_request(journal)
            return heads.HeadCall(connection, request, timeout_s=timeout_s, headers=headers).take()

        # A caller with other journals must not wait long for one without brokers, nor for each of many.
        is_late = any(refusal.retryable for refusal in (refusals or {}).values())
        tries = 1 if is_late else retry.UNKNOWN_TRIES

        def decide(cause: GazetteError, attempt: int) -> float | None:
            if refusals is not None and isinstance(cause, StatusError) and attempt + 1 >= tries:
                return None
            return retry.after_read(cause, attempt, waits=False)

        try:
            return self._retrying(ask, dial=partial(self._dialer.for_member, journal), decide=decide)
        except SuspendedError:
            # No broker has a fully suspended journal. Its spec has the offset at which it will continue.
            return self.get_journal(journal.partition(";")[0]).spec.suspend.offset

    def write_heads(
        self, journals: Iterable[str], *, refusals: dict[str, StatusError] | None = None
    ) -> dict[str, int]:
        """Return the write head of each journal, with concurrent requests.

        Args:
            journals: Names of the journals.
            refusals: Receives, by journal, the status that brokers return instead of a head, for example for
                a deleted journal. The other heads are returned. By default, the first refusal is raised.
        """
        return self._write_heads(journals, None, refusals)

    def _write_heads(
        self,
        journals: Iterable[str],
        headers: dict[str, pb.Header] | None,
        refusals: dict[str, StatusError] | None,
    ) -> dict[str, int]:
        journals = list(journals)  # The check would exhaust an iterator.
        for journal in journals:
            validate_journal_name(journal, allow_meta=True)
        return heads.write_heads(
            self._dialer.for_member,
            journals,
            partial(self._write_head, headers=headers, refusals=refusals),
            timeout_s=self._question_s,
            headers=headers,
            refusals=refusals,
        )

    def highest_heads(
        self, journals: Iterable[str], *, refusals: dict[str, StatusError] | None = None
    ) -> dict[str, int]:
        """Return the highest write head that any member of each journal reports.

        A member that joined after a failover reports a head that is too low. It may be the primary, or the
        primary may be the broker that failed. So each member is called, and the highest head counts. Members
        that do not answer are ignored. Arguments are those of :meth:`write_heads`.
        """
        headers: dict[str, pb.Header] = {}
        highest = self._write_heads(journals, headers, refusals)
        # The other members are called in rounds: the first other member of each journal, then the second.
        for turn in range(max((len(header.route.members) - 1 for header in headers.values()), default=0)):
            other_members: dict[str, Connection] = {}
            for name, header in headers.items():
                members = header.route.members
                # The broker that answered is not in its own route, so the route is changing. Use the head
                # that it reported.
                if name not in highest or header.process_id not in members:
                    continue
                rest = [at for at, member in enumerate(members) if member != header.process_id]
                connection = self._dialer.to_member(header.route, rest[turn]) if turn < len(rest) else None
                if connection is not None:
                    other_members[name] = connection
            other_heads = heads.write_heads(
                other_members.__getitem__,
                other_members,
                highest.__getitem__,
                # A member that does not answer is ignored, so it must not use up the time of a batch.
                timeout_s=min(self._question_s, MEMBER_TIMEOUT_S),
                request=lambda name: heads.head_request(name, headers[name]),
            )
            highest |= {name: max(highest[name], head) for name, head in other_heads.items()}
        return highest

    def settled_heads(self, reached: Mapping[str, int]) -> dict[str, SettledHead]:
        """Return the write head of each journal, confirmed if it is below an offset that was already read.

        After a failover a member may report a head that is too low: see
        :mod:`gazette_spark.client._read.heads`. Such a journal takes at most the client's timeout.

        Args:
            reached: Offset by journal up to which it was read.
        """
        # Most heads are high enough, and requesting them is one cheap call each. Only the others cost more.
        settled = {name: SettledHead(head) for name, head in self.write_heads(list(reached)).items()}
        behind = [name for name, head in settled.items() if head.write_head < reached[name]]
        if behind:
            # Each journal may take the whole timeout, so they are not confirmed one after the other.
            with ThreadPoolExecutor(min(SETTLED_AT_ONCE, len(behind)), "gazette-settle") as pool:
                answers = pool.map(lambda name: self._settled_head(name, reached[name]), behind)
                settled |= zip(behind, answers, strict=True)
        return settled

    def _settled_head(self, journal: str, reached: int) -> SettledHead:
        return settle_head(
            reached,
            lambda: self.highest_heads([journal])[journal],
            # A broker that has proxied the append to a hanging one never answers, so leave time for a retry.
            lambda left_s: self._append_nothing(journal, min(left_s, self._idle_timeout_s)),
            timeout_s=self._timeout_s,
        )

    def _append_nothing(self, journal: str, timeout_s: float) -> int:
        """Append no bytes, which makes the journal's replicas agree on its write head, and return that."""
        # The name must not have a metadata path, because a broker that proxies such an append crashes.
        # NO_RESUME, not KEEP, leaves a suspension unchanged: brokers up to 0.103 refuse KEEP as invalid.
        barrier = AppendOptions(journal.partition(";")[0], suspend=pb.AppendRequest.SUSPEND_NO_RESUME)
        try:
            return self._append(barrier, Content(b""), timeout_s, retry.once).end
        except SuspendedError:
            return self.get_journal(barrier.journal).spec.suspend.offset

    def tails(self, offsets: Mapping[str, int], max_bytes: int) -> dict[str, heads.Tail]:
        """Return the write head of each journal, and the bytes from an offset up to it.

        Args:
            offsets: Offset by journal of the first byte to return.
            max_bytes: Maximum number of bytes of a journal.
        """
        for journal in offsets:
            validate_journal_name(journal, allow_meta=True)
        dial, timeout_s = self._dialer.for_member, self._question_s

        def again(journal: str) -> heads.Tail:
            # The bytes are left out. A reader requests them if they are needed.
            return heads.Tail(self.write_head(journal))

        return heads.tails(dial, offsets, again, max_bytes=max_bytes, timeout_s=timeout_s)

    def first_offset(self, journal: str) -> int:
        """Return the smallest offset that can be read; the write head of an empty journal."""
        if (first := self.offset_since(journal, 0)) is not None:
            return first
        # An empty journal begins at its head, because the next append is the first that can be read. Brokers
        # report a head of 0 if all fragments were deleted and the spool is empty. Only an append shows it.
        if (head := self.write_head(journal)) == 0:
            with suppress(GazetteError):  # This client may not append, or no broker accepts appends.
                head = self._append_nothing(journal, min(self._question_s, MEMBER_TIMEOUT_S))
        # Bytes may have been appended before this head since the fragments were listed.
        first = self.offset_since(journal, 0) if head else None
        return head if first is None else min(first, head)

    def offset_since(self, journal: str, mod_time: int) -> int | None:
        """Return the begin of the first fragment that was stored at a time or later, or is not stored yet.

        Args:
            journal: Name of the journal.
            mod_time: Unix seconds.

        Returns:
            None if there is no such fragment, as in a fully suspended journal.
        """
        options = FragmentsOptions(journal, begin_mod_time=mod_time)
        headers: dict[str, pb.Header] = {}

        def begins(connection: Connection, left_s: float) -> list[int]:
            listed = listing.list_fragments(connection, options, timeout_s=left_s, limit=1, headers=headers)
            return [entry.fragment.begin for entry in listed]

        try:
            found = self._retrying(
                begins,
                dial=partial(self._dialer.for_member, journal),
                decide=partial(retry.after_read, waits=False),
            )
        except SuspendedError:
            return None
        # A member that has just joined lists only what is stored and what was appended since. So all members
        # are asked, unless the first bytes of the journal are listed. Those that do not answer are ignored.
        if found != [0] and journal in headers:
            header = headers[journal]
            for at, member in enumerate(header.route.members):
                connection = self._dialer.to_member(header.route, at) if member != header.process_id else None
                if connection is not None:
                    with suppress(GazetteError):
                        found += begins(connection, min(self._question_s, MEMBER_TIMEOUT_S))
        return min(found, default=None)

    def list_fragments(
        self,
        journal: str,
        *,
        begin_mod_time: int = 0,
        end_mod_time: int = 0,
        signature_ttl_s: float | None = None,
        page_token: int = 0,
        page_limit: int = 0,
    ) -> list[ListedFragment]:
        """Return a journal's fragments from all pages, ascending by begin. Neighbours may overlap.

        Args:
            journal: Name of the journal.
            begin_mod_time: Omit fragments that were stored before this time, in Unix seconds.
            end_mod_time: Omit fragments that were stored later or are not stored yet; 0 omits none.
            signature_ttl_s: Request URLs that are valid for this number of seconds.
            page_token: Omit fragments that begin before this offset.
            page_limit: Number of fragments per page, up to 10,000; 0 for the broker's default of 1,000.
        """
        options = FragmentsOptions(
            journal, begin_mod_time, end_mod_time, signature_ttl_s, page_token, page_limit
        )
        return self._retrying(
            lambda connection, left_s: listing.list_fragments(connection, options, timeout_s=left_s),
            dial=partial(self._dialer.for_member, journal),
        )

    def gaps(self, journal: str, *, begin: int | None = None, end: int | None = None) -> list[FragmentGap]:
        """Return the bytes of a journal that no fragment contains any longer, ascending.

        Args:
            journal: Name of the journal.
            begin: First offset of the range; by default the first available byte, so that bytes deleted by
                retention are not a gap.
            end: End of the range; by default the write head.

        Raises:
            OffsetError: begin and end are not a range up to the write head.
        """
        return find_gaps(self, journal, begin, end)

    def append(
        self,
        journal: str | AppendOptions,
        content: Piece | Iterable[Piece],
        *,
        timeout_s: float | None = None,
        **keywords: Unpack[AppendKeywords],
    ) -> AppendResult:
        """Append bytes as one transaction. An append without bytes is a write barrier.

        It is retried while the journal has no primary, and after a broken connection, in which case the bytes
        may be in the journal twice. An iterator or a pipe, which cannot restart, is retried until its first
        bytes are read. An append that suspends the journal raises a SuspendedError when it succeeds.

        Args:
            journal: Name of the journal, or complete options, which the keywords override.
            content: Bytes, a file, or pieces of both kinds; a file is read from its first byte.
            offset: The required write head; 0 for any.
            check_registers: Selector that the journal's registers must match.
            union_registers: Registers to set.
            subtract_registers: Registers to remove.
            suspend: Change of the journal's suspension, one of ``pb.AppendRequest.SUSPEND_*``.
            min_etcd_revision: The broker waits until it has reached this revision.
            do_not_proxy: Use only the called broker, even if it is not the primary.
            timeout_s: Seconds for all attempts, by default the client's.

        Raises:
            WrongAppendOffsetError: ``offset`` is not the write head. If the error's ``detail`` names an
                earlier attempt without an answer, that attempt may have appended the bytes.
            RegisterMismatchError: the registers do not match, with the same reservation.
        """
        options = append_options(journal, **keywords)
        return self._append(options, Content(content), self._limit_s(timeout_s), retry.after_call)

    def appender(
        self,
        journal: str | AppendOptions,
        *,
        timeout_s: float | None = None,
        **keywords: Unpack[AppendKeywords],
    ) -> Appender:
        """Return an append to write to in pieces, without retries. Arguments are those of :meth:`append`."""
        options = append_options(journal, **keywords)
        connection = self._dialer.for_primary(options.journal)
        return Appender(connection, options, timeout_s=self._limit_s(timeout_s), metrics=self.metrics)

    def try_append(
        self,
        options: AppendOptions,
        content: Iterable[Bytes],
        *,
        timeout_s: float,
        on_start: Callable[[Appender], object] | None = None,
    ) -> AppendResult:
        """Append without a retry. :meth:`append` and AppendService use this.

        ``on_start`` receives the appender before its call begins, so that another thread can abort it.
        """
        connection = self._dialer.for_primary(options.journal)
        with Appender(connection, options, timeout_s=timeout_s, metrics=self.metrics) as appender:
            if on_start is not None:
                on_start(appender)
            for piece in content:
                appender.write(piece)
            return appender.commit_append()

    def read(
        self,
        journal: str,
        *,
        offset: int = 0,
        end_offset: int = 0,
        block: bool = False,
        do_not_proxy: bool = False,
        begin_mod_time: int = 0,
        timeout_s: float | None = None,
    ) -> RetryReader:
        """Return a reader of ``[offset, end_offset)``, without sending a request.

        Args:
            journal: Name of the journal.
            offset: Offset of the first byte; -1 for the write head.
            end_offset: Offset after the last byte; 0 for no end. The reader waits for bytes up to the end.
            block: Wait for more bytes at the write head.
            do_not_proxy: Prefer to fetch stored fragments from their URLs. This is the default for ``file://``
                if the client has a fragment root, and for HTTP after the first URL.
            begin_mod_time: Omit fragments that were stored before this time, in Unix seconds.
            timeout_s: Seconds without a byte after which the reader gives up, by default the client's.
        """
        # A client that knows routes calls a member itself. So a broker that would have to proxy refuses
        # instead, and names the members. Gazette's client does the same.
        do_not_proxy = do_not_proxy or self._dialer.follows_routes
        return RetryReader(
            self._dialer.default,
            ReadOptions(journal, offset, end_offset, block, do_not_proxy, begin_mod_time),
            open_stream=self._open_read,
            open_member=self._open_member,
            timeout_s=self._limit_s(timeout_s),
            idle_timeout_s=self._idle_timeout_s,
            opener=self._opener,
        )

    @property
    def default_connection(self) -> Connection:
        """The connection to a broker of ``endpoint``, for other modules of this package."""
        return self._dialer.default

    @property
    def idle_timeout_s(self) -> float:
        """Seconds after which a silent stream is opened again."""
        return self._idle_timeout_s

    def reader(
        self,
        journal: str,
        *,
        offset: int = 0,
        end_offset: int = 0,
        block: bool = False,
        do_not_proxy: bool = False,
        begin_mod_time: int = 0,
        timeout_s: float | None = None,
    ) -> Reader:
        """Return a reader that makes one Read call of at most ``timeout_s``, without retries.

        Arguments are those of :meth:`read`. The next bytes of a fetched fragment may take as long again.
        """
        limit_s = self._limit_s(timeout_s)
        do_not_proxy = do_not_proxy or self._dialer.follows_routes
        return Reader(
            ReadOptions(journal, offset, end_offset, block, do_not_proxy, begin_mod_time),
            lambda request: self._open_read(request, limit_s),
            self._opener,
            fetch_timeout_s=lambda: limit_s,
        )

    def open_fragment(self, listed: ListedFragment, offset: int | None = None) -> FragmentReader:
        """Return a reader of a fragment that was listed with its URL. The caller closes it.

        Its next bytes may take the client's ``timeout_s``.

        Args:
            listed: Fragment from :meth:`list_fragments` with a ``signature_ttl_s``.
            offset: Offset of the first byte to return; by default the fragment's begin.

        Raises:
            ProtocolError: the URL is missing, or invalid for a fragment.
            DirectReadError: this client does not open such URLs, or opening failed.
        """
        limit = FetchLimit(lambda: self._timeout_s)
        return self._opener.open(listed.fragment, listed.signed_url, offset, limit=limit)

    def _limit_s(self, timeout_s: float | None) -> float:
        if timeout_s is None:
            return self._timeout_s
        retry.check_seconds("timeout_s", timeout_s)
        return timeout_s

    def _open_read(self, request: pb.ReadRequest, timeout_s: float) -> ReadStream:
        return ReadStream(self._dialer.for_member(request.journal), request, timeout_s)

    def _open_member(
        self, header: pb.Header, member: int, request: pb.ReadRequest, timeout_s: float
    ) -> ReadStream | None:
        """Begin a read at a member of the header's route; None if this client cannot call it."""
        connection = self._dialer.to_member(header.route, member)
        if connection is None:
            return None
        # Otherwise a member that is behind Etcd would answer for an outdated route.
        request.min_etcd_revision = header.etcd.revision
        return ReadStream(connection, request, timeout_s)

    def _append(
        self, options: AppendOptions, content: Content, timeout_s: float, decide: retry.Decide
    ) -> AppendResult:
        """Append until an attempt succeeds, ``decide`` gives up, or the time is over.

        A failed attempt means:

        - with a status such as NO_JOURNAL_PRIMARY_BROKER: nothing was appended, and an attempt at another
          broker, or a later one, may succeed;
        - without an answer: the broker may have committed. Then the retry appends the bytes a second time,
          unless ``options`` requires an offset or registers that no longer match.
        """
        is_unknown = False

        def once(_: Connection, left_s: float) -> AppendResult:
            nonlocal is_unknown
            try:
                return self.try_append(options, content, timeout_s=left_s)
            except GazetteError as error:
                if is_unknown:
                    retry.after_lost_answer(error)
                is_unknown = is_unknown or retry.may_be_done(error)
                raise

        def decide_unless_spent(cause: GazetteError, attempt: int) -> float | None:
            # A retry would append only the rest of an iterator, without its first bytes.
            return None if content.spent else decide(cause, attempt)

        return self._retrying(once, decide=decide_unless_spent, timeout_s=timeout_s)

    def _retrying(
        self,
        call: Callable[[Connection, float], T],
        *,
        dial: Callable[[], Connection] | None = None,
        decide: retry.Decide = retry.after_call,
        timeout_s: float | None = None,
    ) -> T:
        """Call with the connection that ``dial`` returns for each attempt, or the default broker's."""
        limit_s = self._limit_s(timeout_s)
        return retry.retrying(
            # Choose again for each attempt: the failure may have changed the route, or the default.
            lambda left_s: call(dial() if dial is not None else self._dialer.default, left_s),
            decide,
            timeout_s=limit_s,
            patience_s=lambda: self._dialer.default.patience_s(limit_s),
        )
