"""Queries authenticate to a real broker with certificates and tokens, and outlive tokens in a file.

The examples of docs/guides/secure.md run as printed. `gazette-spark verify` starts a separate Spark, so it
runs in soak only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from gazette_spark import Client, DeltaSink, ingest
from gazette_spark.client import journal_spec
from gazette_spark.failpoints import FailpointError, calling
from tests.rig.brokers import BrokerHandle
from tests.rig.gazctl import clean_environment
from tests.rig.secured import KEYS, is_refused, open_client, renewed, secured_broker, token
from tests.spark.source_queries import QUERY_TIMEOUT_S
from tests.waiting import wait_until

pytestmark = pytest.mark.deployed_broker

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "secure.md"
WHOLE = [pytest.param(False, id="brief"), pytest.param(True, id="whole", marks=pytest.mark.soak)]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerHandle]:
    """A real broker that requires client certificates and tokens."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture
def client(secured: BrokerHandle) -> Iterator[Client]:
    with open_client(secured) as opened:
        yield opened


def lines(first: int, count: int) -> bytes:
    return b"".join(b"record %d\n" % number for number in range(first, first + count))


def options(broker: BrokerHandle, **identity: str) -> dict[str, str]:
    """Return a query's options: certificates in files, and the given form of token."""
    assert broker.certificates is not None
    names = {f"auth.{name}": text for name, text in identity.items()}
    return (
        {"brokerAddress": broker.endpoint, "startingOffsets": "earliest"}
        | broker.certificates.file_options()
        | names
    )


class Page:
    """The examples of docs/guides/secure.md, with this test's broker and folders substituted."""

    def __init__(self, broker: BrokerHandle, root: Path, prefix: str) -> None:
        assert broker.certificates is not None
        self.root = root
        folder = root / "gazette"
        folder.mkdir()
        (folder / "token").write_text(token())
        for path in (broker.certificates.ca, broker.certificates.client.cert, broker.certificates.client.key):
            shutil.copy(path, folder)
        self._replaced = {
            "https://broker.example:8080": broker.endpoint,
            "/etc/gazette": str(folder),
            "/data": str(root),
            "shop/orders": f"{prefix}orders",
        }

    def blocks(self, language: str) -> list[str]:
        found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        for old, new in self._replaced.items():
            found = [block.replace(old, new) for block in found]
        return found

    def run(self, block: str) -> subprocess.CompletedProcess[str]:
        """Run a block of commands in a shell with our commands on PATH, up to the first that fails."""
        program = self.root / "bin" / "gazette-spark"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gazette_spark.cli "$@"\n')
        program.chmod(0o755)
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        env = clean_environment() | {"PATH": path, "PYTHONPATH": str(ROOT), "GAZETTE_KEYS": KEYS}
        command = ["/bin/sh", "-eu", "-c", block]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("whole", WHOLE)
def test_the_pages_examples_do_what_they_say(
    *,
    whole: bool,
    spark: SparkSession,
    secured: BrokerHandle,
    fresh_prefix: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    journal = f"{fresh_prefix}orders"
    with open_client(secured) as client:
        client.create_journals(journal_spec(journal))
        client.append(journal, lines(0, 50))
    page = Page(secured, tmp_path, fresh_prefix)
    assert secured.certificates is not None
    contents = secured.certificates.content_options()
    names: dict[str, Any] = {"spark": spark}
    names["vault"] = {
        "gazette-keys": KEYS,
        "token": token(),
        "ca": contents["tls.ca"],
        "certificate": contents["tls.cert"],
        "key": contents["tls.keySecret"],
    }
    query, *others = page.blocks("python")
    exec(query, names)
    found = spark.read.format("delta").load(f"{tmp_path}/orders").orderBy("offset").collect()
    assert b"".join(bytes(row.value) + b"\n" for row in found) == lines(0, 50)
    for block in others:
        exec(block, names)
    assert capsys.readouterr().out.split("\n") == [
        "50 records",
        "50 records",
        "52 records",
        "READ is confined: the journal is not found",
        "APPLY is not: True",
        "APPLY is confined, too",
        "",
    ]
    (commands,) = page.blocks("sh")
    verify = re.compile(r"^gazette-spark verify .*\n", re.MULTILINE)
    assert len(verify.findall(commands)) == 1
    done = page.run(commands if whole else verify.sub("", commands))
    assert '{"id": 101}' in done.stdout, done.stderr
    assert ("VERIFIED: " in done.stdout) == whole, done.stderr
    # Two records are still unread. The last exit code is the verdict, which depends on how old they are.
    assert re.search(r"/orders +\w+ +24$", done.stdout, re.MULTILINE), done.stdout
    assert done.returncode in (0, 1, 2), done.stderr


def test_a_token_file_that_rotates_under_a_stream(
    spark: SparkSession, secured: BrokerHandle, client: Client, fresh_prefix: str, tmp_path: Path
) -> None:
    """Source and writer continue after their first token expires; no record is lost or duplicated."""
    source, target = f"{fresh_prefix}in", f"{fresh_prefix}out"
    client.create_journals(journal_spec(source), journal_spec(target))
    client.append(source, lines(0, 10))
    path = tmp_path / "token"
    enter = options(secured, tokenFile=str(path))
    # If the query asks when bytes were stored, tasks read them themselves, with their own token.
    stream = spark.readStream.format("gazette").schema("value BINARY, _fragment_mod_time TIMESTAMP")
    rows = stream.options(**enter).load(source).select("value")
    del enter["startingOffsets"]
    writer = rows.writeStream.format("gazette").options(**enter)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

    def reached(count: int) -> bool:
        assert query.isActive, query.exception()
        return client.write_head(target) >= len(lines(0, count))

    with renewed(path):
        query = writer.start(target)
        try:
            wait_until("the first rows", lambda: reached(10), QUERY_TIMEOUT_S)
            first = path.read_text()  # A later token does too: earlier ones expire sooner.
            wait_until("a token of the query to expire", lambda: is_refused(secured, first), QUERY_TIMEOUT_S)
            client.append(source, lines(10, 10))
            wait_until("the others", lambda: reached(20), QUERY_TIMEOUT_S)
        finally:
            query.stop()
    assert client.read(target).read() == lines(0, 20)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["embedded", "deployed"])
def test_the_direct_lane_enters_by_a_token_file(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Both lanes leave the same rows, although the direct one crashes and its first token has expired."""
    with secured_broker(tmp_path / "secured", kind) as broker, open_client(broker) as client:
        client.create_journals(journal_spec("secured/in"))
        client.append("secured/in", lines(0, 10))
        run_both_lanes(spark, broker, client, tmp_path)


def run_both_lanes(spark: SparkSession, broker: BrokerHandle, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "token"
    # If the query asks when bytes were stored, tasks read them themselves, with their own token.
    schema = "journal STRING, offset BIGINT, value BINARY, _fragment_mod_time TIMESTAMP"

    def run(name: str) -> None:
        sink = DeltaSink(name, path=str(tmp_path / name))
        reader = spark.readStream.format("gazette").schema(schema)
        reader = reader.options(**options(broker, tokenFile=str(path)), path="secured/in")
        checkpoint = str(tmp_path / f"{name}-checkpoint")
        if name == "direct":
            query = ingest(reader, sink, checkpoint=checkpoint, availableNow=True)
        else:
            query = sink.start(reader.load(), checkpoint=checkpoint, lane="spark", availableNow=True)
        assert query.awaitTermination(QUERY_TIMEOUT_S)

    def die() -> None:
        raise FailpointError("sink.after_write")

    with renewed(path):
        first = path.read_text()
        with (
            calling("sink.after_write", die, nth=2),
            pytest.raises(StreamingQueryException, match=r"sink\.after_write"),
        ):
            run("direct")
        wait_until("the first token to expire", lambda: is_refused(broker, first), QUERY_TIMEOUT_S)
        client.append("secured/in", lines(10, 10))
        run("direct")
        run("spark")
    for name in ("direct", "spark"):
        rows = spark.read.format("delta").load(str(tmp_path / name)).orderBy("offset").collect()
        assert b"".join(bytes(row.value) + b"\n" for row in rows) == lines(0, 20)
