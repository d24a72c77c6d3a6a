"""The signatures of tokens: JWTs by HMAC, and nothing of their claims. Loads PyJWT."""

from __future__ import annotations

from typing import Any

import jwt
from jwt.algorithms import HMACAlgorithm

from gazette_spark.errors import TokenError

SIGNED_BY = "HS256"
"""Algorithm of this package's signatures, as in Gazette."""

_ALGORITHMS = {"HS256": HMACAlgorithm.SHA256, "HS384": HMACAlgorithm.SHA384}
"""Algorithms that verify."""


class _AnyKeyLength(HMACAlgorithm):
    """HMAC with keys of any length, as Gazette has it.

    The library would warn about a short key, and warnings cannot be silenced safely in several threads.
    """

    def check_key_length(self, _key: Any) -> None:  # noqa: ANN401 - the library's
        """Accept a key of any length."""


# It only signs and verifies: claims are checked against our own clock. It has none of the library's own
# algorithms, "none" least of all: a token without a signature would verify.
_JWS = jwt.PyJWS(algorithms=[])
for _name, _hash_algorithm in _ALGORITHMS.items():
    _JWS.register_algorithm(_name, _AnyKeyLength(_hash_algorithm))


def signed(payload: bytes, key: bytes) -> str:
    """Return a token of the payload."""
    return _JWS.encode(payload, key, algorithm=SIGNED_BY)


def verified(token: str, key: bytes) -> bytes | None:
    """Return a token's payload; None if the key did not sign it.

    Raises:
        TokenError: it is malformed, or signed by another algorithm.
    """
    try:
        # The header of a token names its algorithm, and whoever made the token chose it. Only these two are
        # accepted, whatever it says.
        payload: bytes = _JWS.decode(token, key, algorithms=[*_ALGORITHMS])
    except jwt.InvalidSignatureError:
        return None
    except jwt.InvalidAlgorithmError:
        raise TokenError("token signature is invalid: signing method is invalid") from None
    # The library does not catch all that a hostile header makes Python's JSON parser raise.
    except (jwt.InvalidTokenError, ValueError, RecursionError):
        raise TokenError("token is malformed") from None
    return payload
