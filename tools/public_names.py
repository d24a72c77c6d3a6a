"""Writes the public interface to ``docs/reference/public_names.txt``, one line per name with its signature.

``make generated`` runs this module, and a test fails if the file differs from the code. So a change of the
public interface is visible in reviews, and reminds its author of the changelog.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "public_names.txt"

PUBLIC_MODULES = (
    "gazette_spark",
    "gazette_spark.broker",
    "gazette_spark.client",
    "gazette_spark.consumer",
    "gazette_spark.errors",
    "gazette_spark.lag",
    "gazette_spark.listener",
    "gazette_spark.message",
    "gazette_spark.offsets",
    "gazette_spark.protocol",
    "gazette_spark.replicated_log",
    "gazette_spark.session",
    "gazette_spark.sink",
    "gazette_spark.source",
    "gazette_spark.strict_json",
    "gazette_spark.testing",
)
"""Modules that users may import from. Everything else may change at any time."""

PLUMBING = (
    "TYPE_CHECKING",
    "VERSION",
    "annotations",
    "lazy_exports",
)
"""Names that public packages import only for their own use."""


@cache
def _package() -> Any:  # noqa: ANN401 - griffe's types are incomplete
    return griffe.load("gazette_spark", search_paths=[ROOT])


def public_names(module: str, package: Any = None) -> dict[str, Any]:  # noqa: ANN401
    """Return the names that users may import from a public module, with griffe's objects.

    A package exports its definitions and its imports from within. A module exports only its definitions.

    Args:
        module: One of :data:`PUBLIC_MODULES`.
        package: The package as griffe loaded it, by default from these files.
    """
    package = package or _package()
    if module == "gazette_spark.protocol":  # Gazette's own messages, by the names of its .proto files.
        return {name: package["protocol"][name] for name in ("consumer_pb2", "protocol_pb2")}
    found = package[module.partition(".")[2]] if "." in module else package
    names: dict[str, Any] = {}
    for name, member in found.members.items():
        if name.startswith("_") or name in PLUMBING:
            continue
        if member.is_alias:
            if found.is_init_module and _is_ours(member):
                names[name] = member
        elif member.is_class or member.is_function:
            names[name] = member
    return dict(sorted(names.items()))


def _is_ours(alias: Any) -> bool:  # noqa: ANN401
    """Return whether a name comes from this package, instead of another one that it imports."""
    try:
        return str(alias.final_target.path).startswith("gazette_spark.")
    except griffe.AliasResolutionError:
        return False


def lines() -> Iterator[str]:
    """Yield the lines of the page."""
    for module in PUBLIC_MODULES:
        yield f"# {module}"
        for name, member in public_names(module).items():
            yield from _described(name, member)
        yield ""


def _described(name: str, member: Any) -> Iterator[str]:  # noqa: ANN401
    target = member.final_target if member.is_alias else member
    if target.is_function:
        yield target.signature(name=name)
    elif target.is_class:
        yield name if name.endswith("Error") else target.signature(name=name)
        for method, described in sorted(target.members.items()):
            if not method.startswith("_") and described.is_function:
                yield f"    {described.signature(name=method)}"
            elif not method.startswith("_") and described.is_attribute and not name.endswith("Error"):
                yield f"    {method}: {described.annotation}" if described.annotation else f"    {method}"
    else:
        yield name


def main() -> None:
    """Write the page."""
    PAGE.write_text("\n".join(lines()))


if __name__ == "__main__":
    main()
