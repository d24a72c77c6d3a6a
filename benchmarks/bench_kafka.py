"""Runs the peer Kafka: a broker in KRaft mode as a child process, and Spark's source and sink for it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from bench_data import DataSet
from kafka_jars import KafkaJars
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from tests.rig.brokers import free_ports

JAVA_OPTIONS = ("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""Java options of Kafka's start script."""

CLUSTER_ID = "Z2F6ZXR0ZS1iZW5jaG1hcg"

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={logs}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.ms=-1
auto.create.topics.enable=false
"""


@contextmanager
def running_kafka(jars: KafkaJars, folder: Path) -> Iterator[str]:
    """Run a broker whose data stays in ``folder``; yield its address."""
    port, controller = free_ports(2)
    folder.mkdir(parents=True, exist_ok=True)
    properties, logs = folder / "server.properties", folder / "logs"
    properties.write_text(PROPERTIES.format(port=port, controller=controller, logs=logs.resolve()))
    java = [str(Path(os.environ["JAVA_HOME"]) / "bin" / "java"), *JAVA_OPTIONS, "-cp", ":".join(jars.broker)]
    # Kafka stores its controller's port only when the folder is formatted.
    formatted = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
    subprocess.run(
        [*formatted, "--ignore-formatted"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log)
        try:
            _wait_open(process, port, folder / "broker.log")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_open(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if process.poll() is not None or monotonic() > deadline:
                raise SystemExit(f"Kafka did not start:\n{log.read_text()[-4000:]}") from None
            sleep(0.1)
        else:
            return


def topic_of(data: DataSet) -> str:
    """Return the topic of a data set."""
    return data.prefix.strip("/").replace("/", "-")


class Kafka:
    """Kafka as a Spark program uses it."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self._spark = spark
        self.address = address
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        self._settings = jvm.java.util.HashMap()
        self._settings.put("bootstrap.servers", address)

    def create(self, topic: str, partitions: int) -> bool:
        """Create a topic; return False if it exists."""
        admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(self._settings)
        try:
            if topic in set(admin.listTopics().names().get()):
                return False
            optional = self._jvm.java.util.Optional
            new = self._jvm.org.apache.kafka.clients.admin.NewTopic(
                topic, optional.of(partitions), optional.empty()
            )
            admin.createTopics([new]).all().get()
            return True
        finally:
            admin.close()

    def fill(self, data: DataSet, folder: Path) -> None:
        """Fill the topic of a data set, with a partition for each journal, unless it is already filled."""
        done = folder / f"{topic_of(data)}.done"
        if done.exists():
            return
        if not self.create(topic_of(data), data.journals):
            raise SystemExit(f"topic {topic_of(data)} is half filled: remove {folder}")
        for part in range(data.journals):
            lines = self._spark.read.text(str(data.path / f"part-{part}"))
            rows = lines.select("value", F.lit(part).alias("partition"))
            rows.write.format("kafka").option("kafka.bootstrap.servers", self.address).option(
                "topic", topic_of(data)
            ).option("kafka.linger.ms", "20").option("kafka.batch.size", "262144").save()
        done.touch()

    def raw(self, data: DataSet | str, *, stream: bool) -> DataFrame:
        """Return the position and the value of a topic's records."""
        reader: Any = self._spark.readStream if stream else self._spark.read
        topic = data if isinstance(data, str) else topic_of(data)
        frame: DataFrame = (
            reader.format("kafka")
            .option("kafka.bootstrap.servers", self.address)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        return frame.select("topic", "offset", "value")

    def typed(self, data: DataSet, schema: str, *, stream: bool) -> DataFrame:
        """Return a topic's records as columns."""
        text = self.raw(data, stream=stream).select(F.col("value").cast("string"))
        return text.select(F.from_json("value", schema).alias("row")).select("row.*")

    def producer(self) -> Any:  # noqa: ANN401 - an object of the JVM
        """Return a producer of the JVM; the caller closes it."""
        settings = self._jvm.java.util.HashMap(self._settings)
        for side in ("key", "value"):
            settings.put(f"{side}.serializer", "org.apache.kafka.common.serialization.StringSerializer")
        return self._jvm.org.apache.kafka.clients.producer.KafkaProducer(settings)

    def send(self, producer: Any, topic: str, text: str) -> None:  # noqa: ANN401 - as above
        """Produce a record and wait until the broker has it."""
        producer.send(self._jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, text)).get()


def forget(folder: Path) -> None:
    """Remove a broker's data."""
    shutil.rmtree(folder, ignore_errors=True)


def progress_ms(progress: Any) -> float:  # noqa: ANN401 - StreamingQueryProgress or its JSON
    """Return the duration of a trigger."""
    found = progress if isinstance(progress, dict) else json.loads(progress.json)
    return float(found["durationMs"]["triggerExecution"])
