"""A broker's client: one object for everything a program does with journals.

It retries passing failures (:mod:`gazette_spark.client._transport.retry`) and gives up at a deadline: a call
takes at most ``timeout_s``. It has few connections: one for all calls but reads, and one per open reader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    OptionError,
    PartialApplyError,
    SuspendedError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import validate_journal_name
from gazette_spark.protocol.labels import NAME, label_set
from gazette_spark.protocol.requests import validate_changes
from gazette_spark.protocol.tokens import KeySet

T = TypeVar("T")

MEMBER_TIMEOUT_S = 5.0
"""Seconds that another member has for its write head: one that hangs is about to lose its lease."""

SETTLED_AT_ONCE = 16
"""Journals whose write heads are confirmed at the same time."""


class Client(Closing):
    """Calls one broker, which passes calls on to the others, or each journal's own. Thread-safe.

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
        token: str | None = None,
        token_file: str | None = None,
        auth_keys: str | KeySet | None = None,
        tls: TlsOptions | None = None,
        route_cache_size: int = 0,
        route_cache_ttl_s: float = 60.0,
        zone: str = "",
    ) -> None:
        """Make a client; no connection is made yet.

        Args:
            endpoint: the broker, ``http://host:port``, ``https://host:port`` or ``unix://localhost/path``. Of
                several, separated by commas, the client uses one until it cannot be reached.
            timeout_s: seconds a call may take; a reader, to get its next byte.
            idle_timeout_s: seconds after which a silent stream is opened again.
            connect_timeout_s: seconds to reach a broker that has never been reached.
            fragment_root: folder behind the journals' ``file://`` stores, if this host has it.
            fragment_hosts: ``host`` or ``host:port`` of stores whose fragments are fetched by ``http://``, or
                at private addresses although the broker's is public. Other ``https://`` stores need no entry.
            token: sent with each call; cannot be renewed.
            token_file: file of the token to send, read again when it changes. It wins over ``token``, which
                is sent while the file cannot be read.
            auth_keys: keys shared with the brokers, as in ``BROKER_AUTH_KEYS``: each call gets a separate
                token, signed with the first. They win over both.
            tls: certificates of an ``https://`` endpoint; by default the public authorities are trusted.
                Files are read again when they change.
            route_cache_size: journals whose brokers are remembered and called directly, which saves a hop:
                appends go to the primary, reads to a member of the journal's route, and stored fragments
                are fetched by their URLs. 0: the broker of ``endpoint`` passes all calls on, except for those
                that ask the members themselves where a journal ends.
            route_cache_ttl_s: seconds that a journal's brokers are remembered.
            zone: where this process runs; members of the same zone are read from first.

        Raises:
            OptionError: an argument is not as described. Secrets are not shown.
        """
        for name, value in (
            ("timeout_s", timeout_s),
            ("idle_timeout_s", idle_timeout_s),
            ("connect_timeout_s", connect_timeout_s),
        ):
            _check_seconds(name, value)
        self.endpoint = endpoint
        self.fragment_root = fragment_root
        self._timeout_s = timeout_s
        self._idle_timeout_s = idle_timeout_s
        credentials = Credentials.given(token, token_file, auth_keys)
        check_ttl(route_cache_ttl_s)
        self._dialer = open_dialer(
            endpoint,
            connect_timeout_s=connect_timeout_s,
            credentials=credentials,
            tls=tls,
            cache=RouteCache(route_cache_size, route_cache_ttl_s) if route_cache_size != 0 else None,
            zone=zone,
        )
        self.metrics = ClientMetrics()
        """What this client has read and appended so far."""
        self._opener = FragmentOpener(
            fragment_root,
            frozenset(fragment_hosts),
            broker=self._dialer.default.endpoint.host,
            http=self._dialer.default.http,
            metrics=self.metrics,
        )

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Self:
        """Return the client that the environment describes, in the variables that ``gazctl`` reads.

        ``BROKER_ADDRESS`` (by default ``http://localhost:8080``), ``BROKER_AUTH_KEYS``,
        ``BROKER_AUTH_TOKEN``, ``BROKER_TRUSTED_CA_FILE``, ``BROKER_CERT_FILE``, ``BROKER_CERT_KEY_FILE``,
        ``BROKER_CACHE_SIZE``, ``BROKER_CACHE_TTL`` and ``ZONE``; and ``BROKER_AUTH_TOKEN_FILE``, which
        ``gazctl`` does not know. An empty variable counts as unset.

        Raises:
            OptionError: names the variable.
        """
        with environment.errors():
            return cls(**environment.arguments(env))

    def __repr__(self) -> str:
        return f"Client({self.endpoint!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Client cannot be pickled: make one in each process, from the same endpoint")

    def close(self) -> None:
        """Close all connections; calls and readers under way fail."""
        self._dialer.close()

    @property
    def timeout_s(self) -> float:
        """Seconds a call may take."""
        return self._timeout_s

    def list_journals(
        self, selector: str | pb.LabelSelector = "", *, limit: int = 0
    ) -> list[pb.ListResponse.Journal]:
        """Return the journals a selector matches, ascending by name; ``""`` matches all.

        A ``limit`` other than 0 leaves out the broker's pages after the one that reaches so many journals.
        """
        return list(self._list(selector, limit).journals)

    def list_all_journals(self, selector: str | pb.LabelSelector = "") -> Listing:
        """Return the journals a selector matches, with the revision at which it did."""
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

        Never retried once sent: the outcome is unknown after an UnavailableError.

        Raises:
            EtcdTransactionFailedError: a spec has another revision than expected; nothing was done.
            ProtocolError: a change is invalid for brokers, or there are more changes than Etcd allows at
                once.
        """
        validate_changes(changes)
        try:
            return self._retrying(
                lambda connection, left_s: apply_changes(connection, changes, timeout_s=left_s),
                decide=retry.after_apply,
            )
        except EtcdTransactionFailedError as error:
            # Brokers say that a revision is not as expected, but not of which journal: look it up.
            try:
                journals = self.journals_named(change.upsert.name or change.delete for change in changes)
            except GazetteError:
                raise error from None  # A token may allow to apply only.
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
            also = f"; and {len(more)} more of {len(changes)}" if more else ""
            raise EtcdTransactionFailedError(name, f"{problem}{also}") from None

    def journals_named(self, names: Iterable[str]) -> dict[str, pb.ListResponse.Journal]:
        """Return those of the journals that exist, by name."""
        include = label_set({NAME: names})
        listed = self.list_journals(pb.LabelSelector(include=include)) if include.labels else []
        return {journal.spec.name: journal for journal in listed}

    def apply_in_batches(
        self, changes: Sequence[pb.ApplyRequest.Change], size: int = CHANGES_PER_APPLY
    ) -> int:
        """Apply changes in transactions of ``size``, in their order; return the last revision.

        Each transaction may take the client's timeout. ``size`` 0 is one transaction, which Etcd by default
        refuses above 128 changes.

        Raises:
            PartialApplyError: a transaction failed after others were done; says how many.
            GazetteError: nothing was done. See :meth:`apply`.
        """
        validate_changes(changes)
        return apply_in_batches(changes, size, self.apply)

    def store_health(self, store: str, *, check_delete_prefix: str | None = None) -> StoreHealth:
        """Have the broker try a fragment store: write, read, list and sign.

        Args:
            store: its URL, e.g. ``s3://bucket/prefix/``.
            check_delete_prefix: also delete, below this path of the store, which ends in ``/``; ``""`` is the
                store's top.
        """
        return self._retrying(
            lambda connection, left_s: listing.check_store(
                connection, store, check_delete_prefix, timeout_s=left_s
            )
        )

    def create_journals(self, *specs: pb.JournalSpec, exist_ok: bool = False) -> int:
        """Create journals, wait until each takes appends, and return the last revision.

        More than a hundred are created in several transactions.

        Args:
            specs: of the journals.
            exist_ok: leave journals alone that exist already, whatever their specs.

        Returns:
            The revision; 0 if all journals exist already.

        Raises:
            EtcdTransactionFailedError: one exists already.
            PartialApplyError: one of a later hundred does.
        """
        existing = self.journals_named(spec.name for spec in specs) if exist_ok else {}
        missing = [spec for spec in specs if spec.name not in existing]
        try:
            revision = self.apply_in_batches([pb.ApplyRequest.Change(upsert=spec) for spec in missing])
        except (EtcdTransactionFailedError, PartialApplyError):
            # Somebody else was faster: what there is to create becomes less each time.
            if not exist_ok or len(self.journals_named(spec.name for spec in missing)) == 0:
                raise
            return self.create_journals(*specs, exist_ok=True)
        for spec in missing:
            self._append(AppendOptions(spec.name), Content(b""), self._timeout_s, retry.after_create)
        return revision

    def write_head(self, journal: str) -> int:
        """Return the offset the journal's next append will have.

        Of a journal that is fully suspended, the one it will go on at.
        """
        return self._write_head(journal)

    @property
    def _question_s(self) -> float:
        """Seconds that one try of a question has: a broker that hangs must leave time to ask another."""
        return min(self._timeout_s, self._idle_timeout_s)

    def _write_head(self, journal: str, headers: dict[str, pb.Header] | None = None) -> int:
        validate_journal_name(journal, allow_meta=True)

        def ask(connection: Connection, left_s: float) -> int:
            timeout_s = min(left_s, self._idle_timeout_s)
            request = heads.head_request(journal)
            return heads.HeadCall(connection, request, timeout_s=timeout_s, headers=headers).take()

        try:
            return self._retrying(
                ask,
                dial=partial(self._dialer.for_member, journal),
                decide=partial(retry.after_read, waits=False),
            )
        except SuspendedError:
            return self.get_journal(journal.partition(";")[0]).spec.suspend.offset

    def write_heads(self, journals: Sequence[str]) -> dict[str, int]:
        """Return the write head of each journal, asked for concurrently."""
        for journal in journals:
            validate_journal_name(journal, allow_meta=True)
        dial = self._dialer.for_member
        return heads.write_heads(dial, journals, self.write_head, timeout_s=self._question_s)

    def highest_heads(self, journals: Sequence[str]) -> dict[str, int]:
        """Return the highest write head that a member of each journal knows of.

        A member that joined after a failover reports a head that is too low. That may be the primary, or the
        primary may be the broker that failed. So each member is asked, and the highest head counts. Members
        that do not answer are left out.
        """
        for journal in journals:
            validate_journal_name(journal, allow_meta=True)
        headers: dict[str, pb.Header] = {}
        dial, timeout_s = self._dialer.for_member, self._question_s
        again = partial(self._write_head, headers=headers)
        highest = heads.write_heads(dial, journals, again, timeout_s=timeout_s, headers=headers)
        # The other members are asked in rounds: the first other member of each journal, then the second.
        for turn in range(max((len(header.route.members) - 1 for header in headers.values()), default=0)):
            other_members: dict[str, Connection] = {}
            for name, header in headers.items():
                members = header.route.members
                if header.process_id not in members:
                    continue
                rest = [at for at, member in enumerate(members) if member != header.process_id]
                connection = self._dialer.to_member(header.route, rest[turn]) if turn < len(rest) else None
                if connection is not None:
                    other_members[name] = connection
            other_heads = heads.write_heads(
                other_members.__getitem__,
                other_members,
                highest.__getitem__,
                timeout_s=min(timeout_s, MEMBER_TIMEOUT_S),
                request=lambda name: heads.head_request(name, headers[name]),
            )
            highest |= {name: max(highest[name], head) for name, head in other_heads.items()}
        return highest

    def settled_heads(self, reached: Mapping[str, int]) -> dict[str, SettledHead]:
        """Return the write head of each journal, confirmed where it is below an offset already read.

        After a failover a member may answer with a head that is too low: see
        :mod:`gazette_spark.client._read.heads`. Such a journal takes the client's timeout at most.

        Args:
            reached: by journal, an offset up to which it was read.
        """
        settled = {name: SettledHead(head) for name, head in self.write_heads(list(reached)).items()}
        behind = [name for name, head in settled.items() if head.write_head < reached[name]]
        if behind:
            with ThreadPoolExecutor(min(SETTLED_AT_ONCE, len(behind)), "gazette-settle") as pool:
                answers = pool.map(lambda name: self._settled_head(name, reached[name]), behind)
                settled |= zip(behind, answers, strict=True)
        return settled

    def _settled_head(self, journal: str, reached: int) -> SettledHead:
        # A broker that passes on an append to a journal's metadata path dies of it. NO_RESUME, and not KEEP,
        # leaves a suspension as it is: brokers up to 0.103 refuse KEEP as invalid.
        barrier = AppendOptions(journal.partition(";")[0], suspend=pb.AppendRequest.SUSPEND_NO_RESUME)

        def append_nothing(left_s: float) -> int:
            # A broker that has passed the append on to one that hangs never answers: try again in time.
            timeout_s = min(left_s, self._idle_timeout_s)
            try:
                return self._append(barrier, Content(b""), timeout_s, retry.once).end
            except SuspendedError:
                return self.get_journal(barrier.journal).spec.suspend.offset

        return settle_head(
            reached,
            lambda: self.highest_heads([journal])[journal],
            append_nothing,
            timeout_s=self._timeout_s,
        )

    def tails(self, offsets: Mapping[str, int], max_bytes: int) -> dict[str, heads.Tail]:
        """Return the write head of each journal, and the bytes between an offset and that.

        Args:
            offsets: by journal, the offset of the first byte to return.
            max_bytes: limit of bytes of a journal.
        """
        for journal in offsets:
            validate_journal_name(journal, allow_meta=True)
        dial, timeout_s = self._dialer.for_member, self._question_s

        def again(journal: str) -> heads.Tail:
            return heads.Tail(self.write_head(journal))

        return heads.tails(dial, offsets, again, max_bytes=max_bytes, timeout_s=timeout_s)

    def first_offset(self, journal: str) -> int:
        """Return the smallest offset that can be read; the write head of an empty journal."""
        options = FragmentsOptions(journal)
        try:
            first = self._retrying(
                lambda connection, left_s: listing.list_fragments(
                    connection, options, timeout_s=left_s, limit=1
                ),
                dial=partial(self._dialer.for_member, journal),
            )
        except SuspendedError:
            return self.write_head(journal)
        return first[0].fragment.begin if first else self.write_head(journal)

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
        """Return a journal's fragments, pages joined, ascending by begin; neighbours may overlap.

        Args:
            journal: its name.
            begin_mod_time: leave out fragments stored before, in Unix seconds.
            end_mod_time: leave out fragments stored later or not stored yet; 0: none of them.
            signature_ttl_s: ask for URLs that are valid for this time.
            page_token: leave out fragments that begin before this offset.
            page_limit: fragments the broker gives at once, up to 10,000; 0: its default, 1,000.
        """
        options = FragmentsOptions(
            journal, begin_mod_time, end_mod_time, signature_ttl_s, page_token, page_limit
        )
        return self._retrying(
            lambda connection, left_s: listing.list_fragments(connection, options, timeout_s=left_s),
            dial=partial(self._dialer.for_member, journal),
        )

    def gaps(self, journal: str, *, begin: int | None = None, end: int | None = None) -> list[FragmentGap]:
        """Return the bytes of a journal that no fragment holds any more, ascending.

        Args:
            journal: its name.
            begin: first offset; by default the first available byte, so that bytes deleted by retention are
                no gap.
            end: last offset; by default the write head.

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
        """Append bytes as one transaction; no bytes make a write barrier.

        Tried again while the journal has no primary, and after a broken connection: then the bytes may
        be in the journal twice. An iterator or a pipe, which cannot restart, is retried until its first bytes
        are read. An append that suspends the journal raises a SuspendedError when it succeeds.

        Args:
            journal: its name; or the whole options, of which the keywords replace some.
            content: bytes, a file, or pieces that are one or the other; a file is read from its first byte.
            offset: the required write head; 0: any.
            check_registers: selector that the journal's registers have to match.
            union_registers: registers to set.
            subtract_registers: registers to remove.
            suspend: change of the journal's suspension, one of ``pb.AppendRequest.SUSPEND_*``.
            min_etcd_revision: the broker waits until it knows this revision.
            do_not_proxy: ask only the broker called, even if it is not the primary.
            timeout_s: seconds for all tries, by default the client's.
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
        """Return an append to write to piece by piece; never tried again. Arguments as of :meth:`append`."""
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
        """Append once, without another try: what :meth:`append` and AppendService are made of.

        ``on_start`` gets the appender before its call begins, to abort it from another thread.
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
        """Return a reader of ``[offset, end_offset)``; nothing is asked of the broker yet.

        Args:
            journal: its name.
            offset: of the first byte; -1: the write head.
            end_offset: behind the last byte; 0: no end. The reader waits for bytes that are not there yet.
            block: at the write head, wait for more.
            do_not_proxy: prefer to fetch stored fragments by their URLs. Done anyway for ``file://`` if
                the client has a fragment root, and for http once a URL was seen.
            begin_mod_time: leave out fragments stored before, in Unix seconds.
            timeout_s: seconds without a byte after which the reader gives up, by default the client's.
        """
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
        """Connection to a broker of ``endpoint``, for calls by other modules of this package."""
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
        """Return a reader that makes one Read call, of ``timeout_s`` at most, and tries nothing again.

        Arguments as of :meth:`read`. The next bytes of a fragment that is fetched may take as long again.
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
        """Return a reader of a fragment that was listed with its URL; the caller closes it.

        Its next bytes may take the client's ``timeout_s``.

        Args:
            listed: from :meth:`list_fragments` with a ``signature_ttl_s``.
            offset: of the first byte to return; by default the fragment's begin.

        Raises:
            ProtocolError: the URL is missing, or is no fragment's.
            DirectReadError: this client does not open such URLs, or failed to open this one.
        """
        limit = FetchLimit(lambda: self._timeout_s)
        return self._opener.open(listed.fragment, listed.signed_url, offset, limit=limit)

    def _limit_s(self, timeout_s: float | None) -> float:
        if timeout_s is None:
            return self._timeout_s
        _check_seconds("timeout_s", timeout_s)
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
        # Else a member that is behind Etcd would answer for a route that is no more.
        request.min_etcd_revision = header.etcd.revision
        return ReadStream(connection, request, timeout_s)

    def _append(
        self, options: AppendOptions, content: Content, timeout_s: float, decide: retry.Decide
    ) -> AppendResult:
        """Append until a try succeeds, ``decide`` gives up, or the time is over.

        What a failed try says:

        - A status, such as NO_JOURNAL_PRIMARY_BROKER: nothing was appended, and a try on another broker or in
          a moment may succeed.
        - No answer: the broker may have committed. Then the retry appends the bytes a second time, unless
          ``options`` names an offset or registers that no longer match.
        """

        def once(_: Connection, left_s: float) -> AppendResult:
            return self.try_append(options, content, timeout_s=left_s)

        def decide_unless_spent(cause: GazetteError, attempt: int) -> float | None:
            # A retry without the first bytes of an iterator would append the rest of it only.
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
        """Call with the connection that ``dial`` gives for each try, by default the default broker's."""
        limit_s = self._limit_s(timeout_s)
        return retry.retrying(
            lambda left_s: call(dial() if dial is not None else self._dialer.default, left_s),
            decide,
            timeout_s=limit_s,
            patience_s=lambda: self._dialer.default.patience_s(limit_s),
        )


def _check_seconds(name: str, value: float) -> None:
    if not value > 0:
        raise OptionError(name, repr(value), "a number of seconds above 0")
