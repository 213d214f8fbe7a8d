"""Changes of a project's files, and the processes that each of them restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_workers.devstack.dev_folder import DevFolder
from saga_workers.devstack.project_processes import ProjectProcess, RelayService, TriggerService, WorkerService
from sagas.settings import load_settings

READERS: dict[str, list[type[ProjectProcess]]] = {
    "definitions/order.saga.yaml": [WorkerService, TriggerService],
    "actions.py": [WorkerService, TriggerService],
    "saga.toml": [WorkerService, TriggerService, RelayService],
    "schema.sql": [],
    "README.md": [],
}


@pytest.mark.parametrize("changed", READERS)
def test_a_change_concerns_only_those_who_read_the_file(changed: str, tmp_path: Path) -> None:
    for name in READERS:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
    settings = load_settings(tmp_path)
    processes = [kind(settings, DevFolder(tmp_path)) for kind in (WorkerService, TriggerService, RelayService)]
    before = [process.prepare({}) for process in processes]
    (tmp_path / changed).write_text("# changed")
    outdated = [type(process) for process, data in zip(processes, before, strict=True) if process.is_outdated(data)]
    assert outdated == READERS[changed]


def test_a_relay_that_delivers_enqueued_rows_reads_the_definitions(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text(
        '[connections.shop]\nurl = "sqlite:///shop.db"\n[enqueue]\nconnections = ["shop"]\n'
    )
    relay = RelayService(load_settings(tmp_path), DevFolder(tmp_path))
    before = relay.prepare({})
    (tmp_path / "order.saga.yaml").write_text("# new")
    assert relay.is_outdated(before)
