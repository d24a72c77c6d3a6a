"""Implements fragment stores as directories under the broker's root.

Like ``gazette serve --broker.file-only`` the embedded broker serves every scheme from its root, by the
store's path alone: ``file:///x/`` and ``s3://bucket/x/`` are both ``root/x/``. So a production spec works
unchanged. The directory has to exist.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from gazette_spark.broker.storage.durable import make_directories, sync_directory
from gazette_spark.client._read.regular_files import open_regular_fd, read_regular
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol.fragments import Fragment, parse_content_path

_log = logging.getLogger(__name__)

STATE_DIRECTORY = ".gazette"
"""Directory under the root with the broker's own state. No store may be in it."""

HEALTH_CHECK = ".test/health-check"
"""Object that checks of a store's health write, as in Gazette."""

_REWRITES = ("find", "replace")


@dataclass(frozen=True, slots=True)
class FragmentStore:
    """One store."""

    url: str
    """URL in the spec."""
    root: Path
    prefix: str
    """Path of the URL without its leading slash; empty or ending in a slash."""
    find: str = ""
    """Text whose first occurrence in an object's path is replaced."""
    replace_by: str = ""
    """Replacement for ``find``."""

    def problem(self) -> str:
        """Return the reason why the store cannot take fragments, or an empty text."""
        base = self.root / self.prefix
        if not base.is_dir():
            return f"store {self.url}: directory {base} does not exist"
        if not os.access(base, os.R_OK | os.W_OK | os.X_OK):
            return f"store {self.url}: directory {base} is not readable and writable"
        return ""

    def probe(self, delete_prefix: str | None = None) -> str:
        """Write, read and list an object, and return the text of the failure, or an empty text.

        Args:
            delete_prefix: prefix below the store at which an object is also made and deleted; None deletes
                nothing.
        """
        if problem := self.problem():
            return problem
        base = self.root / self.prefix
        try:
            path = self._locate(self.prefix + HEALTH_CHECK)
            _try_out(path)
            if path.name not in os.listdir(path.parent):  # noqa: PTH208 - names are all we want
                return f"store {self.url}: {path} was written, but a listing does not have it"
            if delete_prefix is not None:
                trial = f"{self.prefix}{delete_prefix}/{HEALTH_CHECK}-{secrets.token_hex(8)}"
                located = self._locate(trial.lstrip("/"))
                if ".." in delete_prefix.split("/") or not located.is_relative_to(base.resolve()):
                    return f"store {self.url}: {delete_prefix!r} leads out of the store"
                _try_out(located)
                located.unlink()
        except (OSError, ProtocolError) as error:
            return f"store {self.url}: {error}"
        return ""

    def check(self, fragment: Fragment) -> None:
        """Refuse a store that could not store a fragment, or not list it again.

        Raises:
            ProtocolError: the store rewrites the fragment's path to one outside the root, to one of the
                broker's state, or to one that a listing of the journal does not find.
        """
        directory, path = self.directory(fragment.journal), self.object_path(fragment)
        self._locate(path)
        if path != directory + fragment.content_path.removeprefix(fragment.journal):
            problem = f"{path}, for {fragment.content_path}, differs in more than the journal's name"
            raise ProtocolError("FragmentStore", f"{self.url}: {problem}")

    def directory(self, journal: str) -> str:
        """Return the path of the journal's fragments below the root.

        Raises:
            ProtocolError: the path leaves the broker's root, or leads into its state.
        """
        return self._object(journal)

    def path(self, fragment: Fragment) -> Path:
        """Return the path of the fragment's file.

        Raises:
            ProtocolError: the path leaves the broker's root, or leads into its state.
        """
        return self._locate(self.object_path(fragment))

    def object_path(self, fragment: Fragment) -> str:
        """Return the fragment's path below the root.

        Raises:
            ProtocolError: the path leaves the broker's root, or leads into its state.
        """
        return self._object(fragment.content_path)

    def fragment_url(self, fragment: Fragment) -> str:
        """Return the fragment's URL, unescaped and relative to the root."""
        return f"file:///{self.object_path(fragment)}"

    def list(self, journal: str, is_journal: Callable[[str], bool]) -> Iterator[Fragment]:
        """Yield the journal's fragments, in no particular order.

        Directories for which ``is_journal`` returns True belong to other journals and are not listed.

        Raises:
            ProtocolError: the journal has no path in this store.
            OSError: the directory cannot be read.
        """
        yield from self._walk(journal, "", self._locate(self.directory(journal)), is_journal)

    def put(
        self,
        fragment: Fragment,
        blocks: Iterable[bytes],
        *,
        fsync: bool,
        guard: AbstractContextManager[None] | None = None,
    ) -> Fragment:
        """Write the fragment's file, whole or not at all, and return it as stored.

        The complete file gets its name inside ``guard``, which may raise to prevent that.

        Raises:
            ProtocolError: the fragment has no path in this store.
            OSError: the file cannot be written, or something else has its name.
        """
        path = self.path(fragment)
        make_directories(path.parent, mode=0o750, fsync=fsync)
        # Another replica may have stored the same fragment. Its name has the sum of its bytes, so they are
        # the same.
        if not os.path.lexists(path):
            # A file gets a fragment's name only when it is complete. A crash leaves a partial file, whose
            # name is not that of a fragment.
            partial = path.parent / f".partial-{path.name[:150]}{secrets.token_hex(8)}"
            try:
                _write(partial, blocks, fsync=fsync)
                with guard or contextlib.nullcontext():
                    partial.rename(path)
                if fsync:
                    sync_directory(path.parent)  # The spool, the only other copy, is deleted next.
            finally:
                partial.unlink(missing_ok=True)
        # Do not follow links: a link with the name of a fragment could lead to any file.
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError(
                errno.EEXIST, "not a regular file, so the fragment cannot be stored here", str(path)
            )
        return replace(fragment, backing_store=self.url, mod_time=_mod_time(status))

    def _object(self, path: str) -> str:
        """Return the final path of an object, below the root."""
        final = self.prefix + (path.replace(self.find, self.replace_by, 1) if self.find else path)
        parts = final.split("/")
        # Check after `find` and `replace`, which can turn a clean path into any path.
        if any(part in ("", ".", "..") for part in parts) or "\0" in final:
            problem = f"{path!r} becomes {final!r}, which is not a clean path below the broker's root"
            raise ProtocolError("FragmentStore", f"{self.url}: {problem}")
        if parts[0] == STATE_DIRECTORY:
            raise ProtocolError(
                "FragmentStore", f"{self.url}: {final!r} is inside the broker's own {parts[0]}"
            )
        return final

    def _locate(self, final: str) -> Path:
        """Return the file of a path below the root, following links in its directories.

        A link in the last part is not followed, and opening it is refused later.
        """
        root = self.root.resolve()
        directory, _, name = final.rpartition("/")
        # Follow links before the comparison, because a directory below the root can be a link to another
        # place.
        located = (root / directory).resolve() / name
        if not located.is_relative_to(root) or located.is_relative_to(root / STATE_DIRECTORY):
            problem = f"{final!r} leads out of the broker's root, or into its state"
            raise ProtocolError("FragmentStore", f"{self.url}: {problem}")
        return located

    def _walk(
        self, journal: str, postfix: str, directory: Path, is_journal: Callable[[str], bool]
    ) -> Iterator[Fragment]:
        with contextlib.ExitStack() as stack:
            try:
                entries = stack.enter_context(os.scandir(directory))
            except FileNotFoundError:
                return
            for entry in entries:
                inner = f"{postfix}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    # Otherwise the files of a journal whose name continues with a slash would be listed as
                    # this journal's. Gazette's broker lists them, reads foreign bytes and then refuses
                    # appends.
                    if not is_journal(f"{journal}/{inner}"):
                        yield from self._walk(journal, f"{inner}/", Path(entry.path), is_journal)
                elif entry.is_file(follow_symlinks=False) and not entry.name.startswith("."):
                    yield from self._parse(journal, inner, entry)

    def _parse(self, journal: str, inner: str, entry: os.DirEntry[str]) -> Iterator[Fragment]:
        try:
            fragment = parse_content_path(journal, inner)
        except ProtocolError as error:
            _log.warning("fragment_skipped path=%s problem=%s", entry.path, error.problem)
            return
        with contextlib.suppress(FileNotFoundError):  # The file was pruned after the directory was read.
            mod_time = _mod_time(entry.stat(follow_symlinks=False))
            yield replace(fragment, backing_store=self.url, mod_time=mod_time)


def open_store(root: Path, url: str) -> FragmentStore:
    """Return the store of a URL.

    Raises:
        ProtocolError: the URL leaves the root, names the broker's own state, or has an unknown argument.
    """
    parts = urlsplit(url)
    prefix = parts.path.lstrip("/")
    components = prefix.split("/")
    if prefix and not prefix.endswith("/"):
        raise ProtocolError("FragmentStore", f"{url}: path must end in '/'")
    if any(part in ("", ".", "..") for part in components[:-1]) or components[0] == STATE_DIRECTORY:
        raise ProtocolError("FragmentStore", f"{url}: path must be clean and stay inside the broker's root")
    base, real_root = (root / prefix).resolve(), root.resolve()
    if not base.is_relative_to(real_root) or base.is_relative_to(real_root / STATE_DIRECTORY):
        raise ProtocolError("FragmentStore", f"{url}: path leaves the broker's root through a symbolic link")
    arguments = dict(parse_qsl(parts.query, keep_blank_values=True))
    # Arguments of object stores, such as a region, have no effect on a directory, but belong to a production
    # spec.
    if parts.scheme == "file" and (unknown := sorted(set(arguments) - set(_REWRITES))):
        raise ProtocolError("FragmentStore", f"{url}: unknown argument {unknown[0]!r}; known: find, replace")
    return FragmentStore(url, root, prefix, arguments.get("find", ""), arguments.get("replace", ""))


def _try_out(path: Path) -> None:
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    with os.fdopen(open_regular_fd(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(b"health-check\n")
    if read_regular(path) != b"health-check\n":
        raise OSError(f"{path} does not contain what was written")


def _write(path: Path, blocks: Iterable[bytes], *, fsync: bool) -> None:
    # The mode is Gazette's: only the broker's user reads fragments.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        for block in blocks:
            file.write(block)
        if fsync:
            file.flush()
            os.fsync(fd)


def _mod_time(stat: os.stat_result) -> int:
    return max(1, int(stat.st_mtime))  # 0 would mean that the fragment is not stored.
