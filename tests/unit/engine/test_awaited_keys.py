"""Signatures with a key that the worker lacks: another one may have it, unless nobody had that of an earlier one."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_workers.worker import worker_trust
from saga_workers.worker.worker_trust import WorkerTrust
from sagas.actions.registry import Actions
from sagas.project import Project
from sagas.settings import Settings


def test_a_run_waits_once_for_a_key_that_nobody_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "0123456789ab"
    monkeypatch.setattr(worker_trust, "KEY_WAIT", 1000.0)
    trust = WorkerTrust(Project(Settings(root=tmp_path, definition_folders=(tmp_path,)), Actions([])))
    answer = {"key": key, "hmac": "none"}
    assert trust.awaited_key("run-1 a", answer) == key
    monkeypatch.setattr(worker_trust, "KEY_WAIT", 0.0)
    assert trust.awaited_key("run-1 a", answer) is None
    monkeypatch.setattr(worker_trust, "KEY_WAIT", 1000.0)
    assert trust.awaited_key("run-1 b", answer) is None, "a further answer of this run"
    assert trust.awaited_key("run-2 a", answer) == key
