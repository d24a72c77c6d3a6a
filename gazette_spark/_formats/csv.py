r"""The framing ``csv``: records as in RFC 4180, which end with a newline that is not inside quotes.

A quote is special only at a field's start, as in most readers: the field then continues to the next quote
that is not doubled. Anywhere else a quote is an ordinary character. A ``\r`` before the newline belongs to
the record's bytes. Blank lines are not records.

Quotes are paired by their order, for a whole block at once. The result equals reading byte by byte if every
opening quote is at a field's start. The reader checks that for all of them, and reads the block record by
record if the check fails.

Whether a byte in the middle of a journal is inside quotes is never guessed. A window is read in each of the
four possible states: at a field's start, in a plain field, in quotes, just after quotes. A record end counts
if all readings agree on it. A reading with a record longer than allowed is discarded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import Mask, Positions
from gazette_spark._formats.framing import Block, Cut, RowRefusal, gathered
from gazette_spark._formats.lines import NEWLINE, newlines, octet_positions, spans, with_newlines

RETURN = 0x0D


def record_ends(data: bytes, separator: str = ",", quote: str = '"') -> Positions:
    """Return the position of each newline that ends a record or a blank line of data that begins with one."""
    feeds = newlines(data)
    quotes = quote_positions(data, quote)
    # Without a quote every newline ends a record, which is the usual block.
    if not len(quotes):
        return feeds
    octets = np.frombuffer(data, np.uint8)
    opening = quotes[0::2]
    before = octets[opening - 1]
    regular = (before == ord(separator)) | (before == NEWLINE) | (opening == 0)
    regular[1:] |= opening[1:] - 1 == quotes[1 : 2 * len(opening) - 2 : 2]
    if regular.all():
        # An even number of quotes before a newline means that it is outside of them.
        outside: Positions = feeds[np.searchsorted(quotes, feeds) % 2 == 0]
        return outside
    # A quote is in an odd place, so the block is read record by record.
    record, ends, at = _record(separator, quote), list[int](), 0
    while match := record.match(data, at):
        at = match.end()
        ends.append(at - 1)
    return np.array(ends, np.int64)


def quote_positions(data: bytes, quote: str) -> Positions:
    """Return the position of every quote, ascending."""
    if not quote or quote.encode() not in data:
        return np.empty(0, np.int64)
    return octet_positions(data, ord(quote))


@cache
def _record(separator: str, quote: str) -> re.Pattern[bytes]:
    """Return the pattern of a record and its newline, with quotes in any place."""
    s, q = re.escape(separator.encode()), re.escape(quote.encode())
    field = rb"(?:%b(?:[^%b]++|%b%b)*+%b[^%b\n]*+|[^%b%b\n][^%b\n]*+|)" % (q, q, q, q, q, s, q, s, s)
    return re.compile(rb"(?:%b%b)*+%b\n" % (field, s, field))


@dataclass(frozen=True, slots=True)
class CsvFraming:
    """The framing ``csv``."""

    separator: str = ","
    """One ASCII character."""
    quote: str = '"'
    """One ASCII character; if empty, every newline ends a record."""
    name: str = "csv"
    anchored: bool = True
    resyncs: bool = False
    header_bytes: int = 0
    trailer_bytes: int = 1

    def first_boundary(self, window: bytes, offset: int) -> int | None:  # noqa: ARG002 - none is certain.
        """Return None: a newline may be inside quotes."""
        return None

    def last_boundary(self, window: bytes, max_record_bytes: int) -> int | None:
        """Return the last record end on which all readings of the window agree; None if they disagree."""
        if not self.quote or self.quote.encode() not in window:
            # Without a quote, the window lies outside quotes, or completely inside one field. In the second
            # case, the record would be at least as long as the window, so a longer window excludes this case.
            unproved = len(window) <= max_record_bytes or window.find(b"\n") > max_record_bytes
            return None if unproved else window.rfind(b"\n") + 1 or None
        last_ends = set()
        quote = self.quote.encode()
        # These prefixes put the window into each of the four states.
        for lead in (b"", b"x", quote, quote * 2):
            ends = self._ends(lead + window) - len(lead)
            # A reading with a record that is too long need not be considered: if it were the true one, the
            # record would be an error.
            if len(ends) and ends[0] > max_record_bytes:
                continue
            if len(ends):
                last_ends.add(int(ends[-1]) + 1)
            # All of the window may be inside one record, so nothing is proved.
            elif len(window) <= max_record_bytes:
                return None
        return last_ends.pop() if len(last_ends) == 1 else None

    def may_begin(self, before: bytes, after: bytes) -> bool:  # noqa: ARG002 - what follows proves nothing.
        """Return whether the byte before is a newline, inside quotes or not."""
        return not before or before.endswith(b"\n")

    def cut(self, data: bytes, offset: int, *, last: bool = False) -> Cut:  # noqa: ARG002 - records are the same anywhere.
        """Cut at every newline outside quotes, and skip blank lines."""
        starts, ends = spans(self._ends(data))
        size = int(ends[-1]) + 1 if len(ends) else 0
        blank = _blank(data, starts, ends)
        return Cut(starts[~blank], ends[~blank], size) if blank.any() else Cut(starts, ends, size)

    def values(self, block: Block) -> pa.BinaryArray:
        """Return the records as they are written, quotes and all."""
        return gathered(block)

    def encode(self, values: pa.BinaryArray) -> bytes | RowRefusal:
        """Return values with a newline after each, or the first value that is not exactly one record."""
        data, ends = with_newlines(values)
        starts, _ = spans(ends)
        blank = np.flatnonzero(_blank(data, starts, ends))
        first_blank = int(blank[0]) if len(blank) else len(ends)
        # A reader must find exactly these record ends.
        read_ends = self._ends(data)
        common = min(len(read_ends), len(ends))
        differing = np.flatnonzero(read_ends[:common] != ends[:common])
        wrong = int(differing[0]) if len(differing) else common
        if first_blank < wrong:
            problem = "its value is a blank line, which is not a CSV record"
            return RowRefusal(first_blank, problem, 'Filter such rows out, or write ""')
        if wrong < len(ends):
            problem = "its value is not one record of CSV: it has an open quote, or a newline outside quotes"
            return RowRefusal(wrong, problem, "Write each value as to_csv does, or write with framing=fixed")
        return data

    def _ends(self, data: bytes) -> Positions:
        return record_ends(data, self.separator, self.quote)


def _blank(data: bytes, starts: Positions, ends: Positions) -> Mask:
    r"""Return a mask of the records that are blank lines: empty, or a ``\r`` alone."""
    lengths = ends - starts
    blank: Mask = lengths == 0
    single = np.flatnonzero(lengths == 1)
    blank[single] = np.frombuffer(data, np.uint8)[starts[single]] == RETURN
    return blank


CSV = CsvFraming()
