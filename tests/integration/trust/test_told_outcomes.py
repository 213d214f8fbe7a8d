"""Outcomes and histories do not tell their readers words of databases and participants, or paths of the machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_workers.serve.public_outcome import public_notifications, public_outcome
from sagas import Rejected, action
from sagas.protocol.saga_view import ErrorView, NotificationView, ReasonView, SagaView
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.integration.trust.conftest import Shop
from tests.integration.trust.test_served_callers import bearer, serving

SECRET = "value-of-the-input"
INPUT = "input: {type: object, required: [text], properties: {text: {type: string}}}"
SAGAS = {
    "duplicate": f"""
saga: duplicate
{INPUT}
steps:
  - id: book
    uses: sql
    effect: none
    retry: {{max_attempts: 1}}
    with:
      connection: shop
      run: "select cast(cast(:text as text) as integer) as number"
      params: {{text: "${{{{ input.text }}}}"}}
""",
    "taken": f"""
saga: taken
{INPUT}
steps:
  - id: book
    uses: sql
    retry: {{max_attempts: 1}}
    with:
      connection: shop
      run:
        - {{sql: "insert into taken values (:text)", params: {{text: "${{{{ input.text }}}}"}}}}
        - {{sql: "insert into taken values (:text)", params: {{text: "${{{{ input.text }}}}"}}}}
    compensate: {{uses: sql, with: {{connection: shop, run: delete from taken}}}}
""",
    "required": f"""
saga: required
{INPUT}
steps:
  - {{id: check, uses: require, with: {{that: input.text == 'open'}}}}
""",
    "nested": f"""
saga: nested
{INPUT}
steps:
  - {{id: child, uses: saga, with: {{name: required, input: {{text: "${{{{ input.text }}}}"}}}}}}
""",
    "raising": f"""
saga: raising
{INPUT}
steps:
  - {{id: raise, uses: told.raise, with: {{text: "${{{{ input.text }}}}"}}, retry: {{max_attempts: 1}}, effect: none}}
""",
    "declined": """
saga: declined
steps:
  - {id: decline, uses: told.decline, effect: none}
""",
}


KINDS = {
    "duplicate": "failed",
    "raising": "unknown",
    "required": "rejected",
    "nested": "rejected",
    "declined": "rejected",
}


@action("told.raise")
async def fail(text: str) -> None:
    raise ValueError(f"{text} is not usable")


@action("told.decline")
async def decline() -> None:
    raise Rejected("card declined", code="05")


async def test_an_outcome_quotes_no_database_and_no_exception(
    tmp_path: Path, temporal: TemporalServer, postgres_server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database(postgres_server)
    engine = open_engine("shop", url, 1)
    await create_tables(engine)
    await engine.dispose()
    folder = tmp_path / "project"
    project = make_project(folder, SAGAS, [fail, decline], address=temporal.address, connections={"shop": url})
    shop = cast("Shop", SimpleNamespace(project=project))
    async with running_worker(project) as client, serving(shop, client, monkeypatch) as caller:
        for saga, kind in KINDS.items():
            run = await client.start(saga, {} if saga == "declined" else {"text": SECRET})
            shown = await finished(client, run.id)
            answer = (await caller.get(f"/sagas/{run.id}", headers=bearer("SHOP"))).json()
            reason = answer["reason"]
            assert (reason["kind"], reason["type"]) == (kind, shown["reason"]["type"])
            if saga == "declined":
                assert (reason["message"], reason["details"]) == ("card declined", {"code": "05"})
                continue
            assert SECRET in shown["reason"]["message"], "its operator needs the value"
            assert SECRET not in str(answer)
            assert reason["message"].endswith("`saga show` has the words")
            history = await client.temporal.get_workflow_handle(run.id).fetch_history()
            for folder_of_the_machine in (str(folder), str(Path(__file__).parents[3])):
                assert folder_of_the_machine not in history.to_json()


async def test_the_detail_of_a_database_is_in_no_text(
    tmp_path: Path, temporal: TemporalServer, postgres_server: DatabaseServer
) -> None:
    """The detail of an error has values of a row, of any saga or user: `Key (text)=(…) already exists`."""
    url = new_database(postgres_server)
    engine = open_engine("shop", url, 1)
    await create_tables(engine)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("create table taken (text text primary key)")
    await engine.dispose()
    project = make_project(tmp_path, SAGAS, [fail, decline], address=temporal.address, connections={"shop": url})
    async with running_worker(project) as client:
        run = await client.start("taken", {"text": SECRET})
        shown = await finished(client, run.id)
        history = await client.temporal.get_workflow_handle(run.id).fetch_history()
    assert "duplicate key value violates unique constraint" in shown["reason"]["message"]
    assert SECRET not in str((shown["reason"], [step["error"] for step in shown["steps"]]))
    failures = [event.activity_task_failed_event_attributes.failure for event in history.events]
    failures += [event.workflow_execution_failed_event_attributes.failure.message for event in history.events]
    assert SECRET not in str(failures)


def view(**values: Any) -> SagaView:
    return SagaView(id="x", saga="own", state="COMPENSATED", **values)


def test_a_refusal_of_a_participant_is_told_by_its_status() -> None:
    """The type is that of every rejection: what counts is whose words the failure has."""
    message = f"payments responded 409 Conflict to POST /charge: `{SECRET}`"
    details = {"status": 409, "body": SECRET}
    refused = ReasonView(kind="rejected", step="charge", type="Rejected", message=message, details=details, quotes=True)
    document = public_outcome(view(reason=refused))
    assert SECRET not in str(document)
    assert document["reason"]["details"] == {"status": 409}


def test_the_reason_before_a_terminate_is_not_told() -> None:
    ended = ReasonView(kind="terminated", message="a mistake", details={"before": {"message": SECRET}})
    document = public_outcome(view(reason=ended))
    assert (document["reason"]["message"], document["reason"]["details"]) == ("a mistake", {})


def test_a_notification_quotes_no_receiver() -> None:
    error = ErrorView(type="HttpStatus", message=f"crm responded 500: `{SECRET}`", details={"body": SECRET})
    told = NotificationView(id="n", event="e", when="completed", uses="http", at="…", run="x~notify-n", error=error)
    [document] = public_notifications(view(notifications=(told,)))
    assert document["error"] == {"type": "HttpStatus"}
    assert document["id"] == "n"
