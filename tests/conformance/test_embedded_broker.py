"""What the embedded broker promises beyond the protocol: it survives crashes, stops, and waits for nobody."""

from __future__ import annotations

import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from time import monotonic

import grpc
import httpx
import pytest
import trustme

from gazette_spark import EmbeddedBroker
from gazette_spark.broker import ServingSettings, StorageSettings
from gazette_spark.errors import BrokerRootError, OptionError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc
from tests.conformance.wire import CALL_TIMEOUT_S, Wire, labels, selector, spec, wait_for
from tests.rig.interrupts import interrupted

NAME = "embedded/journal"
DEADLINE_S = 30.0


@contextmanager
def serve(root: Path, *args: str, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    program = "from gazette_spark.cli.broker import broker; broker()"
    command = [sys.executable, "-c", program, "serve", f"--root={root}", f"--port={port}", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(tmp_path: Path, signum: signal.Signals) -> None:
    with serve(tmp_path) as (process, endpoint), Wire(endpoint) as wire:
        wire.create(spec(NAME))
        reader = wire.open_read(NAME, block=True)
        watcher = wire.open_list(pb.ListRequest(watch=True))
        assert next(watcher).journals[0].spec.name == NAME
        assert not next(watcher).journals
        process.send_signal(signum)
        assert process.wait(DEADLINE_S) == 0
        assert list(reader) == []
        assert list(watcher) == []


@pytest.mark.parametrize("lives", [3, pytest.param(5, marks=pytest.mark.soak)])
@pytest.mark.parametrize("durability", ["--fsync", "--no-fsync"])
def test_kill_in_the_middle_of_appends(tmp_path: Path, durability: str, lives: int) -> None:
    rng = random.Random(4)
    answered: list[bytes] = []
    number = 0
    for life in range(lives):
        with serve(tmp_path, durability) as (process, endpoint), Wire(endpoint) as wire:
            if not life:
                wire.create(spec(NAME, length=100_000))
            killer = threading.Timer(rng.uniform(0.05, 0.5), process.kill)
            killer.start()
            while True:
                number += 1
                record = b"%d:%s\n" % (number, b"x" * rng.randrange(20_000))
                try:
                    registers = labels(("number", str(number)))
                    wire.append(NAME, record[:10], record[10:], union_registers=registers)
                except grpc.RpcError:
                    break
                answered.append(record)
            killer.join()
            assert process.wait(DEADLINE_S) == -signal.SIGKILL
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        content = wire.content(NAME)
        response = wire.append(NAME)
    records = content.splitlines(keepends=True)
    known = set(answered)
    assert [record for record in records if record in known] == answered
    # An append may be committed although its answer was lost: at most one for each life of the broker.
    assert len(records) - len(answered) <= lives
    assert all(re.fullmatch(rb"\d+:x*\n", record) for record in records)
    assert response.commit.begin == len(content)
    assert response.registers.labels[0].value == records[-1].split(b":")[0].decode()


def test_restart_keeps_everything(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        wire.create(spec(NAME, labels=labels(("content-type", "text/csv"))))
        wire.append(NAME, b"first", union_registers=labels(("author", "me")))
        wire.append(NAME, b"second")
        wire.wait_persisted(NAME, 1)
        before = wire.list(selector())[0]
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        after = wire.list(selector())[0]
        assert (after.spec, after.mod_revision, after.create_revision) == (
            before.spec,
            before.mod_revision,
            before.create_revision,
        )
        response = wire.append(NAME, b"third", check_registers=selector(labels(("author", "me"))))
        assert (response.commit.begin, response.commit.end) == (11, 16)
        assert wire.append(NAME, check_registers=selector(labels(("author", "you")))).status == (
            pb.REGISTER_MISMATCH
        )
        assert wire.content(NAME) == b"firstsecondthird"


@pytest.mark.parametrize("commits", [False, True], ids=["incomplete", "complete"])
def test_kill_keeps_what_was_acknowledged(tmp_path: Path, *, commits: bool) -> None:
    """An append in progress ends as after a broken connection, also if its last message comes too late."""
    over = threading.Event()

    def unfinished() -> Iterator[pb.AppendRequest]:
        yield pb.AppendRequest(journal=NAME)
        yield pb.AppendRequest(content=b"lost" * 50_000)
        over.wait(DEADLINE_S)
        if commits:
            yield pb.AppendRequest()

    broker = EmbeddedBroker.start(tmp_path)
    with Wire(broker.endpoint) as wire:
        wire.create(spec(NAME))
        wire.append(NAME, b"first", union_registers=labels(("author", "me")))
        wire.append(NAME, b"second")
        call = wire.stub.Append.future(unfinished(), timeout=DEADLINE_S)
        journal = broker.parts.registry.get(NAME)
        assert journal is not None
        wait_for(lambda: journal.staged().end > 11, "staged content")
        if commits:
            broker.parts.registry.abandon()  # The first step of a kill, which then ends the calls.
            over.set()
            assert call.code() == grpc.StatusCode.UNAVAILABLE
        broker.kill()
        over.set()
        assert call.code() == grpc.StatusCode.UNAVAILABLE
    with EmbeddedBroker(tmp_path) as restarted, Wire(restarted.endpoint) as wire:
        assert wire.content(NAME) == b"firstsecond"
        check = selector(labels(("author", "me")))
        assert wire.append(NAME, b"third", check_registers=check).commit.begin == 11


def test_bytes_are_readable_although_their_store_is_not(tmp_path: Path) -> None:
    """A broker that starts while its store fails still has the bytes that are not stored."""
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        wire.create(spec(NAME))
        wire.append(NAME, b"first")
    tmp_path.joinpath(NAME).parent.mkdir(exist_ok=True)
    tmp_path.joinpath(NAME).touch()  # No fragment can be stored in a file.
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        assert wire.content(NAME) == b"first"
        assert wire.append(NAME, b"second").commit.begin == 5


def test_a_root_in_use_is_refused(tmp_path: Path) -> None:
    with serve(tmp_path) as (process, endpoint), Wire(endpoint) as wire:
        wire.create(spec(NAME))
        with pytest.raises(BrokerRootError, match=f"process {process.pid}"):
            EmbeddedBroker.start(tmp_path)
        with serve(tmp_path) as (second, _):
            assert second.wait(DEADLINE_S) == 1
            assert second.stderr is not None
            assert f"process {process.pid}" in second.stderr.read()
        assert wire.append(NAME, b"x").status == pb.OK


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "a") as broker:
        with pytest.raises(OptionError, match=str(broker.port)):
            EmbeddedBroker.start(tmp_path / "b", port=broker.port)
        with EmbeddedBroker(tmp_path / "b") as other:
            assert other.port != broker.port


def test_stop_twice_and_start_again(tmp_path: Path) -> None:
    broker = EmbeddedBroker.start(tmp_path)
    port = broker.port
    broker.stop()
    broker.stop()
    with broker, Wire(broker.endpoint) as wire:
        assert broker.port == port
        wire.create(spec(NAME))
    assert "stopped" in repr(broker)


def test_a_stop_that_is_interrupted_can_be_repeated(tmp_path: Path) -> None:
    """Otherwise the root would stay in use as long as the process."""
    for moment in count(1, 15):
        broker = EmbeddedBroker.start(tmp_path)
        with Wire(broker.endpoint) as wire:
            wire.create(spec(f"{NAME}-{moment}"))
        if not interrupted(broker.stop, moment):
            break
        broker.stop()
    assert moment > 30


def test_a_stalled_append_lets_the_next_one_in(tmp_path: Path) -> None:
    release = threading.Event()

    def stalling() -> Iterator[pb.AppendRequest]:
        yield pb.AppendRequest(journal=NAME)
        yield pb.AppendRequest(content=b"never")
        release.wait(DEADLINE_S)

    with (
        EmbeddedBroker(tmp_path, serving=ServingSettings(min_append_rate=1 << 20)) as broker,
        Wire(broker.endpoint) as wire,
    ):
        wire.create(spec(NAME))
        stalled = wire.stub.Append.future(stalling(), timeout=CALL_TIMEOUT_S)
        begin = monotonic()
        assert wire.append(NAME, b"second").commit.begin == 0
        assert monotonic() - begin < 5
        error = stalled.exception()
        release.set()
        assert isinstance(error, grpc.RpcError)
        assert "minimum append data rate" in (error.details() or "")
        assert wire.content(NAME) == b"second"


def test_waiting_readers_leave_threads_for_appends(tmp_path: Path) -> None:
    """A client's tailing readers are limited in number; one more is refused with UNAVAILABLE."""
    with (
        EmbeddedBroker(tmp_path, serving=ServingSettings(threads=8)) as broker,
        Wire(broker.endpoint) as wire,
    ):
        wire.create(spec(NAME))
        wire.append(NAME, b"x")
        readers = [wire.open_read(NAME, block=True) for _ in range(3)]
        assert [next(reader).status for reader in readers] == [pb.OK] * 3
        with pytest.raises(grpc.RpcError) as caught:
            wire.read(NAME)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        wire.append(NAME, b"y")
        for reader in readers:
            assert next(reader).content == b"x"
            reader.cancel()
        wait_for(lambda: reads(wire, b"xy"), "room for another reader")


def reads(wire: Wire, expected: bytes) -> bool:
    """Return whether the journal can be read yet and has the expected content."""
    try:
        content = wire.content(NAME)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE  # noqa: PT017 - the only refusal expected
        return False
    return content == expected


def test_many_readers_see_the_same(tmp_path: Path) -> None:
    contents = [b"%d," % number * 500 for number in range(30)]
    whole = b"".join(contents)
    got: list[bytes] = []

    def tail(wire: Wire) -> None:
        request = pb.ReadRequest(journal=NAME, block=True, end_offset=len(whole))
        got.append(b"".join(message.content for message in wire.stub.Read(request, timeout=DEADLINE_S)))

    with (
        EmbeddedBroker(tmp_path, storage=StorageSettings(pulse_interval_s=0.1)) as broker,
        Wire(broker.endpoint) as wire,
    ):
        wire.create(spec(NAME, length=4096))
        threads = [threading.Thread(target=tail, args=(wire,)) for _ in range(100)]
        for thread in threads:
            thread.start()
        for content in contents:
            wire.append(NAME, content)
        for thread in threads:
            thread.join(DEADLINE_S)
    assert got == [whole] * 100


def test_pulse_stores_the_first_fragment(tmp_path: Path) -> None:
    """The first fragment of an idle journal is stored without another append; a later one is not."""
    with (
        EmbeddedBroker(tmp_path, storage=StorageSettings(pulse_interval_s=0.1)) as broker,
        Wire(broker.endpoint) as wire,
    ):
        wire.create(spec(NAME))
        wire.append(NAME, b"first")
        wire.wait_persisted(NAME, 1)
        wire.append(NAME, b"second")
        assert [each.spec.mod_time > 0 for each in wire.fragments(NAME).fragments] == [True, False]


def test_flush_stores_everything(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        wire.create(spec(NAME), spec("embedded/other"))
        for name in (NAME, "embedded/other"):
            wire.append(name, b"first")
            wire.append(name, b"second")
        broker.flush()
        for name in (NAME, "embedded/other"):
            assert all(each.spec.mod_time for each in wire.fragments(name).fragments)
            assert wire.content(name) == b"firstsecond"
        assert wire.append(NAME, b"third").commit.begin == 11


def test_missing_store_directory(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        wire.create(spec(NAME, stores=["file:///not/there/"]))
        response = wire.append(NAME, b"x")
        assert response.status == pb.FRAGMENT_STORE_UNHEALTHY
        assert str(tmp_path / "not/there") in response.store_health_error
        (tmp_path / "not/there").mkdir(parents=True)
        assert wire.append(NAME, b"x").status == pb.OK


def test_a_journal_below_another_one(tmp_path: Path) -> None:
    names = [NAME, f"{NAME}/part", f"{NAME}/part/deeper"]
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        wire.create(*map(spec, names))
        for name in names:
            wire.append(name, name.encode())
        broker.flush()
        wire.apply(pb.ApplyRequest.Change(expect_mod_revision=-1, delete=names[2]))
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        for name in names[:2]:
            assert wire.content(name) == name.encode()
            assert wire.append(name, b"x").commit.begin == len(name)


def test_a_thousand_journals_are_listed_in_pages(tmp_path: Path) -> None:
    """A long list comes in messages of at most 25 journals, in order, with one header."""
    names = [f"embedded/many/{number:04d}" for number in range(1000)]
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        changes = [pb.ApplyRequest.Change(upsert=spec(name)) for name in names]
        for start in range(0, len(changes), 100):  # A transaction accepts 128 changes.
            assert wire.apply(*changes[start : start + 100]).status == pb.OK
        messages = list(wire.stub.List(pb.ListRequest(), timeout=CALL_TIMEOUT_S))
    assert [journal.spec.name for message in messages for journal in message.journals] == names
    assert max(len(message.journals) for message in messages) == 25
    assert [message.HasField("header") for message in messages] == [True] + [False] * (len(messages) - 1)


def test_replicate_is_not_offered(tmp_path: Path) -> None:
    """Replicate answers UNIMPLEMENTED, because this broker has no peers."""
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        with pytest.raises(grpc.RpcError) as caught:
            list(wire.stub.Replicate(iter([pb.ReplicateRequest()]), timeout=CALL_TIMEOUT_S))
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_brokers_own_maximum_rate(tmp_path: Path) -> None:
    """The broker's maximum rate limits only journals whose specs have a maximum rate."""
    with (
        EmbeddedBroker(tmp_path, serving=ServingSettings(max_append_rate=200_000)) as broker,
        Wire(broker.endpoint) as wire,
    ):
        wire.create(spec(NAME, max_append_rate=1 << 30), spec("embedded/free"))
        chunks = [b"x" * 100_000] * 3
        assert wire.append(NAME, *chunks).delayed_chunks == 1
        assert wire.append("embedded/free", *chunks).delayed_chunks == 0


def test_the_command_takes_every_option(tmp_path: Path) -> None:
    authority = trustme.CA()
    cert = authority.issue_cert("127.0.0.1")
    cert_file, key_file = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert_file.write_bytes(cert.cert_chain_pems[0].bytes())
    key_file.write_bytes(cert.private_key_pem.bytes())
    tls = [f"--tls-cert={cert_file}", f"--tls-key={key_file}"]
    options = ["--gateway-port=0", "--auth-keys=c2VjcmV0", "--max-append-rate=1000", "--fragment-urls=http"]
    options += ["--gateway-name=broker.lan", "--gateway-name=broker.wan", "--gateway-without-token"]
    with serve(tmp_path / "root", *options, *tls) as (process, endpoint):
        assert process.stdout is not None
        gateway = process.stdout.readline().strip()
        assert (endpoint[:18], gateway[:18]) == ("https://127.0.0.1:",) * 2
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        with grpc.secure_channel(endpoint.removeprefix("https://"), credentials) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                list(pb_grpc.JournalStub(channel).List(pb.ListRequest(), timeout=CALL_TIMEOUT_S))
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        trusted = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
        for host, status in (("broker.lan", 404), ("broker.wan:8080", 404), ("rebound.example", 421)):
            answer = httpx.get(f"{gateway}/no/journal", headers={"Host": host}, verify=trusted)
            assert answer.status_code == status


def test_half_of_tls_is_refused(tmp_path: Path) -> None:
    with serve(tmp_path, "--tls-cert=x.pem") as (process, _):
        assert process.wait(DEADLINE_S) == 2


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="http-1"),
        pytest.param(bytes(range(256)) * 40, id="garbage"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="half-a-preface"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100, id="huge-frame"),
        pytest.param(b"", id="silence"),
    ],
)
def test_strangers_at_the_port(tmp_path: Path, sent: bytes) -> None:
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.endpoint) as wire:
        wire.create(spec(NAME))
        strangers = [socket.create_connection((broker.host, broker.port), DEADLINE_S) for _ in range(20)]
        for stranger in strangers:
            stranger.sendall(sent)
        assert wire.append(NAME, b"x").status == pb.OK
        for stranger in strangers:
            stranger.close()
        assert wire.content(NAME) == b"x"


def test_a_thousand_streams_at_once(tmp_path: Path) -> None:
    with (
        EmbeddedBroker(tmp_path, serving=ServingSettings(threads=64)) as broker,
        Wire(broker.endpoint) as wire,
    ):
        wire.create(spec(NAME))
        wire.append(NAME, b"x")
        readers = [wire.open_read(NAME, block=True) for _ in range(1000)]
        codes = [first_of(reader) for reader in readers]
        assert codes.count(grpc.StatusCode.OK) == 24
        assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
        assert wire.append(NAME, b"y").status == pb.OK
        for reader in readers:
            reader.cancel()


def first_of(reader: Iterator[pb.ReadResponse]) -> grpc.StatusCode:
    try:
        next(reader)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK
