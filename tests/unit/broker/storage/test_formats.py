"""Tests that codecs, commit logs, catalogs and postfixes can be read back as they were written."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path

import pytest

from gazette_spark._server.catalog import Catalog, apply_changes
from gazette_spark.broker.registry import JOURNALS, JournalCatalog
from gazette_spark.broker.storage import commit_log
from gazette_spark.broker.storage.commit_log import CommitRecord, SpoolHeader
from gazette_spark.broker.storage.encoders import encode
from gazette_spark.broker.storage.postfix import render_postfix
from gazette_spark.broker.storage.state import catalog_from_json, catalog_to_json
from gazette_spark.client._read.codecs import decode_fragment
from gazette_spark.errors import BrokerRootError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec

GOLDEN = Path(__file__).parents[3] / "golden" / "broker"
CODECS = [pytest.param(value, id=name) for name, value in pb.CompressionCodec.items() if value]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", ["text", "random", "tiny"])
def test_encoded_content_decodes(codec: int, kind: str) -> None:
    """The content includes block boundaries and incompressible bytes."""
    content = {
        "text": b'{"id": 12345, "name": "someone"}\n' * 100_000,
        "random": random.Random(1).randbytes(3_000_000),
        "tiny": b"x",
    }[kind]
    blocks = (content[at : at + 1_000_000] for at in range(0, len(content), 1_000_000))
    stored = b"".join(encode(blocks, codec))
    assert b"".join(decode_fragment(io.BytesIO(stored), codec)) == content


def test_gzip_has_members_and_offload_has_one() -> None:
    """GZIP starts a member per MiB, as Gazette does; GZIP_OFFLOAD_DECOMPRESSION never does."""
    blocks = [bytes(1 << 20)] * 3 + [b"rest"]
    many, one = (b"".join(encode(blocks, codec)) for codec in (pb.GZIP, pb.GZIP_OFFLOAD_DECOMPRESSION))
    assert gzip.decompress(many) == gzip.decompress(one) == b"".join(blocks)
    assert (many.count(b"\x1f\x8b\x08"), one.count(b"\x1f\x8b\x08")) == (4, 1)


def test_zstandard_says_no_content_size() -> None:
    """A frame has neither content size nor checksum, as in Gazette."""
    descriptor = b"".join(encode([b"abc" * 100], pb.ZSTANDARD))[4]
    assert descriptor & 0b1110_0100 == 0


def test_unknown_codec() -> None:
    with pytest.raises(ValueError, match="codec 0"):
        encode([b"x"], pb.INVALID)


HEADER = SpoolHeader("a/journal", 1024, pb.SNAPPY, (("author", "x"), ("näme", "…")))
RECORDS = (
    CommitRecord(1030, bytes(range(20)), 1_700_000_000.25),
    CommitRecord(1040, bytes(range(1, 21)), 1_700_000_001.5, (("author", "y"),)),
)


def log_bytes() -> bytes:
    return commit_log.encode_header(HEADER) + b"".join(map(commit_log.encode_commit, RECORDS))


def test_commit_log_golden() -> None:
    """The first version of the commit log is still written and read byte for byte."""
    stored = (GOLDEN / "commits-v1.log").read_bytes()
    assert log_bytes() == stored
    parsed = commit_log.parse_log(stored)
    assert (parsed.header, tuple(record for record, _ in parsed.records)) == (HEADER, RECORDS)


def test_a_log_of_the_future_is_refused() -> None:
    """Treating a log of a later version as empty would lose its bytes."""
    with pytest.raises(BrokerRootError, match="format_version 2"):
        commit_log.parse_log((GOLDEN / "commits-future.log").read_bytes())


def test_a_log_cut_anywhere_gives_its_whole_records() -> None:
    whole = log_bytes()
    ends = [end for _, end in commit_log.parse_log(whole).records]
    for cut in range(len(whole)):
        parsed = commit_log.parse_log(whole[:cut])
        assert len(parsed.records) == sum(end <= cut for end in ends)


def test_a_changed_byte_is_noticed() -> None:
    """A damaged complete line is an error, because its commit was acknowledged.

    Only the last line may be torn.
    """
    whole = log_bytes()
    for at, byte in enumerate(whole[:-1]):
        for other in (byte ^ 1, 0):
            changed = whole[:at] + bytes([other]) + whole[at + 1 :]
            with pytest.raises(BrokerRootError, match=r"'a\.log': the commit log is damaged at byte"):
                commit_log.parse_log(changed, "a.log")


def catalog() -> JournalCatalog:
    spec = journal_spec("a/journal", labels={"content-type": "text/csv"}, codec="GZIP", flush_interval_s=60)
    first = apply_changes(Catalog(JOURNALS, cluster_id=77), [pb.ApplyRequest.Change(upsert=spec)])
    assert first is not None
    gone = pb.ApplyRequest.Change(upsert=journal_spec("b/journal"))
    second = apply_changes(first, [gone])
    assert second is not None
    third = apply_changes(second, [pb.ApplyRequest.Change(expect_mod_revision=3, delete="b/journal")])
    assert third is not None
    return third


def test_catalog_golden() -> None:
    """The first version of the catalog is still written and read byte for byte."""
    stored = (GOLDEN / "state-v1.json").read_text(encoding="utf-8")
    assert catalog_to_json(catalog()) == stored
    assert catalog_from_json(JOURNALS, stored) == catalog()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"format_version": 2}', id="future"),
        pytest.param("{", id="torn"),
        pytest.param('{"format_version": 1}', id="fields-missing"),
    ],
)
def test_unreadable_catalog(text: str) -> None:
    with pytest.raises(BrokerRootError, match="/some/root"):
        catalog_from_json(JOURNALS, text, "/some/root")


@pytest.mark.parametrize(
    ("template", "postfix"),
    [
        pytest.param("", "", id="none"),
        pytest.param("plain/path", "plain/path", id="plain"),
        pytest.param(
            'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}'
            '/hour={{.Spool.FirstAppendTime.Format "15"}}',
            "date=2026-11-21/hour=05",
            id="hive",
        ),
        pytest.param(
            "t={{- .Spool.FirstAppendTime.Format `2006_01_02T15_04_05` -}}", "t=2026_11_21T05_58_00", id="all"
        ),
    ],
)
def test_postfix(template: str, postfix: str) -> None:
    """Postfixes are formatted from the UTC time of the first append."""
    assert render_postfix(template, 1795240680.0) == postfix


@pytest.mark.parametrize(
    "template",
    [
        pytest.param("{{ .Spool.Begin }}", id="other-field"),
        pytest.param("x={{ .Spool", id="open-braces"),
        pytest.param("../out", id="dots"),
        pytest.param("/abs", id="absolute"),
        pytest.param("a//b", id="empty-part"),
        pytest.param('{{ .Spool.FirstAppendTime.Format "2006 01" }}', id="a-blank"),
        pytest.param("a:b", id="a-colon"),
        pytest.param("a" * 513, id="too-long"),
    ],
)
def test_unknown_postfix_template(template: str) -> None:
    """Refuse an unsupported template when a spec is applied, not when a fragment is stored."""
    with pytest.raises(ProtocolError, match="path_postfix_template"):
        render_postfix(template, 0.0)
