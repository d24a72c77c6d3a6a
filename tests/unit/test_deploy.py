"""The files in ``deploy/`` fit the package, the tests and each other. No container engine is needed."""

from __future__ import annotations

import re
import shlex
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pyspark
import pytest
import yaml

from deploy import install_jars, orders
from gazette_spark._delta.s3_log_store import LOG_STORE, setting_of
from gazette_spark.cli.main import main
from tests.rig.wheel import BUILT_FROM

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
BROKER_DOCKERFILE = (DEPLOY / "broker.Dockerfile").read_text()
IN_THE_IMAGE = Path("/opt/deploy")
"""Folder in the image that contains files of ``deploy/``."""


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


COMPOSE = documents("compose.yaml")[0]
SERVICES: dict[str, Any] = COMPOSE["services"]
QUERY = documents("kubernetes/orders.yaml")[0]
SECRET = documents("kubernetes/secret.yaml")[0]
LAG = documents("kubernetes/lag.yaml")[0]
BUNDLE = documents("databricks.yml")[0]
CONTAINER = LAG["spec"]["template"]["spec"]["containers"][0]
TASK = BUNDLE["resources"]["jobs"]["orders"]["tasks"][0]


def copied() -> dict[str, str]:
    files = {}
    for line in re.findall(r"^COPY (?:--chmod=\d+ )?(deploy/.*)$", DOCKERFILE, re.MULTILINE):
        *sources, target = line.split()
        files.update({f"{target.rstrip('/')}/{Path(source).name}": source for source in sources})
    return files


def check_command(words: Sequence[str]) -> None:
    """Parse the words after ``gazette-spark`` as the command does, without running it."""
    command: click.Command = main
    context = click.Context(command)
    while isinstance(command, click.Group):
        name, *words = words
        below = command.get_command(context, name)
        assert below is not None, name
        command = below
        context = click.Context(command, parent=context, info_name=name)
    # The image's files are those of this clone.
    here = [str(DEPLOY / Path(word).name) if word.startswith(str(IN_THE_IMAGE)) else word for word in words]
    with context:
        command.parse_args(context, here)


def commands() -> Iterator[tuple[str, list[str]]]:
    for name, service in SERVICES.items():
        if "command" in service:
            yield name, service["command"]
    yield "kubernetes lag", CONTAINER["args"]


OURS = [pytest.param(words[1:], id=name) for name, words in commands() if words[0] == "gazette-spark"]


@pytest.mark.parametrize("words", OURS)
def test_each_command_is_one(words: list[str]) -> None:
    check_command(words)


def test_a_wrong_option_would_show() -> None:
    with pytest.raises(click.NoSuchOption):
        check_command(["lag", "serve", "--listne", "0.0.0.0:8000"])


def test_all_places_run_one_program_with_arguments_that_it_takes() -> None:
    (submit,) = (words for _, words in commands() if words[0] == "spark-submit")
    program = next(word for word in submit if word.endswith(".py"))
    assert copied()[program] == "deploy/orders.py"
    assert QUERY["spec"]["mainApplicationFile"] == f"local://{program}"
    assert TASK["spark_python_task"]["python_file"] == "./orders.py"
    for arguments in (
        submit[submit.index(program) + 1 :],
        QUERY["spec"]["arguments"],
        TASK["spark_python_task"]["parameters"],
    ):
        options = orders.parse(arguments)
        assert options.journals == "shop/"
        assert "checkpoints/orders" in options.checkpoint
        assert (options.path or options.table).endswith("orders")


def test_spark_has_the_classes_that_are_run() -> None:
    script = (DEPLOY / "entrypoint.sh").read_text()
    named = [words[1] for _, words in commands() if words[0] == "spark-class"]
    named += re.findall(r"^ *(org\.apache\.spark\S+)", script, re.MULTILINE)
    assert len(named) == 3
    entries: set[str] = set()
    for jar in Path(pyspark.__path__[0], "jars").glob("spark-*.jar"):
        if jar.name.startswith(("spark-core", "spark-kubernetes")):
            entries |= set(zipfile.ZipFile(jar).namelist())
    assert {f"{name.replace('.', '/')}.class" for name in named} <= entries


def test_services_are_found_under_their_names() -> None:
    """Each host in an address, and each service that another one depends on, is a service with that port."""
    texts = [shlex.join(words) for name, words in commands() if name in SERVICES]
    texts += [
        (DEPLOY / name).read_text() for name in ("journals.yaml", "prometheus.yml", "grafana/datasource.yml")
    ]
    texts.append(SERVICES["orders"]["environment"]["AWS_ENDPOINT_URL"])
    hosts = {host for text in texts for host in re.findall(r"(?:http|spark)://([a-z][a-z0-9]*):\d+", text)}
    assert {"etcd", "s3", "broker", "master"} <= hosts <= set(SERVICES)
    assert {name for service in SERVICES.values() for name in service.get("depends_on", ())} <= set(SERVICES)
    (target,) = documents("prometheus.yml")[0]["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == "lag:8000"
    assert SERVICES["lag"]["command"][-1].endswith(":8000")


def test_a_worker_may_write_where_it_makes_its_folders() -> None:
    """A standalone worker that cannot make its folder ends. The image's user may not write in SPARK_HOME."""
    settings = re.findall(r"^ENV (.*)$", DOCKERFILE, re.MULTILINE)
    variables = dict(setting.split("=", 1) for line in settings for setting in line.split())
    home = re.findall(r"^WORKDIR (\S+)$", DOCKERFILE, re.MULTILINE)[-1]
    assert re.search(r"^USER 185$", DOCKERFILE, re.MULTILINE)
    assert variables["SPARK_WORKER_DIR"].startswith(f"{home}/")


def test_files_that_are_mounted_and_copied_exist() -> None:
    """Volumes of compose are files of the clone or are declared. The image's sources exist."""
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith(".") else source in COMPOSE["volumes"]
        if build := service.get("build"):
            assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert all((ROOT / source).is_file() for source in copied().values())
    (alerts,) = documents("prometheus.yml")[0]["rule_files"]
    assert any(
        volume.startswith(f"./monitoring/alerts.yml:{alerts}") for volume in SERVICES["prometheus"]["volumes"]
    )


def test_the_wheel_is_built_from_what_it_needs() -> None:
    """The build context has everything that the wheel is built from, and nothing else."""
    stage = DOCKERFILE.partition("FROM python:")[0]
    sources = {
        source for line in re.findall(r"^COPY (.*) \S+$", stage, re.MULTILINE) for source in line.split()
    }
    assert sources == set(BUILT_FROM)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text()
    assert set(re.findall(r"^!(\S+)$", ignored, re.MULTILINE)) == {*BUILT_FROM, "deploy"}


def go_release(module: str, package: str) -> str:
    found = re.search(rf"{re.escape(package)} (v\S+)", (ROOT / module / "go.mod").read_text())
    assert found
    return found[1]


def test_releases_are_those_that_the_tests_run_with() -> None:
    versions = dict(re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE + BROKER_DOCKERFILE, re.MULTILINE))
    (hadoop,) = Path(pyspark.__path__[0], "jars").glob("hadoop-client-api-*.jar")
    assert versions == {
        "SPARK": pyspark.__version__,
        "DELTA": re.findall(r"delta-spark==([\d.]+)", (ROOT / "pyproject.toml").read_text())[0],
        "HADOOP": hadoop.stem.removeprefix("hadoop-client-api-"),
        "GAZETTE": go_release("tests/go", "go.gazette.dev/core"),
        "VERSITYGW": go_release("tests/deployed/versitygw", "github.com/versity/versitygw"),
    }
    assert SERVICES["etcd"]["image"].endswith(
        f":{go_release('tests/deployed/etcd', 'go.etcd.io/etcd/server/v3')}"
    )
    assert QUERY["spec"]["sparkVersion"] == pyspark.__version__


def test_kubernetes_has_the_settings_of_the_image() -> None:
    """Spark ignores the image's defaults on Kubernetes. The log store is the one that S3 needs."""
    text = (DEPLOY / "spark-defaults.conf").read_text()
    defaults = dict(line.split(maxsplit=1) for line in text.splitlines() if not line.startswith("#"))
    assert defaults[setting_of("s3a")] == LOG_STORE
    assert QUERY["spec"]["sparkConf"] == defaults


def test_secrets_that_are_named_exist_and_none_is_on_a_command_line() -> None:
    """Each variable that pods take from the Secret is a key of it that the programs read."""
    spec = QUERY["spec"]
    references = [
        (name, reference)
        for part in (spec["driver"], spec["executor"])
        for name, reference in part["envSecretKeyRefs"].items()
    ]
    variables = [variable for variable in CONTAINER["env"] if "valueFrom" in variable]
    references += [(variable["name"], variable["valueFrom"]["secretKeyRef"]) for variable in variables]
    assert {reference["name"] for _, reference in references} == {SECRET["metadata"]["name"]}
    assert {reference["key"] for _, reference in references} == set(SECRET["stringData"])
    assert {name for name, _ in references} - set(orders.SECURITY) == {
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    }
    assert set(SECRET["stringData"].values()) == {"CHANGE-ME"}
    (cluster,) = BUNDLE["resources"]["jobs"]["orders"]["job_clusters"]
    assert set(cluster["new_cluster"]["spark_env_vars"]) <= set(orders.SECURITY)


def test_jars_that_spark_has_are_left_out() -> None:
    """Two releases of one artifact on a class path hide each other."""
    bundled = [
        Path("jackson-core-2.20.0.jar"),
        Path("zstd-jni-1.5.7-6.jar"),
        Path("hadoop-client-api-3.5.0.jar"),
    ]
    resolved = [
        Path("com.fasterxml.jackson.core_jackson-core-2.13.5.jar"),
        Path("com.github.luben_zstd-jni-1.5.7-3.jar"),
        Path("io.delta_delta-spark_4.2_2.13-4.4.0.jar"),
        Path("org.apache.hadoop_hadoop-aws-3.5.0.jar"),
        Path("org.wildfly.openssl_wildfly-openssl-2.2.5.Final.jar"),
    ]
    assert install_jars.missing(resolved, bundled) == resolved[2:]
