"""`saga forget` and an undo of the same saga exclude each other: an undo needs the images that a forget deletes."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest

from saga_workers.client import Client
from saga_workers.interventions import undo
from saga_workers.privacy import forgetting
from saga_workers.undo_start import EndedStart, start_undo
from saga_workers.views.accesses import with_accesses
from saga_workers.views.saga_view import read_view
from sagas.errors import RefusedError
from sagas.project import Project
from sagas.protocol.saga_view import SagaView
from sagas.settings import load_settings
from tests.helpers.forked_commands import run_command
from tests.helpers.local_worker import finished
from tests.helpers.processes import WorkerProcess
from tests.helpers.sampling import scaled
from tests.helpers.waiting import until
from tests.integration.trust.test_encrypted_values import CARD, project, shop
from tests.integration.trust.test_forgotten_values import STEPS

__all__ = ["project", "shop"]  # fixtures

_ROUNDS = scaled(2, 20)


async def forget(client: Client, saga_id: str) -> None:
    """Forget the values of a saga as `saga forget` does."""
    locator, settings = client.locator, client.project.settings
    subject = await forgetting.find_subject(locator, settings, saga_id, delete_run=False)
    await forgetting.forget(locator, settings, subject, who="ada", reason="asked", delete_run=False)


async def state_of(client: Client, saga_id: str) -> str:
    return (await read_view(client.locator, saga_id)).state


async def undo_without_look(client: Client, saga_id: str) -> None:
    """Start the undo, whatever the ledger says of the saga."""
    view = await read_view(client.locator, saga_id)
    undoes = EndedStart(view.generation or 0, view.started_at or "")
    queue = client.project.settings.temporal.task_queue
    await start_undo(client.locator, saga_id, "orders", queue, reason="returned", who="bob", undoes=undoes)


def records(shop: str, saga_id: str) -> int:
    with psycopg.connect(shop.replace("+psycopg", "")) as database:
        query = "select count(*) from saga_audit where saga_id = %s and what = 'forget'"
        row = database.execute(query, (saga_id,)).fetchone()
    assert row is not None
    return int(row[0])


def bills(shop: str) -> set[str]:
    with psycopg.connect(shop.replace("+psycopg", "")) as database:
        return {id for (id,) in database.execute("select id from bills")}


async def completed(client: Client, order: str) -> str:
    """A new saga that has completed, and is in the ledger."""
    saga_id = f"orders-{uuid.uuid4()}"
    await client.start("orders", {"card": CARD, "order": order}, id=saga_id)
    assert (await finished(client, saga_id))["state"] == "COMPLETED"

    async def in_ledger() -> bool:
        return await client.locator.ledger.find(saga_id) is not None

    await until(in_ledger)
    return saga_id


@pytest.mark.slow
async def test_either_the_undo_or_the_forget_is_refused(project: Project, tmp_path: Path, shop: str) -> None:
    (tmp_path / "orders.saga.yaml").write_text(STEPS.partition("  - {id: c,")[0])  # without the nested saga
    project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    queue = project.settings.temporal.task_queue
    with psycopg.connect(shop.replace("+psycopg", ""), autocommit=True) as database:
        database.execute("create table bills (id text primary key, name text)")
    async with await Client.connect(project) as client:
        with WorkerProcess("worker", tmp_path):
            late, early = await completed(client, "late"), await completed(client, "early")

            # The forget is recorded, and has not looked for a run yet: an undo of any client is refused by the worker.
            await client.locator.ledger.begin_forgetting([late], who="ada", reason="asked")
            for _ in range(100):  # as many as are listed
                await client.locator.ledger.record_access(late, "pause", who="bob", reason=None)
            await undo_without_look(client, late)
            with pytest.raises(Exception, match="failed"):
                await client.temporal.get_workflow_handle(f"{late}~undo").result()
            assert (await state_of(client, late), "late" in bills(shop)) == ("COMPLETED", True)
            view = await with_accesses(client.locator, await read_view(client.locator, late))
            assert "a forget of its values was begun" in (view.undo_refusal or "")
            await forget(client, late)

            lost = await completed(client, "lost")
            with psycopg.connect(shop.replace("+psycopg", ""), autocommit=True) as database:
                database.execute("delete from saga_image where saga_id = %s", (lost,))
            await undo_without_look(client, lost)

            async def parked() -> SagaView | None:
                view = await with_accesses(client.locator, await read_view(client.locator, lost))
                return view if view.parked else None

            assert "retry" in (await until(parked)).parked[0].decisions
            await client.locator.ledger.begin_forgetting([lost], who="ada", reason="asked")
            [operation] = (await until(parked)).parked
            assert "a forget of its values was begun" in operation.why
            assert not [text for text in (*operation.decisions, *operation.commands) if "retry" in text], operation

            for round in range(_ROUNDS):
                saga_id, order = await completed(client, f"order-{round}"), f"order-{round}"
                undoing = undo(client.locator, saga_id, reason="returned", who="bob", task_queue=queue)
                ended = await asyncio.gather(undoing, forget(client, saga_id), return_exceptions=True)
                problems = [each for each in ended if isinstance(each, BaseException)]
                assert all(isinstance(each, RefusedError) for each in problems), problems
                if not isinstance(ended[0], BaseException):
                    with_end = client.temporal.get_workflow_handle(f"{saga_id}~undo")
                    await asyncio.wait([asyncio.ensure_future(with_end.result())])
                is_undone = await state_of(client, saga_id) == "COMPENSATED"
                assert is_undone == (order not in bills(shop))
                assert is_undone or isinstance(ended[1], RefusedError) or records(shop, saga_id) == 1

        # Without a worker the undo has begun and has done nothing yet: the forget leaves it its images.
        await undo_without_look(client, early)
        subject_command = ["forget", early, "--reason", "asked", "--yes"]
        refused = run_command(subject_command, tmp_path)
        assert (refused.returncode, records(shop, early)) == (9, 0), refused
        with WorkerProcess("worker", tmp_path):
            await client.temporal.get_workflow_handle(f"{early}~undo").result()
            assert (await state_of(client, early), "early" in bills(shop)) == ("COMPENSATED", False)
            done = run_command([*subject_command, "--json"], tmp_path)
            places: list[dict[str, Any]] = json.loads(done.stdout)["places"]
            assert "shop: images in saga_image" in {place["place"] for place in places}, done
