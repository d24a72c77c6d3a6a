"""Names as SQL takes them."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Return a name as SQL and ``col`` take it, whatever it holds."""
    return "`" + name.replace("`", "``") + "`"
