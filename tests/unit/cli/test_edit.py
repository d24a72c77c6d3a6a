"""An edit is repeated until it can be used, cancelled by leaving it, and never lost."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from gazette_spark.cli.edit import edit_until_applied
from gazette_spark.errors import EtcdTransactionFailedError, ProtocolError


class User:
    """Edits by a script: each call of the editor replaces the text by the next one."""

    def __init__(self, folder: Path, *texts: str) -> None:
        self._folder = folder
        for at, text in enumerate(texts):
            (folder / f"text-{at}").write_text(text)
        program = folder / "editor"
        program.write_text(
            f'#!/bin/sh\ncd "{folder}"\nn=$(ls seen-* 2>/dev/null | wc -l)\ncp "$1" seen-$n\n'
            '[ -e text-$n ] && cat text-$n > "$1"\nexit 0\n'
        )
        program.chmod(0o755)
        self.environ = {"EDITOR": str(program)}
        self.parsed: list[str] = []
        self.applied: list[str] = []

    def seen(self, at: int) -> str:
        """Return what the editor was shown."""
        return (self._folder / f"seen-{at}").read_text()

    def parse(self, text: str) -> None:
        """Refuse texts that say so."""
        self.parsed.append(text)
        if "bad" in text:
            raise ProtocolError("journals", "it is bad\nvery bad")

    def apply(self, text: str) -> int:
        """Fail for texts that say so."""
        self.applied.append(text)
        if "late" in text:
            raise EtcdTransactionFailedError("a/journal")
        return 7

    def edit(self, text: str = "old\n") -> int | None:
        """Run the edit."""
        return edit_until_applied(text, parse=self.parse, apply=self.apply, environ=self.environ)


def test_an_edit_is_applied_without_the_hints(tmp_path: Path) -> None:
    """Lines that are for the user are left out, other comments stay."""
    user = User(tmp_path, "#⚙ a hint\n# mine\nnew\n#⚠ another\n")
    assert user.edit() == 7
    assert user.applied == ["# mine\nnew\n"]
    assert user.seen(0).startswith("#⚙ ")
    assert user.seen(0).endswith("\nold\n")


def test_a_refused_text_is_shown_again_with_the_reason(tmp_path: Path) -> None:
    """All lines of it, none of which are read back."""
    user = User(tmp_path, "bad\n", "good\n")
    assert user.edit() == 7
    assert "#⚠ journals: it is bad\n#⚠ very bad\nbad\n" in user.seen(1)
    assert user.applied == ["good\n"]


@pytest.mark.parametrize(
    "text", ["", " \n\n", "old\n", "#⚙ hint\nold\n"], ids=["empty", "blank", "same", "hints"]
)
def test_leaving_cancels(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is parsed or applied, and there is nothing to keep."""
    user = User(tmp_path, text)
    assert user.edit() is None
    assert (user.parsed, user.applied) == ([], [])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("texts", [("bad\n", "bad\n"), ("late\n",)], ids=["given up", "raced"])
def test_what_cannot_be_used_is_kept(
    tmp_path: Path, texts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A text that cannot be used is kept in a file, which is named."""
    user = User(tmp_path, *texts)
    if texts == ("late\n",):
        with pytest.raises(EtcdTransactionFailedError):
            user.edit()
    else:
        assert user.edit() is None
    found = re.search(r"kept in (.*)", capsys.readouterr().err)
    assert found is not None
    kept = Path(found[1])
    assert kept.read_text() == texts[-1]
    kept.unlink()


def test_an_editor_that_fails(tmp_path: Path) -> None:
    """The exit code of an editor that fails is told."""
    user = User(tmp_path)
    user.environ = {"GAZ_EDITOR": "exit 3 #", "EDITOR": "true"}
    with pytest.raises(click.ClickException, match="exit code 3"):
        user.edit()
