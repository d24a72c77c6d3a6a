"""``gazctl shards`` and ``gazette-spark shards`` do the same to a consumer of ours."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from google.protobuf import text_format

from gazette_spark import Client
from gazette_spark.broker import ServerTls
from gazette_spark.cli.main import main
from gazette_spark.client import journal_spec
from gazette_spark.consumer import ShardServer, shard_spec
from gazette_spark.consumer.client import ShardClient
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import recoverylog_pb2 as pr
from tests.rig.brokers import BrokerHandle
from tests.rig.certificates import Certificates
from tests.rig.gazctl import clean_environment, find_binary
from tests.rig.still_host import StillHost
from tests.waiting import wait_until

pytestmark = pytest.mark.brokers("embedded")

TIMEOUT_S = 60.0

KEYS = base64.b64encode(b"a key of the test").decode()

SPECS = """
common:
  recovery_log_prefix: {prefix}logs
  hint_prefix: /gazette/hints
  hint_backups: 1
  max_txn_duration: 1s
  labels: [{{name: app, value: shop}}]
shards:
  - id: shard-000
    sources: [{{journal: {prefix}orders}}]
  - id: shard-001
    sources: [{{journal: {prefix}clicks, min_offset: 3}}, {{journal: {prefix}orders}}]
    hot_standbys: 1
    labels: [{{name: zone, value: ""}}]
  - id: shard-002
    sources: [{{journal: {prefix}clicks}}]
    disable: true
"""


@dataclass(frozen=True)
class Consumer:
    broker: BrokerHandle
    server: ShardServer
    host: StillHost
    client: ShardClient
    prefix: str

    @property
    def environment(self) -> dict[str, str]:
        return {"CONSUMER_ADDRESS": self.server.endpoint, "BROKER_ADDRESS": self.broker.endpoint}

    def gazctl(self, *args: str, given: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(find_binary("gazctl")), "shards", *args],
            input=given,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**clean_environment(), **self.environment, **environ},
        )

    def run(self, *args: str, given: str = "", **environ: str) -> Result:
        return CliRunner(env={**self.environment, **environ}).invoke(main, ["shards", *args], input=given)

    def both(self, *args: str) -> tuple[str, str]:
        ours, theirs = self.run(*args), self.gazctl(*args)
        assert ours.exit_code == 0, ours.stderr
        assert theirs.returncode == 0, theirs.stderr
        return ours.stdout, theirs.stdout


@pytest.fixture
def consumer(broker: BrokerHandle, fresh_prefix: str) -> Iterator[Consumer]:
    ndjson, log = ({"content-type": f"application/x-{kind}"} for kind in ("ndjson", "gazette-recoverylog"))
    with Client(broker.endpoint) as client:
        client.create_journals(
            *(journal_spec(f"{fresh_prefix}{name}", labels=ndjson) for name in ("clicks", "orders")),
            *(journal_spec(f"{fresh_prefix}logs/shard-00{at}", labels=log, length=1024) for at in range(3)),
        )
    with ShardServer() as server, ShardClient(server.endpoint) as shards:
        host = StillHost(server.endpoint)
        server.start(host)
        yield Consumer(broker, server, host, shards, fresh_prefix)


@pytest.fixture
def shop(consumer: Consumer) -> Consumer:
    done = consumer.gazctl("apply", "--specs", "-", given=SPECS.format(prefix=consumer.prefix))
    assert done.returncode == 0, done.stderr
    return consumer


def test_both_apply_the_same(consumer: Consumer) -> None:
    text = SPECS.format(prefix=consumer.prefix)
    ours = consumer.run("apply", "--dry-run", "-o", "proto", given=text)
    theirs = consumer.gazctl("apply", "--dry-run", "--specs", "-", given=text)
    requests = [text_format.Parse(each.stdout, pc.ApplyRequest()) for each in (ours, theirs)]
    for request in requests:
        for change in request.changes:
            change.upsert.min_txn_duration.SetInParent()
    assert requests[0] == requests[1]
    logs = f"{consumer.prefix}logs/shard-000"
    for mistyped, shown in (
        (text.replace("orders", "returns"), "returns"),
        (text.replace(f"{consumer.prefix}clicks", logs), logs),
        (text.replace("/gazette/hints", "hints"), "hints"),
    ):
        ours, theirs = consumer.run("apply", given=mistyped), consumer.gazctl("apply", given=mistyped)
        assert shown in ours.stderr
        assert shown in theirs.stderr
    assert consumer.client.list_shards() == []


def test_both_list_the_same(shop: Consumer) -> None:
    shop.host.fail("shard-000", "boom")
    for selector in ("", "id in (shard-000,shard-002)", "zone"):
        ours, theirs = shop.both("list", "-l", selector, "-o", "yaml")
        assert ours.replace("'", '"') == theirs
        ours, theirs = shop.both("list", "-l", selector, "-o", "json")
        assert json.loads(ours)["shards"] == json.loads(theirs)["shards"]
        ours, theirs = shop.both("list", "-l", selector, "-o", "proto")
        found = [text_format.Parse(each, pc.ListResponse()) for each in (ours, theirs)]
        for each in found[1].shards:
            each.spec.min_txn_duration.SetInParent()
            each.spec.labels.SetInParent()
        assert list(found[0].shards) == list(found[1].shards)


def cells(table: str) -> list[list[str]]:
    lines = [line.replace("│", " ").split() for line in table.splitlines()]
    return sorted(line for line in lines if line and line[0].startswith("shard-"))


def test_both_show_the_same_table(shop: Consumer) -> None:
    orders, clicks = f"{shop.prefix}orders", f"{shop.prefix}clicks"
    shop.host.move("shard-000", {orders: 4})
    with Client(shop.broker.endpoint) as client:
        client.append(orders, b"0123456\n")
    args = ("list", "--primary", "--replicas", "--rf", "-L", "app", "-L", "zone")
    ours, theirs = (cells(each) for each in shop.both(*args))
    assert ours[0] == ["shard-000", "PRIMARY", "1", "consumer:PRIMARY", "shop", "<none>"]
    assert ours == theirs
    shop.host.fail("shard-001", "boom")
    failed = shop.run("list", "--lag", "-o", "jsonl")
    rows = {row["id"]: row for row in map(json.loads, failed.stdout.splitlines())}
    assert rows["shard-000"]["lag"] == {orders: 4}
    assert rows["shard-001"]["lag"] == rows["shard-002"]["lag"] == {}
    assert rows["shard-001"]["errors"] == ["boom"]
    lag = [cells(each)[0][-1] for each in shop.both("list", "--lag", "-l", "id=shard-000")]
    assert lag[1] == f"{orders}:4"
    assert lag[0] == f"{orders}=4"
    assert clicks not in lag[0]


def test_an_edit_by_gazctl_is_applied(shop: Consumer) -> None:
    shop.gazctl("edit", "-l", "id=shard-000", GAZ_EDITOR="sed -i s/1s/2s/")
    (edited,) = shop.client.list_shards("id=shard-000")
    assert edited.spec.max_txn_duration.ToSeconds() == 2


def test_shards_are_listed_edited_and_applied(shop: Consumer) -> None:
    ours, theirs = shop.both("list", "-l", "id=shard-001", "-o", "yaml")
    changed = yaml.safe_load(ours)
    changed["common"]["hot_standbys"] = 2
    assert shop.gazctl("apply", "--specs", "-", given=yaml.safe_dump(changed)).returncode == 0
    stale = shop.run("apply", given=theirs)
    assert "ETCD_TRANSACTION_FAILED" in stale.stderr
    (listed,) = shop.client.list_shards("id=shard-001")
    assert listed.spec.hot_standbys == 2
    delete = f"shards: [{{id: shard-001, delete: true, revision: {listed.mod_revision}}}]"
    done = shop.run("apply", "-o", "json", given=delete)
    assert json.loads(done.stdout)["changes"] == [{"id": "shard-001", "change": "delete"}]
    assert [each.spec.id for each in shop.client.list_shards()] == ["shard-000", "shard-002"]


@pytest.mark.parametrize("program", ["ours", "gazctl"])
def test_failed_shards_start_again(shop: Consumer, program: str) -> None:
    def unassign(*args: str) -> None:
        if program == "gazctl":
            assert shop.gazctl("unassign", *args).returncode == 0
        else:
            assert shop.run("unassign", *args).exit_code == 0

    shop.host.fail("shard-000", "boom")
    running, failed = shop.host.shards["shard-001"], shop.host.shards["shard-000"]
    unassign("-l", "app=shop", "--failed", "--dry-run")
    assert shop.host.shards["shard-000"] is failed
    unassign("-l", "app=shop", "--failed")
    assert shop.host.shards["shard-000"] is not failed
    assert shop.host.shards["shard-001"] is running
    unassign("-l", "id=shard-001")
    assert shop.host.shards["shard-001"] is not running


def test_stat_waits_for_an_append(shop: Consumer) -> None:
    orders = f"{shop.prefix}orders"
    waiting = shop.run("--timeout", "0.3", "stat", "shard-000", "-r", f"{orders}=7")
    assert waiting.exit_code == 1
    shop.host.move("shard-000", {orders: 7})
    done = shop.run("stat", "shard-000", "-r", f"{orders}=7")
    assert done.stdout.split() == ["JOURNAL", "READ_THROUGH", "PUBLISH_AT", orders, "7"]
    assert json.loads(shop.run("stat", "shard-000", "-o", "json").stdout) == {
        "shard": "shard-000",
        "read_through": {orders: 7},
        "publish_at": {},
    }
    assert shop.run("stat", "shard-000", "-r", orders).exit_code == 2


def test_a_change_wants_to_know_of_which_shards(shop: Consumer) -> None:
    """An empty selector, or value, must never mean all shards."""
    for selector in ("", "id="):
        done = shop.run("unassign", "-l", selector)
        assert done.exit_code == 2
        assert "write 'id'" in done.stderr
    done = shop.run("unassign", "-l", "id=shard-9", "--failed")
    assert (done.exit_code, done.stderr) == (0, "no failed shards match 'id=shard-9'\n")


def test_lag_is_judged_beside_that_of_queries(shop: Consumer) -> None:
    """``lag show`` has a group for each shard; it needs several polls to see progress."""
    orders = f"{shop.prefix}orders"
    with Client(shop.broker.endpoint) as client:
        client.append(orders, b"0123456\n")
    shop.host.move("shard-000", {orders: 3})
    args = ["--format", "json", "-l", f"prefix={shop.prefix}", "--consumer", shop.server.endpoint]
    done = CliRunner(env=shop.environment).invoke(main, ["lag", "show", *args])
    groups = {each["group"]: each for each in json.loads(done.stdout)}
    assert sorted(groups) == ["shard:shard-000", "shard:shard-001", "shard:shard-002"]
    (journal,) = groups["shard:shard-000"]["journals"]
    assert (journal["journal"], journal["lag_bytes"], journal["status"]) == (orders, 5, "UNKNOWN")
    assert groups["shard:shard-000"]["status"] == "UNKNOWN"
    assert groups["shard:shard-002"]["journals"] == []
    args += ["--group", "shard:shard-000", "--intervals", "3", "--for"]
    watched = CliRunner(env=shop.environment).invoke(main, ["lag", "show", *args, "2"])
    assert (watched.exit_code, json.loads(watched.stdout)[0]["journals"][0]["status"]) == (2, "STOP")


def test_gazctl_prunes_by_the_hints_of_our_shards(shop: Consumer) -> None:
    """Fragments before the first one in the hints would be deleted."""
    log = f"{shop.prefix}logs/shard-000"
    with Client(shop.broker.endpoint) as client:
        ends = [client.append(log, bytes(1500)).end for _ in range(4)]

        def stored() -> list[int]:
            return [each.fragment.begin for each in client.list_fragments(log) if each.fragment.mod_time]

        wait_until("fragments are stored", lambda: len(stored()) >= 3)
        segment = {"author": 1, "first_seq_no": 4, "last_seq_no": 4, "first_offset": ends[1]}
        hints = pr.FSMHints(log=log, live_nodes=[{"fnode": 4, "segments": [segment]}])
        (listed,) = shop.client.list_shards("id=shard-000")
        listed.spec.hint_backups = 0
        change = pc.ApplyRequest.Change(
            upsert=listed.spec, expect_mod_revision=listed.mod_revision, primary_hints=hints
        )
        shop.client.apply([change])
        theirs = shop.gazctl("prune", "-l", "app=shop", "--dry-run", "--log.level=info")
        assert theirs.returncode == 0, theirs.stderr
        assert "fragmentsPruned=2" in theirs.stderr.splitlines()[-1]


@dataclass(frozen=True)
class Secured:
    host: StillHost
    environment: dict[str, str]


@pytest.fixture
def secured(broker: BrokerHandle, tmp_path: Path) -> Iterator[Secured]:
    made = Certificates(tmp_path)
    with ShardServer(auth_keys=KEYS, tls=ServerTls(made.server.cert, made.server.key, made.ca)) as server:
        host = StillHost(server.endpoint)
        host.apply([pc.ApplyRequest.Change(upsert=shard_spec("shard-000", [], labels={"app": "shop"}))])
        server.start(host)
        yield Secured(
            host,
            {
                **clean_environment(),
                "BROKER_ADDRESS": broker.endpoint,
                "CONSUMER_ADDRESS": server.endpoint,
                "CONSUMER_AUTH_KEYS": KEYS,
                "CONSUMER_TRUSTED_CA_FILE": str(made.ca),
                "CONSUMER_CERT_FILE": str(made.client.cert),
                "CONSUMER_CERT_KEY_FILE": str(made.client.key),
            },
        )


@pytest.mark.parametrize("program", ["ours", "gazctl"])
def test_a_secured_consumer_is_entered(secured: Secured, program: str) -> None:
    delete = "shards: [{id: shard-000, delete: true, revision: -1}]"

    def run(*args: str, given: str = "", keys: str = KEYS) -> tuple[int, str]:
        environment = {**secured.environment, "CONSUMER_AUTH_KEYS": keys}
        if program == "ours":
            done = CliRunner(env=environment).invoke(main, ["shards", *args], input=given)
            return done.exit_code, done.output
        command = [str(find_binary("gazctl")), "shards", *args]
        ended = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env=environment,
        )
        return ended.returncode, ended.stdout + ended.stderr

    assert "PRIMARY" in run("list", "-l", "id=shard-000", "--lag")[1]
    first = secured.host.shards["shard-000"]
    assert run("unassign", "-l", "id=shard-000")[0] == 0
    assert secured.host.shards["shard-000"] is not first
    for code, text in (
        run("list", keys=""),
        run("list", keys=base64.b64encode(b"another key").decode()),
        run("apply", "--specs", "-", given=delete, keys=""),
    ):
        assert code == 1
        assert "authorization" in text
    assert run("apply", "--specs", "-", given=delete)[0] == 0
    assert list(secured.host.list_shards().shards) == []
