"""`kafka.request` with killed, slow and early processes: real processes are killed and frozen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from saga_workers.trigger.replies import ReplyListener
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.fault_proxy import fault_proxy
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer, TriggerProcess, WorkerProcess
from tests.helpers.waiting import until
from tests.integration.messaging.request.request_environment import (
    Environment,
    open_environment,
    row_of,
    running_listener,
)
from tests.integration.messaging.request.test_requests import ORDER


@pytest.fixture
async def env(
    tmp_path: Path, temporal: TemporalServer, kafka: Broker, postgres_server: DatabaseServer
) -> AsyncIterator[Environment]:
    """Everything but a worker and a listener."""
    async with open_environment(
        tmp_path / "project", temporal, kafka, postgres_server, ORDER, serving=False, listening=False
    ) as environment:
        yield environment


def listening(env: Environment) -> contextlib.AbstractAsyncContextManager[ReplyListener]:
    return running_listener(env.new_listener())


def listener_process(env: Environment, name: str) -> TriggerProcess:
    """`saga trigger`, which consumes the replies of a project with commands."""
    return TriggerProcess(name, env.folder, "--grace", "5s")


async def completed(env: Environment, saga_id: str) -> bool:
    """Temporal has recorded the end of the attempt."""
    history = await env.client.temporal.get_workflow_handle(saga_id).fetch_history()
    return any(event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED for event in history.events)


@pytest.mark.slow
async def test_the_worker_dies_while_the_attempt_waits(env: Environment) -> None:
    """No worker holds the attempt: the reply completes it while no worker runs, and the next worker continues."""
    worker = WorkerProcess("first", env.folder).start()
    async with listening(env):
        saga_id = await env.begin("order", do="held")
        await until(lambda: env.seen(saga_id) == ["do"])
        worker.kill()
        env.let_go(saga_id)
        await until(lambda: completed(env, saga_id))
        second = WorkerProcess("second", env.folder).start()
        try:
            story = await env.ended(saga_id)
        finally:
            second.kill()
    assert story["state"] == "COMPLETED"
    assert row_of(story, "reserve")["attempts"] == 1, "the attempt that began on the dead worker is the one that ended"
    assert env.seen(saga_id) == ["do"]


@pytest.mark.slow
async def test_the_listener_dies_between_recording_and_completing_the_attempt(
    env: Environment, temporal: TemporalServer
) -> None:
    """The listener's connection to Temporal is silent, so that no request of it arrives after its end."""
    host, _, port = temporal.address.rpartition(":")
    async with running_worker(env.project), fault_proxy(int(port)) as proxy:
        settings = await asyncio.to_thread((env.folder / "saga.toml").read_text)
        assert temporal.address in settings
        elsewhere = settings.replace(temporal.address, f"{host}:{proxy.port}")
        await asyncio.to_thread((env.folder / "proxied.toml").write_text, elsewhere)
        listener = TriggerProcess("listener", env.folder, "--config", "proxied.toml", "--grace", "5s")
        await asyncio.to_thread(listener.start)
        saga_id = await env.begin("order", do="held")
        await until(lambda: env.seen(saga_id) == ["do"])
        proxy.blackhole_to_server = True
        env.let_go(saga_id)

        async def recorded() -> bool:
            row = await env.row(f"{saga_id}/reserve")
            return row is not None and row["outcome"] == "done"

        await until(recorded)
        listener.kill()
        assert not await completed(env, saga_id)
        second = listener_process(env, "second").start()
        try:
            story = await env.ended(saga_id)
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


async def test_the_reply_arrives_before_the_worker_has_returned(env: Environment) -> None:
    slow = Slow()
    async with running_worker(env.project, interceptors=[slow]), listening(env) as listener:
        saga_id = await env.begin("order")
        story = await env.ended(saga_id)
        assert story["state"] == "COMPLETED"
        assert listener.counts == {"woken": 1}
        slow.may_return.set()
        # The worker that is late does no harm: it serves the next one.
        assert (await env.run_saga("order"))["state"] == "COMPLETED"


@pytest.mark.slow
async def test_hundreds_wait_on_a_worker_with_five_slots(env: Environment) -> None:
    many = 200
    async with running_worker(env.project, max_concurrent_activities=5), listening(env):
        sagas = [await env.begin("order", do="held") for _ in range(many)]

        async def waiting() -> bool:
            rows = await asyncio.gather(*(env.row(f"{saga_id}/reserve") for saga_id in sagas))
            return all(row is not None and row["token"] for row in rows)

        await until(waiting)
        # All wait, and all slots are free: others are served at once.
        assert (await env.run_saga("order"))["state"] == "COMPLETED"
        for saga_id in sagas:
            env.let_go(saga_id)
        stories = [await env.ended(saga_id, "180s") for saga_id in sagas]
    assert {story["state"] for story in stories} == {"COMPLETED"}
    assert all(row_of(story, "reserve")["attempts"] == 1 for story in stories)
    assert all(env.effects(saga_id) == [f"{saga_id}/reserve"] for saga_id in sagas)


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
    async with open_environment(
        tmp_path / "project", temporal, kafka, postgres_server, ORDER, actions=DESK, listening=False
    ) as env:
        env.participant.kill()
        trigger = listener_process(env, "trigger").start()
        try:
            done = await env.run_saga("order")
            refused = await env.run_saga("order", do="reject")
            undone = await env.run_saga("order", go=False)
        finally:
            assert trigger.stop() == 0
    assert (done["state"], done["output"]) == ("COMPLETED", {"reserved": {"by": "the desk", "op": "do"}})
    assert (refused["state"], refused["reason"]["message"]) == ("COMPENSATED", "the desk is closed")
    assert refused["reason"]["details"] == {"since": "noon"}
    assert row_of(undone, "reserve")["state"] == "COMPENSATED"


@pytest.mark.slow
async def test_two_listeners_share_the_work_and_one_may_die(env: Environment) -> None:
    async with running_worker(env.project):
        first = listener_process(env, "first").start()
        second = listener_process(env, "second").start()
        try:
            sagas = [await env.begin("order", do="held") for _ in range(20)]
            await until(lambda: all(env.seen(saga_id) == ["do"] for saga_id in sagas))
            for saga_id in sagas[:10]:
                env.let_go(saga_id)
            stories = [await env.ended(saga_id) for saga_id in sagas[:10]]
            first.kill()
            for saga_id in sagas[10:]:
                env.let_go(saga_id)
            stories += [await env.ended(saga_id) for saga_id in sagas[10:]]
        finally:
            first.kill()
            second.stop()
    assert {story["state"] for story in stories} == {"COMPLETED"}
