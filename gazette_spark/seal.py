"""Seals stored content with its length and SHA-256, and checks the seal when the content is read.

A change of one byte, by a disk or by hand, must not change an offset. So each file that we store begins with
its seal, a line of JSON with the length and the SHA-256 of the rest::

    {"length":1330,"sha256":"9f86d0…"}

Two stores use formats that Gazette's own programs also read, so their seals are in places that Gazette
ignores: after the documents in ``state.json`` of a JSON store, and in an undefined field of a serialized
checkpoint. The caller decides what to do about damage: a damaged cache counts as missing, and any other
damaged file is an error.
"""

from __future__ import annotations

import hashlib

from gazette_spark.errors import DamagedFileError

_FIELD = b"\xfa\x7f\x20"
"""Protobuf's tag of field 2047, and the length of its 32 bytes. Gazette's messages have no such field."""


def seal_line(content: bytes) -> bytes:
    """Return the line that seals content."""
    return b'{"length":%d,"sha256":"%s"}\n' % (len(content), hashlib.sha256(content).hexdigest().encode())


def seal(content: bytes) -> bytes:
    """Return the content with its seal, ready to be stored."""
    return seal_line(content) + content


def unseal(stored: bytes, path: str) -> bytes:
    """Return the content of a stored file.

    Raises:
        DamagedFileError: the file differs from what :func:`seal` returned.
    """
    end = stored.find(b"\n") + 1
    check_seal(stored[end:], stored[:end], path)
    return stored[end:]


def check_seal(content: bytes, line: bytes, path: str) -> None:
    """Check that a line is the seal of content.

    Raises:
        DamagedFileError: the line is another seal, or not a seal.
    """
    # Comparing complete seals also detects changes in the seal itself.
    if line != (expected := seal_line(content)):
        stored_seal = line[:120].decode("ascii", "replace").strip()
        problem = f"its seal is {stored_seal!r}, and that of its content is {expected.decode().strip()!r}"
        raise DamagedFileError(path, problem)


def seal_message(message: bytes, name: str) -> bytes:
    """Return a serialized protobuf message with a seal of the message and of the name it is stored under."""
    encoded = name.encode()
    digest = hashlib.sha256(b"%d %b" % (len(encoded), encoded) + message).digest()
    return message + _FIELD + digest


def unseal_message(stored: bytes, name: str, path: str) -> bytes:
    """Return a serialized message without its seal.

    Raises:
        DamagedFileError: the message differs from what :func:`seal_message` returned, or has another name.
    """
    message = stored[: -len(_FIELD) - hashlib.sha256().digest_size]
    if stored != (expected := seal_message(message, name)):
        stored_seal, expected_seal = (sealed[len(message) :].hex() for sealed in (stored, expected))
        problem = f"its seal is {stored_seal!r}, and that of its content is {expected_seal!r}"
        raise DamagedFileError(path, problem)
    return message
