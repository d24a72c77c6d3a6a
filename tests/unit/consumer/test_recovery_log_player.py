"""Tests that a player skips harmless damage and refuses a log that lost operations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from gazette_spark._formats.fixed import HEADER_BYTES, MAGIC
from gazette_spark.client import AppendOptions, AppendResult, Chunk, Client
from gazette_spark.consumer.recoverylog import Player, RecordedFiles, Recorder, Recovered, fence_of
from gazette_spark.consumer.recoverylog.operations import encode
from gazette_spark.errors import (
    ClosedError,
    OptionError,
    RecorderFencedError,
    RecordError,
    RecoveryLogLossError,
    UnavailableError,
)
from gazette_spark.protocol import recoverylog_pb2 as pr
from tests.rig.recovery_log import MemoryClient, MemoryJournals, MemoryReader, MemoryService, files_below

LOG = "recovery/log"
AUTHOR = 77


class Host:
    """A recorder on journals in memory, with players of its log."""

    def __init__(self, root: Path) -> None:
        self.journals = MemoryJournals()
        self._root = root
        self._made = 0
        recovered = self.play(author=AUTHOR)
        service = MemoryService(self.journals)
        self.recorder = Recorder(LOG, recovered.fsm, AUTHOR, recovered.directory, service.as_client())
        self.files = RecordedFiles(self.recorder)

    @property
    def log(self) -> bytearray:
        return self.journals.content[LOG]

    def play(self, hints: pr.FSMHints | None = None, *, author: int = 0) -> Recovered:
        """Play to the write head, or hand off to ``author``."""
        self._made += 1
        player = Player(self.journals.client(), hints or pr.FSMHints(log=LOG), self._root / str(self._made))
        if author:
            player.inject_handoff(author)
        else:
            player.finish_at_write_head()
        return player.play()

    def create(self, name: str, content: bytes) -> None:
        with self.files.create(name) as file:
            file.write(content)

    def append(self, **fields: object) -> None:
        """Append an operation that fits, without the recorder's checks."""
        fsm = self.recorder._fsm
        op = pr.RecordedOp(seq_no=fsm.next_seq_no, checksum=fsm.next_checksum, author=AUTHOR)
        op.MergeFrom(pr.RecordedOp(**fields))  # type: ignore[arg-type]  # Fields by name.
        self.log.extend(encode(op)[0])


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path)
    made.create("a", b"content")
    return made


@pytest.mark.parametrize("junk", [b"x", b"\x66", b"junk" * 100, b"\x66\x33\x93", bytes(8)], ids=repr)
def test_damage_is_skipped_to_the_next_operation(host: Host, junk: bytes) -> None:
    """Bytes between operations are harmless, also before a hand-off."""
    host.log.extend(junk)
    host.create("b", b"after")
    host.log.extend(junk.rstrip(b"\x66\x33\x93") or b"x")
    expected = {"a": b"content", "b": b"after"}
    assert files_below(host.play().directory) == expected
    assert files_below(host.play(author=5).directory) == expected


def test_an_operation_that_is_cut_off_is_a_loss(host: Host) -> None:
    """Appends are atomic, so a log that ends inside an operation has lost bytes."""
    del host.log[-3:]
    with pytest.raises(RecoveryLogLossError, match="inside the operation"):
        host.play()
    assert not list(host._root.glob("*/.fnodes"))


@pytest.mark.parametrize("path", ["/../outside", "/a/../../outside", "/", "/.fnodes/3", "/a\0b"], ids=repr)
def test_paths_outside_of_the_directory_are_refused(host: Host, path: str) -> None:
    """A log must not make a player write to other directories."""
    host.append(create=pr.RecordedOp.Create(path=path))
    with pytest.raises(RecordError, match="not below the recorded directory"):
        host.play()
    assert not (host._root / "outside").exists()


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (b"\x66\x33\x93\x36\xff\xff\xff\x7f", "longer than"),
        (b"\x66\x33\x93\x36\x01\x00\x00\x00\xff", "not a recoverylog.RecordedOp"),
    ],
    ids=["too-long", "no-message"],
)
def test_what_is_no_operation_is_refused(host: Host, frame: bytes, problem: str) -> None:
    at = len(host.log)
    host.log.extend(frame)
    with pytest.raises(RecordError, match=problem) as raised:
        host.play()
    assert raised.value.offset == at


@pytest.mark.parametrize(("offset", "length"), [(0, -5), (-1, 5), (0, (1 << 63) - 1), ((1 << 63) - 1, 5)])
def test_writes_outside_of_the_possible_offsets_are_refused(host: Host, offset: int, length: int) -> None:
    """A negative length would move the player back."""
    host.append(write=pr.RecordedOp.Write(fnode=2, offset=offset, length=length))
    with pytest.raises(RecordError, match=f"{length} bytes at offset {offset}"):
        host.play()


def test_properties_become_files(host: Host) -> None:
    """Logs of older Gazette versions have properties."""
    host.append(property=pr.Property(path="/IDENTITY", content="one"))
    assert files_below(host.play().directory) == {"a": b"content", "IDENTITY": b"one"}


def test_a_pruned_log_is_played_from_hints(host: Host) -> None:
    """Bytes before the hinted segments are not needed."""
    host.files.remove("a")
    host.create("b", b"kept")
    first = host.play().hints.live_nodes[0].segments[0].first_offset
    hints = host.play().hints
    host.journals.first_offsets[LOG] = first
    assert files_below(host.play(hints).directory) == {"b": b"kept"}
    with pytest.raises(RecoveryLogLossError, match="are gone"):
        host.play()


def test_a_hole_in_a_hinted_segment_is_a_loss(host: Host) -> None:
    recorded, recovered = host.recorder.build_hints(0), host.play().hints
    host.journals.first_offsets[LOG] = len(host.log)
    for hints in (recorded, recovered):
        with pytest.raises(RecoveryLogLossError):
            host.play(hints)


def test_a_log_without_a_hinted_operation_is_a_loss(host: Host) -> None:
    """The player must not return an older state."""
    hints = host.recorder.build_hints(0)
    hints.live_nodes[0].segments[0].last_seq_no += 1
    with pytest.raises(RecoveryLogLossError, match="without an operation that the hints name"):
        host.play(hints)


def test_a_hand_off_is_repeated_until_it_fits(host: Host) -> None:
    """If another recorder was faster, the player first reads its operations."""
    host.journals.before_hand_off = lambda: host.create("b", b"faster")
    recovered = host.play(author=5)
    assert files_below(recovered.directory) == {"a": b"content", "b": b"faster"}
    at = host.log.rindex(MAGIC)
    last = pr.RecordedOp.FromString(bytes(host.log[at + HEADER_BYTES :]))
    assert (last.author, last.seq_no) == (5, recovered.fsm.next_seq_no - 1)


def test_a_repeated_hand_off_does_not_hide_that_of_another_player(host: Host) -> None:
    """The repetition takes the log back from the other player, whose operations count all the same."""

    def take_over() -> None:
        recovered = host.play(author=6)
        service = MemoryService(host.journals)
        other = Recorder(LOG, recovered.fsm, 6, recovered.directory, service.as_client())
        with RecordedFiles(other).create("b") as file:
            file.write(b"of the other")
        assert other.barrier().exception(0) is None

    host.journals.before_repetition = take_over
    recovered = host.play(author=5)
    assert host.journals.registers[LOG] == fence_of(5)
    assert files_below(recovered.directory) == {"a": b"content", "b": b"of the other"}


def test_a_log_that_ends_before_what_was_played_is_a_loss(host: Host) -> None:
    """The hand-offs filled the lost part of the log, so that the next player did not notice the loss."""
    append, ends = host.journals.append, []

    def lose_the_end(options: AppendOptions, content: bytes) -> AppendResult:
        # The log is played to the end that the first append returns. The second one requests its end again.
        ends.append(len(host.log))
        if len(ends) == 2:
            del host.log[-20:]
        return append(options, content)

    host.journals.append = lose_the_end  # type: ignore[method-assign]
    with pytest.raises(RecoveryLogLossError, match="before what was played"):
        host.play(author=5)


def test_another_log_is_taken_over(host: Host) -> None:
    recovered = host.play(author=AUTHOR)
    other = MemoryService(host.journals)
    forked = Recorder("other/log", recovered.fsm, 5, recovered.directory, other.as_client())
    RecordedFiles(forked).rename("a", "b")
    assert host.journals.registers["other/log"] == fence_of(5)
    hints = forked.build_hints(0)
    assert [each.log for each in hints.live_nodes[0].segments] == [LOG, ""]
    assert files_below(host.play(hints).directory) == {"b": b"content"}


@pytest.mark.parametrize("old", [0, 3], ids=["new log", "log with an author"])
def test_a_repeated_fence_takes_no_log_from_another_recorder(host: Host, old: int) -> None:
    """Both recorders would have acknowledged operations, and hints name those of one."""
    if old:
        host.journals.append(AppendOptions("other/log", union_registers=fence_of(old)), b"")

    def fork(recovered: Recovered, author: int) -> Recorder:
        service = MemoryService(host.journals)
        return Recorder("other/log", recovered.fsm, author, recovered.directory, service.as_client())

    others: list[Recorder] = []
    recovered = host.play(author=5)
    host.journals.before_repetition = lambda: others.append(fork(host.play(author=6), 6))
    first = fork(recovered, 5)
    assert host.journals.registers["other/log"] == fence_of(6)
    assert isinstance(first.barrier().exception(0), RecorderFencedError)
    assert others[0].barrier().exception(0) is None


def test_a_recorder_is_not_used_after_a_failed_block(host: Host) -> None:
    """After a failed operation, the log and the files may differ."""
    with pytest.raises(ValueError, match="no file '/missing' is recorded"), host.recorder.begin() as log:
        log.remove("missing")
    host.create("fine", b"")

    def fail() -> None:
        with host.recorder.begin() as log:
            log.remove("fine")
            log.remove("missing")

    with pytest.raises(ValueError, match="missing"):
        fail()
    with pytest.raises(ClosedError, match="it failed before"):
        host.recorder.barrier()


def test_slips_are_refused(host: Host, tmp_path: Path) -> None:
    with host.recorder.begin() as log:
        with pytest.raises(ValueError, match="IDENTITY"):
            log.create("IDENTITY")
        with pytest.raises(ValueError, match="a file already has the path"):
            log.link("a", "a")
        with pytest.raises(ValueError, match="is recorded in log"):
            log.open("b")
        log.rename("a", "a")
    assert host.recorder.paths == ["a"]
    service = MemoryService(host.journals).as_client()
    with pytest.raises(OptionError, match="absolute"):
        Recorder(LOG, host.recorder._fsm, AUTHOR, "relative", service)
    with pytest.raises(OptionError, match="author"):
        Player(host.journals.client(), pr.FSMHints(log=LOG), tmp_path).inject_handoff(0)


def test_an_outage_does_not_end_a_player_that_follows(host: Host, tmp_path: Path) -> None:
    """Its shard's status is STANDBY: it can take over with what it has played."""
    began: list[int] = []

    class Outage(MemoryReader):
        def __iter__(self) -> Iterator[Chunk]:
            began.append(self.offset)
            if len(began) == 2:
                player.finish_at_write_head()
            raise UnavailableError("http://broker", "no answer")

    class WithoutBroker(MemoryClient):
        def read(self, journal: str, *, offset: int, end_offset: int, block: bool) -> MemoryReader:
            if block:
                return Outage(host.journals, journal, offset, end_offset)
            return super().read(journal, offset=offset, end_offset=end_offset, block=block)

    client = cast("Client", WithoutBroker(host.journals))
    player = Player(client, pr.FSMHints(log=LOG), tmp_path / "standby")
    assert files_below(player.play().directory) == {"a": b"content"}
    assert began == [len(host.log)] * 2
