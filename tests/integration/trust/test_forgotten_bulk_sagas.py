"""`saga forget` of a saga of a bulk workflow names the history that other sagas share, and that no option deletes."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowFailureError

from saga_workers.client import Client
from saga_workers.privacy import forgetting, histories, shared_histories
from saga_workers.privacy.forgetting import find_subject
from saga_workers.start.start_requests import BulkRow
from saga_workers.temporal.foreign_payloads import read_single_payload
from saga_workers.temporal.run_history import start_of_run
from saga_workers.temporal.temporal_runs import RunInfo, list_runs
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.local_worker import finished
from tests.helpers.processes import WorkerProcess
from tests.helpers.waiting import until
from tests.integration.trust.test_encrypted_values import CARD, project, shop, tables
from tests.integration.trust.test_forgotten_values import forget

__all__ = ["project", "shop"]  # fixtures

SHARED, OWN = "histories of bulk workflows", "histories and memos"
SAGA = """saga: {name}
id: "${{{{ input.id }}}}"
input: {{type: object, properties: {{id: {{type: string}}, card: {{type: object, x-sensitive: true}}}}}}
steps:
  - {{id: a, uses: cards.charge, with: {{card: '${{{{ input.card }}}}'}}, compensate: cards.refund}}
"""
WAIT = "  - {id: b, uses: wait, with: {signal: approved}}\n"


def details(done: CompletedProcess[str]) -> dict[str, tuple[str, str]]:
    return {place["place"]: (place["status"], place["detail"]) for place in json.loads(done.stdout)["places"]}


async def bulk_runs(temporal: Temporal, name: str) -> list[RunInfo]:
    return [run async for run in list_runs(temporal, f"WorkflowId STARTS_WITH 'bulk~{name}-'")]


async def given_words(temporal: Temporal, run: RunInfo) -> str:
    started = await start_of_run(temporal, run.id, run.run_id)
    assert started is not None
    return str(await read_single_payload(started.input.payloads, run.converter))


@pytest.mark.parametrize("is_encrypted", [True, False])
async def test_values_stay_in_the_history_that_others_share(
    project: Project, tmp_path: Path, shop: str, is_encrypted: bool
) -> None:
    toml, unique = tmp_path / "saga.toml", uuid.uuid4().hex
    if not is_encrypted:
        toml.write_text(toml.read_text().replace('[codec]\nkey = {file = "codec.key"}\n', ""))
    plain, waits = f"plain{unique}", f"waits{unique}"
    (tmp_path / "plain.saga.yaml").write_text(SAGA.format(name=plain))
    (tmp_path / "left.saga.yaml").write_text(SAGA.format(name=waits) + WAIT)
    project = Project(load_settings(config=str(toml)))
    how = "encrypted: unreadable as soon as the key" if is_encrypted else "in clear"
    with WorkerProcess("worker", tmp_path):
        async with await Client.connect(project) as client:
            temporal = client.locator.temporal
            inputs = [{"id": f"{unique}-{number}", "card": CARD} for number in range(3)]
            for name, some in ((plain, inputs[:2]), (waits, inputs[2:])):
                starter = await client.starter(name)
                await starter.start_bulk([BulkRow(input["id"], starter.make_request(input)) for input in some])
            await until(lambda: inputs[2]["id"].encode() in tables(shop)["saga_claim"])
            await client.signal(inputs[2]["id"], "approved", {})
            for input in inputs:
                assert (await finished(client, input["id"]))["state"] == "COMPLETED"
            await until(lambda: all(input["id"].encode() in tables(shop)["saga_run"] for input in inputs))
            [shared] = await until(lambda: bulk_runs(temporal, plain), limit=20)  # Temporal's list lags behind
            [left] = await until(lambda: bulk_runs(temporal, waits), limit=20)
            for run in (shared, left):
                assert CARD["name"] in await given_words(temporal, run)

            for options in ((), ("--delete-run",)):
                done = forget(tmp_path, inputs[0]["id"], *options)
                status, detail = details(done)[SHARED]
                assert (done.returncode, status) == (5, "stays"), done
                assert (shared.id in detail, how in detail, left.id in detail) == (True, True, False), detail
                assert details(done)["histories and memos"][0] == "nothing"

            # The saga has a run of its own, which is deleted, and the bulk workflow that it has left stays.
            done = forget(tmp_path, inputs[2]["id"], "--delete-run")
            assert (done.returncode, details(done)["histories and memos"][0]) == (5, "deleted"), done
            assert (details(done)[SHARED][0], left.id in details(done)[SHARED][1]) == ("stays", True), done

            await _delete(temporal, shared)
            await until(lambda: _none_is_left(temporal, plain), limit=20)
            done = forget(tmp_path, inputs[1]["id"])
            assert (done.returncode, SHARED in details(done)) == (0, False), done

            # Nobody can tell which sagas it was given.
            unknown = f"bulk~{plain}-unknown"
            await temporal.start_workflow("saga.bulk", CARD, id=unknown, task_queue=unique)
            await until(lambda: bulk_runs(temporal, plain), limit=20)
            done = forget(tmp_path, inputs[1]["id"])
            assert (done.returncode, f"perhaps in 1 history that other sagas share, of {unknown}" in done.stdout) == (
                5,
                True,
            ), done
            await temporal.get_workflow_handle(unknown).terminate()


async def test_histories_that_temporal_does_not_list_yet_are_named(
    project: Project, tmp_path: Path, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unique = uuid.uuid4().hex
    plain, waits, alone = f"plain{unique}", f"waits{unique}", f"alone{unique}"
    for name, more in ((plain, ""), (waits, WAIT), (alone, "")):
        (tmp_path / f"{name}.saga.yaml").write_text(SAGA.format(name=name) + more)
    project = Project(project.settings)

    async def not_yet(*_: object) -> AsyncIterator[RunInfo]:
        for run in ():
            yield run

    with WorkerProcess("worker", tmp_path):
        async with await Client.connect(project) as client:
            inputs = {name: {"id": f"{unique}-{name[:5]}", "card": CARD} for name in (plain, waits, alone)}
            for name in (plain, waits):
                starter = await client.starter(name)
                await starter.start_bulk([BulkRow(inputs[name]["id"], starter.make_request(inputs[name]))])
            await client.start(alone, inputs[alone], id=inputs[alone]["id"])
            await until(lambda: inputs[waits]["id"].encode() in tables(shop)["saga_claim"])
            await client.signal(inputs[waits]["id"], "approved", {})
            for input in inputs.values():
                assert (await finished(client, input["id"]))["state"] == "COMPLETED"
            await until(lambda: all(input["id"].encode() in tables(shop)["saga_run"] for input in inputs.values()))
            monkeypatch.setattr(shared_histories, "list_runs_below", not_yet)
            monkeypatch.setattr(histories, "list_runs", not_yet)

            async def stays(name: str) -> dict[str, str]:
                locator, settings, id = client.locator, project.settings, inputs[name]["id"]
                subject = await find_subject(locator, settings, id, delete_run=False)
                places = await forgetting.forget(locator, settings, subject, who="a", reason="b", delete_run=False)
                return {place.place: place.detail for place in places if place.status == "stays"}

            staying = {name: await stays(name) for name in inputs}
            assert {name: set(places) for name, places in staying.items()} == {
                plain: {SHARED},
                waits: {SHARED, OWN},
                alone: {OWN},
            }
            for name in (plain, waits):
                assert f"of bulk~{name}-" in staying[name][SHARED]


async def test_the_input_of_a_refused_start_stays_in_the_history_of_its_bulk_workflow(
    project: Project, tmp_path: Path, shop: str
) -> None:
    unique = uuid.uuid4().hex
    (tmp_path / "plain.saga.yaml").write_text(SAGA.format(name="plain"))
    project = Project(project.settings)
    with WorkerProcess("worker", tmp_path):
        async with await Client.connect(project) as client:
            ids = [f"bulk~plain-{unique}-{number}" for number in range(7)]
            given = {"saga": "plain", "sagas": [[unique, {"id": 7, "card": CARD}, {}]]}  # the id must be a text
            for id in ids:
                bulk = await client.locator.temporal.start_workflow(
                    "saga.bulk", given, id=id, task_queue=project.settings.temporal.task_queue
                )
                with pytest.raises(WorkflowFailureError):
                    await bulk.result()
            await until(lambda: _are_listed(client.locator.temporal, ids), limit=20)

            done = forget(tmp_path, unique)

            assert (done.returncode, details(done)[SHARED][0]) == (5, "stays"), done
            assert [id for id in ids if id not in details(done)[SHARED][1]] == []
            assert forget(tmp_path, f"{unique}-nobody").returncode == 2


async def _are_listed(temporal: Temporal, ids: list[str]) -> bool:
    return {run.id for run in await bulk_runs(temporal, "plain")} >= set(ids)


async def _delete(temporal: Temporal, run: RunInfo) -> None:
    execution = WorkflowExecution(workflow_id=run.id, run_id=run.run_id)
    request = DeleteWorkflowExecutionRequest(namespace=temporal.namespace, workflow_execution=execution)
    await temporal.workflow_service.delete_workflow_execution(request)


async def _none_is_left(temporal: Temporal, name: str) -> bool:
    return not await bulk_runs(temporal, name)
