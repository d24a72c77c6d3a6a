"""Bytes whose fragments were deleted from the store are gaps, on both brokers, by client and command."""

from __future__ import annotations

import json

import pytest

from gazette_spark import Client
from gazette_spark.client import FragmentGap, journal_spec
from gazette_spark.errors import OffsetError
from gazette_spark.protocol.fragments import Fragment
from tests.conformance.command import Command
from tests.conformance.wire import wait_for
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded", "deployed")

PARTS = 4


@pytest.fixture
def persisted(client: Client, journal_name: str) -> list[Fragment]:
    client.create_journals(journal_spec(journal_name, length=1024, codec="NONE", refresh_interval_s=1))
    for _ in range(PARTS + 1):
        client.append(journal_name, b"x" * 1100 + b"\n")

    def stored() -> list[Fragment] | None:
        found = [each.fragment for each in client.list_fragments(journal_name) if each.fragment.mod_time]
        return found if len(found) >= PARTS else None

    return wait_for(stored, "fragments in the store")


def delete(client: Client, broker: BrokerHandle, gone: list[Fragment]) -> None:
    """Delete files of the store, and wait until the broker has noticed."""
    for fragment in gone:
        (broker.file_root / fragment.content_path).unlink()
    begins = {fragment.begin for fragment in gone}

    def seen() -> bool:
        return not begins & {each.fragment.begin for each in client.list_fragments(gone[0].journal)}

    wait_for(seen, "the broker to list its store")


def test_a_whole_journal_has_no_gap(client: Client, journal_name: str, persisted: list[Fragment]) -> None:
    """Bytes that only the broker has are not a gap."""
    assert persisted
    assert client.gaps(journal_name) == client.gaps(journal_name, begin=0) == []


def test_deleted_fragments_are_gaps(
    client: Client, broker: BrokerHandle, journal_name: str, persisted: list[Fragment]
) -> None:
    """The first fragments count only for an earlier ``begin``, because retention deletes them."""
    first, _, third = persisted[:3]
    delete(client, broker, [first, third])
    middle = FragmentGap(journal_name, third.begin, third.end)
    assert client.gaps(journal_name) == [middle]
    assert client.gaps(journal_name, begin=0) == [FragmentGap(journal_name, 0, first.end), middle]
    assert client.gaps(journal_name, begin=third.begin + 1, end=third.end - 1) == [
        FragmentGap(journal_name, third.begin + 1, third.end - 1)
    ]
    assert client.gaps(journal_name, begin=third.end) == []
    with pytest.raises(OffsetError, match="past the write head"):
        client.gaps(journal_name, end=1 << 40)


def test_the_command_lists_them(
    client: Client, broker: BrokerHandle, run: Command, journal_name: str, persisted: list[Fragment]
) -> None:
    gone = persisted[1]
    delete(client, broker, [gone])
    row = {"journal": journal_name, "begin": gone.begin, "end": gone.end, "bytes": gone.length}
    assert json.loads(run.done("gaps", journal_name, "-o", "json")) == [row]
    table = run.done("gaps", "-l", f"name={journal_name}").split()
    assert table == ["JOURNAL", "BEGIN", "END", "BYTES", journal_name, *map(str, list(row.values())[1:])]


def test_a_journal_without_fragments_begins_at_its_head(
    client: Client, broker: BrokerHandle, journal_name: str
) -> None:
    """Brokers report a head of 0 then, but the next append has a larger offset."""
    client.create_journals(journal_spec(journal_name, length=1024, refresh_interval_s=1))
    end = client.append(journal_name, b"x" * 1100 + b"\n").end

    def stored() -> list[Fragment] | None:
        client.append(journal_name, b"")  # This closes the fragment.
        found = [each.fragment for each in client.list_fragments(journal_name) if each.fragment.mod_time]
        return found or None

    delete(client, broker, wait_for(stored, "a fragment in the store"))
    assert client.write_head(journal_name) == 0
    assert client.gaps(journal_name, begin=0) == [FragmentGap(journal_name, 0, end)]
    assert client.first_offset(journal_name) == end == client.append(journal_name, b"y\n").begin
    assert client.first_offset(journal_name) == end
