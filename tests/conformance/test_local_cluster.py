"""A user can run a local cluster, kill its brokers one by one, and lose no byte."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gazette_spark import Client, EmbeddedBroker
from gazette_spark.client import journal_spec

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "local-cluster.md"

NAME = "shop/orders"


def test_the_page_runs_as_printed(capfd: pytest.CaptureFixture[str]) -> None:
    pattern = r"^```python\n(.*?)^```\n.*?^```text\n(.*?)^```"
    examples = re.findall(pattern, PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    names: dict[str, Any] = {}
    for code, printed in examples:
        exec(code, names)
        assert capfd.readouterr() == (printed, "")


def test_each_broker_in_turn_is_killed(tmp_path: Path) -> None:
    written = b""
    with EmbeddedBroker.start(tmp_path, replicas=3) as cluster:
        with Client(cluster.endpoint) as client:
            client.create_journals(journal_spec(NAME))
        for number, broker in enumerate(cluster.brokers):
            broker.kill()
            with Client(cluster.endpoint) as client:
                record = b"record %d\n" % number
                assert client.append(NAME, record).begin == len(written)
                written += record
                cluster.settle()
                assert client.read(NAME).read() == written
            broker.start()


def test_the_bytes_outlive_the_cluster(tmp_path: Path) -> None:
    with EmbeddedBroker.start(tmp_path, replicas=3) as cluster, Client(cluster.endpoint) as client:
        client.create_journals(journal_spec(NAME))
        client.append(NAME, b"kept\n")
    with EmbeddedBroker.start(tmp_path) as broker, Client(broker.endpoint) as client:
        assert client.read(NAME).read() == b"kept\n"


def test_commands_on_stdin_harm_the_brokers(tmp_path: Path) -> None:
    program = "from gazette_spark.cli.broker import broker; broker()"
    command = [sys.executable, "-c", program, "serve", f"--root={tmp_path}", "--replicas=3"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            endpoints = [process.stdout.readline().strip() for _ in range(3)]
            with Client(endpoints[2]) as client:
                client.create_journals(journal_spec(NAME))
                client.append(NAME, b"one\n")
                answers = (line.strip() for line in process.stderr if "broker " in line or "command" in line)
                answer = iter(line for line in answers if line[0] in "b'")
                for order, expected in (
                    ("kill 1", "broker 1 is down"),
                    ("start 1", "broker 1 is running"),
                    ("kill 2", "broker 2 is down"),
                    ("kill 4", "'kill 4' is not a command; expected kill, start or stop and a number from 1"),
                ):
                    process.stdin.write(f"{order}\n")
                    process.stdin.flush()
                    assert next(answer).startswith(expected)
                client.append(NAME, b"two\n")
                assert client.read(NAME).read() == b"one\ntwo\n"
        finally:
            process.kill()


@pytest.mark.parametrize("flag", [["--port=8080"], ["--tls-cert=cert.pem", "--tls-key=key.pem"]])
def test_what_a_cluster_cannot_do_is_wrong_usage(tmp_path: Path, flag: list[str]) -> None:
    for file in ("cert.pem", "key.pem"):
        (tmp_path / file).touch()
    program = "from gazette_spark.cli.broker import broker; broker()"
    command = [sys.executable, "-c", program, "serve", "--root=data", "--replicas=3", *flag]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--replicas" in done.stderr
