"""Random sagas with random failures, on real servers: in one bulk workflow they do what they do on their own."""

from __future__ import annotations

import asyncio
import random
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from saga_workers.runtime.databases import set_up_database
from saga_workers.start.start_requests import BulkRow
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import LIMIT, until
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.random_sagas import ACTIONS, SCHEMA, definition, saga_input, with_sibling
from tests.integration.bulk.test_killed_workers import outcome_of

ENDED = ("COMPLETED", "COMPENSATED", "RESIDUE", "PARKED")
TABLES = {
    "effects": "select saga_id, step, op, generation, n from effect",
    "stock": "select saga_id, amount from stock",
    "guard": "select saga_id, step, generation, op, reason, result from saga_guard",
    "events": "select event_key, topic, saga_id, step, generation, value, status from saga_outbox",
    "claims": "select saga_id, saga from saga_claim where bulk_id is not null",
}
TIMES = {"at", "since", "started_at", "ended_at", "committed_at", "now"}
LINKS = {"commands", "url", "web_url", "run_id", "batch", "host", "source"}


def write_project(folder: Path, address: str, url: str, seed: int, *, parallel: bool) -> Project:
    folder.mkdir()
    (folder / "random.saga.yaml").write_text(definition("random", random.Random(seed), parallel=parallel))
    (folder / "actions.py").write_text(ACTIONS)
    (folder / "schema.sql").write_text(SCHEMA)
    (folder / "saga.toml").write_text(
        f'definitions = ["."]\nactions = ["./actions.py"]\n[temporal]\naddress = "{address}"\n'
        f'task_queue = "random-{uuid.uuid4().hex[:8]}"\n[kafka]\noutbox = "bank"\n'
        f'[connections.bank]\nurl = "{url}"\nschema = "schema.sql"\n[ledger]\nconnection = "bank"\n'
    )
    project = Project(load_settings(config=str(folder / "saga.toml")))
    errors = [diagnostic for diagnostic in project.diagnostics if diagnostic.severity == "error"]
    assert not errors, (errors, (folder / "random.saga.yaml").read_text())
    return project


@pytest.mark.parametrize(
    ("seed", "count", "parallel"),
    [
        (3, 6, False),
        *(pytest.param(seed, 40, False, marks=pytest.mark.slow) for seed in range(20, 30)),
        *(pytest.param(seed, 40, True, marks=pytest.mark.slow) for seed in (40, 42, 44, 45, 47, 48)),
    ],
)
async def test_bulk_execution_equals_single_execution(
    seed: int, count: int, parallel: bool, temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    bulk, single = f"together-{seed}", f"alone-{seed}"  # the other tests share the Temporal server
    url = new_database(postgres_server)
    project = write_project(tmp_path / "project", temporal.address, url, seed, parallel=parallel)
    await set_up_database(project.settings.sql_connection("bank"))
    async with running_worker(project) as client:
        bank = Bank(client, project, url)
        starter = await client.starter("random")
        siblings = with_sibling((tmp_path / "project" / "random.saga.yaml").read_text())
        inputs = {
            mark: [
                saga_input(f"{mark}-{number}", random.Random(f"{seed} {number}"), siblings) for number in range(count)
            ]
            for mark in (bulk, single)
        }
        for input in inputs[bulk] + inputs[single]:
            bank.query("insert into stock values (%s, 70)", input["id"])
        rows = [BulkRow(input["id"], starter.make_request(input)) for input in inputs[bulk]]
        handle = await starter.start_bulk(rows, chunk_size=random.Random(seed).choice((7, 20, 100)))
        await asyncio.gather(*(starter.start(starter.make_request(input)) for input in inputs[single]))
        result = await asyncio.wait_for(handle.result(), LIMIT)
        assert sum(result["counts"].values()) == count
        repeated = False
        for at in range(count):
            together, alone = [await _story(bank, f"{mark}-{at}") for mark in (bulk, single)]
            if _attempts(together) != _attempts(alone):
                # A busy machine took a worker for dead; a rejection in the next attempt is not the only fact then.
                repeated = True
                assert outcome_of(together, "together") == outcome_of(alone, "alone"), inputs[bulk][at]
                continue
            differences = [(name, together[name], alone[name]) for name in alone if together[name] != alone[name]]
            assert not differences, (inputs[bulk][at], differences)
        for table, query in TABLES.items():
            if table == "guard" and repeated:
                continue  # what was sealed has rows
            assert _rows(bank, query, bulk) == _rows(bank, query, single), table
        await client.close()


async def _story(bank: Bank, id: str) -> Any:
    """The story of a saga that has ended or is parked, without times and the mark of its id."""
    story: Any = None

    async def has_ended() -> bool:
        nonlocal story
        story = await bank.client.show(id)
        return story["state"] in ENDED

    await until(has_ended)
    return _plain(story)


def _attempts(value: Any) -> list[Any]:
    """All numbers of attempts in a story, in their order."""
    if isinstance(value, Mapping):
        return [
            attempt for name in value for attempt in ([value[name]] if name == "attempts" else _attempts(value[name]))
        ]
    return [attempt for item in value for attempt in _attempts(item)] if isinstance(value, list) else []


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(field) for name, field in value.items() if name not in TIMES | LINKS}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _unmarked(value) if isinstance(value, str) else value


def _unmarked(text: str) -> str:
    return re.sub(r"\b(together|alone)-\d+-", "", text)


def _rows(bank: Bank, query: str, mark: str) -> list[Any]:
    return sorted(repr(_plain(row)) for row in bank.query(query) if str(row[0]).startswith(f"{mark}-"))
