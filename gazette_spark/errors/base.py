"""The base class of all errors of the package, and the errors for a caller's slip."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, ClassVar


def _rebuild(cls: type[GazetteError], fields: dict[str, Any]) -> GazetteError:
    error = cls.__new__(cls)
    error.__dict__.update(fields)
    return error


class GazetteError(Exception):
    """Base of all errors raised on purpose.

    ``retryable`` says whether the same call may succeed later with no change by the caller. It is
    read in one place, ``client._transport.retry``.
    """

    retryable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), dict(self.__dict__))


@dataclass(eq=False)
class PlainError(GazetteError):
    """Base of errors whose text is their problem."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(eq=False)
class OptionError(GazetteError, ValueError):
    """An option is unknown, malformed, or contradicts another."""

    option: str
    got: str
    expected: str

    def __str__(self) -> str:
        return f"option {self.option!r}: got {self.got}; expected {self.expected}"


@dataclass(eq=False)
class ProtocolError(GazetteError, ValueError):
    """A message breaks a rule of the Gazette protocol; it is either from the broker or about to be sent."""

    where: str
    """Dotted path of the field, e.g. ``JournalSpec.fragment.length``, or the rpc."""
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


@dataclass(eq=False)
class WatchUnsupportedError(ProtocolError):
    """A broker ends its listings where a watch goes on: it is older than Gazette 0.100."""


@dataclass(eq=False)
class MissingZonesError(GazetteError):
    """A named time zone cannot be looked up: rows would differ from one machine to the next."""

    zone: str

    def __str__(self) -> str:
        return (
            f"time zone {self.zone!r} cannot be looked up: this machine has no time zone database; "
            "install the system's, or the package tzdata"
        )


@dataclass(eq=False)
class MissingModuleError(GazetteError, ImportError):
    """The Python that runs Spark's workers is not the one that has the package's dependencies."""

    module: str
    interpreter: str = field(default_factory=lambda: sys.executable)

    def __str__(self) -> str:
        return (
            f"Spark's Python workers run {self.interpreter}, which has no module {self.module!r}. Before the "
            "session is made, set PYSPARK_PYTHON to the Python that gazette-spark[spark] is installed in. In "
            "the driver's program: os.environ['PYSPARK_PYTHON'] = sys.executable"
        )


@dataclass(eq=False)
class MissingPackageError(GazetteError, ImportError):
    """A package that a part of this one needs is not installed."""

    problem: str
    install: str = "gazette-spark[spark]"

    def __str__(self) -> str:
        return f"{self.problem}: pip install {self.install!r} (for {sys.executable})"


class InputError(PlainError, ValueError):
    """Input of a command is not of the form it was said to have."""


@dataclass(eq=False)
class JsonError(GazetteError, ValueError):
    """Text is not JSON, or holds what no value may hold: see ``strict_json``."""

    problem: str

    def __str__(self) -> str:
        return f"not JSON ({self.problem})"


@dataclass(eq=False)
class DamagedFileError(GazetteError):
    """A stored file is not what was written: its length or its SHA-256 is another one."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path} is damaged: {self.problem}. Restore it from a copy"


@dataclass(eq=False)
class ClosedError(GazetteError, ValueError):
    """A client, reader or append is used after its end, or in a process that did not make it."""

    what: str
    problem: str

    def __str__(self) -> str:
        return f"{self.what}: {self.problem}"
