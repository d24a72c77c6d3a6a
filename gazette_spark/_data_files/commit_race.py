"""Runs a race of two writers, which shows whether a store accepts only one of two concurrent commits."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from pyarrow import fs

from gazette_spark._frames import deltalake_text
from gazette_spark.locations import deltalake_location

WRITERS, ROUNDS = 2, 5

COMMITS = WRITERS * ROUNDS
"""Number of commits in a race."""


def lost_commits(store: str) -> int:
    """Let two writers commit rows to a new table concurrently, and return how many commits are lost.

    The table is deleted at the end, unless the store fails before that.

    Args:
        store: URL of a writable prefix, with settings in pyarrow's form:
            ``s3://bucket/prefix?endpoint_override=…&region=…``. Other settings come from the environment.

    Raises:
        OSError: the store cannot be written.
    """
    parts = urlsplit(store)
    settings = dict(parse_qsl(parts.query))
    scheme, host = settings.get("scheme", "https"), settings.get("endpoint_override")
    values = {
        "AWS_ENDPOINT_URL": f"{scheme}://{host}" if host else None,
        "AWS_ALLOW_HTTP": "true" if scheme == "http" else None,
        "AWS_REGION": settings.get("region"),
        "AWS_ACCESS_KEY_ID": parts.username,
        "AWS_SECRET_ACCESS_KEY": parts.password,
    }
    options = {name: value for name, value in values.items() if value}
    path = f"{parts.path.strip('/')}/gazette-spark-doctor-{uuid.uuid4().hex}".lstrip("/")
    table = deltalake_location(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{path}")
    start = threading.Barrier(WRITERS)

    def commit(writer: int) -> None:
        rows = pa.table({"writer": [writer]})
        try:
            for _ in range(ROUNDS):
                # Both writers wait for each other, so that they commit at the same time.
                start.wait()
                write_deltalake(table, rows, mode="append", storage_options=options)
        except DeltaError:
            start.abort()  # The other writer must not wait forever.
            raise

    try:
        write_deltalake(table, pa.table({"writer": pa.array([], pa.int64())}), storage_options=options)
        with ThreadPoolExecutor(WRITERS) as pool:
            writers = [pool.submit(commit, number) for number in range(WRITERS)]
        for error in [writer.exception() for writer in writers]:
            if isinstance(error, DeltaError):
                raise error
        # Each commit has one row. A commit that was overwritten raises no error: only its row is missing.
        rows: int = DeltaTable(table, storage_options=options).to_pyarrow_table().num_rows
    except DeltaError as error:
        raise OSError(deltalake_text(error)) from error
    files, directory = fs.FileSystem.from_uri(urlunsplit(parts._replace(path=f"/{path}")))
    files.delete_dir(directory)
    return COMMITS - rows
