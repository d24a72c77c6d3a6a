"""Bearer tokens of the Gazette protocol: their claims, signatures and verification.

A token is a JWT signed by HMAC. It claims capabilities, as a bit mask, on the journals that a selector
matches, until a time. Signing uses HS256 and the first key; verification accepts HS256 and HS384 by any key,
so that keys can be rotated: a new key is added last everywhere, moved first, and then the old one dropped.
Gazette's brokers and tools do the same.

Keys and tokens are secrets: no text or ``repr`` made here holds either. Everything here is a function of
its arguments; the time is one of them.
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
"""Seconds by which the clocks of signer and verifier may differ."""

LIFETIME_S = 3600.0
"""Seconds a token of a read, an append or a listing is valid; of an apply, :data:`APPLY_LIFETIME_S`."""

APPLY_LIFETIME_S = 60.0

MAX_TIME_S = 1 << 53
"""Largest time of a claim: up to it, a float has each second."""

MAX_TOKEN_CHARS = 64 << 10
"""Maximum length of a token; a longer one is refused without parsing it."""

ALLOW_MISSING = b"\0"
"""The one-byte key ``AA==``. It is not a key; it allows calls without a token."""

_LABEL_FIELDS = ("name", "value", "prefix")
_KEYS_FORM = "base64 keys separated by commas or blanks; the first signs, all verify"


class Capability(IntFlag):
    """Capabilities of a token. Applications have the bits from 65,536 up."""

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
    """Selects the journals, by labels and ``name``, or the shards, by labels and ``id``. Empty: all."""
    expires_at: float = 0.0
    """Unix seconds; set by :meth:`KeySet.verify`."""

    def __post_init__(self) -> None:
        if not 0 <= self.capability <= Capability.ALL:
            raise ProtocolError("Claims.Capability", f"{self.capability} does not fit 32 bits")
        validate_selector(self.selector, "Claims.Selector")

    def allows(self, needed: int) -> bool:
        """Return whether every needed capability is among them."""
        return self.capability & needed == needed


def item_claims(capability: int, meta_label: str, item: str) -> Claims:
    """Return the claims a call about one item needs.

    Args:
        capability: bits of :class:`Capability`.
        meta_label: of the item's kind: ``labels.NAME`` of a journal, ``labels.ID`` of a shard.
        item: the journal's name, or the shard's id.
    """
    return Claims(capability, pb.LabelSelector(include=label_set({meta_label: item})))


def journal_claims(capability: int, journal: str) -> Claims:
    """Return the claims a call about one journal needs; its name may carry a ``;meta`` suffix."""
    return item_claims(capability, NAME, journal.partition(";")[0])


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys that sign and verify. Immutable; its ``repr`` counts them and shows none."""

    keys: tuple[bytes, ...] = field(repr=False)
    """Keys, one or more. The first signs."""
    allow_missing: bool = False
    """Whether a broker lets calls without a token pass."""

    def __repr__(self) -> str:
        return f"KeySet({len(self.keys)} keys, allow_missing={self.allow_missing})"

    @classmethod
    def parse(cls, text: str, option: str = "authKeys") -> KeySet:
        """Return the keys of ``text``, as ``BROKER_AUTH_KEYS`` has them: padded base64, the first signs.

        Raises:
            OptionError: a key is not base64, or there are no keys. Names its index and never its text.
        """
        keys = []
        # Errors name a key by its index: its text must reach neither a log nor a terminal.
        for index, encoded in enumerate(re.split(r"[\s,]+", text.strip(" ,"))):
            try:
                key = base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError):
                raise OptionError(option, f"a key at index {index} that is not base64", _KEYS_FORM) from None
            if not key:
                raise OptionError(option, f"an empty key at index {index}", _KEYS_FORM)
            keys.append(key)
        # Gazette's convention: the key AA== among others lets calls without a token pass. It must not sign or
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
        # Go marshals these fields in this order, and writes null for a missing list of labels. So a token of
        # ours has the text of one of gazctl's.
        payload = {
            "cap": int(claims.capability),
            "sel": selector,
            "exp": int(now + lifetime_s),
            "iat": int(now),
        }
        # Loaded here: most programs have no keys, and each of Spark's many workers would load it.
        from gazette_spark.protocol import signatures

        return signatures.signed(json.dumps(payload, separators=(",", ":")).encode(), self.keys[0])

    def verify(self, token: str, *, now: float) -> Claims:
        """Return the token's claims.

        Args:
            token: without ``Bearer``.
            now: Unix seconds; times in the token may be off by :data:`LEEWAY_S`.

        Raises:
            TokenError: the token is malformed, signed by an unknown key, expired, or not valid yet.
        """
        # The texts of the errors are those of Go's JWT library, which users of Gazette search for.
        payload = self._payload(token)
        expires_at = _time(payload, "exp")
        if expires_at is None:
            raise TokenError("token has invalid claims: exp claim is required")
        # The leeway is for clocks of two machines, and counts in both directions.
        if now > expires_at + LEEWAY_S:
            raise TokenError("token has invalid claims: token is expired")
        for name, problem in (("iat", "token used before issued"), ("nbf", "token is not valid yet")):
            if (at := _time(payload, name)) is not None and now < at - LEEWAY_S:
                raise TokenError(f"token has invalid claims: {problem}")
        capability = payload.get("cap", 0)
        # A boolean is an int in Python: "cap": true would pass as the capability 1.
        if (
            isinstance(capability, bool)
            or not isinstance(capability, int)
            or not 0 <= capability <= Capability.ALL
        ):
            raise TokenError("token is malformed: cap is not an unsigned 32-bit integer")
        return Claims(capability, _selector_of(payload.get("sel")), expires_at)

    def _payload(self, token: str) -> Mapping[str, Any]:
        # Decoding costs time and memory by length, and nobody has proved yet who sent this.
        if len(token) > MAX_TOKEN_CHARS:
            raise TokenError(f"token is malformed: it has {len(token)} characters")
        from gazette_spark.protocol import signatures

        # Try every key: during a rotation the signer may use another one than we do. Only a signature that
        # does not fit leads to the next key; a malformed token is malformed under all of them.
        for key in self.keys:
            content = signatures.verified(token, key)
            if content is None:
                continue
            try:
                payload = parse_json(content)
            except JsonError:
                raise TokenError("token is malformed") from None
            if not isinstance(payload, dict):
                raise TokenError("token is malformed: its claims are not a JSON object")
            return payload
        raise TokenError("token signature is invalid: no configured key verifies it")


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
