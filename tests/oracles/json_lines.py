"""Valid and invalid JSON lines for schemas of all types, to compare JSON readers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

LEAVES = (
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(10,2)",
    "decimal(38,18)",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
)


def _words(text: str, separator: str = " ") -> list[str]:
    """Split a text into words; the words as a list would take a page."""
    return text.split(separator)


NUMBERS = _words(
    "0 -0 1 127 128 200 255 256 -128 -129 32767 32768 2147483648 9223372036854775807 9223372036854775808 "
    "1.0 1.5 1e3 1E2 1e400 -1e400 1e-400 -0.0 0.1 16777217 1e39 3.4028236e38 1.005 1.125 99999999.994 "
    "99999999.995 1e-5 0.30000000000000004 123456789.123456789 1e22 1e23 5e-324 2.4703282292062328e-324 "
    "1.00000005960464477540 9007199254740993 12345678901234567890123456789012345678901234567890 "
    "NaN Infinity -Infinity +Infinity INF -INF +INF Inf -Inf nan +1 01 -01 1. 0x10 "
    ".5 1e --1 1_0 9223372036854"
)
OTHERS = _words(
    'true false null True nul undefined {} [] [1,2] [1,"a",2] [[1]] [null] [1,] [,1] {"x":1} {"x":null} '
    '{"x":1.10,"y":[1,2]} {"x":"1","y":"2"} {"x":1,} {x:1} {\'x\':1} {\'x\':\'a\'} [{"x":1},{"x":"a"}] '
    '[{"x":1},2] {"x":1,"x":2} {"x":1,"x":"a"} {"x":"a","x":1} {"x":{"x":"a"},"y":1} '
    '{"x":[1,"a"],"y":[true]} [1.10,NaN] {"X":1} [] [[],[]] ["2024-01-02","x"] {"x":"2024-01-02"}'
)
DAYS = _words(
    "2024-01-02|2024-1-2|2024-01|2024|24-01-01|0001-01-01|0000-01-01|9999-12-31|10000-01-01|+10000-01-01|"
    "-0001-01-01|2024-02-29|2023-02-29|1900-02-29|2000-02-29|2024-02-30|2024-13-01|2024-00-10|2024-01-00|"
    "20240102|2024/01/02|5881580-07-11|5881580-07-12|-5877641-06-23|1582-10-10|1-1-1|001-1-1|02024-01-01|"
    "0002024-01-01|2024-001-01|2024-01-02 |  2024-01-02|2024-01-02Tfoo|"
    "2024-01-02 foo|2024-01-02x|2024-01-02T|"
    "19000|-1|0|+5|1700000000|-141428|-200000|-719164|-719529|2147483648|epoch|now|"
    "today|99999999999|2024-01-02GMT|-2024",
    "|",
)
TIMES = _words(
    "T03:04:05|  03:04:05|t03:04:05| 03:04:05|T03:04|T03|T3:4:5|T03:04:05.1|"
    "T03:04:05.12|T03:04:05.123|T03:04:05.1234|"
    "T03:04:05.12345|T03:04:05.123456|T03:04:05.1234567|T03:04:05.12345678|"
    "T03:04:05.123456789|T03:04:05.1234567891|"
    "T03:04:05.|T03:04:05.Z|T03:04:05,1|T24:00:00|T23:60:00|T23:59:60|T003:04:05|"
    "T03:04:05.1 |T03:04:05T|T03:04:|T03:04:05.x",
    "|",
)
ZONES = _words(
    "Z|z| Z|Z |+01:00|-08:30|+0100|+01|+1|+1:2|+18:00|+18:01|+19:00|-18:00|+01:00:30|"
    "+010030|+01:0030| +01:00|+00:00|-00:00|"
    "+01:0|+24:00|+01:60|UTC| UTC|UT|GMT|GMT+1|GMT+01:00|UTC+01:00|UTC+1|GMT0|"
    "Etc/GMT+3| America/New_York|[UTC]| PST|EST|HST|"
    "Europe/Nowhere|+|-|x|+1:|  +01:00",
    "|",
)
WHENS = (
    *_words(
        "9999-12-31T23:59:59.999999Z|0001-01-01T00:00:00Z|294247-01-10T04:00:54.775807Z|"
        "294247-01-10T04:00:54.775808Z|"
        "-290308-12-21T19:59:05.224192Z|-290308-12-21T19:59:05.224191Z|1900-01-01T00:00:00 Europe/Paris|"
        "2024-03-31T02:30:00 Europe/Paris|2024-10-27T02:30:00 Europe/Paris|"
        "2024-03-10T02:30:00 America/New_York|"
        "2024-11-03T01:30:00 America/New_York|12024-07-01T00:00:00 Europe/Paris|"
        "0001-01-01T00:00:00 Europe/Paris|"
        "2500-07-01T00:00:00 Europe/Paris|12:34:56Z|2024-01-02Z|2024-01-02+01:00|"
        "2024-01-02 +01:00|\t2024-01-02T03:04:05Z",
        "|",
    ),
    "\u00a02024-01-02",
    "2024-01-02\u2003",
)
TEXTS = _words(
    "|a|é|1|1.5|1,000.5|,|1_0| 1|1 |+1|+.5|-.5|1.|1e3|NaN|INF|+INF|-INF|Infinity|"
    "-Infinity|+Infinity|inf|nan|true|false|"
    "aGk=|aGk|aGl=|aG k=|aGk=aGk=|aGk= |aGk==|a===|aGkx|-_-_|+/+/|aGkxaGkx|\n aGk=|"
    "aGkx aGkx|\0|\x01|\x7f|😀|٣|1e400|-0|0x1F|1d|"
    "1e-400|99999999999|1e2147483648|it's|\"|\\",
    "|",
)
RAW_STRINGS = (
    *_words(r'"\ud800" "a\ud800b" "\udc00\ud800" "\ud83d\ude00" "\x" "\u12" "\u00e9"'),
    *_words(r'"a\/b" "\'" "unterminated "\\"'),
    *_words(r"""'a' 'a"b' 'a\'b' '2024-01-02' 'aGk=' '1.5' '\u0041' ' '' '\\'"""),
    *('"a\tb"', '"\x7f"', '"\x01"'),
)
TAILS = (" ", "\t\r", "x", ",", "}", "{}", ' {"v":1}', "\0", "//", "]", "\ufeff", "null")
HEADS = (" ", "\t", "\r", "\ufeff", "x", ",", "[", "\0", "{")


def values() -> list[str]:
    """Return texts for the place of a value: JSON and other text, some of which fit a type."""
    moments = [*DAYS, *WHENS]
    moments += ["2024-01-02" + time for time in TIMES]
    moments += ["2024-01-02T03:04:05" + zone for zone in ZONES]
    moments += [f"2024-01-02 03:04:05.123{zone}" for zone in ZONES[:14]]
    moments += [
        f"2024-01-02T{time}{zone}" for time in ("03", "03:04") for zone in ("Z", "+01:00", "GMT", " UTC")
    ]
    return [*NUMBERS, *OTHERS, *map(json.dumps, [*moments, *TEXTS]), *RAW_STRINGS]


def lines(seed: int, count: int) -> list[str]:
    """Return lines without newlines: each of :func:`values` once, then ``count`` generated ones."""
    rng = random.Random(seed)
    listed = values()
    made = [f'{{"v":{value},"w":7}}' for value in listed]
    for _ in range(count):
        line = _record(rng, lambda: _value(rng, listed, 3))
        made.append(_spoiled(rng, line) if rng.random() < 0.2 else line)
    made += [
        "",
        "  ",
        "null",
        "1",
        '"a"',
        "[]",
        '[{"v":1}]',
        "{}",
        "{",
        "}",
        "{}{}",
        "\ufeff{}",
        '{"v":1}{"v":2}',
    ]
    return [line.replace("\n", " ") for line in made]


def schemas(seed: int, count: int) -> list[str]:
    """Return field types: each leaf, some nested types, and ``count`` generated nested types."""
    rng = random.Random(seed)
    nested = [
        "array<int>",
        "array<timestamp>",
        "map<string,int>",
        "struct<x:int,y:array<int>>",
        "array<array<date>>",
    ]
    nested += ["struct<x:timestamp,y:struct<x:date>>", "map<string,array<double>>", "array<struct<x:int>>"]
    return [*LEAVES, *nested, *(_type(rng, 3) for _ in range(count))]


def record_groups(seed: int, count: int) -> list[list[str]]:
    """Return groups of a few JSON records whose objects repeat no name, ignoring case."""
    rng = random.Random(seed)
    leaves = [
        "1",
        "-5",
        "1.5",
        "1e3",
        '"s"',
        '""',
        "null",
        "true",
        "[]",
        "{}",
        "12345678901234567890",
        "9" * 38,
    ]
    leaves += ["9" * 39, "-9223372036854775808", "9223372036854775808", "NaN", '"2024-01-02"', "0.1", '"1"']

    def value(depth: int) -> str:
        match rng.randrange(5) if depth else 4:
            case 0 | 1:
                return "[" + ",".join(value(depth - 1) for _ in range(rng.randint(0, 3))) + "]"
            case 2 | 3:
                return _object(
                    rng, [(name, value(depth - 1)) for name in rng.sample("xyé", rng.randint(0, 3))]
                )
        return rng.choice(leaves)

    def record() -> str:
        return _object(rng, [(name, value(2)) for name in rng.sample("abZ_", rng.randint(0, 4))])

    pairs = [
        [f'{{"a":{one}}}', f'{{"a":{other}}}'] for at, one in enumerate(leaves) for other in leaves[at + 1 :]
    ]
    return [*pairs, *([record() for _ in range(rng.randint(1, 4))] for _ in range(count))]


def _type(rng: random.Random, depth: int) -> str:
    match rng.randrange(6) if depth else 5:
        case 0 | 1:
            return f"array<{_type(rng, depth - 1)}>"
        case 2 | 3:
            fields = rng.sample(["x", "y", "X", "z"], rng.randint(1, 3))
            fields = [name for name in fields if name != "X" or "x" not in fields]
            return f"struct<{','.join(f'{name}:{_type(rng, depth - 1)}' for name in fields)}>"
        case 4:
            return f"map<string,{_type(rng, depth - 1)}>"
    return rng.choice(LEAVES)


def _value(rng: random.Random, listed: list[str], depth: int) -> str:
    match rng.randrange(5) if depth else 4:
        case 0 | 1:
            items = [_value(rng, listed, depth - 1) for _ in range(rng.randint(0, 3))]
            return "[" + _space(rng) + ",".join(items) + "]"
        case 2 | 3:
            names = rng.choices(["x", "x", "y", "z", "X"], k=rng.randint(0, 3))
            return _object(rng, [(name, _value(rng, listed, depth - 1)) for name in names])
    return _leaf(rng, listed)


def _leaf(rng: random.Random, listed: list[str]) -> str:  # noqa: PLR0911 - one for each kind.
    match rng.randrange(8):
        case 0:
            return str(rng.randint(-(2 ** rng.randrange(1, 70)), 2 ** rng.randrange(1, 70)))
        case 1:
            return repr(rng.uniform(-1, 1) * 10.0 ** rng.randint(-20, 20))
        case 2:
            return f"{rng.randint(-(10**8), 10**8)}.{rng.randint(0, 10**6):0{rng.randint(1, 6)}}"
        case 3:
            return json.dumps(f"{rng.randint(1, 9999):04}-{rng.randint(1, 12):02}-{rng.randint(1, 31):02}")
        case 4 | 5:
            year = rng.choice([1, 1582, 1969, 1970, 2024, 9999])
            day = f"{year:04}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
            time = (
                f"{rng.choice('T ')}{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"
            )
            digits = rng.randint(0, 9)
            fraction = f".{rng.randrange(10**digits):0{digits}}" if digits else ""
            return json.dumps(day + time + fraction + rng.choice(["", "", "Z", "+01:00", "-0730", *ZONES]))
        case 6:
            text = "".join(rng.choices("abc é😀'\"\\/\t\x7f\u2028", k=rng.randint(0, 5)))
            return json.dumps(text, ensure_ascii=rng.random() < 0.5)
    return rng.choice(listed)


def _record(rng: random.Random, value: Callable[[], str]) -> str:
    names = rng.choices(["v", "v", "v", "v", "w", "V", "other", "\\u0076"], k=rng.randint(1, 3))
    return _object(
        rng, [(name, value() if name != "w" else rng.choice(["7", "null", '"x"'])) for name in names]
    )


def _object(rng: random.Random, members: list[tuple[str, str]]) -> str:
    quote = "'" if rng.random() < 0.05 else '"'
    parts = [f"{quote}{name}{quote}{_space(rng)}:{_space(rng)}{value}" for name, value in members]
    return "{" + ("," + _space(rng)).join(parts) + _space(rng) + "}"


def _space(rng: random.Random) -> str:
    return rng.choice(["", "", "", "", "", " ", "\t", "\r"])


def _spoiled(rng: random.Random, line: str) -> str:
    match rng.randrange(4):
        case 0:
            return line[: rng.randint(0, len(line))]
        case 1:
            return line + rng.choice(TAILS)
        case 2:
            return rng.choice(HEADS) + line
    at = rng.randrange(len(line))
    return line[:at] + rng.choice("{}[],:\"'\\x0 -.\x01/") + line[at + 1 :]
