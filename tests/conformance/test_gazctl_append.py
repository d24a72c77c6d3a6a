"""``gazctl journals append`` puts the same bytes into the same journals of either broker."""

from __future__ import annotations

import base64
import struct
import subprocess
import uuid
from collections.abc import Iterable, Sequence

import pytest

from gazette_spark import Client
from gazette_spark.client._append.mappings import ModuloMapping, RendezvousMapping
from tests.conformance.wire import Wire, spec, wait_for
from tests.rig.brokers import BrokerHandle, ProcessError
from tests.rig.gazctl import clean_environment, find_binary

pytestmark = pytest.mark.brokers("embedded")

RECORDS = [f"record-{number}".encode() for number in range(60)]
KEYS = [f"key/{number % 17}".encode() for number in range(60)]

FIXED_MAGIC = b"\x66\x33\x93\x36"


@pytest.fixture
def parts(wire: Wire, fresh_prefix: str) -> list[str]:
    names = [f"{fresh_prefix}part-{number}" for number in range(3)]
    wire.create(*map(spec, names))
    return names


def as_line(record: bytes) -> bytes:
    return record + b"\n"


def as_fixed(record: bytes) -> bytes:
    """Frame a record by Gazette's fixed header: a magic word and its length."""
    return FIXED_MAGIC + struct.pack("<I", len(record)) + record


FRAMES = {"lines": as_line, "fixed": as_fixed}


MAPPINGS: dict[str, type[ModuloMapping[bytes] | RendezvousMapping[bytes]]] = {
    "modulo": ModuloMapping,
    "rendezvous": RendezvousMapping,
}


def mapped(client: Client, names: Sequence[str], mapping: str, keys: Iterable[bytes]) -> list[str]:
    choose = MAPPINGS[mapping](bytes, client.list_journals(selector_of(names)))
    return [choose(key)[0] for key in keys]


def expected(names: Sequence[str], chosen: Iterable[str], records: Iterable[bytes]) -> dict[str, bytes]:
    content = dict.fromkeys(names, b"")
    for name, record in zip(chosen, records, strict=True):
        content[name] += record
    return content


def test_unframed_goes_to_one_journal(broker: BrokerHandle, parts: list[str], wire: Wire) -> None:
    given = b"\n".join(RECORDS)
    broker.gazctl("journals", "append", "-l", selector_of(parts), input=given)
    assert sorted(wire.content(name) for name in parts) == [b"", b"", given]


@pytest.mark.parametrize("framing", FRAMES)
def test_random_mapping(broker: BrokerHandle, parts: list[str], wire: Wire, framing: str) -> None:
    framed = [FRAMES[framing](record) for record in RECORDS]
    broker.gazctl("journals", "append", "-l", selector_of(parts), "-f", framing, input=b"".join(framed))
    content = {name: wire.content(name) for name in parts}
    for record in framed:
        name = next(name for name in parts if content[name].startswith(record))
        content[name] = content[name][len(record) :]
    assert set(content.values()) == {b""}


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("framing", FRAMES)
def test_keyed_mapping(  # noqa: PLR0917 - fixtures and parameters
    broker: BrokerHandle, client: Client, parts: list[str], wire: Wire, framing: str, mapping: str
) -> None:
    frame = FRAMES[framing]
    given = b"".join(frame(key) + frame(record) for key, record in zip(KEYS, RECORDS, strict=True))
    options = ["-l", selector_of(parts), "-f", framing, "-m", mapping]
    broker.gazctl("journals", "append", *options, input=given)
    want = expected(parts, mapped(client, parts, mapping, KEYS), map(frame, RECORDS))
    assert {name: wire.content(name) for name in parts} == want


def test_base64_keys(broker: BrokerHandle, client: Client, parts: list[str], wire: Wire) -> None:
    keys = [bytes([number, 10, 255 - number]) for number in range(60)]
    given = b"".join(
        base64.b64encode(key) + b"\n" + as_line(record) for key, record in zip(keys, RECORDS, strict=True)
    )
    options = ["-l", selector_of(parts), "-f", "lines", "-m", "modulo", "--base64"]
    broker.gazctl("journals", "append", *options, input=given)
    want = expected(parts, mapped(client, parts, "modulo", keys), map(as_line, RECORDS))
    assert {name: wire.content(name) for name in parts} == want


def test_direct_mapping(broker: BrokerHandle, parts: list[str], wire: Wire) -> None:
    given = b"".join(as_line(parts[0].encode()) + as_line(record) for record in RECORDS)
    options = ["-f", "lines", "-m", "direct", "-l"]
    broker.gazctl("journals", "append", *options, f"name={parts[0]}", input=given)
    assert wire.content(parts[0]) == b"".join(map(as_line, RECORDS))


def test_direct_mapping_among_several(broker: BrokerHandle, parts: list[str]) -> None:
    """Gazctl v0.103.0 does not find a journal by name if its selector matches several, on either broker."""
    options = ["-f", "lines", "-m", "direct", "-l", selector_of(parts)]
    given = as_line(parts[0].encode()) + b"record\n"
    with pytest.raises(ProcessError, match="not found"):
        broker.gazctl("journals", "append", *options, input=given)


def test_input_file(broker: BrokerHandle, parts: list[str], wire: Wire, tmp_path: object) -> None:
    given = f"{tmp_path}/input"
    with open(given, "wb") as file:  # noqa: PTH123 - as a shell would
        file.write(b"from a file")
    broker.gazctl("journals", "append", "-l", f"name={parts[1]}", "-i", given)
    assert wire.content(parts[1]) == b"from a file"


def test_attached_uuids(broker: BrokerHandle, parts: list[str], wire: Wire) -> None:
    attached = subprocess.run(
        [str(find_binary("gazctl")), "attach-uuids"],
        input=b"".join(map(as_line, RECORDS)),
        capture_output=True,
        check=True,
        timeout=60,
        env=clean_environment(),
    ).stdout
    options = ["journals", "append", "-l", f"name={parts[2]}", "-f", "lines"]
    broker.gazctl(*options, input=attached)
    assert wait_for(lambda: wire.content(parts[2]), "content") == attached
    rows = [line.split(b",", 1) for line in attached.splitlines()]
    assert [record for _, record in rows] == RECORDS
    clocks = [uuid.UUID(text.decode()).time for text, _ in rows]
    assert clocks == sorted(set(clocks))


def selector_of(names: Sequence[str]) -> str:
    return f"prefix={names[0].rpartition('/')[0]}/"
