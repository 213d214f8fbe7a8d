"""`saga forget` replaces the values in what the project's own participants have replied to the saga's commands."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from saga_activities.connections import DatabaseConnections
from saga_activities.guard.entry_key import MAX_GUARD_ID
from saga_activities.guard.schema import create_tables
from saga_activities.participants import CommandCall, ParticipantCommands
from saga_workers.client import Client
from saga_workers.privacy.database_rows import forget_in_database
from saga_workers.privacy.replacement import Replacement
from sagas import Command, Rejected, participant
from sagas.actions.consumers import HANDLER_ATTRIBUTE
from sagas.project import Project
from sagas.settings import Settings, SqlConnection, load_settings
from tests.helpers.local_worker import finished
from tests.helpers.new_databases import new_url
from tests.helpers.processes import WorkerProcess
from tests.helpers.waiting import until
from tests.integration.trust.test_encrypted_values import CARD, MARKS, new_key, project, shop, tables
from tests.integration.trust.test_forgotten_values import forget, statuses

__all__ = ["project", "shop"]  # fixtures

NAME = str(CARD["name"])
REPLIES = "replies of participants in saga_guard"
LONG_KEYS = "replies of participants to long keys in saga_guard"


@participant("cards", connection="shop", timeout=10)
class Cards:
    async def do(self, command: Command, name: str) -> dict[str, str]:
        if name.startswith("no "):
            raise Rejected(f"{name} has no money", name=name)
        return {"charged": name}

    async def undo(self, command: Command, name: str) -> dict[str, str]:
        return {"refunded": name}


class Participant:
    """The participant on a database of its own."""

    def __init__(self, connection: SqlConnection) -> None:
        self.connection = connection
        self._connections = DatabaseConnections([connection])
        note = getattr(Cards, HANDLER_ATTRIBUTE)
        self._commands = ParticipantCommands.of(note, self._connections.guard("shop"))

    async def perform(self, key: str, name: str = NAME, op: Any = "do") -> Any:
        return await self._commands.perform(CommandCall(op, key, {"name": name}))

    async def forget(
        self, *saga_ids: str, values_known: bool = True, again: bool = False
    ) -> dict[str, tuple[str, str]]:
        replacement = Replacement(frozenset({NAME}) if values_known else None)
        places = await forget_in_database(self.connection, saga_ids, replacement, replaced_before=again)
        return {
            place.place.removeprefix("shop: "): (place.status, place.detail)
            for place in places
            if "participants" in place.place
        }

    async def rows(self) -> dict[str, str]:
        """The results and hashes that are stored for the commands, by key."""
        query = "select saga_id, op, result, args_hash from saga_guard where step like '@%' order by saga_id, op"
        async with self._connections.engine("shop").connect() as database:
            rows = (await database.execute(text(query))).all()
        return {f"{key} {op}": f"{result} {hash}" for key, op, result, hash in rows}


@pytest.fixture(params=["postgresql", "mariadb"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["in clear", "encrypted"])
async def cards(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Participant]:
    url = await new_url(kind, request, tmp_path)
    key = new_key() if request.param == "encrypted" else None
    settings: dict[str, Any] = {"name": "shop", "url": url, "codec_key": key}
    async with _participant(SqlConnection(**settings)) as cards:
        yield cards


@asynccontextmanager
async def _participant(connection: SqlConnection) -> AsyncIterator[Participant]:
    cards = Participant(connection)
    await create_tables(cards._connections.engine("shop"))
    yield cards
    await cards._connections.close()


async def test_the_replies_to_a_saga_and_to_those_nested_in_it_are_replaced(cards: Participant) -> None:
    keys = ("a_b/a#0", "a_b/c/a#0", "a_b/d#0", "axb/a#0", "a_bc/a#0", "A_B/a#0", "a_b@2/a#0")
    for key in keys:
        await cards.perform(key)
    await cards.perform("a_b/a#0", op="undo")
    await cards.perform("a_b/e#0", f"no {NAME}")
    before = await cards.rows()

    forgotten = await cards.forget("a_b", "a_b/c")

    assert forgotten == {REPLIES: ("replaced", "in 5 of 7 rows, 3 hashes of arguments deleted")}
    after = await cards.rows()
    changed = {key for key in after if after[key] != before[key]}
    assert changed == {"a_b/a#0 do", "a_b/a#0 undo", "a_b/c/a#0 do", "a_b/d#0 do", "a_b/e#0 do"}
    # The participant still answers as it did, without the value.
    assert (await cards.perform("a_b/d#0")).result == {"charged": "•••"}
    assert (await cards.perform("a_b/a#0", op="undo")).result == {"refunded": "•••"}
    assert (await cards.perform("a_b/e#0")).failure.details == {"name": "no •••"}
    assert (await cards.perform("axb/a#0")).result == {"charged": NAME}


@pytest.mark.sampled
@pytest.mark.parametrize("values_known", [True, False])
async def test_a_reply_that_comes_after_the_values_were_forgotten_is_replaced_by_the_next_call(
    cards: Participant, values_known: bool
) -> None:
    await cards.perform("a%b/a#0")
    await cards.forget("a%b")
    await cards.perform("a%b/b#0")
    await cards.perform("axb/b#0")

    again = await cards.forget("a%b", values_known=values_known, again=True)

    assert again[REPLIES][0] == "replaced"
    assert (await cards.perform("a%b/b#0")).result == ({"charged": "•••"} if values_known else "•••")
    assert (await cards.perform("axb/b#0")).result == {"charged": NAME}
    last = await cards.forget("a%b", values_known=values_known, again=True)
    assert last == {REPLIES: ("nothing", "no such value in 2 rows")}


async def test_keys_that_are_too_long_for_the_guard(cards: Participant) -> None:
    short, long = "s" * 440, "l" * 450
    end = "#" + "e" * 100
    for key in (f"{short}/{end}", f"{long}/a#0", f"{long}/{end}", f"{long}x/{end}", f"{'l' * 447}"):
        await cards.perform(key)
    await cards.perform(f"{long}/b{end}", "nobody")
    before = await cards.rows()
    assert max(map(len, before)) == MAX_GUARD_ID + len(" do")

    assert await cards.forget(short) == {REPLIES: ("replaced", "in 1 of 1 row, 1 hash of arguments deleted")}
    forgotten = await cards.forget(long)

    assert forgotten[REPLIES] == ("replaced", "in 1 of 1 row, 1 hash of arguments deleted")
    status, detail = forgotten[LONG_KEYS]
    assert (status, detail.startswith("2 rows of commands whose keys are too long")) == ("stays", True)
    after = await cards.rows()
    assert sum(after[key] != before[key] for key in after) == 2


async def test_the_command_replaces_what_a_participant_of_the_project_has_replied(
    project: Project, tmp_path: Path, shop: str
) -> None:
    saga_id = f"waits-{uuid.uuid4()}"
    settings: Settings = load_settings(config=str(tmp_path / "saga.toml"))
    async with _participant(settings.sql_connection("shop")) as cards:
        with WorkerProcess("worker", tmp_path):
            async with await Client.connect(project) as client:
                await client.start("waits", {"card": CARD}, id=saga_id)
                await cards.perform(f"{saga_id}/b#0")
                await client.signal(saga_id, "approved", CARD)
                assert (await finished(client, saga_id))["state"] == "COMPLETED"
                await until(lambda: saga_id.encode() in tables(shop)["saga_run"])
                assert (await cards.perform(f"{saga_id}/b#0")).result == {"charged": NAME}

                done = forget(tmp_path, saga_id)

                assert statuses(done)[f"shop: {REPLIES}"] == "replaced", done
                assert (await cards.perform(f"{saga_id}/b#0")).result == {"charged": "•••"}
                await cards.perform(f"{saga_id}/c#0")
                again = forget(tmp_path, saga_id)
                assert statuses(again)[f"shop: {REPLIES}"] == "replaced", again
                assert [name for name, data in tables(shop).items() if any(mark in data for mark in MARKS)] == []
                assert (await cards.perform(f"{saga_id}/c#0")).result == {"charged": "•••"}
