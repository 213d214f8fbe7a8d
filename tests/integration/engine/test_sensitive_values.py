"""A failure quotes no `x-sensitive` value of the input, neither in the story nor in Temporal's history."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path

import pytest

from saga_workers.runtime.databases import set_up_database
from saga_workers.start.shared_starts import SharedStarts
from sagas import Step
from sagas.actions.registry import action
from sagas.definition.sensitivity import is_in_id
from sagas.errors import UsageError
from sagas.settings import SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, run_saga

INPUT = "input: {properties: {card: {type: string, x-sensitive: true}}}"
SQL = f"""
    saga: quoted-by-sql
    {INPUT}
    steps:
      - id: pay
        uses: sql
        with:
          connection: bank
          run: "select (:card::text)::int"
          params: {{card: "${{{{ input.card }}}}"}}
        compensate: {{uses: sql, with: {{connection: bank, run: select 1}}}}
"""
CALLED = {"connection": "bank", "run": [{"sql": "select (:card::text)::int", "params": {"card": "•••"}}]}
EXPRESSION = f"""
    saga: quoted-by-an-expression
    {INPUT}
    steps:
      - {{id: pay, uses: work, with: {{value: "${{{{ date(input.card) }}}}"}}, compensate: unwork}}
"""


@pytest.mark.parametrize(
    ("definition", "words", "arguments"),
    [(SQL, "integer", CALLED), (EXPRESSION, "timestamp", None)],
    ids=["sql", "expression"],
)
async def test_a_failure_does_not_quote_it(
    env: Environment, postgres_server: DatabaseServer, definition: str, words: str, arguments: object
) -> None:
    env.connections["bank"] = SqlConnection(name="bank", root=env.folder, url_setting=postgres_server.url())
    await set_up_database(env.connections["bank"])
    name = definition.split()[1]
    async with env.serving(definition) as client:
        story = await run_saga(client, name, {"card": "4111-hush"})
        history = await client.temporal.get_workflow_handle(story["id"]).fetch_history()
    assert story["state"] == "COMPENSATED"
    assert words in story["reason"]["message"]
    assert "•••" in story["reason"]["message"]
    assert "hush" not in str(story)
    assert story["steps"][0].get("arguments") == arguments
    failures = [event.activity_task_failed_event_attributes.failure for event in history.events]
    failures += [event.workflow_execution_failed_event_attributes.failure for event in history.events]
    assert "hush" not in str(failures)


BEATING = """
    saga: beats
    input: {properties: {card: {type: string, x-sensitive: true}, pin: {type: integer, x-sensitive: true}}}
    steps:
      - {id: pay, uses: pay, effect: none, heartbeat: 20s, timeout: 60s,
         with: {card: "${{ input.card }}", pin: "${{ input.pin }}"}}
"""


async def test_it_is_refused_as_the_id_that_is_given_at_a_start(env: Environment) -> None:
    async with env.serving(EXPRESSION) as client:
        shared = SharedStarts(await client.starter("quoted-by-an-expression"))
        request = await (await client.starter("quoted-by-an-expression")).check({"card": "4111-hush"})
        for id in ("4111-hush", "c-4111-hush", "4111-hush.2"):
            for start in (
                client.start("quoted-by-an-expression", {"card": "4111-hush"}, id=id),
                shared.start(request, id=id),
            ):
                with pytest.raises(UsageError, match="an x-sensitive value of its input") as refused:
                    await start
                assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("value", "id", "is_in"),
    [
        ("DE001", "DE001", True),
        ("DE001", "c-DE001", True),
        ("DE001", "c-DE0012", False),
        ("DE 001", "c-DE%20001", True),
        ("4711", "4711", True),
        ("4711", "0190a3c0-4711-7000-8000-000000000000", False),
    ],
)
def test_an_id_that_has_it(value: str, id: str, is_in: bool) -> None:
    assert is_in_id(frozenset({value}), id) == is_in


async def test_a_heartbeat_does_not_have_it(temporal: TemporalServer, tmp_path: Path) -> None:
    """`saga show` and the Web UI have the details while the attempt lasts."""
    may_end = asyncio.Event()

    @action("pay")
    async def pay(step: Step, card: str, pin: int) -> None:
        step.heartbeat({"at": f"the card {card}", "pin": pin, "done": 3, card: [card, True]})
        await may_end.wait()

    project = make_project(tmp_path, {"beats": textwrap.dedent(BEATING)}, [pay], address=temporal.address)
    async with running_worker(project) as client:
        saga = await client.start("beats", {"card": "4111-hush", "pin": 90210417})

        async def progress() -> object:
            steps = (await client.show(saga.id))["steps"]
            return steps[0].get("progress") if steps else None

        try:
            shown = await until(progress)
            described = await client.temporal.get_workflow_handle(saga.id).describe()
        finally:
            may_end.set()
        assert (await finished(client, saga.id))["state"] == "COMPLETED"
    assert shown == {"at": "the card •••", "pin": "•••", "done": 3, "•••": ["•••", True]}
    [attempt] = described.raw_description.pending_activities
    assert not {text for text in (b"hush", b"90210417") if text in attempt.heartbeat_details.SerializeToString()}
