"""Lists, objects and scalars as parameters of SQL: they arrive as they are, or are refused and nothing is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bodies.sql_action import sql_body
from saga_activities.bulk.chunk_performer import ChunkPerformer
from saga_activities.guard.sql_session import SqlSession
from sagas.actions.batch import BatchStep, Item
from sagas.actions.registry import ACTION_ATTRIBUTE, Actions, action
from sagas.actions.step import Step
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from sagas.text.exact_json import decode_json, encode_json
from sagas.text.exact_numbers import is_equal
from tests.integration.guard.conftest import GuardDatabase, clock, new_address, new_attempt

VALUES: list[Any] = [
    [], ["a", "b"], [1, 2], [2**53 + 1, Decimal("1.10")], [True], [None], [1, "a"], [[1], [2]], [{"a": None}],
    {}, {"a": [Decimal("1.10"), "12"]}, "x", "12", "null", '"q"', 12, Decimal("12.50"), True, False, None,
]  # fmt: skip

COLUMNS = {
    "postgres": {
        "jsonb": ":v::jsonb",
        "json": "cast(:v as json)",
        "text[]": "",
        "int[]": "",
        "numeric[]": "",
        "text": "",
    },
    "mariadb": {"json": "", "text": ""},
    "sqlite": {"json": "", "text": ""},
}
"""The types of columns, and the form of a parameter that takes every value."""


def is_taken(column: str, value: Any, database: str) -> bool:
    """The rule of the page on SQL: whether a bare `:v` arrives."""
    match column, value:
        case _, None:
            return True
        case (("json" | "jsonb"), (list() | dict())):
            return True
        case (("json" | "jsonb"), str()):
            return database == "sqlite" and value == "x"  # SQLite does not look into its text
        case (("json" | "jsonb"), _):
            return database != "postgres"
        case "text", _:
            return isinstance(value, list | dict | str)
        case _, list() if value and all(isinstance(item, list) for item in value):
            return column != "text[]"
        case _, list():
            kinds = {type(item) for item in value if item is not None}
            if column == "int[]":
                return kinds <= {int} and all(abs(item or 0) < 2**31 for item in value)
            return kinds <= ({str} if column == "text[]" else {int, Decimal})
    return False


def as_read(column: str, text: str | None) -> Any:
    """The value of a column, given its text."""
    return text if text is None or column == "text" else decode_json(text)


@action("json.store", connection="shop")
async def store(step: Step, run: str, id: str, v: Any) -> None:
    await step.sql.execute(run, id=id, v=v)


@action("json.each", connection="shop", batch=True)
async def store_each(step: BatchStep, items: list[Item]) -> list[Any]:
    for item in items:
        await step.sql.execute(item["run"], id=item["id"], v=item["v"])
    return [None for _ in items]


BODIES = ActionBodies(Actions([getattr(each, ACTION_ATTRIBUTE) for each in (store, store_each)]))
Call = Callable[[GuardDatabase, str, Mapping[str, Any]], Awaitable[Outcome]]


async def _sql(database: GuardDatabase, run: str, params: Mapping[str, Any]) -> Outcome:
    address = new_address()
    invocation = Invocation("sql", {}, str(address), address.saga_id, address.entry, "do", 1)
    body = sql_body({"connection": "shop", "run": run, "params": params}, invocation, new_attempt())
    return await database.guard.do(address, "h", body, **clock())


async def _undo(database: GuardDatabase, run: str, params: Mapping[str, Any]) -> Outcome:
    address = new_address()
    await database.guard.do(address, "h", database.body("charge", address), **clock())
    invocation = Invocation("sql", {}, str(address), address.saga_id, address.entry, "undo", 1)
    body = sql_body({"connection": "shop", "run": [{"sql": run, "params": params}]}, invocation, new_attempt())
    return await database.guard.undo(address, body, known_done=True, **clock())


async def _rows(database: GuardDatabase, run: str, params: Mapping[str, Any]) -> Outcome:
    """`step.sql` with a list of parameters."""

    async def body(sql: SqlSession) -> None:
        await sql.execute(run, [params, {**params, "id": f"{params['id']}+"}])

    return await database.guard.do(new_address(), "h", body, **clock())


def _chunk(name: str, arguments: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]) -> Call:
    """Two calls in one transaction of a bulk workflow."""

    async def call(database: GuardDatabase, run: str, params: Mapping[str, Any]) -> Outcome:
        calls = []
        for at in range(2):
            saga = f"{params['id']}{at}"
            given = arguments(run, {**params, "id": saga})
            calls.append(
                Invocation(name, given, saga, saga, "pay", "do", 1, guard=GuardSpec("shop", "decide"), saga="order")
            )
        first, second = await ChunkPerformer(database.guard, BODIES).perform(calls, new_attempt())
        assert first is not None
        assert second is not None
        assert first.kind == second.kind
        return first

    return call


CALLERS: dict[str, Call] = {
    "sql": _sql,
    "undo": _undo,
    "list of parameters": _rows,
    "chunk of sql": _chunk("sql", lambda run, params: {"connection": "shop", "run": run, "params": params}),
    "chunk of step.sql": _chunk("json.store", lambda run, params: {"run": run, **params}),
    "batch": _chunk("json.each", lambda run, params: {"run": run, **params}),
}


@pytest.mark.sampled
@pytest.mark.parametrize("caller", CALLERS)
async def test_a_value_arrives_or_is_refused(guard_database: GuardDatabase, caller: str) -> None:
    kind = guard_database.kind
    for column, every in COLUMNS[kind].items():
        name = f"j_{uuid4().hex[:12]}"
        async with guard_database.engine.connect() as connection:
            await connection.exec_driver_sql(f"create table {name} (id varchar(80) primary key, v {column})")
        shown = "array_to_json(v)::text" if column.endswith("[]") else "v::text" if kind == "postgres" else "v"
        if kind == "sqlite":
            shown = "cast(v as text)"
        for form in (":v", every) if every else (":v",):
            for value in VALUES:
                id = uuid4().hex
                outcome = await CALLERS[caller](
                    guard_database, f"insert into {name} (id, v) values (:id, {form})", {"id": id, "v": value}
                )
                about = (column, form, value, outcome)
                rows = await guard_database.rows(f"select {shown} from {name} where id like :id", id=f"{id}%")
                if form == ":v" and not is_taken(column, value, kind):
                    if column == "text":
                        continue  # a database writes numbers as text
                    assert (outcome.kind, outcome.retryable, rows) == ("failed", False, []), about
                    continue
                assert outcome.kind == "done", about
                expected = value
                if column == "text" or (kind == "sqlite" and value == "x"):
                    expected = encode_json(value).decode() if isinstance(value, list | dict) else value
                for (text,) in rows:
                    read = (
                        text if expected is value and isinstance(value, str) and form == ":v" else as_read(column, text)
                    )
                    same = is_equal(read, expected) if kind == "sqlite" else encode_json(read) == encode_json(expected)
                    assert same, about
                assert rows, about


async def test_what_to_write_is_said(guard_database: GuardDatabase) -> None:
    name = f"j_{uuid4().hex[:12]}"
    async with guard_database.engine.connect() as connection:
        await connection.exec_driver_sql(f"create table {name} (v json)")
    outcome = await _sql(guard_database, f"insert into {name} (v) values (:v)", {"v": "12"})
    written = {
        "postgres": ("`:v::jsonb`", "`:v::text::jsonb`"),
        "mariadb": ("`json_quote(:v)`", "`json_compact(:v)`"),
        "sqlite": ("`json_quote(:v)`", "`json(:v)`"),
    }
    assert outcome.failure is not None
    assert outcome.failure.message.startswith(f"the parameter v is text, and the column v of {name}")
    for form in written[guard_database.kind]:
        assert form in outcome.failure.message
        text = f"insert into {name} (v) values ({form.strip('`')})"
        value = "12" if form == written[guard_database.kind][0] else '{"a": 1.10}'
        assert (await _sql(guard_database, text, {"v": value})).kind == "done"
    cast = "v::text" if guard_database.kind == "postgres" else "v"
    stored = [decode_json(text) for (text,) in await guard_database.rows(f"select {cast} from {name}")]
    assert stored == ["12", {"a": Decimal("1.10")}]


async def test_a_cast_to_json_concerns_its_place_only(guard_database: GuardDatabase) -> None:
    if guard_database.kind != "postgres":
        pytest.skip("the others have no such cast")
    outcome = await _sql(guard_database, "select :v::jsonb as a, :v as b, cast(:w as json) as c", {"v": "12", "w": [1]})
    assert outcome.result == [{"a": "12", "b": "12", "c": [1]}]


@pytest.mark.parametrize("value", ["x", 12, True, Decimal("12.50")])
async def test_the_error_of_a_scalar_says_what_to_write(guard_database: GuardDatabase, value: Any) -> None:
    if guard_database.kind != "postgres":
        pytest.skip("the others take it")
    name = f"j_{uuid4().hex[:12]}"
    async with guard_database.engine.connect() as connection:
        await connection.exec_driver_sql(f"create table {name} (v jsonb)")
    outcome = await _sql(guard_database, f"insert into {name} (v) values (:v)", {"v": value})
    assert outcome.failure is not None
    assert "a value becomes JSON with the cast `:name::jsonb`" in outcome.failure.message


@pytest.mark.parametrize("value", [[], [1, 2], {"a": "12"}])
async def test_a_value_for_several_columns(guard_database: GuardDatabase, value: Any) -> None:
    kind, name = guard_database.kind, f"j_{uuid4().hex[:12]}"
    other = "int[]" if kind == "postgres" else "text"
    async with guard_database.engine.connect() as connection:
        await connection.exec_driver_sql(f"create table {name} (id int primary key, v json, w {other})")
    conflict = "on duplicate key update v = :v" if kind == "mariadb" else "on conflict (id) do update set v = :v"
    for _ in range(2):
        outcome = await _sql(guard_database, f"insert into {name} (id, v) values (1, :v) {conflict}", {"v": value})
        assert outcome.kind == "done", outcome
    shown = "v::text" if kind == "postgres" else "v"
    assert [decode_json(text) for (text,) in await guard_database.rows(f"select {shown} from {name}")] == [value]
    outcome = await _sql(guard_database, f"insert into {name} (id, v, w) values (2, :v, :v)", {"v": value})
    if kind == "postgres" and isinstance(value, dict):
        assert outcome.failure is not None
        assert "is an array: give a list" in outcome.failure.message
    else:
        assert outcome.kind == "done", outcome


async def test_an_array_of_arrays(guard_database: GuardDatabase) -> None:
    if guard_database.kind != "postgres":
        pytest.skip("arrays are PostgreSQL's")
    name = f"j_{uuid4().hex[:12]}"
    async with guard_database.engine.connect() as connection:
        await connection.exec_driver_sql(f"create table {name} (v int[])")
    outcome = await _sql(guard_database, f"insert into {name} (v) values (:v)", {"v": [[1, 2], [3, 4]]})
    assert outcome.kind == "done", outcome
    assert await guard_database.rows(f"select v from {name}") == [([[1, 2], [3, 4]],)]


@dataclass
class Picture:
    data: bytearray


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({1: "a", "1": "b"}, "the keys 1 and '1' of one object have the same name in JSON"),
        ({"a": (1, float("nan"))}, "nan is not a JSON number"),
        ([{"a": float("inf")}], "inf is not a JSON number"),
        ({"a": [1, {"r": b"\xff\x00"}]}, "v.a[1].r is bytes, which JSON does not have"),
        ({"p": Picture(bytearray(b"x"))}, "v.p.data is bytes, which JSON does not have"),
        ([1, b"x"], "v[1] is bytes, which JSON does not have"),
    ],
)
async def test_what_json_cannot_hold_is_refused(guard_database: GuardDatabase, value: Any, problem: str) -> None:
    """A writer of JSON would keep the later key, write null for the number, and base64 for the bytes."""
    name = f"j_{uuid4().hex[:12]}"
    async with guard_database.engine.connect() as connection:
        await connection.exec_driver_sql(f"create table {name} (v json)")

    async def body(sql: SqlSession | None) -> None:
        assert sql is not None
        await sql.execute(f"insert into {name} (v) values (:v)", v=value)

    outcome = await guard_database.guard.do(new_address(), "h", body, **clock())
    assert outcome.failure is not None
    assert f"the parameter v cannot be written as JSON: {problem}" in outcome.failure.message
    assert (outcome.retryable, await guard_database.rows(f"select v from {name}")) == (False, [])
