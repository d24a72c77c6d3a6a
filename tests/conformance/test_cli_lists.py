"""Lists, YAML and fragments of ``gazette-spark`` and ``gazctl`` are interchangeable, on either broker."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest
import yaml
from google.protobuf import text_format

from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.command import Command, end_by_signal
from tests.conformance.wire import Wire, delete, labels, selector, spec, upsert
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded")

TREE = """
name: {prefix}
replication: 1
labels: [{{name: app, value: shop}}]
fragment:
  length: 1048576
  compression_codec: SNAPPY
  stores: ["file:///"]
  refresh_interval: 1s
  retention: 720h
  path_postfix_template: date={{{{ .Spool.FirstAppendTime.Format "2006-01-02" }}}}
children:
- name: {prefix}clicks/
  fragment: {{flush_interval: 1h}}
  children:
  - name: {prefix}clicks/000
    comment: the first one
  - name: {prefix}clicks/001
    labels: [{{name: app, value: test}}, {{name: content-type, value: application/x-ndjson}}]
- name: {prefix}orders
  flags: O_RDWR
  max_append_rate: 1073741824
"""


@pytest.fixture
def tree(run: Command, wire: Wire, fresh_prefix: str) -> str:
    text = run.done("apply", "-o", "json", stdin=TREE.format(prefix=fresh_prefix))
    for change in json.loads(text)["changes"]:
        wire.wait_assigned(change["name"])
    return fresh_prefix


def test_json_is_what_gazctl_prints(broker: BrokerHandle, run: Command, tree: str) -> None:
    ours = json.loads(run.done("list", "-l", f"prefix={tree}", "-o", "json"))
    theirs = json.loads(broker.gazctl("journals", "list", "-l", f"prefix={tree}", "-o", "json"))
    for listed in (*ours["journals"], *theirs["journals"]):
        # A missing message is null to one and left out by the other.
        listed["spec"].pop("suspend", None)
    assert ours["journals"] == theirs["journals"]
    assert ours["status"] == theirs["status"] == "OK"


def test_proto_is_what_gazctl_prints(broker: BrokerHandle, run: Command, tree: str) -> None:
    ours, theirs = (
        text_format.Parse(text, pb.ListResponse())
        for text in (
            run.done("list", "-l", f"prefix={tree}", "-o", "proto"),
            broker.gazctl("journals", "list", "-l", f"prefix={tree}", "-o", "proto"),
        )
    )
    for each in theirs.journals:
        complete(each.spec)
    assert list(ours.journals) == list(theirs.journals)


def test_yaml_is_what_gazctl_prints(broker: BrokerHandle, run: Command, tree: str) -> None:
    ours = yaml.safe_load(run.done("list", "-l", f"prefix={tree}", "-o", "yaml"))
    theirs = yaml.safe_load(broker.gazctl("journals", "list", "-l", f"prefix={tree}", "-o", "yaml"))
    assert ours == theirs


def complete(spec: pb.JournalSpec) -> None:
    """Add the empty messages that gazctl's text leaves out."""
    spec.labels.SetInParent()
    for duration in ("refresh_interval", "retention", "flush_interval"):
        getattr(spec.fragment, duration).SetInParent()


@pytest.mark.parametrize("writer", ["gazctl", "gazette-spark"])
@pytest.mark.parametrize("reader", ["gazctl", "gazette-spark"])
def test_edited_yaml_applies(
    *, broker: BrokerHandle, run: Command, tree: str, wire: Wire, writer: str, reader: str
) -> None:
    """Each program applies the other's edited list, but only once, because then the revisions are old."""
    select = ["journals", "list", "-l", f"prefix={tree}", "-o", "yaml"]
    text = broker.gazctl(*select) if writer == "gazctl" else run.done(*select[1:])
    edited = text.replace("1048576", "2097152")
    assert edited != text
    if reader == "gazctl":
        broker.gazctl("journals", "apply", "--specs", "-", input=edited)
    else:
        run.done("apply", stdin=edited)
    found = wire.list(selector(labels(("prefix", tree))))
    assert [each.spec.fragment.length for each in found] == [2097152] * 3
    assert [each.spec.fragment.flush_interval.seconds for each in found] == [3600, 3600, 0]
    again = run("apply", stdin=edited)
    assert again.exit_code == 1
    assert "ETCD_TRANSACTION_FAILED" in again.stderr


def test_the_yaml_of_nothing(run: Command, fresh_prefix: str) -> None:
    assert run.done("list", "-l", f"prefix={fresh_prefix}", "-o", "yaml") == "{}\n"


def test_suspension_survives_an_edit(run: Command, wire: Wire, journal: str) -> None:
    """The tree contains a journal's suspension, so applying it does not resume the journal."""
    suspended = spec(journal)
    suspended.suspend.level, suspended.suspend.offset = pb.JournalSpec.Suspend.FULL, 77
    wire.apply(upsert(suspended, -1))
    text = run.done("list", "-l", f"name={journal}", "-o", "yaml")
    run.done("apply", stdin=re.sub("length: [0-9]+", "length: 4096", text))
    (found,) = wire.list(selector(labels(("name", journal))))
    assert found.spec.fragment.length == 4096
    assert (found.spec.suspend.level, found.spec.suspend.offset) == (pb.JournalSpec.Suspend.FULL, 77)


def test_columns(run: Command, tree: str) -> None:
    text = run.done(
        "list", "-l", f"prefix={tree}", "--rf", "-p", "-r", "--stores", "-L", "app", "-L", "content-type"
    )
    heading, first, second, third = (line.split() for line in text.splitlines())
    assert heading == ["NAME", "RF", "PRIMARY", "REPLICAS", "STORES", "APP", "CONTENT-TYPE"]
    assert (first[0], first[1], first[-3:]) == (f"{tree}clicks/000", "1", ["file:///", "shop", "<none>"])
    assert second[-2:] == ["test", "application/x-ndjson"]
    assert third[0] == f"{tree}orders"


def test_a_suspended_primary_is_marked(run: Command, wire: Wire, journal: str) -> None:
    suspended = spec(journal)
    suspended.suspend.level = pb.JournalSpec.Suspend.FULL
    wire.apply(upsert(suspended, -1))
    assert "<S>" in run.done("list", "-l", f"name={journal}", "--primary")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watch(run: Command, wire: Wire, journal: str, number: int) -> None:
    with run.running("list", "-l", f"name={journal}", "--watch", "-o", "jsonl") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["fragment_length"] == 1 << 24
        wire.apply(upsert(spec(journal, length=1 << 20), -1))
        assert json.loads(process.stdout.readline())["fragment_length"] == 1 << 20
        wire.apply(delete(journal, -1))
        code, out, err = end_by_signal(process, number)
        assert (code, out, err) == (0, "", "")


@pytest.mark.brokers("embedded", "deployed")
def test_fragments_are_what_gazctl_prints(broker: BrokerHandle, run: Command, tree: str, wire: Wire) -> None:
    for name in (f"{tree}clicks/000", f"{tree}orders"):
        wire.append(name, b"first")
        wire.append(name, b"second")
        wire.wait_persisted(name, 1)
    chosen = ["journals", "fragments", "-l", f"prefix={tree}", "-o"]

    def lines(text: str) -> list[Any]:
        return [json.loads(line) for line in text.splitlines()]

    ours = lines(run.done(*chosen[1:], "json", "--url-ttl", "1m"))
    assert ours == lines(broker.gazctl(*chosen, "json", "--url-ttl", "1m"))
    assert len(ours) == 4
    assert lines(run.done(*chosen[1:], "json")) == lines(broker.gazctl(*chosen, "json"))
    rows = lines(run.done(*chosen[1:], "jsonl"))
    assert [row["begin"] for row in rows] == [0, 5, 0, 5]
    heading = run.done(*chosen[1:], "table").splitlines()[0]
    assert heading.split()[:4] == ["JOURNAL", "BEGIN", "END", "BYTES"]
    assert "compression_codec: SNAPPY" in run.done(*chosen[1:], "proto")


def test_apply_in_batches(run: Command, wire: Wire, fresh_prefix: str) -> None:
    children = "".join(f"- name: {fresh_prefix}{number}\n" for number in range(5))
    tree = (
        f"name: {fresh_prefix}\nreplication: 1\nfragment:\n  length: 1048576\n  compression_codec: NONE\n"
        f"  stores: ['file:///']\n  refresh_interval: 1s\nchildren:\n{children}"
    )
    assert run.done("apply", "--dry-run", stdin=tree) == run.done("apply", "--max-txn-size", "2", stdin=tree)
    found = wire.list(selector(labels(("prefix", fresh_prefix))))
    assert len({each.mod_revision for each in found}) == 3


def test_a_dry_run_shows_the_request(broker: BrokerHandle, run: Command, fresh_prefix: str) -> None:
    tree = TREE.format(prefix=fresh_prefix)
    ours = text_format.Parse(run.done("apply", "--dry-run", "-o", "proto", stdin=tree), pb.ApplyRequest())
    theirs = text_format.Parse(
        broker.gazctl("journals", "apply", "--dry-run", "--specs", "-", input=tree), pb.ApplyRequest()
    )
    for change in theirs.changes:
        complete(change.upsert)
    assert ours == theirs
