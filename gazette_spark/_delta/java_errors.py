"""Shortens errors before Spark's JVM gets them back from a function of ``foreachBatch``.

If the function raises an error of a call to the JVM, Spark searches its text for signs of a stopped
query, with a pattern that needs stack for each character. An ordinary Java stack trace overflows the stack.
Then the console shows 1,000 lines, and the query never ends as stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Protocol, TypeVar

from gazette_spark._frames import without_internal_frames
from gazette_spark.errors import GazetteError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("gazette_spark")

MAX_TEXT = 900
"""Number of characters that Spark's pattern can read within the stack of its thread."""

MAX_CAUSES = 20
"""Maximum number of causes of an exception to examine."""

INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
"""Exceptions by which Spark recognizes a stopped query."""


TRACEBACK = "Traceback (most recent call last):"


class BatchSink(Protocol):
    """A sink whose calls write batches."""

    @property
    def app_id(self) -> str: ...


SinkT = TypeVar("SinkT", bound=BatchSink)

WriteBatch = Callable[[SinkT, "DataFrame", int], None]
"""A method that ``foreachBatch`` calls."""


def short_batch_errors(write: WriteBatch[SinkT]) -> WriteBatch[SinkT]:
    """Make a sink's function for ``foreachBatch`` raise its errors in a form that Spark can show."""

    @wraps(write)
    def call(self: SinkT, df: DataFrame, batch_id: int) -> None:
        try:
            write(self, df, batch_id)
        except GazetteError as error:
            # Spark prints the traceback of any error that ends a query. Errors of this package are complete
            # without it.
            raise without_internal_frames(error) from None
        except Exception as error:
            log.info("batch failed app_id=%s batch_id=%d", self.app_id, batch_id, exc_info=True)
            if (shorter := short_java_error(error)) is None:
                raise
            raise shorter from None

    return call


def short_java_error(error: Exception) -> Exception | None:
    """Return an error with the texts of Java's exceptions but no stack, or None for other errors."""
    if type(error).__name__ != "Py4JJavaError":
        return None  # Spark Connect's package has no py4j.
    from py4j.protocol import Py4JError, Py4JJavaError

    texts: list[str] = []
    try:
        cause = error.java_exception  # type: ignore[attr-defined]
        while cause is not None and len(texts) < MAX_CAUSES:
            texts.append(str(cause.toString()))
            cause = cause.getCause()
    except Py4JError:
        return None
    # Spark searches this text for classes of interruptions, to distinguish a stopped query from a failed one.
    # Therefore such a name is kept, wherever it occurs.
    text = short_text(texts)

    def shown(_self: object) -> str:
        return f"An error occurred while calling Spark: {text}"

    # Spark recognizes the error by this name.
    names = {"__str__": shown, "__module__": Py4JJavaError.__module__, "__qualname__": "Py4JJavaError"}
    kind = type("Py4JJavaError", (Py4JJavaError,), names)
    made: Exception = kind(error.errmsg, error.java_exception)  # type: ignore[attr-defined]
    return made


def first_line(error: Exception) -> str:
    """Return the line of an error that says what happened, without a stack or the text of a query."""
    # The text of a ParseException begins with an empty line.
    return without_frames(str(short_java_error(error) or error)).strip().partition("\n")[0]


def without_frames(text: str) -> str:
    r"""Return a text without the frames of a Python traceback, which a task's error contains.

    >>> without_frames("a.PythonException: Traceback (most recent call last):\n  File x\n    f()\nb.C: no")
    'a.PythonException: b.C: no'
    """
    before, marker, trace = text.rpartition(TRACEBACK)
    if not marker:
        return text
    lines = trace.splitlines()
    frames = [at for at, line in enumerate(lines) if line.startswith("  File ")]
    behind = lines[frames[-1] + 1 :] if frames else lines
    while behind and behind[0].startswith("    "):
        behind = behind[1:]  # Skip the line of code and the marks below it.
    return before.partition(TRACEBACK)[0] + "\n".join(behind).strip()


def short_text(texts: list[str]) -> str:
    """Return the texts of an exception and its causes within :data:`MAX_TEXT` characters.

    >>> short_text(["a.B: no", "a.C: because"])
    'a.B: no; caused by a.C: because'
    """
    first, *causes = (without_frames(text) for text in texts)
    last = f"; caused by {causes[-1]}"[: MAX_TEXT * 2 // 3] if causes else ""
    interruption = next((name for name in INTERRUPTIONS for text in texts if name in text), "")
    sign = f" ({interruption})" if interruption and interruption not in last else ""
    return first[: MAX_TEXT - len(last) - len(sign)] + last + sign
