"""Each promise of a replicated log, on the embedded broker and the real one."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from gazette_spark import Client
from gazette_spark._formats.fixed import FIXED
from gazette_spark._formats.framing import Block
from gazette_spark._formats.protobuf import ProtobufFormat, ProtobufParser
from gazette_spark.client import AppendOptions, AppendResult, journal_spec
from gazette_spark.errors import (
    AppendWaitError,
    CheckpointStateError,
    ClosedError,
    FetchCancelledError,
    FetchTimeoutError,
    LogDataLossError,
    LogFencedError,
    OffsetError,
    OptionError,
    PendingEntryError,
    RecordError,
)
from gazette_spark.message import OUTSIDE_TXN, Clock, build_uuid, new_producer_id
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import replicated_log_pb2
from gazette_spark.protocol.labels import label_set, values_of
from gazette_spark.replicated_log import (
    Checkpoint,
    InvalidVersionError,
    NoMoreMessageError,
    Receiver,
    Writer,
    cancel_on,
)
from gazette_spark.replicated_log import _receiver as receiving
from gazette_spark.replicated_log import _writer as writing
from gazette_spark.replicated_log._entries import entry_frame
from gazette_spark.replicated_log._journal import read_records
from tests.conformance.command import Command
from tests.conformance.wire import Wire, wait_for
from tests.rig.brokers import BrokerHandle
from tests.rig.tcp_proxy import CLEAN, TcpProxy, Toxics

pytestmark = pytest.mark.brokers("embedded", "deployed")

SOON = 60.0
"""Maximum seconds until an expected event."""

SILENT = Toxics(silent=True)

T = TypeVar("T")


@pytest.fixture
def writer(client: Client, journal_name: str) -> Iterator[Writer]:
    with Writer(client, journal_name) as opened:
        yield opened


@pytest.fixture
def receiver(client: Client, journal_name: str) -> Iterator[Receiver]:
    with Receiver(client, journal_name) as opened:
        yield opened


@pytest.fixture
def proxy(broker: BrokerHandle) -> Iterator[TcpProxy]:
    with TcpProxy(broker.endpoint) as opened:
        yield opened


class ProxiedClient(Client):
    def __init__(self, proxy: TcpProxy) -> None:
        super().__init__(proxy.endpoint, timeout_s=SOON, connect_timeout_s=SOON)
        self.proxy = proxy
        self.loses_next_answer = False
        """Whether the response to the next append of a record is lost."""

    def try_append(self, options: AppendOptions, *args: Any, **keywords: Any) -> AppendResult:
        if self.loses_next_answer and options.check_registers is not None:
            self.loses_next_answer = False
            self.proxy.to_client = SILENT
        return super().try_append(options, *args, **keywords)

    def without_answer(self, client: Client, journal: str, call: Callable[[], T]) -> T:
        """Call, and break the connection after the broker has appended but before its answer arrives."""
        head = client.write_head(journal)
        with ThreadPoolExecutor(1) as pool:
            self.loses_next_answer = True
            result = pool.submit(call)
            wait_for(lambda: client.write_head(journal) > head, "the append to be done")
            # In this order; otherwise the answer may slip through.
            self.proxy.cut()
            self.proxy.to_client = CLEAN
            return result.result(SOON)


@pytest.fixture
def proxied(proxy: TcpProxy) -> Iterator[ProxiedClient]:
    with ProxiedClient(proxy) as opened:
        yield opened


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def fetch_all(receiver: Receiver) -> list[bytes | Checkpoint]:
    found: list[bytes | Checkpoint] = []
    try:
        while True:
            found.append(receiver.try_fetch_entry(SOON))
    except NoMoreMessageError:
        return found


def copies(client: Client, journal: str) -> int:
    """Return the number of records in a journal, repeats included."""
    return len(list(read_records(client, journal, 0, client.write_head(journal))))


# The journal.


def test_the_journal_is_made_if_missing(client: Client, writer: Writer, journal_name: str) -> None:
    """It gets the content type that the Spark source and gazctl recognize."""
    labels = client.get_journal(journal_name).spec.labels
    assert values_of(labels, "content-type") == ["application/x-protobuf-fixed"]
    with Receiver(client, journal_name) as another, pytest.raises(NoMoreMessageError):
        another.try_fetch_entry()


def test_its_spec_may_be_given(client: Client, journal_name: str) -> None:
    spec = journal_spec(journal_name, labels={"app": "index"}, length=4096)
    with Receiver(client, journal_name, spec=spec):
        made = client.get_journal(journal_name).spec
    assert made.fragment.length == 4096
    assert [label.name for label in made.labels.labels] == ["app", "content-type"]


def test_two_nodes_make_it_at_the_same_time(
    client: Client, journal_name: str, threads: ThreadPoolExecutor
) -> None:
    made = [threads.submit(Receiver, client, journal_name) for _ in range(6)]
    for each in made:
        each.result(SOON).close()


def test_another_journal_is_refused(client: Client, journal_name: str) -> None:
    client.create_journals(journal_spec(journal_name, labels={"content-type": "application/x-ndjson"}))
    for make in (Writer, Receiver):
        with pytest.raises(OptionError, match=f"'{journal_name}' of content type application/x-ndjson"):
            make(client, journal_name)


@pytest.mark.parametrize(
    ("make", "flag"), [(Writer, pb.JournalSpec.O_RDONLY), (Receiver, pb.JournalSpec.O_WRONLY)]
)
def test_flags_that_forbid_its_use(
    client: Client, journal_name: str, make: type[Writer | Receiver], flag: int
) -> None:
    labels = {"content-type": "application/x-protobuf-fixed"}
    change = pb.ApplyRequest.Change(upsert=journal_spec(journal_name, labels=labels, flags=flag))
    client.apply([change])
    with pytest.raises(OptionError, match=f"'{journal_name}' with the flag {pb.JournalSpec.Flag.Name(flag)}"):
        make(client, journal_name)


# Entries.


def test_entries_are_fetched_in_order(writer: Writer, receiver: Receiver) -> None:
    entries = [b"one", b"", b"x" * 300_000, b"four"]
    offsets = [writer.commit_entry(entry) for entry in entries]
    assert offsets[0] == 0
    assert offsets == sorted(set(offsets))
    for entry, after in zip(entries, [*offsets[1:], None], strict=True):
        assert receiver.fetch_entry(SOON) == entry
        assert after is None or receiver.offset == after
    with pytest.raises(NoMoreMessageError):
        receiver.try_fetch_entry()


def test_many_threads_commit(writer: Writer, receiver: Receiver, threads: ThreadPoolExecutor) -> None:
    def commit(name: int) -> dict[int, bytes]:
        entries = [b"%d %d" % (name, number) for number in range(20)]
        return {writer.commit_entry(entry, SOON): entry for entry in entries}

    told: dict[int, bytes] = {}
    for done in [threads.submit(commit, name) for name in range(8)]:
        told |= done.result(SOON)
    found: dict[int, bytes | Checkpoint] = {}
    while len(found) < 160:
        begin = receiver.offset
        found[begin] = receiver.fetch_entry(SOON)
    assert found == told
    for name in range(8):
        expected = [b"%d %d" % (name, number) for number in range(20)]
        assert [entry for entry in found.values() if entry in expected] == expected


def test_an_entry_that_is_too_long(writer: Writer) -> None:
    with pytest.raises(OptionError, match="an entry of 16777217 bytes"):
        writer.commit_entry(bytes((16 << 20) + 1))
    assert writer.commit_entry(b"short") == 0


def test_a_closed_writer_commits_nothing(writer: Writer) -> None:
    writer.close()
    with pytest.raises(ClosedError, match="writer of log"):
        writer.commit_entry(b"late")
    writer.close()


# Repeats.


def test_an_append_without_an_answer_is_fetched_once(
    client: Client, proxied: ProxiedClient, receiver: Receiver, journal_name: str
) -> None:
    with Writer(proxied, journal_name) as writer:
        writer.commit_entry(b"one")
        at = proxied.without_answer(client, journal_name, lambda: writer.commit_entry(b"two", SOON))
        writer.commit_entry(b"three")
    assert copies(client, journal_name) == 4
    assert fetch_all(receiver) == [b"one", b"two", b"three"]
    # The caller got the second copy's offset; a receiver that starts there has not seen the first copy.
    receiver.set_offset(at)
    assert fetch_all(receiver) == [b"three"]


def test_a_receiver_that_starts_in_the_middle_drops_repeats(
    client: Client, receiver: Receiver, journal_name: str
) -> None:
    """A receiver from any record boundary fetches the entries whose first copy is at or after it."""
    producer = new_producer_id()
    order = [1, 2, 1, 2, 3, 1, 4, 3]
    frames = [
        entry_frame(build_uuid(producer, Clock(n << 8), OUTSIDE_TXN), 0, b"entry %d" % n) for n in order
    ]
    client.append(journal_name, b"".join(frames))
    at = 0
    for index in range(len(order)):
        receiver.set_offset(at)
        expected = [n for place, n in enumerate(order) if place >= index and n not in order[:place]]
        assert fetch_all(receiver) == [b"entry %d" % n for n in expected]
        at += len(frames[index])


# Checkpoints.


def test_a_checkpoint_ends_where_the_next_entry_begins(writer: Writer, receiver: Receiver) -> None:
    """A checkpoint returns its record's end, and contains the previous entry's begin, or -1."""
    with writer.checkpointing(0) as first:
        pass
    last = writer.commit_entry(b"one")
    writer.prepare_checkpoint()
    second = writer.checkpoint(1)
    writer.exit_checkpoint()
    assert writer.commit_entry(b"two") == second
    assert [receiver.fetch_entry(SOON) for _ in range(4)] == [
        Checkpoint(lastEntryOffset=-1, nextEntryOffset=first),
        b"one",
        Checkpoint(lastEntryOffset=last, nextEntryOffset=second),
        b"two",
    ]
    assert receiver.version == 2
    receiver.set_offset(second)
    assert receiver.fetch_entry(SOON) == b"two"


def test_a_checkpoint_at_another_version_is_refused(
    client: Client, writer: Writer, journal_name: str
) -> None:
    writer.commit_entry(b"one")
    with pytest.raises(InvalidVersionError, match="at version 0, not 5"), writer.checkpointing(5):
        pytest.fail("no checkpoint was made")
    with writer.checkpointing(0):
        pass
    head = client.write_head(journal_name)
    writer.prepare_checkpoint()
    with pytest.raises(InvalidVersionError) as caught:
        writer.checkpoint(0)
    assert (caught.value.expected, caught.value.actual) == (0, 1)
    assert writer.commit_entry(b"let in") == head


def test_a_new_writer_knows_the_version_and_the_last_entry(client: Client, journal_name: str) -> None:
    """A log's version outlives its writers; the entry before a checkpoint may be another writer's."""
    with Writer(client, journal_name) as first:
        first.commit_entry(b"one")
        last = first.commit_entry(b"two")
        with first.checkpointing(0) as at:
            pass
    with Writer(client, journal_name) as second:
        with pytest.raises(InvalidVersionError, match="at version 1, not 0"), second.checkpointing(0):
            pytest.fail("no checkpoint was made")
        second.take_over()
        with second.checkpointing(1) as end:
            pass
    with Receiver(client, journal_name) as receiver:
        receiver.set_offset(at)
        # The entry before it is the first checkpoint.
        begin = next(r.begin for r in read_records(client, journal_name, last, end) if r.end == at)
        assert receiver.fetch_entry(SOON) == Checkpoint(lastEntryOffset=begin, nextEntryOffset=end)


def test_a_checkpoint_takes_over_from_a_busy_primary(
    client: Client, writer: Writer, journal_name: str, threads: ThreadPoolExecutor
) -> None:
    fenced = threading.Event()

    def commit() -> None:
        try:
            while True:
                writer.commit_entry(b"busy")
        except LogFencedError:
            fenced.set()

    writer.commit_entry(b"first")
    busy = [threads.submit(commit) for _ in range(4)]
    with Writer(client, journal_name) as second:
        with pytest.raises(InvalidVersionError, match="at version 0, not 1"), second.checkpointing(1):
            pytest.fail("no checkpoint was made")
        head = client.write_head(journal_name)
        wait_for(lambda: client.write_head(journal_name) > head, "the old primary to go on")
        assert not fenced.is_set()
        with second.checkpointing(0) as at:
            pass
    for each in busy:
        each.result(SOON)
    *before, checkpoint = read_records(client, journal_name, 0, at)
    last = max(record.begin for record in before if record.content is not None)
    assert checkpoint.content == Checkpoint(lastEntryOffset=last, nextEntryOffset=at)


def test_a_checkpoint_without_an_answer_is_made_once(
    client: Client, proxied: ProxiedClient, journal_name: str
) -> None:
    """The registers show that it was made, and the journal shows where."""
    with Writer(proxied, journal_name) as writer:
        last = writer.commit_entry(b"one")
        writer.prepare_checkpoint()
        at = proxied.without_answer(client, journal_name, lambda: writer.checkpoint(0, SOON))
        writer.exit_checkpoint()
        assert at == client.write_head(journal_name) == writer.commit_entry(b"two")
    with Receiver(client, journal_name) as receiver:
        expected = Checkpoint(lastEntryOffset=last, nextEntryOffset=at)
        assert fetch_all(receiver) == [b"one", expected, b"two"]


def test_the_order_of_the_steps_is_kept(writer: Writer) -> None:
    with pytest.raises(CheckpointStateError, match="no checkpoint is prepared"):
        writer.exit_checkpoint()
    with pytest.raises(CheckpointStateError, match="no checkpoint is prepared"):
        writer.checkpoint(0)
    writer.prepare_checkpoint()
    for again in (writer.prepare_checkpoint, lambda: writer.commit_entry(b"x")):
        with pytest.raises(CheckpointStateError, match="would wait for itself"):
            again()
    writer.exit_checkpoint()
    writer.commit_entry(b"x")


def test_a_checkpoint_holds_entries_back(
    writer: Writer, receiver: Receiver, threads: ThreadPoolExecutor
) -> None:
    writer.commit_entry(b"before")
    with writer.checkpointing(0):
        with pytest.raises(AppendWaitError, match="a checkpoint is in progress; the entry was not appended"):
            threads.submit(writer.commit_entry, b"in vain", 0.05).result(SOON)
        held = threads.submit(writer.commit_entry, b"held", SOON)
        receiver.fetch_entry(SOON)
        assert isinstance(receiver.fetch_entry(SOON), Checkpoint)
        with pytest.raises(FetchTimeoutError):
            receiver.fetch_entry(0.2)
        assert not held.done()
    held.result(SOON)
    assert fetch_all(receiver) == [b"held"]


def test_a_checkpoint_waits_for_pending_entries(
    proxied: ProxiedClient, receiver: Receiver, journal_name: str, threads: ThreadPoolExecutor
) -> None:
    """An entry whose caller has given up stays pending until the broker answers."""
    proxy = proxied.proxy
    with Writer(proxied, journal_name) as writer:
        writer.commit_entry(b"one")
        proxy.to_client = SILENT
        with pytest.raises(PendingEntryError, match="it is pending, and may be in the log"):
            writer.commit_entry(b"two", 0.2)
        with pytest.raises(AppendWaitError, match="1 entries are pending"):
            writer.prepare_checkpoint(0.2)
        with pytest.raises(CheckpointStateError):
            writer.exit_checkpoint()
        with pytest.raises(AppendWaitError, match="1 entries are pending"):
            writer.prepare_checkpoint(0.2)
        preparing = threads.submit(writer.prepare_checkpoint, SOON)
        proxy.cut()
        proxy.to_client = CLEAN
        preparing.result(SOON)
        at = writer.checkpoint(0)
        writer.exit_checkpoint()
    *entries, last = fetch_all(receiver)
    assert entries == [b"one", b"two"]
    assert isinstance(last, Checkpoint)
    assert last.nextEntryOffset == at


# Takeover.


def test_an_old_primary_is_fenced(
    client: Client, writer: Writer, receiver: Receiver, journal_name: str
) -> None:
    writer.commit_entry(b"one")
    with Writer(client, journal_name) as second:
        second.take_over()
        for _ in range(2):
            with pytest.raises(LogFencedError, match=f"writer {second.author} has taken the log over"):
                writer.commit_entry(b"lost")
        with pytest.raises(LogFencedError), writer.checkpointing(0):
            pytest.fail("no checkpoint was made")
        second.commit_entry(b"two")
    assert fetch_all(receiver) == [b"one", b"two"]


def test_the_first_entry_or_checkpoint_takes_over(
    client: Client, writer: Writer, receiver: Receiver, journal_name: str
) -> None:
    with Writer(client, journal_name) as second, Writer(client, journal_name) as third:
        writer.commit_entry(b"one")
        second.commit_entry(b"two")
        with pytest.raises(LogFencedError):
            writer.commit_entry(b"lost")
        with third.checkpointing(0):
            pass
        with pytest.raises(LogFencedError):
            second.commit_entry(b"lost")
    assert fetch_all(receiver)[:2] == [b"one", b"two"]


def test_a_take_over_without_an_answer_is_done_once(
    client: Client, proxied: ProxiedClient, journal_name: str
) -> None:
    """The registers show the takeover: by a separate record, and by an entry."""
    with Writer(proxied, journal_name) as first:
        at = proxied.without_answer(client, journal_name, lambda: first.commit_entry(b"one", SOON))
        assert at == 0
        assert copies(client, journal_name) == 1
    with Writer(proxied, journal_name) as second:
        end = proxied.without_answer(client, journal_name, second.take_over)
        assert end == client.write_head(journal_name) == second.take_over()
        assert second.commit_entry(b"two") == end
    assert copies(client, journal_name) == 3


def test_an_entry_that_a_replica_lacks_is_not_repeated(
    client: Client, proxied: ProxiedClient, journal_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that has just joined has none of the bytes before. But the registers show the entry."""
    monkeypatch.setattr(writing, "read_records", lambda *_: iter(()))
    with Writer(proxied, journal_name) as writer, pytest.raises(PendingEntryError, match="is in the log"):
        proxied.without_answer(client, journal_name, lambda: writer.commit_entry(b"one", SOON))
    assert copies(client, journal_name) == 1


def test_lost_registers_are_noticed(client: Client, writer: Writer, journal_name: str) -> None:
    """Empty registers match every check, so a writer that finds them stops, and does not assume version 0."""
    writer.commit_entry(b"one")
    with writer.checkpointing(0):
        pass
    found = client.append(journal_name, b"").registers
    lost = entry_frame(build_uuid(new_producer_id(), Clock(160), OUTSIDE_TXN), 0, b"foreign")
    client.append(journal_name, lost, subtract_registers=found)
    with pytest.raises(LogFencedError, match="all its brokers were lost"):
        writer.commit_entry(b"two")
    with Writer(client, journal_name) as second:
        refused = pytest.raises(InvalidVersionError, match=r"take_over\(version=1\) restores the version")
        with refused, second.checkpointing(1):
            pytest.fail("no checkpoint was made")
        second.take_over(version=1)
        with second.checkpointing(1):
            pass
    with (
        Writer(client, journal_name) as third,
        pytest.raises(InvalidVersionError, match="at version 2, not 1"),
    ):
        third.take_over(version=1)


PRIMARY = """
import itertools, sys
from gazette_spark.client import Client
from gazette_spark.replicated_log import Writer
writer = Writer(Client(sys.argv[1]), sys.argv[2])
for number in itertools.count():
    writer.commit_entry(b"%d" % number)
    if number % 10 == 5:
        with writer.checkpointing(number // 10):
            pass
    print(number, flush=True)
"""
"""Program of a primary that commits numbers, and reports the acknowledged ones, until it is killed."""


def test_a_secondary_takes_over_from_a_killed_primary(
    broker: BrokerHandle, client: Client, receiver: Receiver, journal_name: str
) -> None:
    command = [sys.executable, "-c", PRIMARY, broker.endpoint, journal_name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as primary:
        assert primary.stdout is not None
        for line in primary.stdout:
            if line == "17\n":
                primary.kill()
        acknowledged = int(line)
    with Writer(client, journal_name) as successor:
        successor.take_over()
        applied = [int(each) for each in fetch_all(receiver) if isinstance(each, bytes)]
        # The last few may be in the log without an acknowledgement.
        assert applied == list(range(len(applied)))
        assert len(applied) > acknowledged >= 17
        made = (len(applied) + 4) // 10
        assert receiver.version == made or (applied[-1] % 10 == 5 and receiver.version == made - 1)
        with successor.checkpointing(receiver.version):
            successor_entry = b"%d" % len(applied)
        successor.commit_entry(successor_entry)
    assert fetch_all(receiver)[-1] == successor_entry


# The end of the log, and its bytes.


def test_the_end_is_after_all_acknowledged_entries(
    writer: Writer, receiver: Receiver, threads: ThreadPoolExecutor
) -> None:
    acknowledged: list[bytes] = []
    done = threading.Event()

    def commit() -> None:
        for number in range(60):
            entry = b"%d" % number
            writer.commit_entry(entry, SOON)
            acknowledged.append(entry)
        done.set()

    committing = threads.submit(commit)
    found: list[bytes | Checkpoint] = []
    ends = 0
    while not done.is_set() or len(found) < 60:
        known = len(acknowledged)
        try:
            found.append(receiver.try_fetch_entry(SOON))
        except NoMoreMessageError:
            ends += 1
            assert len(found) >= known
    committing.result(SOON)
    assert found == acknowledged
    assert ends


def test_an_offset_behind_the_end_is_data_loss(
    client: Client, writer: Writer, journal_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that ends before the read offset has lost bytes; waiting would not help."""
    monkeypatch.setattr(receiving, "IDLE_S", 0.05)
    writer.commit_entry(b"one")
    head = client.write_head(journal_name)
    with Receiver(client, journal_name) as receiver:
        with pytest.raises(LogDataLossError) as caught:
            receiver.set_offset(head + 1)
        assert (caught.value.requested, caught.value.available) == (head + 1, head)
        receiver._begin(head + 1)  # As after a loss of the brokers' bytes.
        for fetch in (receiver.try_fetch_entry, receiver.fetch_entry):
            with pytest.raises(LogDataLossError, match=f"but it ends at {head}"):
                fetch(SOON)


def test_a_broker_that_was_just_started(
    broker: BrokerHandle, writer: Writer, journal_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head below the offset is read again, because a new broker may not have listed its store."""
    monkeypatch.setattr(receiving, "IDLE_S", 0.01)
    writer.commit_entry(b"one")
    at = writer.commit_entry(b"two")
    heads = [0, 0]

    class Starting(Client):
        def write_heads(self, journals: Iterable[str], **options: Any) -> dict[str, int]:
            if heads:
                return {journal: heads.pop() for journal in journals}
            return super().write_heads(journals, **options)

        highest_heads = write_heads

    with Starting(broker.endpoint, timeout_s=SOON) as client, Receiver(client, journal_name) as receiver:
        receiver.set_offset(at)
        assert heads == []
        assert receiver.fetch_entry(SOON) == b"two"
        heads += [0, 0]
        with pytest.raises(FetchTimeoutError):
            receiver.fetch_entry(1)
        assert heads == []


def test_a_hole_is_data_loss(broker: BrokerHandle, client: Client, wire: Wire, journal_name: str) -> None:
    with Writer(client, journal_name, spec=journal_spec(journal_name, refresh_interval_s=1)) as writer:
        writer.commit_entry(b"deleted")
        at = writer.commit_entry(b"kept")
        stored = wire.wait_persisted(journal_name, 1).fragments[0]
        wire.append(journal_name, suspend=pb.AppendRequest.SUSPEND_NOW)  # Closes the second fragment, too.
        wire.wait_persisted(journal_name, 2)
        (broker.file_root / stored.signed_url.removeprefix("file://").lstrip("/")).unlink()
        wait_for(lambda: wire.spans(journal_name)[0][0] == at, "deletion to be seen")
    with Receiver(client, journal_name) as receiver:
        for fetch in (receiver.fetch_entry, receiver.try_fetch_entry):
            with pytest.raises(LogDataLossError, match=rf"entries at offset 0 are gone; .* at {at}"):
                fetch(SOON)
        with pytest.raises(LogDataLossError):
            receiver.set_offset(0)
        receiver.set_offset(at)
        assert receiver.fetch_entry(SOON) == b"kept"


def test_set_offset_takes_bounds_of_entries(client: Client, writer: Writer, journal_name: str) -> None:
    """Valid offsets are an entry's begin or end and the log's end; the magic word identifies them."""
    offsets = [writer.commit_entry(b"entry %d" % number) for number in range(3)]
    with Receiver(client, journal_name) as receiver:
        for number, offset in enumerate(offsets):
            receiver.set_offset(offset)
            assert receiver.fetch_entry(SOON) == b"entry %d" % number
            assert receiver.offset == (*offsets, client.write_head(journal_name))[number + 1]
        receiver.set_offset(client.write_head(journal_name))
        with pytest.raises(NoMoreMessageError):
            receiver.try_fetch_entry()
        for wrong in (offsets[1] + 1, client.write_head(journal_name) - 2, -1):
            with pytest.raises(OffsetError, match="begin"):
                receiver.set_offset(wrong)
        assert receiver.offset == client.write_head(journal_name)


def test_bytes_of_others_are_an_error(client: Client, receiver: Receiver, journal_name: str) -> None:
    client.append(journal_name, b'{"id": 1}\n')
    for fetch in (receiver.fetch_entry, receiver.try_fetch_entry):
        with pytest.raises(RecordError, match=f"'{journal_name}', record at offset 0: no frame begins there"):
            fetch(SOON)


def test_half_an_entry_is_no_end(client: Client, receiver: Receiver, journal_name: str) -> None:
    """A journal that ends inside an entry is an error, because no writer leaves that."""
    content = entry_frame(build_uuid(new_producer_id(), Clock(160), OUTSIDE_TXN), 0, b"entry")
    client.append(journal_name, content[:-2])
    with pytest.raises(RecordError, match="the journal ends inside the entry"):
        receiver.try_fetch_entry(SOON)


# Waiting.


def test_a_fetch_waits_for_the_next_entry(
    writer: Writer, receiver: Receiver, threads: ThreadPoolExecutor
) -> None:
    with pytest.raises(FetchTimeoutError, match="no entry at offset 0 within"):
        receiver.fetch_entry(0.05)
    fetching = threads.submit(receiver.fetch_entry, SOON)
    writer.commit_entry(b"one")
    assert fetching.result(SOON) == b"one"


def test_a_fetch_is_cancelled_from_any_thread(
    writer: Writer, receiver: Receiver, threads: ThreadPoolExecutor
) -> None:
    promoted = threading.Event()
    fetching = threads.submit(receiver.fetch_entry, None, cancel_on(promoted.wait))
    with pytest.raises(TimeoutError):
        fetching.result(0.2)
    promoted.set()
    with pytest.raises(FetchCancelledError, match="the fetch at offset 0 was cancelled"):
        fetching.result(SOON)
    with pytest.raises(FetchCancelledError):
        receiver.try_fetch_entry(cancel=promoted)
    writer.commit_entry(b"one")
    assert receiver.fetch_entry(SOON) == b"one"


def test_closing_ends_a_fetch(receiver: Receiver, threads: ThreadPoolExecutor) -> None:
    fetching = threads.submit(receiver.fetch_entry)
    with pytest.raises(TimeoutError):
        fetching.result(0.2)
    receiver.close()
    with pytest.raises(ClosedError, match="receiver of log"):
        fetching.result(SOON)


# Other programs.


def test_a_fetch_without_a_token_fails_and_goes_on(
    broker: BrokerHandle, writer: Writer, journal_name: str
) -> None:
    """An error of the client's token function must reach the fetch, which would otherwise wait for ever."""
    fails = False

    def token() -> str:
        if fails:
            raise ZeroDivisionError
        return "token"

    begin = writer.commit_entry(b"entry")
    with Client(broker.endpoint, token=token) as client, Receiver(client, journal_name) as receiver:
        fails = True
        with pytest.raises(ZeroDivisionError):
            receiver.fetch_entry(SOON)
        assert receiver.offset == begin == 0
        fails = False
        assert receiver.fetch_entry(SOON) == b"entry"


def test_the_spark_source_reads_it(client: Client, writer: Writer, journal_name: str) -> None:
    writer.commit_entry(b"one")
    last = writer.commit_entry(b"two")
    with writer.checkpointing(0) as at:
        pass
    content = client.read(journal_name, end_offset=at).read() or b""
    cut = FIXED.cut(content, 0)
    block = Block(journal_name, 0, content, cut.starts, cut.ends, FIXED.header_bytes, FIXED.trailer_bytes)
    files = descriptor_pb2.FileDescriptorSet()
    replicated_log_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    checkpoint = pa.struct([("lastEntryOffset", pa.int64()), ("nextEntryOffset", pa.int64())])
    columns = pa.schema([("entry", pa.binary()), ("checkpoint", checkpoint), ("version", pa.int64())])
    set_of_files = files.SerializeToString()
    form = ProtobufFormat(columns, descriptor_set=set_of_files, message="replicated_log.LogEntry")
    rows = pa.Table.from_batches(ProtobufParser(form).record_batches([block]), form.schema)
    assert rows.select(columns.names).to_pylist() == [
        {"entry": b"one", "checkpoint": None, "version": None},
        {"entry": b"two", "checkpoint": None, "version": None},
        {"entry": None, "checkpoint": {"lastEntryOffset": last, "nextEntryOffset": at}, "version": 1},
    ]


@pytest.mark.brokers("embedded")
def test_the_command_reads_it_without_repeats(
    client: Client, proxied: ProxiedClient, journal_name: str, run: Command
) -> None:
    """The UUIDs are where Gazette's committed readers expect them, so its rules drop the same records."""
    with Writer(proxied, journal_name) as writer:
        writer.commit_entry(b"one")
        proxied.without_answer(client, journal_name, lambda: writer.commit_entry(b"two", SOON))
        writer.commit_entry(b"three")
    assert copies(client, journal_name) == 4
    command = ["read", journal_name, "--isolation-level", "read_committed", "--format", "json"]
    frames = [base64.b64decode(json.loads(line)["content"]) for line in run.done(*command).splitlines()]
    found = [replicated_log_pb2.LogEntry.FromString(frame[FIXED.header_bytes :]) for frame in frames]
    assert [each.entry for each in found] == [b"one", b"two", b"three"]


@pytest.mark.deployed_broker
def test_gazctl_reads_it(broker: BrokerHandle, client: Client, writer: Writer, journal_name: str) -> None:
    writer.commit_entry(b"one")
    read = broker.gazctl_bytes("journals", "read", "-l", f"name={journal_name}")
    assert read == client.read(journal_name).read()
    assert label_set({"author": writer.author}) == client.append(journal_name, b"").registers
