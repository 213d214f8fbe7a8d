"""`saga check-deploy` and the sagas of bulk workflows: open, closed by Temporal, and deleted there."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_workers.client import Client
from saga_workers.deploy.deploy_check import DeployCheck, check_deploy
from saga_workers.start.start_requests import BulkRow
from sagas.actions.registry import Actions
from sagas.project import Project
from tests.helpers import run_changes
from tests.helpers.local_worker import running_worker
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank

UNDO = "first, compensate: there is no action bank.forget"


@pytest.mark.slow
async def test_sagas_of_a_bulk_workflow(bank_project: tuple[Project, str], tmp_path: Path) -> None:
    project, url = bank_project
    ids = [f"{tmp_path.name}-{number}" for number in (1, 2)]
    async with running_worker(project) as client:
        bank = Bank(client, project, url)
        starter = await client.starter("resting")
        inputs = [{"id": id, "rest": "4s"} for id in ids]
        bulk = await starter.start_bulk([BulkRow(input["id"], starter.make_request(input)) for input in inputs])

        async def recorded() -> bool:
            return [(await client.show(id))["steps"][0]["state"] for id in ids] == ["DONE", "DONE"]

        await until(lambda: bank.query("select count(*) from note") == [(2,)])
        await until(recorded)
    without_actions = Project(project.settings, Actions([]))

    async def check() -> DeployCheck:
        return await check_deploy(client.locator, without_actions, limit=100)

    async def opened() -> DeployCheck | None:
        checked = await check()
        return checked if checked.in_bulk == 2 else None

    assert told(await until(opened))["second, do: there is no action bank.note_again"] == set(ids)
    await client.temporal.get_workflow_handle(bulk.id).terminate("a test")

    async def closed() -> DeployCheck | None:
        """Temporal's visibility store tells of the end in its own time."""
        checked = await check()
        return checked if (checked.running, checked.resumable) == (0, 2) else None

    left = await until(closed)
    assert (left.in_bulk, told(left)) == (0, {UNDO: set(ids)})

    await run_changes.delete_run(client.temporal, bulk.id)
    # Younger rows than a minute may be those of a saga that ends in a moment.
    bank.query("update saga_guard set created_at = created_at - 120")

    gone = "this build has no valid definition of it, with which `saga resume` would start these again"

    async def is_deleted() -> bool:
        return told(await check()) == {gone: set(ids)}

    await until(is_deleted)
    whole = await check_deploy(client.locator, project, limit=100)
    assert (whole.is_good, whole.resumable) == (True, 2)
    assert "bank.note" in whole.unseen
    await changed_file(project, client, ids)


async def changed_file(project: Project, client: Client, ids: list[str]) -> None:
    """With another definition the deleted sagas cannot start again."""
    file = project.settings.root / "resting.saga.yaml"
    file.write_text(file.read_text().replace("id: second,", "id: third,"))
    checked = await check_deploy(client.locator, Project(project.settings), limit=100)
    [(problem, concerned)] = told(checked).items()
    assert problem.startswith("`saga resume` needs the definition ")
    assert concerned == set(ids)
    assert (await check_deploy(client.locator, Project(project.settings), limit=1)).is_complete is False


def told(check: DeployCheck) -> dict[str, set[str]]:
    assert check.unread == []
    return {problem.what: set(problem.ids) for problem in check.problems if problem.saga == "resting"}
