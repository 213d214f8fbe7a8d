"""A ledger knows the ends of the sagas that have run with it: their effects say with which one."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from saga_activities.guard.schema import create_tables
from saga_activities.ledger.schema import create_ledger
from saga_workers.client import Client
from saga_workers.location.traces import recorded_effects
from saga_workers.stuck.resumption import start_again
from sagas.errors import UsageError
from sagas.project import Project
from sagas.settings import SqlConnection
from sagas.settings.connections import async_url
from sagas.settings.ledger import LedgerSettings
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import delete_run
from tests.integration.engine.environment import Environment, begin
from tests.integration.engine.repeated_runs import waits_at
from tests.integration.engine.test_unknown_ends import (
    MAY_HAVE_ENDED,
    SHIPPED,
    check_that_it_is_not_resumed,
    completed_and_deleted,
    lost,
)

WAITING = """
    saga: waiting
    steps:
      - {id: first, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
"""
"""All steps of it that a guard knows are done while it waits."""
OUTER = """
    saga: outer
    steps:
      - {id: inner, uses: saga, with: {name: waiting}}
"""


async def started_and_deleted(client: Client, saga: str = "waiting") -> str:
    id = await begin(client, saga)
    await waits_at(client, id if saga == "waiting" else f"{id}/inner")
    await delete_run(client.temporal, id)
    return id


async def advice(client: Client, id: str) -> str:
    with pytest.raises(UsageError) as unknown:
        await client.show(id)
    return str(unknown.value.help)


async def test_a_saga_that_had_completed_before_there_was_a_ledger_is_not_resumed(
    env: Environment, orders: AsyncEngine
) -> None:
    ledger, env.ledger = env.ledger, None
    async with env.serving(SHIPPED) as client:
        id = await completed_and_deleted(client)
    env.ledger = ledger
    async with env.serving(SHIPPED) as client:
        assert client.locator.ledger.configured
        assert f"{MAY_HAVE_ENDED}start it again with `saga resume {id}`" in (await lost(client, id)).reason
        assert "starts it again where its effects are, if it had not ended; then" in await advice(client, id)
        await check_that_it_is_not_resumed(client, id)
        await start_again(client, await client.locator.locate(id), not_ended=True)
        await waits_at(client, id)
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert await env.effects() == []


async def test_a_saga_of_this_ledger_is_resumed_wherever_it_has_stopped(env: Environment, orders: AsyncEngine) -> None:
    async with env.serving(WAITING) as client:
        id = await started_and_deleted(client)
        assert MAY_HAVE_ENDED not in (await lost(client, id)).reason
        assert "starts it again where its effects are; then" in await advice(client, id)
    async with env.again() as client:
        await start_again(client, await client.locator.locate(id))
        await waits_at(client, id)
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert await env.effects() == []


async def test_a_saga_that_has_gone_on_with_the_ledger_is_resumed(env: Environment, orders: AsyncEngine) -> None:
    ledger, env.ledger = env.ledger, None
    definition = (
        WAITING.rstrip()
        + """
      - {id: second, uses: book, compensate: unbook}
      - {id: last, uses: wait, with: {signal: last}}
"""
    )
    async with env.serving(definition) as client:
        id = await begin(client, "waiting")
        await waits_at(client, id)
    assert env.project is not None
    settings = env.project.settings.model_copy(update={"ledger": LedgerSettings(connection=ledger)})
    env.project = Project(settings, env.project.actions)
    async with env.again() as client:
        await client.signal(id, "go")
        await waits_at(client, id, "last")
        await delete_run(client.temporal, id)
        effects = await recorded_effects(client.project.settings, id)
        marks = [effect.origin.ledger for effect in effects if effect.origin is not None]
        assert marks == ["", await client.locator.ledger.identity()]
        assert MAY_HAVE_ENDED not in (await lost(client, id)).reason
        await start_again(client, await client.locator.locate(id))


async def test_another_ledger_would_not_know_the_end(env: Environment, orders: AsyncEngine, tmp_path: Path) -> None:
    async with env.serving(WAITING) as client:
        id = await started_and_deleted(client)
    url = async_url(f"sqlite:///{tmp_path / 'others.db'}", tmp_path)
    others = create_async_engine(url)
    await create_tables(others)
    await create_ledger(others)
    await others.dispose()
    env.connections["others"] = SqlConnection(name="others", root=tmp_path, url_setting=url)
    env.ledger = "others"
    async with env.serving(WAITING) as client:
        assert f"{MAY_HAVE_ENDED}start it again with `saga resume {id}`" in (await lost(client, id)).reason
        await check_that_it_is_not_resumed(client, id)
    env.ledger = None
    async with env.serving(WAITING) as client:
        await check_that_it_is_not_resumed(client, id)


async def test_the_effects_of_nested_sagas_tell_for_a_parent_that_has_none(
    env: Environment, orders: AsyncEngine
) -> None:
    async with env.serving(OUTER, WAITING) as client:
        id = await started_and_deleted(client, "outer")
        await delete_run(client.temporal, f"{id}/inner")
        assert "starts it again; then" in await advice(client, id)
        definition = client.project.definition("outer")
        await start_again(client, await client.locator.locate(id), definition=definition, input={})
        await waits_at(client, f"{id}/inner")
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert await env.effects() == []


async def test_a_ledger_that_was_made_anew_does_not_know_earlier_ends(env: Environment, orders: AsyncEngine) -> None:
    async with env.serving(WAITING) as client:
        id = await started_and_deleted(client)
    async with orders.begin() as connection:
        await connection.execute(text("update saga_outbox_home set home = 'another'"))
    async with env.serving(WAITING) as client:
        await check_that_it_is_not_resumed(client, id)
