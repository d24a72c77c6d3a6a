"""``gazette-spark journals append`` frames and maps records as ``gazctl`` does, on either broker."""

from __future__ import annotations

import base64
import json
import struct

import pytest

from tests.conformance.command import Command
from tests.conformance.wire import Wire, spec
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded", "deployed")

COUNT = 300
"""Number of records: enough that each of three journals gets some under any mapping."""


@pytest.fixture
def topics(wire: Wire, fresh_prefix: str) -> tuple[str, str]:
    prefixes = (f"{fresh_prefix}ours/", f"{fresh_prefix}gazctl/")
    wire.create(*(spec(f"{prefix}part-{number}") for prefix in prefixes for number in range(3)))
    return prefixes


def contents(wire: Wire, prefix: str) -> list[bytes]:
    return [wire.content(f"{prefix}part-{number}") for number in range(3)]


def line(text: str) -> bytes:
    return f"{text}\n".encode()


def frame(text: str) -> bytes:
    return b"\x66\x33\x93\x36" + struct.pack("<I", len(text)) + text.encode()


FRAMES = {"lines": line, "fixed": frame}


@pytest.mark.parametrize("framing", FRAMES)
def test_modulo_is_gazctls(
    broker: BrokerHandle, run: Command, topics: tuple[str, str], wire: Wire, framing: str
) -> None:
    write = FRAMES[framing]
    given = b"".join(write(f"key-{n % 17}") + write(f"record {n}") for n in range(COUNT))
    ours, theirs = topics
    arguments = ["-f", framing, "-m", "modulo", "-l"]
    run.done("append", *arguments, f"prefix={ours}", stdin=given)
    broker.gazctl("journals", "append", *arguments, f"prefix={theirs}", input=given)
    assert contents(wire, ours) == contents(wire, theirs)
    assert all(contents(wire, ours))


def test_rendezvous_keeps_keys_together(run: Command, topics: tuple[str, str], wire: Wire) -> None:
    prefix = topics[0]
    for begin in (0, COUNT):
        given = b"".join(
            line(base64.b64encode(b"\xff%d" % (n % 5)).decode()) + line(f"{n % 5} {n}")
            for n in range(begin, begin + COUNT)
        )
        run.done(
            "append", "-f", "lines", "-m", "rendezvous", "--base64", "-l", f"prefix={prefix}", stdin=given
        )
    found = [content.decode().splitlines() for content in contents(wire, prefix)]
    assert sorted(each for lines in found for each in lines) == sorted(
        f"{n % 5} {n}" for n in range(2 * COUNT)
    )
    for key in range(5):
        mine = [[each for each in lines if each.startswith(f"{key} ")] for lines in found]
        (whole,) = [each for each in mine if each]
        assert whole == [f"{key} {n}" for n in range(key, 2 * COUNT, 5)]


def test_random_spreads_records(run: Command, topics: tuple[str, str], wire: Wire) -> None:
    given = b"".join(line(f"record {n}") for n in range(COUNT))
    counts = json.loads(
        run.done("append", "-f", "lines", "-l", f"prefix={topics[0]}", "--format", "json", stdin=given)
    )
    found = contents(wire, topics[0])
    assert sorted(b"".join(found).splitlines()) == sorted(given.splitlines())
    assert list(counts.values()) == [len(each.splitlines()) for each in found]


def test_direct_names_the_journal(run: Command, topics: tuple[str, str], wire: Wire) -> None:
    """The command accepts a selector of several journals, too, which gazctl v0.103.0 does not."""
    prefix = topics[0]
    given = b"".join(line(f"{prefix}part-{n % 3}") + line(f"{n}") for n in range(6))
    assert "6 records to 3 journals" in run.done(
        "append", "-f", "lines", "-m", "direct", "-l", f"prefix={prefix}", stdin=given
    )
    assert contents(wire, prefix) == [b"0\n3\n", b"1\n4\n", b"2\n5\n"]
    other = run("append", "-f", "lines", "-m", "direct", "-l", f"prefix={prefix}", stdin=b"a/other\nrecord\n")
    assert other.exit_code == 1
    assert "a/other" in other.stderr


def test_a_whole_input_goes_to_one_of_them(run: Command, topics: tuple[str, str], wire: Wire) -> None:
    given = bytes(range(256)) * 5000
    run.done("append", "-l", f"prefix={topics[0]}", stdin=given)
    assert sorted(contents(wire, topics[0])) == [b"", b"", given]


@pytest.mark.parametrize(
    ("arguments", "given", "problem"),
    [
        pytest.param(["-f", "lines"], b"one\ntwo", "no newline", id="line cut"),
        pytest.param(["-f", "fixed"], frame("one")[:-1], "within a frame", id="frame cut"),
        pytest.param(["-f", "fixed"], b"{}\n{}\n{}\n", "66 33 93 36", id="no frame"),
        pytest.param(["-f", "lines", "-m", "modulo"], b"key\n", "has no record", id="key without record"),
        pytest.param(
            ["-f", "lines", "-m", "modulo", "--base64"], b"?\nrecord\n", "not base64", id="key not base64"
        ),
    ],
)
def test_bad_input(
    run: Command, topics: tuple[str, str], arguments: list[str], given: bytes, problem: str
) -> None:
    done = run("append", *arguments, "-l", f"prefix={topics[0]}", stdin=given)
    assert done.exit_code == 1
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_records_before_bad_input_are_appended(run: Command, journal: str, wire: Wire) -> None:
    done = run("append", journal, "-f", "lines", stdin=b"one\ntwo\ncut")
    assert done.exit_code == 1
    assert (
        "The first 2 records are appended; correct record 3 and continue with it: tail -n +3" in done.stderr
    )
    assert wire.content(journal) == b"one\ntwo\n"
    assert "The first record is appended" in run("append", journal, "-f", "lines", stdin=b"3\ncut").stderr
    assert "Nothing was appended" in run("append", journal, "-f", "lines", stdin=b"cut").stderr


def test_no_journal_matches(run: Command, fresh_prefix: str) -> None:
    done = run("append", "-l", f"prefix={fresh_prefix}", stdin=b"x")
    assert done.exit_code == 1
    assert "JOURNAL_NOT_FOUND" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([], id="no journal"),
        pytest.param(["a/journal", "-l", "app=x"], id="journal and selector"),
        pytest.param(["a/journal", "-m", "modulo"], id="mapping without framing"),
        pytest.param(["a/journal", "-f", "lines", "--base64"], id="base64 without keys"),
        pytest.param(["-l", "app=x", "--offset", "5"], id="offset of many"),
        pytest.param(["a/journal", "--offset", "0"], id="offset of an empty journal"),
    ],
)
def test_wrong_usage(run: Command, arguments: list[str]) -> None:
    assert run("append", *arguments, stdin=b"x").exit_code == 2
