"""A failure quotes no `x-sensitive` value of the input, neither in the story nor in Temporal's history."""

from __future__ import annotations

import pytest

from saga_workers.runtime.databases import set_up_database
from sagas.settings import SqlConnection
from tests.helpers.database_servers import DatabaseServer
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
    env.connections["bank"] = SqlConnection(name="bank", root=env.folder, url=postgres_server.url())
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
