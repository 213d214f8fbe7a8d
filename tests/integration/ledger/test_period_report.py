"""`saga report`: exact numbers from the ledger and from Temporal, and what it says that it cannot know."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from saga_activities.ledger.records import OutcomeCount
from saga_workers.ledger.run_ledger import RunLedger
from saga_workers.views.period_report import slowest_steps
from sagas.protocol.saga_view import StepView
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.cli.conftest import CommandResult, fresh
from tests.integration.ledger.conftest import Stay
from tests.integration.ledger.test_ledger_rows import NOW, record
from tests.integration.ledger.test_sagas_in_the_ledger import past_saga


def step(name: str, seconds: float, attempts: int = 1) -> StepView:
    ended = (NOW + timedelta(seconds=seconds)).isoformat()
    return StepView(
        id=name, step=name, uses="work", state="DONE", attempts=attempts, started_at=NOW.isoformat(), ended_at=ended
    )


async def test_outcomes_and_slowest_sagas_of_a_period(ledger: RunLedger) -> None:
    quick, slow = (step("pay", 0.25), step("pack", 0.5)), (step("pay", 7.5, 3), step("pack", 0.25))
    before = NOW - timedelta(days=1)
    await ledger.write(
        [
            record("s-1", later=1.5, steps=quick),
            record("s-2", later=8, steps=slow),
            record("s-3", "COMPENSATED", later=2.25),
            record("s-4", "PARKED", later=3),
            record("s-5", saga="refund", later=90_061.125),
            record("s-6", started=before, later=500_000),
        ]
    )
    assert await ledger.outcomes(NOW, None) == [
        OutcomeCount("checkout", "COMPENSATED", 1, 2.25, 2.25),
        OutcomeCount("checkout", "COMPLETED", 2, 9.5, 8.0),
        OutcomeCount("refund", "COMPLETED", 1, 90_061.125, 90_061.125),
    ]
    assert [count.saga for count in await ledger.outcomes(NOW, "refund")] == ["refund"]
    assert [row.view.id for row in await ledger.slowest(NOW, None, 3)] == ["s-5", "s-2", "s-3"]
    slowest = await ledger.slowest(NOW, "checkout", 10)
    assert [row.view.id for row in slowest] == ["s-2", "s-3", "s-1"]
    assert [
        (times.step, times.count, times.mean_seconds, times.longest_seconds, times.attempts, times.saga_id)
        for times in slowest_steps([row.view for row in slowest])
    ] == [("pay", 2, 3.875, 7.5, 4, "s-2"), ("pack", 2, 0.375, 0.5, 2, "s-1")]
    assert await ledger.open_members(NOW, None) == {}


async def test_the_time_to_a_later_undo_is_no_duration(ledger: RunLedger) -> None:
    past_commit = (NOW + timedelta(seconds=0.5)).isoformat()
    undone = {"phase": "backward", "committed_at": past_commit, "later": 1_080.0}
    await ledger.write(
        [
            record("s-1", "COMPENSATED", **undone),
            record("s-2", "RESIDUE", **undone),
            record("s-3", "COMPENSATED", later=2.0, phase="backward"),
        ]
    )
    assert await ledger.outcomes(NOW, None) == [
        OutcomeCount("checkout", "COMPENSATED", 2, 2.5, 2.0),
        OutcomeCount("checkout", "RESIDUE", 1, 0.5, 0.5),
    ]
    assert [row.view.id for row in await ledger.slowest(NOW, None, 1)] == ["s-3"]


def rows_of(printed: CommandResult) -> dict[str, list[str]]:
    """The rows of the printed tables, by their first cells; the first one of each."""
    rows = [re.split(r" {2,}", line.strip()) for line in printed.out.splitlines() if line.startswith("  ")]
    return {row[0]: row[1:] for row in reversed(rows)}


async def start_in_another_project(stay: Stay) -> None:
    """Start sagas of the same name on another task queue: one stays open, one is terminated."""
    temporal = stay.client.temporal
    await temporal.start_workflow("outing", id=fresh("bonn"), task_queue="another-project")
    terminated = await temporal.start_workflow("outing", id=fresh("basel"), task_queue="another-project")
    await terminated.terminate("a test")

    async def listed() -> bool:
        return (await temporal.count_workflows("TaskQueue = 'another-project'")).count == 2

    await until(listed)


async def test_the_report_of_a_day_from_the_ledger(stay: Stay) -> None:
    for state in ("COMPLETED", "COMPLETED", "COMPENSATED"):
        await past_saga(stay, state)
    await start_in_another_project(stay)
    (stay.folder / "broken").write_text("")
    outing = await stay.client.start("outing", {"city": "rome"})
    await finished(stay.client, outing.id)
    [parked] = (await stay.saga("parked", "--json")).json
    assert parked["saga"] == "outing"
    page = stay.folder / "report.html"
    ledger = stay.client.locator.ledger
    assert await ledger.begin_pause("saga", "flight", who="ada", reason="stock is counted")

    async def seen() -> CommandResult | None:
        printed = await stay.saga("report", "--since", "1h", "--html", str(page))
        assert printed.code == 0, printed.err
        return printed if rows_of(printed).get("outing", [""])[0] == "1" else None

    printed = await until(seen)  # Temporal's list lags
    assert "Events not served" not in printed.out
    rows = rows_of(printed)
    assert rows["saga"][:7] == ["started", "open", "COMPLETED", "COMPENSATED", "RESIDUE", "TERMINATED", "FAILED"]
    assert rows["stay"][:7] == ["3", "0", "2", "1", "0", "0", "0"]
    assert rows["outing"][:7] == ["1", "1", "0", "0", "0", "0", "0"]
    assert rows["all"][:7] == ["4", "1", "2", "1", "0", "0", "0"]
    assert "Of the 3 sagas that took longest." in printed.out
    assert "Not in this report" not in printed.out
    assert f"since {datetime.now().astimezone():%Y-%m-%d}" in printed.out
    assert f"{datetime.now().astimezone():%Z}" in printed.out.splitlines()[0]
    held = printed.out.partition("Held back now")[2]
    assert "all sagas of flight are paused by ada since" in held
    assert "saga resume --saga flight" in held
    text = page.read_text()
    assert text.count("<h2>") == 5
    assert "<td>stay</td><td>3</td><td>0</td><td>2</td><td>1</td>" in text

    await stay.client.temporal.get_workflow_handle(outing.id).terminate()
    assert (await stay.saga("resume", outing.id, "--reason", "closed by mistake", "--yes")).code == 0
    await finished(stay.client, outing.id)
    decision = ("resolve", outing.id, "go", "skip", "--reason", "closed for good", "--yes")
    assert (await stay.saga(*decision)).code == 0
    await stay.wait_for_row(outing.id, "RESIDUE")

    async def residue() -> object:
        document = (await stay.saga("report", "--saga", "outing", "--json")).json
        return document if document["residue"] and not document["parked"] else None

    document = await until(residue)
    assert document["source"] == "ledger"
    assert [(hold["kind"], hold["name"], hold["reason"]) for hold in document["holds"]] == [
        ("saga", "flight", "stock is counted")
    ]
    assert await ledger.end_pause("saga", "flight")
    [count] = document["sagas"]
    assert (count["started"], count["open"], count["states"]) == (1, 0, {"RESIDUE": 1})
    [left] = document["residue"]
    assert (left["id"], left["command"]) == (outing.id, f"saga show {outing.id}")
    assert [(effect["step"], effect["kind"]) for effect in left["residue"]] == [("go", "effect_missing")]
    assert {row["step"] for row in document["slowest_steps"]} == {"buy", "go"}
    assert (await stay.later.saga("report", "--json")).json["sagas"][-1]["states"] == {"COMPLETED": 2, "COMPENSATED": 1}


async def test_events_that_are_not_served(stay: Stay) -> None:
    starter = await stay.client.starter("stay")
    request = replace(
        await starter.check({"city": fresh("atlantis"), "amount": 200}), redelivery={"intervals": [1.0], "passed": 1}
    )
    saga_id = (await starter.start(request)).id

    async def reported() -> object:
        return (await stay.saga("report", "--json")).json["unserved"]

    [row] = await until(reported)
    why, command = "the last of 1 further starts was compensated", f"saga show {saga_id}"
    assert (row["id"], row["saga"], row["why"], row["command"]) == (saga_id, "stay", why, command)
    section = (await stay.saga("report")).out.partition("Events not served")[2]
    assert (why in section, command in section) == (True, True)
    assert (await stay.saga("report", "--saga", "trip", "--json")).json["unserved"] == []


async def test_without_a_ledger_it_says_what_it_cannot_know(stay: Stay) -> None:
    for state in ("COMPLETED", "COMPENSATED"):
        await past_saga(stay, state)
    settings = stay.folder / "saga.toml"
    settings.write_text(settings.read_text().replace('[ledger]\nconnection = "shop"\n', ""))

    async def counted() -> object:
        document = (await stay.saga("report", "--since", "90d", "--json")).json
        return document if sum(row["started"] for row in document["sagas"]) == 2 else None

    document = await until(counted)
    [count] = document["sagas"]
    assert (document["source"], count["states"]) == ("temporal", {"COMPLETED": 1, "COMPENSATED": 1})
    assert (count["mean_seconds"], document["slowest_steps"], document["sagas_read"]) == (None, [], 0)
    assert len(document["unknown"]) == 4
    printed = await stay.saga("report")
    assert "Not in this report" in printed.out
    assert "only a ledger keeps that" in printed.out
    at = datetime.now(UTC)
    nothing = await stay.saga("report", "--since", f"{at + timedelta(days=1):%Y-%m-%d}")
    assert "no saga has started" in nothing.out
