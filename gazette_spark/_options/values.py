"""Parses the texts of options. Options of the same kind share one rule and one error.

Each parser takes an option's name and its text, and raises an :class:`~gazette_spark.errors.OptionError`
that shows the text and the allowed form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from gazette_spark.errors import OptionError, ProtocolError
from gazette_spark.offsets import MAX_OFFSET
from gazette_spark.protocol.journal_specs import validate_journal_name

_UNITS = {"": 1, "b": 1} | {
    unit + b: 1024**power for power, unit in enumerate("kmg", start=1) for b in ("", "b")
}
_TIMES = {
    "": timedelta(milliseconds=1),
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_LONGEST_DELAY = timedelta(days=7)

DAY_MS = 24 * 60 * 60 * 1000

LONGEST_RECORD_BYTES = 512 << 20
"""Largest maxRecordBytes. A block of records has up to twice as many bytes; Arrow counts them in 32 bits."""


def word(*words: str) -> Callable[[str, str], str]:
    """Return a parser that accepts one of these words, in any case."""
    by_lower_case = {word.lower(): word for word in words}

    def parse(name: str, text: str) -> str:
        if text.lower() not in by_lower_case:
            raise OptionError(name, shown(text), " or ".join(words))
        return by_lower_case[text.lower()]

    return parse


def parse_bool(name: str, text: str) -> bool:
    """Parse ``true`` or ``false``."""
    if text.lower() not in ("true", "false"):
        raise OptionError(name, shown(text), "true or false")
    return text.lower() == "true"


def _integer(low: int, high: int, units: Mapping[str, int], expected: str) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        # Accept at most 19 digits, as many as 2^63 has: `int()` takes quadratic time for longer texts.
        match = re.fullmatch(r"([0-9]{1,19})([a-z]{0,2})", text.lower())
        if match and match[2] in units and low <= (value := int(match[1]) * units[match[2]]) <= high:
            return value
        raise OptionError(name, shown(text), expected)

    return parse


def count(high: int) -> Callable[[str, str], int]:
    """Return a parser of a number from 1 to ``high``."""
    return _integer(1, high, {"": 1}, f"an integer from 1 to {high}")


def depth(high: int) -> Callable[[str, str], int]:
    """Return a parser of a number from 0 to ``high``."""
    return _integer(0, high, {"": 1}, f"an integer from 0 to {high}")


def size(high: int = MAX_OFFSET) -> Callable[[str, str], int]:
    """Return a parser of a number of bytes from 1 to ``high``, with or without a unit."""
    most = "2^63-1 bytes" if high == MAX_OFFSET else f"{high >> 20}m"
    return _integer(1, high, _UNITS, f"a size from 1 byte to {most}, such as 64m")


def parse_record_size(name: str, text: str) -> int:
    """Parse the maximum length of a record."""
    return size(LONGEST_RECORD_BYTES)(name, text)


def parse_address(name: str, text: str) -> str:
    """Parse a broker's address."""
    expected = "http://host:port"
    # The text before an @ may be a password, so it is masked before any error quotes it.
    masked = re.sub(r"[^/\"]*@", "***@", shown(text))
    # Control characters and blanks in an address would end up in logs and HTTP headers.
    if len(text) > 1024 or not text.isascii() or not text.isprintable() or " " in text or "," in text:
        raise OptionError(name, masked, f"one address {expected}")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise OptionError(name, masked, f"{expected} with a port from 1 to 65535") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port:
        raise OptionError(name, masked, expected)
    if "@" in parts.netloc or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise OptionError(name, masked, f"{expected} with no user, path or query")
    return f"{parts.scheme}://{parts.netloc}"


def parse_delay(name: str, text: str) -> timedelta:
    """Parse a duration from 1 ms to 7 days, in milliseconds or with a unit."""
    match = re.fullmatch(r"([0-9]{1,9})([a-z]{0,3})", text.lower())
    if match and match[2] in _TIMES:
        delay = int(match[1]) * _TIMES[match[2]]
        if timedelta(0) < delay <= _LONGEST_DELAY:
            return delay
    raise OptionError(name, shown(text), "a time from 1ms to 7d, such as 90s, 15m or 1h")


def parse_directory(name: str, text: str) -> str:
    """Parse the absolute path of a directory, which need not exist on this machine."""
    # The path is used on executors, whose file systems the driver does not see. So only its form is checked.
    path = PurePosixPath(text)
    if not path.is_absolute() or ".." in path.parts or len(path.parts) == 1 or "\0" in text:
        raise OptionError(name, shown(text), "an absolute path of a directory below /, without '..'")
    return str(path)


def parse_any_location(name: str, text: str) -> str:
    """Parse a directory: an absolute path or a URL."""
    absolute = PurePosixPath(text).is_absolute() and ".." not in PurePosixPath(text).parts
    if not absolute and not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]*://.+", text):
        raise OptionError(name, shown(text), "an absolute path, or a URL such as s3://bucket/states")
    return text.rstrip("/")


def parse_file(name: str, text: str) -> str:
    """Parse a file's path."""
    if not text or "\0" in text:
        raise OptionError(name, shown(text), "a file's path")
    return text


def parse_column(name: str, text: str) -> str:
    """Parse the name of a column, or of a type."""
    if not text or text != text.strip():
        raise OptionError(name, shown(text), "a name without blanks around it")
    return text


def parse_separator(name: str, text: str) -> str:
    r"""Parse one ASCII character, or ``\\t``, a tab."""
    character = "\t" if text == "\\t" else text
    if len(character) != 1 or not _is_plain(character):
        raise OptionError(name, shown(text), "one ASCII character, or \\t, other than newlines")
    return character


def parse_quote(name: str, text: str) -> str:
    """Parse one ASCII character, or nothing."""
    if len(text) > 1 or not all(map(_is_plain, text)):
        raise OptionError(name, shown(text), "one ASCII character other than newlines, or nothing")
    return text


def _is_plain(character: str) -> bool:
    return character.isascii() and character not in "\0\r\n"


def parse_any_text(_name: str, text: str) -> str:
    """Return any text as it is."""
    return text


def parse_token(name: str, text: str) -> str:
    """Parse a secret that is sent in a header. No error shows any part of it."""
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise OptionError(name, "a value that is not a token (not shown)", "printable ASCII without spaces")
    return text


def check_journal(name: str, journal: str, where: str = "") -> None:
    """Check a journal's name in an option's text.

    Raises:
        OptionError: the name is invalid.
    """
    try:
        validate_journal_name(journal)
    except ProtocolError as error:
        raise OptionError(name, f"{where}{shown(journal)} ({error.problem})", "a journal's name") from None


def shown(value: object) -> str:
    """Return a value as errors show it: quoted, and shortened if it is long."""
    # Half a surrogate pair could not be written to stderr.
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 120 else f"{text[:117]}..."
