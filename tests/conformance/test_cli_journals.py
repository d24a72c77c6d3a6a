"""``gazette-spark journals`` does with either broker what ``gazctl journals`` does."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.command import SPECS, Command
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded", "deployed")


def test_apply_list_append_read_and_fragments_work_together(
    run: Command, orders: str, tmp_path: Path
) -> None:
    content = "".join(f'{{"id": {n}, "name": "äöü"}}\n' for n in range(5000)).encode()
    appended = json.loads(run("append", orders, "--format", "json", stdin=content).stdout)
    assert appended == {
        "journal": orders,
        "begin": 0,
        "end": len(content),
        "sha1": hashlib.sha1(content).hexdigest(),
    }
    (listed,) = map(
        json.loads, run("list", "-l", f"name={orders}", "--heads", "-o", "jsonl").stdout.splitlines()
    )
    assert (listed["name"], listed["codec"], listed["labels"]) == (orders, "GZIP", {"app": "shop"})
    assert listed["write_head"] == len(content)
    assert run("read", orders).stdout_bytes == content
    assert run("read", orders, "--offset", "10", "--end-offset", "200").stdout_bytes == content[10:200]
    target = tmp_path / "copy"
    assert run("read", orders, "--output", str(target)).exit_code == 0
    assert target.read_bytes() == content
    fragments = [json.loads(line) for line in run("fragments", orders, "-o", "jsonl").stdout.splitlines()]
    assert (fragments[0]["begin"], fragments[-1]["end"]) == (0, len(content))


def test_json_chunks_join_to_the_content(run: Command, orders: str) -> None:
    content = bytes(range(256)) * 2000
    run("append", orders, stdin=content)
    chunks = [json.loads(line) for line in run("read", orders, "--format", "json").stdout.splitlines()]
    read = bytearray()
    for chunk in chunks:
        assert chunk["offset"] == len(read)
        read += base64.b64decode(chunk["content"])
    assert read == content


def test_text_is_a_table(run: Command, orders: str) -> None:
    heading, line = run("list", "-l", f"name={orders}").stdout.splitlines()
    assert heading.split()[:2] == ["NAME", "CODEC"]
    assert line.split()[:2] == [orders, "GZIP"]


def test_a_dry_run_applies_nothing(run: Command, fresh_prefix: str) -> None:
    done = run("apply", "--dry-run", "--format", "json", stdin=SPECS.format(prefix=fresh_prefix))
    assert json.loads(done.stdout)["changes"] == [{"name": f"{fresh_prefix}orders", "change": "create"}]
    assert run("list", "-l", f"name={fresh_prefix}orders", "-o", "jsonl").stdout == ""


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        pytest.param(["read", "{prefix}none"], "JOURNAL_NOT_FOUND", id="read what is not there"),
        pytest.param(["append", "{prefix}none"], "JOURNAL_NOT_FOUND", id="append to what is not there"),
        pytest.param(["fragments", "{prefix}none"], "JOURNAL_NOT_FOUND", id="fragments of what is not there"),
        pytest.param(["append", "{orders}", "--offset", "77"], "WRONG_APPEND_OFFSET", id="append elsewhere"),
    ],
)
def test_refusals_are_one_line_and_exit_code_1(
    run: Command, orders: str, fresh_prefix: str, args: list[str], problem: str
) -> None:
    run("append", orders, stdin=b"some bytes\n")
    answer = run(*(arg.format(prefix=fresh_prefix, orders=orders) for arg in args), stdin=b"more\n")
    assert answer.exit_code == 1
    assert problem in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert answer.stdout == ""


def test_creating_twice_is_refused(run: Command, orders: str, fresh_prefix: str) -> None:
    """A spec without a revision only creates."""
    answer = run("apply", stdin=SPECS.format(prefix=fresh_prefix))
    assert answer.exit_code == 1
    revision = json.loads(run("list", "-l", f"name={orders}", "-o", "jsonl").stdout)["mod_revision"]
    expected = (
        f"{orders}': ETCD_TRANSACTION_FAILED: it exists already, at revision {revision}; add `revision: -1`"
    )
    assert expected in answer.stderr


def test_a_dry_run_tells_what_each_change_does(run: Command, orders: str, fresh_prefix: str) -> None:
    specs = SPECS.format(prefix=fresh_prefix)

    def change(text: str) -> tuple[int, str]:
        done = run("apply", "--dry-run", "--format", "json", stdin=text)
        (row,) = json.loads(done.stdout)["changes"]
        return done.exit_code, row["change"]

    overwriting = specs.replace("replication: 1", "replication: 1\n    revision: -1")
    assert change(specs) == (1, "refused")
    assert change(overwriting) == (0, "no change")
    assert change(overwriting.replace("1048576", "2097152")) == (0, "change")
    assert change(f"name: {orders}\nrevision: -1\ndelete: true") == (0, "delete")


def test_a_prefix_without_its_slash_is_suggested(run: Command, orders: str, fresh_prefix: str) -> None:
    name = fresh_prefix.rstrip("/")
    for command in ("read", "append", "fragments"):
        answer = run(command, name, stdin=b"more\n")
        assert f"did you mean the prefix '{name}/' (1 journal)? Check the name" in answer.stderr
    answer = run("read", fresh_prefix)
    assert (
        f"'{fresh_prefix}' is a prefix: select its journals with --selector prefix={fresh_prefix}"
        in answer.stderr
    )


def test_a_similar_name_is_suggested(run: Command, orders: str, fresh_prefix: str) -> None:
    slip = f"{fresh_prefix}ordres"
    for command in (["read"], ["append"], ["append", "--framing", "lines"], ["fragments"]):
        answer = run(*command, slip, stdin=b"more\n")
        assert f"journal '{slip}': JOURNAL_NOT_FOUND: did you mean '{orders}'? Check" in answer.stderr
    elsewhere = run("read", f"{fresh_prefix}nothing-like-it").stderr
    assert "JOURNAL_NOT_FOUND. Check the name" in elsewhere


def test_an_append_elsewhere_names_the_write_head(run: Command, orders: str) -> None:
    """With the write head, the user can decide whether the bytes were already appended."""
    run("append", orders, stdin=b"some bytes\n")
    answer = run("append", orders, "--offset", "77", stdin=b"more\n")
    assert "--offset is 77, but the write head is 11: nothing was appended" in answer.stderr
    empty = run("append", orders, stdin=b"")
    assert "the input is empty; the write head is 11" in empty.stdout


def test_tables_are_for_people(run: Command, orders: str) -> None:
    run("append", orders, stdin=bytes(3 << 10))
    assert run("fragments", orders).stdout.splitlines()[1].split()[3:7] == ["3.0", "KiB", "GZIP", "-"]
    assert run("gaps", orders).stdout == "no gaps\n"
    assert run("gaps", orders, "-o", "jsonl").stdout == ""


def test_an_unreachable_broker_is_named_in_time() -> None:
    answer = Command("http://127.0.0.1:1")("--timeout", "1", "list")
    assert answer.exit_code == 1
    assert "127.0.0.1:1" in answer.stderr


@pytest.mark.brokers("embedded")
def test_the_libraries_below_log_nothing(broker: BrokerHandle) -> None:
    """The C library of gRPC has its own log, which must stay silent."""
    address = broker.endpoint.replace("http://", "https://")
    done = subprocess.run(
        [sys.executable, "-m", "gazette_spark.cli", "journals", "list", "--broker", address],
        env={name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "does not speak TLS" in line
