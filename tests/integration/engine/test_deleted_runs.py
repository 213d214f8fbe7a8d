"""Sagas whose run was deleted in Temporal, or replaced by one with another input: found, named, started again."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from temporalio.common import WorkflowIDConflictPolicy

from saga_activities.guard.schema import create_tables
from saga_activities.locks.tables import create_tables as create_lock_tables
from saga_spark.reconcile.extracts import ReconciliationScope
from saga_spark.reconcile.findings import Finding
from saga_workers.client import Client
from saga_workers.doctor.saga_checks import check_sagas
from saga_workers.location.traces import open_effects, recorded_effects
from saga_workers.reconcile.open_saga_findings import find_lost_runs, with_one_remedy
from saga_workers.reconcile.prepared_transactions import find_unowned
from saga_workers.reconcile.repair import repair_findings
from saga_workers.stuck import continuation
from saga_workers.stuck.database_traces import DatabaseTraces
from saga_workers.stuck.guard_scan import MAX_SCANNED, GuardScan
from saga_workers.stuck.open_sagas import find_lost
from saga_workers.stuck.resumption import start_again
from saga_workers.stuck.stuck_sagas import list_stuck, remedy
from saga_workers.stuck.verdict import OpenSaga, judge
from saga_workers.views.locks import list_orphans
from saga_workers.views.saga_list import SagaFilter
from sagas import Rejected
from sagas.errors import RefusedError, UsageError
from sagas.settings import SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished
from tests.helpers.new_databases import new_database
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle, resolve, row
from tests.integration.engine.repeated_runs import waits_at

SAGA = """
    saga: deletable
    locks: {keys: ["${{ 'deletable-' + input.sku }}"]}
    steps:
      - id: take
        uses: sql
        with:
          connection: bank
          run: "update deleted_runs_goods set units = units - :units where sku = :sku"
          params: {sku: "${{ input.sku }}", units: "${{ input.units }}"}
          expect_rows: 1
          emit: [{topic: taken, key: "${{ input.sku }}", value: {at: "${{ saga.started_at }}"}, hold: true}]
        compensate: auto
      - id: reserve
        uses: sql
        with:
          connection: bank
          run: "update deleted_runs_goods set reserved = reserved + 1 where sku = :sku"
          params: {sku: "${{ input.sku + '-2' }}"}
          two_phase: true
      - {id: go, uses: wait, with: {signal: go}}
      - {id: note, uses: book, compensate: unbook}
"""

PLAIN = """
    saga: replaceable
    steps:
      - id: first
        uses: book
        with: {value: "${{ input.n }}"}
        compensate: {uses: unbook, with: {value: "${{ input.n }}"}}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: second, uses: book, compensate: unbook}
"""


@pytest_asyncio.fixture
async def bank(env: Environment, postgres_server: DatabaseServer) -> AsyncIterator[AsyncEngine]:
    url = new_database(postgres_server)  # the doctor names a few sagas, and other tests leave effects without a run
    engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    await create_tables(engine)
    await create_lock_tables(env.engine)
    async with engine.connect() as connection:
        statement = "create table deleted_runs_goods (sku varchar(60) primary key, units int, reserved int)"
        await connection.execute(text(statement))
    env.connections["bank"] = SqlConnection(name="bank", root=env.folder, url_setting=url)
    yield engine
    await engine.dispose()


async def query(engine: AsyncEngine, statement: str, **values: Any) -> list[Any]:
    async with engine.connect() as connection:
        return [tuple(row) for row in await connection.execute(text(statement), values)]


async def add_goods(bank: AsyncEngine) -> str:
    sku = str(uuid.uuid4())
    async with bank.connect() as connection:
        for key in (sku, f"{sku}-2"):
            await connection.execute(text("insert into deleted_runs_goods values (:sku, 5, 0)"), {"sku": key})
    return sku


async def goods(bank: AsyncEngine, sku: str) -> list[Any]:
    statement = "select units, reserved from deleted_runs_goods where sku like :sku order by sku"
    return await query(bank, statement, sku=f"{sku}%")


async def holdings(bank: AsyncEngine, env: Environment, id: str) -> dict[str, int]:
    """The number of rows that the saga holds."""
    statements = {
        "row locks": (bank, "select count(*) from saga_row_lock where saga_id = :id"),
        "held events": (bank, "select count(*) from saga_outbox where saga_id = :id and status = 'HELD'"),
        "prepared": (bank, "select count(*) from pg_prepared_xacts where gid like :id || '/%'"),
        "locks": (env.engine, "select count(*) from saga_lock where saga_id = :id"),
    }
    return {name: (await query(engine, sql, id=id))[0][0] for name, (engine, sql) in statements.items()}


async def resume(client: Client, id: str) -> None:
    location = await client.locator.locate(id)
    assert await judge(client.locator, client.project.settings, location) in ("deleted", "replaced")
    await start_again(client, location, who="anna", reason="lost")


async def check_commands(client: Client, deleted: OpenSaga) -> None:
    """Check that each command tells of the deleted run, and that a repair releases nothing."""
    id, settings, locator = deleted.saga_id, client.project.settings, client.locator
    command = f"saga resume {id}"
    [stuck] = [
        view
        async for view in list_stuck(
            locator, SagaFilter(saga="deletable"), limit=100, databases=DatabaseTraces([deleted])
        )
        if view.id == id
    ]
    assert stuck.stuck is not None
    assert command in stuck.stuck[0]
    told = await check_sagas(client.temporal, client.project)
    assert [(message.ok, message.help) for message in told if id in message.message] == [(False, command)]
    [missing] = await find_lost_runs(locator, settings, ReconciliationScope(saga_id=id), [])
    assert missing.saga == "deletable"
    orphans = [orphan for orphan in await list_orphans(locator, settings) if orphan.owner == id]
    leftovers = [Finding("lock_left", id, details={"holder": orphan.holder}) for orphan in orphans]
    leftovers += await find_unowned(locator, settings, id, {})
    assert [finding.kind for finding in leftovers] == ["lock_left", "prepared_unowned"]
    findings = with_one_remedy([missing, *leftovers])
    assert {finding.command for finding in findings} == {command}
    done = await repair_findings(locator, settings, [finding.to_json() for finding in findings], who="ada")
    assert [entry["class"] for entry in done] == ["run_missing"]
    assert command in done[0]["done"]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("ends", ["cancelled", "completed"])
async def test_a_deleted_saga_is_found_and_started_again(env: Environment, bank: AsyncEngine, ends: str) -> None:
    sku = await add_goods(bank)
    async with env.serving(SAGA) as client:
        id = await begin(client, "deletable", {"sku": sku, "units": 2})
        await waits_at(client, id)
        held = await holdings(bank, env, id)
        assert held == {"row locks": 1, "held events": 1, "prepared": 1, "locks": 1}
        assert await find_lost(client.locator, client.project.settings, id) == []
        await delete_run(client.temporal, id)

        with pytest.raises(UsageError, match=r"its effects are open: take on bank, reserve on bank") as unknown:
            await client.show(id)
        assert unknown.value.help is not None
        assert unknown.value.help.startswith(f"saga resume {id} ")
        [deleted] = await find_lost(client.locator, client.project.settings, id)
        assert sorted(deleted.holds) == [
            "held events on bank",
            "locks on shop",
            "open effects: take on bank, reserve on bank",
            "prepared transactions on bank",
            "row locks on bank",
        ]
        await check_commands(client, deleted)
        assert await holdings(bank, env, id) == held

        await resume(client, id)
        await waits_at(client, id)
        [resumed] = (await client.show(id))["operator"]
        assert (resumed["who"], resumed["decision"], resumed["reason"]) == ("anna (unverified)", "resume", "lost")
        assert await holdings(bank, env, id) == held
        if ends == "cancelled":
            await client.cancel(id)
            assert (await finished(client, id))["state"] == "COMPENSATED"
            assert await goods(bank, sku) == [(5, 0), (5, 0)]
        else:
            await handle(client, id).signal("go")
            assert (await finished(client, id))["state"] == "COMPLETED"
            assert await goods(bank, sku) == [(3, 0), (5, 1)]

        async def released() -> bool:  # its state is final before its locks are released
            return set((await holdings(bank, env, id)).values()) == {0}

        await until(released)
        assert await find_lost(client.locator, client.project.settings, id) == []
        if ends == "cancelled":
            with pytest.raises(RefusedError, match="none of its effects is open"):
                await start_again(client, await client.locator.locate(id))


async def replaced_saga(client: Client) -> str:
    """A saga that was ended by the start of its id with another input, which has parked at its first effect."""
    id = await begin(client, "replaceable", {"n": 1})
    await waits_at(client, id)
    await client.temporal.start_workflow(
        "replaceable",
        {"n": 2},
        id=id,
        task_queue=client.project.settings.temporal.task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
    )
    assert (await finished(client, id))["state"] == "PARKED"
    return id


async def test_a_run_with_another_input_leaves_the_effects_of_the_terminated_one(env: Environment) -> None:
    async with env.serving(PLAIN) as client:
        id = await replaced_saga(client)
        scope = ReconciliationScope(saga_id=id)
        [replaced] = await find_lost_runs(client.locator, client.project.settings, scope, [])
        assert (replaced.kind, replaced.details["effects"]) == ("run_replaced", "open effects: first on shop")
        listed = [view async for view in list_stuck(client.locator, SagaFilter(saga="replaceable"), limit=100)]
        assert [(view.needs_resume, remedy(view)) for view in listed if view.id == id] == [(True, f"saga resume {id}")]
        assert (await resolve(client, id, "first", "compensate"))["state"] == "COMPENSATED"
        assert await env.effects() == ["first"]
        [replaced] = await find_lost_runs(client.locator, client.project.settings, scope, [])
        assert replaced.kind == "run_replaced"

        await resume(client, id)
        await waits_at(client, id)
        assert await find_lost_runs(client.locator, client.project.settings, scope, []) == []
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert await env.effects() == []
        assert [call.value for call in env.asked if call.what == "undo first"] == [1]
        assert open_effects(await recorded_effects(client.project.settings, id)) == ""


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("ends", ["cancelled", "given up"])
async def test_an_effect_beside_which_another_run_has_completed_is_resumed(env: Environment, ends: str) -> None:
    """An operator has let the other run do its step once more, and it has ended: the first effect is still open."""
    async with env.serving(PLAIN) as client:
        id = await replaced_saga(client)
        async with env.engine.begin() as connection:
            await connection.execute(text("update effects set what = 'earlier first'"))  # `what` is unique
        await client.resolve(id, {"step": "first", "decision": "retry", "reason": "because", "who": "ada"})
        await waits_at(client, id)
        await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == "COMPLETED"
        completed = ["earlier first", "first", "second"]
        assert await env.effects() == completed
        [replaced] = await find_lost_runs(client.locator, client.project.settings, ReconciliationScope(saga_id=id), [])
        assert (replaced.kind, replaced.details["effects"]) == ("run_replaced", "open effects: first on shop")
        async with env.engine.begin() as connection:  # younger ones may be those of a start that is not seen yet
            older = "update saga_guard set created_at = created_at - 120 where saga_id = :id"
            await connection.execute(text(older), {"id": id})
        scan = GuardScan(client.project.settings)
        traces = DatabaseTraces(await find_lost(client.locator, client.project.settings, scan=scan))
        listed = [view async for view in list_stuck(client.locator, SagaFilter(), limit=100, databases=traces)]
        assert [(view.needs_resume, remedy(view)) for view in listed if view.id == id] == [(True, f"saga resume {id}")]
        told = await check_sagas(client.temporal, client.project)
        assert [(each.ok, each.help) for each in told if id in each.message] == [(False, f"saga resume {id}")]

        await resume(client, id)
        await waits_at(client, id)
        assert await env.effects() == completed
        if ends == "cancelled":
            await client.cancel(id)
            assert (await finished(client, id))["state"] == "COMPENSATED"
        else:  # it does not take what the other run has done for its own
            await handle(client, id).signal("go")
            assert [parked["step"] for parked in (await finished(client, id))["parked"]] == ["second"]
            assert (await resolve(client, id, "second", "compensate"))["state"] == "COMPENSATED"
        undone = [(call.what, call.value, call.generation) for call in env.asked if call.what.startswith("undo")]
        assert undone == [("undo first", 1, 1)]
        assert await env.effects() == ["earlier first", "second"]
        assert await find_lost(client.locator, client.project.settings, id) == []


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("ends", ["cancelled", "given up"])
async def test_the_effects_of_another_saga_are_not_its_own(env: Environment, ends: str) -> None:
    """The other saga has made an effect under the key of the pivot, with the same arguments."""
    own = """
        saga: held
        steps:
          - {id: first, uses: book, compensate: unbook}
          - {id: go, uses: wait, with: {signal: go}}
          - {id: last, uses: book, pivot: true}
    """
    other = """
        saga: holder
        steps:
          - {id: other, uses: book, compensate: unbook}
          - {id: last, uses: book, compensate: unbook}
    """
    async with env.serving(own, other) as client:
        id = await begin(client, "held", {"n": 1})
        await waits_at(client, id)
        queue, conflict = client.project.settings.temporal.task_queue, WorkflowIDConflictPolicy.TERMINATE_EXISTING
        await client.temporal.execute_workflow("holder", {}, id=id, task_queue=queue, id_conflict_policy=conflict)
        await resume(client, id)
        await waits_at(client, id)
        assert (await client.show(id))["phase"] == "forward"
        if ends == "cancelled":
            await client.cancel(id)
            story = await finished(client, id)
        else:
            await handle(client, id).signal("go")
            [parked] = (await finished(client, id))["parked"]
            assert (parked["step"], parked["why"]) == ("last", "key used with other arguments")
            story = await resolve(client, id, "last", "compensate")
        assert story["state"] == "COMPENSATED"
        assert await env.effects() == ["last", "other"]


async def test_a_run_with_another_start_leads_back_to_the_first_one(env: Environment) -> None:
    """The input is that of the deleted run; the arguments of the guarded step have the time of the start."""
    timed = PLAIN.replace("replaceable", "timed").replace("${{ input.n }}", "${{ string(saga.started_at) }}")
    async with env.serving(timed) as client:
        id = await begin(client, "timed", {"n": 1})
        await waits_at(client, id)
        began = (await client.show(id))["started_at"]
        await delete_run(client.temporal, id)
        await begin(client, "timed", {"n": 1}, id=id)
        story = await finished(client, id)
        assert (story["state"], "`saga resume ID`" in row(story, "first")["error"]["message"]) == ("PARKED", True)
        listed = [view async for view in list_stuck(client.locator, SagaFilter(saga="timed"), limit=100)]
        assert [remedy(view) for view in listed if view.id == id] == [f"saga resume {id}"]
        await resume(client, id)
        await waits_at(client, id)
        assert (await client.show(id))["started_at"] == began
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
    assert await env.effects() == []


async def test_a_saga_that_has_ended_is_not_started_again(env: Environment) -> None:
    """A completed saga has effects, which were taken for open: its steps without keys ran a second time."""
    async with env.serving(PLAIN.replace("replaceable", "completable")) as client:
        id = await begin(client, "completable", {"n": 1})
        await waits_at(client, id)
        await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == "COMPLETED"
        calls = len(env.asked)
        location = await client.locator.locate(id)
        assert await judge(client.locator, client.project.settings, location) is None
        with pytest.raises(RefusedError, match=f"{id} has already ended COMPLETED, so there is nothing to resume"):
            await start_again(client, location)
        assert (await client.show(id))["state"] == "COMPLETED"
        assert len(env.asked) == calls


async def test_a_saga_that_was_continued_to_its_end_is_not_started_again(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of a terminated saga that went forward ends it, and its effects are meant to stay."""
    definition = """
        saga: continued
        steps:
          - {id: first, uses: book, pivot: true}
          - {id: go, uses: wait, with: {signal: go}}
    """
    monkeypatch.setattr(continuation, "_UNDO_TIMEOUT", 0.0)
    async with env.serving(definition) as client:
        id = await begin(client, "continued", {})
        await waits_at(client, id)
        await handle(client, id).terminate("a test")
        assert await judge(client.locator, client.project.settings, await client.locator.locate(id)) == "terminated"
        await continuation.continue_saga(client.locator, id, "ada")
        await waits_at(client, id)
        await client.signal(id, "go")
        assert (await finished(client, id))["state"] == "COMPLETED"
        location = await client.locator.locate(id)
        assert await judge(client.locator, client.project.settings, location) is None
        with pytest.raises(RefusedError, match=f"{id} has already ended COMPLETED, so there is nothing to resume"):
            await start_again(client, location)


async def test_a_saga_that_may_have_ended_is_started_again_by_who_knows_better(env: Environment) -> None:
    async with env.serving(PLAIN.replace("replaceable", "forgettable")) as client:
        id = await begin(client, "forgettable", {"n": 1})
        await waits_at(client, id)
        await delete_run(client.temporal, id)
        async with env.engine.begin() as connection:
            older = "update saga_guard set created_at = created_at - 1e7 where saga_id = :id"
            await connection.execute(text(older), {"id": id})
        location = await client.locator.locate(id)
        with pytest.raises(
            RefusedError, match=r"may have ended, .*: its effects are older than Temporal keeps"
        ) as refused:
            await start_again(client, location)
        assert refused.value.help == f"if it had not, saga resume {id} --not-ended"
        await start_again(client, location, not_ended=True)
        await waits_at(client, id)
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert await env.effects() == []


async def test_a_definition_that_has_changed_is_named(env: Environment) -> None:
    async with env.serving(PLAIN.replace("replaceable", "changeable")) as client:
        id = await begin(client, "changeable", {"n": 1})
        await waits_at(client, id)
        await delete_run(client.temporal, id)
        location = await client.locator.locate(id)
        older = client.project.definition("changeable")
        client.project.definitions["changeable"] = replace(older, digest="sha256:other")
        with pytest.raises(UsageError, match=f"started with the definition {older.digest}") as changed:
            await start_again(client, location)
        assert changed.value.help is not None
        assert "--definition FILE" in changed.value.help
        await start_again(client, location, definition=older)
        await waits_at(client, id)
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert await env.effects() == []


async def test_an_undo_elsewhere_that_may_be_missing_is_asked_for(env: Environment) -> None:
    definition = """
        saga: undone-elsewhere
        steps:
          - {id: first, uses: book, compensate: {uses: unwork, retry: {max_attempts: 1}}}
          - {id: go, uses: wait, with: {signal: go}}
    """
    env.plan["undo first"] = [Rejected("closed")]
    async with env.serving(definition) as client:
        id = await begin(client, "undone-elsewhere", {})
        await waits_at(client, id)
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "PARKED"
        await delete_run(client.temporal, id)
        location = await client.locator.locate(id)
        with pytest.raises(RefusedError, match=f"look there for the key {id}/first/undo") as refused:
            await start_again(client, location)
        assert refused.value.help == f"then saga resume {id} --undone first"
        with pytest.raises(RefusedError) as refused:
            await start_again(client, location, undone=["other"], not_ended=True)
        assert refused.value.help == f"then saga resume {id} --undone other --undone first --not-ended"
        await start_again(client, location, undone=["first"])
        story = await finished(client, id)
        assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "late")


async def test_a_repeated_step_goes_on_with_its_generation(env: Environment) -> None:
    definition = """
        saga: repeated-steps
        steps:
          - {id: kept, uses: book, compensate: unbook, savepoint: {attempts: 2}}
          - {id: again, uses: book, retry: {max_attempts: 1}, compensate: unbook}
          - {id: go, uses: wait, with: {signal: go}}
          - {id: last, uses: book, compensate: unbook}
    """
    env.plan["do again"] = [Rejected("closed"), {"value": 1}]
    async with env.serving(definition) as client:
        id = await begin(client, "repeated-steps", {})
        await waits_at(client, id)
        assert row(await client.show(id), "again")["generation"] == 2
        await delete_run(client.temporal, id)
        calls = len(env.asked)
        await resume(client, id)
        await waits_at(client, id)
        assert [call.what for call in env.asked[calls:]] == []
        assert row(await client.show(id), "again")["generation"] == 2
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert await env.effects() == []


async def test_a_command_of_others_is_no_saga_of_this_project(env: Environment, bank: AsyncEngine) -> None:
    """A participant keeps its rows under the keys of commands, whose sagas another engine may run."""
    key = f"order-of-others-{uuid.uuid4()}"
    insert = (
        "insert into saga_guard (saga_id, step, generation, op, reason, created_at)"
        " values (:id, :step, 1, 'do', 'do', extract(epoch from now()) - 300)"
    )
    saga_id = f"deleted-{uuid.uuid4()}"
    async with bank.connect() as connection:
        await connection.execute(text(insert), {"id": key, "step": "@stock"})
        await connection.execute(text(insert), {"id": saga_id, "step": "take"})
    async with env.serving(SAGA) as client:
        suspects = await GuardScan(client.project.settings).find_suspects(client.locator, MAX_SCANNED)
        assert saga_id in suspects
        assert key not in suspects
        assert await recorded_effects(client.project.settings, key) == []
    async with bank.connect() as connection:
        await connection.execute(
            text("delete from saga_guard where saga_id in (:key, :id)"), {"key": key, "id": saga_id}
        )
