"""For the site's build: roles of reStructuredText in docstrings become Markdown.

Docstrings name code as ``:class:`~a.b.C` ``, which editors and :func:`help` show well. Markdown has no roles.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":(?:py:)?(?:class|func|meth|mod|data|attr|obj):`(~?)([^`]+)`")


class Roles(Extension):
    """Replaces roles in each docstring that the site shows."""

    def on_object(self, *, obj: Object, **_kwargs: Any) -> None:  # noqa: ANN401 - griffe's own
        """Replace the roles of an object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(in_markdown, obj.docstring.value)


def in_markdown(role: re.Match[str]) -> str:
    """Return the code that a role names; after ``~``, its last word."""
    short, name = role.groups()
    return f"`{name.rsplit('.', 1)[-1] if short else name}`"
