"""Both brokers close, name, store and list fragments alike."""

from __future__ import annotations

import hashlib
import re
from typing import Any
from urllib.parse import urlparse

import grpc
import pytest

from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.wire import Wire, labels, selector, spec, upsert, wait_for
from tests.rig.brokers import BrokerHandle

EXTENSIONS = {"NONE": ".raw", "GZIP": ".gz", "ZSTANDARD": ".zst", "SNAPPY": ".sz"}
NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{40})(\.\w+)?")
"""File name of a fragment: begin, end, SHA-1 of the content, and extension of the codec."""


@pytest.fixture
def rolled(wire: Wire, journal_name: str) -> str:
    """Yield the name of a journal with the fragments [0, 3), [3, 2003), [2003, 2004)."""
    wire.create(spec(journal_name, length=1024))
    wire.append(journal_name, b"abc")
    wire.append(journal_name, b"x" * 2000)
    wire.append(journal_name, b"z")
    return journal_name


def test_first_append_is_its_own_fragment(wire: Wire, journal: str) -> None:
    """The second append closes the first one's fragment; later appends share a fragment."""
    for content in (b"abc", b"de", b"f"):
        wire.append(journal, content)
    assert wire.spans(journal) == [(0, 3), (3, 6)]


def test_fragments_overshoot_by_one_append(wire: Wire, journal_name: str) -> None:
    """An append closes the fragment if that is longer than its limit, but not if it is equal."""
    wire.create(spec(journal_name, length=1024))
    for size in (3, 1000, 24, 1, 7):
        wire.append(journal_name, b"x" * size)
    assert wire.spans(journal_name) == [(0, 3), (3, 1028), (1028, 1035)]


def test_open_fragment_is_listed_without_store(wire: Wire, journal: str) -> None:
    wire.append(journal, b"abc")
    wire.append(journal, b"def")
    listed = wire.fragments(journal).fragments[-1]
    assert (listed.spec.begin, listed.spec.end, listed.spec.mod_time) == (3, 6, 0)
    assert (listed.spec.backing_store, listed.signed_url) == ("", "")
    assert sum_of(listed.spec) == hashlib.sha1(b"def").hexdigest()


def test_empty_journal_has_no_fragments(wire: Wire, journal: str) -> None:
    response = wire.fragments(journal)
    assert (response.status, len(response.fragments), response.next_page_token) == (pb.OK, 0, 0)


def test_stored_file_is_named_by_its_content(wire: Wire, fresh_prefix: str, broker: BrokerHandle) -> None:
    content = b"some content\n" * 100
    codecs = {f"{fresh_prefix}{name}": pb.CompressionCodec.Value(name) for name in EXTENSIONS}
    wire.create(*(spec(name, compression_codec=codec) for name, codec in codecs.items()))
    for name in codecs:
        wire.append(name, content)
        wire.append(name, b"next")
    for (name, codec), extension in zip(codecs.items(), EXTENSIONS.values(), strict=True):
        stored = wire.wait_persisted(name, 1).fragments[0]
        url = urlparse(stored.signed_url)
        assert (url.scheme, url.netloc) == ("file", "")
        path = broker.file_root / url.path.lstrip("/")
        assert path.parent == broker.file_root / name
        found = NAME.fullmatch(path.name)
        assert found is not None
        begin, end, digest, written_extension = found.groups()
        assert (int(begin, 16), int(end, 16)) == (0, len(content))
        assert digest == hashlib.sha1(content).hexdigest() == sum_of(stored.spec)
        assert written_extension == extension
        assert stored.spec.compression_codec == codec
        assert abs(stored.spec.mod_time - path.stat().st_mtime) <= 1


def test_urls_are_signed_on_demand(wire: Wire, journal: str) -> None:
    wire.append(journal, b"abc")
    wire.append(journal, b"def")
    wire.wait_persisted(journal, 1)
    stored = wire.fragments(journal, signed=False).fragments[0]
    assert stored.spec.backing_store == "file:///"
    assert not stored.signed_url


def test_postfix_becomes_a_folder(wire: Wire, journal_name: str, broker: BrokerHandle) -> None:
    template = (
        'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}/hour={{ .Spool.FirstAppendTime.Format "15" }}'
    )
    wire.create(spec(journal_name, path_postfix_template=template))
    wire.append(journal_name, b"abc")
    wire.append(journal_name, b"def")
    stored = wire.wait_persisted(journal_name, 1).fragments[0]
    assert re.fullmatch(r"date=\d{4}-\d\d-\d\d/hour=\d\d", stored.spec.path_postfix)
    (path,) = (broker.file_root / journal_name / stored.spec.path_postfix).iterdir()
    assert NAME.fullmatch(path.name)
    assert wire.content(journal_name) == b"abcdef"


def test_store_below_the_root(wire: Wire, journal_name: str, broker: BrokerHandle, fresh_prefix: str) -> None:
    store = broker.file_root / "stores" / fresh_prefix
    store.mkdir(parents=True)
    wire.create(spec(journal_name, stores=[f"file:///stores/{fresh_prefix}"]))
    wire.append(journal_name, b"abc")
    wire.append(journal_name, b"def")
    wire.wait_persisted(journal_name, 1)
    (path,) = (store / journal_name).iterdir()
    assert NAME.fullmatch(path.name)


def test_journal_without_stores_stays_readable(wire: Wire, journal_name: str) -> None:
    wire.create(spec(journal_name, stores=[], length=1024))
    for letter in b"abc":
        wire.append(journal_name, bytes([letter]) * 2000)
    assert wire.content(journal_name) == b"a" * 2000 + b"b" * 2000 + b"c" * 2000


def test_pages_join_to_the_whole(wire: Wire, rolled: str) -> None:
    found, token = [], 0
    for _ in range(10):
        page = wire.fragments(rolled, page_limit=1, next_page_token=token)
        assert len(page.fragments) <= 1
        found += [(each.spec.begin, each.spec.end) for each in page.fragments]
        token = page.next_page_token
        if not token:
            break
    assert found == [(0, 3), (3, 2003), (2003, 2004)]


def test_page_token_is_a_begin_offset(wire: Wire, rolled: str) -> None:
    assert wire.fragments(rolled, page_limit=2).next_page_token == 2003
    assert [each.spec.begin for each in wire.fragments(rolled, next_page_token=1).fragments] == [3, 2003]


def test_mod_times_select(wire: Wire, rolled: str) -> None:
    """begin_mod_time drops older stored fragments; end_mod_time includes its second, but only stored ones."""
    stored = [each.spec for each in wire.wait_persisted(rolled, 2).fragments if each.spec.mod_time]
    newest = max(each.mod_time for each in stored)
    younger = wire.fragments(rolled, begin_mod_time=newest + 1).fragments
    assert [each.spec.begin for each in younger] == [2003]
    until = wire.fragments(rolled, end_mod_time=newest).fragments
    assert [each.spec.begin for each in until] == [0, 3]
    oldest = min(each.mod_time for each in stored)
    assert not wire.fragments(rolled, end_mod_time=oldest - 1).fragments


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"begin_mod_time": 10, "end_mod_time": 9}, id="end-before-begin"),
        pytest.param({"next_page_token": -1}, id="negative-token"),
        pytest.param({"page_limit": -1}, id="negative-limit"),
        pytest.param({"page_limit": 10_001}, id="limit-too-large"),
    ],
)
def test_malformed_listing_is_refused(wire: Wire, journal: str, fields: dict[str, Any]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        wire.fragments(journal, **fields)
    assert caught.value.code() == grpc.StatusCode.UNKNOWN


def test_unknown_journal(wire: Wire, journal_name: str) -> None:
    assert wire.fragments(journal_name).status == pb.JOURNAL_NOT_FOUND


def test_write_only_journal(wire: Wire, journal_name: str) -> None:
    wire.create(spec(journal_name, flags=pb.JournalSpec.O_WRONLY))
    assert wire.fragments(journal_name).status == pb.NOT_ALLOWED


def test_changed_codec_waits_for_the_next_fragment(wire: Wire, journal: str) -> None:
    """A new codec does not close the current fragment; the next one has it."""
    wire.append(journal, b"abc")
    wire.append(journal, b"def")
    changed = spec(journal, compression_codec=pb.GZIP)
    assert wire.apply(upsert(changed, -1)).status == pb.OK
    assert wire.list(selector(labels(("name", journal))))[0].spec.fragment.compression_codec == pb.GZIP
    wire.append(journal, b"ghi")
    assert wire.spans(journal) == [(0, 3), (3, 9)]
    assert wire.fragments(journal).fragments[-1].spec.compression_codec == pb.SNAPPY


def test_recreated_journal_guards_its_stored_fragments(wire: Wire, journal: str) -> None:
    """Appends are refused until the head is reset, so that they do not overwrite stored offsets."""
    wire.append(journal, b"abc")
    wire.append(journal, b"def")
    wire.wait_persisted(journal, 1)
    wire.apply(pb.ApplyRequest.Change(expect_mod_revision=-1, delete=journal))
    assert wire.apply(upsert(spec(journal))).status == pb.OK
    stored = wire.wait_persisted(journal, 1).fragments[0].spec
    assert (stored.begin, stored.end) == (0, 3)
    wait_for(lambda: wire.append(journal, b"no").status == pb.INDEX_HAS_GREATER_OFFSET, "guarded journal")
    assert wire.append(journal, offset=3).status == pb.OK
    assert wire.append(journal, b"DEF").commit.begin == 3
    assert wire.content(journal) == b"abcDEF"


def sum_of(fragment: pb.Fragment) -> str:
    part1, part2, part3 = fragment.sum.part1, fragment.sum.part2, fragment.sum.part3
    return f"{part1:016x}{part2:016x}{part3:08x}"
