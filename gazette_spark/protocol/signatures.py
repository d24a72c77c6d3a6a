"""Signs and verifies tokens, which are JWTs with HMAC, but does not check their claims."""

from __future__ import annotations

from typing import Any

import jwt
from jwt.algorithms import HMACAlgorithm

from gazette_spark.errors import TokenError

SIGNED_BY = "HS256"
"""Algorithm with which we sign, as Gazette does."""

_ALGORITHMS = {"HS256": HMACAlgorithm.SHA256, "HS384": HMACAlgorithm.SHA384}
"""Algorithms that we accept."""


class _AnyKeyLength(HMACAlgorithm):
    """HMAC with keys of any length, as in Gazette.

    The library would warn about a short key, and warnings cannot be silenced safely in several threads.
    """

    def check_key_length(self, _key: Any) -> None:  # noqa: ANN401 - the library's
        """Accept a key of any length."""


# Only signs and verifies, because claims are checked against our own clock. Only our algorithms are
# registered: the library's include "none", with which a token without a signature would be valid.
_JWS = jwt.PyJWS(algorithms=[])
for _name, _hash_algorithm in _ALGORITHMS.items():
    _JWS.register_algorithm(_name, _AnyKeyLength(_hash_algorithm))


def signed(payload: bytes, key: bytes) -> str:
    """Return a signed token with the payload."""
    return _JWS.encode(payload, key, algorithm=SIGNED_BY)


def verified(token: str, key: bytes) -> bytes | None:
    """Return a token's payload, or None if another key signed it.

    Raises:
        TokenError: the token is malformed, or uses another algorithm.
    """
    try:
        # The header of a token names its algorithm, and its maker chose it. So only these two are accepted.
        payload: bytes = _JWS.decode(token, key, algorithms=[*_ALGORITHMS])
    except jwt.InvalidSignatureError:
        return None
    except jwt.InvalidAlgorithmError:
        raise TokenError("token signature is invalid: signing method is invalid") from None
    # The library does not catch every error that a hostile header causes in Python's JSON parser.
    except (jwt.InvalidTokenError, ValueError, RecursionError):
        raise TokenError("token is malformed") from None
    return payload
