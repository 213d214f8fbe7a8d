"""A database driver that is not installed is named with the command that installs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from saga_activities.connections import open_engine
from saga_workers.runtime.databases import open_command_engine
from sagas.errors import UsageError
from sagas.settings import load_settings

NEXT_STEP = r"the driver asyncmy is not installed; pip install 'saga-orchestrator\[mysql\]'"


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
def test_the_extra_of_a_missing_driver_is_named(tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saga.toml").write_text(f'[connections.crm]\nurl = "{scheme}://crm@127.0.0.1/crm"\n')
    connection = load_settings(tmp_path / "saga.toml").sql_connection("crm")
    monkeypatch.setitem(sys.modules, "asyncmy", None)
    with pytest.raises(UsageError, match=NEXT_STEP):
        open_command_engine(connection)
    with pytest.raises(UsageError, match=NEXT_STEP):
        open_engine("crm", connection.url, 1)
