"""A run whose input cannot be read here hides no saga from the lists, whoever has started it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from saga_activities.guard.tables import guard_table
from saga_workers.client import Client
from saga_workers.runtime.databases import open_command_engine
from saga_workers.stuck.guard_scan import MIN_AGE
from saga_workers.stuck.open_sagas import find_lost
from saga_workers.temporal.saga_input import EncryptedInput, ForeignInput, first_input
from saga_workers.temporal.temporal_runs import describe_run
from sagas.errors import RefusedError
from sagas.project import Project
from sagas.settings import Settings, load_settings
from tests.helpers.forked_commands import run_command
from tests.helpers.processes import WorkerProcess
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.trust.test_encrypted_values import CARD, shop, until_waiting
from tests.integration.trust.test_missing_codec_keys import project

__all__ = ["project", "shop"]  # fixtures

KEEPS = """saga: keeps
input: {type: object, properties: {card: {type: object}}}
steps:
  - {id: wait, uses: wait, with: {signal: approved}}
  - {id: charge, uses: cards.charge, with: {card: "${{ input.card }}"}, compensate: cards.refund}
  - {id: more, uses: wait, with: {signal: approved}}
"""

STRANGE = {
    "encrypted": Payload(metadata={"encoding": b"binary/encrypted", "encryption-key-id": b"evil"}, data=bytes(40)),
    "foreign": Payload(metadata={"encoding": b"binary/strange"}, data=b"?"),
    "no json": Payload(metadata={"encoding": b"json/plain"}, data=b'{"a":'),
}


EXPECTED = {"encrypted": "encrypted with 'evil'", "foreign": "no client of sagas writes", "no json": "it is not JSON"}


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("form", STRANGE)
async def test_a_run_in_an_unreadable_form_does_not_end_the_list(form: str, project: Project, tmp_path: Path) -> None:
    settings = tmp_path / "saga.toml"
    plain = settings.read_text(encoding="utf-8").replace('[codec]\nkey = {file = "codec.key"}\n', "")
    settings.write_text(plain, encoding="utf-8")
    (tmp_path / "keeps.saga.yaml").write_text(KEEPS, encoding="utf-8")
    own, taken = load_settings(config=str(settings)), f"taken-{uuid.uuid4()}"
    async with await Client.connect(Project(own)) as client:
        with WorkerProcess("worker", tmp_path):
            await client.start("keeps", {"card": CARD}, id=taken)
            await until_waiting(client, taken)
            await client.signal(taken, "approved")

            async def charged() -> bool:
                return [step["state"] for step in (await client.show(taken))["steps"]][1:2] == ["DONE"]

            await until(charged)
        await delete_run(client.temporal, taken)
        await client.temporal.start_workflow("keeps", RawValue(STRANGE[form]), id=taken, task_queue="nobody")
        described = await describe_run(client.temporal, taken)
        assert described is not None
        with pytest.raises(EncryptedInput if form == "encrypted" else ForeignInput):
            await first_input(client.temporal, described, client.locator.keys)
        with pytest.raises(RefusedError, match=EXPECTED[form]):
            await client.start("keeps", {"card": CARD}, id=taken)
        verdicts = {saga.verdict for saga in await find_lost(client.locator, own, suspects=[taken])}
        assert verdicts == {"unreadable"} if form == "encrypted" else "unreadable" not in verdicts
    for command in (["list", "--stuck"], ["show", taken], ["parked"]):
        done = run_command(command, tmp_path)
        assert (done.returncode, "bug in saga" in done.stderr) == (0, False), done
    await age_rows(own)
    done = run_command(["--json", "reconcile"], tmp_path)
    findings = [each for each in json.loads(done.stdout)["findings"] if each["saga_id"] == taken]
    if form == "encrypted":
        assert [(each["class"], each["command"]) for each in findings] == [("run_unreadable", f"saga show {taken}")]
        assert "evil" in findings[0]["details"]["run"]
        assert done.returncode == 8
        assert f"→ saga show {taken}" in run_command(["doctor"], tmp_path).stdout


@workflow.defn(name="keeps", sandboxed=False)
class Stranger:
    """Answers each query with what its client has sent, and never ends."""

    @workflow.init
    def __init__(self, answer: RawValue) -> None:
        self._answer = answer

    @workflow.run
    async def run(self, _: RawValue) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.query(dynamic=True)
    def query(self, _name: str, _args: Sequence[RawValue]) -> RawValue:
        return self._answer


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("form", STRANGE)
async def test_a_strangers_answer_in_an_unreadable_form_ends_no_command(
    form: str, project: Project, tmp_path: Path
) -> None:
    settings = tmp_path / "saga.toml"
    plain = settings.read_text(encoding="utf-8").replace('[codec]\nkey = {file = "codec.key"}\n', "")
    settings.write_text(plain, encoding="utf-8")
    (tmp_path / "keeps.saga.yaml").write_text(KEEPS, encoding="utf-8")
    own, id = load_settings(config=str(settings)), f"strange-{uuid.uuid4()}"
    runner = UnsandboxedWorkflowRunner()
    async with (
        await Client.connect(Project(own)) as client,
        Worker(client.temporal, task_queue=own.temporal.task_queue, workflows=[Stranger], workflow_runner=runner),
    ):
        queue = own.temporal.task_queue
        await client.temporal.start_workflow("keeps", RawValue(STRANGE[form]), id=id, task_queue=queue)
        for command in (["list", "--stuck"], ["show", id], ["parked"], ["reconcile"], ["check-deploy"]):
            done = await asyncio.to_thread(run_command, command, tmp_path)
            assert "bug in saga" not in done.stderr, done
        shown = await asyncio.to_thread(run_command, ["show", id], tmp_path)
        assert "the answer of its worker cannot be read" in shown.stdout


async def age_rows(settings: Settings) -> None:
    """Make the rows of the guard older than those that the scan leaves out, as their saga may end in a moment."""
    engine = open_command_engine(settings.sql_connection("shop"))
    async with engine.begin() as connection:
        await connection.execute(sa.update(guard_table).values(created_at=guard_table.c.created_at - 2 * MIN_AGE))
    await engine.dispose()
