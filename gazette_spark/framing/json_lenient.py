"""JSON extensions that Spark's reader accepts, rewritten to standard JSON."""

from __future__ import annotations

import re

from gazette_spark.framing.json_values import JsonDialect

_END = r"(?![A-Za-z0-9_$])"
# A string without an end is a token, too: if it were none, each quote in it would be looked behind again.
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*+"?' + r"|'(?:[^'\\]|\\.)*+'?" + r"|[+-]INF" + _END + r"|\+Infinity" + _END, re.DOTALL
)
_ESCAPED = re.compile(r'\\(.)|"', re.DOTALL)
_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*+"?|(NaN|Infinity)', re.DOTALL)


def strict_text(text: str, dialect: JsonDialect) -> str:
    """Return a record in which strings and numbers are written as JSON has it, the rest as it is."""

    def rewritten(found: re.Match[str]) -> str:
        token = found[0]
        if token[0] in "+-":
            return (
                token.lstrip("+").replace("INF", "Infinity") if dialect.allow_non_numeric_numbers else token
            )
        if len(token) == 1 or token[-1] != token[0]:
            return token
        return _quoted(token[1:-1]) if dialect.allow_single_quotes else token

    return _TOKEN.sub(rewritten, text)


def has_constant(text: str) -> bool:
    """Tell whether some JSON has a number that is invalid in standard JSON: NaN, or infinite."""
    return any(found[1] for found in _CONSTANT.finditer(text))


def _quoted(body: str) -> str:
    """Return a string's body in double quotes."""

    def escaped(found: re.Match[str]) -> str:
        if found[0] == '"':
            return '\\"'
        return "'" if found[1] == "'" else found[0]

    return f'"{_ESCAPED.sub(escaped, body)}"'
