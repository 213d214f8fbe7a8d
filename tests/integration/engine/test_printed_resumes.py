"""A saga about which nearly everything is doubtful: each refusal of `saga resume` prints the command that answers it.

Followed as they are printed, with nothing else, the commands lead to a run that does what the options say.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from saga_workers.client import Client
from saga_workers.stuck.open_sagas import find_lost
from saga_workers.stuck.resumption import start_again
from sagas import Rejected
from sagas.definition.model import Definition
from sagas.errors import RefusedError, UsageError
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import delete_run
from tests.integration.engine.environment import Environment, begin, handle
from tests.integration.engine.repeated_runs import waits_at
from tests.integration.operators.advice import COMMAND

INPUT = {"large": "x" * 300_000}
"""The guard keeps the digest alone."""


class Person:
    """Has the files that the saga was started with, and answers with ``told`` where a refusal prints two commands."""

    def __init__(self, client: Client, id: str, definition: Definition, told: str = "") -> None:
        self.client, self.id, self.told = client, id, told
        self.files = {"definition": definition, "input": INPUT}
        self.commands: list[str] = []

    async def resume(self) -> None:
        """Follow what is printed until the saga is started again."""
        options: dict[str, Any] = {}
        while True:
            try:
                await start_again(self.client, await self.client.locator.locate(self.id), **options)
            except (RefusedError, UsageError) as refusal:
                options = self.parse(self.choose(refusal.help or ""))
            else:
                return

    def choose(self, help: str) -> str:
        printed = [match.group().partition(", with")[0].strip() for match in COMMAND.finditer(help)]
        command = next((command for command in printed if self.told and self.told in command), printed[0])
        assert command not in self.commands, "it was refused as it was printed"
        self.commands.append(command)
        return command

    def parse(self, command: str) -> dict[str, Any]:
        words = iter(shlex.split(command))
        assert [next(words), next(words), next(words)] == ["saga", "resume", self.id]
        options: dict[str, Any] = {}
        for word in words:
            match word:
                case "--definition" | "--input":
                    assert next(words) in ("FILE", "@FILE")
                    options[word[2:]] = self.files[word[2:]]
                case "--undone":
                    options.setdefault("undone", []).append(next(words))
                case "--not-ended":
                    options["not_ended"] = True
                case "--committed" | "--not-committed":
                    options["committed"] = word == "--committed"
                case _:
                    raise AssertionError(f"{word} in {command}")
        return options


async def lose_run(env: Environment, client: Client, id: str) -> Definition:
    """Delete the run; the definition changes, and the rows of the guard get older than Temporal keeps a run. Returns
    the definition as it was.
    """
    await delete_run(client.temporal, id)
    async with env.engine.begin() as connection:
        older = "update saga_guard set created_at = created_at - 1e7 where saga_id = :id"
        await connection.execute(text(older), {"id": id})
    name = id.rsplit("-", 5)[0]
    definition = client.project.definition(name)
    client.project.definitions[name] = replace(definition, digest="sha256:other")
    return definition


async def test_the_commands_about_an_interrupted_rollback(env: Environment) -> None:
    definition = """
        saga: doubted
        steps:
          - {id: first, uses: book, compensate: unbook}
          - {id: second, uses: book, compensate: {uses: unwork, retry: {max_attempts: 1}}}
          - {id: go, uses: wait, with: {signal: go}}
    """
    env.plan["undo second"] = [Rejected("closed")]
    async with env.serving(definition) as client:
        id = await begin(client, "doubted", INPUT)
        await waits_at(client, id)
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "PARKED"
        person = Person(client, id, await lose_run(env, client, id))
        await person.resume()
        assert [command.removeprefix(f"saga resume {id} ") for command in person.commands] == [
            "--not-ended",
            "--undone second --not-ended",
            "--definition FILE --undone second --not-ended",
            "--definition FILE --input @FILE --undone second --not-ended",
        ]
        story = await finished(client, id)
        assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "late")
        assert [call.what for call in env.asked if call.what.startswith("undo")] == ["undo second", "undo first"]
        assert await find_lost(client.locator, client.project.settings, id) == []


@pytest.mark.parametrize(("told", "ends"), [("--committed", "COMPLETED"), ("--not-committed", "COMPENSATED")])
async def test_the_commands_about_a_point_of_no_return(env: Environment, told: str, ends: str) -> None:
    definition = """
        saga: confirmed
        steps:
          - {id: first, uses: book, compensate: unbook}
          - {id: go, uses: wait, with: {signal: go}}
          - {id: last, uses: work, retry: {max_attempts: 1}, confirm: settle, compensate: unwork}
    """
    env.plan["confirm last"] = [Rejected("no"), None]
    async with env.serving(definition) as client:
        id = await begin(client, "confirmed", INPUT)
        await waits_at(client, id)
        await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == "PARKED"
        person = Person(client, id, await lose_run(env, client, id), told)
        await person.resume()
        assert told in person.commands[-1]
        await waits_at(client, id)
        if told == "--not-committed":
            await client.cancel(id)
        else:
            with pytest.raises(RefusedError, match="past the point of no return"):
                await client.cancel(id)
            await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == ends
        assert await env.effects() == (["first"] if ends == "COMPLETED" else [])
