"""Makes the URLs with which clients read fragments without the broker.

``file:///journal/name`` is the file below the root, for clients that have the root. A signed URL is served by
the broker itself (``fragment_server``) as an object store would serve it: its query has the Unix second at
which it expires and an HMAC of path and expiry. So it gives access to one fragment for a short time.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote

from gazette_spark.broker.storage.fragment_store import FragmentStore
from gazette_spark.errors import GazetteError
from gazette_spark.protocol.fragments import Fragment

READ_TTL_S = 60.0
"""Seconds for which the URL in a read's answer is valid, as in Gazette."""

UrlOf = Callable[[FragmentStore, Fragment, float], str]
"""Makes the URL of a stored fragment, valid for a number of seconds."""


class SignatureError(GazetteError):
    """A URL's signature is missing, wrong, or expired. Never raised outside the broker."""

    problem: str


def file_url(store: FragmentStore, fragment: Fragment, _ttl_s: float) -> str:
    """Return the fragment's ``file://`` URL, which needs no signature and does not expire."""
    return store.fragment_url(fragment)


@dataclass(frozen=True, slots=True)
class UrlSigner:
    """Signs and checks paths. Immutable, and usable by any thread."""

    key: bytes = field(repr=False)
    clock: Callable[[], float] = time.time
    """Unix seconds."""

    def query(self, path: str, ttl_s: float) -> str:
        """Return the query that opens ``path``, unescaped and without its leading slash."""
        expires = int(self.clock() + ttl_s)
        return f"expires={expires}&signature={self._signature(path, expires)}"

    def check(self, path: str, query: str) -> None:
        """Raise SignatureError unless the query opens the path now."""
        parameters = parse_qs(query, max_num_fields=8)
        expires, signature = (parameters.get(name, [""])[0] for name in ("expires", "signature"))
        if not (expires.isascii() and expires.isdigit() and len(expires) < 20):
            raise SignatureError("the URL is not signed")
        # Compare in constant time. Otherwise the time of the answer would reveal how many characters are
        # correct.
        if not hmac.compare_digest(signature.encode(), self._signature(path, int(expires)).encode()):
            raise SignatureError("the URL's signature is invalid")
        if self.clock() >= int(expires):
            raise SignatureError("the URL has expired")

    def _signature(self, path: str, expires: int) -> str:
        return hmac.digest(self.key, f"{expires}\n{path}".encode(), hashlib.sha256).hex()


@dataclass(frozen=True, slots=True)
class SignedUrls:
    """Makes signed URLs below ``base_url``."""

    base_url: str
    signer: UrlSigner

    def __call__(self, store: FragmentStore, fragment: Fragment, ttl_s: float) -> str:
        """Return the fragment's URL, which is valid for ``ttl_s`` seconds."""
        path = store.object_path(fragment)
        return f"{self.base_url}/{quote(path)}?{self.signer.query(path, ttl_s)}"
