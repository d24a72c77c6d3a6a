"""Runs one job of ``client_parity.py`` in a separate process, so that its memory can be measured.

    python benchmarks/client_jobs.py read '{"endpoint": "http://127.0.0.1:8080", "journal": "a/b", ...}'

It prints one JSON object with the work done, the seconds, and the peak memory of the process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from harness import peak_bytes

from gazette_spark import Client

TIMEOUT_S = 120.0


def read(
    endpoint: str, journal: str, end: int, *, fragment_root: str | None = None, output: str | None = None
) -> dict[str, Any]:
    """Read ``[0, end)`` into a file, or discard it."""
    total = 0
    with (
        Client(endpoint, timeout_s=TIMEOUT_S, fragment_root=fragment_root) as client,
        Path(output or "/dev/null").open("wb") as file,
    ):
        began = perf_counter()
        with client.read(journal, end_offset=end) as reader:
            for chunk in reader:
                file.write(chunk.content)
                total += len(chunk.content)
        file.flush()
        return {"bytes": total, "seconds": perf_counter() - began}


def append(endpoint: str, journal: str, size: int, append_size: int) -> dict[str, Any]:
    """Append the same bytes repeatedly, each time as one transaction."""
    from random import Random

    content = Random(1).randbytes(append_size)
    total = 0
    with Client(endpoint, timeout_s=TIMEOUT_S) as client:
        began = perf_counter()
        while total < size:
            done = client.append(journal, content)
            assert done.end - done.begin == append_size
            total += append_size
        return {"bytes": total, "seconds": perf_counter() - began}


def service(endpoint: str, journal: str, size: int, record_size: int) -> dict[str, Any]:
    """Append numbered records with an AppendService, one append each."""
    import hashlib

    from gazette_spark.client import AppendService

    records = size // record_size
    digest = hashlib.sha1(usedforsecurity=False)
    with Client(endpoint, timeout_s=TIMEOUT_S) as client:
        began = perf_counter()
        with AppendService(client) as appends:
            for number in range(records):
                record = b"%019d " % number
                record += b"." * (record_size - len(record) - 1) + b"\n"
                digest.update(record)
                appends.append(journal, record)
        seconds = perf_counter() - began
    return {
        "bytes": records * record_size,
        "records": records,
        "seconds": seconds,
        "sha1": digest.hexdigest(),
    }


JOBS: dict[str, Callable[..., dict[str, Any]]] = {"read": read, "append": append, "service": service}


def main() -> None:
    """Run the job named on the command line."""
    done = JOBS[sys.argv[1]](**json.loads(sys.argv[2]))
    done["peak_bytes"] = peak_bytes("self")
    print(json.dumps(done))


if __name__ == "__main__":
    main()
