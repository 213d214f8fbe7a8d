"""The checks of a pull request: the steps of action.yml as GitHub runs them, and the hooks for pre-commit."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from saga_cli import main
from tests.unit.test_message_form import ROOT

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))

ONE_STEP = "saga: wait\nsteps: [{id: a, uses: pass}]\n"
TWO_STEPS = "saga: wait\nsteps: [{id: a, uses: pass}, {id: b, uses: pass}]\n"


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@test")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of a pull request as actions/checkout makes it: its last commit alone, and no other branch."""
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    origin = tmp_path / "origin"
    definition = origin / "my shop" / "definitions" / "wait.saga.yaml"
    definition.parent.mkdir(parents=True)
    definition.write_text(ONE_STEP)
    (origin / "my shop" / "saga.toml").write_text("")
    git(tmp_path, "init", "-q", "-b", "main", str(origin))
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "first")
    git(origin, "checkout", "-qb", "feature")
    definition.write_text(TWO_STEPS)
    git(origin, "commit", "-qam", "second")
    git(tmp_path, "clone", "-q", "--depth", "1", "--branch", "feature", origin.as_uri(), "checkout")
    return tmp_path / "checkout"


def run_action(checkout: Path, **inputs: str) -> tuple[dict[str, subprocess.CompletedProcess[str]], dict[str, str]]:
    """Run the steps of action.yml. Returns each that ran, by its name, and the files that they wrote for GitHub."""
    values = {name: given.get("default", "") for name, given in ACTION["inputs"].items()}
    values |= {"base": "main", "install": "", **inputs}
    files = {name: checkout.parent / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    steps = {}
    for step in ACTION["runs"]["steps"]:
        variables = {
            name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: values[match[1]], text)
            for name, text in step["env"].items()
        }
        steps[step["name"]] = done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=checkout, capture_output=True, text=True, check=False,
            env={**os.environ, **variables, "PATH": path, **{name: str(file) for name, file in files.items()}},
        )  # fmt: skip
        if done.returncode != 0:
            break
    return steps, {name: file.read_text() if file.exists() else "" for name, file in files.items()}


def test_the_action_annotates_a_pull_request(checkout: Path) -> None:
    steps, files = run_action(checkout, directory="my shop")

    assert {name: (done.returncode, done.stderr) for name, done in steps.items()} == {
        "Install": (0, ""), "Validate": (0, ""), "Simulate": (0, ""), "Compare": (0, ""),
    }  # fmt: skip
    assert steps["Compare"].stdout.startswith("::notice file=my shop/definitions/wait.saga.yaml,line=2,")
    assert files["GITHUB_OUTPUT"] == "changed=true\n"
    assert re.search(r"^````text\nwait  (.|\n)*\n````\n$", files["GITHUB_STEP_SUMMARY"])


@pytest.mark.parametrize("base", [pytest.param("feature", marks=pytest.mark.slow), ""])
def test_the_action_tells_of_no_change_and_compares_nothing_without_a_base(checkout: Path, base: str) -> None:
    steps, files = run_action(checkout, directory="my shop", base=base)

    assert {name: done.returncode for name, done in steps.items()} == dict.fromkeys(
        ("Install", "Validate", "Simulate", "Compare"), 0
    )
    assert "::notice" not in steps["Compare"].stdout
    assert files["GITHUB_OUTPUT"] == "changed=false\n"
    assert bool(files["GITHUB_STEP_SUMMARY"]) == bool(base)


def test_the_action_fails_at_the_line_of_a_mistake(checkout: Path) -> None:
    (checkout / "my shop" / "definitions" / "wait.saga.yaml").write_text(ONE_STEP + "stepz: 1\n")
    steps, _ = run_action(checkout, directory="my shop", strict="true")
    assert list(steps) == ["Install", "Validate"]
    assert steps["Validate"].returncode == 1
    assert steps["Validate"].stdout.startswith("::error file=my shop/definitions/wait.saga.yaml,line=3,")


def test_the_action_ends_where_an_installation_fails(checkout: Path) -> None:
    steps, _ = run_action(checkout, install="exit 3")
    assert {name: done.returncode for name, done in steps.items()} == {"Install": 3}


def test_hooks_check_the_whole_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "definitions").mkdir()
    (tmp_path / "saga.toml").write_text("")
    definition = tmp_path / "definitions" / "wait.saga.yaml"
    for text, code in ((ONE_STEP, 0), ("saga: wait\n", 1)):
        definition.write_text(text)
        for hook in HOOKS:
            assert not hook["pass_filenames"]  # a change of one file may break a saga that nests it
            command = shlex.split(hook["entry"])
            assert command[0] == "saga"
            refused = main.run([*command[1:], "--config", str(tmp_path)]) != 0
            assert refused == bool(code)
            assert re.search(hook["files"], "definitions/wait.saga.yaml")
            assert re.search(hook["files"], "shop/saga.toml")
    assert "wait.saga.yaml" in capsys.readouterr().out
