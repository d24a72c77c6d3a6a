"""Compares the speed of reading stored fragments with the codecs' libraries on the same files.

``python benchmarks/fragment_decode.py --megabytes 256`` prints, per codec, MB of content per second of wall
time:

* ``library``: only the codec's library, whose output is discarded; ``decoder``: ours, and its ratio to that;
* ``checked``: the library followed by SHA-1, which is the minimum cost of checking in one thread;
  ``direct``: the whole direct read, which finds the file, compares length and SHA-1, and makes chunks, and
  its ratio to that. On a machine with an idle core it is above 1.

The ways alternate and the best run of each counts, so that other work on the machine has little effect. Every
answer is checked.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cramjam
import zstandard
from isal import igzip

from gazette_spark.client import open_fragment_url
from gazette_spark.client._read.codecs import decode_fragment
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment

GOAL = 0.8
PIECE_BYTES = 1 << 18


def content_of(size: int) -> bytes:
    """Return JSON lines like a journal's. gzip compresses them to a sixth."""
    lines = []
    left = size
    number = 0
    while left > 0:
        user = hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()[:8]
        line = f'{{"id": {number}, "event": "view", "user": "{user}", "ok": true}}\n'.encode()
        lines.append(line)
        left -= len(line)
        number += 1
    return b"".join(lines)[:size]


def zstd(content: bytes) -> bytes:
    """Compress as Gazette does, without the content size."""
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return compressor.compress(content) + compressor.flush()


def drain(read: Callable[[int], bytes]) -> int:
    """Read to the end; return the number of bytes."""
    size = 0
    while piece := read(PIECE_BYTES):
        size += len(piece)
    return size


def library_none(path: Path) -> int:
    """Read a file."""
    with path.open("rb", buffering=0) as file:
        return drain(file.read)


def library_gzip(path: Path) -> int:
    """Read with isal's file class."""
    with igzip.open(path, "rb") as file:
        return drain(file.read)


def library_snappy(path: Path) -> int:
    """Read and decode everything at once, because cramjam has no streaming reader of frames."""
    return len(cramjam.snappy.decompress(path.read_bytes()))


def library_zstandard(path: Path) -> int:
    """Read with zstandard's streaming reader."""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        return drain(reader.read)


CODECS: dict[str, tuple[int, Callable[[bytes], bytes], Callable[[Path], int]]] = {
    "NONE": (pb.NONE, bytes, library_none),
    "GZIP": (pb.GZIP, gzip.compress, library_gzip),
    "SNAPPY": (pb.SNAPPY, lambda content: bytes(cramjam.snappy.compress(content)), library_snappy),
    "ZSTANDARD": (pb.ZSTANDARD, zstd, library_zstandard),
    "GZIP_OFFLOAD_DECOMPRESSION": (pb.GZIP_OFFLOAD_DECOMPRESSION, gzip.compress, library_gzip),
}


def decode(path: Path, codec: int) -> int:
    """Decode with only our decoder."""
    with path.open("rb", buffering=0) as file:
        return sum(map(len, decode_fragment(file, codec)))


def direct(root: Path, fragment: Fragment) -> int:
    """Read as a client does."""
    url = f"file:///{fragment.content_path}"
    with open_fragment_url(fragment, url, fragment_root=str(root)) as reader:
        return sum(len(chunk.content) for chunk in reader)


def best_of(rounds: int, ways: list[Callable[[], int]], size: int) -> list[float]:
    """Return the best MB per second of each way, all of which return ``size`` bytes."""
    best = [0.0] * len(ways)
    for _ in range(rounds):
        for index, way in enumerate(ways):
            started = time.perf_counter()
            got = way()
            took = time.perf_counter() - started
            assert got == size
            best[index] = max(best[index], size / took / 1e6)
    return best


@dataclass(frozen=True)
class Result:
    """MB/s of each way for one codec."""

    codec: str
    library: float
    decoder: float
    direct: float
    checked: float

    @property
    def ratio(self) -> float:
        """Ratio of our decoder's speed to the library's."""
        return self.decoder / self.library


def measure(megabytes: int, rounds: int) -> Iterator[Result]:
    """Decode a fragment of each codec in every way."""
    content = content_of(megabytes * 1_000_000)
    digest = hashlib.sha1(content, usedforsecurity=False).digest()
    with tempfile.TemporaryDirectory() as folder:
        for name, (codec, encode, library) in CODECS.items():
            fragment = Fragment("bench/journal", 0, len(content), digest, codec, "file:///", 1)
            path = Path(folder) / fragment.content_path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(content))
            url = f"file:///{fragment.content_path}"
            with open_fragment_url(fragment, url, fragment_root=folder) as reader:
                assert b"".join(chunk.content for chunk in reader) == content
            ways: list[Callable[[], int]] = [
                partial(library, path),
                partial(decode, path, codec),
                partial(direct, Path(folder), fragment),
                lambda: (hashlib.sha1(content, usedforsecurity=False), len(content))[1],
            ]
            alone, decoder, read, sums = best_of(rounds, ways, len(content))
            yield Result(name, alone, decoder, read, 1 / (1 / alone + 1 / sums))
            path.unlink()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(f"{options.megabytes} MB of JSON lines, best of {options.rounds} rounds, MB/s of content")
    print(f"{'codec':<28}{'library':>9}{'decoder':>9}{'ratio':>7}{'checked':>9}{'direct':>9}{'ratio':>7}")
    for each in measure(options.megabytes, options.rounds):
        missed = "" if each.ratio >= GOAL else f"  below {GOAL}"
        numbers = f"{each.library:>9.0f}{each.decoder:>9.0f}{each.ratio:>7.2f}"
        compared = f"{each.checked:>9.0f}{each.direct:>9.0f}{each.direct / each.checked:>7.2f}"
        print(f"{each.codec:<28}{numbers}{compared}{missed}")


if __name__ == "__main__":
    main()
