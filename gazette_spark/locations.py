"""Converts locations between their spellings.

The same directory or prefix has three names:

==========  =====================================================  ===================================
spelling    used by                                                the directory ``/lake/day%201``
==========  =====================================================  ===================================
path        the operating system, pyarrow's local file system      ``/lake/day%201``
Spark's     Spark, Delta and Hadoop; what users give this package  ``/lake/day%201``,
                                                                   ``file:/lake/day%201``
URL         ``deltalake`` and pyarrow for object stores; the       ``file:///lake/day%25201``
            options that take the URL of a fragment store
==========  =====================================================  ===================================

Spark's spelling looks like a URL but is not: nothing in it is quoted, so ``%20`` means these three
characters, and ``#`` and ``?`` are part of the name. Unquoting it gives another directory.
"""

from __future__ import annotations

import os
import posixpath
import re
from urllib.parse import quote, unquote, urlsplit

SPARK_SCHEMES = {"s3a": "s3", "s3n": "s3", "wasbs": "abfss", "wasb": "abfs"}
"""Schemes of Hadoop's file systems, and the names of the same schemes in other libraries."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")

_USER = re.compile(r"(?<!abfs:)(?<!abfss:)(?<!wasb:)(?<!wasbs:)//[^/?#]*@")
"""User and password before a host. In Azure's schemes, this place has the container's name."""


def split_scheme(location: str) -> tuple[str, str]:
    """Return the scheme of a location in Spark's spelling, or "", and the rest."""
    scheme = _SCHEME.match(location)
    return (scheme[1].lower(), location[scheme.end() :]) if scheme else ("", location)


def local_path(location: str) -> str | None:
    """Return the path of a location in Spark's spelling; None if it is in an object store or in HDFS.

    A relative path stays relative.
    """
    scheme, rest = split_scheme(location)
    if not scheme:
        return location
    if scheme != "file":
        return None
    if rest.startswith("//"):  # file:///lake, or file://localhost/lake: Hadoop ignores the host.
        rest = rest[2:].partition("/")[2]
    return "/" + rest.lstrip("/")


def absolute(location: str) -> str:
    """Return a location with an absolute path. A relative one begins at this process's working directory."""
    scheme, rest = split_scheme(location)
    return location if scheme else os.path.abspath(rest)  # noqa: PTH100 - it need not exist.


def is_inside(location: str, directory: str) -> bool:
    """Return whether a location is a directory or is below it, both in Spark's spelling."""
    inner, outer = _comparable(location), _comparable(directory)
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def is_same(location: str, other: str) -> bool:
    """Return whether two locations in Spark's spelling are the same."""
    return _comparable(location) == _comparable(other)


def _comparable(location: str) -> str:
    path = local_path(location)
    if path is not None:
        return posixpath.normpath(absolute(path))
    scheme, rest = split_scheme(location)
    host, _, key = rest.lstrip("/").partition("/")
    # Both get the same scheme, because s3a:// and s3:// name the same objects.
    return f"{SPARK_SCHEMES.get(scheme, scheme)}://{host}{posixpath.normpath('/' + key).rstrip('/')}"


def deltalake_location(location: str) -> str:
    """Return a location in Spark's spelling in the form for ``deltalake``: a path, or a quoted URL.

    See :func:`misread_by_deltalake` for locations that it does not read correctly in any spelling.
    """
    path = local_path(location)
    if path is not None:
        return path
    scheme, rest = split_scheme(location)
    # User and host are not quoted, because Azure's container has the place of the user.
    slashes, authority, path = re.match(r"(/*+)([^/]*+)(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
    quoted_path = quote(path, safe="/!$&'()*+,;:=@~")
    return f"{SPARK_SCHEMES.get(scheme, scheme)}:{slashes}{authority}{quoted_path}"


def misread_by_deltalake(location: str) -> str | None:
    """Return the location that ``deltalake`` would read instead of a location in Spark's spelling.

    Releases up to 1.6.6 list a table's log under the right name, but unquote that name before they read the
    log's files. So for the table ``day%201`` they read the commits of its neighbour ``day 1``. In directories
    they also treat a backslash as a slash.

    Returns:
        None if it reads the right location.
    """
    path = local_path(location)
    # Repeat deltalake's conversion. The location is safe if that changes nothing.
    read = unquote(location) if path is None else unquote(location).replace("\\", "/")
    return None if read == location else read


def masked_url(text: str) -> str:
    """Return a location without user, password and query of its URL, which may be secrets.

    >>> masked_url("orders=s3://key:secret@lake/orders?sig=x"), masked_url("abfss://lake@acc/day=1")
    ('orders=s3://***@lake/orders?***', 'abfss://lake@acc/day=1')
    """
    # A signed URL has its signature in the query.
    shown, query, _ = _USER.sub("//***@", text).partition("?") if "://" in text else (text, "", "")
    return f"{shown}?***" if query else shown


def escape_glob(location: str) -> str:
    """Escape a location in Spark's spelling for ``spark.read``, in which ``*?[]{}`` are patterns."""
    return "".join(f"\\{letter}" if letter in "\\*?[]{}" else letter for letter in location)


def url_of_path(path: str) -> str:
    """Return the URL of an absolute path."""
    return f"file://{quote(path)}"


def path_of_url(url: str) -> str:
    """Return the path of a ``file://`` URL, whose host is ignored."""
    return unquote(urlsplit(url).path)
