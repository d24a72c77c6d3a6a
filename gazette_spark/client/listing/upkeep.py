"""Operations on journals: suspend them, reset their heads, delete fragments past their retention.

Each is a function of a client and one journal. The calls are those that ``gazctl`` makes, with two
differences in pruning: a retention of zero keeps fragments without limit, as the protocol promises and
``gazctl`` does not; and only fragments in ``file://`` stores are deleted, below a root that is given.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gazette_spark.client.client import Client
from gazette_spark.client.listing.listings import ListedFragment
from gazette_spark.client.reading.fragment_urls import FILE_SCHEME, resolve_file
from gazette_spark.errors import (
    BrokerError,
    FragmentNotRemovedError,
    ProtocolError,
    SuspendedError,
    WrongAppendOffsetError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment

_UNKNOWN_SUSPEND = "invalid Suspend variant"
"""In what brokers up to 0.103 say to SUSPEND_KEEP."""

URL_TTL_S = 60.0
"""Seconds that the URLs of fragments to delete are valid: those of files do not expire."""


def suspend_journal(client: Client, journal: str, *, force: bool = False) -> bool:
    """Ask for a journal's suspension; return whether it is suspended now.

    An empty journal is suspended fully, any other partially: it keeps one replica, and can be read. The next
    append resumes it. It stays as it is while it has fragments that are not stored, or were stored a short
    while ago only; ``force`` rolls and stores them, so that a second call finds it ready.

    Raises:
        JournalNotFoundError: the journal does not exist.
    """
    how = pb.AppendRequest.SUSPEND_NOW if force else pb.AppendRequest.SUSPEND_IF_FLUSHED
    try:
        client.append(journal, b"", suspend=how)
    except SuspendedError:
        return True
    return False


def reset_head(client: Client, journal: str) -> int | None:
    """Move a journal's write head to the end of its stored fragments; return it.

    For journals that answer INDEX_HAS_GREATER_OFFSET, whose brokers have lost bytes; harmless for others. A
    partially suspended journal stays so, except on brokers up to 0.103, which resume it.

    Returns:
        None: another writer appended at the same time, so the head needs no reset.

    Raises:
        SuspendedError: the journal is suspended fully: it has no head to reset.
    """
    head = client.write_head(journal)
    try:
        try:
            client.append(journal, b"", offset=head, suspend=pb.AppendRequest.SUSPEND_KEEP)
        except BrokerError as error:
            if _UNKNOWN_SUSPEND not in error.problem:
                raise
            client.append(journal, b"", offset=head)
    except WrongAppendOffsetError:
        return None
    return head


@dataclass(frozen=True, slots=True)
class Pruned:
    """A stored fragment that is not needed any more."""

    fragment: Fragment
    url: str
    """URL of the fragment, which may be deleted."""

    @property
    def is_file(self) -> bool:
        """Whether it is in a ``file://`` store: only then it can be deleted here."""
        return self.url.startswith(FILE_SCHEME)


def aged(listed: Iterable[ListedFragment], *, retention_s: float, now: float) -> Iterator[Pruned]:
    """Yield the stored fragments that are at least ``retention_s`` old; none if that is zero or less.

    Args:
        listed: a journal's fragments.
        retention_s: of the journal's spec.
        now: Unix seconds.
    """
    if retention_s <= 0:
        return
    for each in listed:
        if each.fragment.backing_store and now - each.fragment.mod_time >= retention_s:
            yield pruned_of(each)


def pruned_of(listed: ListedFragment) -> Pruned:
    """Return a stored fragment to be deleted, which was listed with its URL."""
    is_file = listed.fragment.backing_store.startswith(FILE_SCHEME)
    return Pruned(listed.fragment, listed.signed_url if is_file else listed.fragment.backing_store)


def find_aged(client: Client, spec: pb.JournalSpec, *, now: float) -> list[Pruned]:
    """Return the fragments of a journal that are past its retention.

    Of fragments that cover the same bytes brokers list the largest only: the others show when it is gone.
    """
    listed = client.list_fragments(spec.name, signature_ttl_s=URL_TTL_S)
    return list(aged(listed, retention_s=spec.fragment.retention.ToNanoseconds() / 1e9, now=now))


def remove_fragment(pruned: Pruned, file_root: str | Path) -> bool:
    """Delete a fragment's file; return False if it is gone already.

    Args:
        pruned: the fragment.
        file_root: folder behind ``file:///``, as in the broker's configuration.

    Raises:
        FragmentNotRemovedError: the fragment is not in a file store, or its file cannot be deleted.
        ProtocolError: the broker's URL leads out of the root, or to another file.
    """
    fragment = pruned.fragment
    folder, _, name = pruned.url.rpartition("/")
    if not pruned.is_file:
        raise FragmentNotRemovedError(fragment.journal, pruned.url, "only files can be deleted here")
    if not name.startswith(fragment.content_name.rpartition(".")[0] or fragment.content_name):
        problem = f"{pruned.url!r} is not the file of fragment {fragment.content_name}"
        raise ProtocolError("FragmentsResponse.SignedUrl", problem)
    # The folder may be a link within the root; the file may not be one.
    path = Path(resolve_file(folder, str(file_root)), name)
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise FragmentNotRemovedError(fragment.journal, str(path), "it is not a regular file")
        path.unlink()
    except FileNotFoundError:
        if not Path(file_root).is_dir():
            raise FragmentNotRemovedError(fragment.journal, str(path), "there is no such root") from None
        return False
    except OSError as error:
        raise FragmentNotRemovedError(fragment.journal, str(path), error.strerror or str(error)) from error
    return True
