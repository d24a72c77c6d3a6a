"""One program does the same wherever Spark runs, with only the wheel installed there.

The places are a classic local session, a standalone cluster whose Pythons have the wheel installed, and Spark
Connect with a thin client. The latter two run in separate processes, whose Pythons see no source tree.

A real broker requires tokens and client certificates, and each place authenticates in a different way. The
secrets must not show up anywhere: neither in the program's results nor in the files that Spark leaves behind.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gazette_spark.client import journal_spec
from gazette_spark.session import INTERPRETED
from gazette_spark.testing.oracle import check_table, split_records
from pyspark_gazette.worker_python import COMMAND
from tests.rig.class_archive import ClassArchive, find_archive, spark_home
from tests.rig.gazctl import BrokerHandle, cache_folders
from tests.rig.secured import KEYS, SECRETS, open_client, renewed, secured_broker, token
from tests.rig.spark_cluster import (
    ConnectServer,
    SparkProcess,
    StandaloneCluster,
    conf_arguments,
    java_options,
    server_environment,
)
from tests.rig.wheel import build_wheel
from tests.rig.worker_python import link_pyspark
from tests.spark import everywhere_job

ROOT = Path(__file__).parents[2]
JOB = Path(everywhere_job.__file__)
PAGE = ROOT / "docs" / "guides" / "secure.md"
JOB_TIMEOUT_S = 480
ROTATING_S = 10.0
"""Lifetime in seconds of the idle stream's token; each of its batches has to end within this time."""

OUR_ERROR = re.compile(r"gazette_spark\.errors\.(\w+Error: .*)")
"""Line of a traceback with one of our errors, without the module."""

CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "600m",
}

CONFLICT = "a conflict is known for what it is"

REST = ("typed", "conflict", "formatted")
"""Optional steps that classic sessions run, too."""

ON_CONNECT = frozenset({"missing_journal", "malformed_record", "table_of_another_query"})
"""Errors that reach a Spark Connect client in different ways: from the planner, a task and the sink."""

WHOLE = [pytest.param(False, id="brief"), pytest.param(True, id="whole", marks=pytest.mark.soak)]

PLAIN = ("written", "committed", "shown")
"""Optional steps that run in every place."""

SEEN_BY_SPARK = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false"}

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "3s",
}
"""Settings that copy a task to another host if it takes longer than the others and than any working task."""

MASK = re.compile(r"spark\.redaction\.string\.regex (.+)")
"""Setting for a Connect server on the page of secured clusters; such a server logs requests."""

SECRET_FILES = {"settings.json", "client.key", "server.key", "token", "rotating", "rotating.new"}
"""Files in which a test has put secrets."""

pytestmark = [pytest.mark.slow, pytest.mark.deployed_broker, pytest.mark.timeout(900)]


def lines(first: int, count: int) -> bytes:
    return b"".join(
        b'{"id":%d,"text":"%s"}\n' % (n, b"\xc3\xa4" * (n % 17)) for n in range(first, first + count)
    )


PARTS = {"ca": "ca", "cert": "cert", "key": "keySecret"}


@dataclass
class Scene:
    """A broker with journals for one run of the program, and a directory for it."""

    broker: BrokerHandle
    prefix: str
    directory: Path
    enter: dict[str, str] = field(default_factory=dict)
    """Options for access to the broker; by default the contents of all certificates, and keys."""
    rotating: dict[str, str] = field(default_factory=dict)
    """Access option of a stream that idles during the run; by default there is no such stream."""
    content: dict[str, bytes] = field(default_factory=dict)
    """Final content of each journal below ``main/``."""
    MORE = lines(900, 60)

    def __post_init__(self) -> None:
        self.directory.mkdir()
        assert self.broker.certificates is not None
        self.enter = {**self.broker.certificates.content_options(), "auth.keysSecret": KEYS}
        with open_client(self.broker) as client:
            for short, content in {
                "main/a": lines(0, 200),
                "main/b": lines(200, 90),
                "main/empty": b"",
            }.items():
                name = self.prefix + short
                client.create_journals(journal_spec(name))
                if content:
                    client.append(name, content)
                self.content[name] = content
            for short in (everywhere_job.WRITTEN, everywhere_job.IDLE):
                client.create_journals(journal_spec(self.prefix + short))
            documents = {"content-type": "application/x-ndjson"}
            client.create_journals(
                *(
                    journal_spec(self.prefix + each, labels=documents)
                    for each in (
                        everywhere_job.MESSAGES,
                        everywhere_job.COPIED,
                        *everywhere_job.TRANSACTIONS,
                    )
                )
            )
            broken = self.prefix + everywhere_job.BROKEN
            client.create_journals(journal_spec(broken))
            client.append(broken, lines(0, 3) + b"{no json\n")

    def settings(
        self, *, also: Iterable[str], failures: Iterable[str] = everywhere_job.FAILURES, remote: str = ""
    ) -> dict[str, Any]:
        assert self.broker.certificates is not None
        contents = self.broker.certificates.content_options()
        return {
            "endpoint": self.broker.endpoint,
            "enter": self.enter,
            "rotating": self.rotating,
            "keys": KEYS,
            "tls": {part: contents[f"tls.{name}"] for part, name in PARTS.items()},
            "refused": [{"auth.token": token(-3600)}, {"auth.keysSecret": "Y2FuYXJ5LXN0cmFuZ2U="}],
            "prefix": self.prefix,
            "directory": str(self.directory),
            "more": self.MORE.decode(),
            "also": ["idling", *PLAIN, *also, "awoken"] if self.rotating else [*PLAIN, *also],
            "failures": list(failures),
            "remote": remote,
            "result": str(self.directory / "result.json"),
        }

    def program(self, **told: Any) -> list[Path]:
        """Return its settings, and a copy of the program: Python imports modules from a script's folder."""
        settings = self.directory / "settings.json"
        settings.write_text(json.dumps(self.settings(**told)))
        return [Path(shutil.copy(JOB, self.directory / "program.py")), settings]

    def result(self) -> dict[str, Any]:
        seen: dict[str, Any] = json.loads((self.directory / "result.json").read_text())
        return seen

    def enter_by_files(self) -> None:
        """Use a token and certificates in files, named relative to the driver's directory.

        Executors run in other directories, where these names do not exist.
        """
        made = self.broker.certificates
        assert made is not None
        for path in (made.ca, made.client.cert, made.client.key):
            shutil.copy(path, self.directory)
        (self.directory / "token").write_text(token())
        self.enter = {
            "auth.tokenFile": "token",
            "tls.caFile": made.ca.name,
            "tls.certFile": made.client.cert.name,
            "tls.keyFile": made.client.key.name,
        }

    def check_secrets(self, seen: dict[str, Any], *folders: Path) -> None:
        """Check that no secret is in the results, nor in the files of these folders and the scene's."""
        assert (len(seen["shown"]), len(seen["progress"]) > 6) == (6, True)
        for secret in (*SECRETS, "Y2FuYXJ5LXN0cmFuZ2U="):
            assert secret not in json.dumps(seen)
        files = [
            file for folder in (self.directory, *folders) for file in folder.rglob("*") if file.is_file()
        ]
        leaks = [
            (str(file), secret)
            for file in files
            if file.name not in SECRET_FILES
            for secret in SECRETS
            if secret.encode() in file.read_bytes()
        ]
        assert leaks == []

    def check(self, seen: dict[str, Any]) -> None:
        assert seen["written"] == sorted(f"row {number}" for number in range(20))
        streamed, at_once = seen["messages"]
        assert streamed == at_once
        assert sorted(Counter(number for number, _ in at_once).items()) == [
            (number, 1) for number in (*range(200), *range(900, 960), *range(1000, 1020))
        ]
        states = self.directory / "states" / self.prefix / everywhere_job.MESSAGES
        assert len(list(states.iterdir())) >= 2, "batches went on with the states that others left"
        before = raw_rows(self.content)
        assert seen["raw"] == before
        truth = dict(self.content)
        truth[self.prefix + "main/a"] += self.MORE
        assert seen["table"] == raw_rows(truth)
        first, second = seen["runs"]
        assert first["batch"] >= 2, "the limit cut the backlog into batches"
        assert second["batch"] > first["batch"], "the checkpoint was continued"
        assert second["read_through"] == {journal: len(content) for journal, content in truth.items()}
        verdict = check_table(self.directory / "table", truth, app_id=everywhere_job.APP_ID)
        assert verdict.exact, verdict

    def check_the_rest(self, seen: dict[str, Any]) -> None:
        truth = dict(self.content)
        truth[self.prefix + "main/a"] += self.MORE
        assert seen["typed"] == sorted(
            [record["id"], record["text"], journal, offset]
            for journal, offset, value in raw_rows(truth)
            for record in [json.loads(value)]
        )
        assert seen["conflict"], CONFLICT
        assert seen["formatted"] == sorted(
            [journal, offset, len(value.encode())] for journal, offset, value in raw_rows(truth)
        )

    def check_choices(self, seen: dict[str, Any]) -> None:
        truth = dict(self.content)
        truth[self.prefix + "main/a"] += self.MORE
        records = [json.loads(value) for _, _, value in raw_rows(truth)]
        assert seen["merged"] == sorted(([each["id"], each["text"]] for each in records), key=str)
        assert seen["merged_entries"]
        good = [json.loads(line) for line in lines(0, 3).splitlines()]
        bad = len(lines(0, 3))
        for name in ("parted", "adopted"):
            assert [row[:2] for row in seen[name]] == [[each["id"], each["text"]] for each in good]
        assert seen["letters"] == [[bad, "{no json"]]
        assert seen["lag"] == 0

    def errors(self, seen: dict[str, Any]) -> dict[str, str]:
        """Return our line of each error, with the names of this run removed."""
        found = {}
        for name, text in seen["errors"].items():
            ours = OUR_ERROR.findall(text)
            assert ours, f"{name}: none of our errors in: {text}"
            found[name] = ours[-1].replace(self.prefix, "").replace(str(self.directory), "")
        return found


def conf(archive: ClassArchive | None, warehouse: Path, *, compiles: bool) -> dict[str, str]:
    """Return the settings of a session with Delta on a small machine.

    Code generation for queries over few rows takes half the time of a program.
    """
    options = java_options(archive)
    settings = {f"spark.{role}.extraJavaOptions": options for role in ("driver", "executor")}
    if archive is None:
        settings["spark.jars.packages"] = "io.delta:delta-spark_4.2_2.13:4.4.0"
    return CONF | settings | ({} if compiles else INTERPRETED) | {"spark.sql.warehouse.dir": str(warehouse)}


def raw_rows(content: dict[str, bytes]) -> list[list[Any]]:
    return sorted(
        [journal, offset, value.decode()]
        for journal, held in content.items()
        for offset, value in split_records(held)
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("everywhere")


@pytest.fixture(scope="module")
def secured(root: Path) -> Iterator[BrokerHandle]:
    """A real broker that requires client certificates and tokens."""
    with secured_broker(root / "broker") as broker:
        yield broker


@pytest.fixture
def scene(secured: BrokerHandle, root: Path, request: pytest.FixtureRequest) -> Scene:
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    return Scene(secured, f"{name}/", root / name)


class Pythons:
    """Interpreters for this file: third-party packages from ``tests/wheel_env.sh``, and the wheel."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._packages = cache_folders()[0] / "wheel-env"
        if not (self._packages / "stamp").exists():
            pytest.fail("the environments of this test are not made: run `make wheel-env`")

    @cached_property
    def wheel(self) -> Path:
        return build_wheel(self._directory)

    def make(self, packages: str) -> Path:
        """Return a Python with that environment's packages, the wheel, and Spark's PySpark.

        The path is that of the command by which workers import a compiled PySpark.
        """
        made = self._directory / packages
        command = made / "bin" / COMMAND
        if made.exists():
            return command
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True, timeout=60)
        (site,) = made.glob("lib/python*/site-packages")
        (shared,) = (self._packages / packages).glob("lib/python*/site-packages")
        # Python adds a folder named in a .pth file to its path, but does not read that folder's .pth files.
        (site / "shared.pth").write_text(f"{shared}\n{link_pyspark(made / 'pyspark')}\n")
        python = made / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", str(python)]
        install = ["install", "--quiet", "--no-deps", "--no-index", str(self.wheel)]
        subprocess.run([*pip, *install], check=True, timeout=120)
        return command


@pytest.fixture(scope="module")
def pythons(root: Path) -> Pythons:
    """Pythons that do not see the source tree."""
    directory = root / "pythons"
    directory.mkdir()
    return Pythons(directory)


@pytest.fixture(scope="module")
def executor_python(pythons: Pythons) -> Path:
    """A Python with only the wheel and its dependencies: without pyspark, pandas and Delta."""
    return pythons.make("run")


@pytest.fixture(scope="module")
def cluster(root: Path, executor_python: Path) -> Iterator[StandaloneCluster]:
    directory = root / "cluster"
    directory.mkdir()
    with StandaloneCluster(directory, python=executor_python, archive=find_archive()) as made:
        yield made


@pytest.fixture(scope="module")
def classic_errors(
    spark: SparkSession, secured: BrokerHandle, root: Path, request: pytest.FixtureRequest
) -> dict[str, str]:
    """The errors of a classic local session for each mistake."""
    scene = Scene(secured, "classic/", root / "classic")
    # Other Spark tests show in every run that a classic session reads typed rows and detects conflicts.
    whole = request.config.getoption("--soak")
    seen = everywhere_job.observe(spark, scene.settings(also=REST if whole else ()))
    scene.check(seen)
    if whole:
        scene.check_the_rest(seen)
    scene.check_secrets(seen)
    return scene.errors(seen)


def submit(
    scene: Scene,
    cluster: StandaloneCluster,
    python: Path,
    executors: Path,
    **told: Collection[str],
) -> None:
    archive = find_archive()
    env = server_environment(executors, archive)
    events = scene.directory / "events"
    events.mkdir()
    settings = (
        conf(archive, scene.directory / "warehouse", compiles=True)
        | SEEN_BY_SPARK
        | SPECULATION
        | {
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
            "spark.eventLog.dir": events.as_uri(),
            "spark.pyspark.driver.python": str(python),
            "spark.pyspark.python": str(executors),
        }
    )
    command: list[str | Path] = [
        spark_home() / "bin" / "spark-submit",
        *("--master", cluster.url, *conf_arguments(settings)),
        *scene.program(**told),
    ]
    log = scene.directory / "driver.log"
    with SparkProcess(command, log=log, env=env) as driver:
        driver.wait(JOB_TIMEOUT_S)


def assert_only_from(home: Path, seen: dict[str, Any]) -> None:
    """Check that a Python imports the package from below ``home``, and has no other copy on its path."""
    files, path = (
        [Path(os.path.normpath(Path(seen["cwd"], entry))) for entry in seen[what]]
        for what in ("files", "path")
    )
    assert all(home in file.parents for file in files), seen
    elsewhere = [entry for entry in path if home not in entry.parents]
    assert not [entry for entry in elsewhere if (entry / "gazette_spark").exists()], seen


def test_classic_errors_name_what_is_wrong(classic_errors: dict[str, str]) -> None:
    """The errors that other places are compared with name option, journal and offset."""
    offset = len(lines(0, 3))
    assert classic_errors["unknown_option"].startswith("OptionError: option 'startingofsets'")
    assert "'maxBytesPerTrigger': got \"much\"" in classic_errors["bad_value"]
    assert f"'{everywhere_job.MISSING}'" in classic_errors["missing_journal"]
    for name in ("malformed_record", "malformed_record_in_a_stream"):
        assert f"'{everywhere_job.BROKEN}'" in classic_errors[name]
        assert f"offset {offset}" in classic_errors[name]
    assert "the batch overlaps the table" in classic_errors["table_of_another_query"]


@pytest.mark.soak  # In every run Spark Connect also runs from the wheel in a separate environment.
def test_a_standalone_cluster_whose_executors_have_the_wheel(
    scene: Scene,
    cluster: StandaloneCluster,
    pythons: Pythons,
    classic_errors: dict[str, str],
) -> None:
    """Batch, stream, table and errors equal those of a local session, and both executors take part.

    Only the driver has the files of the token and the certificates. A stream outlives its first token.
    Failing tasks, and tasks with speculative copies, write each row once.
    """
    scene.enter_by_files()
    driver, executors = pythons.make("connect"), pythons.make("run")
    scene.rotating = {"auth.tokenFile": "rotating"}
    with renewed(scene.directory / "rotating", ROTATING_S):
        submit(scene, cluster, driver, executors, also=("copied", *REST), failures=classic_errors)
    seen = scene.result()
    scene.check(seen)
    assert seen["idle"] == ["first", "second"]
    assert seen["tried"] == ["attempt-0-0", "attempt-0-1", "attempt-1-0", "attempt-1-1"]
    assert seen["copied"] == list(range(40))
    assert seen["all"] > 42, "rows of attempts that do not count are there, too"
    scene.check_the_rest(seen)
    assert scene.errors(seen) == classic_errors
    assert len(seen["pages"]) > 10
    scene.check_secrets(seen, cluster.directory)
    assert_only_from(driver.parents[1], seen["driver"])
    assert len({task["cwd"] for task in seen["imported"]}) == 2
    for task in seen["imported"]:
        assert task["same"]
        assert Path(task["pyspark"]).is_file(), task
        assert_only_from(executors.parents[1], task)


def closed_windows(rows: Iterable[list[Any]]) -> list[list[Any]]:
    """Return the windows of raw rows that end no later than the last row's time, the watermark."""
    places = [(journal, offset // everywhere_job.WINDOW) for journal, offset, _ in rows]
    last = max(offset for _, offset, _ in rows)
    found = [
        [journal, number * everywhere_job.WINDOW, count]
        for (journal, number), count in Counter(places).items()
        if (number + 1) * everywhere_job.WINDOW <= last
    ]
    assert found
    return sorted(found)


@pytest.mark.parametrize("whole", WHOLE)
def test_spark_connect(whole: bool, scene: Scene, pythons: Pythons, classic_errors: dict[str, str]) -> None:
    python = pythons.make("connect")
    directory = scene.directory / "server"
    directory.mkdir()
    also = (*REST, "choices", "windowed") if whole else ("conflict", "windowed")
    failures = classic_errors.keys() if whole else ON_CONNECT
    archive = find_archive()
    events = directory / "events"
    events.mkdir()
    settings = (
        conf(archive, directory / "warehouse", compiles=whole)
        | SEEN_BY_SPARK
        | {
            "spark.eventLog.dir": events.as_uri(),
            "spark.redaction.string.regex": MASK.findall(PAGE.read_text())[0].strip(),
        }
    )
    with ConnectServer(directory, conf=settings, python=python, archive=archive) as server:
        program = scene.program(remote=server.url, also=also, failures=failures)
        env = server_environment(python)
        del env["SPARK_HOME"]
        with SparkProcess([python, *program], log=scene.directory / "client.log", env=env) as client:
            client.wait(JOB_TIMEOUT_S)
    seen = scene.result()
    assert seen["session"] == "pyspark.sql.connect.session"
    scene.check(seen)
    scene.check_secrets(seen)
    assert seen["conflict"], CONFLICT
    assert seen["windows"] == closed_windows(seen["table"])
    if whole:
        scene.check_the_rest(seen)
        scene.check_choices(seen)
    assert scene.errors(seen) == {name: classic_errors[name] for name in failures}
    for task in seen["imported"]:
        assert Path(task["pyspark"]).is_file(), "each worker compiles a PySpark that comes from a zip"
    for place in [seen["driver"], *seen["imported"]]:
        assert_only_from(python.parents[1], place)
