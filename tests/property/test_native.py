"""What the native decoder accepts has the reference parser's rows, and no input ends its process.

The records are read in a child process, so a crash is a failure of one case and does not end the tests.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.rig.examples import examples
from tests.rig.native import require_library
from tests.rig.poison import DECODINGS, Case, Child

pytestmark = pytest.mark.slow

CORPUS = Path(__file__).parents[1] / "golden" / "native" / "records.jsonl"
"""Records at the limits of what the decoder accepts, as Latin-1 JSON strings."""
RECORDS = [json.loads(line).encode("latin-1") for line in CORPUS.read_text().splitlines()]

BLOCKS = 20
"""Blocks per example."""
DAMAGE = [bytes([octet]) for octet in b'{}[]",:0123456789.eE-+tfn\\ \x00\x1f\xc3\xff\r']
TOKENS = (
    b"null true false 1 -0 1.5 5e2 1e400 [] {} [1] NaN Infinity -INF 01 1. .5 9223372036854775807 "
    b"9223372036854775808 -9223372036854775808 2147483648 1.0 1700000000 tru nul +1 1E+2 -1e-5 1e-400 "
    b"123456789012345678901234567890 0.1234567890123456789 1.7976931348623157e308 4.9e-324 123456.789 3.14 "
    b'{"a":1} "5" "x" "2026-02-29T00:00:00Z" "2026-02-28T01:02:03.1234567+05:30" "2024-02-29T23:59:60Z" '
    b'"2024-1-2" "0000-01-01T00:00:00Z" "2024-01-02T03:04:05" "2024-01-02" "\\ud83d\\ude00" "\\ud83d" '
    b'"\\udc00x" "\\u00e9\\n\\/" "\\x" "a\tb" "\xff" \'q\' "\xc3\xa9" "\\u0000"'
).split(b" ")
PIECES = ["a", "é", "🌍", "\\n", "\\u20ac", "\\\\", '\\"', " ", "plain " * 4, "カート"]
FIELDS = tuple("i8 i4 i2 i1 d f b s t n dt dec big o l".split())  # noqa: SIM905 - read more easily as words
STRANGERS = ("\\u0064", "x", "", "S", "zz", "i", "i80")
"""Names that match no column, or only after an escape is decoded."""


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    require_library()
    with Child() as started:
        yield started


@pytest.mark.parametrize("decoding", DECODINGS)
def test_the_corpus(child: Child, decoding: str) -> None:
    """Each record is read as the reference parser reads it, or left to that parser."""
    assert child.problems([Case("decoded", record, decoding) for record in RECORDS]) == []
    assert child.problems([Case("decoded", b"\n".join(RECORDS), decoding)]) == []


@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=examples(60), phases=[Phase.generate])
def test_records_of_every_type(child: Child, seed: int) -> None:
    """Blocks alternate between a few and many wrong or damaged records."""
    chance = random.Random(seed)
    cases = [Case("decoded", _block(chance), chance.choice(DECODINGS)) for _ in range(BLOCKS)]
    assert child.problems(cases) == []


@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=examples(20), phases=[Phase.generate])
def test_the_corpus_damaged(child: Child, seed: int) -> None:
    chance = random.Random(seed)
    cases = []
    for _ in range(BLOCKS):
        records = [_damaged(chance, chance.choice(RECORDS)) for _ in range(10)] + chance.choices(
            RECORDS, k=10
        )
        chance.shuffle(records)
        cases.append(Case("decoded", b"\n".join(records), chance.choice(DECODINGS)))
    assert child.problems(cases) == []


@pytest.mark.soak
@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=examples(1000), phases=[Phase.generate])
def test_records_of_every_type_for_long(child: Child, seed: int) -> None:
    """This reads millions of records and takes an hour."""
    chance = random.Random(seed)
    cases = [Case("decoded", _block(chance), chance.choice(DECODINGS)) for _ in range(BLOCKS)]
    assert child.problems(cases) == []


def test_a_difference_is_noticed(child: Child) -> None:
    """This tests the rig: a value that the reference parser reads differently is shown with its record."""
    (problem,) = child.problems([Case("decoded", b'{}\n{"t":"2024-01-02T03:04:05"}', "mistaken")])
    assert 't of b\'{"t":"2024-01-02T03:04:05"}\'' in problem


def _block(chance: random.Random) -> bytes:
    writer = _Writer(
        chance,
        misfits=chance.choice([0, 0, 0.005, 0.05]),
        strangers=chance.choice([0, 0.02, 0.3]),
    )
    damaged = chance.choice([0, 0, 0.1, 0.5])
    records = []
    for _ in range(chance.randint(1, 60)):
        record = writer.object(FIELDS)
        if chance.random() < damaged:
            record = _damaged(chance, record)
        if chance.random() < writer.misfits:
            record = chance.choice([b"", b" ", b"null", b"[]", b"1", b"{}{}", b"{} x", b"  {} ", b"\r{}\r"])
        records.append(record)
    return b"\n".join(records)


def _damaged(chance: random.Random, record: bytes) -> bytes:
    octets = bytearray(record)
    for _ in range(chance.randint(1, 2)):
        at = chance.randrange(len(octets) + 1)
        how = chance.random()
        if how < 0.4:
            octets[at : at + 1] = chance.choice(DAMAGE)
        elif how < 0.6:
            del octets[at : at + 1]
        elif how < 0.7:
            del octets[at:]
        else:
            octets[at:at] = chance.choice(DAMAGE)
    return bytes(octets).replace(b"\n", b"")


class _Writer:
    def __init__(self, chance: random.Random, *, misfits: float, strangers: float) -> None:
        self._chance = chance
        self.misfits = misfits
        self._strangers = strangers

    def object(self, names: tuple[str, ...]) -> bytes:
        chance = self._chance
        chosen = [name for name in names if chance.random() < 0.7]
        chosen += [name for name in STRANGERS if chance.random() < self._strangers / len(STRANGERS)]
        if chance.random() < 0.3:
            chance.shuffle(chosen)
        if chosen and chance.random() < self.misfits:
            chosen.append(chance.choice(chosen))
        members = [
            b'%b"%b"%b:%b%b%b'
            % (self._space(), name.encode(), self._space(), self._space(), self._value(name), self._space())
            for name in chosen
        ]
        return b"{" + b",".join(members) + b"}"

    def _space(self) -> bytes:
        return self._chance.choice([b"", b"", b"", b"", b"", b" ", b"\t", b"  ", b"\r"])

    def _value(self, name: str) -> bytes:  # noqa: PLR0911 - one for each kind.
        chance = self._chance
        if chance.random() < self.misfits or name in STRANGERS:
            return chance.choice(TOKENS)
        if chance.random() < 0.05:
            return b"null"
        match name:
            case "o":
                return self.object(("a", "st", "t", "lo", "zz"))
            case "l":
                return self._list("i4")
            case "lo":
                return self._list("qz")
            case "z":
                return self._list("s")
            case "qz":
                return self.object(("q", "z"))
        return self._scalar(name).encode()

    def _list(self, item: str) -> bytes:
        items = [self._space() + self._value(item) + self._space() for _ in range(self._chance.randint(0, 3))]
        return b"[" + b",".join(items) + b"]"

    def _scalar(self, name: str) -> str:  # noqa: PLR0911 - same.
        chance = self._chance
        match name:
            case "b":
                return chance.choice(["true", "false"])
            case "d":
                digits, power = chance.randint(0, 20), chance.randint(-30, 30)
                number = chance.uniform(-1, 1) * 10**power
                return chance.choice([repr(chance.uniform(-1e9, 1e9)), f"{number:.{digits}e}"])
            case "f":
                return repr(chance.uniform(-1e3, 1e3))
            case "dec" | "big":
                places = 0 if name == "big" else chance.randint(0, 3 if chance.random() < self.misfits else 2)
                return f"{chance.uniform(-1e6, 1e6):.{places}f}"
            case "s" | "st":
                return '"' + "".join(chance.choices(PIECES, k=chance.randint(0, 8))) + '"'
            case "dt":
                return f'"{self._day()}"'
            case "t" | "n":
                clock = f"{chance.randint(0, 23):02}:{chance.randint(0, 59):02}:{chance.randint(0, 59):02}"
                fraction = chance.choice(["", ".1", ".123", ".123456", ".1234567"])
                zones = ["Z", "+01:00", "-17:30", "+05:45", ""] if name == "t" else [""]
                if chance.random() < self.misfits:
                    zones = ["+18:00", "+0100", "z", " Z", " Europe/Paris"]
                return f'"{self._day()}{chance.choice("T ")}{clock}{fraction}{chance.choice(zones)}"'
        bits = {"i8": 63, "a": 63, "i4": 31, "q": 31, "i2": 15, "i1": 7}[name]
        largest = (1 << bits) - 1 if chance.random() < 0.5 else 99
        return str(chance.randint(-largest - 1, largest) + (chance.random() < self.misfits) * (1 << bits))

    def _day(self) -> str:
        chance = self._chance
        year = chance.randint(1, 9999) if chance.random() < 0.3 else chance.randint(1970, 2030)
        last = 31 if chance.random() < self.misfits else 28
        return f"{year:04}-{chance.randint(1, 12):02}-{chance.randint(1, last):02}"
