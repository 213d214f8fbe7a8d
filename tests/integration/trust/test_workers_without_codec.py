"""A project begins to encrypt: some of its workers have `[codec]` already, others not yet."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from saga_workers.client import Client
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.stuck.stuck_view import read_view_with_stuck
from saga_workers.views.saga_list import SagaFilter
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.local_worker import finished
from tests.helpers.processes import WorkerProcess
from tests.helpers.waiting import until
from tests.integration.trust.test_encrypted_values import CARD, project, shop

__all__ = ["project", "shop"]  # fixtures


@pytest.mark.slow
async def test_a_worker_without_a_codec_leaves_an_encrypted_saga_to_the_others(
    project: Project, tmp_path: Path
) -> None:
    configured = (tmp_path / "saga.toml").read_text(encoding="utf-8")
    without = configured.replace('[codec]\nkey = {file = "codec.key"}\n', "")
    assert without != configured
    (tmp_path / "saga.toml").write_text(without, encoding="utf-8")
    ids = [f"{saga}-{uuid.uuid4()}" for saga in ("returns", "waits")]
    async with await Client.connect(project) as client:
        plain = Project(load_settings(config=str(tmp_path / "saga.toml")))
        with WorkerProcess("plain", tmp_path):
            async with await Client.connect(plain) as other:
                parked = (await other.start("parks", {"card": CARD})).id
                assert (await finished(other, parked))["state"] == "PARKED"
            (tmp_path / "saga.toml").write_text(configured, encoding="utf-8")
            for id in ids:
                await client.start(id.partition("-")[0], {"card": CARD}, id=id)

            async def stuck() -> bool:
                views = [await read_view_with_stuck(client.locator, id) for id in ids]
                return all("is encrypted with the key" in " ".join(view.stuck or ()) for view in views)

            await until(stuck)
            criteria = SagaFilter(task_queue=project.settings.temporal.task_queue)
            for limit, shown in ((1, [parked]), (9, [parked, *reversed(ids)])):
                assert [view.id async for view in list_stuck(client.locator, criteria, limit=limit)] == shown
            await client.signal(ids[1], "approved", {"by": "ada"})
        with WorkerProcess("encrypting", tmp_path):
            for id in ids:
                assert (await finished(client, id))["state"] == "COMPLETED"
