"""Clients read stored fragments at the signed URLs of the embedded broker."""

from __future__ import annotations

import gzip
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gazette_spark import Client, EmbeddedBroker
from gazette_spark.broker import StorageSettings
from gazette_spark.client import open_fragment_url
from gazette_spark.errors import DirectReadError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from tests.conformance.wire import Wire, spec

NAME = "urls/a%journal"
CONTENT = bytes(range(256)) * 2000
CODECS = [pb.NONE, pb.GZIP, pb.ZSTANDARD, pb.SNAPPY, pb.GZIP_OFFLOAD_DECOMPRESSION]


@pytest.fixture
def signing(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    (tmp_path / "store").mkdir()
    with EmbeddedBroker(tmp_path, storage=StorageSettings(fragment_urls="http")) as running:
        yield running


def store_one(wire: Wire, signing: EmbeddedBroker, codec: int = pb.SNAPPY) -> None:
    wire.create(spec(NAME, compression_codec=codec, stores=["s3://bucket/store/"]))
    wire.append(NAME, CONTENT)
    signing.flush()


def url_of(wire: Wire) -> str:
    response = wire.read(NAME, metadata_only=True)[0]
    assert response.fragment.mod_time
    return response.fragment_url


@pytest.mark.parametrize("codec", CODECS, ids=pb.CompressionCodec.Name)
def test_every_codec_is_read_past_the_broker(signing: EmbeddedBroker, codec: int) -> None:
    with Wire(signing.endpoint) as wire, httpx.Client() as http:
        store_one(wire, signing, codec)
        response = wire.read(NAME, metadata_only=True)[0]
        fragment = Fragment.from_pb(response.fragment)
        with open_fragment_url(fragment, response.fragment_url, 100, fragment_hosts=["127.0.0.1"]) as reader:
            assert reader.read() == CONTENT[100:]
        listed = wire.fragments(NAME).fragments[0].signed_url
        assert http.get(listed).status_code == 200
        assert http.head(listed).status_code == 200


def test_offloaded_gzip_is_decompressed_for_who_does_not_take_it(signing: EmbeddedBroker) -> None:
    with Wire(signing.endpoint) as wire:
        store_one(wire, signing, pb.GZIP_OFFLOAD_DECOMPRESSION)
        url = url_of(wire)
    for accepted, encoding in (("identity", None), ("gzip", "gzip")):
        request = urllib.request.Request(url, headers={"Accept-Encoding": accepted})
        with urllib.request.urlopen(request, timeout=20) as response:
            assert response.headers["Content-Encoding"] == encoding
            body = response.read()
        assert (gzip.decompress(body) if encoding else body) == CONTENT


def test_bad_urls_are_refused(signing: EmbeddedBroker) -> None:
    with Wire(signing.endpoint) as wire, httpx.Client() as http:
        store_one(wire, signing)
        url = url_of(wire)
        bare = url.partition("?")[0]
        assert http.get(bare).status_code == 403
        assert http.get(url.replace("expires=", "expires=1")).status_code == 403
        assert http.get(f"{bare}?expires=1&signature=00").status_code == 403
        assert http.post(url).status_code == 405
        assert http.request("DELETE", url).status_code == 405
        fragment = Fragment.from_pb(wire.read(NAME, metadata_only=True)[0].fragment)
        with pytest.raises(DirectReadError, match="403") as caught:
            open_fragment_url(fragment, bare, fragment_hosts=["127.0.0.1"])
        assert caught.value.expired
        next((signing.root / "store").rglob("*.sz")).unlink()
        assert http.get(url).status_code == 404


def test_a_url_ends_with_its_time(signing: EmbeddedBroker) -> None:
    with Wire(signing.endpoint) as wire, httpx.Client() as http:
        store_one(wire, signing)
        request = pb.FragmentsRequest(journal=NAME)
        request.signatureTTL.FromNanoseconds(1)
        url = wire.stub.ListFragments(request, timeout=20).fragments[0].signed_url
        response = http.get(url)
        assert (response.status_code, response.text.strip()) == (403, "the URL has expired")


def test_the_client_reads_directly(signing: EmbeddedBroker) -> None:
    with Wire(signing.endpoint) as wire, Client(signing.endpoint, timeout_s=20) as client:
        store_one(wire, signing)
        wire.append(NAME, b"not stored")
        whole = CONTENT + b"not stored"
        assert (
            b"".join(chunk.content for chunk in client.read(NAME, end_offset=len(whole), do_not_proxy=True))
            == whole
        )
