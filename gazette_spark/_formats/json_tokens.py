"""The position of each value in JSON records: a block's structure, found and checked at once.

Every step works on the whole block, none on a record:

1. Quotes that no backslash escapes are paired, record by record. Between two of a pair is a string.
2. Other tokens are words (numbers and ``true``, ``false``, ``null``), brackets, colons and commas.
3. Each word is checked, and each pair of neighbours is looked up in the grammar. From then on only values and
   brackets count; names are what is before their values.
4. Brackets give each value its depth. A record is one object that closes at its end.
5. Values and brackets are sorted by depth, an opening bracket once as a value, once as the head of what is
   in it. Then the values of one object or array, a *container*, stand next to each other, between its head
   and its tail. Those in objects have names, those in arrays have none.

A record with a mistake is left out. Depth costs no stack.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gazette_spark._formats.arrays import Mask, Positions, int64_array, invalid_utf8_at, slices
from gazette_spark._formats.framing import Block
from gazette_spark._formats.values import places, spread

if TYPE_CHECKING:
    import numpy.typing as npt

Octets: TypeAlias = "npt.NDArray[np.uint8]"
Places: TypeAlias = "npt.NDArray[np.int32]"

WORD, SPACE, TEXT, OBJECT_HEAD, ARRAY_HEAD, OBJECT_TAIL, ARRAY_TAIL, COLON, COMMA, NAME, OBJECT, ARRAY = (
    range(12)
)
"""Kinds of tokens; TEXT is a string that is a value, OBJECT and ARRAY are containers as values."""

_CLASSES = bytearray(256)
for _octet, _kind in zip(b' \t\r\n"{[}]:,', (*[SPACE] * 4, *range(TEXT, NAME)), strict=True):
    _CLASSES[_octet] = _kind

_DEPTHS = np.array([0, 0, 0, 1, 1, -1, -1, 0, 0], np.int8)
"""How far a token changes the depth."""

_BEGINS = (WORD, TEXT, OBJECT_HEAD, ARRAY_HEAD)
_ENDS = (WORD, TEXT, OBJECT_TAIL, ARRAY_TAIL)
_FOLLOWING: dict[int, tuple[int, ...]] = {
    OBJECT_HEAD: (NAME, OBJECT_TAIL),
    ARRAY_HEAD: (*_BEGINS, ARRAY_TAIL),
    NAME: (COLON,),
    COLON: _BEGINS,
    COMMA: (NAME, *_BEGINS),
    **dict.fromkeys(_ENDS, (COMMA, OBJECT_TAIL, ARRAY_TAIL)),
}
"""Tokens that may follow another one."""
_ALLOWED = bytearray(256)
for _kind, _next_kinds in _FOLLOWING.items():
    for _next in _next_kinds:
        _ALLOWED[_kind << 4 | _next] = True

_IS_ITEM, _IS_VALUE, _IS_HEAD, _IS_TAIL = (
    np.isin(np.arange(16), kinds)
    for kinds in (
        [*_BEGINS, *_ENDS],
        [WORD, TEXT, OBJECT, ARRAY],
        [OBJECT_HEAD, ARRAY_HEAD],
        [OBJECT_TAIL, ARRAY_TAIL],
    )
)

_CONSTANTS = "|NaN|-?Infinity"
_WORDS = r"^(-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null{})$"

_ESCAPES = np.isin(np.arange(256), list(b'"\\/bfnrtu'))
_HEX = np.isin(np.arange(256), list(b"0123456789abcdefABCDEF"))
_BACKSLASH = 0x5C


@dataclass(frozen=True, slots=True, eq=False)
class _Tokens:
    """All tokens, in order: strings without their quotes."""

    kinds: Octets
    begins: Places
    ends: Places
    escaped: Mask
    """It is a string with escapes."""


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """The values in a block's records, by depth and then by place.

    Containers have numbers: first those of the records that are fine, in order. Value *i* stands in
    ``containers[i]``. If it is a container, its own number is ``inner[i]``.
    """

    data: bytes
    tokens: _Tokens
    starts: Positions
    """Begin of each record of the block."""
    records: Positions
    """Index, in the block, of each record that is fine."""
    kinds: Octets
    at: Places
    """The token that each value begins with."""
    ends: Places
    containers: Places
    inner: Places
    levels: Positions
    """Depth ``n`` is ``[levels[n - 1], levels[n])``; that of a record's fields is 1."""
    container_count: int

    def texts(self, at: Positions) -> pa.StringArray:
        """Return some values as texts: the content of strings, others as they are written."""
        tokens = self.at[at]
        return self._texts(tokens, self.ends[at])

    def names(self, at: Positions) -> pa.StringArray:
        """Return the names of some values, which stand in objects."""
        # Between the name and the value is the colon.
        tokens = self.at[at] - 2
        return self._texts(tokens, self.tokens.ends[tokens])

    def written(self, at: Positions) -> pa.StringArray:
        """Return some values as they are written, strings with their quotes."""
        quotes = self.kinds[at] == TEXT
        return slices(self.data, self.tokens.begins[self.at[at]] - quotes, self.ends[at] + quotes)

    def firsts(self, at: Positions) -> Octets:
        """Return the first bytes of some values; of an empty string any byte."""
        return np.frombuffer(self.data, np.uint8)[self.tokens.begins[self.at[at]]]

    def records_of(self, at: Positions) -> Positions:
        """Return the index of the record that each of some values is in."""
        records: Positions = np.searchsorted(self.starts, self.tokens.begins[self.at[at]], "right") - 1
        return records

    def inside(self, owners: Positions, level: int) -> tuple[Positions, Positions]:
        """Return the values in some containers of a depth, and who owns each.

        Args:
            owners: The owner of each container by its number, -1 for those that are left out.
            level: Depth of the values.
        """
        if level >= len(self.levels):
            return self.levels[:0], self.levels[:0]
        low, high = self.levels[level - 1 : level + 1]
        value_owners = owners[self.containers[low:high]]
        chosen = np.flatnonzero(value_owners >= 0)
        return chosen + low, value_owners[chosen]

    def _texts(self, tokens: Places, ends: Places) -> pa.StringArray:
        texts = slices(self.data, self.tokens.begins[tokens], ends)
        escaped = self.tokens.escaped[tokens]
        if not escaped.any():
            return texts
        # Python's parser replaces escapes, of all texts that have some in one call. A surrogate without its
        # partner, which cannot be stored, becomes ``?``, as in Java.
        some, others = np.flatnonzero(escaped), np.flatnonzero(~escaped)
        written = '","'.join(texts.take(int64_array(some)).to_pylist())
        read = [
            text if text.isascii() else text.encode("utf-8", "replace").decode()
            for text in json.loads(f'["{written}"]')
        ]
        parts = [(some, pa.array(read, pa.string())), (others, texts.take(int64_array(others)))]
        return spread(len(texts), pa.string(), parts)


def values_of(block: Block, *, constants: bool) -> Values:
    """Find the values of records that have newlines between them, and nothing else.

    Args:
        block: The records.
        constants: Whether NaN and the infinities are numbers.
    """
    if invalid_utf8_at(block.data) < 0:
        valid = np.ones(len(block), np.bool_)
    else:
        valid = np.array([invalid_utf8_at(block.record(at)) < 0 for at in range(len(block))], np.bool_)
    # Each step marks the records in which it finds a mistake, and the last ones leave these out.
    return _sorted(block, valid, _tokens(block, valid, constants=constants))


def _tokens(block: Block, fine: Mask, *, constants: bool) -> _Tokens:
    """Find all tokens; mark records with an invalid string or word."""
    # Strings first, because in them every other byte means nothing. Control characters must be escaped there.
    octets = np.frombuffer(block.data, np.uint8)
    quotes, escapes = _quotes(block, octets, fine)
    inside = _inside(len(octets), quotes)
    controls = np.flatnonzero((octets < 0x20) & inside)
    fine[_records_of(block, controls)] = False

    # Words are runs of bytes outside of strings that are neither space nor punctuation.
    classes = np.frombuffer(block.data.translate(bytes(_CLASSES)), np.uint8)
    outside = ~inside
    words = np.zeros(len(octets) + 2, np.bool_)
    np.logical_and(classes == WORD, outside, out=words[1:-1])
    edges = np.flatnonzero(words[1:] != words[:-1])
    first, last = edges[0::2], edges[1::2]
    valid_words = pc.match_substring_regex(
        slices(block.data, first, last), _WORDS.format(_CONSTANTS if constants else "")
    )
    fine[_records_of(block, first[places(pc.invert(valid_words))])] = False

    # A token begins at each punctuation mark, at each word and at each opening quote.
    marks = (classes > TEXT) & outside
    marks[first] = True
    marks[quotes[0::2]] = True
    begins = _flatnonzero(marks)
    kinds = classes[begins]
    ends = begins + 1
    texts = kinds == TEXT
    ends[texts], ends[kinds == WORD] = quotes[1::2], last
    begins += texts
    escaped = np.zeros(len(begins), np.bool_)
    if len(escapes):
        strings = np.zeros(len(quotes) // 2, np.bool_)
        strings[np.searchsorted(quotes[0::2], escapes, "right") - 1] = True
        escaped[texts] = strings
    return _Tokens(kinds, begins, ends, escaped)


def _flatnonzero(flags: Mask) -> Places:
    """Return where flags are set: in half of numpy's bytes, for a record may have very many tokens."""
    return np.flatnonzero(flags).astype(np.int32)


def _records_of(block: Block, at: Positions | Places) -> Positions:
    records: Positions = np.searchsorted(block.starts, at, "right") - 1
    return records


def _quotes(block: Block, octets: Octets, fine: Mask) -> tuple[Positions, Positions]:
    """Return the places of quotes, and of backslashes in strings, that no backslash escapes.

    Records with an odd number of quotes, and with an invalid escape, are marked. Quotes of the former are
    left out, so that they do not pair with those of the next record.
    """
    quotes = np.flatnonzero(octets == ord('"'))
    escapes = quotes[:0]
    if _BACKSLASH in block.data:
        escapes = _escapes(octets)
        quotes = quotes[~np.isin(quotes, escapes + 1, assume_unique=True)]
        fine[_records_of(block, escapes[_are_invalid(octets, escapes)])] = False
    odd = (np.searchsorted(quotes, block.ends) - np.searchsorted(quotes, block.starts)) % 2 == 1
    if odd.any():
        fine &= ~odd
        quotes = quotes[~odd[_records_of(block, quotes)]]
    # A backslash outside of strings needs no mark: the word that it is in is invalid.
    return quotes, escapes[np.searchsorted(quotes, escapes) % 2 == 1]


def _escapes(octets: Octets) -> Positions:
    """Return the places of backslashes that are not escaped themselves: every second one of a run."""
    backslashes = np.flatnonzero(octets == _BACKSLASH)
    index = np.arange(len(backslashes))
    begins_run = np.diff(backslashes, prepend=-2) != 1
    is_escaped = (index - np.maximum.accumulate(np.where(begins_run, index, 0))) % 2 == 1
    escapes: Positions = backslashes[~is_escaped]
    return escapes


def _are_invalid(octets: Octets, escapes: Positions) -> Mask:
    last = len(octets) - 1
    letters = octets[np.minimum(escapes + 1, last)]
    invalid: Mask = ~_ESCAPES[letters]
    coded = np.flatnonzero(letters == ord("u"))
    for digit in range(2, 6):
        invalid[coded] |= ~_HEX[octets[np.minimum(escapes[coded] + digit, last)]]
    return invalid


def _inside(count: int, quotes: Positions) -> Mask:
    """Return which bytes come after an odd number of quotes, the byte itself counted."""
    # Eight bytes are a number: each gets the parity of those before it in there, then of all numbers before.
    marks = np.zeros(count + 8, np.uint8)
    marks[quotes] = 1
    eights = marks[: count // 8 * 8 + 8].view("<u8")
    for bits in (8, 16, 32):
        eights ^= eights << np.uint64(bits)
    odd = np.bitwise_xor.accumulate(eights >> np.uint64(56))
    eights[1:] ^= odd[:-1] * np.uint64(0x0101010101010101)
    return marks[:count].view(np.bool_)


def _sorted(block: Block, fine: Mask, tokens: _Tokens) -> Values:
    """Check the order of tokens, and return the values among them by depth."""
    at, kinds, records, depths = _items(block, fine, tokens)
    # An opening bracket below the first is there twice: as a value, and as a head.
    copies = 1 + (_IS_HEAD[kinds] & (depths > 1))
    items = np.repeat(np.arange(len(at), dtype=np.int32), copies)
    as_value = np.zeros(len(items), np.bool_)
    as_value[:-1] = items[1:] == items[:-1]
    kinds = kinds[items]
    levels = depths[items] + _IS_TAIL[kinds] - as_value
    kinds += as_value * np.uint8(OBJECT - OBJECT_HEAD)
    deepest = int(levels.max(initial=1))
    levels = levels.astype(np.min_scalar_type(deepest))
    # The sort is stable, so the values of a container stay in order between its head and its tail.
    if deepest > 1:
        order = np.argsort(levels, kind="stable")
        items, kinds, levels = items[order], kinds[order], levels[order]
    containers, wrong = _containers(tokens, at[items], kinds)
    if len(wrong):
        fine[records[items[wrong]]] = False
        # The containers of the other records are counted again, without theirs.
        sound = _flatnonzero(fine[records[items]])
        items, kinds, levels = items[sound], kinds[sound], levels[sound]
        containers, _ = _containers(tokens, at[items], kinds)
    count = int(np.count_nonzero(fine))
    tails = tokens.ends[at[items[_IS_TAIL[kinds]]]]
    chosen = _flatnonzero(_IS_VALUE[kinds])
    kinds, value_tokens = kinds[chosen], at[items[chosen]]
    nested = kinds >= OBJECT
    # A container ends where its tail does; the first tails are those of the records themselves.
    ends = tokens.ends[value_tokens]
    ends[nested] = tails[count:]
    return Values(
        data=block.data,
        tokens=tokens,
        starts=block.starts,
        records=np.flatnonzero(fine),
        kinds=kinds,
        at=value_tokens,
        ends=ends,
        containers=containers[chosen],
        inner=np.where(nested, np.cumsum(nested, dtype=np.int32) + (count - 1), np.int32(-1)),
        levels=np.searchsorted(levels[chosen], np.arange(1, deepest + 2)),
        container_count=len(tails),
    )


def _items(block: Block, fine: Mask, tokens: _Tokens) -> tuple[Places, Octets, Places, Places]:
    """Return which tokens are values or brackets, their kinds, records and depths.

    Names get a kind of their own. Records whose tokens are in an invalid order, or do not close, are marked.
    The tokens of marked records are left out.
    """
    kinds = tokens.kinds
    firsts = np.searchsorted(tokens.begins, block.starts)
    stops = np.searchsorted(tokens.begins, block.ends)
    some = stops > firsts
    fine &= some
    first, last = firsts[some], stops[some] - 1
    kinds[:-1][(kinds[:-1] == TEXT) & (kinds[1:] == COLON)] = NAME
    # Each pair of neighbours is one byte, which the grammar's table translates in one pass.
    pairs = kinds.copy()
    pairs[1:] |= kinds[:-1] << 4
    allowed = np.frombuffer(pairs.tobytes().translate(bytes(_ALLOWED)), np.bool_).copy()
    allowed[first] = kinds[first] == OBJECT_HEAD
    allowed[last] &= kinds[last] == OBJECT_TAIL
    fine[_records_of(block, tokens.begins[~allowed])] = False

    at = _flatnonzero(_IS_ITEM[kinds])
    kinds = kinds[at]
    counts = np.searchsorted(at, stops) - np.searchsorted(at, firsts)
    steps = _DEPTHS[kinds]
    depths = np.cumsum(steps, dtype=np.int32)
    some = counts > 0
    first = np.searchsorted(at, firsts[some])
    depths -= np.repeat(depths[first] - steps[first], counts[some])
    if len(first):
        # The last token, and no other, is outside.
        ends = np.add.reduceat(depths <= 0, first, dtype=np.int64)
        fine[some] &= (ends == 1) & (depths[first + counts[some] - 1] == 0)
    records = np.repeat(np.arange(len(block), dtype=np.int32), counts)
    sound = fine[records]
    if sound.all():
        return at, kinds, records, depths
    return at[sound], kinds[sound], records[sound], depths[sound]


def _containers(tokens: _Tokens, at: Places, kinds: Octets) -> tuple[Places, Positions]:
    """Return the number of the container that each of some tokens is in, and which may not be in theirs.

    Args:
        tokens: All tokens.
        at: Some of them: by container, from head to tail.
        kinds: Their kinds there.
    """
    heads = _IS_HEAD[kinds]
    numbers = np.cumsum(heads, dtype=np.int32) - 1
    in_object = (kinds[heads] == OBJECT_HEAD)[numbers]
    of_object = np.where(_IS_TAIL[kinds], kinds == OBJECT_TAIL, tokens.kinds[at - 1] == COLON)
    return numbers, np.flatnonzero((of_object != in_object) & ~heads)
