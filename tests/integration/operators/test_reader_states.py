"""No check is passed over a reader that stands still: doctor and an alert show each state, and its advice ends it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from ruamel.yaml import YAML

from saga_activities.connections import DatabaseConnections
from saga_workers.doctor.doctor_result import DoctorResult
from saga_workers.worker.reader_gauges import ReaderGauges
from sagas.settings import SqlConnection
from tests.helpers.kafka_broker import Broker, BrokerProcess
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until, until_in_thread
from tests.integration.messaging.kafka.secured_broker import SASL, login
from tests.integration.messaging.trigger.trigger_environment import count
from tests.integration.operators.reader_states import READER_STATES, UNREAD, Readers, ReaderState

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/how-to/find-stuck.md").read_text(encoding="utf-8")
ALERTS = {
    rule["alert"]: rule["expr"]
    for group in YAML(typ="safe").load(ROOT / "deploy/prometheus/alerts.yaml")["groups"]
    for rule in group["rules"]
}


COMMAND = re.compile(r"saga trigger(?: --[a-z]+ \S+)*")
"""What doctor advises for a reader."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("secured"), more=SASL, client=login("admin"))
    broker.start()
    yield broker
    broker.kill()


@pytest.mark.sampled(keep=5)
@pytest.mark.parametrize("state", READER_STATES, ids=lambda state: state.name)
async def test_doctor_and_an_alert_show_it(
    state: ReaderState, kafka: Broker, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    temporal = request.getfixturevalue("temporal").address if state.replies else None
    broker = request.getfixturevalue("secured") if state.secured else kafka
    readers = await Readers.make(tmp_path, broker, replies=temporal)

    async def failing() -> DoctorResult | None:
        result = (await readers.doctor()).get(state.doctor)
        return result if result is not None and not result.ok else None

    assert all(result.ok for result in (await readers.doctor()).values())
    async with state.make(readers) as metrics:
        result = await until(failing)
        assert state.message in result.message
        assert " -" not in result.message, "a count is negative"
        if metrics is not None and (metric := state.metric) is not None:
            assert metric in ALERTS[state.alert]
            await until_in_thread(lambda: count(metrics, metric) > 0)
        if state.metric == UNREAD[0]:
            assert (readers.group, readers.topic) in await expected_readers(readers)
        for command in COMMAND.findall(result.help or ""):
            await readers.follow(command)


async def expected_readers(readers: Readers) -> set[tuple[str, str]]:
    """The groups and topics that a worker of the project tells to be read."""
    settings = readers.project.settings
    databases = DatabaseConnections(settings.sql_connections())
    gauges = ReaderGauges(readers.project, lambda: databases.engine("shop"))
    await gauges.refresh()
    await databases.close()
    [metric] = gauges.collect()
    return {(sample.labels["group"], sample.labels["topic"]) for sample in metric.samples}


@pytest.mark.parametrize("replies", [False, True])
async def test_a_reader_that_cannot_begin_is_stopped(
    replies: bool, kafka: Broker, temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's database does not answer, so neither its first position nor its group is known."""
    readers = await Readers.make(tmp_path, kafka, replies=temporal.address if replies else None)
    readers.produce(1)
    nowhere = SqlConnection.model_validate({"name": "shop", "root": tmp_path, "url": "postgresql://127.0.0.1:1/shop"})
    monkeypatch.setitem(cast("dict[str, Any]", readers.project.settings.connections), "shop", nowhere)
    async with readers.reading() as metrics:
        await until_in_thread(lambda: count(metrics, "saga_trigger_stopped") == 1)


def test_the_table_in_the_docs_has_these_states() -> None:
    table = PAGE.split("| state of a reader |", 1)[1].split("\n\n", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert [tuple(cell.strip().strip("`").replace("–", "") for cell in row) for row in rows] == [
        (state.name, state.doctor, state.metric or "", state.alert) for state in READER_STATES
    ]
    assert {state.alert for state in READER_STATES} <= set(ALERTS)
