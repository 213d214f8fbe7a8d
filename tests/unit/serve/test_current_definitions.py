"""A process that runs for long learns of definitions that are added, changed, broken and deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_workers.runtime import current_definitions
from saga_workers.runtime.current_definitions import CurrentDefinitions
from sagas.project import Project
from sagas.settings import load_settings

SAGA = "saga: {name}\nsteps:\n  - {{id: step, uses: pass, name: {title}}}\n"


async def test_files_are_read_again_when_they_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(current_definitions, "_INTERVAL", 0.0)
    (tmp_path / "saga.toml").write_text('definitions = ["."]\n')
    first, second = tmp_path / "first.saga.yaml", tmp_path / "second.saga.yaml"
    first.write_text(SAGA.format(name="first", title="Old"))
    project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    current = CurrentDefinitions(project)
    before = await current.read()
    assert (set(before), await current.read() is before) == ({"first"}, True)

    first.write_text(SAGA.format(name="first", title="A newer title"))
    second.write_text(SAGA.format(name="second", title="New"))
    assert set(await current.read()) == set(project.definitions) == {"first", "second"}
    assert project.definitions["first"].steps[0].name == "A newer title"

    first.write_text("saga: first\nsteps: [{id: step, uses: nothing-of-this-process}]\n")
    second.unlink()
    kept = await current.read_now()
    assert (set(kept), kept["first"].steps[0].name) == ({"first", "second"}, "A newer title")
    assert {diagnostic.severity for diagnostic in project.diagnostics} == {"error"}
    logged = [(record.levelname, "there is no action" in record.getMessage()) for record in caplog.records]
    assert [line for line in logged if line[1]] == [("ERROR", True)]


async def test_a_folder_that_cannot_be_read_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_definitions, "_INTERVAL", 0.0)
    (tmp_path / "saga.toml").write_text('definitions = ["sagas"]\n')
    folder = tmp_path / "sagas"
    folder.mkdir()
    (folder / "first.saga.yaml").write_text(SAGA.format(name="first", title="Old"))
    current = CurrentDefinitions(Project(load_settings(config=str(tmp_path / "saga.toml"))))
    assert set(await current.read()) == {"first"}
    folder.rename(tmp_path / "moved")
    assert set(await current.read_now()) == {"first"}
