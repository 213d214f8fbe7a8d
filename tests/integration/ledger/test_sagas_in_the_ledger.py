"""Commands that read the ledger when Temporal has deleted a run."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from saga_workers.deploy.deploy_check import check_deploy
from sagas.actions.registry import Actions
from sagas.project import Project
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.cli.conftest import fresh
from tests.integration.ledger.conftest import Stay


@dataclass(frozen=True)
class PastSaga:
    """A saga of which only the ledger knows in ``stay.later``; ``story``: as Temporal told it."""

    id: str
    city: str
    story: Any


async def past_saga(stay: Stay, state: str = "COMPLETED", *, city: str | None = None) -> PastSaga:
    city = city or fresh("rome")
    run = await stay.client.start("stay", {"city": city, "amount": 1 if state == "COMPLETED" else 200})
    story = await finished(stay.client, run.id)
    assert story["state"] == state
    await stay.wait_for_row(run.id, state)
    return PastSaga(run.id, city, story)


async def test_a_saga_that_temporal_has_forgotten_is_shown(stay: Stay) -> None:
    past = await past_saga(stay)
    shown = await stay.later.saga("show", past.id)
    assert shown.code == 0, shown.err
    assert "from the ledger: Temporal has no run of this saga" in shown.out
    document = (await stay.later.saga("show", past.id, "--json")).json
    assert document == {**past.story, "source": "ledger", "web_ui": None}
    watched = await stay.later.saga("watch", past.id)
    assert watched.code == 0, watched.err
    opened = await stay.later.saga("open", past.id)
    assert (opened.code, f"no run of {past.id} any more, which has ended COMPLETED" in opened.err) == (9, True), opened
    undone = await past_saga(stay, "COMPENSATED")
    assert "has ended COMPENSATED" in (await stay.later.saga("open", undone.id)).err
    assert "source" not in (await stay.saga("show", past.id, "--json")).json, "Temporal is the truth while it knows it"
    unknown = await stay.later.saga("show", "nobody")
    assert (unknown.code, "there is no saga with the id nobody" in unknown.err) == (2, True)


async def test_hostile_words_of_a_participant_reach_the_ledger(stay: Stay) -> None:
    past = await past_saga(stay, "COMPENSATED", city="'; drop table saga_run; --")
    document = (await stay.later.saga("show", past.id, "--json")).json
    assert document["reason"]["message"] == "card declined \x00 ' or 1=1"
    assert document["labels"] == {"city": past.city}
    assert stay.query("select count(*) from rooms") == [(0,)]


async def test_an_id_that_only_the_ledger_knows_is_not_started_twice(stay: Stay) -> None:
    done = await past_saga(stay)
    repeated = await stay.later.saga("start", "stay", "--set", f"city={done.city}", "--json")
    assert (repeated.code, repeated.json["started"], repeated.json["source"]) == (0, False, "ledger")
    waited = await stay.later.saga("start", "stay", "--set", f"city={done.city}", "--wait", "--json")
    assert (waited.code, waited.json["state"], waited.json["source"]) == (0, "COMPLETED", "ledger")
    run = await stay.later.client.start("stay", {"city": done.city, "amount": 1.0})
    assert await run.result() == {"booked": done.city}
    other_input = await stay.later.saga("start", "stay", "--set", f"city={done.city}", "--set", "amount=3")
    assert (other_input.code, "has been started with another input" in other_input.err) == (9, True)
    other_saga = await stay.later.saga("start", "outing", "--set", "city=x", "--id", done.id)
    assert (other_saga.code, "belongs to a run of the saga stay" in other_saga.err) == (9, True)
    assert stay.query("select count(*) from rooms") == [(1,)]


async def test_an_undone_saga_starts_again_as_the_next_generation(stay: Stay) -> None:
    failed = await past_saga(stay, "COMPENSATED")
    words = ("start", "stay", "--set", f"city={failed.city}", "--set", "amount=200", "--json")
    refused = await stay.later.saga(*words)
    assert (refused.code, "has ended COMPENSATED" in refused.err) == (9, True)
    again = await stay.later.saga(*words, "--again", "--wait")
    assert again.json["generation"] == 2
    await until(
        lambda: asyncio.to_thread(
            stay.query, f"select 1 from saga_run where saga_id = '{failed.id}' and generation = 2"
        )
    )
    assert stay.query(f"select generation from saga_run where saga_id = '{failed.id}' order by started_at") == [
        (1,),
        (2,),
    ]
    # The guard remembers the first generation, and the second one has rows of its own.
    assert stay.query(f"select max(generation) from saga_guard where saga_id = '{failed.id}'") == [(2,)]


async def test_a_file_is_continued_after_temporal_has_forgotten_its_first_rows(stay: Stay) -> None:
    done, failed = await past_saga(stay), await past_saga(stay, "COMPENSATED")
    rows = [
        {"city": done.city, "amount": 1},
        {"city": failed.city, "amount": 200},
        {"city": fresh("bonn"), "amount": 1},
    ]
    file = stay.folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    started = await stay.later.saga("start", "stay", "--from", str(file), "--json")
    assert (started.json["started"], started.json["existing"], started.json["refused"]) == (1, 2, 0)
    assert started.json["ended"] == {"COMPLETED": 2, "COMPENSATED": 1}


async def test_a_saga_is_undone_from_the_ledger(stay: Stay) -> None:
    past = await past_saga(stay)
    undone = await stay.later.saga("undo", past.id, "--reason", "customer left", "--yes", "--json")
    assert undone.code == 0, undone.err
    assert undone.json["state"] == "COMPENSATED"
    assert stay.query("select count(*) from rooms") == [(0,)]
    await stay.wait_for_row(past.id, "COMPENSATED")
    assert stay.query(f"select labels ->> 'city', machine is null from saga_run where saga_id = '{past.id}'") == [
        (past.city, True)
    ]
    again = await stay.later.saga("undo", past.id, "--reason", "twice", "--yes")
    assert (again.code, "only a COMPLETED saga can be undone" in again.err) == (9, True)


async def test_the_undo_of_a_parent_finds_its_nested_saga_in_the_ledger(stay: Stay) -> None:
    city = fresh("wien")
    run = await stay.client.start("trip", {"city": city})
    assert (await finished(stay.client, run.id))["state"] == "COMPLETED"
    await stay.wait_for_row(run.id, "COMPLETED")
    await stay.wait_for_row(f"{run.id}/hotel", "COMPLETED")
    undone = await stay.later.saga("undo", run.id, "--reason", "r", "--yes", "--json")
    assert (undone.code, undone.json["state"]) == (0, "COMPENSATED"), undone.err
    assert stay.query("select count(*) from rooms") == [(0,)]


async def test_a_deployment_is_checked_with_the_sagas_of_the_ledger(stay: Stay) -> None:
    past = await past_saga(stay)
    await past_saga(stay, "COMPENSATED")
    locator, settings = stay.later.client.locator, stay.later.client.project.settings
    checked = await check_deploy(locator, Project(settings, Actions([])), limit=100)
    assert (checked.undoable, checked.is_complete) == (1, True)
    [problem] = checked.problems
    assert (problem.what, problem.ids) == ("room, compensate: there is no action room.cancel", [past.id])
    await past_saga(stay)
    assert not (await check_deploy(locator, Project(settings), limit=1)).is_complete


async def test_lists_end_with_what_only_the_ledger_knows(stay: Stay) -> None:
    done, failed = await past_saga(stay), await past_saga(stay, "COMPENSATED")
    new = await stay.later.client.start("stay", {"city": fresh("rome")})
    await finished(stay.later.client, new.id)

    async def listed(*words: str) -> list[tuple[str, str | None]]:
        views = (await stay.later.saga("list", "--saga", "stay", *words, "--json")).json
        mine = {done.id, failed.id, new.id}
        return [(view["id"], view.get("source")) for view in views if view["id"] in mine]

    async def is_visible() -> bool:
        return (new.id, None) in await listed()

    await until(is_visible)
    assert await listed() == [(new.id, None), (failed.id, "ledger"), (done.id, "ledger")]
    assert await listed("--state", "COMPENSATED") == [(failed.id, "ledger")]
    assert await listed("-l", f"city={done.city}") == [(done.id, "ledger")]
    assert await listed("--limit", "1") == [(new.id, None)]
    assert await listed("--since", "2099-01-01") == []
    assert await listed("--where", "WorkflowType = 'stay'") == [(new.id, None)]
    assert "from the ledger" in (await stay.later.saga("list", "--saga", "stay")).out


async def test_a_parked_saga_is_recorded_and_its_end_replaces_it(stay: Stay) -> None:
    city = fresh("oslo")
    stay.break_undo(True)
    run = await stay.client.start("outing", {"city": city})
    assert (await finished(stay.client, run.id))["state"] == "PARKED"
    await stay.wait_for_row(run.id, "PARKED")
    await _check_reasons_of_parked(stay, run.id)
    stay.break_undo(False)
    resolved = await stay.saga("resolve", run.id, "go", "retry", "--reason", "open again", "--yes")
    assert resolved.code == 0, resolved.err
    await finished(stay.client, run.id)
    await stay.wait_for_row(run.id, "COMPLETED")
    assert stay.query(f"select count(*), max(state), max(saga) from saga_run where saga_id = '{run.id}'") == [
        (1, "COMPLETED", "outing")
    ]


async def _check_reasons_of_parked(stay: Stay, saga_id: str) -> None:
    """Check that one saga has the same reasons as in the list, and that a person reads them once."""
    shown = (await stay.saga("--json", "show", saga_id)).json["stuck"]
    assert [reason.partition(":")[0] for reason in shown] == ["go is parked (do)"]

    async def listed() -> list[list[str]]:
        rows = (await stay.saga("--json", "list", "--stuck", "--limit", "1000")).json
        return [row["stuck"] for row in rows if row["id"] == saga_id]

    assert await until(listed) == [shown]
    assert "go is parked" not in (await stay.saga("show", saga_id)).out


async def test_what_was_parked_when_temporal_forgot_it_is_named(stay: Stay) -> None:
    stay.break_undo(True)
    city = fresh("oslo")
    run = await stay.client.start("outing", {"city": city})
    await finished(stay.client, run.id)
    await stay.wait_for_row(run.id, "PARKED")
    [group] = [row for row in (await stay.later.saga("parked", "--json")).json if run.id in row["ids"]]
    assert (group["step"], group["decisions"], group["source"]) == ("go", [], "ledger")
    assert group["command"] == f"saga show {run.id}"
    assert "see how each of them can go on" in (await stay.later.saga("parked")).out
    shown = await stay.later.saga("show", run.id)
    assert "decide with one of" not in shown.out
    assert ("saga resume" in shown.out) != ("only be undone by hand" in shown.out)
    started = await stay.later.saga("start", "outing", "--set", f"city={city}")
    assert (started.code, f"{run.id} is PARKED" in started.err) == (9, True)
