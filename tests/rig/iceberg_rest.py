"""REST catalogs for Iceberg tables, from ``make iceberg-env``: the one of Iceberg's tests, and Nessie."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.rig.brokers import free_ports
from tests.rig.gazctl import BinaryNotFoundError, cache_folders
from tests.rig.object_store import BUCKET, KEY_ID, SECRET, ObjectStore
from tests.rig.versitygw import running_server

JVM_ROOT = Path("/usr/lib/jvm")

PROGRAM = Path(__file__).parents[1] / "deployed" / "iceberg-rest" / "RestCatalog.java"

JARS_OF_PYSPARK = ("hadoop-client-api-*", "hadoop-client-runtime-*", "slf4j-api-*", "jcl-over-slf4j-*")
"""Jars of PySpark with which the catalog of Iceberg's tests accesses the directory of the tables."""

START_TIMEOUT_S = 240
"""Maximum seconds until a server has started. Nessie needs 20 seconds of CPU time."""

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

NESSIES_JAVA = 21
"""Minimum major version of Java for Nessie. Spark needs 17 or 21."""


@contextmanager
def running_rest_catalog(directory: Path) -> Iterator[dict[str, str]]:
    """Run the catalog of Iceberg's tests over SQLite and a directory until the block ends.

    Yields:
        The properties with which ``pyiceberg`` enters it.

    Raises:
        BinaryNotFoundError: its jars were not fetched.
    """
    directory.mkdir(parents=True, exist_ok=True)
    of_pyspark = Path(pyspark.__file__).parent / "jars"
    class_path = [f"{_jars('iceberg-rest')}/*"]
    class_path += [str(jar) for name in JARS_OF_PYSPARK for jar in of_pyspark.glob(f"{name}.jar")]
    (port,) = free_ports(1)
    java = str(Path(os.environ["JAVA_HOME"], "bin", "java")) if "JAVA_HOME" in os.environ else "java"
    command = [java, *QUICK_START, "-Xmx256m", "-cp", os.pathsep.join(class_path), str(PROGRAM), str(port)]
    command += [str(directory / "catalog.db"), f"file://{directory}/warehouse"]
    with running_server(command, port, directory / "catalog.log", timeout_s=START_TIMEOUT_S):
        yield {"type": "rest", "uri": f"http://127.0.0.1:{port}"}


@contextmanager
def running_nessie(directory: Path, store: ObjectStore) -> Iterator[dict[str, str]]:
    """Run Nessie, with its tables in an object store, until the block ends.

    Yields:
        The properties with which ``pyiceberg`` enters it.

    Raises:
        BinaryNotFoundError: it was not fetched, or no Java is new enough.
    """
    port, management_port = free_ports(2)
    options = "nessie.catalog.service.s3.default-options"
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": management_port,
        "quarkus.otel.sdk.disabled": "true",
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": BUCKET,
        f"nessie.catalog.warehouses.{BUCKET}.location": f"s3://{BUCKET}/nessie",
        f"{options}.endpoint": f"{store.endpoint}/",
        f"{options}.path-style-access": "true",
        f"{options}.region": "us-east-1",
        f"{options}.access-key": "urn:nessie-secret:quarkus:store",
        "store.name": KEY_ID,
        "store.secret": SECRET,
    }
    (jar,) = _jars("nessie").glob("*.jar")
    command = [_newer_java(), *QUICK_START, "-Xmx600m"]
    command += [*(f"-D{name}={text}" for name, text in settings.items()), "-jar", str(jar)]
    with running_server(command, port, directory / "nessie.log", timeout_s=START_TIMEOUT_S):
        yield {
            "type": "rest",
            "uri": f"http://127.0.0.1:{port}/iceberg/main/",
            "warehouse": BUCKET,
            # Nessie would sign the client's requests, but Arrow's S3 client signs its own.
            "header.X-Iceberg-Access-Delegation": "",
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            "s3.access-key-id": KEY_ID,
            "s3.secret-access-key": SECRET,
        }


def _jars(name: str) -> Path:
    folders = [folder / name / "jars" for folder in cache_folders()]
    for folder in folders:
        if folder.is_dir():
            return folder
    raise BinaryNotFoundError(name, tuple(map(str, folders)))


def _newer_java() -> str:
    """Return a Java from Debian's directories that can run Nessie."""
    for release in sorted(JVM_ROOT.glob("*/release")):
        version = re.search(r'^JAVA_VERSION="(\d+)', release.read_text(), re.MULTILINE)
        if version and int(version[1]) >= NESSIES_JAVA:
            return str(release.parent / "bin" / "java")
    raise BinaryNotFoundError(f"Java {NESSIES_JAVA} or later", (str(JVM_ROOT),))
