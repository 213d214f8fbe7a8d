"""Logs of the calls of a chunk have no `x-sensitive` value of any of its sagas."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_workers.client import Client
from saga_workers.runtime.databases import set_up_database
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.integration.observability.shop import connect

ACTIONS = """
from sagas import BatchStep, Item, Rejected, Step, action


@action("card.note", connection="bank")
async def note(step: Step, card: str) -> None:
    step.logger.warning("careless note of %s", card)
    if card.endswith("3"):
        raise RuntimeError(f"{card} fails")


@action("card.take", connection="bank", batch=True)
async def take(step: BatchStep, items: list[Item]) -> list:
    for item in items:
        step.logger.warning("careless take of %s", item["card"])
    return [Rejected(f"{item['card']} declined") if item["card"].endswith("4") else None for item in items]


@action("card.forget", connection="bank")
async def forget(step: Step, card: str) -> None:
    step.logger.warning("careless undo of %s", card)
"""

SAGA = """
saga: cards
id: "${{ input.id }}"
input:
  type: object
  required: [id, card]
  properties: {id: {type: string}, card: {type: string, x-sensitive: true}}
steps:
  - {id: take, uses: card.take, with: {card: "${{ input.card }}"}, compensate: card.forget}
  - {id: note, uses: card.note, with: {card: "${{ input.card }}"}, retry: {max_attempts: 1}, compensate: card.forget}
"""

SETTINGS = """
definitions = ["."]
actions = ["./actions.py"]
[temporal]
address = "{address}"
task_queue = "{queue}"
[connections.bank]
url = "{url}"
[ledger]
connection = "bank"
"""


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("format", ["text", "json"])
async def test_the_log_of_a_chunk_has_no_sensitive_value(
    tmp_path: Path, temporal: TemporalServer, postgres_server: DatabaseServer, format: str
) -> None:
    url = new_database(postgres_server)
    (tmp_path / "actions.py").write_text(ACTIONS)
    (tmp_path / "cards.saga.yaml").write_text(SAGA)
    queue = f"chunk-cards-{format}"
    (tmp_path / "saga.toml").write_text(SETTINGS.format(address=temporal.address, queue=queue, url=url))
    project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    [connection] = project.settings.sql_connections()
    await set_up_database(connection)
    client: Client = await connect(project, temporal)
    inputs = [{"id": f"card-{format}-{number}", "card": f"4111-hush-{number}"} for number in range(1, 6)]
    with WorkerProcess("worker", tmp_path, options=["--log-format", format]) as worker:
        await client.start_many("cards", inputs, bulk=True)
        views = [await finished(client, input["id"]) for input in inputs]
    assert [view["state"] for view in views] == ["COMPLETED", "COMPLETED", "COMPENSATED", "COMPENSATED", "COMPLETED"]
    log = worker.log.read_text()
    for words in ("careless take of •••", "careless note of •••", "careless undo of •••", "••• fails"):
        assert words in log
    assert "hush" not in log
