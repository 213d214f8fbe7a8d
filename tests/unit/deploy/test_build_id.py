"""Build ids of workers in the Web UI: one changes with what the worker decides by, and with nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.common import WorkerDeploymentVersion

from saga_cli import main
from saga_cli.commands.operate import worker
from saga_workers.worker import worker_process
from saga_workers.worker.worker_process import build_id
from sagas.project import Project
from sagas.settings import load_settings

SAGA = """
saga: shop
steps:
  - {id: pay, uses: sql, with: {connection: shop, run: "STATEMENT"}, pivot: true}
"""


def project(folder: Path, statement: str, comment: str = "") -> Project:
    folder.mkdir()
    (folder / "saga.toml").write_text(
        'definitions = ["."]\n[connections.shop]\nurl = "sqlite:///shop.db"\n', encoding="utf-8"
    )
    (folder / "shop.saga.yaml").write_text(SAGA.replace("STATEMENT", statement) + comment, encoding="utf-8")
    project = Project(load_settings(folder, env={}))
    assert set(project.definitions) == {"shop"}, project.diagnostics
    return project


def test_a_build_is_the_version_and_the_definitions(tmp_path: Path) -> None:
    build = build_id(project(tmp_path / "one", "update a set b = 1"))
    assert build.startswith("saga-")
    assert build_id(project(tmp_path / "same", "update a set b = 1", "# another comment\n")) == build
    assert build_id(project(tmp_path / "other", "update a set b = 2")) != build


def test_the_command_starts_a_worker_of_a_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`saga worker --deployment NAME --build-id ID`."""
    versions: list[Any] = []

    async def run_worker(_: Project, **options: Any) -> None:
        versions.append(options["deployment"])

    monkeypatch.setattr(worker_process, "run_worker", run_worker)
    monkeypatch.setattr(worker, "start_logging", lambda _: None)
    (tmp_path / "saga.toml").write_text("")
    command = ["--config", str(tmp_path), "worker", "--deployment", "shop"]
    assert main.run(command) == 2
    assert main.run([*command, "--build-id", "2.0"]) == 0
    assert versions == [WorkerDeploymentVersion("shop", "2.0")]


@pytest.mark.parametrize(
    ("deployment", "build", "empty"),
    [("shop", "", "--build-id"), ("", "2.0", "--deployment"), ("", "", "--deployment"), ("shop", " ", "--build-id")],
)
def test_an_empty_name_does_not_switch_versioning_off(
    deployment: str, build: str, empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """An unset variable of a script: `--build-id "$BUILD"`."""

    async def run_worker(_: Project, **options: Any) -> None:
        pytest.fail(f"a worker runs with {options['deployment']}")

    monkeypatch.setattr(worker_process, "run_worker", run_worker)
    monkeypatch.setattr(worker, "start_logging", lambda _: None)
    (tmp_path / "saga.toml").write_text("")
    code = main.run(["--config", str(tmp_path), "worker", "--deployment", deployment, "--build-id", build])
    assert (code, f"{empty} is empty" in capsys.readouterr().err) == (2, True)
