"""A signal that the worker of its saga cannot decrypt is not sent: it waits or is refused, and never is lost."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from saga_workers.client import Client
from sagas.errors import RefusedError
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.forked_commands import run_command
from tests.helpers.local_worker import finished
from tests.helpers.processes import WorkerProcess
from tests.integration.trust.test_encrypted_values import CARD, new_key, project, shop, until_waiting

__all__ = ["project", "shop"]  # fixtures


@pytest.mark.parametrize("of_worker", ["the earlier key", "no key"])
async def test_a_signal_with_a_key_that_the_worker_lacks_is_refused(
    project: Project, tmp_path: Path, of_worker: str
) -> None:
    key_file, earlier, later = tmp_path / "codec.key", (tmp_path / "codec.key").read_text(), new_key()
    toml = tmp_path / "saga.toml"
    configured = toml.read_text(encoding="utf-8")
    if of_worker == "no key":
        toml.write_text(configured.replace('[codec]\nkey = {file = "codec.key"}\n', ""), encoding="utf-8")
    saga_id = f"waits-{uuid.uuid4()}"
    with WorkerProcess("worker", tmp_path):
        plain = Project(load_settings(config=str(toml)))
        async with await Client.connect(plain) as client:
            await client.start("waits", {"card": CARD}, id=saga_id)
            await until_waiting(client, saga_id)
        toml.write_text(configured, encoding="utf-8")
        key_file.write_text(f"{later}\n{earlier}", encoding="utf-8")  # too early: the worker must have it first
        signal = ["signal", saga_id, "approved", "--data", '{"first": true}']
        refused = run_command(signal, tmp_path)
        assert (refused.returncode, "does not have the key" in refused.stderr) == (9, True), refused
        async with await Client.connect(Project(load_settings(config=str(toml)))) as client:
            with pytest.raises(RefusedError, match="does not have the key"):
                await client.signal(saga_id, "approved", {"first": True})
    unanswered = run_command(signal, tmp_path)
    assert (unanswered.returncode, "ignores it if it lacks the key" in unanswered.stderr) == (0, True), unanswered
    with WorkerProcess("with", tmp_path):
        async with await Client.connect(Project(load_settings(config=str(toml)))) as client:
            assert (await finished(client, saga_id))["output"]["data"] == {"first": True}
