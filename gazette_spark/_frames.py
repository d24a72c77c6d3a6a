"""How errors arrive where Spark shows them: the text first, without the frames that lead to it.

Spark prints the traceback of whatever a data source raises, and a long one hides the line that matters. The
package's own errors say what happened and what to do, so the frames below the method that Spark calls are
left out; the log has them at level DEBUG. All other errors keep them.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

from gazette_spark.errors import GazetteError

log = logging.getLogger("gazette_spark")

T = TypeVar("T")


def short_errors(cls: type[T]) -> type[T]:
    """Have the public methods that a class defines raise the package's errors without the frames below."""
    for name, member in list(vars(cls).items()):
        if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
            shortened = _generating(member) if inspect.isgeneratorfunction(member) else _calling(member)
            setattr(cls, name, shortened)
    return cls


def short(error: GazetteError) -> GazetteError:
    """Return the error without frames and causes, which the log gets."""
    log.debug("frames of an error that Spark shows without them", exc_info=error)
    error.__cause__ = None
    error.__suppress_context__ = True
    return error.with_traceback(None)


def _calling(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the method's own
        try:
            return method(*args, **kwargs)
        except GazetteError as error:
            raise short(error) from None

    return call


def _generating(method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @wraps(method)
    def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:  # noqa: ANN401 - as above
        try:
            yield from method(*args, **kwargs)
        except GazetteError as error:
            raise short(error) from None

    return generate
