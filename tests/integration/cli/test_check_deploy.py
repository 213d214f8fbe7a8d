"""`saga check-deploy` against sagas that are open, or can be undone, on a real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from saga_activities.connections import open_engine
from saga_workers.client import Client
from saga_workers.deploy.deploy_check import DeployCheck, check_deploy
from saga_workers.runtime.databases import set_up_database
from sagas import action
from sagas.actions.registry import ACTION_ATTRIBUTE, Actions
from sagas.machine import calls
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.new_databases import new_url
from tests.helpers.processes import TemporalServer
from tests.helpers.run_changes import reset_run
from tests.helpers.waiting import until
from tests.integration.cli.conftest import CommandLine, write_project


@action("work")
async def other_work(machine: str, mode: int = 1) -> None:
    """Has an argument that nobody gives, and another type."""


async def check(client: Client, project: Project) -> DeployCheck:
    return await check_deploy(client.locator, project, limit=100)


async def test_calls_and_histories(
    temporal: TemporalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write_project(tmp_path / "project", temporal)
    async with running_worker(project) as client:
        ask = await client.start("ask", {})
        await until(lambda: _waits(client, ask.id))
        trip = await client.start("trip", {"mode": "ok"})
        assert (await finished(client, trip.id))["state"] == "COMPLETED"
    cli = CommandLine(tmp_path / "project", capsys, client)

    async def is_listed() -> bool:
        checked = await check(client, project)
        return (checked.running, checked.undoable) == (1, 1)

    await until(is_listed)
    answer = await cli.saga("check-deploy")
    assert (answer.code, answer.err) == (0, "")
    assert "this build can go on with all: 1 open run, 1 that can be undone" in answer.out
    cut = await cli.saga("check-deploy", "--limit", "1")
    assert (cut.code, "✔" in cut.out) == (8, False)
    assert "the check has ended at its limit of 1; further sagas were not checked" in cut.out

    without_undo = await check(client, Project(project.settings, Actions([getattr(other_work, ACTION_ATTRIBUTE)])))
    told = {(problem.saga, problem.what, *problem.ids) for problem in without_undo.problems}
    assert told == {  # the actions themselves are not called again
        ("ask", "hold, compensate: there is no action unwork", ask.id),
        *(("trip", f"{step}, compensate: there is no action unwork", trip.id) for step in ("hotel", "car", "flight")),
    }

    (tmp_path / "project" / "saga.toml").write_text(
        (tmp_path / "project" / "saga.toml").read_text().replace('"./actions.py"', '"./later.py"')
    )
    (tmp_path / "project" / "later.py").write_text(
        "from sagas import action\n\n@action('unwork')\nasync def unwork(why: str) -> None: ...\n"
    )
    document = await cli.saga("--json", "check-deploy")
    assert document.code == 8
    [problem] = [problem for problem in document.json["problems"] if problem["saga"] == "ask"]
    assert problem == {
        "kind": "call", "saga": "ask", "ids": [ask.id], "count": 1,
        "what": "hold, compensate: the action unwork needs the argument why, which these sagas do not give",
    }  # fmt: skip
    people = await cli.saga("check-deploy")
    assert people.code == 8
    assert "✖ ask: hold, compensate: the action unwork needs the argument why, which" in people.out
    assert "saga worker --deployment NAME --build-id ID" in people.out

    _rename_calls(monkeypatch)
    changed = await check(client, Project(load_settings(config=str(tmp_path / "project" / "saga.toml"))))
    replays = {problem.saga: problem for problem in changed.problems if problem.kind == "replay"}
    assert set(replays) == {"ask", "trip"}
    assert "ondetermin" in replays["ask"].what


async def test_a_saga_that_was_undone_needs_no_undo(temporal: TemporalServer, tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", temporal)
    async with running_worker(project) as client:
        trip = await client.start("trip", {"mode": "ok"})
        assert (await finished(client, trip.id))["state"] == "COMPLETED"

        async def undoable(number: int) -> bool:
            return (await check(client, project)).undoable == number

        await until(lambda: undoable(1))
        await client.undo(trip.id, reason="a test", who="anna")
        assert (await finished(client, trip.id))["state"] == "COMPENSATED"
        await until(lambda: undoable(0))
    without_undo = await check(client, Project(project.settings, Actions([getattr(other_work, ACTION_ATTRIBUTE)])))
    assert without_undo.problems == []


LATER = """
saga: later
notify:
  - {when: [completed], uses: unwork, with: {mode: told}}
steps:
  - {id: book, uses: work, compensate: unwork}
  - {id: wait, uses: wait, with: {signal: go}}
  - {id: hold, uses: work, confirm: unwork, compensate: unwork, idempotent: false, probe: {uses: reserve}}
  - {id: child, uses: saga, with: {name: "${{ steps.book.result.mode == 'ok' ? 'ask' : 'small' }}", input: {}}}
"""
SMALL = """
saga: small
input: {type: object, additionalProperties: false}
steps:
  - {id: only, uses: work, compensate: unwork}
"""


async def test_nested_sagas_and_notifications(temporal: TemporalServer, tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", temporal)
    folder = tmp_path / "project"
    (folder / "later.saga.yaml").write_text(LATER)
    (folder / "small.saga.yaml").write_text(SMALL)
    project = Project(load_settings(config=str(tmp_path / "project" / "saga.toml")))
    async with running_worker(project) as client:
        later = (await client.start("later", {})).id
        await until(lambda: _is_running(client, later, "wait"))

        async def problems(actions: Actions | None = None) -> set[str]:
            settings = load_settings(config=str(tmp_path / "project" / "saga.toml"))
            checked = await check(client, Project(settings) if actions is None else Project(settings, actions))
            return {problem.what for problem in checked.problems if problem.saga == "later"}

        assert await problems() == set()
        assert await problems(Actions([])) >= {
            "0, notify: there is no action unwork",
            "hold, confirm: there is no action unwork",
            "hold, compensate: there is no action unwork",
            "hold, probe: there is no action reserve",
        }
        (folder / "small.saga.yaml").write_text(SMALL.replace("additionalProperties: false", "required: [n]"))
        assert await problems() == {"child, do: the saga small does not take its input: input needs `n`"}
        (folder / "small.saga.yaml").unlink()
        assert await problems() == {"child, do: there is no saga small"}


STOCK = """
saga: stock
defaults: {connection: shop}
steps:
  - id: take
    uses: sql
    with: {run: update stock set free = free - 1}
    compensate: {uses: sql, with: {run: update stock set free = free + 1}}
  - {id: approval, uses: wait, with: {signal: go}}
"""


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("sqlite", "SQLite cannot prepare it: no such column: free"),
        ("postgresql", 'column "free" does not exist'),
        ("mariadb", "Unknown column 'free'"),
    ],
)
async def test_statements(
    temporal: TemporalServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    kind: str,
    why: str,
) -> None:
    write_project(tmp_path / "project", temporal)
    folder = tmp_path / "project"
    (folder / "stock.saga.yaml").write_text(STOCK)
    url = await new_url(kind, request, folder)
    with (folder / "saga.toml").open("a") as settings:
        settings.write(f'[connections.shop]\nurl = "{url}"\n')
    project = Project(load_settings(config=str(folder / "saga.toml")))
    await set_up_database(project.settings.sql_connection("shop"))
    engine = open_engine("shop", url, 1)

    async def sql(statement: str) -> list[Any]:
        async with engine.begin() as shop:
            result = await shop.execute(text(statement))
            return list(result.all()) if result.returns_rows else []

    await sql("create table stock (free int)")
    await sql("insert into stock values (1)")
    async with running_worker(project) as client:
        stock = (await client.start("stock", {})).id
        await until(lambda: _waits(client, stock))
    cli = CommandLine(folder, capsys, client)
    good = await cli.saga("check-deploy")
    assert (good.code, good.err) == (0, "")
    await sql("alter table stock rename column free to available")
    bad = await cli.saga("check-deploy")
    assert bad.code == 8
    assert "✖ stock: take, compensate: its statement on shop: " in bad.out
    assert why in " ".join(bad.out.split())
    assert bad.out.splitlines()[-2:] == [
        "  → keep the earlier tables and columns beside the new ones until no saga needs them any more; old",
        "    workers do not help, because they have the same database",
    ]
    document = await cli.saga("--json", "check-deploy")
    [problem] = document.json["problems"]
    assert problem.pop("what").startswith("take, compensate: its statement on shop: ")
    assert problem == {"kind": "statement", "saga": "stock", "ids": [stock], "count": 1}
    assert document.json["unchecked"] == []
    assert await sql("select available from stock") == [(0,)]
    await engine.dispose()
    queue = project.settings.temporal.task_queue
    toml = (folder / "saga.toml").read_text()
    (folder / "saga.toml").write_text(toml.replace(queue, f"{queue}-2"))
    assert (await cli.saga("check-deploy")).code == 0, "workers of the earlier task queue go on with the open ones"


SHIP = """
saga: ship
steps:
  - {id: approval, uses: wait, with: {signal: go}}
  - id: send
    uses: http
    with: {connection: carrier, method: POST, path: /parcels, callback: {timeout: 1h}}
    compensate: {uses: http, with: {connection: carrier, method: POST, path: /returns}}
"""
CARRIER = """
[connections.carrier]
kind = "http"
url = "http://127.0.0.1:9"
"""
ADDRESS = """
[serve]
public_url = "http://127.0.0.1:9"
"""


async def test_settings_and_keys(temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build whose settings lack what open sagas need, or the key with which they were started."""
    write_project(tmp_path / "project", temporal)
    folder = tmp_path / "project"
    (folder / "ship.saga.yaml").write_text(SHIP)
    toml = (folder / "saga.toml").read_text()
    (folder / "saga.toml").write_text(toml + CARRIER + ADDRESS)
    project = Project(load_settings(config=str(folder / "saga.toml")))
    async with running_worker(project) as client:
        ship, ask = (await client.start("ship", {})).id, (await client.start("ask", {})).id
        for id in (ship, ask):
            await until(lambda id=id: _waits(client, id))
    begun = (await client.start("ask", {}, id=f"{ask}-no-worker")).id

    async def problems(settings: str) -> set[tuple[str, ...]]:
        (folder / "saga.toml").write_text(settings)
        checked = await check(client, Project(load_settings(config=str(folder / "saga.toml"))))
        return {(problem.saga, problem.what, *sorted(problem.ids)) for problem in checked.problems}

    async def is_good() -> bool:
        return await problems(toml + CARRIER + ADDRESS) == set()

    await until(is_good)
    assert await problems(toml + ADDRESS) == {
        ("ship", f"send, {role}: the connection carrier is not in saga.toml", ship) for role in ("do", "compensate")
    }
    address = "its callback needs an address: set public_url under [serve] in saga.toml"
    assert await problems(toml + CARRIER) == {("ship", f"send, do: {address}", ship)}
    monkeypatch.setenv("SAGA_WORKER__DEFINITION_KEY", "k" * 40)
    key = "its history is signed with a key that this build does not have: keep it in definition_key under [worker]"
    assert await problems(toml + CARRIER + ADDRESS) == {("ship", key, ship), ("ask", key, ask, begun)}


async def test_a_run_of_a_temporal_reset_is_replayed(temporal: TemporalServer, tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", temporal)
    async with running_worker(project) as client:
        ask = await client.start("ask", {})
        await until(lambda: _waits(client, ask.id))
        await reset_run(client.temporal, ask.id)
        await until(lambda: _waits(client, ask.id))  # a worker that ends before that waits for an activity

        async def is_replayed() -> bool:
            checked = await check(client, Project(project.settings, Actions([])))
            told = [(problem.what, problem.ids) for problem in checked.problems]
            return checked.running == 1 and ("hold, compensate: there is no action unwork", [ask.id]) in told

        await until(is_replayed)


TOLD = """
saga: told
notify:
  - {when: [completed], uses: work, with: {mode: retry}}
steps:
  - {id: hold, uses: work, compensate: unwork}
"""


async def test_terminated_sagas_and_notifications_under_way(temporal: TemporalServer, tmp_path: Path) -> None:
    write_project(tmp_path / "project", temporal)
    folder = tmp_path / "project"
    (folder / "told.saga.yaml").write_text(TOLD)
    (folder / "down").touch()
    project = Project(load_settings(config=str(folder / "saga.toml")))
    async with running_worker(project) as client:
        ask, told = (await client.start("ask", {})).id, (await client.start("told", {})).id
        await until(lambda: _waits(client, ask))
        assert (await finished(client, told))["state"] == "COMPLETED"
    begun = await client.start("ask", {}, id=f"{ask}-no-worker")
    for id in (ask, begun.id):
        await client.temporal.get_workflow_handle(id).terminate("a test")

    async def is_reported() -> bool:
        checked = await check(client, Project(project.settings, Actions([])))
        problems = {(problem.what, *problem.ids) for problem in checked.problems}
        is_counted = (checked.running, checked.resumable, checked.undoable) == (1, 1, 1)
        return is_counted and problems == {
            ("hold, compensate: there is no action unwork", ask),
            ("hold, compensate: there is no action unwork", told),
            ("notify-0-completed, notify: there is no action work", f"{told}~notify-0-completed"),
        }

    await until(is_reported)


async def test_a_saga_that_no_worker_has_begun(temporal: TemporalServer, tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", temporal)
    client = await Client.connect(project)
    trip = (await client.start("trip", {"mode": "ok"})).id

    async def is_compared() -> bool:
        checked = await check(client, Project(project.settings, Actions([])))
        told = {(problem.saga, problem.what, *problem.ids) for problem in checked.problems}
        return checked.running == 1 and ("trip", "car, do: there is no action work", trip) in told

    await until(is_compared)
    await client.close()


async def test_sagas_whose_definition_this_build_lacks(temporal: TemporalServer, tmp_path: Path) -> None:
    """A nested saga and one that another client has started have no definition in their start."""
    project = write_project(tmp_path / "project", temporal)
    async with running_worker(project) as client:
        tour = (await client.start("tour", {})).id
        queue = project.settings.temporal.task_queue
        alone = (await client.temporal.start_workflow("trip", {}, id=f"{tour}-alone", task_queue=queue)).id
        for id in (tour, alone):
            assert (await finished(client, id))["state"] == "COMPLETED"
    file = tmp_path / "project" / "trip.saga.yaml"

    async def told() -> tuple[int, set[tuple[str, ...]]]:
        settings = load_settings(config=str(tmp_path / "project" / "saga.toml"))
        checked = await check(client, Project(settings, Actions([])))
        return checked.undoable, {(problem.what, *sorted(problem.ids)) for problem in checked.problems}

    ids = sorted((f"{tour}/leg", alone))
    expected = {(f"{step}, compensate: there is no action unwork", *ids) for step in ("hotel", "car", "flight")}

    async def is_told() -> bool:
        return await told() == (3, expected)

    await until(is_told)
    file.write_text("saga: trip\nsteps: [{id: hotel, uses: gone}]\n")
    assert await told() == (3, expected)
    file.unlink()
    assert await told() == (3, expected)


async def _waits(client: Client, id: str) -> bool:
    return await _is_running(client, id, "approval")


async def _is_running(client: Client, id: str, name: str) -> bool:
    steps: list[dict[str, Any]] = (await client.show(id))["steps"]
    return any(step["id"] == name and step["state"] == "RUNNING" for step in steps)


def _rename_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    honest: Callable[..., Any] = calls.send_call

    def send_under_another_name(run: Any, *rest: Any, **more: Any) -> None:
        honest(run, *rest, **more)
        call = run.commands.pop()
        run.emit(type(call)(**{name: getattr(call, name) for name in call.__slots__} | {"action": "other"}))

    monkeypatch.setattr(calls, "send_call", send_under_another_name)
