"""Exports names of a package that are imported only when they are used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_exports(
    package: str, modules: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Export names of a package's modules without importing the modules (PEP 562).

    ``import gazette_spark`` must import neither Spark nor gRPC, and a Spark worker must not import the client
    to read a column. Type checkers see the same names in the package's ``TYPE_CHECKING`` block; a test
    compares the two.

    Args:
        package: The package's name.
        modules: Exported names, by the module that defines them, relative to the package as in an import
            statement.

    Returns:
        The package's ``__getattr__``, ``__dir__`` and ``__all__``.
    """
    home = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = home[name] if home[name].startswith(".") else f".{home[name]}"
        value = getattr(importlib.import_module(module, package), name)
        setattr(sys.modules[package], name, value)  # The next use does not call this function.
        return value

    return load, lambda: sorted(home), sorted(home)
