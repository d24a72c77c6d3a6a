"""The examples in the section on operating of docs/guides/applications.md run, in their order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click
import pytest

from gazette_spark import Client
from gazette_spark.cli.consumer import load_application
from gazette_spark.cli.shards import shards
from gazette_spark.client import journal_spec
from gazette_spark.consumer import LocalHost, ShardServer
from gazette_spark.consumer.shard_yaml import parse_shard_yaml
from gazette_spark.consumer.specs import recovery_log
from tests.rig.brokers import BrokerHandle
from tests.rig.consumers import create_journals
from tests.rig.gazctl import clean_environment

pytestmark = pytest.mark.brokers("embedded")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "applications.md").read_text()
SECTION = PAGE[PAGE.index("## Serve and operate") :]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\b[^\n]*\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)


@pytest.fixture
def environment(broker: BrokerHandle, fresh_prefix: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    program = tmp_path / "bin" / "gazette-spark"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gazette_spark.cli "$@"\n')
    program.chmod(0o755)
    specs = [each.upsert for each in parse_shard_yaml(blocks("yaml")[0].replace("shop/", fresh_prefix))]
    (application,) = re.findall(r"consumer serve (\S+)", SECTION)
    with Client(broker.endpoint) as client, ShardServer() as server, ExitStack() as stack:
        create_journals(client, *(source.journal for spec in specs for source in spec.sources))
        log = {"content-type": "application/x-gazette-recoverylog"}
        client.create_journals(*(journal_spec(recovery_log(spec), labels=log) for spec in specs))
        host = stack.enter_context(LocalHost(load_application(application), client, specs))
        host.serve_at(server.endpoint)
        server.start(host)
        yield {
            **clean_environment(),
            "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "BROKER_ADDRESS": broker.endpoint,
            "CONSUMER_ADDRESS": server.endpoint,
        }


def test_the_examples_run(environment: dict[str, str], tmp_path: Path, fresh_prefix: str) -> None:
    block = blocks("sh")[1] + "gazette-spark shards list -o yaml\n"
    done = subprocess.run(
        ["/bin/sh", "-eu", "-c", block.replace("shop/", fresh_prefix)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    changes = parse_shard_yaml(done.stdout[done.stdout.index("common:") :])
    assert [each.upsert.max_txn_duration.ToSeconds() for each in changes] == [2, 1]


def test_every_command_is_on_the_page() -> None:
    shown = set(re.findall(r"gazette-spark shards ([a-z-]+)", "".join(blocks("sh"))))
    assert shown == set(shards.list_commands(click.Context(shards)))
