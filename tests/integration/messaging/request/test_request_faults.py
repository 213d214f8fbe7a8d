"""`kafka.request` when somebody dies, is slow or is early: real processes are killed and frozen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from saga_workers.replies import ReplyListener
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import lab
from tests.helpers.processes import TemporalServer, TriggerProcess, WorkerProcess
from tests.integration.messaging.request.request_environment import World, open_world, row_of, until
from tests.integration.messaging.request.test_requests import ORDER


@pytest.fixture
async def world(
    tmp_path: Path, temporal: TemporalServer, kafka: Broker, postgres_server: DatabaseServer
) -> AsyncIterator[World]:
    """Everything but a worker and a listener."""
    async with open_world(
        tmp_path / "project", temporal, kafka, postgres_server, ORDER, serving=False, listening=False
    ) as found:
        yield found


@contextlib.asynccontextmanager
async def listening(world: World) -> AsyncIterator[ReplyListener]:
    listener = world.new_listener()
    await listener.start()
    yield listener
    await listener.stop()


def listener_process(world: World, name: str) -> TriggerProcess:
    """`saga trigger`, which hears the replies of a project that has commands."""
    return TriggerProcess(name, world.folder, "--grace", "5s")


async def completed(world: World, saga_id: str) -> bool:
    """Temporal has recorded the end of the attempt."""
    history = await world.client.temporal.get_workflow_handle(saga_id).fetch_history()
    return any(one.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED for one in history.events)


@pytest.mark.slow
async def test_the_worker_dies_while_the_attempt_waits(world: World) -> None:
    """No worker holds the attempt: the reply ends it while none lives, and the next one goes on from there."""
    worker = WorkerProcess("first", world.folder).start()
    async with listening(world):
        saga_id = await world.begin("order", do="held")
        await until(lambda: world.seen(saga_id) == ["do"])
        worker.kill()
        world.let_go(saga_id)
        await until(lambda: completed(world, saga_id))
        second = WorkerProcess("second", world.folder).start()
        try:
            story = await world.ended(saga_id)
        finally:
            second.kill()
    assert story["state"] == "COMPLETED"
    assert row_of(story, "reserve")["attempts"] == 1, "the attempt that began on the dead worker is the one that ended"
    assert world.seen(saga_id) == ["do"]


async def test_the_listener_dies_between_recording_and_waking(world: World, temporal: TemporalServer) -> None:
    async with lab(world.project):
        listener = listener_process(world, "listener").start()
        saga_id = await world.begin("order", do="held")
        await until(lambda: world.seen(saga_id) == ["do"])
        temporal.freeze()
        try:
            world.let_go(saga_id)

            async def recorded() -> bool:
                row = await world.row(f"{saga_id}/reserve")
                return row is not None and row["outcome"] == "done"

            await until(recorded)
            listener.kill()
        finally:
            temporal.thaw()
        assert not await completed(world, saga_id)
        second = listener_process(world, "second").start()
        try:
            story = await world.ended(saga_id)
        finally:
            assert second.stop() == 0
    assert story["state"] == "COMPLETED"
    assert row_of(story, "reserve")["attempts"] == 1, "it was woken, nobody had to ask again"


class Slow(Interceptor):
    """Activities that have done their work, and do not return before they may."""

    def __init__(self) -> None:
        self.may_return = asyncio.Event()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        slow = self

        class Inbound(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                try:
                    return await super().execute_activity(input)
                finally:
                    await slow.may_return.wait()

        return Inbound(next)


async def test_the_reply_is_there_before_the_worker_has_returned(world: World) -> None:
    slow = Slow()
    async with lab(world.project, interceptors=[slow]), listening(world) as listener:
        saga_id = await world.begin("order")
        story = await world.ended(saga_id)
        assert story["state"] == "COMPLETED"
        assert listener.counts == {"woken": 1}
        slow.may_return.set()
        # The worker that is late does no harm: it serves the next one.
        assert (await world.play("order"))["state"] == "COMPLETED"


@pytest.mark.slow
async def test_hundreds_wait_on_a_worker_with_five_slots(world: World) -> None:
    many = 200
    async with lab(world.project, max_concurrent_activities=5), listening(world):
        sagas = [await world.begin("order", do="held") for _ in range(many)]

        async def waiting() -> bool:
            rows = await asyncio.gather(*(world.row(f"{saga_id}/reserve") for saga_id in sagas))
            return all(row is not None and row["token"] for row in rows)

        await until(waiting, 180)
        # All wait, and all slots are free: others are served at once.
        assert (await world.play("order"))["state"] == "COMPLETED"
        for saga_id in sagas:
            world.let_go(saga_id)
        stories = [await world.ended(saga_id, "180s") for saga_id in sagas]
    assert {story["state"] for story in stories} == {"COMPLETED"}
    assert all(row_of(story, "reserve")["attempts"] == 1 for story in stories)
    assert all(world.effects(saga_id) == [f"{saga_id}/reserve"] for saga_id in sagas)


DESK = """
    from sagas import Message, Rejected, consumer

    @consumer("PREFIX-commands", connection="shop", name="desk")
    async def desk(message: Message) -> dict:
        if message.headers["sagaop"] == "do" and message.value["do"] == "reject":
            raise Rejected("the desk is closed", since="noon")
        return {"by": "the desk", "op": message.headers["sagaop"]}
"""


async def test_a_consumer_of_this_project_answers(
    tmp_path: Path, temporal: TemporalServer, kafka: Broker, postgres_server: DatabaseServer
) -> None:
    async with open_world(
        tmp_path / "project", temporal, kafka, postgres_server, ORDER, actions=DESK, listening=False
    ) as world:
        world.participant.kill()
        trigger = listener_process(world, "trigger").start()
        try:
            done = await world.play("order")
            refused = await world.play("order", do="reject")
            undone = await world.play("order", go=False)
        finally:
            assert trigger.stop() == 0
    assert (done["state"], done["output"]) == ("COMPLETED", {"reserved": {"by": "the desk", "op": "do"}})
    assert (refused["state"], refused["reason"]["message"]) == ("COMPENSATED", "the desk is closed")
    assert refused["reason"]["details"] == {"since": "noon"}
    assert row_of(undone, "reserve")["state"] == "COMPENSATED"


async def test_two_listeners_share_the_work_and_one_may_die(world: World) -> None:
    async with lab(world.project):
        first = listener_process(world, "first").start()
        second = listener_process(world, "second").start()
        try:
            sagas = [await world.begin("order", do="held") for _ in range(20)]
            await until(lambda: all(world.seen(saga_id) == ["do"] for saga_id in sagas))
            for saga_id in sagas[:10]:
                world.let_go(saga_id)
            stories = [await world.ended(saga_id) for saga_id in sagas[:10]]
            first.kill()
            for saga_id in sagas[10:]:
                world.let_go(saga_id)
            stories += [await world.ended(saga_id) for saga_id in sagas[10:]]
        finally:
            first.kill()
            second.stop()
    assert {story["state"] for story in stories} == {"COMPLETED"}
