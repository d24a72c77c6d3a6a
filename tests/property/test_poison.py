"""No record ends a PERMISSIVE query: whatever its bytes, it gives rows, nulls or a malformed record."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.rig.examples import examples
from tests.rig.poison import FORMS, PROTOBUF, SCALARS, TYPES, Case, Child

pytestmark = pytest.mark.slow

CORPUS = Path(__file__).parents[1] / "golden" / "poison" / "records.jsonl"
"""Records that once stopped or crashed a reader."""
CASES = 100
"""Cases per batch."""


def words(text: str) -> list[str]:
    return text.split()


NUMBERS = words(
    "NaN -NaN Infinity -Infinity +INF -INF inf 0x1F 0x1.8p3 1_0 1,000.5 .5 5. 1f 1D 0 -0 -1 127 "
    "-128 32768 65536 2147483648 -2147483649 4294967296 9223372036854775807 -9223372036854775809 "
    "18446744073709551616 "
    "170141183460469231731687303715884105728 1.7976931348623157e308 1e309 4.9e-324 3.4028235e38 1e-46"
)
EXPONENTS = words(
    "0 1 9 10 18 37 38 39 76 77 99 308 324 400 999 10000 3944858 3944859 536870912 2147483600 2147483648 "
    "9223372036854775808 000000001 00001000000000"
)
RUNS = (1, 1, 2, 5, 18, 19, 20, 37, 38, 39, 40, 77, 200, 4301, 9000)
"""Lengths of runs of digits."""
YEARS = words("0000 0001 1582 1970 2024 9999 10000 +10000 -0001 -290308 294247 5881580 9999999 99999999999")
DAYS = words("01-01 2-29 02-30 12-31 10-05 13-01 00-00 1 01-32")
CLOCKS = words("00:00:00 23:59:59 23:59:60 24:00 3:4:5 03 03:04 00:00:00. 00:00:00.123456 1:2:3.9999999999")
ZONES = words(
    "Z +01:00 -18:00 +18:01 +1 +013000 UTC+1 GMT PST Europe/Paris Etc/GMT+12 localtime zone.tab tzdata.zi "
    "Europe Europe/ Europe//Berlin A/../B a.b __init__ posix/UTC ../../etc/passwd \u0663"
)
LONG_ZONES = ("Europe/Berlin", "/", "a.", "A", "+01:00")
"""Parts of time zone names that are repeated up to 2,000 times."""
PATTERNED = (
    "29/02/2024",
    "2/1/9999999999999999999",
    "Jan 2, 2024 3:04:05 PM",
    "Jan 2, 9999999999999999999 3:04:05 PM",
)
WORDS = [
    "",
    " ",
    '""',
    "'",
    "x",
    *words("true TRUE null NULL EMPTY aGk= aGk a=Gk \\x \\u12 \\u0000 \\ud800"),
]
CHARACTERS = [
    "\0",
    "\x01",
    "\r",
    "\ufeff",
    "\ud800",
    "\udfff\ud800",
    "\U0010ffff",
    "\ufffe",
    "\\udc00\\ud800",
]
REPEATED = ("=", "A", "\\", '"', ",", "[", "{", "]", "[]", "0", " ")
NESTING = (2, 3, 62, 63, 64, 65, 200, 499, 501, 1100, 20_000)
DAMAGE = (b"", b"\0", b"\xff", b"\xc3", b'"', b"\n", b"\r", b"\xed\xa0\x80")
VARINTS = (0, 1, 127, 128, 300, 2**31, 2**32, 2**63, 2**64 - 1, 2**70)


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with Child() as started:
        yield started


def test_what_was_found_once_stays_fixed(child: Child) -> None:
    lines = [json.loads(line) for line in CORPUS.read_text().splitlines()]
    cases = [
        Case(
            line["form"],
            b"".join(text.encode("latin-1") * times for text, times in line["parts"]),
            line.get("type", "string"),
        )
        for line in lines
    ]
    assert cases
    assert child.problems(cases) == []


@pytest.mark.parametrize("form", FORMS)
@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=examples(16), phases=[Phase.generate])
def test_any_bytes_give_a_row_or_a_malformed_record(child: Child, form: str, seed: int) -> None:
    assert child.problems(_cases(seed, form)) == []


@pytest.mark.soak
@pytest.mark.parametrize("form", FORMS)
@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=examples(200), phases=[Phase.generate])
def test_any_bytes_for_long(child: Child, form: str, seed: int) -> None:
    """This reads 200,000 records of each form, a quarter of an hour each."""
    assert child.problems(_cases(seed, form)) == []


def test_a_crash_and_a_mistake_are_both_noticed(child: Child) -> None:
    """This tests the rig: it names the record that kills the process, and still runs the cases after it."""
    cases = [Case("raw", b"x"), Case("kill", b"y"), Case("json", b"{}", "no type"), Case("raw", b"z")]
    killed, wrong = child.problems(cases)
    assert "kill string b'y' (1 bytes): the process ended with SIGSEGV" in killed
    assert "json no type b'{}' (2 bytes): Traceback" in wrong


def _run(chance: random.Random) -> str:
    length = chance.choice(RUNS)
    if chance.random() < 0.5:
        return chance.choice("0159") * length
    return "".join(chance.choices("0123456789", k=length))


def _number(chance: random.Random) -> str:
    if chance.random() < 0.3:
        return chance.choice(NUMBERS)
    number = chance.choice(["", "-", "", "+"]) + chance.choice(["0", "1", "", _run(chance)])
    if chance.random() < 0.5:
        number += "." + _run(chance)
    if chance.random() < 0.6:
        number += chance.choice("eE") + chance.choice(["-", "-", "", "+"]) + chance.choice(EXPONENTS)
    return number


def _time(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.1:
        return chance.choice(PATTERNED)
    day = f"{chance.choice(YEARS)}-{chance.choice(DAYS)}"
    if kind < 0.3:
        return day
    zone = chance.choice(ZONES)
    if kind < 0.45:
        zone = chance.choice(LONG_ZONES) * chance.choice([2, 10, 300, 2000])
    clock = chance.choice(CLOCKS) + (_run(chance) if chance.random() < 0.1 else "")
    return day + chance.choice(" T") + clock + chance.choice(["", " "]) + zone


def _text(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.1:
        return chance.choice(REPEATED) * chance.choice([50, 999, 5000])
    return chance.choice(WORDS if kind < 0.6 else CHARACTERS)


def _atom(chance: random.Random) -> str:
    return chance.choice([_number, _number, _time, _time, _text])(chance)


def _json(chance: random.Random, depth: int = 0) -> str:
    if chance.random() < 0.03:
        opening, closing = chance.choice([('{"x":', "}"), ("[", "]"), ('[{"y":', "}]")])
        levels = chance.choice(NESTING)
        return opening * levels + _atom(chance) + closing * (levels - (chance.random() < 0.2))
    kind = chance.randrange(10 if depth < 3 else 5)
    if kind < 5:
        return _atom(chance) if kind < 2 else f'"{_atom(chance)}"'
    values = [_json(chance, depth + 1) for _ in range(chance.randrange(3))]
    if kind < 7:
        return "[" + ",".join(values) + "]"
    names = ('"x"', '"y"', '"v"', '"value"', '"metadata"', '""', "'x'", f'"{_text(chance)}"')
    return "{" + ",".join(f"{chance.choice(names)}:{value}" for value in values) + "}"


def _json_record(chance: random.Random) -> str:
    value = _json(chance)
    if chance.random() < 0.6:
        return f'{{"v":{value}}}'
    other = _json(chance)
    records = (
        f'{{"v":{value},"w":{other}}}',
        f'{{"v":{value},"v":{other}}}',
        f'{{"other":{value}}}',
        f'{{"v":{value}}}{other}',
        f'{{"_meta":{{"uuid":{value}}},"v":{other}}}',
        f' \t{{ "v" : {value} }}\r',
        value,
    )
    return chance.choice(records)


def _csv_record(chance: random.Random, separator: str) -> str:
    cells = []
    for _ in range(chance.choice([1, 2, 2, 2, 2, 3, 40])):
        text = _atom(chance)
        doubled = '"' + text.replace('"', '""') + '"'
        cells.append(chance.choice([text, text, doubled, f'"{text}"', f' "{text}"', f'"{text}"x']))
    return separator.join(cells) + chance.choice(["", "", "", "\r", "\r\r", '"'])


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _message(chance: random.Random, depth: int = 0) -> bytes:
    if depth == 0 and chance.random() < 0.02:  # A field within a field, a thousand levels deep.
        return b"".join(b"\x62" + _varint(size) for size in range(3000, 0, -3))
    found = b""
    for _ in range(chance.randrange(4)):
        number, wire = (
            chance.choice([*range(1, 17), 2**29 - 1]),
            chance.choice([0, 1, 2, 2, 2, 2, 3, 4, 5, 6]),
        )
        found += _varint(number << 3 | wire)
        if wire == 0:
            found += _varint(chance.choice(VARINTS))
        elif wire in (1, 5):
            found += chance.choice([b"\0", b"\xff", b"\x7f"]) * (7 if wire == 1 else 3) + chance.choice(
                [b"\x7f", b"\xff"]
            )
        elif wire == 2:
            inner = chance.choice([_text(chance).encode("utf-8", "surrogatepass"), b"\xff", b"\xed\xa0\x80"])
            if depth < 3 and chance.random() < 0.5:
                inner = _message(chance, depth + 1)
            found += _varint(len(inner)) + inner
    return found


def _cases(seed: int, form: str) -> list[Case]:
    chance = random.Random(seed)
    return [_case(chance, form) for _ in range(CASES)]


def _case(chance: random.Random, form: str) -> Case:
    """Return a case of a form: often an almost valid record with an extreme value."""
    like = "protobuf" if form in PROTOBUF else "csv" if form.startswith("csv") else "json"
    if form in ("raw", "messages"):
        like = chance.choice(["json", "csv", "protobuf"])
    if like == "protobuf":
        record = _message(chance)
    else:
        separator = ";" if form == "csv_patterns" else ","
        text = _json_record(chance) if like == "json" else _csv_record(chance, separator)
        record = text.encode("utf-8", "surrogatepass")
    while chance.random() < 0.15:
        at = chance.randrange(len(record) + 1)
        record = record[:at] + chance.choice(DAMAGE) + record[at + chance.choice([0, 0, 1, 2]) :]
    types = TYPES if form in ("json", "rescued") else SCALARS if like == "csv" else ["string"]
    return Case(form, record, chance.choice(list(types)))
