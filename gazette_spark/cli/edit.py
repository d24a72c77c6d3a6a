"""Edit a text in the user's editor, again and again until it can be used or is left alone."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from gazette_spark.errors import GazetteError

_OURS = re.compile(r"^#[⚙⚠].*\n?", re.MULTILINE)
"""Lines that are written for the user, and not read back."""

_HEADER = """\
#⚙ Edit the specs below. Lines that begin with '#⚙' or '#⚠' are left out.
#⚙ An empty text, or one that was not changed, cancels.
"""


def edit_until_applied(
    text: str,
    *,
    parse: Callable[[str], object],
    apply: Callable[[str], int],
    environ: Mapping[str, str] = os.environ,
) -> int | None:
    """Let the user edit ``text`` until ``parse`` accepts it, then ``apply`` it and return the result.

    Returns:
        None if the user left the text empty or as it was.

    Raises:
        GazetteError: applying failed; the edited text is kept in a file, whose path is printed.
    """
    problem = ""
    while True:
        edited = _edit(text, problem, environ)
        if not edited.strip() or edited == text:
            if problem:
                _keep(edited)
            return None
        text = edited
        try:
            parse(text)
        except GazetteError as error:
            problem = str(error)
            continue
        try:
            return apply(text)
        except GazetteError:
            _keep(text)
            raise


def _edit(text: str, problem: str, environ: Mapping[str, str]) -> str:
    shown = "".join(f"#⚠ {line}\n" for line in problem.splitlines())
    editor = environ.get("GAZ_EDITOR") or environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="gazette-spark-edit-") as folder:
        path = Path(folder, "specs.yaml")
        path.write_text(_HEADER + shown + text, encoding="utf-8")
        # A shell, since editors come with arguments: EDITOR='code --wait'.
        done = subprocess.run(["/bin/sh", "-c", f'{editor} "$1"', "sh", str(path)], check=False)
        if done.returncode:
            raise click.ClickException(f"the editor {editor!r} ended with exit code {done.returncode}")
        return _OURS.sub("", path.read_text(encoding="utf-8"))


def _keep(text: str) -> None:
    with tempfile.NamedTemporaryFile(
        "w", prefix="gazette-spark-edit-", suffix=".yaml", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    click.echo(f"the edited text is kept in {file.name}", err=True)
