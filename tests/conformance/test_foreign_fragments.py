"""Both brokers list, serve and ignore the same files, whichever program stored them."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import cramjam
import pytest
import zstandard

from gazette_spark import Client
from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.goclient import end_of, run_go
from tests.conformance.wire import Wire, spec
from tests.rig.brokers import BrokerHandle

CONTENT = b"a line of a stored fragment\n" * 5_000


def plain(content: bytes) -> bytes:
    return content


def members(content: bytes) -> bytes:
    """Compress bytes as Gazette does: one gzip member after the other."""
    return gzip.compress(content[:70_000]) + gzip.compress(content[70_000:])


def framed_snappy(content: bytes) -> bytes:
    return bytes(cramjam.snappy.compress(content))


def sizeless_zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(content)


FILES = {
    "raw": (".raw", pb.NONE, plain),
    "gz": (".gz", pb.GZIP, members),
    "gzip": (".gzip", pb.GZIP, members),
    "zst": (".zst", pb.ZSTANDARD, sizeless_zstd),
    "zstandard": (".zstandard", pb.ZSTANDARD, sizeless_zstd),
    "sz": (".sz", pb.SNAPPY, framed_snappy),
    "snappy": (".snappy", pb.SNAPPY, framed_snappy),
    "capitals": (".SZ", pb.SNAPPY, framed_snappy),
    "offloaded": ("", pb.GZIP_OFFLOAD_DECOMPRESSION, plain),
    "gzod": (".gzod", pb.GZIP_OFFLOAD_DECOMPRESSION, plain),
}


def put(root: Path, journal: str, begin: int, extension: str, stored: bytes, *, postfix: str = "") -> str:
    digest = hashlib.sha1(CONTENT, usedforsecurity=False).hexdigest()
    name = f"{begin:016x}-{begin + len(CONTENT):016x}-{digest}{extension}"
    folder = root / journal / postfix
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(stored)
    return name


@pytest.mark.parametrize("kind", FILES)
def test_every_extension_is_listed(broker: BrokerHandle, wire: Wire, journal_name: str, kind: str) -> None:
    extension, codec, compress = FILES[kind]
    put(broker.file_root, journal_name, 0, extension, compress(CONTENT), postfix="date=2026-11-21/hour=05")
    wire.create(spec(journal_name))
    (listed,) = wire.wait_persisted(journal_name, 1).fragments
    assert (listed.spec.begin, listed.spec.end) == (0, len(CONTENT))
    assert (listed.spec.compression_codec, listed.spec.path_postfix) == (codec, "date=2026-11-21/hour=05")


# A fragment's URL has the extension that Gazette writes, so files with another one are not found by it.
@pytest.mark.parametrize("kind", ["raw", "gz", "zst", "sz"])
def test_the_broker_serves_the_file(
    broker: BrokerHandle, client: Client, wire: Wire, journal_name: str, kind: str
) -> None:
    extension, _, compress = FILES[kind]
    put(broker.file_root, journal_name, 0, extension, compress(CONTENT), postfix="date=2026-11-21/hour=05")
    wire.create(spec(journal_name))
    wire.wait_persisted(journal_name, 1)
    assert wire.content(journal_name, end_offset=len(CONTENT)) == CONTENT
    with client.read(journal_name, end_offset=len(CONTENT)) as reader:
        assert reader.read() == CONTENT


@pytest.mark.parametrize("kind", ["raw", "gz", "sz"])
def test_both_clients_read_the_files(broker: BrokerHandle, wire: Wire, journal_name: str, kind: str) -> None:
    extension, _, compress = FILES[kind]
    put(broker.file_root, journal_name, 0, extension, compress(CONTENT))
    wire.create(spec(journal_name))
    wire.wait_persisted(journal_name, 1)
    begin, end = 1_000, len(CONTENT) - 1_000
    with (
        Client(broker.endpoint, timeout_s=30, fragment_root=str(broker.file_root)) as direct,
        direct.read(journal_name, offset=begin, end_offset=end) as reader,
    ):
        assert reader.read() == CONTENT[begin:end]
    flags = [f"--journal={journal_name}", f"--offset={begin}", f"--end-offset={end}"]
    flags += ["--do-not-proxy", f"--file-root={broker.file_root}"]
    got = end_of(run_go(broker.endpoint, "retry-reader", *flags))
    assert got["sha1"] == hashlib.sha1(CONTENT[begin:end], usedforsecurity=False).hexdigest()


def test_what_is_no_fragment_is_left_out(broker: BrokerHandle, wire: Wire, journal_name: str) -> None:
    good = put(broker.file_root, journal_name, 0, ".raw", CONTENT)
    folder = broker.file_root / journal_name
    for name in (
        "README",
        f".partial-{good}12345",
        good.replace(".raw", ".txt"),
        good.replace("-", "_"),
        "f" * 16 + good[16:],
        good[1:],
        good + ".bak",
    ):
        (folder / name).write_bytes(b"no fragment")
    wire.create(spec(journal_name))
    listed = wire.wait_persisted(journal_name, 1).fragments
    assert [each.signed_url.rpartition("/")[2] for each in listed] == [good]
    assert wire.content(journal_name, end_offset=len(CONTENT)) == CONTENT


def test_the_longest_of_overlapping_files_is_listed(
    broker: BrokerHandle, wire: Wire, journal_name: str
) -> None:
    """A fragment within another one is not listed; of neighbours that overlap both are."""
    half = len(CONTENT) // 2
    put(broker.file_root, journal_name, 0, ".raw", CONTENT)
    put(broker.file_root, journal_name, half, ".raw", CONTENT[half:] + CONTENT[:half])
    digest = hashlib.sha1(CONTENT[:half], usedforsecurity=False).hexdigest()
    short = broker.file_root / journal_name / f"{0:016x}-{half:016x}-{digest}.raw"
    short.write_bytes(CONTENT[:half])
    wire.create(spec(journal_name))
    wire.wait_persisted(journal_name, 2)
    assert wire.spans(journal_name) == [(0, len(CONTENT)), (half, half + len(CONTENT))]
    assert wire.content(journal_name, end_offset=len(CONTENT)) == CONTENT
