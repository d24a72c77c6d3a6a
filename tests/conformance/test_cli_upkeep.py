"""``gazette-spark journals`` prunes, suspends and resets journals of either broker, as ``gazctl`` does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.command import Command
from tests.conformance.wire import Wire, labels, selector, spec, upsert, wait_for
from tests.rig.brokers import BrokerHandle, DeployedBroker

pytestmark = pytest.mark.brokers("embedded")


def rows(text: str) -> list[dict[str, object]]:
    """Return the lines of a command."""
    return [json.loads(line) for line in text.splitlines()]


def level(wire: Wire, name: str) -> int:
    """Return how far a journal is suspended."""
    return wire.list(selector(labels(("name", name))))[0].spec.suspend.level


def files(broker: BrokerHandle, journal: str) -> list[str]:
    """Return the names of a journal's fragment files."""
    return sorted(path.name for path in (broker.file_root / journal).rglob("*-*"))


@pytest.fixture
def aged(wire: Wire, journal_name: str) -> str:
    """A journal whose stored fragment is soon older than its retention, with a newer one not stored."""
    made = spec(journal_name)
    made.fragment.retention.FromSeconds(1)
    wire.create(made)
    wire.append(journal_name, b"old")
    wire.append(journal_name, b"new")
    wire.wait_persisted(journal_name, 1)
    return journal_name


@pytest.mark.brokers("embedded", "deployed")
def test_prune(broker: BrokerHandle, run: Command, aged: str, wire: Wire) -> None:
    """Fragments past the retention are shown by a dry run, then deleted; those not stored stay."""
    arguments = ["prune", "-l", f"name={aged}", "-o", "jsonl"]
    (found,) = wait_for(lambda: rows(run.done(*arguments, "--dry-run")), "fragment to be old enough")
    (name,) = files(broker, aged)
    assert (found["begin"], found["end"], found["done"]) == (0, 3, "would remove")
    assert str(found["file"]).endswith(name)
    (removed,) = rows(run.done(*arguments, "--file-root", str(broker.file_root)))
    assert (removed["begin"], removed["done"]) == (0, "removed")
    assert files(broker, aged) == []
    wait_for(lambda: wire.spans(aged) == [(3, 6)], "broker to see that it is gone")
    assert rows(run.done(*arguments, "--file-root", str(broker.file_root))) == []
    assert wire.content(aged, offset=3) == b"new"


def test_pruning_what_is_gone_already(broker: BrokerHandle, run: Command, aged: str) -> None:
    """A fragment that the broker still lists, and somebody has deleted, is no failure."""
    arguments = ["prune", "-l", f"name={aged}", "-o", "jsonl"]
    wait_for(lambda: rows(run.done(*arguments, "--dry-run")), "fragment to be old enough")
    path = next((broker.file_root / aged).rglob("*-*"))
    path.unlink()
    for row in rows(run.done(*arguments, "--file-root", str(broker.file_root))):
        assert row["done"] == "was gone"


def test_prune_without_retention(broker: BrokerHandle, run: Command, journal: str, wire: Wire) -> None:
    """A journal that has none keeps all, as the protocol says."""
    wire.append(journal, b"old")
    wire.append(journal, b"new")
    wire.wait_persisted(journal, 1)
    root = str(broker.file_root)
    assert rows(run.done("prune", "-l", f"name={journal}", "-o", "jsonl", "--file-root", root)) == []
    assert len(files(broker, journal)) == 1


def test_prune_under_another_root(run: Command, aged: str, tmp_path: Path, broker: BrokerHandle) -> None:
    """A root that holds other things loses nothing; nor does a link lead out of it."""
    arguments = ["prune", "-l", f"name={aged}", "-o", "jsonl"]
    wait_for(lambda: rows(run.done(*arguments, "--dry-run")), "fragment to be old enough")
    prefix = aged.partition("/")[0]
    (tmp_path / prefix).symlink_to(broker.file_root / prefix)
    done = run(*arguments, "--file-root", str(tmp_path))
    assert done.exit_code == 1
    assert "leads out of the file root" in done.stderr
    assert len(files(broker, aged)) == 1


def test_prune_asks_for_the_root(run: Command, aged: str) -> None:
    """A prune without a root is wrong usage."""
    assert run("prune", "-l", f"name={aged}").exit_code == 2
    assert run("prune", "--dry-run").exit_code == 2


def test_suspend(run: Command, journal: str, wire: Wire) -> None:
    """A journal whose last fragment is young stays; by force it is suspended, and an append resumes it."""
    wire.append(journal, b"young")
    (row,) = rows(run.done("suspend", "-l", f"name={journal}", "-o", "jsonl"))
    assert row == {"journal": journal, "done": "left as it is"}
    assert level(wire, journal) == pb.JournalSpec.Suspend.NONE

    def suspends() -> bool:
        (row,) = rows(run.done("suspend", "-l", f"name={journal}", "--force", "-o", "jsonl"))
        return row["done"] == "suspended"

    wait_for(suspends, "suspension")
    assert level(wire, journal) == pb.JournalSpec.Suspend.PARTIAL
    assert run.done("read", journal) == "young"
    run.done("append", journal, stdin=b" again")
    assert level(wire, journal) == pb.JournalSpec.Suspend.NONE
    assert run.done("read", journal) == "young again"


def test_suspend_an_empty_journal(run: Command, journal: str, wire: Wire) -> None:
    """An empty journal is suspended fully, and other commands pass it over."""
    run.done("suspend", "-l", f"name={journal}")
    assert level(wire, journal) == pb.JournalSpec.Suspend.FULL
    for command in ("suspend", "reset-head"):
        (row,) = rows(run.done(command, "-l", f"name={journal}", "-o", "jsonl"))
        assert row["done"] == "suspended fully: skipped"
    for name, *options in (["read"], ["fragments", "-o", "jsonl"], ["prune", "--dry-run", "-o", "jsonl"]):
        assert run.done(name, "-l", f"name={journal}", *options) == ""


def test_reset_head(run: Command, journal: str, wire: Wire) -> None:
    """A re-created journal takes appends again, past what is stored."""
    wire.append(journal, b"stored")
    wire.append(journal, b"lost")
    wire.wait_persisted(journal, 1)
    revision = wire.list(selector(labels(("name", journal))))[0].mod_revision
    wire.apply(pb.ApplyRequest.Change(expect_mod_revision=revision, delete=journal))
    wire.create(spec(journal))
    refused = run("append", journal, stdin=b"x")
    assert refused.exit_code == 1
    assert "INDEX_HAS_GREATER_OFFSET" in refused.stderr
    (row,) = rows(run.done("reset-head", "-l", f"name={journal}", "-o", "jsonl"))
    assert str(row["done"]).startswith("head at ")
    commit = wire.append(journal, b"new").commit
    assert commit.begin >= len(b"stored")
    assert wire.content(journal, offset=commit.begin) == b"new"


def test_reset_head_of_a_journal_that_is_well(run: Command, journal: str, wire: Wire) -> None:
    """A reset of a journal that is well changes nothing."""
    wire.append(journal, b"content")
    (row,) = rows(run.done("reset-head", "-l", f"name={journal}", "-o", "jsonl"))
    assert row["done"] == "head at 7"
    assert wire.content(journal) == b"content"


def test_reset_head_keeps_a_suspension(broker: BrokerHandle, run: Command, journal: str, wire: Wire) -> None:
    """A partially suspended journal stays so, but not on a broker that does not know how."""
    wire.append(journal, b"content")
    wait_for(lambda: run.done("suspend", "-l", f"name={journal}", "--force").count("suspended"), "suspension")
    assert level(wire, journal) == pb.JournalSpec.Suspend.PARTIAL
    run.done("reset-head", "-l", f"name={journal}")
    resumes = isinstance(broker, DeployedBroker)
    assert level(wire, journal) == (
        pb.JournalSpec.Suspend.NONE if resumes else pb.JournalSpec.Suspend.PARTIAL
    )


def test_a_failure_does_not_keep_other_journals(run: Command, wire: Wire, fresh_prefix: str) -> None:
    """Each journal has its line, and the exit code tells of the failure."""
    wire.create(spec(f"{fresh_prefix}one"), spec(f"{fresh_prefix}two"))
    wire.append(f"{fresh_prefix}one", b"content")
    wire.apply(upsert(spec(f"{fresh_prefix}one", flags=pb.JournalSpec.O_WRONLY), -1))
    done = run("reset-head", "-l", f"prefix={fresh_prefix}", "-o", "jsonl")
    assert [row["done"] for row in rows(done.stdout)] == ["failed", "head at 0"]
    assert done.exit_code == 1
    assert "NOT_ALLOWED" in done.stderr


def test_store_health(run: Command) -> None:
    """A store that is there is healthy, one that is not fails the command."""
    tried = "the broker wrote, read and listed an object"
    assert f"file:/// is healthy: {tried}\n" in run.done("store-health", "file:///")
    done = run("store-health", "file:///not/there/")
    assert done.exit_code == 1
    assert "unhealthy" in done.stderr
    assert len(done.stderr.splitlines()) == 1
