"""A broker whose disk is full or whose store refuses says so, and recovers by itself."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from gazette_spark import EmbeddedBroker
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from tests.conformance.wire import CALL_TIMEOUT_S, Wire, spec
from tests.rig.brokers import BrokerHandle

NAME = "storage/journal"
LIMIT = 1 << 20


@contextmanager
def limited(root: Path) -> Iterator[tuple[int, str]]:
    """Run a broker whose files may not grow past LIMIT; yield its process and endpoint."""
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, -1));"
        "from gazette_spark.cli.broker import broker; broker()"
    )
    command = [sys.executable, "-c", program, "serve", f"--root={root}", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_full_disk(tmp_path: Path) -> None:
    with limited(tmp_path) as (pid, endpoint), Wire(endpoint) as wire:
        wire.create(spec(NAME))
        assert wire.append(NAME, b"first").status == pb.OK
        with pytest.raises(grpc.RpcError) as caught:
            wire.append(NAME, *[b"x" * (LIMIT // 4)] * 5)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "broker storage is full" in (caught.value.details() or "")
        assert wire.content(NAME) == b"first"
        assert wire.append(NAME, b"fits").commit.begin == 5
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert wire.append(NAME, *[b"x" * (LIMIT // 4)] * 5).status == pb.OK
    whole = b"firstfits" + b"x" * (LIMIT // 4 * 5)
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        assert wire.content(NAME) == whole


def test_a_store_that_refuses(tmp_path: Path) -> None:
    obstacle = tmp_path / "storage"
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        wire.create(spec(NAME))
        wire.append(NAME, b"first")
        obstacle.write_text("in the way of the journal's directory")
        with pytest.raises(OSError, match=NAME):
            broker.flush()
        assert wire.append(NAME, b"second").status == pb.OK
        assert wire.content(NAME) == b"firstsecond"
        obstacle.unlink()
        wire.wait_persisted(NAME, 1)
        assert wire.content(NAME) == b"firstsecond"


def test_a_store_that_goes_on_refusing(tmp_path: Path) -> None:
    """After six failed uploads in a row, appends are refused with the reason, until an upload succeeds."""
    obstacle = tmp_path / "storage"
    obstacle.write_text("in the way of the journal's directory")
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        wire.create(spec(NAME))
        assert wire.append(NAME, b"first").status == pb.OK
        for _ in range(6):
            with pytest.raises(OSError, match=NAME):
                broker.flush()
        refused = wire.append(NAME, b"second")
        assert refused.status == pb.FRAGMENT_STORE_UNHEALTHY
        assert "uploads in a row have failed, the last one because" in refused.store_health_error
        obstacle.unlink()
        broker.flush()
        assert wire.append(NAME, b"second").status == pb.OK
        assert wire.content(NAME) == b"firstsecond"


def test_a_pipe_in_the_place_of_a_fragment(tmp_path: Path) -> None:
    """Opening a pipe would block uploads, reads and the broker's shutdown; the bytes stay available."""
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        wire.create(spec(NAME, compression_codec=pb.NONE))
        commit = wire.append(NAME, b"first").commit
        pipe = tmp_path / Fragment.from_pb(commit).content_path
        pipe.parent.mkdir(parents=True)
        os.mkfifo(pipe)
        with pytest.raises(OSError, match="not a regular file"):
            broker.flush()
        assert wire.content(NAME) == b"first"
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        assert wire.content(NAME) == b"first"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="plain"),
        pytest.param({"check_delete": True}, id="delete"),
        pytest.param({"check_delete": True, "check_delete_prefix": "tmp/"}, id="delete-below"),
    ],
)
def test_a_healthy_store(wire: Wire, broker: BrokerHandle, fields: dict[str, object]) -> None:
    request = pb.FragmentStoreHealthRequest(fragment_store="file:///", **fields)  # type: ignore[arg-type]  # Fields by name, of mixed types.
    response = wire.stub.FragmentStoreHealth(request, timeout=CALL_TIMEOUT_S)
    assert (response.status, response.store_health_error) == (pb.OK, "")
    assert (broker.file_root / ".test" / "health-check").is_file()


def test_an_unhealthy_store(wire: Wire) -> None:
    request = pb.FragmentStoreHealthRequest(fragment_store="file:///not/there/")
    response = wire.stub.FragmentStoreHealth(request, timeout=CALL_TIMEOUT_S)
    assert response.status == pb.FRAGMENT_STORE_UNHEALTHY
    assert "not/there" in response.store_health_error
