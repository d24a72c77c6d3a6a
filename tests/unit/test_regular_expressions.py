"""No input can make a regular expression of the package slow.

Python's matcher tries every way to divide a text among repetitions that accept the same characters. Two of
them in a row, such as digits, an optional point and digits, take quadratic time, and one within another takes
exponential time. The test reads the parsed expressions, so it needs neither luck nor a clock. It does not
examine searches, which begin again at each place of a text.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]  # The standard library's own parser.
from typing import Any

import pytest

from gazette_spark._formats import csv, csv_parser, timestamps
from gazette_spark.message import uuid_columns
from gazette_spark.message.locator import JsonPointer

ROOT = Path(__file__).parents[2]
CALLS = {"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"}
SAMPLES = [chr(code) for code in range(256)] + list("\u00b5\u03bc\u015f\u017f\u212a\u0663\u4e00\u2028\ud800")
"""Characters for comparing sets: all of Latin-1, and some that Unicode's classes treat differently."""

Chars = frozenset[str]
ANY = frozenset(SAMPLES)


def chars_of(op: Any, argument: Any, flags: int) -> Chars | None:
    """Return the samples that an operation of one character matches; None for other operations."""
    match str(op):
        case "LITERAL":
            found = {chr(argument)}
        case "NOT_LITERAL":
            found = set(ANY) - {chr(argument)}
        case "ANY":
            found = set(ANY) if flags & re.DOTALL else set(ANY) - {"\n"}
        case "IN":
            found = set()
            for kind, each in argument:
                match str(kind):
                    case "LITERAL":
                        found.add(chr(each))
                    case "RANGE":
                        found |= {char for char in ANY if each[0] <= ord(char) <= each[1]}
                    case "CATEGORY":
                        found |= _category(str(each), flags)
            if str(argument[0][0]) == "NEGATE":
                found = set(ANY) - found
        case _:
            return None
    if flags & re.IGNORECASE:
        found |= {char.swapcase() for char in found}
    return frozenset(found)


@cache
def _category(name: str, flags: int) -> Chars:
    letter = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}[name.rsplit("_", 1)[1]]
    pattern = re.compile("\\" + (letter.upper() if "_NOT_" in name else letter), flags & re.ASCII)
    return frozenset(char for char in SAMPLES if pattern.match(char))


class Scan:
    """Finds repetitions of one expression that share characters.

    ``open`` are the repetitions before a place that could give back characters to what comes there.
    """

    def __init__(self, flags: int) -> None:
        self.flags = flags
        self.problems: set[str] = set()
        self.rounds = 0
        """Number of repetitions around the current place."""

    def sequence(self, items: Iterable[Any], open_: frozenset[Chars]) -> frozenset[Chars]:
        """Scan operations one after the other; return the repetitions that are open behind them."""
        for op, argument in items:
            open_ = self.one(op, argument, open_)
        return open_

    def one(self, op: Any, argument: Any, open_: frozenset[Chars]) -> frozenset[Chars]:  # noqa: PLR0911
        if (chars := chars_of(op, argument, self.flags)) is not None:
            return frozenset(each for each in open_ if each & chars)
        match str(op):
            case "SUBPATTERN":
                return self.sequence(argument[3], open_)
            case "ATOMIC_GROUP":
                self.sequence(argument, frozenset())
                return open_
            case "BRANCH":
                # The parser moves a common prefix of all alternatives in front of them.
                self.alternatives([firsts(each, self.flags) for each in argument[1]])
                return frozenset().union(*(self.sequence(each, open_) for each in argument[1]))
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, body = argument
                return self.repeated(least, most, body, open_) | (open_ if not least else frozenset())
            case "POSSESSIVE_REPEAT":
                # Neither the repetition nor one of its rounds backtracks.
                begins = firsts(argument[2], self.flags)
                for each in open_ if argument[1] == _constants.MAXREPEAT else ():
                    if shared := each & frozenset().union(*begins):
                        self.problem("two repetitions in a row accept", shared)
                self.sequence(argument[2], frozenset())
                return open_
            case "AT" | "ASSERT" | "ASSERT_NOT":
                return open_
        return frozenset({ANY})

    def repeated(self, least: int, most: int, body: Any, open_: frozenset[Chars]) -> frozenset[Chars]:
        behind = self.sequence(body, open_)
        if most == 1:
            return behind
        if most != _constants.MAXREPEAT:
            return self.sequence(body, behind)
        begins = firsts(body, self.flags)
        for each in open_:
            if shared := each & frozenset().union(*begins):
                self.problem("two repetitions in a row accept", shared)
        self.rounds += 1
        # A second round follows what the first one left open.
        for each in self.sequence(body, frozenset()):
            if any(each & first for first in begins):
                self.problem("a repetition within a repetition accepts", each)
        behind = self.sequence(body, behind) | {all_chars(body, self.flags)}
        self.rounds -= 1
        return behind

    def alternatives(self, begins: list[list[Chars]]) -> None:
        """Check alternatives of a repetition: no two of them may begin with the same character."""
        for one, other in combinations([frozenset().union(*each) for each in begins], 2):
            if self.rounds and one & other:
                self.problem("alternatives of a repetition both begin with", one & other)

    def problem(self, what: str, chars: Chars) -> None:
        self.problems.add(f"{what} {min(chars)!r}")


def all_chars(items: Iterable[Any], flags: int) -> Chars:
    """Return the characters that operations match anywhere."""
    found: set[str] = set()
    for op, argument in items:
        if (chars := chars_of(op, argument, flags)) is not None:
            found |= chars
        else:
            for inner in inner_of(op, argument):
                found |= all_chars(inner, flags)
    return frozenset(found)


def inner_of(op: Any, argument: Any) -> Iterator[Any]:
    """Yield the sequences of operations inside an operation."""
    match str(op):
        case "SUBPATTERN":
            yield argument[3]
        case "ATOMIC_GROUP":
            yield argument
        case "BRANCH":
            yield from argument[1]
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            yield argument[2]


def firsts(items: Iterable[Any], flags: int) -> list[Chars]:
    """Return the characters with which each alternative of some operations begins."""
    found: list[Chars] = []
    for op, argument in items:
        if (chars := chars_of(op, argument, flags)) is not None:
            return [*found, chars]
        found += [each for inner in inner_of(op, argument) for each in firsts(inner, flags)]
        skipped = "REPEAT" in str(op) and argument[0] == 0
        if not skipped and str(op) not in ("AT", "ASSERT", "ASSERT_NOT"):
            return found
    return found


def problems(pattern: str | bytes, flags: int = 0) -> set[str]:
    scan = Scan(re.compile(pattern, flags).flags)
    scan.sequence(_parser.parse(pattern, flags), frozenset())
    return scan.problems


def problems_of(pattern: re.Pattern[Any]) -> set[str]:
    # Patterns of text have the flag UNICODE, which may not be given again beside (?a).
    return problems(pattern.pattern, pattern.flags & ~re.UNICODE)


def modules() -> list[Path]:
    return [path for path in sorted((ROOT / "gazette_spark").rglob("*.py")) if "_pb2" not in path.name]


@cache
def calls() -> list[tuple[Path, ast.Call, bool]]:
    """Return each call of ``re`` with its module, and whether it is in a function."""
    found = []
    for path in modules():
        if "re." not in (source := path.read_text()):
            continue
        pending: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
        while pending:
            node, is_inside = pending.pop()
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name)) if name in CALLS:
                    found.append((path.relative_to(ROOT), node, is_inside))
            is_inside |= isinstance(node, ast.FunctionDef)
            pending += [(child, is_inside) for child in ast.iter_child_nodes(node)]
    return found


def literals() -> Iterator[tuple[str, str | bytes]]:
    """Yield the place and the text of each expression that is a literal in a call of ``re``."""
    for path, call, _ in calls():
        match call.args[0]:
            case ast.Constant(value=str() | bytes() as pattern):
                yield f"{path}:{call.lineno}", pattern


def compiled() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Yield each compiled expression in a module's globals, however it was built."""
    for path in modules():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for attribute, value in vars(importlib.import_module(name)).items():
            for each in value if isinstance(value, list | tuple) else [value]:
                if isinstance(each, re.Pattern):
                    yield f"{name}.{attribute}", each


BUILT: dict[str, list[re.Pattern[Any]]] = {
    "gazette_spark/_formats/csv.py": [csv._record(",", '"'), csv._record("|", "'")],
    "gazette_spark/_formats/csv_parser.py": [re.compile(csv_parser._SPARK_WORDS)],
    "gazette_spark/_formats/timestamps.py": [
        timestamps._expression(text)
        for text in ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "d MMMM y, h:mm a", "[dd/MM/]yyyy", "y-M-d H:m:s.S X")
    ],
    "gazette_spark/message/uuid_columns.py": [
        getattr(uuid_columns._JsonReader(JsonPointer(("_meta", "uuid"))), name)
        for name in ("_at_begin", "_at_end")
    ],
}
"""Examples of the expressions that each module builds; expressions in module attributes are found anyway.

The field of ``csv_parser`` can divide a text in several ways, but cannot fail: its last part accepts
everything up to a separator or the end."""

USERS_OWN = {
    "gazette_spark/lag/history.py",
    "gazette_spark/lag/notifier.py",
    "gazette_spark/_options/selection.py",
    "gazette_spark/_delta/files.py",
}
"""Modules that accept whole expressions from users or callers."""


def test_every_expression_is_looked_at() -> None:
    """A module whose functions build expressions has examples of them here."""
    put_together = {
        str(path)
        for path, call, is_inside in calls()
        if is_inside and not isinstance(call.args[0], ast.Constant)
    }
    assert put_together - USERS_OWN == BUILT.keys()


def test_no_expression_repeats_what_it_repeats() -> None:
    """Such an expression would make the matcher try one division of a text after the other."""
    found = {place: problems(pattern) for place, pattern in literals()}
    found |= {place: problems_of(pattern) for place, pattern in compiled()}
    found |= {f"{path} {each.pattern!r}": problems_of(each) for path, made in BUILT.items() for each in made}
    assert len(found) > 100
    assert {place: each for place, each in found.items() if each} == {}


@pytest.mark.parametrize(
    ("pattern", "slow"),
    [
        (r"(a+)+", True),
        (r"(a*)*b", True),
        (r"(?:ab|a[bc]d?)*c", True),
        (r"a+a+", True),
        (r"a+b?a+", True),
        (r"\d+\.?\d*", True),
        (r"(?:(?:\d+\.?\d*)s)+", True),
        (r"\s*(.*?)\s*x", True),
        (r"(?:ab)*(?:ab)*", True),
        (r"(?i)[A-Z]*k+", True),
        (r"(?:\d+(?:\.\d*)?s)+", False),
        (r"(?:/(?:[^/~]|~[01])+)+", False),
        (r"a*b*", False),
        (r"a+ba+", False),
        (r"a{1,9}a{1,9}", False),
        (r"\d*+\d*", False),
        (r"\d*\d*+", True),
        (r'(?:[^"]++|"")*+x', False),
        (r"\w+(?:\.\w+)*", False),
    ],
)
def test_the_scan_sees_what_is_slow(pattern: str, slow: bool) -> None:
    assert bool(problems(pattern)) == slow
