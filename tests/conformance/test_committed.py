"""Our readers deliver exactly what Gazette's publishers commit: as a library and as a command."""

from __future__ import annotations

import base64
import json
import subprocess
import uuid
from collections.abc import Sequence

import pytest

from gazette_spark import Client
from gazette_spark.message import (
    ACK_TXN,
    Envelope,
    Sequencer,
    framing_by_content_type,
    read_committed,
    read_uncommitted,
    split_uuid,
)
from gazette_spark.protocol.labels import CONTENT_TYPE_CSV, CONTENT_TYPE_NDJSON, CONTENT_TYPE_PROTO_FIXED
from tests.conformance.command import Command, end_by_signal
from tests.conformance.goclient import end_of, run_go
from tests.conformance.wire import Wire, labels, spec
from tests.rig.brokers import BrokerHandle
from tests.rig.gazctl import clean_environment, find_binary

pytestmark = pytest.mark.brokers("embedded", "deployed")

ORDERS = [
    "a uncommitted 1",
    "b uncommitted 2",
    "c committed 3",
    "a uncommitted 4",
    "a acknowledge 0",
    "a repeat 0",
    "c committed 5",
    "b forget 0",  # Its published messages are never acknowledged.
    "b uncommitted 6",
    "a uncommitted 7",
    "a repeat 0",  # As after a crash: what was published since is lost.
    "b acknowledge 0",
    "a uncommitted 8",
    "a acknowledge 0",
    "b uncommitted 9",
]
COMMITTED = [3, 1, 4, 0, 5, 6, 0, 8, 0]
"""Numbers of the committed messages, with 0 for an acknowledgement."""


def publish(broker: BrokerHandle, journal: str, orders: Sequence[str]) -> None:
    """Let Go's publishers run orders of the form ``name what number``."""
    lines = [
        json.dumps({"Publisher": name, "Do": what, "Number": int(number)})
        for name, what, number in map(str.split, orders)
    ]
    done = run_go(broker.endpoint, "publish", f"--journal={journal}", content="\n".join(lines).encode())
    assert end_of(done)["orders"] == len(orders)


def create(client: Client, name: str, content_type: str) -> None:
    client.create_journals(spec(name, labels=labels(("content-type", content_type))))


def number(envelope: Envelope) -> int:
    """Return the number of a message, or 0 of an acknowledgement."""
    record = bytes(envelope.message)
    found = json.loads(record).get("number", 0) if record[:1] == b"{" else (record[19:] or b"\0")[0]
    is_ack = split_uuid(envelope.message.get_uuid())[2] == ACK_TXN
    assert (found == 0) == is_ack
    return int(found)


@pytest.mark.parametrize("ring", [pytest.param(8192, id="from_the_ring"), pytest.param(1, id="replayed")])
@pytest.mark.parametrize(
    "content_type", [CONTENT_TYPE_NDJSON, CONTENT_TYPE_PROTO_FIXED], ids=["json", "fixed"]
)
def test_gos_transactions(
    broker: BrokerHandle, client: Client, journal_name: str, content_type: str, ring: int
) -> None:
    create(client, journal_name, content_type)
    publish(broker, journal_name, ORDERS)
    sequencer = Sequencer(ring_messages=ring)
    with read_committed(client, journal_name, sequencer=sequencer) as reader:
        assert list(map(number, reader)) == COMMITTED
    assert sequencer.has_pending()
    assert sequencer.offsets == {journal_name: client.write_head(journal_name)}
    offsets, states = sequencer.checkpoint()
    publish(broker, journal_name, ["c committed 10"])
    with read_committed(client, journal_name, sequencer=Sequencer(offsets, states)) as reader:
        assert list(map(number, reader)) == [10]


def test_a_reader_that_waits(broker: BrokerHandle, client: Client, journal_name: str) -> None:
    create(client, journal_name, CONTENT_TYPE_NDJSON)
    publish(broker, journal_name, ["a uncommitted 1", "a acknowledge 0"])
    with read_committed(client, journal_name, block=True) as reader:
        assert [number(next(reader)) for _ in range(2)] == [1, 0]
        publish(broker, journal_name, ["a uncommitted 2", "a acknowledge 0"])
        assert [number(next(reader)) for _ in range(2)] == [2, 0]
        reader.close()
        assert list(reader) == []


def test_the_command_writes_committed_frames(
    broker: BrokerHandle, client: Client, journal_name: str, run: Command
) -> None:
    create(client, journal_name, CONTENT_TYPE_NDJSON)
    publish(broker, journal_name, ORDERS)
    framing = framing_by_content_type(CONTENT_TYPE_NDJSON)
    with read_uncommitted(client, journal_name) as reader:
        frames = {number(each): (each.begin, framing.marshal(each.message).decode()) for each in reader}
    wanted = [frames[each] for each in COMMITTED if each]
    command = ["read", journal_name, "--isolation-level", "read_committed"]
    assert run.done(*command) == "".join(frame for _, frame in wanted)
    lines = [json.loads(line) for line in run.done(*command, "--format", "json").splitlines()]
    assert [(each["offset"], base64.b64decode(each["content"]).decode()) for each in lines] == wanted
    assert {each["journal"] for each in lines} == {journal_name}
    everything = run.done("read", journal_name, "--isolation-level", "read_uncommitted")
    assert everything == run.done("read", journal_name) != run.done(*command)


@pytest.mark.brokers("embedded")
def test_the_command_waits_for_acknowledgements(
    broker: BrokerHandle, client: Client, journal_name: str, run: Command
) -> None:
    create(client, journal_name, CONTENT_TYPE_NDJSON)
    publish(broker, journal_name, ["a uncommitted 1", "b committed 2"])
    command = ["read", journal_name, "--isolation-level", "read_committed", "--block"]
    with run.running(*command) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["number"] == 2
        publish(broker, journal_name, ["c uncommitted 3", "c acknowledge 0"])
        assert json.loads(process.stdout.readline())["number"] == 3
        assert end_by_signal(process) == (0, "", "")


def test_attached_uuids(client: Client, wire: Wire, journal_name: str, run: Command) -> None:
    attached = subprocess.run(
        [str(find_binary("gazctl")), "attach-uuids"],
        input=b'one,"1"\ntwo,2\n',
        capture_output=True,
        check=True,
        timeout=60,
        env=clean_environment(),
    ).stdout
    create(client, journal_name, CONTENT_TYPE_CSV)
    for content in (attached, b"\n", attached):
        wire.append(journal_name, content)
    command = ["read", journal_name, "--isolation-level", "read_committed"]
    assert run.done(*command) == attached.decode()
    refused = run(*command, "--uuid-path", "1")
    assert refused.exit_code == 1
    assert f"journal '{journal_name}', record at offset 0: 'one' is not a UUID" in refused.stderr


def test_a_place_of_ones_own(client: Client, wire: Wire, journal_name: str, run: Command) -> None:
    create(client, journal_name, CONTENT_TYPE_NDJSON)
    stamp = uuid.UUID("04c29687-833b-11ee-8000-010203040506")
    line = b'{"id":"%b"}\n' % str(stamp).encode()
    wire.append(journal_name, line * 2 + b'{"a":1}\n' * 2)
    command = ["read", journal_name, "--isolation-level", "read_committed"]
    assert run.done(*command, "--uuid-path", "/id") == (line + b'{"a":1}\n' * 2).decode()
    assert run.done(*command) == (line * 2 + b'{"a":1}\n' * 2).decode()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--uuid-path", "/id"], "--uuid-path is for --isolation-level=read_committed"),
        (
            ["--isolation-level", "read_committed", "--offsets-out", "x"],
            "does not describe open transactions",
        ),
        (["--isolation-level", "read_committed", "--uuid-path", "id"], "option '--uuid-path': got 'id'"),
        (["--isolation-level", "serializable"], "read_uncommitted"),
    ],
    ids=["path-alone", "offsets-out", "path", "level"],
)
@pytest.mark.brokers("embedded")
def test_refusals_of_the_command(
    client: Client, journal_name: str, run: Command, options: list[str], says: str
) -> None:
    create(client, journal_name, CONTENT_TYPE_NDJSON)
    refused = run("read", journal_name, *options)
    assert refused.exit_code != 0
    assert says in refused.stderr


@pytest.mark.brokers("embedded")
def test_other_journals_have_no_messages(client: Client, journal_name: str, run: Command) -> None:
    client.create_journals(spec(journal_name))
    refused = run("read", journal_name, "--isolation-level", "read_committed")
    assert refused.exit_code == 1
    assert f"journal '{journal_name}': it lacks the label content-type" in refused.stderr
    assert CONTENT_TYPE_CSV in refused.stderr
