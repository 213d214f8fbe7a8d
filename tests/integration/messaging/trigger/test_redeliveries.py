"""`redeliver` of a trigger: the event of a compensated saga starts it again, once for each compensation."""

from __future__ import annotations

import asyncio
import json
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowFailureError

from saga_workers import interventions
from saga_workers.client import Client
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.temporal.run_history import start_of_run
from saga_workers.temporal.temporal_client import start_headers
from saga_workers.views.saga_list import SagaFilter
from sagas import Rejected, Step, action
from sagas.errors import RefusedError
from sagas.project import Project
from sagas.protocol.payloads import OWNER_HEADER
from sagas.protocol.redelivery_names import REDELIVERY_WORKFLOW, redelivery_workflow_id
from sagas.text.exact_json import decode_json
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer, TriggerProcess, WorkerProcess
from tests.helpers.waiting import until, until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    Shop,
    count,
    fresh,
    fully_consumed,
    open_shop,
    produce_keyed,
    project_of,
    triggering,
    write_project,
)
from tests.integration.serve.served_console import TOKENS, serving

ORDER = """
    saga: {saga}
    id: "{saga}-${{{{ input.order }}}}"
    input: {{type: object, required: [order], properties: {{order: {{type: integer}}}}}}
    triggers: {{kafka: {{topic: {topic}, redeliver: {redeliver}}}}}
    steps:
      - {{id: take, uses: shop.take, compensate: shop.give}}
      - {{id: pay, uses: shop.pay, pivot: true}}
"""


class Work:
    """``calls``: the idempotency key of each call, by action. ``paid``: the first generation that can pay."""

    def __init__(self, paid: int) -> None:
        self.calls: dict[str, list[str]] = {"take": [], "give": [], "pay": []}
        work = self

        @action("shop.take")
        async def take(step: Step) -> None:
            work.calls["take"].append(step.key)

        @action("shop.give")
        async def give(step: Step) -> None:
            work.calls["give"].append(step.key)

        @action("shop.pay")
        async def pay(step: Step) -> None:
            work.calls["pay"].append(step.key)
            if step.generation < paid:
                raise Rejected("not enough money")

        self.actions = [take, give, pay]


class Topic:
    """A topic, and the project of one saga that its events start."""

    def __init__(self, kafka: Broker, address: str, folder: Path, work: Work, redeliver: str) -> None:
        self.name, self.saga, self._kafka = kafka.create_topic(), fresh("order"), kafka
        definitions = {self.saga: ORDER.format(saga=self.saga, topic=self.name, redeliver=redeliver)}
        settings = kafka.settings()
        self.group = f"{settings.prefix}-trigger-{self.saga}-{self.name}"
        self.project: Project = project_of(folder, settings, address, actions=work.actions, definitions=definitions)

    async def deliver(self, order: int) -> str:
        """Write the event, and wait until the trigger has read it; the id of its saga."""
        self._kafka.produce(self.name, {"order": order}, headers={"ce_id": f"o-{order}", "ce_source": "/shop"})
        await until_in_thread(lambda: fully_consumed(self._kafka, self.group, self.name))
        return f"{self.saga}-{order}"


MakeTopic = Callable[[Work, str], Topic]


@pytest.fixture
def make_topic(kafka: Broker, temporal: TemporalServer, tmp_path: Path) -> MakeTopic:
    return lambda work, redeliver: Topic(kafka, temporal.address, tmp_path, work, redeliver)


async def compensated(client: Client, saga_id: str, generation: int = 1) -> dict[str, Any]:
    """The story of this generation, once it is compensated."""

    async def story() -> dict[str, Any] | None:
        shown = await client.show(saga_id)
        return shown if (shown["state"], shown["generation"]) == ("COMPENSATED", generation) else None

    return await until(story)


async def completed(client: Client, saga_id: str) -> dict[str, Any]:
    async def story() -> dict[str, Any] | None:
        shown = await client.show(saga_id)
        return shown if shown["state"] == "COMPLETED" else None

    return await until(story)


async def redelivery_closed(client: Client, saga_id: str, generation: int = 1) -> None:
    """The run that starts the saga again after this generation has ended."""
    handle = client.temporal.get_workflow_handle(redelivery_workflow_id(saga_id, generation))
    await asyncio.wait({asyncio.ensure_future(handle.result())}, timeout=30)


async def runs_of(client: Client, saga_id: str) -> int:
    return len([run async for run in client.temporal.list_workflows(f"WorkflowId = '{saga_id}'")])


async def test_an_event_starts_its_compensated_saga_again_until_it_completes(make_topic: MakeTopic) -> None:
    work = Work(paid=3)
    topic = make_topic(work, "{intervals: [1s, 1s, 1h]}")
    async with running_worker(topic.project) as client, triggering(topic.project) as metrics:
        saga_id = await topic.deliver(1)
        first = await compensated(client, saga_id)
        assert re.fullmatch(r"2\d{3}-.*Z", first["redelivery"].pop("at"))
        assert first["redelivery"] == {"number": 1, "of": 3, "run": redelivery_workflow_id(saga_id, 1)}
        assert await topic.deliver(1) == saga_id  # the same event again: its saga is claimed, and nothing starts
        story = await completed(client, saga_id)
        assert (story["generation"], story.get("redelivery")) == (3, None)
        assert work.calls == {
            "take": [f"{saga_id}/take{mark}" for mark in ("", "@2", "@3")],
            "give": [f"{saga_id}/take{mark}/undo" for mark in ("", "@2")],
            "pay": [f"{saga_id}/pay{mark}" for mark in ("", "@2", "@3")],
        }
        assert await topic.deliver(1) == saga_id
        assert count(metrics, "saga_trigger_started_total") == 1
        assert count(metrics, "saga_dead_letters_total") == 0
        await until(lambda: _has_runs(client, saga_id, 3))


async def _has_runs(client: Client, saga_id: str, number: int) -> bool:
    return await runs_of(client, saga_id) == number


async def stuck(client: Client, saga_id: str) -> Sequence[str]:
    """The reasons of the saga, as `saga list --stuck` has them."""
    criteria = SagaFilter(task_queue=client.project.settings.temporal.task_queue)
    views = [view async for view in list_stuck(client.locator, criteria, limit=9)]
    return next((view.stuck or () for view in views if view.id == saga_id), ())


async def is_stuck(client: Client, saga_id: str) -> Sequence[str]:
    return await until(lambda: stuck(client, saga_id))


async def test_after_the_last_wait_nothing_is_started(make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, token in TOKENS.items():
        monkeypatch.setenv(name, token)
    work = Work(paid=9)
    topic = make_topic(work, "{intervals: [500ms, 500ms]}")
    async with running_worker(topic.project) as client, triggering(topic.project):
        saga_id = await topic.deliver(1)
        await compensated(client, saga_id, 3)
        await redelivery_closed(client, saga_id, 3)
        run, ended = redelivery_workflow_id(saga_id, 3), "the last of 2 further starts was compensated"
        unserved = {"number": 2, "of": 2, "at": None, "run": run, "ended": ended, "unserved": True}
        assert (await client.show(saga_id))["redelivery"] == unserved
        [reason] = await is_stuck(client, saga_id)
        assert reason == (
            f"its event is not served: {ended}; saga start {topic.saga} --id {saga_id} --again --input @FILE"
            f"    starts it with its input or saga cancel {saga_id}    closes it"
        )
        await until(lambda: _is_on_the_board(client, saga_id, ended))
        closed = await interventions.cancel(client.locator, saga_id, reason="sold out", who="ada")
        assert (closed.answer, closed.note) == ("accepted", "nobody waits any more for its event to be served")
        story = await client.show(saga_id)
        assert (story["redelivery"]["ended"], story["generation"]) == ("closed: ada (unverified): sold out", 3)
        assert "unserved" not in story["redelivery"]
        await until(lambda: _is_not_stuck(client, saga_id))
        with pytest.raises(RefusedError, match="COMPENSATED"):
            await interventions.cancel(client.locator, saga_id, reason="again", who="ada")
    assert len(work.calls["pay"]) == 3


async def _is_on_the_board(client: Client, saga_id: str, why: str) -> bool:
    async with serving(client) as url, httpx.AsyncClient(base_url=url, timeout=60, headers={"Origin": url}) as browser:
        await browser.post("/console/sign-in", data={"token": TOKENS["STAFF"]})
        page = (await browser.get("/console")).text
    return f">{saga_id}</a> its event is not served: {why}" in page


async def _is_not_stuck(client: Client, saga_id: str) -> bool:
    return not await stuck(client, saga_id)


async def test_a_start_that_is_refused_is_listed_until_somebody_starts_it(make_topic: MakeTopic) -> None:
    work = Work(paid=2)
    topic = make_topic(work, "{intervals: [2s]}")
    async with running_worker(topic.project) as client:
        async with triggering(topic.project):
            saga_id = await topic.deliver(1)
            await compensated(client, saga_id)
        [path] = topic.project.settings.root.glob("*.saga.yaml")
        before = path.read_text()
        path.write_text(before.replace("required: [order]", "required: [order, shop]"))
        [reason] = await is_stuck(client, saga_id)
        assert reason.startswith("its event is not served: its start was refused: ")
        assert "input needs `shop`" in reason
        path.write_text(before)
        await client.start(topic.saga, {"order": 1}, id=saga_id, again=True)
        assert (await completed(client, saga_id))["generation"] == 2
        await until(lambda: _is_not_stuck(client, saga_id))


async def test_a_cancel_ends_it(make_topic: MakeTopic) -> None:
    work = Work(paid=2)
    topic = make_topic(work, "true")
    async with running_worker(topic.project) as client, triggering(topic.project):
        saga_id = await topic.deliver(1)
        await compensated(client, saga_id)
        result = await interventions.cancel(client.locator, saga_id, reason="sold out", who="ada")
        assert (result.answer, result.note) == ("accepted", "its event is not offered again")
        story = await client.show(saga_id)
        assert story["redelivery"]["ended"] == "cancelled: ada (unverified): sold out"
        assert story["generation"] == 1


async def test_what_a_person_has_started_again_is_not_started_once_more(make_topic: MakeTopic) -> None:
    work = Work(paid=2)
    topic = make_topic(work, "{intervals: [3s]}")
    async with running_worker(topic.project) as client, triggering(topic.project):
        started, other = await topic.deliver(1), await topic.deliver(2)
        await compensated(client, started)
        await client.start(topic.saga, {"order": 1}, id=started, again=True)
        assert (await completed(client, started))["generation"] == 2
        await redelivery_closed(client, started)
        assert (await client.show(started))["generation"] == 2
        assert len([key for key in work.calls["pay"] if key.startswith(f"{started}/")]) == 2
        assert (await completed(client, other))["generation"] == 2
    assert len(work.calls["pay"]) == 4


async def test_an_order_counts_for_its_saga_and_its_generation_only(make_topic: MakeTopic) -> None:
    """Everybody who reaches Temporal reads an order, and starts a run with it under any id."""
    work = Work(paid=2)
    topic = make_topic(work, "{intervals: [1s]}")
    async with running_worker(topic.project) as client, triggering(topic.project):
        saga_id = await topic.deliver(1)
        await completed(client, saga_id)
        started = await start_of_run(client.temporal, redelivery_workflow_id(saga_id, 1), "")
        assert started is not None
        order = decode_json(started.input.payloads[0].data)
        queue = client.project.settings.temporal.task_queue
        with start_headers({OWNER_HEADER: saga_id}):
            other = await client.temporal.start_workflow(
                REDELIVERY_WORKFLOW, order, id=redelivery_workflow_id(saga_id, 2), task_queue=queue
            )
            same = await client.temporal.start_workflow(
                REDELIVERY_WORKFLOW, order, id=redelivery_workflow_id(saga_id, 1), task_queue=queue
            )
        with pytest.raises(WorkflowFailureError) as failed:
            await other.result()
        assert "not signed with the key of the project for this id" in str(failed.value.cause)
        assert await same.result() == {"started": False, "ended": "it has been started again meanwhile"}
        assert await runs_of(client, saga_id) == 2


async def test_a_definition_without_it_starts_nothing_any_more(make_topic: MakeTopic) -> None:
    work = Work(paid=9)
    topic = make_topic(work, "{intervals: [2s]}")
    async with running_worker(topic.project) as client:
        async with triggering(topic.project):
            saga_id = await topic.deliver(1)
            await compensated(client, saga_id)
        [path] = topic.project.settings.root.glob("*.saga.yaml")
        path.write_text(path.read_text().replace(", redeliver: {intervals: [2s]}", ""))
        await redelivery_closed(client, saga_id)
        story = await client.show(saga_id)
        assert story["redelivery"]["ended"] == "no trigger of the saga has `redeliver` any more"
        assert story["generation"] == 1


MODULE = """
    from sagas import Rejected, Step, action

    @action("shop.take", connection="shop")
    async def take(step: Step) -> None:
        await step.sql.execute("insert into effect (what, number) values (:key, 1)", key=step.key)

    @action("shop.give", connection="shop")
    async def give(step: Step) -> None:
        await step.sql.execute("insert into effect (what, number) values (:key, -1)", key=step.key)

    @action("shop.pay", connection="shop")
    async def pay(step: Step) -> None:
        if step.generation < 3:
            raise Rejected("not enough money")
        await step.sql.execute("insert into effect (what, number) values (:key, 0)", key=step.key)
"""


@pytest.mark.slow
async def test_workers_and_triggers_are_killed_anywhere(
    kafka: Broker, temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    """Each compensation starts the saga once more, and each generation has its effects once."""
    shop, topic, saga, prefix, sagas = (
        await open_shop(postgres_server),
        kafka.create_topic(),
        fresh("order"),
        fresh("p"),
        12,
    )
    database = shop.url.replace("postgresql://", "postgresql+psycopg://")
    folder = write_project(
        tmp_path / "project", kafka, temporal=temporal.address, database=database, prefix=prefix, module=MODULE
    )
    text = ORDER.format(saga=saga, topic=topic, redeliver="{intervals: [1s, 1s, 1s]}")
    (folder / f"{saga}.saga.yaml").write_text(textwrap.dedent(text), encoding="utf-8")
    client = await Temporal.connect(temporal.address)
    workers = [WorkerProcess(f"worker-{number}", folder) for number in range(2)]
    trigger = TriggerProcess("trigger", folder)
    try:
        for process in (*workers, trigger):
            process.start()
        produce_keyed(kafka, topic, [(str(number), {"order": number}) for number in range(sagas)])
        await until_in_thread(lambda: _effects(shop) > 0)
        trigger.kill()
        for _ in range(3):
            for worker in workers:
                worker.kill()
                await asyncio.sleep(0.4)
                worker.start()
        trigger.start()

        async def all_completed() -> bool:
            query = f"WorkflowType = '{saga}' AND ExecutionStatus = 'Completed'"
            return len({run.id async for run in client.list_workflows(query)}) == sagas

        await until(all_completed)
        runs = [run.id async for run in client.list_workflows(f"WorkflowType = '{saga}'")]
    finally:
        for process in (*workers, trigger):
            process.kill()
    assert sorted(runs) == sorted(f"{saga}-{number}" for number in range(sagas) for _ in range(3))
    expected = []
    for number in range(sagas):
        id = f"{saga}-{number}"
        expected += [(f"{id}/take{mark}", 1) for mark in ("", "@2", "@3")] + [(f"{id}/pay@3", 0)]
        expected += [(f"{id}/take{mark}/undo", -1) for mark in ("", "@2")]
    assert sorted(shop.effects()) == sorted(expected)
    shown = run_command(["show", f"{saga}-0", "-o", "json"], folder)
    assert json.loads(shown.stdout)["state"] == "COMPLETED", shown.stderr


def _effects(shop: Shop) -> int:
    with psycopg.connect(shop.url) as connection:
        row = connection.execute("select count(*) from effect where number = -1").fetchone()
    return 0 if row is None else row[0]
