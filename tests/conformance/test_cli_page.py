"""The examples of docs/reference/cli.md run, in their order, on each broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gazette_spark.cli.journals import journals
from tests.rig.brokers import BrokerHandle
from tests.rig.gazctl import clean_environment

pytestmark = pytest.mark.brokers("embedded")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def environment(broker: BrokerHandle, tmp_path: Path) -> dict[str, str]:
    program = tmp_path / "bin" / "gazette-spark"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gazette_spark.cli "$@"\n')
    program.chmod(0o755)
    return {
        **clean_environment(),
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "BROKER_ADDRESS": broker.endpoint,
        "FILE_ROOT": str(broker.file_root),
    }


def test_the_examples_run(environment: dict[str, str], tmp_path: Path, fresh_prefix: str) -> None:
    name, app = fresh_prefix, fresh_prefix.strip("/")

    def fresh(text: str) -> str:
        return (
            re.sub(r"\bshop/", name, text)
            .replace("app=shop", f"app={app}")
            .replace("value: shop", f"value: {app}")
        )

    (tree,) = blocks("yaml")
    (tmp_path / "shop.yaml").write_text(fresh(tree))
    printed = []
    for block in blocks("sh"):
        done = subprocess.run(
            ["/bin/sh", "-eu", "-c", fresh(block)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert '{"id": 1}\n{"id": 2}\n' in printed[1]
    assert '\n{"id": 3}\n{"spec":' in printed[1]
    assert sorted((tmp_path / "all.txt").read_text().splitlines()) == sorted(
        ["click 1", "click 2", '{"id": 1}', '{"id": 2}']
    )


def test_every_command_is_on_the_page() -> None:
    context = click.Context(journals)
    shown = set(re.findall(r"gazette-spark journals ([a-z-]+)", "".join(blocks("sh"))))
    assert shown == set(journals.list_commands(context))
