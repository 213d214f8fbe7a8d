"""The id of a parent is used again with another input: what its nested saga has done is not that of the new one's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_workers.client import Client
from saga_workers.stuck.open_sagas import find_lost
from saga_workers.stuck.resumption import start_again
from saga_workers.stuck.verdict import judge
from sagas.errors import RefusedError, UsageError
from tests.helpers import run_changes
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle, resolve, row
from tests.integration.engine.nested.families import GO, book, define, has_state, nested
from tests.integration.engine.repeated_runs import waits_at

FIRST = "{id: first, uses: book, compensate: unbook, if: input.n == 1}"
PARENT = define("parent", FIRST, nested("sub", "child"), GO)
CHILD = define("child", book("x"))
WAITING_CHILD = define("child", book("x"), GO)


async def replace(client: Client, id: str) -> None:
    """Start the parent with another input in place of its open run."""
    queue = client.project.settings.temporal.task_queue
    await run_changes.take_id(client.temporal, id, "parent", {"n": 2}, task_queue=queue)


async def delete_and_start(client: Client, id: str) -> None:
    """Start the parent with another input after its run was deleted."""
    await delete_run(client.temporal, id)
    await begin(client, "parent", {"n": 2}, id=id)


TAKEN = pytest.mark.parametrize("take", [replace, delete_and_start])
Take = Callable[[Client, str], Awaitable[None]]


async def lost(client: Client, *ids: str) -> list[str]:
    """The sentences of `saga list --stuck` about the effects of these sagas."""
    return [saga.reason for saga in await find_lost(client.locator, client.project.settings, suspects=ids)]


@pytest.mark.sampled(turns="take")
@TAKEN
async def test_its_nested_saga_parks_at_the_effect_and_leaves_it(env: Environment, take: Take) -> None:
    async with env.serving(PARENT, CHILD) as client:
        id = await begin(client, "parent", {"n": 1})
        await waits_at(client, id)
        await take(client, id)
        await has_state(client, f"{id}/sub", "PARKED")
        parked = await client.show(f"{id}/sub")
        assert parked["parked"][0]["why"] == "key used with other arguments"
        assert "another saga with this id" in row(parked, "x")["error"]["message"]
        assert await client.cancel(id) == "accepted"
        story = await finished(client, id)
        if story["state"] == "PARKED":
            story = await resolve(client, f"{id}/sub", "x", "compensate")
        await has_state(client, id, "COMPENSATED")
        assert await env.effects() == ["first", "x"]
        assert f"`saga resume {id}`" in "".join(await lost(client, id))
        with pytest.raises(RefusedError, match=f"{id}/sub is nested in {id}, which starts it again"):
            await start_again(client, await client.locator.locate(f"{id}/sub"), not_ended=True)

        await start_again(client, await client.locator.locate(id), not_ended=True)
        await waits_at(client, id)
        assert (await client.show(id))["phase"] == "forward"
        assert await lost(client, id, f"{id}/sub") == []
        await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == "COMPLETED"
    assert await env.effects() == ["first", "x"]


@pytest.mark.sampled(turns="take")
@TAKEN
async def test_one_that_still_runs_is_not_taken_over(env: Environment, take: Take) -> None:
    async with env.serving(PARENT, WAITING_CHILD) as client:
        id = await begin(client, "parent", {"n": 1})
        await waits_at(client, f"{id}/sub")
        await take(client, id)
        await has_state(client, id, "PARKED")
        [parked] = (await client.show(id))["parked"]
        assert "which this saga has not started" in parked["why"]
        await handle(client, f"{id}/sub").signal("go")
        await has_state(client, f"{id}/sub", "COMPLETED")
        await resolve(client, id, "sub", "compensate")
        await has_state(client, id, "COMPENSATED")
        assert await env.effects() == ["first", "x"]

        await start_again(client, await client.locator.locate(id), not_ended=True)
        await waits_at(client, f"{id}/sub")
        assert await client.cancel(id) == "accepted"
        assert (await finished(client, id))["state"] == "COMPENSATED"
    assert await env.effects() == []


@pytest.mark.sampled(turns="take")
@TAKEN
async def test_the_effects_are_named_of_a_parent_without_own_ones(env: Environment, take: Take) -> None:
    parent = define("parent", nested("sub", "mid"), GO)
    async with env.serving(parent, define("mid", nested("inner", "child")), CHILD) as client:
        id = await begin(client, "parent", {"n": 1})
        await waits_at(client, id)
        await take(client, id)
        await has_state(client, f"{id}/sub/inner", "PARKED")
        reasons = await lost(client, id, f"{id}/sub", f"{id}/sub/inner")
        assert any(f"open effects of {id}/sub/inner: x" in text for text in reasons), reasons
        assert await client.cancel(id) == "accepted"
        await has_state(client, id, "COMPENSATED")
        assert await env.effects() == ["x"]
        reasons = await lost(client, id, f"{id}/sub", f"{id}/sub/inner")
        assert any(f"open effects of {id}/sub/inner: x" in text for text in reasons), reasons


async def test_one_of_a_continued_parent_is_its_own(env: Environment) -> None:
    """The parent is deleted, and its nested saga is undone by one that a client has started again."""
    top = define("top", book("a"), nested("sub", "mid"), GO)
    async with env.serving(top, define("mid", book("m"), nested("inner", "child")), CHILD) as client:
        id = await begin(client, "top")
        await waits_at(client, id)
        await delete_run(client.temporal, f"{id}/sub")
        await delete_run(client.temporal, f"{id}/sub/inner")
        await delete_run(client.temporal, id)
        await start_again(client, await client.locator.locate(id), not_ended=True)
        await waits_at(client, id)
        assert env.log() == ["do a", "do m", "do x"]
        assert await client.cancel(id) == "accepted"
        assert (await finished(client, id))["state"] == "COMPENSATED"
    assert await env.effects() == []


async def test_its_end_in_the_ledger_is_not_that_of_the_first_one(env: Environment, orders: AsyncEngine) -> None:
    """All runs of both are deleted, so that only the ledger tells how their nested sagas have ended."""
    async with env.serving(PARENT, WAITING_CHILD) as client:
        id = await begin(client, "parent", {"n": 1})
        await waits_at(client, f"{id}/sub")
        await delete_run(client.temporal, f"{id}/sub")
        await replace(client, id)
        await has_state(client, f"{id}/sub", "PARKED")
        assert await client.cancel(id) == "accepted"
        if (await finished(client, id))["state"] == "PARKED":
            await resolve(client, f"{id}/sub", "x", "compensate")
        for ended in (id, f"{id}/sub"):
            await has_state(client, ended, "COMPENSATED")
            await until(lambda ended=ended: in_ledger(client, ended))
            await delete_run(client.temporal, ended)
        assert await env.effects() == ["first", "x"]
        assert f"`saga resume {id}`" in "".join(await lost(client, f"{id}/sub"))

        await start_again(client, await client.locator.locate(id))
        await waits_at(client, f"{id}/sub")
        assert await client.cancel(id) == "accepted"
        assert (await finished(client, id))["state"] == "COMPENSATED"
    assert await env.effects() == []


async def in_ledger(client: Client, id: str) -> bool:
    row = await client.locator.ledger.find(id)
    return row is not None and row.view.state == "COMPENSATED"


async def parent_without_traces(env: Environment, client: Client) -> str:
    """A deleted parent of which nothing but an effect of its nested saga is left."""
    id = await begin(client, "parent", {"n": 1})
    await waits_at(client, id)
    await delete_run(client.temporal, id)
    return id


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("end", ["COMPLETED", "TERMINATED", "open"])
async def test_a_parent_without_traces_is_resumed_beside_a_run_that_has_had_its_id(env: Environment, end: str) -> None:
    parent = define("parent", nested("sub", "child"), GO)
    async with env.serving(parent, CHILD, define("other", GO)) as client:
        id = await parent_without_traces(env, client)
        queue = client.project.settings.temporal.task_queue
        await run_changes.take_id(client.temporal, id, "other", {}, task_queue=queue)
        await waits_at(client, id)
        if end == "COMPLETED":
            await handle(client, id).signal("go")
        elif end == "TERMINATED":
            await handle(client, id).terminate("a test")
        if end != "open":
            await has_state(client, id, end)

        location = await client.locator.locate(id)
        assert await judge(client.locator, client.project.settings, location) in ("deleted", "replaced")
        words = {"definition": client.project.definition("parent"), "input": {"n": 1}, "not_ended": True}
        if end == "open":
            with pytest.raises(RefusedError, match=r"is open, so .* cannot be started again"):
                await start_again(client, location, **words)
            return
        with pytest.raises(RefusedError) as refused:
            await start_again(client, location)
        assert f"saga resume {id} --definition FILE --input @FILE" in (refused.value.help or "")
        with pytest.raises(UsageError, match="was not started as parent with this input"):
            await start_again(client, location, **{**words, "input": {"n": 2}})
        await start_again(client, location, **words)
        await waits_at(client, id)
        assert env.log() == ["do x"]
        assert await client.cancel(id) == "accepted"
        assert (await finished(client, id))["state"] == "COMPENSATED"
    assert await env.effects() == []


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("is_deleted", [False, True], ids=["the run is there", "only the ledger has it"])
async def test_a_parent_without_traces_is_resumed_after_the_end_of_the_one_that_replaced_it(
    env: Environment, orders: AsyncEngine, is_deleted: bool
) -> None:
    parent = define("parent", nested("sub", "child"), GO)
    async with env.serving(parent, CHILD) as client:
        id = await begin(client, "parent", {"n": 1})
        await waits_at(client, id)
        await replace(client, id)
        await has_state(client, f"{id}/sub", "PARKED")
        assert await client.cancel(id) == "accepted"
        if (await finished(client, id))["state"] == "PARKED":
            await resolve(client, f"{id}/sub", "x", "compensate")
        await has_state(client, id, "COMPENSATED")
        if is_deleted:
            for ended in (id, f"{id}/sub"):
                await until(lambda ended=ended: in_ledger(client, ended))
                await delete_run(client.temporal, ended)
        assert f"`saga resume {id} --definition FILE --input @FILE`" in "".join(await lost(client, id, f"{id}/sub"))
        with pytest.raises(RefusedError) as refused:
            await start_again(client, await client.locator.locate(id))
        assert f"saga resume {id} --definition FILE --input @FILE" in (refused.value.help or "")

        words = {"definition": client.project.definition("parent"), "input": {"n": 1}}
        await start_again(client, await client.locator.locate(id), **words)
        await waits_at(client, id)
        assert env.log() == ["do x"]
        assert await lost(client, id, f"{id}/sub") == []
        assert await client.cancel(id) == "accepted"
        assert (await finished(client, id))["state"] == "COMPENSATED"
    assert await env.effects() == []
