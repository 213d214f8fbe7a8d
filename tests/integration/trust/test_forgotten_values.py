"""`saga forget` replaces the `x-sensitive` values of a finished saga, and says where they stay."""

from __future__ import annotations

import asyncio
import json
import shlex
import uuid
from datetime import timedelta
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from saga_activities.ledger.records import NewClaim
from saga_workers.client import Client
from saga_workers.privacy import forgetting
from saga_workers.privacy.database_rows import forget_in_database
from saga_workers.privacy.replacement import Replacement
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.saga_list import SagaFilter
from sagas.errors import RefusedError
from sagas.project import Project
from tests.helpers.forked_commands import run_command
from tests.helpers.local_worker import finished
from tests.helpers.processes import WorkerProcess
from tests.helpers.waiting import until
from tests.integration.trust.test_encrypted_values import CARD, MARKS, project, shop, tables

__all__ = ["project", "shop"]  # fixtures

STEPS = """saga: orders
input: {type: object, properties: {card: {type: object, x-sensitive: true}, order: {type: string}}}
steps:
  - {id: a, uses: cards.charge, with: {card: '${{ input.card }}'}, compensate: cards.refund}
  - id: b
    uses: sql
    compensate: auto
    with: {connection: shop, run: {sql: "insert into bills values (:id, :name)",
      params: {id: "${{ input.order }}", name: "${{ input.card.name }}"}}}
  - {id: c, uses: saga, with: {name: notes, input: {note: "of ${{ input.card.name }}", pin: "${{ input.card.pin }}"}}}
"""
NOTES = """saga: notes
input: {type: object, properties: {note: {type: string}, pin: {type: integer}}}
labels: {about: "${{ input.note }}"}
steps:
  - {id: a, uses: cards.charge, with: {card: "${{ input.note }}"}, compensate: cards.refund}
  - {id: b, uses: cards.charge, with: {card: "${{ input.pin }}"}, compensate: cards.refund}
output: "${{ steps.b.result }}"
"""
"""A nested saga whose own schema does not mark what it is given."""


def forget(folder: Path, saga_id: str, *options: str, reason: str = "asked") -> CompletedProcess[str]:
    return run_command(["forget", saga_id, "--reason", reason, "--yes", "--json", *options], folder)


def statuses(done: CompletedProcess[str]) -> dict[str, str]:
    return {place["place"]: place["status"] for place in json.loads(done.stdout)["places"]}


async def test_values_are_replaced_and_the_run_is_deleted(
    project: Project, tmp_path: Path, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "saga.toml").write_text(
        (tmp_path / "saga.toml").read_text().replace('[codec]\nkey = {file = "codec.key"}\n', "")
    )
    (tmp_path / "orders.saga.yaml").write_text(STEPS)
    (tmp_path / "notes.saga.yaml").write_text(NOTES)
    from sagas.settings import load_settings

    project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    saga_id, waiting = f"orders-{uuid.uuid4()}", f"waits-{uuid.uuid4()}"
    with _database(shop) as database:
        database.execute("create table bills (id text primary key, name text)")
    with WorkerProcess("worker", tmp_path):
        async with await Client.connect(project) as client:
            await client.start("orders", {"card": CARD, "order": "order-7"}, id=saga_id)
            await client.start("waits", {"card": CARD}, id=waiting)
            assert (await finished(client, saga_id))["state"] == "COMPLETED"
            assert forget(tmp_path, waiting).returncode == 9
            await until(lambda: all(_in_ledger(shop, each) for each in (saga_id, f"{saga_id}/c")))
            assert [name for name, data in tables(shop).items() if any(mark in data for mark in MARKS)]
            # What the parent's schema marks is sensitive in the nested saga, too.
            shown = run_command(["show", f"{saga_id}/c", "--json"], tmp_path)
            assert (shown.returncode, json.loads(shown.stdout)["input"]) == (0, {"note": "•••", "pin": "•••"}), shown
            for text in (shown.stdout, _origins(shop, f"{saga_id}/c")):
                assert "started_at" in text
                assert [line for line in text.splitlines() if any(mark.decode() in line for mark in MARKS)] == []

            done = forget(tmp_path, saga_id, reason=f"asked by {CARD['name']}")
            assert done.returncode == 5, done
            assert statuses(done) == {
                "shop: results in saga_guard": "replaced",
                "shop: inputs and hashes in saga_guard": "deleted",
                "shop: images in saga_image": "deleted",
                "shop: replies and inputs in saga_request": "nothing",
                "shop: events in saga_outbox": "nothing",
                "the ledger": "deleted",
                "histories and memos": "stays",
            }
            assert _leaks(shop) == set()
            assert _hashes(shop, saga_id) == []
            refused = run_command(["undo", saga_id, "--reason", "x", "--yes"], tmp_path)
            assert (refused.returncode, "were forgotten" in refused.stderr) == (9, True), refused
            _add_event(shop, saga_id)
            waits = forget(tmp_path, saga_id, "--delete-run")
            stays = {place for place, status in statuses(waits).items() if status == "stays"}
            assert (waits.returncode, stays) == (5, {"shop: events in saga_outbox", "histories and memos"}), waits
            assert "1 event to cards not published yet" in waits.stdout
            _publish_events(shop)
            again = forget(tmp_path, saga_id, "--delete-run")
            assert (again.returncode, statuses(again)["histories and memos"]) == (0, "deleted"), again
            assert _leaks(shop) == set()

            async def deleted() -> bool:
                return (await client.locator.within_temporal().locate(saga_id)).home is None

            await until(deleted)
    # Nobody knows the values any more.
    _add_event(shop, saga_id)
    waits = forget(tmp_path, saga_id)
    assert (waits.returncode, statuses(waits)["shop: events in saga_outbox"]) == (5, "stays"), waits
    _publish_events(shop)
    last = forget(tmp_path, saga_id)
    assert (last.returncode, statuses(last)["shop: events in saga_outbox"]) == (0, "replaced"), last
    assert _leaks(shop) == set()
    last = forget(tmp_path, saga_id)
    assert (last.returncode, set(statuses(last).values())) == (0, {"nothing"}), last
    view: dict[str, Any] = json.loads(run_command(["show", saga_id, "--json"], tmp_path).stdout)
    assert (view["state"], view["can_undo"], view["input"]["order"]) == ("COMPLETED", False, "order-7")
    whys = [(access["what"], access["reason"]) for access in view["accesses"]]
    assert whys == [("forget", "asked by •••"), *[("forget", "asked")] * 5]
    other = json.dumps({"card": CARD, "order": "order-8"})
    answered = run_command(["start", "orders", "--id", saga_id, "--input", other], tmp_path)
    told = f"already exists: {saga_id}; its input is forgotten, and was not compared; nothing was started"
    assert (answered.returncode, answered.stdout.splitlines()[0]) == (0, told), answered
    revealed = run_command(["show", saga_id, "--reveal", "--reason", "asked"], tmp_path)
    assert (revealed.returncode, f"the values of {saga_id} were forgotten at " in revealed.stderr) == (9, True), (
        revealed
    )
    assert ", because asked\n" in revealed.stderr
    # What nobody marks as sensitive stays.
    assert b"order-7" in tables(shop)["saga_run"]


def _add_event(shop: str, saga_id: str) -> None:
    with _database(shop) as database:
        insert = (
            "insert into saga_outbox_row (event_id, topic, value, headers, saga_id, step, generation, status,"
            " created_at) values (%s, 'cards', %s, '{}', %s, 'a', 1, 'NEW', 0)"
        )
        database.execute(insert, (str(uuid.uuid4()), json.dumps({"order": "order-7", "card": CARD}), saga_id))


def _publish_events(shop: str) -> None:
    with _database(shop) as database:
        database.execute("update saga_outbox_row set status = 'PUBLISHED'")


def _leaks(shop: str) -> set[str]:
    return {name for name, data in tables(shop).items() if any(mark in data for mark in MARKS)}


def _hashes(shop: str, saga_id: str) -> list[tuple[str]]:
    """The hashes of inputs and arguments of a saga and those nested in it, by which somebody could guess values."""
    with _database(shop) as database:
        return database.execute(
            "select args_hash from saga_guard where starts_with(saga_id, %(id)s) and args_hash is not null union all"
            " select origin from saga_guard where starts_with(saga_id, %(id)s) and origin::json->>'input_digest' <> ''"
            " union all"
            " select input_digest from saga_run where starts_with(saga_id, %(id)s) and input_digest is not null",
            {"id": saga_id},
        ).fetchall()


def _origins(shop: str, saga_id: str) -> str:
    with _database(shop) as database:
        rows = database.execute("select origin from saga_guard where saga_id = %s and origin is not null", (saga_id,))
        return str(rows.fetchall())


def _in_ledger(shop: str, saga_id: str) -> bool:
    return saga_id.encode() in tables(shop)["saga_run"]


def _generations_in_ledger(shop: str, saga_id: str) -> int:
    with _database(shop) as database:
        [(count,)] = database.execute(
            "select count(*) from saga_run where saga_id = %s and ended_at is not null", (saga_id,)
        ).fetchall()
    return count


def _record_forget(shop: str, saga_id: str, *, at: str) -> None:
    """Write the record of a forget that was interrupted."""
    with _database(shop) as database:
        insert = "insert into saga_audit (saga_id, what, at, who) values (%s, 'forget', %s, 'ada')"
        database.execute(insert, (saga_id, at))


def _database(shop: str) -> Any:
    import psycopg

    return psycopg.connect(shop.replace("+psycopg", ""), autocommit=True)


async def test_the_values_of_a_nested_saga_are_forgotten_with_its_parent(
    project: Project, tmp_path: Path, shop: str
) -> None:
    parent = f"returns-{uuid.uuid4()}"
    with WorkerProcess("worker", tmp_path):
        async with await Client.connect(project) as client:
            await client.start("returns", {"card": CARD}, id=parent)
            assert (await finished(client, parent))["state"] == "COMPLETED"
            await until(lambda: _in_ledger(shop, f"{parent}/b"))
            refused = run_command(["forget", f"{parent}/b", "--reason", "asked", "--yes"], tmp_path)
            assert refused.returncode == 9, refused
            [advice] = [line for line in refused.stderr.splitlines() if "saga forget" in line]
            command = shlex.split(advice.partition("saga ")[2])

            done = run_command([*command, "--yes", "--json"], tmp_path)

            assert (command[:2], done.returncode) == (["forget", parent], 5), done
            assert statuses(done)["the ledger"] == "deleted"
            for saga_id in (parent, f"{parent}/b"):
                assert await client.locator.ledger.machine(saga_id) is None


@pytest.mark.slow
async def test_one_that_was_interrupted_is_completed_by_the_next(
    project: Project, tmp_path: Path, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saga_id = f"declined-{uuid.uuid4()}"
    with WorkerProcess("worker", tmp_path):
        async with await Client.connect(project) as client:
            await client.start("declined", {"card": CARD}, id=saga_id)
            assert (await finished(client, saga_id))["state"] == "COMPENSATED"
            await until(lambda: _generations_in_ledger(shop, saga_id) == 1)
            _record_forget(shop, saga_id, at="2020-01-01T00:00:00Z")  # of an earlier saga of the id
            await client.start("declined", {"card": CARD}, id=saga_id, again=True)
            await until(lambda: _generations_in_ledger(shop, saga_id) == 2)
            settings = project.settings
            subject = await forgetting.find_subject(client.locator, settings, saga_id, delete_run=False)

            ledger = client.locator.ledger
            claim = await ledger.claim_single(NewClaim(saga_id, "digest"), "declined")
            assert claim.made_at is not None
            with pytest.raises(RefusedError, match="is being started again"):
                await forgetting.forget(client.locator, settings, subject, who="ada", reason="asked", delete_run=False)
            assert not await ledger.is_forgetting(saga_id, claim.made_at - timedelta(hours=1))
            await ledger.release_single(saga_id, claim.made_at)

            async def killed(*_: Any) -> Any:
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:  # nothing is replaced yet
                patch.setattr(forgetting, "_require_no_run", killed)
                with pytest.raises(KeyboardInterrupt):
                    await forgetting.forget(
                        client.locator, settings, subject, who="ada", reason="asked", delete_run=False
                    )
            assert not await ledger.is_forgetting(saga_id, claim.made_at - timedelta(hours=1))

            with monkeypatch.context() as patch:
                patch.setattr(client.locator.ledger, "forget", killed)
                with pytest.raises(KeyboardInterrupt):
                    await forgetting.forget(
                        client.locator, settings, subject, who="ada", reason="asked", delete_run=False
                    )
            assert not await client.locator.ledger.was_forgotten(saga_id)
            with pytest.raises(RefusedError, match="are being forgotten"):
                await client.start("declined", {"card": CARD}, id=saga_id, again=True)
    done = forget(tmp_path, saga_id)
    assert done.returncode == 5, done
    # Encrypted histories name the key without which nobody reads them.
    [stays] = [place for place in json.loads(done.stdout)["places"] if place["status"] == "stays"]
    assert "encrypted: unreadable as soon as the key" in stays["detail"]
    with _database(shop) as database:
        [(completed,)] = database.execute("select count(completed_at) from saga_audit").fetchall()
    assert completed == 3


async def test_a_saga_that_was_closed_before_it_had_begun_is_forgotten(project: Project, tmp_path: Path) -> None:
    """A run without a workflow task has done nothing: it is not stuck, and its history may be deleted."""
    saga_id = f"waits-{uuid.uuid4()}"
    async with await Client.connect(project) as client:
        await client.start("waits", {"card": CARD}, id=saga_id)  # no worker runs
        await client.temporal.get_workflow_handle(saga_id).terminate("test")
        stuck = list_stuck(client.locator, SagaFilter(workflow_id=saga_id), limit=9)
        assert [view.stuck async for view in stuck] == []
        resumed = await asyncio.to_thread(run_command, ["resume", saga_id], tmp_path)
        assert resumed.returncode == 9
        assert "closed before it had begun, so there is nothing to resume" in resumed.stderr
        kept = await asyncio.to_thread(forget, tmp_path, saga_id)
        assert (kept.returncode, statuses(kept)["histories and memos"]) == (5, "stays"), kept.stderr
        deleted = await asyncio.to_thread(forget, tmp_path, saga_id, "--delete-run")
        assert (deleted.returncode, statuses(deleted)["histories and memos"]) == (0, "deleted"), deleted.stderr


async def test_a_refused_row_that_has_started_no_saga_is_deleted(project: Project, tmp_path: Path, shop: str) -> None:
    toml = tmp_path / "saga.toml"
    toml.write_text(toml.read_text() + '[enqueue]\nconnections = ["shop"]\n')
    assert (done := run_command(["setup"], tmp_path)).returncode == 0, done
    with _database(shop) as database:
        for saga_id, status in (("refused-1", "REFUSED"), ("waits-1", "NEW")):
            insert = "insert into saga_enqueued (saga, saga_id, input, status) values ('orders', %s, %s, %s)"
            database.execute(insert, (saga_id, json.dumps(CARD), status))

        done = forget(tmp_path, "refused-1")

        assert (done.returncode, statuses(done)) == (0, {"shop: rows of saga_enqueued": "deleted"}), done
        assert database.execute("select saga_id from saga_enqueued").fetchall() == [("waits-1",)]
        _record_forget(shop, "refused-2", at="2020-01-01T00:00:00Z")  # another database did not answer then
        assert (done := forget(tmp_path, "refused-2")).returncode == 0, done
        recorded = "select saga_id from saga_audit where completed_at is not null order by saga_id"
        assert database.execute(recorded).fetchall() == [("refused-1",), ("refused-2",), ("refused-2",)]
    for saga_id in ("refused-1", "waits-1"):  # nothing is left; a row that may still start a saga stays
        assert (unknown := forget(tmp_path, saga_id)).returncode == 2, unknown


async def test_damaged_rows_are_replaced_as_a_whole(project: Project, shop: str) -> None:
    damaged = '{"saga:marker": "rejected", "reason": "kanari'
    with _database(shop) as database:
        for step, result in (("a", damaged), ("b", "kanari"), ("c", "[" * 100_000 + '"kanari')):
            insert = (
                "insert into saga_guard (saga_id, step, generation, op, reason, result, created_at)"
                " values ('damaged-1', %s, 1, 'do', 'done', %s, 0)"
            )
            database.execute(insert, (step, result))

    await forget_in_database(project.settings.sql_connection("shop"), ["damaged-1"], Replacement(frozenset({"kanari"})))

    assert _leaks(shop) == set()


async def test_a_row_that_is_delivered_again_meanwhile_stays(project: Project, tmp_path: Path, shop: str) -> None:
    toml = tmp_path / "saga.toml"
    toml.write_text(toml.read_text() + '[enqueue]\nconnections = ["shop"]\n')
    assert (done := run_command(["setup"], tmp_path)).returncode == 0, done
    with _database(shop) as database, _database(shop) as operator:
        insert = "insert into saga_enqueued (saga, saga_id, input, status) values ('orders', 'late-1', '{}', 'REFUSED')"
        database.execute(insert)
        operator.execute("begin")
        operator.execute("update saga_enqueued set status = 'NEW'")

        async def waits_for_operator() -> bool:
            return database.execute("select 1 from pg_locks where not granted").fetchone() is not None

        connection = project.settings.sql_connection("shop")
        replacing = asyncio.create_task(forget_in_database(connection, ["late-1"], Replacement(None)))
        await until(waits_for_operator)
        operator.execute("commit")
        [place] = [place for place in await replacing if "saga_enqueued" in place.place]

        assert place.status == "stays"
        assert database.execute("select status from saga_enqueued").fetchall() == [("NEW",)]
