"""Validates the characters and lengths of tokens, and of paths made of them.

Lengths count UTF-8 bytes. Unicode letters and numbers are allowed, and a few symbols. All of them sort after
``#``, which separates the fields of the brokers' keys.
"""

from __future__ import annotations

import unicodedata

from gazette_spark.errors import ProtocolError

TOKEN_SYMBOLS = frozenset("-_+/.")
"""Characters of a token other than letters and numbers."""

PATH_SYMBOLS = TOKEN_SYMBOLS | frozenset("=%")
"""Characters of a path other than letters and numbers."""


def validate_token(where: str, text: str, minimum: int, maximum: int) -> None:
    """Raise ProtocolError unless ``text`` is a token of ``minimum`` to ``maximum`` bytes."""
    _check(where, text, TOKEN_SYMBOLS, minimum, maximum)


def validate_path_text(where: str, text: str, minimum: int, maximum: int) -> None:
    """Raise ProtocolError unless ``text`` has only path characters and ``minimum`` to ``maximum`` bytes."""
    _check(where, text, PATH_SYMBOLS, minimum, maximum)


def validate_path(where: str, text: str, minimum: int, maximum: int) -> None:
    """Raise ProtocolError unless ``text`` is a clean relative path of ``minimum`` to ``maximum`` bytes.

    A clean path has no empty, ``.`` or ``..`` part. Brokers accept a leading ``..``. We refuse it, because
    names become file paths.
    """
    validate_path_text(where, text, minimum, maximum)
    if text.startswith("/"):
        raise ProtocolError(where, f"cannot begin with '/': {text!r}")
    # An empty text passes the check of lengths if the minimum is 0, as for a path postfix.
    if text and any(part in ("", ".", "..") for part in text.split("/")):
        raise ProtocolError(where, f"must be a clean path, without empty, '.' or '..' parts: {text!r}")


def _check(where: str, text: str, symbols: frozenset[str], minimum: int, maximum: int) -> None:
    # A lone surrogate has no UTF-8 form. It is not a letter, so it is refused below.
    length = len(text.encode("utf-8", "surrogatepass"))
    if not minimum <= length <= maximum:
        # A name of a megabyte must not fill the log.
        shown = text if length <= maximum else f"{text[:40]}..."
        raise ProtocolError(where, f"must have {minimum} to {maximum} bytes, got {length}: {shown!r}")
    for character in text:
        # The categories of letters and numbers in Go's unicode.IsLetter and IsNumber.
        if character not in symbols and unicodedata.category(character)[0] not in "LN":
            allowed = "".join(sorted(symbols))
            raise ProtocolError(
                where, f"{character!r} in {text!r} is neither letter, number nor in {allowed!r}"
            )
