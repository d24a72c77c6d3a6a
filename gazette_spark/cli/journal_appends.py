"""Implements ``gazette-spark journals append``, for a whole input or record by record to many journals."""

from __future__ import annotations

import base64
import binascii
import json
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, cast

import click

from gazette_spark.cli.journal_options import (
    Connect,
    Interrupts,
    checked_target,
    chosen_selector,
    journal_argument,
    with_hint,
)
from gazette_spark.cli.main import Integer, Interrupted
from gazette_spark.cli.output import format_option, say_reading, size_text
from gazette_spark.errors import GazetteError, InputError, JournalNotFoundError, WrongAppendOffsetError
from gazette_spark.progress import CountedFile, progress

if TYPE_CHECKING:
    from gazette_spark.client import Client

MEMORY_BYTES = 16 << 20
"""Maximum number of input bytes kept in memory before the append; longer input goes to a file."""

LARGE_BYTES = 64 << 20
"""Size of an append above which a hint is printed, because one append is always a single fragment."""

Mapping = Callable[[bytes], tuple[str, str]]
"""Function from a record's key to the record's journal and that journal's content type."""

FRAME = struct.Struct("<4sI")
"""Header of a fixed frame: the magic word, and the length of the payload."""

MAGIC = b"\x66\x33\x93\x36"

MAX_RECORD_BYTES = 1 << 28
"""Maximum length of a frame's payload. A larger one means that the header is probably not a header."""

ReadRecord = Callable[[BinaryIO], bytes | None]
"""Function that returns the next record, or None at the end."""


@click.command()
@journal_argument
@click.option(
    "--input", "-i", "source", type=click.File("rb"), default="-", help="File to append. '-' is stdin."
)
# To a broker, 0 means any offset, so this option cannot require an empty journal.
@click.option("--offset", type=Integer(min=1), help="Append only if this, 1 or more, is the write head.")
@click.option(
    "--framing",
    "-f",
    type=click.Choice(["none", "lines", "fixed"]),
    default="none",
    show_default=True,
    help="Framing of the records. 'none' appends the whole input at once, or nothing.",
)
@click.option(
    "--mapping",
    "-m",
    type=click.Choice(["random", "modulo", "rendezvous", "direct"]),
    default="random",
    show_default=True,
    help="How a record's journal is chosen. Except with random, a key precedes each record, in the same "
    "framing. With direct, it is the journal's name.",
)
@click.option("--base64", "is_base64", is_flag=True, help="The keys before the lines are in base64.")
@format_option
@click.pass_obj
def append(
    connect: Connect,
    *,
    journal: str | None,
    selector: str,
    source: BinaryIO,
    offset: int | None,
    framing: str,
    mapping: str,
    is_base64: bool,
    output_format: str,
) -> None:
    """Append to JOURNAL, or to the journals that --selector matches.

    Records are never split, and records of one journal keep their order. After a broken connection, records
    may be in their journal twice. After Ctrl-C, the command prints the number of the next record.
    """
    if framing == "none" and mapping != "random":
        raise click.UsageError("--mapping needs a --framing of lines or fixed")
    if is_base64 and (framing != "lines" or mapping == "random"):
        raise click.UsageError("--base64 is for the keys of --framing lines")
    if offset and (framing != "none" or not journal):
        raise click.UsageError("--offset is for a whole input and one JOURNAL")
    selected = chosen_selector(journal, selector)
    # A selector with an unset shell variable would scatter the records over all journals.
    if not journal:
        checked_target(selected)
    say_reading(source)
    with connect() as client:
        if framing == "none":
            name = journal or make_mapping("random", client, selected)(b"")[0]
            append_whole(client, name, source, offset or 0, output_format)
            return
        target = make_mapping(mapping, client, selected)
        counts = append_records(
            client, target, source, framing, keyed=mapping != "random", is_base64=is_base64
        )
    show_counts(counts, output_format)


def append_whole(client: Client, journal: str, source: BinaryIO, offset: int, output_format: str) -> None:
    """Append all of the input, and print its offsets."""
    # Read all input before the call, because brokers end an append whose bytes arrive too slowly.
    with tempfile.SpooledTemporaryFile(MEMORY_BYTES) as content, progress("reading", is_bytes=True) as bar:
        shutil.copyfileobj(CountedFile(source, bar, "reading"), content)
        size = content.tell()
        bar.show("appending", 0, size)
        if size > LARGE_BYTES:
            text = "the input is one append and becomes one fragment; --framing lines makes several"
            click.echo(f"{journal}: {size_text(size)}: {text}", err=True)
        sent = CountedFile(cast(BinaryIO, content), bar, "appending")
        try:
            done = client.append(journal, sent, offset=offset)
        except KeyboardInterrupt:
            raise Interrupted(interrupted_text(client, journal, all_sent=0 < size <= sent.at)) from None
        except WrongAppendOffsetError as error:
            head = client.write_head(journal)
            outcome = error.detail or "nothing was appended"
            problem = f"--offset is {offset}, but the write head is {head}: {outcome}"
            raise WrongAppendOffsetError(journal, problem) from None
        except JournalNotFoundError as error:
            raise with_hint(client, error) from None
    row = {"journal": journal, "begin": done.begin, "end": done.end, "sha1": done.sum.hex()}
    if output_format == "json":
        click.echo(json.dumps(row, indent=2))
    else:
        text = f"appended [{done.begin}, {done.end}), sha1 {done.sum.hex()}"
        nothing = f"nothing to append: the input is empty; the write head is {done.end}"
        click.echo(f"{journal}: {text if done.begin < done.end else nothing}")


def interrupted_text(client: Client, journal: str, *, all_sent: bool) -> str:
    """Return a text about what an interrupted append has written."""
    if not all_sent:
        return f"interrupted: nothing was appended to {journal}"
    head = client.write_head(journal)
    return f"interrupted after the last byte was sent: {journal} may have all of it; its write head is {head}"


def append_records(
    client: Client, target: Mapping, source: BinaryIO, framing: str, *, keyed: bool, is_base64: bool
) -> Counter[str]:
    """Append record by record; return the number of records of each journal.

    Raises:
        InputError: a record is malformed, or its key names no journal. Earlier records are appended.
        Interrupted: after Ctrl-C, once the records read so far are appended. It names the next record.
    """
    from gazette_spark.client import AppendService

    counts: Counter[str] = Counter()
    wrong: GazetteError | None = None
    with (
        AppendService(client, timeout_s=client.timeout_s) as service,
        progress("appending", is_bytes=True) as bar,
        Interrupts() as interrupts,
    ):
        try:
            for key, record in read_keyed(source, framing, keyed=keyed):
                name, _ = target(_decode(key) if is_base64 else key)
                # The user continues from the count, so it must equal the number of records handed over.
                with interrupts.defer_signals():
                    service.append(name, record)
                    counts[name] += 1
                bar.advance(len(key) + len(record))
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
        except (InputError, JournalNotFoundError) as problem:
            interrupted, wrong = False, problem
        # Appends are sent in the background. Raise their errors before anything is counted as done.
        for pending in service.pending_except(""):
            if (error := pending.exception()) is not None:
                raise error
    done = counts.total()
    # With keys, each record takes two lines.
    lines = f": tail -n +{done * (2 if keyed else 1) + 1} FILE" if framing == "lines" else ""
    first = "first record is" if done == 1 else f"first {done} records are"
    if interrupted:
        text = f"interrupted: the {first} appended; continue with record {done + 1}{lines}"
        raise Interrupted(text)
    if wrong is not None:
        # Whoever repeats the command with a corrected file would append these records a second time.
        text = f"The {first} appended; correct record {done + 1} and continue with it{lines}"
        raise InputError(f"{wrong}. {text if done else 'Nothing was appended'}") from wrong
    return counts


def _decode(key: bytes) -> bytes:
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error as error:
        raise InputError(f"key {key[:40]!r} is not base64: {error}") from error


def make_mapping(kind: str, client: Client, selector: str) -> Mapping:
    """Return a mapping to the journals that match now.

    Raises:
        JournalNotFoundError: no journal matches.
    """
    from gazette_spark.client._append.mappings import ModuloMapping, RandomMapping, RendezvousMapping
    from gazette_spark.client._list.listing import journal_not_found

    journals = client.list_journals(selector)
    if not journals:
        raise journal_not_found(client, selector)
    match kind:
        case "random":
            return RandomMapping(journals)
        case "modulo":
            return ModuloMapping(bytes, journals)
        case "rendezvous":
            return RendezvousMapping(bytes, journals)
    names = {journal.spec.name for journal in journals}

    def find(key: bytes) -> tuple[str, str]:
        name = key.decode(errors="replace")
        # A key that names any journal would let the input write outside the selection.
        if name not in names:
            raise JournalNotFoundError(name, "it is not one that the selector matches")
        return name, ""

    return find


def show_counts(counts: Counter[str], output_format: str) -> None:
    """Show the number of records of each journal."""
    if output_format == "json":
        click.echo(json.dumps(dict(sorted(counts.items())), indent=2))
    else:
        click.echo(f"appended {counts.total()} records to {len(counts)} journals")


def read_line(source: BinaryIO) -> bytes | None:
    """Return the next line with its newline, or None at the end."""
    line = source.readline()
    if not line:
        return None
    # Without the newline, it would become part of the next line in the journal.
    if not line.endswith(b"\n"):
        raise InputError(f"the last line has no newline: {line[-40:]!r}")
    return line


def read_frame(source: BinaryIO) -> bytes | None:
    """Return the next fixed frame with its header, or None at the end."""
    header = source.read(FRAME.size)
    if not header:
        return None
    if len(header) < FRAME.size:
        raise InputError(f"the input ends within a frame's header: {header!r}")
    magic, length = FRAME.unpack(header)
    # Checked before the body is read, because a wrong length could be 4 GiB.
    if magic != MAGIC or length > MAX_RECORD_BYTES:
        raise InputError(f"a frame begins with {header.hex(' ')}, not with {MAGIC.hex(' ')} and a length")
    body = source.read(length)
    if len(body) < length:
        raise InputError(f"the input ends within a frame of {length} bytes, after {len(body)}")
    return header + body


READERS: dict[str, ReadRecord] = {"lines": read_line, "fixed": read_frame}
"""Reader of the next record, by framing."""


def read_keyed(source: BinaryIO, framing: str, *, keyed: bool) -> Iterator[tuple[bytes, bytes]]:
    """Yield pairs of key and record, as in ``gazctl journals append``, where each key precedes its record.

    A record keeps its newline or header; a key does not. A last line without a newline, a truncated
    frame, and a frame that does not begin with the magic word are errors.

    Args:
        source: a buffered stream.
        framing: ``lines`` or ``fixed``.
        keyed: whether a key precedes each record; otherwise keys are empty.
    """
    read = READERS[framing]
    while True:
        key = read(source) if keyed else b""
        if key is None:
            return
        record = read(source)
        if record is None:
            if keyed:
                raise InputError(f"the last key has no record: {key[:40]!r}")
            return
        # The key loses its frame. The record keeps it, because journals store frames.
        yield (key.rstrip(b"\r\n") if framing == "lines" else key[FRAME.size :]), record
