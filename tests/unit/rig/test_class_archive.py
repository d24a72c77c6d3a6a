"""A class archive is used only if it fits this Java and all files that it was made from still exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gazette_spark.session import CLASS_PATH_VARIABLE
from tests.rig.class_archive import (
    ClassArchive,
    archive_name,
    find_archive,
    not_of_spark,
    spark_home,
)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with its own Java and an empty cache."""
    java = tmp_path / "java"
    java.mkdir()
    (java / "release").write_text('JAVA_VERSION="17.0.15"\n')
    (tmp_path / "cache").mkdir()
    return {"JAVA_HOME": str(java), "GAZETTE_SPARK_CACHE": str(tmp_path / "cache"), "PATH": str(tmp_path)}


@pytest.fixture
def made(environ: dict[str, str], tmp_path: Path) -> ClassArchive:
    jar = tmp_path / "delta.jar"
    jar.touch()
    file = Path(environ["GAZETTE_SPARK_CACHE"], f"{archive_name(environ)}.jsa")
    file.touch()
    file.with_suffix(".json").write_text(json.dumps({"jars": [str(jar)]}))
    return ClassArchive(file, (str(jar),))


def test_what_was_made_is_found(environ: dict[str, str], made: ClassArchive) -> None:
    assert find_archive(environ) == made


def test_another_java_has_another_archive(environ: dict[str, str], made: ClassArchive) -> None:
    """An update of Java in place changes its release file."""
    Path(environ["JAVA_HOME"], "release").write_text('JAVA_VERSION="17.0.16"\n')
    assert find_archive(environ) is None


@pytest.mark.parametrize("lost", ["archive", "description", "jar", "text", "java"])
def test_a_part_that_is_missing_means_none(environ: dict[str, str], made: ClassArchive, lost: str) -> None:
    """Spark then starts without an archive instead of failing."""
    description = made.file.with_suffix(".json")
    match lost:
        case "archive":
            made.file.unlink()
        case "description":
            description.unlink()
        case "jar":
            Path(made.jars[0]).unlink()
        case "text":
            description.write_text("{")
        case "java":
            environ.pop("JAVA_HOME")
    assert find_archive(environ) is None


def test_its_jars_come_first_on_the_class_path(made: ClassArchive) -> None:
    """Other jars may only come after the archive's."""
    variables = made.environment({CLASS_PATH_VARIABLE: "/more.jar"})
    assert variables[CLASS_PATH_VARIABLE] == f"{made.jars[0]}:/more.jar"
    assert made.environment({})[CLASS_PATH_VARIABLE] == made.jars[0]
    assert str(made.file) in variables["SPARK_SUBMIT_OPTS"]


def test_jars_that_spark_brings_are_left_to_it() -> None:
    brought = next((spark_home() / "jars").glob("jackson-databind-*.jar")).name
    assert brought != "jackson-databind-2.13.5.jar"
    jars = [
        "file:///ivy/jars/io.delta_delta-spark_4.2_2.13-4.4.0.jar",
        "file:///ivy/jars/com.fasterxml.jackson.core_jackson-databind-2.13.5.jar",
        "/ivy/with%20space/io.delta_delta-storage-4.4.0.jar",
    ]
    assert not_of_spark(jars) == [
        "/ivy/jars/io.delta_delta-spark_4.2_2.13-4.4.0.jar",
        "/ivy/with space/io.delta_delta-storage-4.4.0.jar",
    ]
