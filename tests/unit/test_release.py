"""The files that make a release: the workflow and the lock file."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())


def test_only_the_last_job_may_publish_and_only_a_tag_is_published() -> None:
    """No other job has write permissions, and the publishing job depends on all others."""
    jobs = WORKFLOW["jobs"]
    publish = jobs.pop("publish")
    assert publish["if"] == "github.ref_type == 'tag'"
    assert set(publish["needs"]) == set(jobs)
    assert publish["permissions"]["id-token"] == "write"
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in jobs.values())


def test_files_and_modules_that_the_workflow_runs_exist() -> None:
    text = yaml.safe_dump(WORKFLOW)
    scripts = re.findall(r"\b((?:tests|tools)/[\w/]+\.(?:py|sh))", text)
    modules = re.findall(r"-m ((?:tests|tools)\.[\w.]+)", text)
    assert len(scripts) >= 2
    assert len(modules) >= 1
    paths = [*scripts, *(f"{module.replace('.', '/')}.py" for module in modules)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def requirements() -> list[str]:
    """Return the requirements of a development installation, without the package's own extras."""
    extras = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *extras["spark"], *extras["lag"], *extras["ingest"], *extras["docs"]]
    texts += [
        text for text in (*extras["applications"], *extras["dev"]) if not text.startswith("gazette-spark")
    ]
    return texts


def locked() -> dict[str, list[str]]:
    """Return the lock file's entries by package: one, or one for each of several Pythons."""
    entries: dict[str, list[str]] = {}
    for entry in re.split(r"\n(?=[a-z0-9])", (ROOT / "requirements-dev.txt").read_text()):
        if not entry.startswith("#"):
            entries.setdefault(canonicalize_name(entry.partition("==")[0]), []).append(entry)
    return entries


def test_the_extra_spark_takes_no_pyspark_that_its_delta_refuses() -> None:
    """Otherwise pip downloads 450 MB of a newer PySpark first, and then the release that fits."""
    spark, delta = (Requirement(text) for text in PROJECT["optional-dependencies"]["spark"])
    requirements_of_delta = [Requirement(text) for text in metadata.requires(delta.name) or ()]
    (bounds,) = (required.specifier for required in requirements_of_delta if required.name == spark.name)
    assert set(bounds) <= set(spark.specifier)


def test_the_lock_file_has_what_is_required() -> None:
    """After a change of a requirement run ``make lock``. Each file has a hash."""
    entries = locked()
    missing = []
    for requirement in map(Requirement, requirements()):
        versions = [
            re.split(r"[ ;]", entry.partition("==")[2])[0]
            for entry in entries.get(canonicalize_name(requirement.name), ())
        ]
        if not versions or not all(requirement.specifier.contains(version) for version in versions):
            missing.append(str(requirement))
    assert missing == []
    assert all("--hash=sha256:" in entry for of_package in entries.values() for entry in of_package)
