"""Servers with the APIs of Azure Blob Storage and Google Cloud Storage.

``tests/deployed/build.sh --soak`` installs both: Azurite, which needs Node.js, and fake-gcs-server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from pyarrow import fs

from tests.rig.brokers import free_ports
from tests.rig.gazctl import find_binary
from tests.rig.versitygw import running_server

BUCKET = "lake"

AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Documented key of the account that every Azurite has."""


@contextmanager
def running_azurite(directory: Path) -> Iterator[fs.AzureFileSystem]:
    """Run Azurite over a directory; yield pyarrow's file system with an empty container.

    Raises:
        BinaryNotFoundError: it was not installed.
    """
    (port,) = free_ports(1)
    command = [str(find_binary("azurite-blob")), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--location", str(directory / "azurite"), "--skipApiVersionCheck", "--disableTelemetry"]
    with running_server(command, port, directory / "azurite.log"):
        address = f"127.0.0.1:{port}"
        system = fs.AzureFileSystem(
            AZURITE_ACCOUNT,
            account_key=AZURITE_KEY,
            blob_storage_authority=address,
            dfs_storage_authority=address,
            blob_storage_scheme="http",
            dfs_storage_scheme="http",
        )
        system.create_dir(BUCKET)
        yield system


@contextmanager
def running_fake_gcs(directory: Path) -> Iterator[str]:
    """Run fake-gcs-server over a directory; yield the query of ``gs://lake/PATH?`` in URLs of its bucket.

    Raises:
        BinaryNotFoundError: it was not built.
    """
    (port,) = free_ports(1)
    command = [str(find_binary("fake-gcs-server")), "-scheme", "http", "-host", "127.0.0.1"]
    command += ["-port", str(port), "-filesystem-root", str(directory / "gcs")]
    with running_server(command, port, directory / "gcs.log"):
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        bucket, headers = json.dumps({"name": BUCKET}), {"Content-Type": "application/json"}
        connection.request("POST", "/storage/v1/b?project=tests", bucket, headers)
        assert connection.getresponse().status == 200
        connection.close()
        yield f"endpoint_override=127.0.0.1:{port}&scheme=http&retry_limit_seconds=5"
