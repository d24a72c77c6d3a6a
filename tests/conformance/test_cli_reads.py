"""``gazette-spark journals read`` reads many journals, resumes at saved offsets, and follows new content."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
from pathlib import Path

import pytest

from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.command import Command, end_by_signal
from tests.conformance.wire import Wire, delete, spec
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded")


@pytest.fixture
def pair(wire: Wire, fresh_prefix: str) -> tuple[str, str]:
    names = (f"{fresh_prefix}one", f"{fresh_prefix}two")
    wire.create(*(spec(name) for name in names))
    for name in names:
        wire.append(name, f"{name[-3:]} first\n".encode())
        wire.append(name, f"{name[-3:]} second\n".encode())
    return names


def test_many_journals(run: Command, pair: tuple[str, str], fresh_prefix: str) -> None:
    assert (
        run.done("read", "-l", f"prefix={fresh_prefix}") == "one first\none second\ntwo first\ntwo second\n"
    )
    lines = run.done("read", "-l", f"prefix={fresh_prefix}", "--format", "json").splitlines()
    chunks = [json.loads(line) for line in lines]
    for name in pair:
        mine = b"".join(base64.b64decode(each["content"]) for each in chunks if each["journal"] == name)
        assert mine == f"{name[-3:]} first\n{name[-3:]} second\n".encode()


def test_offsets_resume(
    *,
    broker: BrokerHandle,
    run: Command,
    pair: tuple[str, str],
    wire: Wire,
    fresh_prefix: str,
    tmp_path: Path,
) -> None:
    saved = tmp_path / "offsets.json"
    saved.write_text("{}")
    again = ["-l", f"prefix={fresh_prefix}", "--offsets", str(saved), "--offsets-out", str(saved)]
    assert run.done("read", *again).count("\n") == 4
    assert json.loads(saved.read_text()) == dict.fromkeys(pair, 21 - 0)
    assert json.loads(Path(f"{saved}.previous").read_text()) == {}
    wire.append(pair[1], b"two third\n")
    assert run.done("read", *again) == "two third\n"
    assert run.done("read", *again) == ""
    wire.append(pair[0], b"one third\n")
    assert broker.gazctl("journals", "read", *again) == "one third\n"
    assert run.done("read", *again) == ""


def test_tail_begins_at_the_head(
    run: Command, pair: tuple[str, str], fresh_prefix: str, tmp_path: Path
) -> None:
    saved = tmp_path / "offsets.json"
    assert run.done("read", "-l", f"prefix={fresh_prefix}", "--tail", "--offsets-out", str(saved)) == ""
    assert set(json.loads(saved.read_text())) == set(pair)
    assert min(json.loads(saved.read_text()).values()) > 0


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"a/journal": "1"}', '{"a/journal": -2}', '{"a/journal": true}']
)
def test_bad_offsets(run: Command, journal: str, tmp_path: Path, text: str) -> None:
    saved = tmp_path / "offsets.json"
    saved.write_text(text)
    done = run("read", journal, "--offsets", str(saved), "--offsets-out", str(saved))
    assert done.exit_code == 1
    assert str(saved) in done.stderr
    assert saved.read_text() == text


def test_files_are_read_directly(
    broker: BrokerHandle, run: Command, pair: tuple[str, str], wire: Wire
) -> None:
    wire.wait_persisted(pair[0], 1)
    for given in ([], ["--file-root", str(broker.file_root)]):
        assert run.done("read", pair[0], *given) == "one first\none second\n"


def lines_of(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return sorted(process.stdout.readline() for _ in range(count))


@pytest.mark.brokers("embedded", "deployed")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_follow(
    *, run: Command, pair: tuple[str, str], wire: Wire, fresh_prefix: str, tmp_path: Path, number: int
) -> None:
    saved = tmp_path / "offsets.json"
    with run.running(
        "read", "-l", f"prefix={fresh_prefix}", "--block", "--offsets-out", str(saved)
    ) as process:
        assert lines_of(process, 4) == ["one first\n", "one second\n", "two first\n", "two second\n"]
        wire.append(pair[0], b"one third\n")
        assert lines_of(process, 1) == ["one third\n"]
        third = f"{fresh_prefix}three"
        wire.create(spec(third))
        wire.append(third, b"three first\n")
        assert lines_of(process, 1) == ["three first\n"]
        wire.apply(delete(pair[1], -1))
        wire.append(third, b"three second\n")
        assert lines_of(process, 1) == ["three second\n"]
        code, out, err = end_by_signal(process, number)
    assert (code, out, err) == (0, "", "")
    offsets = json.loads(saved.read_text())
    assert offsets[pair[0]] == len("one first\none second\none third\n")
    assert offsets[third] == len("three first\nthree second\n")


@pytest.mark.brokers("embedded", "deployed")
def test_appends_stay_in_one_piece(run: Command, wire: Wire, fresh_prefix: str) -> None:
    names = [f"{fresh_prefix}part-{number}" for number in range(3)]
    wire.create(*(spec(name) for name in names))
    size = 300_000
    with run.running("read", "-l", f"prefix={fresh_prefix}", "--block") as process:
        assert process.stdout is not None
        for _ in range(3):
            for letter, name in zip("abc", names, strict=True):
                wire.append(name, letter.encode() * size + b"\n")
        lines = [process.stdout.readline() for _ in range(9)]
        assert end_by_signal(process)[0] == 0
    assert sorted(lines) == sorted(letter * size + "\n" for letter in "abc" * 3)


def test_a_deleted_journal_ends_no_follow(run: Command, journal: str, wire: Wire) -> None:
    """The journal has only left the selector, and may come back."""
    with run.running("read", journal, "--block") as process:
        wire.append(journal, b"first\n")
        assert lines_of(process, 1) == ["first\n"]
        wire.apply(delete(journal, -1))
        code, out, err = end_by_signal(process)
    assert (code, out, err) == (0, "", "")


def test_a_follow_that_fails(run: Command, wire: Wire, journal_name: str) -> None:
    wire.create(spec(journal_name, flags=pb.JournalSpec.O_WRONLY))
    with run.running("read", journal_name, "--block") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert "NOT_ALLOWED" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_followed_journal_that_is_created_again_is_read_from_its_beginning(
    run: Command, wire: Wire, journal_name: str
) -> None:
    """An offset of the deleted journal means nothing in the new one."""
    wire.create(spec(journal_name, stores=[]))
    with run.running("read", journal_name, "--block") as process:
        wire.append(journal_name, b"of the old journal\n")
        assert lines_of(process, 1) == ["of the old journal\n"]
        wire.apply(delete(journal_name, -1))
        wire.create(spec(journal_name, stores=[]))
        wire.append(journal_name, b"second\n")
        wire.append(journal_name, b"third, which ends past the old journal's end\n")
        assert lines_of(process, 1) == ["second\n"]
        assert end_by_signal(process)[0] == 0
