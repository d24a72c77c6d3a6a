"""A real S3 server over a directory: versitygw, which ``tests/deployed/build.sh --soak`` builds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyarrow import fs

from gazette_spark.session import CLASS_PATH_VARIABLE
from tests.rig.brokers import free_ports
from tests.rig.gazctl import find_binary
from tests.waiting import accepts_connections, wait_until

KEY_ID, SECRET = "test", "testsecret"

BUCKET = "lake"

HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.5.0"
"""Spark's S3 client, for the Hadoop version that PySpark 4.2 bundles: 700 MB with its dependencies."""

CLIENT_JARS = (
    "org.apache.hadoop_hadoop-aws-*",
    "software.amazon.awssdk_bundle-*",
    "software.amazon.s3.analyticsaccelerator_*",
    "org.wildfly.openssl_wildfly-openssl-*",
)


def enter(endpoint: str) -> None:
    """Configure access for this process's libraries and those of its children; create the bucket."""
    os.environ |= {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    store = fs.S3FileSystem(
        access_key=KEY_ID, secret_key=SECRET, endpoint_override=endpoint, allow_bucket_creation=True
    )
    store.create_dir(BUCKET)


def spark_settings(endpoint: str) -> dict[str, str]:
    """Return the settings of a session that reads the store as ``s3a://``."""
    return {
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.access.key": KEY_ID,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }


def s3_client_jars() -> list[Path]:
    """Return the jars of Spark's S3 client; the first call on a machine downloads them."""
    folder = Path.home() / ".ivy2.5.2" / "jars"
    jars = [jar for pattern in CLIENT_JARS for jar in folder.glob(f"{pattern}.jar")]
    if len(jars) >= len(CLIENT_JARS):
        return jars
    program = "from pyspark.sql import SparkSession as S; S.builder.getOrCreate().stop()"
    options = f"--packages {HADOOP_AWS} pyspark-shell"
    subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYSPARK_SUBMIT_ARGS": options}, check=True
    )
    return [jar for pattern in CLIENT_JARS for jar in folder.glob(f"{pattern}.jar")]


def add_to_class_path(jars: Iterable[Path]) -> None:
    """Append jars to the class path of all JVMs that start from now on."""
    before = os.environ.get(CLASS_PATH_VARIABLE)
    os.environ[CLASS_PATH_VARIABLE] = os.pathsep.join([*([before] if before else []), *map(str, jars)])


@contextmanager
def running_versitygw(directory: Path) -> Iterator[str]:
    """Run a server whose buckets are the folders of a directory; yield its endpoint.

    Raises:
        BinaryNotFoundError: it was not built.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    command = [str(find_binary("versitygw")), "--port", f"127.0.0.1:{port}", "posix", str(directory)]
    environment = os.environ | {"ROOT_ACCESS_KEY": KEY_ID, "ROOT_SECRET_KEY": SECRET}
    with running_server(command, port, directory.parent / "versitygw.log", environment):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def running_server(
    command: list[str],
    port: int,
    log: Path,
    environ: Mapping[str, str] = os.environ,
    *,
    timeout_s: float = 60,
) -> Iterator[None]:
    """Run a server that accepts connections on the port, until the block ends."""
    with log.open("wb") as file:
        server = subprocess.Popen(command, env=environ, stdout=file, stderr=file)
    try:

        def is_ready() -> bool:
            assert server.poll() is None, log.read_text(errors="replace")[-4000:]
            return accepts_connections(port)

        wait_until("the server to take connections", is_ready, timeout_s)
        yield
    finally:
        server.kill()
        server.wait()
