"""Length and SHA-256 of what we store, checked where it is read.

A disk or a hand that changes one byte must not change an offset. So each file that we store begins with its
seal, a line of JSON with the length and the SHA-256 of the rest::

    {"length":1330,"sha256":"9f86d0…"}

Two stores use forms of Gazette, which its own programs read as well, and have their seals where Gazette does
not look: ``state.json`` of a JSON store has it behind the documents, a serialized checkpoint in a field that
the message does not have. The caller decides what damage means: a damaged cache counts as missing, any other
damaged file is an error.
"""

from __future__ import annotations

import hashlib

from gazette_spark.errors import DamagedFileError

_FIELD = b"\xfa\x7f\x20"
"""Protobuf's tag of field 2047, and the length of its 32 bytes. Gazette's messages have no such field."""


def seal_line(content: bytes) -> bytes:
    """Return the line that seals some content."""
    return b'{"length":%d,"sha256":"%s"}\n' % (len(content), hashlib.sha256(content).hexdigest().encode())


def seal(content: bytes) -> bytes:
    """Return what to store: the seal of the content, and the content."""
    return seal_line(content) + content


def unseal(stored: bytes, path: str) -> bytes:
    """Return the content of a stored file.

    Raises:
        DamagedFileError: the file is not as :func:`seal` made it.
    """
    end = stored.find(b"\n") + 1
    check_seal(stored[end:], stored[:end], path)
    return stored[end:]


def check_seal(content: bytes, line: bytes, path: str) -> None:
    """Check that a line is the seal of some content.

    Raises:
        DamagedFileError: it is another one, or none.
    """
    # The seal is made again and compared as a whole: so none of its own bytes can be changed either.
    if line != (expected := seal_line(content)):
        stored_seal = line[:120].decode("ascii", "replace").strip()
        problem = f"its seal is {stored_seal!r}, and that of its content is {expected.decode().strip()!r}"
        raise DamagedFileError(path, problem)


def seal_message(message: bytes, name: str) -> bytes:
    """Return a serialized protobuf message with a seal, of the message and of the name it is stored under."""
    encoded = name.encode()
    digest = hashlib.sha256(b"%d %b" % (len(encoded), encoded) + message).digest()
    return message + _FIELD + digest


def unseal_message(stored: bytes, name: str, path: str) -> bytes:
    """Return a serialized message without its seal.

    Raises:
        DamagedFileError: the message is not as :func:`seal_message` made it, or is stored under another name.
    """
    message = stored[: -len(_FIELD) - hashlib.sha256().digest_size]
    if stored != (expected := seal_message(message, name)):
        stored_seal, expected_seal = (sealed[len(message) :].hex() for sealed in (stored, expected))
        problem = f"its seal is {stored_seal!r}, and that of its content is {expected_seal!r}"
        raise DamagedFileError(path, problem)
    return message
