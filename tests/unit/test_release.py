"""The workflow that makes a release."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())


def test_only_the_last_job_may_publish_and_only_a_tag_is_published() -> None:
    """No other job has a right that matters, and none is left out by the one that publishes."""
    jobs = WORKFLOW["jobs"]
    publish = jobs.pop("publish")
    assert publish["if"] == "github.ref_type == 'tag'"
    assert set(publish["needs"]) == set(jobs)
    assert publish["permissions"]["id-token"] == "write"
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in jobs.values())


def test_files_and_modules_that_the_workflow_runs_exist() -> None:
    """Scripts of the repository, by the names they have here."""
    text = yaml.safe_dump(WORKFLOW)
    scripts = re.findall(r"\b((?:tests|tools)/[\w/]+\.(?:py|sh))", text)
    modules = re.findall(r"-m ((?:tests|tools)\.[\w.]+)", text)
    assert len(scripts) >= 2
    assert len(modules) >= 1
    paths = [*scripts, *(f"{module.replace('.', '/')}.py" for module in modules)]
    assert [path for path in paths if not (ROOT / path).exists()] == []
