"""Renders path postfix templates: those of Gazette's that name fragments by date, Hive style.

Gazette accepts any Go text/template. This broker supports the one form seen in practice, which formats the
time of the fragment's first append::

    date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}/hour={{ .Spool.FirstAppendTime.Format "15" }}
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol.fragments import POSTFIX_BYTES
from gazette_spark.protocol.names import validate_path

_ACTION = re.compile(r"\{\{-?(.*?)\}\}", re.DOTALL)
_TIME_FORMAT = re.compile(r"""\.Spool\.FirstAppendTime\.Format\s+["`]([^"`]*)["`]""")
_LAYOUT_TOKEN = re.compile("2006|01|02|15|04|05")
_STRFTIME = {"2006": "%Y", "01": "%m", "02": "%d", "15": "%H", "04": "%M", "05": "%S"}

WHERE = "JournalSpec.fragment.path_postfix_template"


def render_postfix(template: str, first_append_time: float) -> str:
    """Return the path postfix, in UTC, of a spool whose first append was at this Unix time.

    Raises:
        ProtocolError: the template is not of the supported form, or its result is not a clean path.

    >>> render_postfix('date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}', 1795240680.0)
    'date=2026-11-21'
    """
    moment = datetime.fromtimestamp(first_append_time, UTC)

    def render(match: re.Match[str]) -> str:
        action = match[1].removesuffix("-").strip()
        time_format = _TIME_FORMAT.fullmatch(action)
        if time_format is None:
            example = '{{ .Spool.FirstAppendTime.Format "2006-01-02" }}'
            raise ProtocolError(WHERE, f"this broker supports only {example}, got {action!r}")
        return _LAYOUT_TOKEN.sub(lambda token: moment.strftime(_STRFTIME[token[0]]), time_format[1])

    text = _ACTION.sub(render, template)
    if "{{" in text or "}}" in text:
        raise ProtocolError(WHERE, f"unbalanced braces in {template!r}")
    # This is as strict as a fragment's own check. Otherwise a template would pass here and fail when a
    # fragment is stored.
    validate_path(WHERE, text, *POSTFIX_BYTES)
    return text
