"""``gazctl`` edits, prunes and suspends journals of either broker, with the same effect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.gazctl_process import run_gazctl
from tests.conformance.wire import Wire, labels, selector, spec, wait_for
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded")


def spec_of(wire: Wire, name: str) -> pb.JournalSpec:
    return wire.list(selector(labels(("name", name))))[0].spec


def editor(folder: Path, *scripts: str) -> str:
    """Create an editor that runs one ``sed`` script on its file at each call."""
    program, calls = folder / "editor", folder / "calls"
    lines = "".join(f"  {number}) sed -i -e '{each}' \"$1\" ;;\n" for number, each in enumerate(scripts))
    program.write_text(
        f'#!/bin/sh\ncp "$1" "{folder}/seen-$(cat {calls})"\ncase $(cat {calls}) in\n{lines}esac\n'
        f"echo $(($(cat {calls}) + 1)) > {calls}\n"
    )
    program.chmod(0o755)
    calls.write_text("0\n")
    return str(program)


def test_edit(broker: BrokerHandle, journal: str, wire: Wire, tmp_path: Path) -> None:
    edit = editor(tmp_path, "s/length: .*/length: 2097152/")
    done = run_gazctl(broker, "journals", "edit", "-l", f"name={journal}", GAZ_EDITOR=edit)
    assert done.returncode == 0, done.stderr
    assert spec_of(wire, journal).fragment.length == 2097152


def test_edit_again_after_a_refusal(broker: BrokerHandle, journal: str, wire: Wire, tmp_path: Path) -> None:
    edit = editor(tmp_path, "s/length: .*/length: 5/", "s/length: .*/length: 4096/")
    done = run_gazctl(broker, "journals", "edit", "-l", f"name={journal}", GAZ_EDITOR=edit)
    assert done.returncode == 0, done.stderr
    assert "invalid Length" in (tmp_path / "seen-1").read_text()
    assert spec_of(wire, journal).fragment.length == 4096


def test_edit_of_nothing(broker: BrokerHandle, journal: str, wire: Wire, tmp_path: Path) -> None:
    chosen = selector(labels(("name", journal)))
    before = wire.list(chosen)[0].mod_revision
    edit = editor(tmp_path, "")
    done = run_gazctl(broker, "journals", "edit", "-l", f"name={journal}", GAZ_EDITOR=edit)
    assert "nothing to do" in done.stderr
    assert wire.list(chosen)[0].mod_revision == before


@pytest.fixture
def aged(wire: Wire, journal_name: str) -> str:
    """A journal whose stored fragment is older than its retention, with a newer one that is not stored."""
    made = spec(journal_name)
    made.fragment.retention.FromSeconds(1)
    wire.create(made)
    wire.append(journal_name, b"old")
    wire.append(journal_name, b"new")
    wire.wait_persisted(journal_name, 1)
    return journal_name


def test_prune_dry_run(broker: BrokerHandle, aged: str, wire: Wire) -> None:
    name = Path(wire.fragments(aged).fragments[0].signed_url).name
    arguments = ["journals", "prune", "-l", f"name={aged}", "--dry-run", "--log.level=info"]

    def told() -> str:
        done = run_gazctl(broker, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stderr if "pruning fragment" in done.stderr else ""

    assert name in wait_for(told, "fragment to be old enough")
    assert wire.spans(aged) == [(0, 3), (3, 6)]
    assert list((broker.file_root / aged).rglob(name))


def test_prune_takes_no_retention_for_all(broker: BrokerHandle, journal: str, wire: Wire) -> None:
    """Gazctl v0.103.0 would delete every stored fragment of a journal that has no retention."""
    wire.append(journal, b"old")
    wire.append(journal, b"new")
    wire.wait_persisted(journal, 1)
    done = run_gazctl(broker, "journals", "prune", "-l", f"name={journal}", "--dry-run", "--log.level=info")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("pruning fragment") == 1


def test_prune_leaves_file_stores(broker: BrokerHandle, aged: str, wire: Wire) -> None:
    """Gazctl v0.103.0 cannot delete from ``file://`` stores, because it has no option for their root."""
    arguments = ["journals", "prune", "-l", f"name={aged}"]
    failed = wait_for(
        lambda: done if (done := run_gazctl(broker, *arguments)).returncode else None, "prune to try"
    )
    assert "must/configure/file/store/root" in failed.stderr
    assert wire.spans(aged) == [(0, 3), (3, 6)]


def test_suspend_waits_for_flushes(broker: BrokerHandle, journal: str, wire: Wire) -> None:
    wire.append(journal, b"young")
    done = run_gazctl(broker, "journals", "suspend", "-l", f"name={journal}", "--log.level=info")
    assert done.returncode == 0, done.stderr
    assert re.search(r"status=\"?OK", done.stderr), done.stderr
    assert spec_of(wire, journal).suspend.level == pb.JournalSpec.Suspend.NONE


def test_apply_dry_run(broker: BrokerHandle, journal: str, wire: Wire) -> None:
    text = broker.gazctl("journals", "list", "-l", f"name={journal}", "-o", "yaml")
    changed = re.sub(r"length: \d+", "length: 4096", text)
    broker.gazctl("journals", "apply", "--specs", "-", "--dry-run", input=changed)
    assert spec_of(wire, journal).fragment.length != 4096


def test_apply_in_batches(broker: BrokerHandle, fresh_prefix: str, wire: Wire) -> None:
    children = "".join(f"- name: {fresh_prefix}{number}\n" for number in range(5))
    tree = (
        f"name: {fresh_prefix}\nreplication: 1\nfragment:\n  length: 1048576\n  compression_codec: NONE\n"
        f"  stores: ['file:///']\n  refresh_interval: 1s\nchildren:\n{children}"
    )
    before = wire.apply().header.etcd.revision
    broker.gazctl("journals", "apply", "--specs", "-", "--max-txn-size", "2", input=tree)
    listed = wire.list(selector(labels(("prefix", fresh_prefix))))
    assert len(listed) == 5
    assert len({each.mod_revision for each in listed}) == 3
    assert min(each.mod_revision for each in listed) > before


def test_labels_of_a_zone(broker: BrokerHandle, journal: str) -> None:
    text = broker.gazctl("journals", "list", "-l", f"name={journal}", "-o", "proto")
    route = text_format_route(text)
    assert route.primary >= 0
    assert len(route.members) == len(route.endpoints)
    assert broker.endpoint in route.endpoints


def text_format_route(text: str) -> pb.Route:
    from google.protobuf import text_format

    return text_format.Parse(text, pb.ListResponse()).journals[0].route
