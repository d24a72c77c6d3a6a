"""``gazctl`` prints the same about journals and fragments of either broker."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml
from google.protobuf import text_format

from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.gazctl_process import end_by_signal, running_gazctl
from tests.conformance.wire import Wire, labels, selector, spec, wait_for
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded")

HOUR_S = 3600


@pytest.fixture
def pair(wire: Wire, fresh_prefix: str) -> list[str]:
    names = [f"{fresh_prefix}{name}" for name in ("one", "two")]
    wire.create(*(spec(name, labels=labels(("color", "blue"))) for name in names))
    for name in names:
        wire.append(name, f"content of {name}\n".encode())
    return names


def chosen_by(names: list[str]) -> str:
    return f"prefix={names[0].rpartition('/')[0]}/"


def test_list_as_table(broker: BrokerHandle, pair: list[str]) -> None:
    columns = ["--primary", "--replicas", "--rf", "--stores", "-L", "color", "-L", "missing"]
    shown = broker.gazctl("journals", "list", "-l", chosen_by(pair), *columns)
    rows = [[cell.strip() for cell in line.strip("│|").split("│")] for line in shown.splitlines()]
    cells = {row[0]: row[1:] for row in rows if row[0] in pair}
    assert sorted(cells) == pair
    for replication, primary, replicas, store, color, missing in cells.values():
        assert (replication, store, color, missing) == ("1", "file:///", "blue", "<none>")
        assert primary not in ("", "<none>", *replicas.split(","))


def test_list_as_proto(broker: BrokerHandle, pair: list[str], wire: Wire) -> None:
    shown = broker.gazctl("journals", "list", "-l", chosen_by(pair), "-o", "proto")
    parsed = text_format.Parse(shown, pb.ListResponse())
    got = {each.spec.name: each for each in parsed.journals}
    assert sorted(got) == pair
    for each in wire.list(selector(labels(("prefix", chosen_by(pair).removeprefix("prefix="))))):
        shown_one = got[each.spec.name]
        assert (shown_one.mod_revision, shown_one.create_revision) == (
            each.mod_revision,
            each.create_revision,
        )
        assert (shown_one.route, shown_one.spec.labels) == (each.route, each.spec.labels)
        assert list(shown_one.spec.fragment.stores) == list(each.spec.fragment.stores)


def test_list_as_yaml(broker: BrokerHandle, pair: list[str]) -> None:
    tree = yaml.safe_load(broker.gazctl("journals", "list", "-l", chosen_by(pair), "-o", "yaml"))
    assert tree["replication"] == 1
    assert tree["labels"] == [{"name": "color", "value": "blue"}]
    assert [child["name"] for child in tree["children"]] == pair
    assert all(child["revision"] > 0 for child in tree["children"])


def test_list_watch(broker: BrokerHandle, pair: list[str], wire: Wire) -> None:
    more = pair[0] + "-more"
    with running_gazctl(
        broker, ["journals", "list", "-l", chosen_by(pair), "-o", "json", "--watch"]
    ) as process:
        output = process.stdout
        assert output is not None
        decoder, seen = json.JSONDecoder(), ""

        def next_names() -> list[str]:
            nonlocal seen
            while True:
                try:
                    snapshot, stop = decoder.raw_decode(seen)
                except json.JSONDecodeError:
                    piece = output.read(1)
                    assert piece, "gazctl ended"
                    seen += piece
                else:
                    seen = seen[stop:].lstrip()
                    return sorted(each["spec"]["name"] for each in snapshot["journals"])

        assert next_names() == pair
        wire.create(spec(more))
        while (names := next_names()) == pair:
            pass
        assert names == sorted([*pair, more])


def test_read_to_a_file(broker: BrokerHandle, pair: list[str], tmp_path: Path) -> None:
    output = tmp_path / "output"
    broker.gazctl("journals", "read", "-l", chosen_by(pair), "-o", str(output))
    assert sorted(output.read_text().splitlines()) == [f"content of {name}" for name in pair]


def test_tail_writes_heads(broker: BrokerHandle, pair: list[str], wire: Wire, tmp_path: Path) -> None:
    saved = tmp_path / "offsets.json"
    arguments = ["-l", chosen_by(pair), "--tail", f"--offsets-out={saved}"]
    assert broker.gazctl("journals", "read", *arguments) == ""
    assert json.loads(saved.read_text()) == {name: wire.head(name) for name in pair}


def test_block_until_signalled(broker: BrokerHandle, pair: list[str], wire: Wire, tmp_path: Path) -> None:
    output, saved = tmp_path / "output", tmp_path / "offsets.json"
    arguments = ["-l", chosen_by(pair), "--block", "-o", str(output), f"--offsets-out={saved}"]
    with running_gazctl(broker, ["journals", "read", *arguments]) as process:
        wait_for(lambda: output.exists() and output.read_text().count("\n") == 2, "content so far")
        wire.append(pair[0], b"appended later\n")
        wait_for(lambda: "appended later" in output.read_text(), "later content")
        created = pair[1] + "-new"
        wire.create(spec(created))
        wire.append(created, b"of a new journal\n")
        wait_for(lambda: "of a new journal" in output.read_text(), "content of a new journal")
        assert end_by_signal(process) == 0
    assert json.loads(saved.read_text()) == {name: wire.head(name) for name in [*pair, created]}


def test_read_from_a_time(broker: BrokerHandle, pair: list[str], wire: Wire) -> None:
    name = pair[0]
    wire.append(name, b"newer\n")
    wire.wait_persisted(name, 1)
    now = int(time.time())
    everything = f"content of {name}\nnewer\n"
    assert broker.gazctl("journals", "read", "-l", f"name={name}", f"--from={now - HOUR_S}") == everything
    assert broker.gazctl("journals", "read", "-l", f"name={name}", f"--from={now + HOUR_S}") == "newer\n"


def test_fragments_in_each_form(broker: BrokerHandle, pair: list[str], wire: Wire) -> None:
    name = pair[0]
    wire.append(name, b"second\n")
    wire.wait_persisted(name, 1)
    listed = wire.fragments(name, signed=False)
    options = ["journals", "fragments", "-l", f"name={name}"]
    proto = text_format.Parse(broker.gazctl(*options, "-o", "proto"), pb.FragmentsResponse())
    assert list(proto.fragments) == list(listed.fragments)
    shown = [json.loads(line)["spec"] for line in broker.gazctl(*options, "-o", "json").splitlines()]
    spans = [(each.spec.begin, each.spec.end) for each in listed.fragments]
    assert [(each.get("begin", 0), each["end"]) for each in shown] == spans
    table = broker.gazctl(*options, "--url-ttl=1m")
    assert table.count(name) >= len(spans)
    assert "SNAPPY" in table


def test_fragments_between_times(broker: BrokerHandle, pair: list[str], wire: Wire) -> None:
    name = pair[0]
    wire.append(name, b"second\n")
    mod_time = wire.wait_persisted(name, 1).fragments[0].spec.mod_time

    def listed(*options: str) -> list[int]:
        text = broker.gazctl("journals", "fragments", "-l", f"name={name}", "-o", "json", *options)
        return [json.loads(line)["spec"].get("mod_time", 0) for line in text.splitlines()]

    assert listed(f"--from={mod_time}", f"--to={mod_time + 1}") == [mod_time]
    assert listed(f"--to={mod_time - HOUR_S}") == []
    assert listed(f"--from={mod_time + HOUR_S}") == [0]
    assert listed() == [mod_time, 0]
