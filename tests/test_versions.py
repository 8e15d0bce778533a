"""What is tested is what is declared: the versions in the workflow, pyproject.toml and README."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    return yaml.safe_load(text)["jobs"]["test"]


def pairs(job: dict[str, Any]) -> list[tuple[str, str]]:
    """(JAX, Python), oldest first."""
    return [(case["jax"], case["python"]) for case in job["strategy"]["matrix"]["include"]]


def test_the_pythons_that_are_declared_are_tested(job: dict[str, Any]) -> None:
    name = "Programming Language :: Python :: "
    declared = [line.removeprefix(name) for line in PROJECT["classifiers"] if name in line]
    assert [python for _, python in pairs(job)] == declared
    assert PROJECT["requires-python"] == f">={declared[0]}"


def test_the_oldest_jax_that_may_be_installed_is_tested(job: dict[str, Any]) -> None:
    assert f"jax>={pairs(job)[0][0]}" in PROJECT["dependencies"]


def test_the_readme_names_the_versions_that_are_tested(job: dict[str, Any]) -> None:
    said = re.findall(r"JAX ([\d.]+\d) on Python ([\d.]+\d)", (ROOT / "README.md").read_text())
    assert said == pairs(job)


def test_the_workflow_runs_targets_that_exist(job: dict[str, Any]) -> None:
    lines = [step["run"] for step in job["steps"] if step.get("run", "").startswith("make")]
    targets = [line.split()[-1] for line in lines]
    assert {"test", "slow"} <= set(targets)
    made = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(targets) <= set(made)
