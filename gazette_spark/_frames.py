"""Shortens errors that Spark shows: hides our internal frames, and puts ``deltalake``'s texts on one line.

Spark prints the traceback of any error that a data source raises, and a long one hides the line that matters.
The package's own errors say what happened and what to do, so they lose the frames below the method that Spark
calls, which are logged at level DEBUG. All other errors keep their frames.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

from gazette_spark.errors import GazetteError

log = logging.getLogger("gazette_spark")

T = TypeVar("T")

_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")
_NATIVE_FRAMES = re.compile(r"^ *0: <unknown>$.*", re.MULTILINE | re.DOTALL)
"""Stack frames without names, which end the text of some ``deltalake`` errors."""


def hide_internal_frames(cls: type[T]) -> type[T]:
    """Make the public methods of a class raise the package's errors without internal frames."""
    for name, member in list(vars(cls).items()):
        if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
            shortened = _generating(member) if inspect.isgeneratorfunction(member) else _calling(member)
            setattr(cls, name, shortened)
    return cls


def without_internal_frames(error: GazetteError) -> GazetteError:
    """Return the error without its frames and causes, after logging them."""
    log.debug("frames of an error that Spark shows without them", exc_info=error)
    error.__cause__ = None
    error.__suppress_context__ = True
    return error.with_traceback(None)


def _calling(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the method's arguments
        try:
            return method(*args, **kwargs)
        except GazetteError as error:
            raise without_internal_frames(error) from None

    return call


def _generating(method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @wraps(method)
    def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:  # noqa: ANN401 - as above
        try:
            yield from method(*args, **kwargs)
        except GazetteError as error:
            raise without_internal_frames(error) from None

    return generate


def deltalake_text(error: Exception) -> str:
    """Return the text of a ``deltalake`` error on one line. Originally, it is a colored tree of causes."""
    text = _NATIVE_FRAMES.sub("", _TERMINAL_CODES.sub("", str(error)))
    lines = (line.strip(" \u21b3") for line in text.splitlines())
    return ": ".join(line for line in lines if line).removeprefix("Kernel error -> ")
