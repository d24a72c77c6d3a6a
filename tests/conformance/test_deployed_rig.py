"""The tests' real broker starts, works, and leaves no process behind."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.brokers import BinaryNotFoundError, DeployedBroker, ProcessError, find_binaries

pytestmark = pytest.mark.deployed_broker

SPEC = """
name: {name}
replication: 1
fragment:
  length: 1048576
  compression_codec: SNAPPY
  stores: ["file:///"]
  refresh_interval: 1m0s
"""

OWNER = """
import signal, sys
from tests.rig.brokers import DeployedBroker
with DeployedBroker(sys.argv[1]) as broker:
    group = broker._group
    print(*[child.process.pid for child in group._children], group._watcher.pid, flush=True)
    signal.pause()
"""
"""Program that owns a broker, prints the process ids of its children, and waits."""

DEADLINE_S = 30


def test_gazctl_round_trip(deployed_broker: DeployedBroker, journal_name: str) -> None:
    assert deployed_broker.apply_specs(SPEC.format(name=journal_name)) == [journal_name]
    selector = f"name={journal_name}"
    deployed_broker.gazctl("journals", "append", "-l", selector, input=b"one\ntwo\n")
    assert deployed_broker.gazctl("journals", "read", "-l", selector) == "one\ntwo\n"


def test_gazctl_failure_shows_its_text(deployed_broker: DeployedBroker) -> None:
    with pytest.raises(ProcessError, match="empty ListResponse") as caught:
        deployed_broker.gazctl("journals", "append", "-l", "name=not/there", input=b"x")
    assert caught.value.program.startswith("gazctl journals append")


def is_readable(handle: int) -> bool:
    """Wait until the pipe has data. Uses poll, because select accepts no descriptor above 1023."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(DEADLINE_S * 1000))


def test_children_die_with_their_owner(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "b")], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    try:
        assert is_readable(owner.stdout.fileno()), "the owner did not start its broker in time"
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 3
        handles = [os.pidfd_open(pid) for pid in pids]
    finally:
        owner.kill()
        owner.wait(DEADLINE_S)
        owner.stdout.close()
    for handle in handles:
        ended = is_readable(handle)
        os.close(handle)
        assert ended, "a child outlived its owner"


def test_no_binaries_says_how_to_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.rig.gazctl.__file__", str(tmp_path / "a" / "b" / "c.py"))
    with pytest.raises(BinaryNotFoundError, match=r"tests/deployed/build\.sh") as caught:
        find_binaries({"GAZETTE_SPARK_CACHE": str(tmp_path), "PATH": str(tmp_path)})
    assert caught.value.looked_in[0] == str(tmp_path)
