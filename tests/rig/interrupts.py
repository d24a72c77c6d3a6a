"""Interrupts a call at each moment at which Python may run a signal's handler."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from types import FrameType


def interrupted(call: Callable[[], object], moment: int) -> bool:
    """Make a call, and raise KeyboardInterrupt in it; return whether it lasted until that moment.

    Python looks for signals when a function begins and when a function of C returns. These moments are
    counted in the package's code, from 1 on.
    """
    moments, lasted = count(1), False

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal lasted
        is_moment = event in ("call", "c_return") and "/gazette_spark/" in frame.f_code.co_filename
        if is_moment and next(moments) == moment:
            sys.setprofile(None)
            lasted = True
            raise KeyboardInterrupt

    # A collection would finalize objects of earlier calls here, and Python drops an interrupt of that.
    gc.disable()
    sys.setprofile(profile)
    try:
        with suppress(KeyboardInterrupt):
            call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return lasted
