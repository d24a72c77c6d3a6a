"""Authorizes calls, which is the first check of each call.

The checks are, in this order: there is a token, it is a bearer token, its signature is valid, and it allows
the call. Each failure, even a missing capability, is gRPC's UNAUTHENTICATED, as in Gazette's brokers.
Journals outside a token's selector do not exist for its bearer (``broker.api.call.resolve``).

Without keys everything is allowed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from gazette_spark.errors import GazetteError, TokenError
from gazette_spark.protocol import labels
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.tokens import Capability, Claims, KeySet

SCHEME = "Bearer "

NO_TOKEN_LIFETIME_S = 3600.0
"""Lifetime in seconds of a call without a token, if the keys allow such calls."""


class UnauthenticatedError(GazetteError):
    """A call is refused. The error does not leave the broker, and its text contains no token."""

    problem: str


@dataclass(frozen=True, slots=True)
class Authorizer:
    """Checks calls against the broker's keys. Immutable and thread-safe."""

    keys: KeySet | None = None
    clock: Callable[[], float] = time.time
    """Function that returns the current Unix seconds."""

    def authorize(self, header: str | None, needed: Capability) -> Claims:
        """Return the caller's claims.

        Args:
            header: value of the ``authorization`` header, if there is one.
            needed: capability that the call needs.

        Raises:
            UnauthenticatedError: there is no token, or it does not allow the call.
        """
        if self.keys is None:
            return Claims(needed, pb.LabelSelector(), inf)
        if not header:
            # With Gazette's special key AA==, tokens are checked, but callers without one are served. This is
            # for clusters that are being changed to use tokens.
            if self.keys.allow_missing:
                return Claims(needed, pb.LabelSelector(), self.clock() + NO_TOKEN_LIFETIME_S)
            # As in Gazette, a missing token and an invalid one have the same code, but different texts.
            raise UnauthenticatedError("missing authorization: no bearer token")
        if not header.startswith(SCHEME):
            raise UnauthenticatedError(f"invalid authorization: expected {SCHEME!r} and a token")
        try:
            claims = self.keys.verify(header.removeprefix(SCHEME), now=self.clock())
        except TokenError as error:
            raise UnauthenticatedError(f"verifying authorization: {error}") from None
        if not claims.allows(needed):
            raise UnauthenticatedError(f"authorization lacks the required {needed.name} capability")
        return claims


def is_confined(claims: Claims) -> bool:
    """Return whether the claims are restricted to some journals."""
    return bool(claims.selector.include.labels or claims.selector.exclude.labels)


def covers(claims: Claims, spec: pb.JournalSpec) -> bool:
    """Return whether the claims' selector matches the journal's labels, which include its ``name``."""
    if not is_confined(claims):
        return True
    return labels.selector_matches(claims.selector, labels.labels_with_name(spec))


def check_change(claims: Claims, change: pb.ApplyRequest.Change, present: pb.JournalSpec | None) -> None:
    """Refuse a change of a journal that the claims do not cover.

    Gazette only compares the new labels, so a bearer could take any journal by giving it the labels of its
    claims. Here the claims must also cover the existing journal. For a deletion the new labels are only the
    journal's name, as in Gazette: claims with a selector of other labels cannot delete.

    Args:
        claims: Claims of the caller.
        change: The requested change.
        present: The journal's spec before the change, if it exists.

    Raises:
        UnauthenticatedError: the claims do not cover the journal. The error names it.
    """
    spec = change.upsert if change.HasField("upsert") else pb.JournalSpec(name=change.delete)
    if not covers(claims, spec) or (present is not None and not covers(claims, present)):
        raise UnauthenticatedError(f"not authorized to change journal {spec.name}")
