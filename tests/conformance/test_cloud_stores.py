"""Fragments and states in stores with Azure's and Google's interfaces.

Neither server supports a Delta table: Azurite ignores ``startFrom`` in listings, so deltalake does not see
its third commit, and fake-gcs-server refuses deltalake's PUT. S3Proxy and versitygw support one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import fs

from gazette_spark._planning.stores import Bucket, StoreFiles, open_store
from gazette_spark.errors import DataLossError, FragmentStoreError
from gazette_spark.protocol import protocol_pb2 as pb
from tests.oracles.stores import encoded, fragment_of, plan, read, store_options
from tests.rig.cloud_stores import AZURITE_ACCOUNT, BUCKET, running_azurite, running_fake_gcs
from tests.unit.planning.test_producer_states import check_states_are_read_back

pytestmark = pytest.mark.soak

CONTENTS = ((0, b"one\ntwo\n"), (8, b"three\n"))


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fs.AzureFileSystem]:
    with running_azurite(tmp_path_factory.mktemp("azure")) as system:
        yield system


@pytest.fixture(scope="module")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_fake_gcs(tmp_path_factory.mktemp("gcs")) as query:
        yield query


def store_fragments(system: fs.FileSystem) -> list[str]:
    paths = []
    for begin, content in CONTENTS:
        paths.append(f"{BUCKET}/fragments/{fragment_of('log/a', begin, content, pb.GZIP).content_path}")
        with system.open_output_stream(paths[-1], compression=None) as file:
            file.write(encoded(content, pb.GZIP))
    return paths


def check_fragments(system: fs.FileSystem, files: StoreFiles) -> None:
    paths = store_fragments(system)
    options = store_options(fragmentStore="gs://lake/fragments/")
    pieces = plan(files, options)
    assert [row[2] for row in read(files, options, pieces)] == [b"one", b"two", b"three"]
    system.delete_file(paths[0])
    with pytest.raises(DataLossError, match=r"'log/a': cannot read offset 0: .* 8 bytes are gone"):
        read(files, options, pieces)


def test_azure_keeps_fragments(azure: fs.AzureFileSystem) -> None:
    """Azurite's credentials do not fit into a URL of ours, so pyarrow's file system gets them."""
    check_fragments(azure, Bucket(azure, f"{BUCKET}/fragments", "abfs://lake@account/fragments/"))


def test_azure_keeps_states(azure: fs.AzureFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def from_uri(url: str) -> tuple[fs.FileSystem, str]:
        opened.append(url)
        return azure, f"{BUCKET}/states"

    monkeypatch.setattr(fs, "FileSystem", SimpleNamespace(from_uri=from_uri))
    location = f"abfs://{BUCKET}@{AZURITE_ACCOUNT}/states"
    check_states_are_read_back(location)
    assert set(opened) == {location}


def test_a_missing_container_is_named(azure: fs.AzureFileSystem) -> None:
    """A missing container is not an empty store."""
    files = Bucket(azure, "typo/fragments", "abfs://typo@account/fragments/")
    with pytest.raises(FragmentStoreError, match="typo"):
        plan(files, store_options(fragmentStore="gs://typo/fragments/"))


def test_google_keeps_fragments_and_states(gcs: str) -> None:
    url = f"gs://anonymous@{BUCKET}/fragments/?{gcs}"
    system, _ = fs.FileSystem.from_uri(url)
    check_fragments(system, open_store(url))
    check_states_are_read_back(f"gs://anonymous@{BUCKET}/states?{gcs}")


def test_a_missing_bucket_is_named(gcs: str) -> None:
    """A missing bucket is not an empty store."""
    url = f"gs://anonymous@typo/fragments/?{gcs}"
    with pytest.raises(FragmentStoreError, match="bucket 'typo' does not exist"):
        plan(open_store(url), store_options(fragmentStore=url))


def test_a_store_that_is_gone_is_named(tmp_path: Path) -> None:
    with running_fake_gcs(tmp_path) as query:
        url = f"gs://anonymous@{BUCKET}/fragments/?{query}"
        files: Any = open_store(url)
    with pytest.raises(FragmentStoreError, match="fragment store gs://") as error:
        plan(files, store_options(fragmentStore=url))
    assert str(error.value).isprintable()
