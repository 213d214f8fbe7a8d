"""The participants of the drawn sagas, and the journal of what they have done and undone, by the key of each effect.

A row of the journal is written in the transaction of its effect. The participant outside of the guards keeps the
promises of docs/how-to/write-a-participant.md: it knows its keys, and refuses a key whose undo it has seen.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psycopg

from tests.integration.engine.sequences.drawn_sagas import TIMEOUT, DrawnSaga

PLACES = ("bank", "till", "remote")

TABLES = """
create table journal (
    at timestamptz not null default clock_timestamp(), key text not null, op text not null, by_hand bool default false
);
create table counters (id text primary key, n int not null);
create table keys (key text primary key, state text not null);
create table answers (entry text, op text, place int, answer text, primary key (entry, op, place));
create table asked (entry text, op text);
create table late (key text, due timestamptz, taken bool default false);
"""

ACTIONS = f"""
import asyncio
import psycopg
from sagas import Rejected, Step, action

URL = %r


async def _answer(connection, key, op):
    entry = "/".join(part.split("@")[0] for part in key.split("/"))
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(hashtext(%%s))", [entry + op])
        count = (await (await connection.execute(
            "select count(*) from asked where entry = %%s and op = %%s", [entry, op])).fetchone())[0]
        await connection.execute("insert into asked values (%%s, %%s)", [entry, op])
        row = await (await connection.execute(
            "select answer from answers where entry = %%s and op = %%s and place = %%s", [entry, op, count])).fetchone()
    return "done" if row is None else row[0]


async def _state(connection, key, new):
    row = await (await connection.execute(
        "insert into keys values (%%s, %%s) on conflict do nothing returning state", [key, new])).fetchone()
    if row is not None:
        return None
    return (await (await connection.execute(
        "select state from keys where key = %%s for update", [key])).fetchone())[0]


async def _do(connection, key):
    async with connection.transaction():
        state = await _state(connection, key, "done")
        if state is None:
            await connection.execute("insert into journal (key, op) values (%%s, 'do')", [key])
        return state


@action("call", remembers_rejections=True)
async def call(step: Step) -> dict:
    async with await psycopg.AsyncConnection.connect(URL, autocommit=True) as connection:
        answer = await _answer(connection, step.key, "do")
        if answer == "failed":
            raise ConnectionError("refused")
        if answer == "silent":
            await asyncio.sleep({TIMEOUT} + 1)
            raise TimeoutError("no answer")
        if answer == "late":
            await connection.execute(
                "insert into late values (%%s, clock_timestamp() + interval '{TIMEOUT + 0.6} seconds')", [step.key])
            await asyncio.sleep({TIMEOUT} + 1)
            raise TimeoutError("no answer")
        if answer == "rejected":
            async with connection.transaction():
                state = await _state(connection, step.key, "rejected")
            if state in (None, "rejected"):
                raise Rejected("no")
        else:
            state = await _do(connection, step.key)
        if answer == "lost":
            raise TimeoutError("lost")
        if state == "rejected":
            raise Rejected("no, as before")
        if state in ("undone", "sealed"):
            raise Rejected("its undo was seen")
        return {{"key": step.key}}


async def _undo(connection, key, never):
    async with connection.transaction():
        state = await _state(connection, key, never)
        if state == "done":
            await connection.execute("update keys set state = 'undone' where key = %%s", [key])
        if state == "done" or (state is None and never == "undone"):
            await connection.execute("insert into journal (key, op) values (%%s, 'undo')", [key])


async def _take_back(step, never):
    async with await psycopg.AsyncConnection.connect(URL, autocommit=True) as connection:
        answer = await _answer(connection, step.forward_key, "undo")
        if answer == "failed":
            raise ConnectionError("refused")
        if answer == "rejected":
            raise Rejected("not now")
        await _undo(connection, step.forward_key, never)
        if answer == "lost":
            raise TimeoutError("lost")


@action("uncall")
async def uncall(step: Step) -> None:
    await _take_back(step, "sealed")


@action("reverse")
async def reverse(step: Step) -> None:
    await _take_back(step, "undone")
"""

_REFUSAL = """
import asyncio
from sagas import BatchStep, Item, Rejected, Step, action

NOTE = "insert into journal (key, op) values (:key, :op)"


def _refusal(divisor):
    if divisor == 0:
        raise RuntimeError("divided by zero")
    return Rejected("no") if divisor == 2 else None
"""

_GUARDED = """

@action("PLACE.python", connection="PLACE")
async def PLACE_python(step: Step, divisor: int, pause: float) -> dict:
    if (refusal := _refusal(divisor)) is not None:
        raise refusal
    await step.sql.execute(NOTE, key=step.key, op="do")
    await asyncio.sleep(pause)
    return {"key": step.key}


@action("PLACE.forget", connection="PLACE")
async def PLACE_forget(step: Step) -> None:
    await step.sql.execute(NOTE, key=step.forward_key, op="undo")
    await asyncio.sleep(0.1)


@action("PLACE.batch", connection="PLACE", batch=True)
async def PLACE_batch(step: BatchStep, items: list[Item]) -> list:
    answers = [_refusal(item["divisor"]) for item in items]
    for item, refusal in zip(items, answers):
        if refusal is None:
            await step.sql.execute(NOTE, key=item.key, op="do")
    await asyncio.sleep(items[0]["pause"] if items else 0)
    return answers
"""

GUARDED_ACTIONS = _REFUSAL + "".join(_GUARDED.replace("PLACE", place) for place in ("bank", "till"))


@dataclass(frozen=True)
class Row:
    """A row of the journal. ``path``: the step in the saga and those nested in it, without generations."""

    at: float
    path: str
    key: str
    op: str
    by_hand: bool


class Participants:
    """The databases of the participants. ``urls``: by the names in :data:`PLACES`."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self.urls = urls
        for url in urls.values():
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(TABLES)

    def prepare(self, saga: DrawnSaga, saga_id: str) -> None:
        """Make the rows that the steps change, and store how the participant is to answer."""
        for path, step in saga.leaves():
            if step.kind == "auto":
                self.run(step.place, "insert into counters values (%s, 0)", f"{saga_id}/{path}")
            for op, answers in step.answers.items():
                for place, answer in enumerate(answers):
                    self.run(
                        "remote", "insert into answers values (%s, %s, %s, %s)", f"{saga_id}/{path}", op, place, answer
                    )

    def run(self, place: str, statement: str, *values: object) -> list[tuple]:
        with psycopg.connect(self.urls[place], autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)  # pyright: ignore[reportArgumentType,reportCallIssue]
            return cursor.fetchall() if cursor.description else []

    async def act_late(self) -> None:
        """Do what the participant is late with, for ever: it does so even if whoever has asked is killed."""
        while True:
            await asyncio.to_thread(self._act_late)
            await asyncio.sleep(0.1)

    def _act_late(self) -> None:
        for (key,) in self.run(
            "remote",
            "update late set taken = true where not taken and due < clock_timestamp() returning key",
        ):
            with psycopg.connect(self.urls["remote"], autocommit=True) as connection, connection.transaction():
                statement = "insert into keys values (%s, 'done') on conflict do nothing returning state"
                if connection.execute(statement, [key]).fetchone() is not None:
                    connection.execute("insert into journal (key, op) values (%s, 'do')", [key])

    def is_late(self) -> bool:
        return bool(self.run("remote", "select 1 from late where not taken"))

    def journal(self, saga_id: str | None = None) -> list[Row]:
        """The rows of all databases, in order: of a saga and those nested in it, or of all."""
        rows: list[Row] = []
        for place in PLACES:
            statement = "select extract(epoch from at)::float, key, op, by_hand from journal"
            rows += [Row(at, path_of(key), key, op, hand) for at, key, op, hand in self.run(place, statement)]
        own = [row for row in rows if saga_id is None or row.key.startswith(f"{saga_id}/")]
        return sorted(own, key=lambda row: row.at)

    def present(self, saga: DrawnSaga, saga_id: str) -> dict[str, int]:
        """How often the effect of each step is there, by its path."""
        counts: dict[str, int] = defaultdict(int)
        for row in self.journal(saga_id):
            counts[row.path] += 1 if row.op == "do" else -1
        for path, step in saga.leaves():
            counts.setdefault(path, 0)
            if step.kind == "auto":
                statement = "select n from counters where id = %s"
                counts[path] = self.run(step.place, statement, f"{saga_id}/{path}")[0][0]
        return dict(counts)

    def holdings(self, saga_id: str) -> list[str]:
        """The tables in which the saga, or one nested in it, has locks, row locks or prepared transactions."""
        tables = {"saga_lock": "saga_id", "saga_row_lock": "saga_id", "pg_prepared_xacts": "gid"}
        held: list[str] = []
        for place in ("bank", "till"):
            for table, column in tables.items():
                if self.run(place, "select to_regclass(%s)", table)[0][0] is None:
                    continue
                query = f"select 1 from {table} where {column} = %s or starts_with({column}, %s)"
                if self.run(place, query, saga_id, f"{saga_id}/"):
                    held.append(f"{table} on {place}")
        return held

    def take_back_by_hand(self, saga: DrawnSaga, saga_id: str, paths: Iterable[str]) -> list[str]:
        """Undo the effects of these steps that are there, as an operator does in the databases; gives their paths."""
        steps, present, done = dict(saga.leaves()), self.present(saga, saga_id), []
        for path in paths:
            if present.get(path, 0) <= 0:
                continue
            done.append(path)
            step = steps[path]
            if step.kind == "auto":
                self.run(step.place, "update counters set n = n - 1 where id = %s", f"{saga_id}/{path}")
                continue
            key = next(row.key for row in reversed(self.journal(saga_id)) if row.path == path and row.op == "do")
            place = "remote" if step.kind in ("call", "crossed") else step.place
            self.run(place, "insert into journal (key, op, by_hand) values (%s, 'undo', true)", key)
            if place == "remote":
                statement = "insert into keys values (%s, 'undone') on conflict (key) do update set state = 'undone'"
                self.run(place, statement, key)
        return done


def path_of(key: str) -> str:
    """The steps in a key, without the saga and the generations."""
    return "/".join(part.split("@")[0] for part in key.split("/")[1:])
