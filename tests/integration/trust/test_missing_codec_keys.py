"""A command without the key of a value names the key: it takes nothing for unsigned, gone or in order."""

from __future__ import annotations

import uuid
from pathlib import Path

import psycopg
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client as Temporal

from saga_activities.value_cipher import ValueCipher, encrypted_text
from saga_activities.value_places import event_place
from saga_cli.exit_codes import DIFFERENCES
from saga_workers.client import Client
from saga_workers.ledger.run_ledger import using_ledger
from saga_workers.relay.relay_status import unreadable_event
from sagas.project import Project
from sagas.settings import load_settings
from sagas.settings.codec import load_codec_keys
from tests.helpers.forked_commands import run_command
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.helpers.waiting import until
from tests.integration.trust.test_encrypted_values import CARD, new_key, shop, write_project

__all__ = ["shop"]  # a fixture

_EVENT = """insert into saga_outbox (event_id, topic, value, headers, saga_id, step, generation, status, created_at)
values (%s, 'orders', %s, '{}', 's', 'a', 1, 'NEW', 0)"""

_YEARLY = """saga: yearly
triggers: {schedule: {cron: "0 0 1 1 *"}}
steps: [{id: a, uses: pass}]
"""


@pytest_asyncio.fixture
async def project(tmp_path: Path, temporal: TemporalServer, shop: str) -> Project:
    """A project in a namespace of its own: the commands look at all runs of one, also at those with other keys."""
    namespace = f"keys-{uuid.uuid4()}"
    client = await Temporal.connect(temporal.address)
    request = RegisterNamespaceRequest(namespace=namespace, workflow_execution_retention_period=Duration(seconds=86400))
    await client.workflow_service.register_namespace(request)
    return write_project(tmp_path, temporal, shop, namespace)


async def test_commands_name_a_key_that_is_missing(project: Project, tmp_path: Path, shop: str) -> None:
    settings = load_settings(config=str(tmp_path / "saga.toml"))
    cipher = ValueCipher(load_codec_keys(settings.codec.key, settings.root))
    earlier = cipher.key_id
    saga_id, waiting = f"declined-{uuid.uuid4()}", f"waits-{uuid.uuid4()}"
    (tmp_path / "yearly.saga.yaml").write_text(_YEARLY, encoding="utf-8")
    assert (done := run_command(["setup"], tmp_path)).returncode == 0, done
    with WorkerProcess("worker", tmp_path):
        async with await Client.connect(project) as client:
            await client.start("declined", {"card": CARD}, id=saga_id)
            await client.start("waits", {"card": CARD}, id=waiting)
            assert (await finished(client, saga_id))["state"] == "COMPENSATED"

            async def in_ledger() -> bool:
                return await client.locator.ledger.find(saga_id) is not None

            await until(in_ledger)
            assert (done := run_command(["schedule", "run", "yearly"], tmp_path)).returncode == 0, done
            await until(lambda: "COMPLETED" in run_command(["schedule", "show", "yearly"], tmp_path).stdout)
        (tmp_path / "codec.key").write_text(new_key(), encoding="utf-8")
        for code, command in (
            (0, ["show", saga_id]),
            (0, ["list"]),
            (0, ["schedule", "show", "yearly"]),
            (9, ["forget", saga_id, "--reason", "asked", "--yes"]),
            *[
                (9, [*command, "--reason", "asked"])
                for command in (["pause", waiting], ["cancel", waiting], ["resolve", waiting, "a", "retry"])
            ],
            (9, ["signal", waiting, "approved", "--data", "{}"]),
            (DIFFERENCES, ["reconcile"]),
        ):
            done = run_command(command, tmp_path)
            text = done.stdout + done.stderr
            assert (done.returncode, earlier in text) == (code, True), (command, done)
            for wrong in ("has signed", "no run of this saga", "everything reconciles", "no worker answers"):
                assert wrong not in text, (command, done)
        (tmp_path / "codec.key").write_text("", encoding="utf-8")
        unusable = run_command(["doctor"], tmp_path).stdout
        assert (unusable.count("codec.key needs keys"), "bug of saga" in unusable) == (1, False), unusable
        (tmp_path / "codec.key").write_text(new_key(), encoding="utf-8")
        missing = run_command(["doctor"], tmp_path).stdout
        for where in ("the engine's tables in shop", "outcomes of runs in Temporal"):
            assert f"{where}: encrypted with {earlier}, which [codec] key lacks" in missing
        assert "bug of saga" not in missing, missing
        configured = (tmp_path / "saga.toml").read_text(encoding="utf-8")
        (tmp_path / "saga.toml").write_text(
            configured.replace('[codec]\nkey = {file = "codec.key"}\n', ""), encoding="utf-8"
        )
        missing = run_command(["doctor"], tmp_path).stdout
        for where in ("the engine's tables in shop", "outcomes of runs in Temporal"):
            assert f"{where}: encrypted with {earlier}, and there is no [codec]" in missing
        assert "bug of saga" not in missing, missing
        for command in (
            ["show", waiting],
            ["show", saga_id],
            ["list", "--stuck"],
            ["parked"],
            ["signal", waiting, "approved"],
            ["cancel", waiting, "--reason", "asked"],
            ["reconcile"],
        ):
            done = run_command(command, tmp_path)
            assert "bug in saga" not in done.stderr, (command, done)
        (tmp_path / "saga.toml").write_text(configured, encoding="utf-8")
        with psycopg.connect(shop.replace("+psycopg", ""), autocommit=True) as database:
            event_id = str(uuid.uuid4())
            place = event_place({"event_id": event_id, "topic": "orders", "saga_id": "s"}, "value")
            database.execute(_EVENT, (event_id, encrypted_text(cipher, place, b"1")))
        later = load_settings(config=str(tmp_path / "saga.toml"))
        async with using_ledger(later) as ledger:
            assert earlier in (await unreadable_event(ledger.engine) or "")
