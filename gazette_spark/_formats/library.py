"""Loads the library in Rust (``native/`` in the repository), if it was built, and finds newlines with it.

It is loaded with ``ctypes``: one file serves every version of Python, and other threads run during a call.
``GAZETTE_SPARK_NATIVE=0`` in the environment of a process disables it.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gazette_spark._formats.arrays import Positions

log = logging.getLogger(__name__)

LIBRARY = Path(__file__).with_name("libgazette_json.so")
"""Path of the built library, the same on all platforms."""

SWITCH = "GAZETTE_SPARK_NATIVE"
"""Environment variable that disables the library."""

ABI_VERSION = 2
"""Version of the library's interface, as in ``native/src/ffi.rs``."""

_USUAL_LINE = 64
"""Assumed bytes per line, which decides the room for positions at the first attempt."""


@dataclass(frozen=True, slots=True)
class Library:
    """The library, or the reason why it is not used."""

    functions: ctypes.CDLL | None
    version: str = ""
    absence: str = ""


@functools.cache
def library() -> Library:
    """Load the library once in a process. Never raises, because everything works without it, only slower."""
    if os.environ.get(SWITCH) == "0":
        return Library(None, absence=f"switched off by {SWITCH}=0")
    if not LIBRARY.is_file():
        # It was not built, or the package is imported from a zip file, from which it cannot be loaded.
        return Library(None, absence="not built")
    try:
        functions = ctypes.CDLL(str(LIBRARY))
        version = functions.gazette_json_abi_version()
        if version != ABI_VERSION:
            absence = f"{LIBRARY} has interface {version}, and this package needs {ABI_VERSION}"
            return Library(None, absence=absence)
        functions.gazette_json_version.restype = ctypes.c_char_p
        # Without these declarations, ctypes would cut pointers and sizes to 32 bits.
        functions.gazette_json_decoder_new.restype = ctypes.c_void_p
        functions.gazette_json_decoder_new.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint32]
        functions.gazette_json_decoder_free.restype = None
        functions.gazette_json_decoder_free.argtypes = [ctypes.c_void_p]
        functions.gazette_json_decode.restype = ctypes.c_int64
        functions.gazette_json_decode.argtypes = [
            ctypes.c_void_p,  # decoder
            ctypes.c_char_p,  # data
            ctypes.c_size_t,
            ctypes.c_void_p,  # starts
            ctypes.c_void_p,  # ends
            ctypes.c_size_t,
            ctypes.c_void_p,  # array
            ctypes.c_void_p,  # suspects
        ]
        functions.gazette_newlines.restype = ctypes.c_int64
        functions.gazette_newlines.argtypes = [
            ctypes.c_char_p,  # data
            ctypes.c_size_t,
            ctypes.c_void_p,  # positions
            ctypes.c_size_t,
        ]
        return Library(functions, version=functions.gazette_json_version().decode())
    except (OSError, AttributeError) as error:
        # The file is for another platform, damaged, or another library.
        return Library(None, absence=f"{LIBRARY} cannot be loaded: {error}")


@functools.cache
def warn_if_missing() -> None:
    """Log once in a process that JSON is read slowly, unless the library is loaded or disabled.

    Only the process that plans a query calls this, because tasks would repeat the line in every batch.
    """
    absence = library().absence
    if absence and os.environ.get(SWITCH) != "0":
        log.warning(
            "the native JSON decoder is missing (%s): JSON is read by pyarrow.json, three to five times "
            "slower. Install the wheel for this platform, or Rust and then gazette-spark again; %s=0 in the "
            "environment keeps this line from the log",
            absence,
            SWITCH,
        )


def newlines(data: bytes) -> Positions | None:
    """Return the position of every newline, ascending; None without the library."""
    functions = library().functions
    if functions is None:
        return None
    # The library returns how many newlines there are, even if they do not fit. So a block of short lines
    # takes a second call, which fits exactly.
    room = len(data) // _USUAL_LINE + 1
    while True:
        positions = np.empty(room, np.int64)
        count = functions.gazette_newlines(data, len(data), positions.ctypes.data, room)
        if count <= room:
            return positions[:count] if count >= 0 else None
        room = count
