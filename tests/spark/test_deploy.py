"""The program of ``deploy/`` streams orders: in the tests' session, and as ``compose.yaml`` starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from deploy import orders
from gazette_spark import Client
from gazette_spark._delta.s3_log_store import JAR
from gazette_spark.client import journal_spec
from gazette_spark.session import CLASS_PATH_VARIABLE
from tests.rig.brokers import BrokerHandle, free_ports
from tests.rig.class_archive import find_archive, spark_home
from tests.rig.gazctl import find_binary
from tests.rig.spark_cluster import MASTER_READY, WORKER_READY, SparkProcess, server_environment
from tests.rig.versitygw import s3_client_jars
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PORTS = ("etcd:2379", "s3:7070", "broker:8080", "master:7077", "lag:8000")
STREAMED_WITHIN_S = 900


@pytest.mark.soak
def test_the_program_fills_a_table(
    spark: SparkSession, embedded_broker: BrokerHandle, fresh_prefix: str, tmp_path: Path
) -> None:
    spec = journal_spec(f"{fresh_prefix}orders", labels={"content-type": "application/x-ndjson"})
    with Client(embedded_broker.endpoint) as client:
        client.create_journals(spec)
        client.append(spec.name, b'{"id": 1, "user": "ada", "amount": 9.5}\nno JSON\n')
    for checkpoint in ("checkpoint", "another checkpoint"):
        orders.main(
            [
                *("--broker", embedded_broker.endpoint, "--path", str(tmp_path / "orders")),
                *("--checkpoint", str(tmp_path / checkpoint), "--available-now", fresh_prefix),
            ]
        )
    rows = spark.read.format("delta").load(str(tmp_path / "orders")).select("id", "user", "amount").collect()
    assert [tuple(row) for row in rows] == [(1, "ada", 9.5)]
    letters = spark.read.format("delta").load(str(tmp_path / "orders_dead_letters")).collect()
    assert [bytes(row.raw).rstrip() for row in letters] == [b"no JSON"]


@dataclass
class Composition:
    """The services of ``compose.yaml`` as local processes, with each address mapped to a free port."""

    directory: Path
    addresses: dict[str, str] = field(init=False)
    """Local address by the address in the file."""

    def __post_init__(self) -> None:
        ports = free_ports(len(PORTS))
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in zip(PORTS, ports, strict=True)}
        self.services: Mapping[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
        conf = self.directory / "conf"
        conf.mkdir()
        (conf / "spark-defaults.conf").write_text((DEPLOY / "spark-defaults.conf").read_text())
        (self.directory / "journals.yaml").write_text(self.here((DEPLOY / "journals.yaml").read_text()))
        (self.directory / "data").mkdir()

    def here(self, text: str) -> str:
        """Replace addresses and folders in a word or text by those of this machine."""
        for there, address in self.addresses.items():
            port = there.partition(":")[2]
            text = text.replace(there, address).replace(f"0.0.0.0:{port}", address)
            # Hosts and ports outside of URLs.
            text = re.sub(rf"(?<= ):{port}\b", address, text)
            text = re.sub(rf"(?<=port=){port}$|^{port}$", address.partition(":")[2], text)
        text = re.sub(r"(?<=host=)(broker|orders)$|^master$", "127.0.0.1", text)
        text = text.replace("/opt/deploy/journals.yaml", str(self.directory / "journals.yaml"))
        text = text.replace("/opt/deploy", str(DEPLOY))
        return re.sub(r"/data\b", str(self.directory / "data"), text)

    def environment(self, service: str) -> dict[str, str]:
        archive = find_archive()
        assert archive is not None
        jars = os.pathsep.join([*archive.jars, *map(str, s3_client_jars()), str(JAR)])
        own = {
            name: self.here(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value))
            for name, value in self.services[service].get("environment", {}).items()
        }
        settings = {
            CLASS_PATH_VARIABLE: jars,
            "SPARK_CONF_DIR": str(self.directory / "conf"),
            "PYTHONPATH": str(ROOT),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        inherited = server_environment(sys.executable, archive)
        # Gazette's programs read flags from variables with these names.
        flags = ("BROKER_", "ETCD_")
        kept = {name: value for name, value in inherited.items() if not name.startswith(flags)}
        return kept | settings | own

    def command(self, service: str) -> list[str]:
        program, *words = self.services[service]["command"]
        words = [self.here(word) for word in words]
        if program == "sh":
            return [program, *(word.replace("versitygw", str(find_binary("versitygw"))) for word in words)]
        if program == "gazette-spark":
            return [sys.executable, "-m", "gazette_spark.cli", *words]
        if program.startswith("spark-"):
            return [str(spark_home() / "bin" / program), *words]
        return [str(find_binary(program)), *words]

    @contextmanager
    def running(self, service: str, *more: str) -> Iterator[SparkProcess]:
        number = len(list(self.directory.glob(f"{service}-*")))
        folder = self.directory / f"{service}-{number}"
        folder.mkdir()
        process = SparkProcess(
            [*self.command(service), *more], log=folder / "log", env=self.environment(service)
        )
        with process:
            yield process


@pytest.mark.soak
@pytest.mark.deployed_broker
@pytest.mark.timeout(1800)
def test_what_compose_starts_streams_orders_to_a_store(tmp_path: Path) -> None:
    """Broker, store, cluster, query and lag monitor run with the command lines of ``compose.yaml``."""
    made = Composition(tmp_path)
    peer = f"http://127.0.0.1:{free_ports(1)[0]}"
    options = ("listen-peer-urls=", "initial-advertise-peer-urls=", "initial-cluster=default=")
    with ExitStack() as stack:
        stack.enter_context(made.running("etcd", *(f"--{option}{peer}" for option in options)))
        stack.enter_context(made.running("s3"))
        stack.enter_context(made.running("broker"))

        def applied() -> bool:
            done = subprocess.run(
                made.command("journals"),
                env=made.environment("journals"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=60,
                check=False,
            )
            return done.returncode == 0

        wait_until("the broker to take the journals", applied, timeout_s=60)
        with Client(f"http://{made.addresses['broker:8080']}") as client:
            client.append("shop/orders", b'{"id": 1, "user": "ada", "amount": 9.5}\n')
            client.append("shop/returns", b'{"id": 2, "user": "bob", "amount": 3.0}\n')
        stack.enter_context(made.running("master")).wait_for_log(MASTER_READY)
        for _ in range(made.services["worker"]["deploy"]["replicas"]):
            stack.enter_context(made.running("worker")).wait_for_log(WORKER_READY)
        query = stack.enter_context(made.running("orders"))
        lag = stack.enter_context(made.running("lag"))
        assert wait_for_rows(made, 2) == [(1, "ada"), (2, "bob")], query.log_end()
        metrics = f"http://{made.addresses['lag:8000']}/metrics"

        def is_level() -> bool:
            try:
                text = httpx.get(metrics).text
            except httpx.ConnectError:
                return False
            lags = re.findall(r'^gazette_lag_bytes\{.*consumer_group="orders".*\} (\S+)', text, re.MULTILINE)
            return bool(lags) and set(map(float, lags)) == {0.0}

        wait_until("the monitor to see that nothing is left", is_level, timeout_s=60)
        assert "Traceback" not in lag.log_end()


def wait_for_rows(made: Composition, count: int) -> Sequence[Any]:
    environment = made.environment("lag")
    options = {name: value for name, value in environment.items() if name.startswith("AWS_")}
    seen: list[Any] = []

    def arrived() -> bool:
        if not DeltaTable.is_deltatable("s3://lake/orders", storage_options=options):
            return False
        table = DeltaTable("s3://lake/orders", storage_options=options).to_pyarrow_table(
            columns=["id", "user"]
        )
        seen[:] = sorted(tuple(row.values()) for row in table.to_pylist())
        return len(seen) >= count

    wait_until("rows in the store", arrived, timeout_s=STREAMED_WITHIN_S)
    return seen
