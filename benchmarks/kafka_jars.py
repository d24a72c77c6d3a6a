"""Downloads the jars of Kafka's broker and of Spark's Kafka source, with Spark's resolver.

The resolver caches the jars in this benchmark's folder, so only the first run calls a registry.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyspark

KAFKA_VERSION = "3.9.1"

BROKER = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"
"""The broker, with all its dependencies."""

CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    # 4.2.0 of this one is not available. The part that is used without Kerberos is the same.
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}",
    "org.apache.commons:commons-pool2:2.12.1",
)
"""Spark's source, without dependencies, because the others are part of Spark."""

RESOLVE_TIMEOUT_S = 600.0

_RESOLVE = """
import json, sys
from pyspark.sql import SparkSession
folder, broker, *connector = sys.argv[1:]
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.jars.ivy", folder).getOrCreate())
jvm = spark.sparkContext._jvm
def paths(artifact, transitive):
    uri = jvm.java.net.URI(f"ivy://{artifact}?transitive={transitive}")
    found = jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(uri)
    return [found.apply(at).split("file:")[-1] for at in range(found.size())]
jars = {"connector": [path for each in connector for path in paths(each, "false")],
        "broker": paths(broker, "true")}
print("RESOLVED", json.dumps(jars))
spark.stop()
"""


@dataclass(frozen=True, slots=True)
class KafkaJars:
    """Paths of jars."""

    broker: tuple[str, ...]
    """Kafka's class path."""
    connector: tuple[str, ...]
    """Jars that a Spark session needs to read Kafka."""


def kafka_jars(folder: Path) -> KafkaJars:
    """Return the jars, which are downloaded into ``folder`` if they are not there yet."""
    known = folder / "jars.json"
    if not known.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", _RESOLVE, str(folder.resolve()), BROKER, *CONNECTOR]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESOLVED ")]
        if not lines:
            raise SystemExit(f"Kafka's jars could not be resolved:\n{done.stderr[-4000:]}")
        known.write_text(lines[-1].removeprefix("RESOLVED "))
    found = json.loads(known.read_text())
    # Spark's resolver omits what Spark includes, such as the Scala library.
    scala = Path(pyspark.__file__).parent.glob("jars/scala-library-*.jar")
    return KafkaJars((*found["broker"], *map(str, scala)), tuple(found["connector"]))
