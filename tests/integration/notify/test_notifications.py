"""Best-effort notification on a real Temporal, to a receiver that is down, slow, or gone.

Nothing here is ever allowed to change how the saga ends.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import text
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus

from saga_cli.render.saga_view import notification_lines
from saga_workers import interventions
from saga_workers.client import Client
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views import notifications
from saga_workers.views.notifications import resend
from saga_workers.views.saga_list import SagaFilter, query_sagas
from saga_workers.views.saga_view import read_view
from sagas import Rejected
from sagas.errors import RefusedError, UsageError
from sagas.presentation.styled_text import to_plain
from sagas.project import Project
from sagas.protocol.saga_view import SagaView
from tests.helpers.local_worker import running_worker
from tests.helpers.waiting import until
from tests.integration.engine.environment import GRACE, Environment, begin, handle, resolve, run_saga
from tests.integration.notify.conftest import Receiver, notified, settled

SOON = "intervals: [50ms, 50ms, 50ms, 50ms, 50ms]"
TOLD = f"""
    saga: told
    steps:
      - {{id: a, uses: book, compensate: unbook}}
    notify:
      - {{when: [completed, compensated], uses: http, with: {{connection: hook, path: /echo}}, {SOON}}}
    output: {{x: 1}}
"""
ID = "notify-0-completed"
CLOSE = {"step": ID, "decision": "skip", "reason": "told by phone", "who": "ada"}
NOW = datetime(2026, 3, 1, tzinfo=UTC)


async def stuck(client: Client, **wanted: Any) -> list[SagaView]:
    queue = client.project.settings.temporal.task_queue
    return [
        stuck_saga async for stuck_saga in list_stuck(client.locator, SagaFilter(task_queue=queue, **wanted), limit=10)
    ]


async def listed(client: Client) -> list[str]:
    queue = client.project.settings.temporal.task_queue
    return [saga.id async for saga in query_sagas(client.locator, SagaFilter(task_queue=queue), limit=10)]


async def test_a_receiver_that_was_down_is_notified_once(env: Environment, receiver: Receiver) -> None:
    definition = TOLD.replace("[50ms, 50ms, 50ms, 50ms, 50ms]", "[50ms, 50ms, 50ms, 200ms, 1s, 5s, 10s]")
    async with env.serving(definition) as client:
        story = await run_saga(client, "told")
        assert story["state"] == "COMPLETED"

        async def down() -> Any:
            [row] = (await client.show(story["id"]))["notifications"]
            return row if (row["attempts"] or 0) >= 3 else None

        row = await until(down)
        assert row["state"] == "PENDING"
        assert row["error"]["type"] == "HttpConnection"
        assert row["next_attempt_at"] is not None
        receiver.server.start()
        story = await settled(client, story["id"])
        [event] = receiver.received()
        assert notified(story) == {ID: "DELIVERED"}
        assert event == {
            "id": f"{story['id']}/{ID}",
            "type": "saga.completed",
            "timestamp": story["ended_at"],
            "data": {
                "id": story["id"],
                "saga": "told",
                "state": "COMPLETED",
                "reason": None,
                "output": {"x": 1},
                "started_at": story["started_at"],
                "ended_at": story["ended_at"],
            },
        }
        assert receiver.headers("webhook-id") == [event["id"]]
        assert await listed(client) == [story["id"]], "a notification is not a saga"


@pytest.mark.slow
async def test_an_error_response_is_retried_under_the_same_id(env: Environment, receiver: Receiver) -> None:
    receiver.server.start().faults({"status": 500}, {"status": 404}, {"drop": "before"}, {"status": 409})
    async with env.serving(TOLD) as client:
        story = await settled(client, (await run_saga(client, "told"))["id"])
    [row] = story["notifications"]
    assert (row["state"], row["attempts"], row["error"]) == ("DELIVERED", 5, None)
    assert {event["id"] for event in receiver.received()} == {row["event"]}
    assert set(receiver.headers("webhook-id")) == set(receiver.headers("idempotency-key")) == {row["event"]}
    stamps = receiver.headers("webhook-timestamp")
    assert len(stamps) == 5
    assert len(set(receiver.headers("webhook-signature"))) == len(set(stamps)), "signed again when the time is another"


@pytest.mark.slow
async def test_an_unanswered_notification_is_abandoned_and_can_be_resent(env: Environment, receiver: Receiver) -> None:
    async with env.serving(TOLD) as client:
        story = await settled(client, (await run_saga(client, "told"))["id"])
        [row] = story["notifications"]
        assert (story["state"], row["state"], row["attempts"]) == ("COMPLETED", "EXHAUSTED", 6)
        assert (await handle(client, row["run"]).describe()).status == WorkflowExecutionStatus.FAILED
        [awaited] = await until(lambda: stuck(client))
        assert awaited.id == story["id"]
        assert f"saga notify {story['id']} {ID} --again" in awaited.stuck[0]
        assert await stuck(client, saga="other") == []
        assert f"saga resolve {story['id']} {ID} skip --reason '…'" in awaited.stuck[0]
        decided = await interventions.resolve(client.locator, story["id"], CLOSE)
        assert [each.state for each in decided.notifications] == ["SKIPPED"]
        assert await stuck(client) == []

        receiver.server.start()
        await interventions.resolve(client.locator, story["id"], {**CLOSE, "decision": "retry"})
        story = await settled(client, story["id"])
        assert notified(story) == {ID: "DELIVERED"}
        assert [event["id"] for event in receiver.received()] == [row["event"]]
        assert await stuck(client) == []
        with pytest.raises(RefusedError, match="is pending or exhausted"):
            await resend(client.temporal, SagaView.from_json(story), None)
        with pytest.raises(UsageError, match="did you mean notify-0-completed"):
            await resend(client.temporal, SagaView.from_json(story), "notify-0-complete")
        [more] = await resend(client.temporal, SagaView.from_json(story), ID)
        assert more["done"] == "sent again"
        await settled(client, story["id"])
        assert [event["id"] for event in receiver.received()] == [row["event"]] * 2, "a receiver knows the repetition"


async def test_a_waiting_notification_can_be_sent_immediately(env: Environment, receiver: Receiver) -> None:
    async with env.serving(TOLD.replace("[50ms, 50ms, 50ms, 50ms, 50ms]", "[1h]")) as client:
        saga = (await run_saga(client, "told"))["id"]

        async def waits() -> bool:
            return (await client.show(saga))["notifications"][0]["attempts"] == 1

        await until(waits)
        receiver.server.start()
        [row] = await resend(client.temporal, await client.view(saga), ID)
        assert row["done"] == "tried now"
        assert notified(await settled(client, saga)) == {ID: "DELIVERED"}


async def test_status_410_stops_the_notification(env: Environment, receiver: Receiver) -> None:
    receiver.server.start().faults({"status": 410})
    async with env.serving(TOLD) as client:
        story = await settled(client, (await run_saga(client, "told"))["id"])
    [row] = story["notifications"]
    assert (row["state"], row["attempts"]) == ("EXHAUSTED", 1)
    assert "410" in row["error"]["message"]
    assert story["state"] == "COMPLETED"


async def test_every_event_is_notified_once(env: Environment) -> None:
    definition = """
        saga: moments
        warn_after: 10ms
        steps:
          - {id: a, uses: book, compensate: unbook, on_failure: park}
          - {id: b, uses: wait, with: {for: 300ms}}
          - {id: c, uses: work, effect: none}
        notify:
          - {when: [completed, compensated, parked, residue, overdue], uses: work, with: {value: "${{ event.type }}"}}
    """
    env.plan["do a"] = [Rejected("no"), Rejected("still no"), 1]
    env.plan["do c"] = [Rejected("no")]
    env.plan["undo a"] = [Rejected("cannot")]
    async with env.serving(definition) as client:
        story = await run_saga(client, "moments")
        await resolve(client, story["id"], "a", "retry")
        story = await resolve(client, story["id"], "a", "retry")
        assert (story["state"], story["parked"][0]["op"]) == ("PARKED", "undo")
        await resolve(client, story["id"], "a", "skip")
        story = await settled(client, story["id"])
    assert story["state"] == "RESIDUE"
    assert set(notified(story).values()) == {"DELIVERED"}
    reported = sorted(request.value for request in env.asked if request.what.startswith("do notify"))
    assert reported == ["saga.overdue", "saga.parked", "saga.parked", "saga.parked", "saga.residue"]


async def test_an_undo_notifies_compensated(env: Environment, receiver: Receiver) -> None:
    receiver.server.start()
    async with env.serving(TOLD) as client:
        story = await run_saga(client, "told")
        await (await client.undo(story["id"], reason="returned", who="ada")).result()
        story = await settled(client, story["id"])
    assert notified(story) == {ID: "DELIVERED", "notify-0-compensated": "DELIVERED"}
    assert [event["type"] for event in receiver.received()] == ["saga.completed", "saga.compensated"]


async def test_a_failing_expression_is_reported_and_changes_nothing(env: Environment) -> None:
    definition = """
        saga: wrong
        input: {type: object, additionalProperties: true}
        steps:
          - {id: a, uses: book, compensate: unbook}
        notify:
          - {when: completed, uses: work, with: {value: "${{ input.nothing.there }}"}}
          - {when: completed, uses: work, with: {value: "${{ [input.large, input.large] }}"}}
    """
    async with env.serving(definition) as client:
        story = await run_saga(client, "wrong", {"large": "x" * 1_200_000})
        story = await settled(client, story["id"])
        assert story["state"] == "COMPLETED"
        first, second = story["notifications"]
        assert (first["state"], first["attempts"]) == (second["state"], second["attempts"]) == ("EXHAUSTED", 0)
        assert "notify.0" in first["error"]["message"]
        assert "Temporal accepts" in second["error"]["message"]
        [advised] = await until(lambda: stuck(client))
        assert advised.stuck is not None
        assert len(advised.stuck) == 2
        for row, why in zip((first, second), advised.stuck, strict=True):
            skip = f"saga resolve {story['id']} {row['id']} skip --reason '…'"
            assert why.endswith(f"; {skip}    closes it")
            assert f"    {skip}" in map(to_plain, notification_lines(SagaView.from_json(story), NOW))
            with pytest.raises(RefusedError, match=r"would fail the same way: .*; close it with skip"):
                await interventions.resolve(
                    client.locator, story["id"], {**CLOSE, "step": row["id"], "decision": "retry"}
                )
            with pytest.raises(RefusedError, match="only be sent again"):
                await interventions.preview_decision(
                    client.locator, story["id"], {**CLOSE, "step": row["id"], "decision": "done"}
                )
            await interventions.resolve(client.locator, story["id"], {**CLOSE, "step": row["id"]})
        view = await read_view(client.locator, story["id"])
        assert [(row.state, row.closed) for row in view.notifications] == [
            ("SKIPPED", "ada (unverified): told by phone")
        ] * 2
        assert [row.commands("s") for row in view.notifications] == [(), ()]
        assert await stuck(client) == []


async def test_a_guarded_action_notifies_once_and_a_rejection_ends_it(env: Environment) -> None:
    definition = f"""
        saga: acts
        steps:
          - {{id: a, uses: work, effect: none}}
        notify:
          - {{when: completed, uses: book, with: {{}}, {SOON}}}
          - {{when: completed, uses: work, with: {{}}, {SOON}}}
          - {{when: completed, uses: look, with: {{}}, {SOON}}}
          - {{when: completed, uses: nobody.knows, with: {{}}, task_queue: elsewhere, {SOON}}}
    """
    env.plan["do notify-0-completed"] = [ValueError("once"), 1]
    env.plan["do notify-1-completed"] = [Rejected("told enough")]
    env.plan["do notify-2-completed"] = [ValueError("always")]
    async with env.serving(definition) as client:
        saga = (await run_saga(client, "acts"))["id"]

        async def three() -> bool:
            return list(notified(await client.show(saga)).values()).count("PENDING") == 1

        await until(three)
        story = await client.show(saga)
    assert list(notified(story).values()) == ["DELIVERED", "EXHAUSTED", "EXHAUSTED", "PENDING"]
    assert [row["attempts"] for row in story["notifications"]][:3] == [2, 1, 6]
    assert await env.effects() == ["notify-0-completed"]
    assert {request.key for request in env.asked if request.what == "do notify-2-completed"} == {
        f"{saga}/notify-2-completed"
    }
    assert [request.attempt for request in env.asked if request.what == "do notify-2-completed"] == [1, 2, 3, 4, 5, 6]


async def test_a_terminated_notification_can_be_resent(env: Environment, receiver: Receiver) -> None:
    async with env.serving(TOLD.replace("[50ms, 50ms, 50ms, 50ms, 50ms]", "[1h]")) as client:
        story = await run_saga(client, "told")
        run = story["notifications"][0]["run"]
        with pytest.raises(UsageError, match=f"is a notification of {story['id']}, not a saga"):
            await read_view(client.locator, run)
        await handle(client, run).terminate(reason="enough")
        story = await settled(client, story["id"])
        assert notified(story) == {ID: "STOPPED"}
        receiver.server.start()
        await resend(client.temporal, SagaView.from_json(story), None)
        assert notified(await settled(client, story["id"])) == {ID: "DELIVERED"}


@pytest.mark.parametrize("state", ["STOPPED", "PENDING"])
async def test_it_is_sent_again_after_the_task_queue_was_renamed(
    env: Environment, receiver: Receiver, state: str
) -> None:
    async with env.serving(TOLD.replace("[50ms, 50ms, 50ms, 50ms, 50ms]", "[1h]")) as client:
        story = await run_saga(client, "told")
        if state == "STOPPED":
            await handle(client, story["notifications"][0]["run"]).terminate(reason="enough")
            story = await settled(client, story["id"])
        assert notified(story) == {ID: state}
        project = client.project
    temporal = project.settings.temporal
    renamed = temporal.model_copy(update={"task_queue": f"{temporal.task_queue}-renamed"})
    project = Project(project.settings.model_copy(update={"temporal": renamed}), project.actions)
    receiver.server.start()

    async def pollers(_: Temporal, queue: str) -> int:
        return int(queue == renamed.task_queue)  # Temporal remembers a poller for minutes

    with patch.object(notifications, "count_pollers", pollers):
        async with running_worker(project, grace=GRACE) as client:
            await resend(client.temporal, SagaView.from_json(story), ID, queue=renamed.task_queue)
            assert notified(await settled(client, story["id"])) == {ID: "DELIVERED"}
    assert len(receiver.received()) == 1


async def test_a_child_sends_its_own_notifications(env: Environment) -> None:
    child = """
        saga: child
        steps:
          - {id: x, uses: work, compensate: unwork}
        notify: [{when: [completed, compensated], uses: work, with: {value: "${{ event.data.saga }}"}}]
    """
    parent = """
        saga: parent
        steps:
          - {id: c, uses: saga, with: {name: child}}
    """
    async with env.serving(parent, child) as client:
        saga = await begin(client, "parent")
        await handle(client, saga).result()
        [nested] = (await client.show(saga))["children"]
        assert notified(await settled(client, nested["id"])) == {ID: "DELIVERED"}


async def test_an_event_is_written_once_into_the_outbox(env: Environment) -> None:
    definition = """
        saga: emits
        steps:
          - {id: a, uses: book, compensate: unbook}
        notify:
          - {when: completed, uses: outbox.emit, with: {connection: shop, topic: news}}
          - when: completed
            uses: outbox.emit
            with: {connection: shop, events: [{topic: other, value: {s: "${{ saga.state }}"}}]}
    """
    async with env.serving(definition) as client:
        story = await settled(client, (await run_saga(client, "emits"))["id"])
        assert notified(story) == {ID: "DELIVERED", "notify-1-completed": "DELIVERED"}
        await resend(client.temporal, SagaView.from_json(story), ID)
        story = await settled(client, story["id"])
    assert notified(story)[ID] == "DELIVERED"
    async with env.engine.connect() as connection:
        rows = (
            await connection.execute(text("select topic, event_key, value, step from saga_outbox order by topic"))
        ).all()
    first, second = rows
    assert (first.topic, first.event_key, first.step) == ("news", story["id"], ID), "once, also when it is sent again"
    assert json.loads(first.value)["id"] == story["notifications"][0]["event"]
    assert (second.topic, json.loads(second.value)) == ("other", {"s": "COMPLETED"})
