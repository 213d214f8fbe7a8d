"""Events that arrive together share a workflow: each event is one saga, whatever dies."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from temporalio.client import Client as Temporal

from saga_workers.bulk import acceptance
from saga_workers.client import Client, SagaFailed
from saga_workers.doctor.kafka_checks import check_bulk_triggers
from saga_workers.start.start_requests import BulkRow
from saga_workers.temporal.temporal_client import connect
from saga_workers.trigger.trigger_process import run_trigger
from sagas.errors import UsageError
from sagas.project import Project
from sagas.settings import KafkaSettings, load_settings
from sagas.workflow import bulk_workflow
from sagas.workflow.failures import refused_error
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import running_worker
from tests.helpers.nested_lists import nested_list
from tests.helpers.processes import TemporalServer, TriggerProcess, WorkerProcess, http_get
from tests.helpers.waiting import until_in_thread
from tests.integration.bulk.conftest import Bank
from tests.integration.messaging.trigger.trigger_environment import (
    committed,
    count,
    fresh,
    fully_consumed,
    produce_keyed,
    triggering,
)

DEPOSIT = """
saga: deposit
id: "{topic}-${{{{ input.id }}}}"
input:
  type: object
  required: [id, amount]
  properties: {{id: {{type: string}}, amount: {{type: integer}}}}
triggers: {{kafka: {{topic: {topic}, bulk: {bulk}}}}}
steps:
  - id: add
    uses: sql
    with:
      connection: bank
      run: "update account set balance = balance + :amount where id = 'a1'"
      params: {{amount: "${{{{ input.amount }}}}"}}
    compensate: {{uses: sql, with: {{connection: bank, run: "select 1"}}}}
  - {{id: note, uses: bank.note, with: {{text: "${{{{ input.amount >= 0 ? 'ok' : 'fails' }}}}"}},
     retry: {{max_attempts: 2, initial_interval: 50ms}},
     compensate: bank.forget}}
"""


def deposit(number: int, amount: int = 1) -> dict[str, Any]:
    return {"id": f"d-{number}", "amount": amount}


def with_trigger(project: Project, kafka: KafkaSettings, topic: str, bulk: str = "{}") -> Project:
    """The project, in the same folder, with a saga that the topic starts; its ids are those of no other test."""
    root = project.settings.root
    (root / "deposit.saga.yaml").write_text(DEPOSIT.format(topic=topic, bulk=bulk))
    made = Project(
        load_settings(config=str(root / "saga.toml")).model_copy(
            update={"kafka": kafka.model_copy(update={"outbox": "bank"})}
        )
    )
    assert not made.diagnostics
    return made


SIGNALLED = """
saga: signalled
id: "${{{{ input.id }}}}"
input: {{type: object, required: [id], properties: {{id: {{type: string}}, waits: {{type: boolean}}}}}}
triggers:
  kafka:
    - {{topic: {topic}, bulk: {{wait: 200ms}}, filter: "has(trigger.value.waits)"}}
    - {{topic: {topic}, id: "${{{{ trigger.value.id }}}}", signal: go, filter: "!has(trigger.value.waits)"}}
steps:
  - {{id: first, uses: bank.note, with: {{text: first}}, compensate: bank.forget}}
  - {{id: pause, uses: wait, with: {{signal: go}}, if: "default(input.waits, false)"}}
"""


async def bulk_workflows(temporal: Temporal, queue: str) -> int:
    query = f"TaskQueue = '{queue}' AND WorkflowType = 'saga.bulk'"
    return (await temporal.count_workflows(query)).count


async def test_events_that_arrive_together_share_workflows(kafka: Broker, bank_project: tuple[Project, str]) -> None:
    """With repeated events, and events that can start nothing. The wait is the longest possible: with a short one the
    number of workflows would be that of the intervals in which a busy machine reads the events.

    Two ids have two inputs, each once: before a worker is ready, any of their workflows may be claimed first."""
    base, url = bank_project
    topic, settings = kafka.create_topic(partitions=2), kafka.settings()
    project = with_trigger(base, settings, topic, "{max: 100, wait: 5s}")
    bad = [b"not json", {"id": "d-7"}, {"id": "d/1", "amount": 1}, deposit(98, 5)]
    events: list[Any] = [*map(deposit, range(300)), *bad, deposit(11), deposit(299), *map(deposit, range(97))]
    events[20] = deposit(20, -1)
    produce_keyed(kafka, topic, [("k", event) for event in events])
    async with running_worker(project) as client, triggering(project) as metrics:
        bank = Bank(client, project, url)
        bank.open_accounts(1, balance=0)
        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-trigger-deposit-{topic}", topic))
        await until_in_thread(lambda: len(bank.states()) == 300)
        assert count(metrics, "saga_trigger_started_total") == 300
        assert count(metrics, "saga_dead_letters_total") == 5, "d-20 was repeated with another amount"

        async def visible() -> int | None:
            """The count, as soon as Temporal's visibility store, which lags behind, has the least possible."""
            started = await bulk_workflows(client.temporal, project.settings.temporal.task_queue)
            return started if started >= 3 else None

        assert await until_in_thread(visible) <= 10
        await client.close()
    failed = {id for id, state in bank.states().items() if state != "COMPLETED"}
    assert failed <= {f"{topic}-d-20"}, "whichever of its two events was first: in bulk the order of a key is not kept"
    assert bank.query("select count(*) from note") == [(300 - len(failed),)]
    letters = [record.headers["sagadlqreason"] for record in kafka.read_committed(f"{topic}.dlq")]
    assert sum("another input" in letter for letter in letters) == 2
    assert sum("is not JSON" in letter or "is not valid" in letter or "/" in letter for letter in letters) == 3


async def test_signals_follow_the_starts_of_their_key(kafka: Broker, bank_project: tuple[Project, str]) -> None:
    """One saga leaves its bulk workflow and gets the signal; the other has ended there, and the signal is too late."""
    base, url = bank_project
    topic, settings = kafka.create_topic(), kafka.settings()
    (base.settings.root / "signalled.saga.yaml").write_text(SIGNALLED.format(topic=topic))
    project = with_trigger(base, settings, kafka.create_topic())
    group = f"{settings.prefix}-trigger-signalled-{topic}"
    async with running_worker(project) as client, triggering(project) as metrics:
        bank = Bank(client, project, url)
        produce_keyed(kafka, topic, [(id, {"id": id, "waits": id == "s-1"}) for id in ("s-1", "s-2")])
        produce_keyed(kafka, topic, [("s-1", {"id": "s-1"})])
        await until_in_thread(lambda: bank.states().get("s-2"))
        produce_keyed(kafka, topic, [("s-2", {"id": "s-2"}), ("s-2", {"id": "s\0"})])
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
        await until_in_thread(lambda: bank.states() == {"s-1": "COMPLETED", "s-2": "COMPLETED"})
        assert count(metrics, "saga_trigger_signalled_total") == 1
        await client.close()
    late, impossible = kafka.read_committed(f"{topic}.dlq")
    assert late.headers["sagadlqreason"] == "s-2 has already ended COMPLETED"
    assert "control characters" in impossible.headers["sagadlqreason"]


@pytest.mark.slow
async def test_a_signal_waits_until_a_worker_lets_its_saga_leave(
    kafka: Broker, bank_project: tuple[Project, str]
) -> None:
    """The saga is in a bulk workflow that no worker runs; an earlier generation of it had a workflow of its own."""
    base, url = bank_project
    topic = kafka.create_topic()
    (base.settings.root / "signalled.saga.yaml").write_text(SIGNALLED.format(topic=topic))
    project = with_trigger(base, kafka.settings(), kafka.create_topic())
    with psycopg.connect(url) as blocking:
        async with running_worker(project) as client:
            bank = Bank(client, project, url)
            earlier = await client.start("signalled", {"id": "s-3", "waits": True})
            await client.cancel("s-3", reason="again")
            with pytest.raises(SagaFailed):
                await earlier.result()
            await until_in_thread(lambda: bank.states() == {"s-3": "COMPENSATED"})
            blocking.execute("insert into note (id) values ('s-3')")
            starter = await client.starter("signalled")
            row = BulkRow("s-3", starter.make_request({"id": "s-3", "waits": True}))
            await starter.start_bulk([row], again=True)
            await until_in_thread(lambda: bank.query("select 1 from pg_stat_activity where wait_event_type = 'Lock'"))
        blocking.rollback()
    async with triggering(project) as metrics:
        produce_keyed(kafka, topic, [("s-3", {"id": "s-3"})])
        await asyncio.sleep(5)  # longer than five attempts take
        assert count(metrics, "saga_dead_letters_total") == 0
        async with running_worker(project) as client:
            bank = Bank(client, project, url)
            await until_in_thread(lambda: bank.states() == {"s-3": "COMPLETED"})
            await client.close()
        assert count(metrics, "saga_trigger_signalled_total") == 1


@pytest.mark.slow
async def test_a_trigger_that_is_killed_loses_and_repeats_nothing(
    kafka: Broker, temporal: TemporalServer, bank_project: tuple[Project, str]
) -> None:
    """Killed after workflows have started, and before their offsets are committed."""
    base, url = bank_project
    topic, prefix, total = kafka.create_topic(partitions=2), fresh("b"), 300
    project = with_trigger(base, kafka.settings(prefix=prefix), topic, "{max: 50, wait: 20ms}")
    root = add_kafka_settings(project, kafka, prefix)
    group = f"{prefix}-trigger-deposit-{topic}"
    process = TriggerProcess("trigger", root)
    produce_keyed(kafka, topic, [(str(number), deposit(number)) for number in range(total)])
    async with running_worker(project) as client:
        bank = Bank(client, project, url)
        bank.open_accounts(1, balance=0)
        try:
            process.start()
            await until_in_thread(lambda: len(bank.states()) > 0 or bank.query("select 1 from saga_claim limit 1"))
            process.kill()
            assert sum(committed(kafka, group, topic).values()) < total, "it was killed too late"
            process.start()
            await until_in_thread(lambda: fully_consumed(kafka, group, topic))
            await until_in_thread(lambda: len(bank.states()) == total)
        finally:
            process.kill()
        await client.close()
    assert set(bank.states().values()) == {"COMPLETED"}
    assert bank.balances() == {"a1": total}
    assert bank.query("select count(*) from note") == [(total,)]


@pytest.mark.slow
async def test_triggers_that_come_and_go_lose_and_repeat_nothing(
    kafka: Broker, bank_project: tuple[Project, str]
) -> None:
    """A second one takes partitions while batches are under way, the first is killed, and a third one comes."""
    base, url = bank_project
    topic, prefix, total = kafka.create_topic(partitions=4), fresh("r"), 1600
    project = with_trigger(base, kafka.settings(prefix=prefix), topic, "{max: 20, wait: 20ms}")
    root = add_kafka_settings(project, kafka, prefix)
    group = f"{prefix}-trigger-deposit-{topic}"
    assert project.settings.temporal.address is not None
    client = Client(await connect(project.settings, env={}), project)
    bank = Bank(client, project, url)
    bank.open_accounts(1, balance=0)
    triggers = [TriggerProcess(f"trigger-{number}", root) for number in range(3)]
    workers = [WorkerProcess(f"worker-{number}", root) for number in range(2)]
    moving = asyncio.Event()

    async def produce() -> None:
        """Events all the time, so that there is a batch under way whenever a partition moves."""
        for first in range(0, total, 20):
            part = [(str(number), deposit(number)) for number in range(first, first + 20)]
            await asyncio.to_thread(produce_keyed, kafka, topic, part)
            await asyncio.sleep(0.3)
            if first >= total - 400:
                await moving.wait()

    producing = asyncio.create_task(produce())
    try:
        await asyncio.gather(*(asyncio.to_thread(process.start) for process in (*workers, triggers[0])))
        await until_in_thread(lambda: owned(kafka, group) == [4] and len(bank.states()) > 0)
        await asyncio.to_thread(triggers[1].start)
        await until_in_thread(lambda: owned(kafka, group) == [2, 2])
        triggers[0].kill()
        await until_in_thread(lambda: owned(kafka, group) == [4])
        await asyncio.to_thread(triggers[2].start)
        await until_in_thread(lambda: owned(kafka, group) == [2, 2])
        moving.set()
        await producing
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
        await until_in_thread(lambda: len(bank.states()) == total)
        shares = [started_by(trigger) for trigger in triggers[1:]]
        assert all(0 < share < total for share in shares), shares
    finally:
        producing.cancel()
        for process in (*triggers, *workers):
            process.kill()
    assert set(bank.states().values()) == {"COMPLETED"}
    assert bank.balances() == {"a1": total}
    assert bank.query("select count(*) from note") == [(total,)]
    assert bank.query("select count(*) from saga_claim") == [(0,)]
    assert not kafka.read_committed(f"{topic}.dlq")


def add_kafka_settings(project: Project, kafka: Broker, prefix: str) -> Path:
    """For triggers in processes of their own; a dead one is noticed after six seconds."""
    root = project.settings.root
    with (root / "saga.toml").open("a") as file:
        file.write(f'bootstrap_servers = "{kafka.address}"\nprefix = "{prefix}"\n')
        file.write('client = {"session.timeout.ms" = "6000", "heartbeat.interval.ms" = "1000"}\n')
    return root


def started_by(process: TriggerProcess) -> float:
    """How many sagas this trigger has started."""
    _, text = http_get(process.health_port, "/metrics")
    return sum(float(value) for value in re.findall(rb"^saga_trigger_started_total\{.*\} (\S+)$", text, re.MULTILINE))


def owned(kafka: Broker, group: str) -> list[int]:
    """How many partitions each member of the group has; empty while they are being distributed."""
    from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.address})
    try:
        described: Any = admin.describe_consumer_groups([group])[group].result()
    except KafkaException as error:
        # The broker has just begun to coordinate groups.
        if error.args[0].code() in (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE):
            return []
        raise
    if described.state != ConsumerGroupState.STABLE:
        return []
    return sorted(len(member.assignment.topic_partitions) for member in described.members)


@pytest.mark.slow
async def test_events_wait_until_a_worker_claims_them(
    kafka: Broker, bank_project: tuple[Project, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker may refuse a workflow that nobody has claimed. Repeats wait for the same one, also that of a restart."""
    monkeypatch.setattr(acceptance, "CLAIM_TIMEOUT", 0.2)
    base, url = bank_project
    with psycopg.connect(url) as connection:
        connection.execute("insert into account values ('a1', 0)")
    topic, settings = kafka.create_topic(), kafka.settings()
    project = with_trigger(base, settings, topic)
    group, queue = f"{settings.prefix}-trigger-deposit-{topic}", project.settings.temporal.task_queue
    produce_keyed(kafka, topic, [("k", deposit(number)) for number in range(30)] + [("k", deposit(0, 2))])
    async with triggering(project) as metrics:
        await until_in_thread(lambda: "no worker has claimed" in caplog.text)
        await asyncio.sleep(2)  # several attempts
        assert sum((await asyncio.to_thread(committed, kafka, group, topic)).values()) == 0
        assert count(metrics, "saga_trigger_started_total") == 0
    async with triggering(project) as metrics:
        caplog.clear()
        await until_in_thread(lambda: "no worker has claimed" in caplog.text)
        async with running_worker(project) as client:
            bank = Bank(client, project, url)
            await until_in_thread(lambda: fully_consumed(kafka, group, topic))
            await until_in_thread(lambda: len(bank.states()) == 30)
            assert count(metrics, "saga_dead_letters_total") == 1
            assert await bulk_workflows(client.temporal, queue) <= 6
            await client.close()
    assert bank.balances() in ({"a1": 30}, {"a1": 31})


@pytest.mark.slow
async def test_the_deepest_input_shares_a_workflow(
    kafka: Broker, bank_project: tuple[Project, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An input that is accepted alone is accepted among others; a refused one is a dead letter."""
    base, url = bank_project
    topic, settings = kafka.create_topic(), kafka.settings()
    project = with_trigger(base, settings, topic, "{max: 100, wait: 500ms}")
    deep = [{**deposit(20 + levels), "x": nested_list(levels, 1)} for levels in (96, 97, 98, 99)]
    produce_keyed(
        kafka, topic, [("k", event) for event in (*map(deposit, range(20)), *deep, {"x": nested_list(100, 1)})]
    )
    async with running_worker(project) as client, triggering(project) as metrics:
        bank = Bank(client, project, url)
        bank.open_accounts(1, balance=0)
        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-trigger-deposit-{topic}", topic))
        await until_in_thread(lambda: len(bank.states()) == 24)
        assert count(metrics, "saga_trigger_started_total") == 24
        assert count(metrics, "saga_dead_letters_total") == 1
        assert await bulk_workflows(client.temporal, project.settings.temporal.task_queue) == 1
        await client.close()
    assert set(bank.states().values()) == {"COMPLETED"}
    assert bank.balances() == {"a1": 24}


@pytest.mark.slow
async def test_a_workflow_that_is_refused_later_keeps_no_other_event_from_starting(
    kafka: Broker, bank_project: tuple[Project, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker comes after the claim's time, and refuses what a client of another version has checked otherwise."""
    monkeypatch.setattr(acceptance, "CLAIM_TIMEOUT", 0.2)
    base, url = bank_project
    with psycopg.connect(url) as connection:
        connection.execute("insert into account values ('a1', 0)")
    topic, settings = kafka.create_topic(), kafka.settings()
    project = with_trigger(base, settings, topic, "{max: 100, wait: 500ms}")
    produce_keyed(kafka, topic, [("k", deposit(number)) for number in range(5)])
    async with triggering(project) as metrics:
        await until_in_thread(lambda: "no worker has claimed" in caplog.text)
        monkeypatch.setattr(bulk_workflow, "read_request", refuse_request)
        async with running_worker(project) as client:
            bank = Bank(client, project, url)
            await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-trigger-deposit-{topic}", topic))
            await until_in_thread(lambda: len(bank.states()) == 5)
            assert count(metrics, "saga_trigger_started_total") == 5
            assert count(metrics, "saga_dead_letters_total") == 0
            await client.close()
    assert bank.balances() == {"a1": 5}


def refuse_request(_: Any) -> Any:
    raise refused_error("this worker refuses it")


@pytest.mark.slow
async def test_events_in_bulk_wait_while_temporal_is_down(
    kafka: Broker, bank_project: tuple[Project, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base, url = bank_project
    server = TemporalServer(tmp_path / "temporal").start()
    topic, settings = kafka.create_topic(), kafka.settings()
    text = (base.settings.root / "saga.toml").read_text()
    address = base.settings.temporal.address
    assert address is not None
    (base.settings.root / "saga.toml").write_text(text.replace(address, server.address))
    project = with_trigger(base, settings, topic)
    group = f"{settings.prefix}-trigger-deposit-{topic}"
    try:
        async with running_worker(project) as client, triggering(project) as metrics:
            bank = Bank(client, project, url)
            bank.open_accounts(1, balance=0)
            kafka.produce(topic, deposit(0))
            await until_in_thread(lambda: fully_consumed(kafka, group, topic))
            server.kill()
            produce_keyed(kafka, topic, [("k", deposit(number)) for number in range(1, 200)])
            await until_in_thread(lambda: "waiting for a dependency" in caplog.text)
            await asyncio.sleep(1)
            assert await asyncio.to_thread(committed, kafka, group, topic) == {0: 1}
            assert caplog.text.count("waiting for a dependency") < 10, "one line for all events"
            server.start()
            await until_in_thread(lambda: fully_consumed(kafka, group, topic))
            await until_in_thread(lambda: len(bank.states()) == 200)
            assert count(metrics, "saga_dead_letters_total") == 0
            await client.close()
        assert bank.balances() == {"a1": 200}
    finally:
        server.kill()


async def test_bulk_needs_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "deposit.saga.yaml").write_text(
        "saga: deposit\ntriggers: {kafka: {topic: deposits, bulk: {}}}\n"
        "steps: [{id: pause, uses: wait, with: {for: 1s}}]\n"
    )
    (tmp_path / "saga.toml").write_text('definitions = ["."]\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n')
    project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    with pytest.raises(UsageError, match="the trigger of deposit has `bulk`, which needs a ledger"):
        await run_trigger(project)
    [result] = check_bulk_triggers(project)
    assert (result.ok, result.help) == (False, "set [ledger] connection in saga.toml, and run saga setup")
