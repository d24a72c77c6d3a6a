"""Signs and verifies bearer tokens of the Gazette protocol and their claims.

A token is a JWT signed by HMAC. It claims capabilities, as a bit mask, on the journals that a selector
matches, until it expires. As in Gazette's brokers and tools, the first key signs with HS256, and any key
verifies HS256 and HS384. So keys can be rotated: append the new key everywhere, then move it to the front
everywhere, then drop the old one.

Keys and tokens are secrets: no error or ``repr`` contains either. All functions are pure; the current time is
an argument.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any

from gazette_spark.errors import JsonError, OptionError, ProtocolError, TokenError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import NAME, label_set, validate_selector
from gazette_spark.strict_json import parse_json

LEEWAY_S = 5.0
"""Maximum difference between the clocks of signer and verifier, in seconds."""

LIFETIME_S = 3600.0
"""Lifetime of a token in seconds, except that of an apply, which is :data:`APPLY_LIFETIME_S`."""

APPLY_LIFETIME_S = 60.0

MAX_TIME_S = 1 << 53
"""Maximum time in a claim, up to which a float represents every second."""

MAX_TOKEN_CHARS = 64 << 10
"""Maximum length of a token. Longer ones are refused without parsing."""

ALLOW_MISSING = b"\0"
"""The one-byte key ``AA==``. It is not a key; it allows calls without a token."""

_LABEL_FIELDS = ("name", "value", "prefix")
_KEYS_FORM = "base64 keys separated by commas or blanks; the first signs, all verify"


class Capability(IntFlag):
    """Capabilities of a token. The bits from 65,536 up are for applications."""

    LIST = 2
    APPLY = 4
    READ = 8
    APPEND = 16
    REPLICATE = 32
    ALL = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims of a token."""

    capability: int
    """Bit mask of :class:`Capability`."""
    selector: pb.LabelSelector
    """Selector of journals, by labels and ``name``, or of shards, by labels and ``id``. Empty selects all."""
    expires_at: float = 0.0
    """Expiry in Unix seconds, set by :meth:`KeySet.verify`."""

    def __post_init__(self) -> None:
        if not 0 <= self.capability <= Capability.ALL:
            raise ProtocolError("Claims.Capability", f"{self.capability} does not fit 32 bits")
        validate_selector(self.selector, "Claims.Selector")

    def allows(self, needed: int) -> bool:
        """Return whether the claims include every needed capability."""
        return self.capability & needed == needed


def item_claims(capability: int, meta_label: str, item: str) -> Claims:
    """Return the claims that a call about one item needs.

    Args:
        capability: bits of :class:`Capability`.
        meta_label: meta label of the item's kind: ``labels.NAME`` of a journal, ``labels.ID`` of a shard.
        item: the journal's name, or the shard's id.
    """
    return Claims(capability, pb.LabelSelector(include=label_set({meta_label: item})))


def journal_claims(capability: int, journal: str) -> Claims:
    """Return the claims that a call about one journal needs. Its name may have a ``;meta`` suffix."""
    return item_claims(capability, NAME, journal.partition(";")[0])


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys that sign and verify. Immutable; its ``repr`` shows only their number."""

    keys: tuple[bytes, ...] = field(repr=False)
    """One or more keys, of which the first signs."""
    allow_missing: bool = False
    """Whether a broker allows calls without a token."""

    def __repr__(self) -> str:
        return f"KeySet({len(self.keys)} keys, allow_missing={self.allow_missing})"

    @classmethod
    def parse(cls, text: str, option: str = "authKeys") -> KeySet:
        """Return the keys of ``text``, in the form of ``BROKER_AUTH_KEYS``: padded base64, the first signs.

        Raises:
            OptionError: a key is not base64, or there are no keys. It has the key's index, not its text.
        """
        keys = []
        # Errors name a key by its index, because its text must not appear in logs or on terminals.
        for index, encoded in enumerate(re.split(r"[\s,]+", text.strip(" ,"))):
            try:
                key = base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError):
                raise OptionError(option, f"a key at index {index} that is not base64", _KEYS_FORM) from None
            if not key:
                raise OptionError(option, f"an empty key at index {index}", _KEYS_FORM)
            keys.append(key)
        # By Gazette's convention, the additional key AA== allows calls without a token. It must not sign or
        # verify anything, because everybody knows it.
        real = tuple(key for key in keys if key != ALLOW_MISSING)
        if not real:
            raise OptionError(option, "no key", _KEYS_FORM)
        return cls(real, allow_missing=len(real) < len(keys))

    def sign(self, claims: Claims, *, now: float, lifetime_s: float = LIFETIME_S) -> str:
        """Return a token with the claims, valid from ``now`` (Unix seconds) for ``lifetime_s``."""
        selector: dict[str, Any] = {}
        for part in ("include", "exclude"):
            labels = [
                {name: value for name in _LABEL_FIELDS if (value := getattr(label, name))}
                for label in getattr(claims.selector, part).labels
            ]
            selector[part] = {"labels": labels or None}
        # Go marshals these fields in this order, and writes null for a missing list of labels. So our tokens
        # have the same text as gazctl's.
        payload = {
            "cap": int(claims.capability),
            "sel": selector,
            "exp": int(now + lifetime_s),
            "iat": int(now),
        }
        # Imported here, because most programs have no keys, and each of Spark's many workers would import it.
        from gazette_spark.protocol import signatures

        return signatures.signed(json.dumps(payload, separators=(",", ":")).encode(), self.keys[0])

    def verify(self, token: str, *, now: float) -> Claims:
        """Return the token's claims.

        Args:
            token: the token without ``Bearer``.
            now: current Unix seconds; times in the token may be off by :data:`LEEWAY_S`.

        Raises:
            TokenError: the token is malformed, signed by an unknown key, expired, or not valid yet.
        """
        # The error texts are those of Go's JWT library, which users of Gazette search for.
        # Decoding costs time and memory in proportion to the length, and the sender is not authenticated yet.
        if len(token) > MAX_TOKEN_CHARS:
            raise TokenError(f"token is malformed: it has {len(token)} characters")
        from gazette_spark.protocol import signatures

        # Try every key, because during a rotation the signer may use a different one. Only a wrong signature
        # leads to the next key; a malformed token is malformed with all of them.
        contents = (signatures.verified(token, key) for key in self.keys)
        content = next((content for content in contents if content is not None), None)
        if content is None:
            raise TokenError("token signature is invalid: no configured key verifies it")
        try:
            payload = parse_json(content)
        except JsonError:
            raise TokenError("token is malformed") from None
        if not isinstance(payload, dict):
            raise TokenError("token is malformed: its claims are not a JSON object")
        expires_at = _time(payload, "exp")
        if expires_at is None:
            raise TokenError("token has invalid claims: exp claim is required")
        # The clocks of two machines may differ, so the leeway applies in both directions.
        if now > expires_at + LEEWAY_S:
            raise TokenError("token has invalid claims: token is expired")
        for name, problem in (("iat", "token used before issued"), ("nbf", "token is not valid yet")):
            if (at := _time(payload, name)) is not None and now < at - LEEWAY_S:
                raise TokenError(f"token has invalid claims: {problem}")
        capability = payload.get("cap", 0)
        # A boolean is an int in Python, so "cap": true would be accepted as the capability 1.
        if (
            isinstance(capability, bool)
            or not isinstance(capability, int)
            or not 0 <= capability <= Capability.ALL
        ):
            raise TokenError("token is malformed: cap is not an unsigned 32-bit integer")
        return Claims(capability, _selector_of(payload.get("sel")), expires_at)


def _selector_of(value: object) -> pb.LabelSelector:
    try:
        selector = pb.LabelSelector()
        for part in ("include", "exclude"):
            labels = _entry(_entry(value, part), "labels")
            if not isinstance(labels, list | None):
                raise TypeError("labels are not a list")
            for label in labels or []:
                fields = {name: _entry(label, name) for name in _LABEL_FIELDS}
                made = pb.Label(**{name: field for name, field in fields.items() if field is not None})
                getattr(selector, part).labels.append(made)
        validate_selector(selector, "Claims.Selector")
    except (ProtocolError, TypeError, OverflowError) as error:
        raise TokenError(f"token is malformed: sel: {error}") from None
    return selector


def _entry(value: object, name: str) -> Any:  # noqa: ANN401 - parsed JSON
    if value is None:
        return None
    if not isinstance(value, dict):
        raise TypeError(f"expected an object with {name!r}")
    return value.get(name)


def _time(payload: Mapping[str, Any], name: str) -> float | None:
    value = payload.get(name)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not -MAX_TIME_S <= value <= MAX_TIME_S
    ):
        raise TokenError(f"token is malformed: {name} is not a time in Unix seconds")
    return float(value)
