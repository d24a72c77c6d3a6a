"""Tests the client's calls besides reads and appends."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest

from gazette_spark.client import AppendService, Client, PolledList, WatchedList
from gazette_spark.client._list.apply import CHANGES_PER_APPLY
from gazette_spark.client._list.listing import ListedFragment
from gazette_spark.client._read.heads import CALLS_IN_FLIGHT, MANY, Tail
from gazette_spark.client._transport.retry import UNKNOWN_TRIES
from gazette_spark.errors import (
    AuthError,
    ClosedError,
    EtcdTransactionFailedError,
    GazetteError,
    InsufficientJournalBrokersError,
    JournalNotFoundError,
    OptionError,
    ProtocolError,
    StatusError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.protocol.labels import format_selector, parse_selector
from gazette_spark.testing.stub_broker import Act, Fail, Hang, StubBroker, chunk, metadata, not_yet
from tests.unit.client import listings
from tests.unit.client.listings import applied

JOURNAL = "a/journal"
EMPTY_COMMIT = pb.AppendResponse(
    commit=pb.Fragment(journal=JOURNAL, compression_codec=pb.NONE), registers=pb.LabelSet()
)


def page(*names: str) -> pb.ListResponse:
    return listings.message(*names, revision=1)


def test_list_joins_pages_and_sorts(stub: StubBroker, client: Client) -> None:
    stub.script("List", [page("b/one", "b/two"), listings.message("a/three")])
    assert [each.spec.name for each in client.list_journals()] == ["a/three", "b/one", "b/two"]
    assert stub.requests("List")[0].selector == pb.LabelSelector()


@pytest.mark.parametrize("as_text", [True, False])
def test_list_sends_the_selector(stub: StubBroker, client: Client, as_text: bool) -> None:
    stub.script("List", [page()])
    text = "app=one,team notin (a,b)"
    assert client.list_journals(text if as_text else parse_selector(text)) == []
    assert format_selector(stub.requests("List")[0].selector) == format_selector(parse_selector(text))


def test_list_cut_in_the_middle_is_asked_again(stub: StubBroker, client: Client) -> None:
    stub.script("List", [page("a/one"), Fail()], [page("a/one"), listings.message("a/two")])
    assert [each.spec.name for each in client.list_journals()] == ["a/one", "a/two"]


@pytest.mark.parametrize("selector", ["=x", "a in", "name="])
def test_list_with_a_bad_selector(stub: StubBroker, client: Client, selector: str) -> None:
    """``name=`` is a valid selector."""
    if selector == "name=":
        stub.script("List", [page()])
        assert client.list_journals(selector) == []
        return
    with pytest.raises(ProtocolError):
        client.list_journals(selector)
    assert stub.requests("List") == []


def test_apply_that_lost_a_race(stub: StubBroker, client: Client) -> None:
    stub.script("Apply", [pb.ApplyResponse(status=pb.ETCD_TRANSACTION_FAILED)])
    with pytest.raises(EtcdTransactionFailedError, match=JOURNAL):
        client.apply([pb.ApplyRequest.Change(upsert=journal_spec(JOURNAL))])


def test_apply_is_not_sent_twice(stub: StubBroker, client: Client) -> None:
    """The outcome is unknown after a broken connection."""
    stub.script("Apply", [Fail(text="Socket closed")], [applied(1)])
    with pytest.raises(UnavailableError):
        client.apply([pb.ApplyRequest.Change(delete=JOURNAL, expect_mod_revision=-1)])
    assert len(stub.requests("Apply")) == 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(pb.ApplyRequest.Change(), id="neither"),
        pytest.param(pb.ApplyRequest.Change(upsert=journal_spec(JOURNAL), delete=JOURNAL), id="both"),
        pytest.param(pb.ApplyRequest.Change(delete=JOURNAL), id="delete at revision 0"),
        pytest.param(pb.ApplyRequest.Change(delete=JOURNAL, expect_mod_revision=-2), id="revision -2"),
        pytest.param(
            pb.ApplyRequest.Change(upsert=journal_spec(JOURNAL), expect_mod_revision=-2), id="upsert at -2"
        ),
        pytest.param(pb.ApplyRequest.Change(upsert=pb.JournalSpec(name=JOURNAL)), id="empty spec"),
        pytest.param(pb.ApplyRequest.Change(delete="../x", expect_mod_revision=-1), id="name that goes up"),
    ],
)
def test_bad_changes_are_refused_before_sending(
    stub: StubBroker, client: Client, change: pb.ApplyRequest.Change
) -> None:
    with pytest.raises(ProtocolError):
        client.apply([change])
    assert stub.requests("Apply") == []


def test_create_waits_until_appends_work(stub: StubBroker, client: Client) -> None:
    """An empty append is repeated until the journal has a primary."""
    stub.script("Apply", [applied(5)])
    stub.script(
        "Append",
        [pb.AppendResponse(status=pb.JOURNAL_NOT_FOUND)],
        [pb.AppendResponse(status=pb.NO_JOURNAL_PRIMARY_BROKER)],
        [EMPTY_COMMIT],
    )
    assert client.create_journals(journal_spec(JOURNAL)) == 5
    assert stub.requests("Apply")[0].changes[0].expect_mod_revision == 0
    assert len(stub.requests("Append")) == 3


def test_create_beside_a_faster_client(stub: StubBroker, client: Client) -> None:
    """The broker refuses the change, but hears of the other client's journal only later."""
    stub.script("Apply", [pb.ApplyResponse(header=pb.Header(), status=pb.ETCD_TRANSACTION_FAILED)])
    unheard = [listings.message(revision=3)]
    stub.script("List", *[unheard] * 4, [listings.message(JOURNAL, revision=4)])
    stub.script("Append", [pb.AppendResponse(status=pb.JOURNAL_NOT_FOUND)], [EMPTY_COMMIT])
    assert client.create_journals(journal_spec(JOURNAL), exist_ok=True) == 0
    assert len(stub.requests("Append")) == 2


def test_create_gives_up_at_the_deadline(stub: StubBroker, hasty: Client) -> None:
    stub.script("Apply", [applied(5)])
    stub.script("Append", [pb.AppendResponse(status=pb.NO_JOURNAL_PRIMARY_BROKER)])
    with pytest.raises(GazetteError, match=JOURNAL):
        hasty.create_journals(journal_spec(JOURNAL))


def test_many_journals_are_created_in_several_transactions(stub: StubBroker, client: Client) -> None:
    stub.script("Apply", [applied(1)], [applied(2)], [applied(3)])
    stub.script("Append", [EMPTY_COMMIT])
    specs = [journal_spec(f"many/{index:04}") for index in range(2 * CHANGES_PER_APPLY + 1)]
    assert client.create_journals(*specs) == 3
    sizes = [len(request.changes) for request in stub.requests("Apply")]
    assert sizes == [CHANGES_PER_APPLY, CHANGES_PER_APPLY, 1]
    assert client.create_journals() == 0


def test_write_head_reads_nothing(stub: StubBroker, client: Client) -> None:
    stub.script("Read", [not_yet(123)])
    assert client.write_head(JOURNAL) == 123
    expected = pb.ReadRequest(journal=JOURNAL, offset=-1, metadata_only=True)
    assert stub.requests("Read") == [expected]


def test_write_head_while_content_arrives(stub: StubBroker, client: Client) -> None:
    """A broker with new content reports its head in metadata."""
    stub.script("Read", [metadata(JOURNAL, 0, 9, offset=5)])
    assert client.write_head(JOURNAL) == 9


def test_write_head_of_a_suspended_journal(stub: StubBroker, client: Client) -> None:
    """The write head is the offset at which the journal will resume."""
    suspended = page(JOURNAL)
    suspended.journals[0].spec.suspend.offset = 77
    stub.script("Read", [pb.ReadResponse(status=pb.SUSPENDED)])
    stub.script("List", [suspended])
    stub.script("ListFragments", [pb.FragmentsResponse(status=pb.SUSPENDED)])
    assert client.write_head(JOURNAL) == 77
    assert client.first_offset(JOURNAL) == 77


def test_write_heads_of_many_journals(stub: StubBroker, client: Client) -> None:
    names = [f"many/{index:04}" for index in range(3 * CALLS_IN_FLIGHT)]
    failed: set[str] = set()

    def head(request: pb.ReadRequest) -> list[Act]:
        index = int(request.journal[-4:])
        if index % 50 == 0 and request.journal not in failed:
            failed.add(request.journal)
            return [Fail()]
        return [not_yet(1000 + index)]

    stub.script("Read", head)
    expected = {name: 1000 + index for index, name in enumerate(names)}
    assert client.write_heads(names + names[:5]) == expected
    assert len(failed) == 4
    assert client.write_heads([]) == {}


def test_write_heads_are_asked_for_beside_an_event_loop(stub: StubBroker, client: Client) -> None:
    """The caller may already be in an event loop, as in a notebook."""
    stub.script("Read", [not_yet(7)])
    names = [f"many/{index:04}" for index in range(MANY)]

    async def ask() -> dict[str, int]:
        return client.write_heads(names)

    assert asyncio.run(ask()) == dict.fromkeys(names, 7)


@pytest.mark.parametrize("content", [b"x" * 50_000, b""], ids=["content", "metadata"])
def test_a_tail_without_an_end_is_left(stub: StubBroker, client: Client, content: bytes) -> None:
    """A broker that sends more than requested is cut off."""
    sent = []

    def endless(request: pb.ReadRequest) -> Iterator[Act]:
        first = pb.ReadResponse(offset=request.offset, write_head=10**9)
        yield first
        for number in range(30_000):
            sent.append(number)
            yield chunk(5 + len(content) * number, content) if content else first

    stub.script("Read", endless)
    assert client.tails({"a/one": 5}, 100) == {"a/one": Tail(10**9)}
    assert len(sent) < 10_000


def test_a_head_has_one_answer(stub: StubBroker, client: Client) -> None:
    sent = []

    def endless(_: pb.ReadRequest) -> Iterator[Act]:
        for number in range(30_000):
            sent.append(number)
            yield not_yet(7)

    stub.script("Read", endless)
    assert client.write_heads(["a/one"]) == {"a/one": 7}
    assert len(sent) < 10_000


def test_tails_of_many_journals(stub: StubBroker, client: Client) -> None:
    """If a call fails, only the head is fetched again, without the bytes."""

    def play(request: pb.ReadRequest) -> list[Act]:
        if request.metadata_only:
            return [not_yet(9)]
        if request.journal == "a/broken":
            return [Fail(text="Socket closed")]
        return [
            pb.ReadResponse(offset=request.offset, write_head=7),
            pb.ReadResponse(offset=request.offset, content=b"xy"),
        ]

    stub.script("Read", play)
    tails = client.tails({"a/one": 5, "a/two": 3, "a/broken": 5}, 100)
    assert tails == {"a/one": Tail(7, b"xy"), "a/two": Tail(7), "a/broken": Tail(9)}
    asked = {request.journal: request for request in stub.requests("Read") if not request.metadata_only}
    assert (asked["a/two"].offset, asked["a/two"].end_offset) == (3, 103)


def test_write_heads_names_the_missing_journal(stub: StubBroker, client: Client) -> None:
    stub.script("Read", [pb.ReadResponse(status=pb.JOURNAL_NOT_FOUND)])
    with pytest.raises(JournalNotFoundError, match="some/other"):
        client.write_heads(["some/other"])


@pytest.mark.parametrize("name", ["write_heads", "highest_heads"])
@pytest.mark.parametrize("count", [1, MANY])
def test_heads_beside_journals_that_have_none(stub: StubBroker, name: str, count: int) -> None:
    """Only one of the journals without brokers is waited for."""
    lost = pb.INSUFFICIENT_JOURNAL_BROKERS
    statuses = {"a/idle": lost, "a/lost": lost, "b/deleted": pb.JOURNAL_NOT_FOUND}

    def head(request: pb.ReadRequest) -> list[Act]:
        status = statuses.get(request.journal)
        return [not_yet(7) if status is None else pb.ReadResponse(status=status)]

    stub.script("Read", head)
    names = [f"many/{number}" for number in range(count)]
    refusals: dict[str, StatusError] = {}
    with Client(stub.endpoint, timeout_s=30) as client:
        found = getattr(client, name)([*statuses, *names], refusals=refusals)
    assert found == dict.fromkeys(names, 7)
    assert {journal: type(error) for journal, error in refusals.items()} == {
        "a/idle": InsufficientJournalBrokersError,
        "a/lost": InsufficientJournalBrokersError,
        "b/deleted": JournalNotFoundError,
    }
    requests = [request.journal for request in stub.requests("Read")]
    assert [requests.count(journal) for journal in statuses] == [1 + UNKNOWN_TRIES, 2, 2]


def fragments(*spans: tuple[int, int], token: int = 0, url: str = "") -> pb.FragmentsResponse:
    response = pb.FragmentsResponse(next_page_token=token)
    for begin, end in spans:
        spec = Fragment(JOURNAL, begin, end, bytes(20), pb.GZIP).to_pb()
        response.fragments.add(spec=spec, signed_url=url)
    return response


def test_list_fragments_joins_pages(stub: StubBroker, client: Client) -> None:
    stub.script(
        "ListFragments",
        [fragments((0, 5), (5, 9), token=9)],
        [fragments((9, 12), url="https://s/x?sig=SECRET")],
    )
    got = client.list_fragments(JOURNAL, begin_mod_time=3, end_mod_time=8, signature_ttl_s=1.5)
    assert [(each.fragment.begin, each.fragment.end) for each in got] == [(0, 5), (5, 9), (9, 12)]
    assert got[-1].signed_url == "https://s/x?sig=SECRET"
    assert "SECRET" not in repr(got)
    first, second = stub.requests("ListFragments")
    assert (first.next_page_token, second.next_page_token) == (0, 9)
    assert (second.begin_mod_time, second.end_mod_time) == (3, 8)
    assert second.signatureTTL.ToMilliseconds() == 1500


def test_list_fragments_does_not_go_in_circles(stub: StubBroker, client: Client) -> None:
    """A page token that does not grow violates the protocol."""
    stub.script("ListFragments", [fragments((0, 5), token=5)])
    with pytest.raises(ProtocolError, match="NextPageToken"):
        client.list_fragments(JOURNAL)


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"begin_mod_time": 5, "end_mod_time": 4}, id="times swapped"),
        pytest.param({"signature_ttl_s": 0}, id="no time to live"),
        pytest.param({"signature_ttl_s": float("inf")}, id="infinite time to live"),
        pytest.param({"signature_ttl_s": -1}, id="less than none"),
        pytest.param({"page_token": -1}, id="token below zero"),
        pytest.param({"page_limit": -1}, id="limit below zero"),
        pytest.param({"page_limit": 10_001}, id="limit too large"),
    ],
)
def test_bad_fragment_queries(stub: StubBroker, client: Client, keys: dict[str, float]) -> None:
    with pytest.raises(ProtocolError):
        client.list_fragments(JOURNAL, **keys)  # type: ignore[arg-type]  # Fields by name, of mixed types.
    assert stub.requests("ListFragments") == []


def test_list_fragments_from_an_offset_in_large_pages(stub: StubBroker, client: Client) -> None:
    """Only the first request has the caller's token; all have the limit."""
    stub.script("ListFragments", [fragments((40, 50), token=50)], [fragments((50, 60))])
    got = client.list_fragments(JOURNAL, page_token=40, page_limit=10_000)
    assert [each.fragment.begin for each in got] == [40, 50]
    asked = [(each.next_page_token, each.page_limit) for each in stub.requests("ListFragments")]
    assert asked == [(40, 10_000), (50, 10_000)]


def test_fragments_of_another_journal_are_a_lie(stub: StubBroker, client: Client) -> None:
    """They might be deleted or read by mistake."""
    stub.script("ListFragments", [fragments((0, 5))])
    with pytest.raises(ProtocolError, match="some/other"):
        client.list_fragments("some/other")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param(pb.FragmentStoreHealthResponse(), "", id="healthy"),
        pytest.param(
            pb.FragmentStoreHealthResponse(
                status=pb.FRAGMENT_STORE_UNHEALTHY, store_health_error="no bucket"
            ),
            "no bucket",
            id="unhealthy",
        ),
    ],
)
def test_store_health(
    stub: StubBroker, client: Client, answer: pb.FragmentStoreHealthResponse, problem: str
) -> None:
    """An unhealthy store is an answer, not an error."""
    stub.script("FragmentStoreHealth", [answer])
    health = client.store_health("s3://bucket/", check_delete_prefix="x/")
    assert (health.problem, health.is_healthy) == (problem, not problem)
    (request,) = stub.requests("FragmentStoreHealth")
    assert (request.fragment_store, request.check_delete, request.check_delete_prefix) == (
        "s3://bucket/",
        True,
        "x/",
    )


@pytest.mark.parametrize("store", ["s3://bucket/no/slash", "ftp://host/", "file://host/"])
def test_a_bad_store_is_refused(stub: StubBroker, client: Client, store: str) -> None:
    with pytest.raises(ProtocolError):
        client.store_health(store)
    assert stub.requests("FragmentStoreHealth") == []


def test_first_offset(stub: StubBroker, client: Client) -> None:
    stub.script("ListFragments", [fragments((40, 50), token=50)], [fragments()])
    stub.script("Read", [not_yet(60)])
    assert client.first_offset(JOURNAL) == 40
    assert client.first_offset(JOURNAL) == 60
    assert stub.requests("ListFragments")[0].page_limit == 1


@pytest.mark.parametrize("rpc", ["List", "Apply", "ListFragments"])
def test_every_call_ends_at_its_deadline(stub: StubBroker, hasty: Client, rpc: str) -> None:
    stub.script(rpc, [Hang()])
    calls: dict[str, Callable[[], object]] = {
        "List": hasty.list_journals,
        "Apply": lambda: hasty.apply([pb.ApplyRequest.Change(delete=JOURNAL, expect_mod_revision=-1)]),
        "ListFragments": lambda: hasty.list_fragments(JOURNAL),
    }
    started = time.monotonic()
    with pytest.raises(UnavailableError, match="no answer within the deadline"):
        calls[rpc]()
    assert time.monotonic() - started < 10


def test_a_refused_token_fails_at_once_and_is_not_shown(stub: StubBroker) -> None:
    stub.script("List", [Fail(grpc.StatusCode.UNAUTHENTICATED, "verification failed")])
    with Client(stub.endpoint, token="SECRET") as client:
        with pytest.raises(AuthError) as caught:
            client.list_journals()
        assert "SECRET" not in repr(client) + str(caught.value) + repr(caught.value)
    assert len(stub.requests("List")) == 1


def test_a_client_is_not_pickled() -> None:
    """Each process has to make its own."""
    with Client("http://127.0.0.1:1") as client, pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(client)


def test_a_closed_client_makes_no_calls(stub: StubBroker) -> None:
    client = Client(stub.endpoint)
    client.close()
    client.close()
    with pytest.raises(ClosedError, match="it is closed"):
        client.write_head(JOURNAL)
    with pytest.raises(ClosedError, match="it is closed"):
        client.read(JOURNAL).read()


@pytest.mark.timeout(20)
def test_closing_ends_what_waits(stub: StubBroker) -> None:
    """Readers and watches fail when the client is closed, not at their next deadline."""
    stub.script("Read", [metadata(JOURNAL, 0, 100), chunk(0, b"x"), Hang()])
    stub.script("List", [*listings.pages(5, [JOURNAL]), Hang()])
    errors: list[Exception] = []

    def wait_for_bytes() -> None:
        with pytest.raises(ClosedError) as caught:
            next(waiting)
        errors.append(caught.value)

    with Client(stub.endpoint) as client:
        watched = WatchedList(client)
        first = watched.start()
        waiting, paused = client.read(JOURNAL, block=True), client.read(JOURNAL, block=True)
        assert next(waiting).content == next(paused).content == b"x"
        thread = threading.Thread(target=wait_for_bytes)
        thread.start()
        client.close()
        thread.join()
        assert "it is closed" in str(errors)
        with pytest.raises(ClosedError, match="it is closed"):
            next(paused)
        with pytest.raises(ClosedError, match="it is closed"):
            watched.wait_for_update(first, timeout_s=10)
        watched.close()


@pytest.mark.parametrize(
    "keys",
    [
        {"timeout_s": 0},
        {"idle_timeout_s": -1},
        {"connect_timeout_s": float("nan")},
        {"timeout_s": float("inf")},
        {"idle_timeout_s": 1e12},
        {"connect_timeout_s": 2_147_484},
    ],
    ids=["no time", "less than none", "not a number", "no end", "after 2262", "more than 32 bits"],
)
def test_bad_timeouts(keys: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=next(iter(keys))):
        Client("http://127.0.0.1:1", **keys)  # type: ignore[arg-type]  # Fields by name, of mixed types.


def test_a_call_with_no_time(client: Client) -> None:
    """A timeout of 0 must not mean the client's default."""
    with pytest.raises(OptionError, match="timeout_s"):
        client.append(JOURNAL, b"x", timeout_s=0)
    with pytest.raises(OptionError, match="timeout_s"):
        client.read(JOURNAL, timeout_s=0)


def test_a_call_without_an_end(client: Client) -> None:
    """With a time beyond gRPC's range each attempt would end at once, and be repeated without a pause."""
    with pytest.raises(OptionError, match="at most 2000000"):
        client.append(JOURNAL, b"x", timeout_s=float("inf"))
    with pytest.raises(OptionError, match="at most 2000000"):
        client.read(JOURNAL, timeout_s=1e12)
    with pytest.raises(OptionError, match="at most 2000000"):
        AppendService(client, timeout_s=1e12)
    with pytest.raises(OptionError, match="at most 2000000"):
        PolledList(client, interval_s=float("inf"))


def test_listed_fragments_hide_their_url() -> None:
    """A signed URL is a secret."""
    listed = ListedFragment(Fragment(JOURNAL, 0, 1, bytes(20), pb.NONE), "https://s/x?sig=SECRET")
    assert "SECRET" not in repr(listed)


@pytest.mark.parametrize("name", ["write_heads", "highest_heads"])
def test_heads_of_an_iterator(stub: StubBroker, client: Client, name: str) -> None:
    stub.script("Read", [not_yet(7)])
    assert getattr(client, name)(journal for journal in [JOURNAL]) == {JOURNAL: 7}


@pytest.mark.parametrize("offset", [-2, 1 << 63])
def test_offsets_that_no_journal_has(client: Client, offset: int) -> None:
    with pytest.raises(ProtocolError, match=r"ReadRequest\.Offset.*expected -1 to 9223372036854775807"):
        client.read(JOURNAL, offset=offset)
    with pytest.raises(ProtocolError, match=r"ReadRequest\.EndOffset"):
        client.read(JOURNAL, end_offset=offset)
    with pytest.raises(ProtocolError, match="invalid Offset"):
        client.append(JOURNAL, b"x", offset=offset)


def test_names_that_are_no_texts(client: Client) -> None:
    """Bytes must not become a second queue of the same journal."""
    with pytest.raises(ProtocolError, match=r"AppendRequest\.Journal.*is neither letter"):
        client.append("a/\ud800", b"x")
    with AppendService(client) as service, pytest.raises(TypeError):
        service.append(JOURNAL.encode(), b"x")  # type: ignore[arg-type]
