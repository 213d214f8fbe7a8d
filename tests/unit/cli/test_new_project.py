"""`saga init`: the files it makes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from saga_cli import main
from sagas.project import Project
from sagas.settings import load_settings

PATTERNS = Path(__file__).parents[3] / "definitions" / "patterns"


def test_a_new_project_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(["init", "My_Shop"]) == 0
    project = Project(load_settings(tmp_path / "My_Shop", env={}))
    assert list(project.definitions) == ["my-shop"]
    assert project.diagnostics == []
    assert "{{" not in (tmp_path / "My_Shop" / "README.md").read_text(encoding="utf-8")
    recommended = json.loads((tmp_path / "My_Shop" / ".vscode" / "extensions.json").read_text(encoding="utf-8"))
    assert "redhat.vscode-yaml" in recommended["recommendations"]


def test_the_demo_is_a_project_as_well(tmp_path: Path) -> None:
    assert main.run(["init", str(tmp_path / "retail"), "--demo"]) == 0
    project = Project(load_settings(tmp_path / "retail", env={}))
    assert "checkout" in project.definitions


@pytest.mark.parametrize("name", sorted(folder.parent.name for folder in PATTERNS.glob("*/saga.toml")))
def test_a_pattern_is_a_project_with_commands_to_try(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    assert main.run(["init", str(folder), "--pattern", name]) == 0
    project = Project(load_settings(folder, env={}))
    assert name in project.definitions
    assert project.diagnostics == []
    assert "](../" not in (folder / "README.md").read_text(encoding="utf-8")
    printed = capsys.readouterr().out
    assert "saga dev up" in printed
    assert f"saga start {name}" in printed or name == "claimed-event"


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--pattern", "tc"], "no pattern 'tc'"), (["--pattern", "tcc", "--demo"], "are different projects")],
)
def test_a_wrong_choice_of_example_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["init", str(tmp_path / "new"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        ("a b", "is not a project name"),
        ("9lives", "is not a project name"),
        ("full", "is not empty"),
        ("file", "is a file"),
        ("file/below", "cannot be"),
    ],
)
def test_init_refuses_unusable_folders(
    directory: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    assert main.run(["init", directory]) != 0
    assert message in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == ""


def test_init_accepts_an_empty_repository(tmp_path: Path) -> None:
    (tmp_path / "shop" / ".git").mkdir(parents=True)
    assert main.run(["init", str(tmp_path / "shop")]) == 0
