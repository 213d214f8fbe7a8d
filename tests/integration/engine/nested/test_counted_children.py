"""A nested saga is terminated or deleted, and an operator decides at its parent that it is done: its effects stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from saga_workers.client import Client
from saga_workers.location.locator import Locator
from saga_workers.stuck import counted_children
from saga_workers.stuck.continuation import continue_saga
from saga_workers.stuck.open_sagas import find_lost
from sagas.errors import RefusedError
from sagas.protocol.saga_view import SagaView
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, handle, resolve
from tests.integration.engine.nested.families import (
    GO,
    advice_of,
    begin_waiting_child,
    book,
    define_child,
    define_parent,
)

PARENT, CHILD = define_parent(book("z"), child="on_failure: park"), define_child(book("x"), GO, book("y"))


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("deleted", [False, True], ids=["terminated", "deleted"])
async def test_nothing_of_it_is_undone_until_its_parent_is(env: Environment, deleted: bool) -> None:
    async with env.serving(PARENT, CHILD) as client:
        id = await begin_waiting_child(client)
        child = f"{id}/child"
        await handle(client, child).terminate("by mistake")
        await until(lambda: _is_parked(client, id))
        assert f"saga resume {child}" in await advice_of(client, child)
        if deleted:
            await delete_run(client.temporal, child)
        story = await resolve(client, id, "child", "done", result={"booked": 1}, evidence="mail")
        assert story["state"] == "COMPLETED"
        assert await advice_of(client, child) == ""
        with pytest.raises(RefusedError) as refused:
            await continue_saga(client.locator, child, "ada")
        assert await find_lost(client.locator, client.project.settings, suspects=[child]) == []
        assert await env.effects() == ["a", "x", "z"]
        if not deleted:
            assert (refused.value.help or "").startswith(f"saga undo {id} --reason '…'    undoes both")
        await client.undo(id, reason="not wanted", who="ada")
        assert (await finished(client, id))["state"] == "COMPENSATED"
    assert await env.effects() == []


async def _is_parked(client: Client, id: str) -> bool:
    return (await client.show(id))["state"] == "PARKED"


async def test_nothing_is_undone_while_the_parent_does_not_tell(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with env.serving(PARENT, CHILD) as client:
        id = await begin_waiting_child(client)
        child = f"{id}/child"
        await handle(client, child).terminate("by mistake")
        await until(lambda: _is_parked(client, id))
        told = counted_children.read_view

        async def untold(locator: Locator, saga_id: str) -> SagaView:
            return replace(await told(locator, saga_id), steps=())

        with monkeypatch.context() as patch:
            patch.setattr(counted_children, "read_view", untold)
            with pytest.raises(RefusedError, match="does not tell whether it has it as done"):
                await continue_saga(client.locator, child, "ada")
        assert await env.effects() == ["a", "x"]
        assert "undone" in await continue_saga(client.locator, child, "ada")
        assert await env.effects() == ["a"]
